"""`Decayed`: the value of a metric in which older updates count less."""

import math
from typing import Self, TypeVar

import jax

from datarax._checks import real
from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax._xp import lax, vmap
from datarax.algebra.fields import state
from datarax.algebra.row_merge import Target
from datarax.algebra.stack import Element
from datarax.metrics.base import Metric
from datarax.metrics.reading import Reading
from datarax.wrappers.numbered import Fading
from datarax.wrappers.wrapper import Stacked, checked_metric

S = TypeVar("S")


class Decayed(Stacked):
    """A metric in which the weight of all data halves every `half_life` updates.

    `update` takes what the metric's own `update` takes, and `compute` gives what its `compute`
    gives: the value of the metric if the data of the k-th last update had its weights times
    `2**(-k / half_life)`, where k is 0 for the last one. Sums and counts are weighted ones. Maxima,
    minima, the range of the bins of scores, and the counts of what could not be used do not decay.

    Every call of `update` is an update, also if the batch is empty or all weights are zero. So the
    value depends on how data is split into batches. `reset` starts to count again; so does a
    collector, which resets what it collects.

    Before two metrics are merged, the one with fewer updates decays to the number of the other.
    Devices that are updated together have equal numbers. In `pmap` and
    `shard_map(check_vma=False)`, keep the metric of each device, and sync it only to read it: a
    metric that is reset for each step would always be at its first update. Updates are counted up
    to `2**31`.

    Weights are multiplied in double-floats. Means of values and of losses keep their value however
    long there is no new data. Counts of a class, of a bin or of a cell of a table are forgotten,
    each by itself, when they are below `2**-100`: after about a hundred half-lives without data. So
    are moments, such as those of `Std`, after about two hundred. Then there is no data.

    Args:
        metric: a metric or a collection, without data. Not one that keeps examples, has sums of
            integers, or counts updates itself.
        half_life: the number of updates after which data has half of its weight; need not be whole.

    Raises:
        MetricInputError: the metric has data or counts updates, or `half_life` is not a positive
            finite number.
        MetricTypeError: `metric` is not a metric, or a state of it cannot lose weight.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import Decayed
        >>> from datarax.metrics import Mean
        >>> loss = Decayed(Mean(), half_life=1)
        >>> for batch in (4.0, 2.0, 1.0):
        ...     loss = loss.update(jnp.array(batch))
        >>> print(loss.compute() == (4 / 4 + 2 / 2 + 1) / (1 / 4 + 1 / 2 + 1))
        True
    """

    half_life: float
    stack: Fading = state()

    def __init__(self, metric: Metric, half_life: float):
        metric = checked_metric(metric, "Decayed")
        number = real(half_life, "half_life")
        if not (number > 0 and math.isfinite(number)):
            raise MetricInputError(f"half_life={half_life!r}; expected a positive, finite number")
        self.half_life = number
        self.stack = Fading(element=Element(metric), size=1, half_life=number)

    def _apply(self, calls: PyTree) -> Self:
        updated = _only(self.stack.faded(), 0).apply(calls)
        return self.with_parts({"stack": self.stack.push(_as_stack(updated, 0))})

    def apply_at(self, calls: PyTree, target: Target) -> Self:
        faded = vmap(lambda x: x.faded())(self.stack)
        updated = _as_stack(_only(faded, 1).apply_at(calls, target), 1)
        return self.with_parts({"stack": self.stack.push(updated)})

    def reading(self) -> Reading:
        return _only(self.stack.states, 0).reading()

    def invalid_count(self) -> PyTree:
        return _only(self.stack.states, 0).invalid_count()


def _only(stacked: S, axis: int) -> S:
    """The only metric of a stack, whose states are along this axis."""
    return jax.tree.map(lambda x: lax.squeeze(x, (axis,)), stacked)


def _as_stack(metric: S, axis: int) -> S:
    """A metric as a stack of one, at this axis."""
    return jax.tree.map(lambda x: lax.expand_dims(x, (axis,)), metric)
