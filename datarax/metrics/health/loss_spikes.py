"""`LossSpikes`: how often the loss jumped far above the losses of the steps before."""

from typing import Any, Self

import jax
import numpy as np

from datarax._checks import as_float, default_float, numeric, positive_int, real
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, OnInvalid, PyTree, Weights
from datarax._xp import lax, xp
from datarax.algebra.fields import state
from datarax.algebra.leaf_state import ElementwiseState
from datarax.distributed.collectives import unsharded
from datarax.distributed.merge_ops import MetricReduceOp, identity
from datarax.metric.base import Metric
from datarax.metric.values import OrNone
from datarax.numerics.scaling import nan_where
from datarax.numerics.sums import sum_floats
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import numbered_steps, rows_weight
from datarax.statistics.invalid_counts import InvalidCounts, not_finite, out_of_range

NO_STEP = -(2**31)
"""The step of a place that holds no value."""


class RecentValues(ElementwiseState, kw_only=False):
    """The `size` values of the greatest steps; of equal steps, the greatest values.

    They are sorted by step and then by value, so the order of updates and merges does not matter.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.health.loss_spikes import RecentValues
        >>> values, steps = jnp.array([0.5, 2.0, 1.0]), jnp.array([7, 9, 8])
        >>> print(RecentValues(2).with_values(values, steps).value)
        [1. 2.]
    """

    size: int

    step: jax.Array = state()
    value: jax.Array = state()

    def empty(self) -> dict[str, PyTree]:
        dtypes, shape = {"step": np.dtype("int32"), "value": default_float()}, (self.size,)
        return {name: identity(MetricReduceOp.max, shape, x)[0] for name, x in dtypes.items()}

    def with_values(self, values: jax.Array, steps: jax.Array) -> Self:
        """The state with finite values (n,) of int32 steps added."""
        # -0.0 becomes 0.0, because a sort puts it before 0.0.
        values = xp.where(values == 0, 0, values).astype(self.value.dtype)
        step = xp.concatenate([xp.asarray(self.step), steps])
        value = xp.concatenate([xp.asarray(self.value), values])
        # The newest are at the end. Empty places have the least step, so they are dropped first.
        step, value = lax.sort((step, value), num_keys=2)
        return self.with_parts({"step": step[-self.size :], "value": value[-self.size :]})

    def combine(self, other: Self) -> Self:
        return self.with_values(xp.asarray(other.value), xp.asarray(other.step))

    def before(self, step: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The values of lesser steps, sorted, and filled up with infinities; and their number."""
        older = (xp.asarray(self.step) < step) & (xp.asarray(self.step) > NO_STEP)
        # Infinities are sorted behind all losses, which are finite.
        values = lax.sort(xp.where(older, xp.asarray(self.value), xp.inf))
        return values, xp.sum(older, dtype=xp.int32)


class LossSpikes(Metric):
    """Counts the steps that had a loss far above those of the steps before.

    A loss is a spike if it is above Tukey's fence of the last `window` losses,
    `q3 + fence * (q3 - q1)`, where `q1` and `q3` are their quartiles. So nothing is assumed of the
    scale or the sign of the loss, and a few spikes do not hide the next one. J. W. Tukey (1977),
    Exploratory Data Analysis: beyond 3 is "far out".

    `compute` gives a dict: "count", the number of spikes; "last_step", the greatest step that had
    one, None in `results()` and -1 in `compute()` if there is none; "largest", the greatest
    distance of a spike from the median of the losses before it, NaN if there is none.

    A loss is judged once, when the metric is updated with it, against the losses of lesser steps
    that this metric has seen. So, unlike other metrics, **the result depends on the order of
    updates**: give the steps in order, and the loss of the whole step, averaged over devices. What
    is merged later is not judged again: merging and syncing add up the counts, and keep the newest
    losses for the next steps. Merging is associative and commutative, and an empty metric is its
    identity; but two halves of a run that were folded apart have other counts than the run. After
    `reset()`, as between the windows of a collector, the first `min_history` losses are not judged.

    Example:
        >>> from datarax.metrics import LossSpikes
        >>> metric = LossSpikes(min_history=4)
        >>> for step, loss in enumerate([2.5, 2.25, 2.5, 2.0, 8.0, 2.25]):
        ...     metric = metric.update(loss, step=step)
        >>> print(metric.results())
        {'count': 1, 'largest': 5.75, 'last_step': 4}
    """

    higher_is_better = False
    on_invalid: OnInvalid = "exclude"
    """The policy for data that cannot be used: "exclude" leaves it out, "propagate" makes results
    that are floats NaN, "raise" raises `InvalidValuesError` when the result is read. The default is
    "exclude" because the results are counts."""
    fence: float = 3.0
    """The least distance of a spike above the upper quartile, in interquartile ranges."""
    window: int = 128
    """The number of the newest losses that are kept."""
    min_history: int = 16
    """The number of losses before one is judged; at most `window`."""

    recent: RecentValues = state()
    count = MetricAccumulator(0)
    last = MetricAccumulator(np.int32(NO_STEP), MetricReduceOp.max)
    largest = MetricAccumulator(-np.inf, MetricReduceOp.max)
    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        self.fence = real(self.fence, "fence")
        positive_int(self.window, "window")
        positive_int(self.min_history, "min_history")
        if not self.fence >= 0 or self.min_history > self.window:
            raise MetricInputError(
                f"fence={self.fence}, window={self.window}, min_history={self.min_history}; "
                f"expected fence >= 0 and min_history <= window"
            )
        self.recent = RecentValues(self.window)

    def update(self, values: ArrayLike, step: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the loss of a step, or of several, judged and folded in.

        Args:
            values: losses of real dtype, of shape (*step.shape, ...): the loss of a step is the
                weighted mean over the further axes.
            step: integers of any shape, mostly (). Several steps are judged in their order.
            weights: broadcast against the leading axes of `values`. A step without weight does not
                count. NaN and infinities are invalid, and left out.

        Raises:
            MetricInputError: shapes that do not fit together; shows both.
            MetricTypeError: steps that are not integers.
        """
        x, step = as_float(numeric(values, "values")), numeric(step, "step")
        if x.shape[: step.ndim] != step.shape:
            raise MetricInputError(
                f"values of shape {x.shape} for step of shape {step.shape}; expected "
                f"{(*step.shape, '...')}: one step for the loss, or for each of several losses"
            )
        _, known = numbered_steps(step, x)
        w, invalid = rows_weight(not_finite(x) | out_of_range(~known), weights)
        w = as_float(xp.broadcast_to(w, x.shape))
        # The loss of a step is the weighted mean over the axes that `step` does not have.
        axes = tuple(range(step.ndim, x.ndim))
        total, weight = sum_floats(xp.where(w > 0, x, 0) * w, axes), sum_floats(w, axes)
        some = weight.high > 0
        # A step without weight becomes an empty place: it is neither judged nor kept.
        losses = xp.where(some, (total / weight).high, -xp.inf)
        numbers = xp.where(some, step.astype(xp.int32), xp.int32(NO_STEP))
        losses, numbers = (unsharded(x.reshape(-1), 0) for x in (losses, numbers))
        # In the order of the steps, each loss joins the history of those after it.
        numbers, losses = lax.sort((numbers, losses), num_keys=2)
        recent, (spikes, excess) = lax.scan(self._judged, self.recent, (losses, numbers))
        return self.replace(
            recent=recent,
            count=self.count.update(spikes),
            last=self.last.update(numbers, where=spikes),
            largest=self.largest.update(excess, where=spikes),
            invalid=self.invalid.update(invalid),
        )

    def _judged(
        self, recent: RecentValues, seen: tuple[jax.Array, jax.Array]
    ) -> tuple[RecentValues, Any]:
        """Judges the loss of one step; and adds it to the recent ones."""
        loss, step = seen
        history, size = recent.before(step)
        # The least value at or below which a quarter, a half, three quarters of them lie.
        places = (size * np.array([1, 2, 3], np.int32) + 3) // 4 - 1
        lower, median, upper = history[xp.maximum(places, 0)]
        # With too few losses, the quartiles may be infinite; then the fence does not count.
        spike = (size >= self.min_history) & (step > NO_STEP)
        spike = spike & (loss > upper + self.fence * (upper - lower))
        return recent.with_values(loss[None], step[None]), (spike, loss - median)

    def compute(self) -> PyTree:
        # The maximum of no distances is -inf.
        last, largest = xp.asarray(self.last.value), self.largest.value
        return {
            "count": self.count.value,
            "largest": nan_where(~xp.isfinite(largest), largest),
            "last_step": OrNone(last > NO_STEP, last),
        }
