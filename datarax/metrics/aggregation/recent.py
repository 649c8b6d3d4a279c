"""Metrics of the latest values: the last one, a mean in which old values decay, a rate."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import jax
import numpy as np

from datarax._checks import as_float, default_float, numeric
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import beside, lax, xp
from datarax.algebra.fields import state
from datarax.algebra.leaf_state import ElementwiseState
from datarax.algebra.rows import Target
from datarax.distributed.merge_ops import MetricReduceOp, identity, zeros
from datarax.metric.arguments import with_number
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.numerics.double_float import DoubleFloat, where
from datarax.numerics.exact import Exact, Kept
from datarax.numerics.pairs import less
from datarax.numerics.scaled_double import ScaledDouble, multiplied
from datarax.numerics.scaling import nan_where
from datarax.numerics.sums import sum_floats
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import numbered_steps, rows_weight
from datarax.statistics.invalid_counts import CountsInvalid, not_finite, out_of_range
from datarax.statistics.moments import Parts
from datarax.statistics.weighted_total import ElapsedTotal

_FIRST = -(2**31)


def _none(dtype: str | np.dtype) -> np.ndarray:
    """The maximum of no values."""
    return identity(MetricReduceOp.max, (), np.dtype(dtype))[0]


class Newest(ElementwiseState):
    """The value of the greatest step; if that step has several values, the greatest of them."""

    step: jax.Array = state()
    value: Parts = state()
    """A double-float, of which float32 has the first part alone."""

    def empty(self) -> dict[str, PyTree]:
        dtype = np.dtype(default_float())
        return {"step": _none("int32"), "value": (_none(dtype), zeros((), dtype.name))}

    def of(self, x: jax.Array, step: jax.Array, counts: jax.Array) -> Self:
        """The newest value of a batch, among those that count."""
        newest = xp.max(step, initial=_FIRST, where=counts)
        # -0.0 becomes 0.0, because the maximum of both may be either of them.
        x = xp.where(x == 0, 0, x)
        last = xp.max(x, initial=-xp.inf, where=counts & (step == newest))
        return self.with_parts({"step": newest, "value": tuple(DoubleFloat.of(last))})

    def weighted_by(self, factor: ScaledDouble) -> Self:
        return self

    def combine(self, other: Self) -> Self:
        a, b = self.value, other.value
        # Of equal steps the greater value, so that the order of merges does not matter.
        is_other = (self.step < other.step) | ((self.step == other.step) & less(a, b))
        value = xp.where(is_other, b[0], a[0]), xp.where(is_other, b[1], a[1])
        return self.with_parts({"step": xp.maximum(self.step, other.step), "value": value})


class DecayedSums(ElementwiseState, kw_only=False):
    """The sums of `w * x` and of `w`; both are multiplied by `decay` at each step."""

    decay: float

    step: jax.Array = state()
    total: Parts = state()
    weight: Parts = state()

    def empty(self) -> dict[str, PyTree]:
        zero = zeros((), np.dtype(default_float()).name)
        return {"step": _none("int32"), "total": (zero, zero), "weight": (zero, zero)}

    def of(self, x: jax.Array, w: jax.Array, step: jax.Array) -> Self:
        """The sums of a batch, from values `x`, their weights `w` and steps, of one shape."""
        counts = w > 0
        newest = xp.max(step, initial=_FIRST, where=counts)
        # Older values of the batch have decayed by its newest step.
        w = w * self._decay_since(newest, step).to_float()
        axes = tuple(range(x.ndim))
        total = sum_floats(xp.where(counts, x, 0) * w, axes)
        return self._holding(newest, total, sum_floats(w, axes))

    def _holding(self, step: jax.Array, total: DoubleFloat, weight: DoubleFloat) -> Self:
        return self.with_parts({"step": step, "total": tuple(total), "weight": tuple(weight)})

    def _decay_since(self, newest: jax.Array, step: jax.Array) -> DoubleFloat:
        """`decay ** (newest - step)` as a double-float: float32 errors would accumulate."""
        # The difference is unsigned, because that of two int32 steps may overflow an int32.
        since = newest.astype(xp.uint32) - step.astype(xp.uint32)
        dtype = default_float()
        # Repeated squaring: `squares[k]` is the factor for bit k of the number of steps.
        squares = np.array([self.decay ** (2**k) for k in range(32)])
        high = squares.astype(dtype)
        factors = DoubleFloat(*(beside(since, x) for x in (high, (squares - high).astype(dtype))))

        def multiply(k: jax.Array, power: DoubleFloat) -> DoubleFloat:
            bit = (since >> k.astype(xp.uint32)) & xp.uint32(1)
            return where(bit == 1, power * factors[k], power)

        one = DoubleFloat.of(xp.ones_like(since, dtype))
        return lax.fori_loop(xp.int32(0), xp.int32(32), multiply, one)

    def weighted_by(self, factor: ScaledDouble) -> Self:
        total, weight = (
            multiplied(DoubleFloat(*map(xp.asarray, x)), factor) for x in (self.total, self.weight)
        )
        return self._holding(xp.asarray(self.step), total, weight)

    def float_sums(self) -> list[jax.Array]:
        return [self.weight[0]]

    def combine(self, other: Self) -> Self:
        # Both sums decay to the newest step before they are added.
        newest = xp.maximum(self.step, other.step)
        mine, others = (each._decay_since(newest, xp.asarray(each.step)) for each in (self, other))
        return self._holding(
            newest,
            DoubleFloat(*self.total) * mine + DoubleFloat(*other.total) * others,
            DoubleFloat(*self.weight) * mine + DoubleFloat(*other.weight) * others,
        )


class LastNumber(MetricAccumulator):
    """The number of the last update, from 0; a maximum, which all devices keep."""

    def on_other_devices(self) -> Self:
        return self


class LastStep(CountsInvalid):
    """The value of the greatest step, among values that can be used."""

    newest = Newest()
    numbered = LastNumber(-1, MetricReduceOp.max)
    """The step of the last update that was given none."""

    @property
    def next(self) -> jax.Array:
        """The step of the next update that is given none."""
        return self.numbered.value + xp.int32(1)

    def update(
        self, values: ArrayLike, step: ArrayLike | None = None, *, weights: Weights = None
    ) -> Self:
        """Folds in `values` of any shape; `step` and `weights` broadcast on their leading axes."""
        if step is None:
            return self.after(self.next).update(values, self.next, weights=weights)
        x = numeric(values, "values")
        x = x if x.dtype == default_float() else as_float(x)
        step, known = numbered_steps(step, x)
        w, invalid = rows_weight(not_finite(x) | out_of_range(~known), weights)
        counts = xp.broadcast_to(w.astype(xp.bool_), x.shape)
        newest = self.newest.combine(self.newest.of(x, step, counts))
        return self.with_batch(invalid, newest=newest)

    def after(self, step: jax.Array) -> Self:
        """The state after an update that was given none, and has this step."""
        return self.replace(numbered=self.numbered.update(step))

    @property
    def value(self) -> jax.Array | Exact:
        """The last value; NaN where there is no data."""
        high, low = map(xp.asarray, self.newest.value)
        return Kept.of_parts(nan_where(~xp.isfinite(high), high), low)  # -inf without data


class DecayedTotal(CountsInvalid, kw_only=False):
    """A total and a weight that decay by the factor `decay` with each step."""

    decay: float
    """Above 0, at most 1."""

    def __post_init__(self) -> None:
        is_number = isinstance(self.decay, int | float) and not isinstance(self.decay, bool)
        if not is_number or not 0 < self.decay <= 1:
            raise MetricInputError(f"decay={self.decay!r}; expected a number above 0, at most 1")
        self.decay = float(self.decay)
        self.sums = DecayedSums(self.decay)

    def update(self, values: ArrayLike, step: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `values` of any shape; `step` and `weights` broadcast on their leading axes."""
        x = as_float(numeric(values, "values"))
        step, known = numbered_steps(step, x)
        w, invalid = rows_weight(not_finite(x) | out_of_range(~known), weights)
        w = xp.broadcast_to(as_float(w), x.shape)
        return self.with_batch(invalid, sums=self.sums.combine(self.sums.of(x, w, step)))

    @property
    def mean(self) -> jax.Array:
        """NaN where there is no data."""
        return (DoubleFloat(*self.sums.total) / DoubleFloat(*self.sums.weight)).to_float()


class SteppedMetric(Metric):
    """A metric of values, each with the step it belongs to; a subclass makes the `statistic`.

    Devices and processes have no common order in time. The step of a value decides how old it is,
    so the result does not depend on the order in which batches and devices are merged.
    """

    # Any state whose `update` takes values, steps and weights.
    statistic: Any = state()
    broadcast_arguments = ("step",)

    @shareable
    def update(self, values: ArrayLike, step: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            values: of any shape and real dtype.
            step: integers that broadcast against the leading axes of `values`; those that do not
                fit 32 bits are invalid.
            weights: broadcast against the leading axes of `values`. A value of weight zero does
                not count, nor does its step.

        Raises:
            MetricInputError: a step or weights that do not broadcast; shows both shapes.
            MetricTypeError: steps that are not integers.
        """
        return self.replace(statistic=self.statistic.update(values, step, weights=weights))


class LastValue(SteppedMetric):
    """The value of the greatest step; without steps, that of the last update.

    Of several values of that step, on any device, the greatest. With `on_invalid="exclude"`,
    the last value that is finite. No data gives NaN.

    An update without `step` is numbered by the state, from 0 after a reset. So the last of a
    sequence of updates wins, and of several values in one update the greatest. Where states are
    merged, the one that was updated more often has the last value, whatever the time; devices that
    are updated together have equal numbers. Where states follow each other, such as those of parts
    of a stream, give steps. Give a step in all updates, or in none.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import LastValue
        >>> metric = LastValue().update(jnp.array([0.25, 0.125]), step=8).update(0.5, step=7)
        >>> print(metric.compute(), LastValue().update(0.25).update(0.125).compute())
        0.25 0.125
    """

    statistic = LastStep()

    @shareable
    def update(
        self, values: ArrayLike, step: ArrayLike | None = None, *, weights: Weights = None
    ) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            values: of any shape and real dtype.
            step: integers that broadcast against the leading axes of `values`; those that do not
                fit 32 bits are invalid. `None` for one more than that of the update before.
            weights: broadcast against the leading axes of `values`. A value of weight zero does
                not count, nor does its step.

        Raises:
            MetricInputError: a step or weights that do not broadcast; shows both shapes.
            MetricTypeError: steps that are not integers.
        """
        return self.replace(statistic=self.statistic.update(values, step, weights=weights))

    def calls(self, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> PyTree:
        return replace(super().calls(args, kwargs), numbered_by="step")

    def apply_at(self, calls: PyTree, target: Target) -> Self:
        # All places and replicas number an update alike, also where it has no row.
        step = xp.max(self.statistic.next)
        numbered = with_number(calls, step)
        updated = super().apply_at(numbered, target)
        if numbered is calls:
            return updated
        return updated.replace(statistic=updated.statistic.after(step))

    def compute(self) -> PyTree:
        return self.statistic.value


class ExponentialMovingAverage(SteppedMetric):
    """A mean in which the weight of a value decays by a factor for each step since.

    `sum(w * decay**(last - step) * x) / sum(w * decay**(last - step))`, where `last` is the
    greatest step. With one value for each step it is the bias-corrected average of Adam (D. P.
    Kingma and J. Ba, 2015, https://arxiv.org/abs/1412.6980), from the first step on. No data gives
    NaN.

    Raises:
        MetricInputError: a `decay` that is not a number above 0 and at most 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ExponentialMovingAverage
        >>> metric = ExponentialMovingAverage(decay=0.5).update(4.0, step=0).update(1.0, step=1)
        >>> print(metric.compute())
        2.0
    """

    decay: float = 0.99
    """Above 0 and at most 1, which gives the plain mean. The weight of a value is halved after
    `log(0.5) / log(decay)` steps."""

    statistic: DecayedTotal = state()

    def __post_init__(self) -> None:
        self.statistic = DecayedTotal.from_fields(self)

    def compute(self) -> PyTree:
        return self.statistic.mean


class Rate(Metric):
    """A count per second of wall time: `sum(w * x)` divided by the greatest elapsed time.

    Counts of devices and processes that work at the same time add up. Their times do not: the
    greatest is taken. A program on a device cannot read a clock, so the host passes the time:

        start = time.perf_counter()
        for batch in batches:
            step(batch)
            metric = metric.update(tokens, elapsed=time.perf_counter() - start)

    JAX dispatches a step and returns before it is done. While the host runs ahead of the devices,
    the rate is that of dispatch. After `reset()`, start the clock again. No data, or no time, gives
    NaN.

    Example:
        >>> from datarax.metrics import Rate
        >>> print(Rate().update(300, elapsed=0.5).update(300, elapsed=1.5).compute())
        400.0
    """

    statistic = ElapsedTotal()
    broadcast_arguments = ("elapsed",)

    @shareable
    def update(self, values: ArrayLike, elapsed: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            values: what is counted (examples, tokens), of any shape.
            elapsed: seconds by the host's clock from the start of the run to the end of this step;
                broadcasts against the leading axes of `values`. A time that is negative or not
                finite is invalid.
            weights: broadcast against the leading axes of `values`.

        Raises:
            MetricInputError: times or weights that do not broadcast; shows both shapes.
        """
        return self.replace(statistic=self.statistic.update(values, elapsed, weights=weights))

    def compute(self) -> PyTree:
        return self.statistic.rate
