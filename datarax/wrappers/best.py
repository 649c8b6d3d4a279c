"""The best of the values that a metric has after each update."""

from dataclasses import replace
from typing import ClassVar, Literal, Self

import jax
import numpy as np

from datarax._checks import default_float, numeric
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree
from datarax._xp import xp
from datarax.algebra.devices import axes_of
from datarax.algebra.fields import field, state
from datarax.algebra.leaf_state import ElementwiseState
from datarax.algebra.rows import Target
from datarax.distributed.merge_ops import filled, zeros
from datarax.metric.reading import Reading
from datarax.metric.rows import updated_at
from datarax.wrappers.wrapper import Wrapper, value_shapes

_MOST = 2**31 - 1  # the greatest int32


class BestValue(ElementwiseState):
    """The best of the values so far, its step, and how many values there were.

    NaN is never the best. Of equal values the one of the least step is kept, so that merging is
    associative and commutative. Without a value other than NaN, the best is NaN and its step -1.

    Example:
        >>> from datarax.wrappers.best import BestValue
        >>> best = BestValue(mode="min").update(3.0).update(1.0).update(2.0)
        >>> print(best.value, best.step, best.count)
        1.0 1 3
    """

    is_extreme: ClassVar[bool] = True

    mode: Literal["max", "min"] = "max"
    """Says which value is the best: the greatest with "max", the least with "min"."""

    value: jax.Array = state()
    """The best value, in the default float dtype."""
    step: jax.Array = state()
    """The number of values before the best one, int32."""
    count: jax.Array = state()
    """The number of values, int32; it stays at 2**31 - 1 from there on."""

    def empty(self) -> dict[str, PyTree]:
        return {
            "value": filled((), default_float().name, np.nan),
            "step": filled((), "int32", -1),
            "count": zeros((), "int32"),
        }

    def update(self, value: ArrayLike) -> Self:
        """Folds in one value, of shape ()."""
        value = numeric(value, "value").astype(default_float())
        # -0.0 becomes 0.0: both are equal, and merging would keep either of them.
        new = {"value": xp.where(value == 0, 0, value), "step": self.count, "count": xp.int32(1)}
        return self.combine(self.with_parts(new))

    def combine(self, other: Self) -> Self:
        # Every comparison with NaN is false, so `other` never wins with NaN, and NaN never stays
        # beside a number.
        is_better = other.value > self.value if self.mode == "max" else other.value < self.value
        is_earlier = (other.value == self.value) & (other.step < self.step)
        is_first = xp.isnan(self.value) & ~xp.isnan(other.value)
        wins = is_better | is_earlier | is_first
        # The count stays at its greatest value instead of wrapping around.
        return self.with_parts(
            {
                "value": xp.where(wins, other.value, self.value),
                "step": xp.where(wins, other.step, self.step),
                "count": self.count + xp.minimum(other.count, _MOST - self.count),
            }
        )


class Best(Wrapper):
    """The best of the values that a metric has after each update, and the step of that update.

    A dict: "value", a float, and "step", an int32: the number of updates before the one that gave
    this value, since the metric was made or reset. Of equal values, the first counts. NaN is never
    the best. No data gives NaN and the step -1. Steps are counted up to 2**31 - 1.

    The metric is read in each update, in the same compiled program, which costs what its `compute`
    costs. It is read under its own `on_invalid`: with "propagate", the values are NaN from the
    first data on that cannot be used, and so is the result; with "exclude" such data is left out.
    `best.metric` is the metric itself.

    The value needs all data seen so far. So update with global arrays, under `jit` or outside.
    `per_device`, and an update inside `shard_map` with arrays that vary over devices, raise an
    error, because each device would have the value of its own rows. In `pmap`, and in `shard_map`
    with `check_vma=False`, JAX does not tell whether arrays vary. There, update with arrays that
    are equal on all devices (from `datarax.distributed.all_gather`), and do not sync.

    `merge` merges the two metrics and keeps the better of the two best values, with its step in its
    own sequence of updates. It cannot know which values the merged metric would have had: those
    depend on the order of updates. A collector empties the metric, so each window has a best of its
    own, whose steps count from the start of the window.

    Args:
        metric: a metric whose value is one number, without copies for each device.
        mode: "max" or "min": whether the greatest or the least value is the best.

    Raises:
        MetricTypeError: `metric` is not such a metric.
        MetricInputError: its value is not one number, or `mode` is another word.

    Example:
        >>> import jax.numpy as jnp
        >>> import datarax
        >>> best = datarax.Best(datarax.metrics.Mean(), mode="min")
        >>> for loss in (3.0, 1.0, 8.0):  # the mean is 3, then 2, then 4
        ...     best = best.update(jnp.float32(loss))
        >>> print(best.results())
        {'step': 1, 'value': 2.0}
    """

    mode: Literal["max", "min"] = field(default="max", kw_only=False)
    """Says which value is the best: the greatest with "max", the least with "min"."""

    best: BestValue = state()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.best = BestValue(mode=self.mode)
        value = value_shapes(self.metric)
        if not isinstance(value, jax.ShapeDtypeStruct) or value.shape != ():
            got = f"an array of shape {value.shape}" if hasattr(value, "shape") else f"{value}"
            raise MetricInputError(
                f"Best: the value of {self.metric!r} is {got}; expected one number. Choose "
                f"one with Transformed(metric, result=...)"
            )

    def apply_at(self, calls: PyTree, target: Target) -> Self:
        return updated_at(self, calls, target)

    def apply(self, calls: PyTree) -> Self:
        axes = axes_of((self, calls))
        if axes:
            raise MetricInputError(
                f"Best.update: the data vary over the devices along {', '.join(sorted(axes))}, so "
                f"each device would compare the value of its own rows. Update with global arrays "
                f"outside shard_map, or with what datarax.distributed.all_gather gives"
            )
        metric = self.metric.apply(calls)
        best = self.best.update(metric.reading().rounded())
        return self.with_parts({"metric": metric, "best": best})

    def reading(self) -> Reading:
        reading = self.metric.reading()
        value = reading.propagated({"value": self.best.value, "step": self.best.step})
        return replace(reading, value=value, bounds={})
