"""Statistics of values with step numbers: the value of the last step, and totals that decay."""

from typing import Self

import jax
import numpy as np

from datarax._checks import as_float, default_float, numeric
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import beside, lax, xp
from datarax.algebra.fields import state
from datarax.algebra.leaf_state import ElementwiseState
from datarax.algebra.state import State
from datarax.distributed.merge_ops import MetricReduceOp, identity, zeros
from datarax.numerics.double_float import DoubleFloat, where
from datarax.numerics.scaled_double import ScaledDouble, multiplied
from datarax.numerics.scaling import nan_where
from datarax.numerics.sums import sum_floats
from datarax.statistics.batches import numbered_steps, rows_weight
from datarax.statistics.invalid_counts import InvalidCounts, not_finite, out_of_range
from datarax.statistics.moments import Parts

_FIRST = -(2**31)


def _none(dtype: str | np.dtype) -> np.ndarray:
    """The maximum of no values."""
    return identity(MetricReduceOp.max, (), np.dtype(dtype))[0]


class Newest(ElementwiseState):
    """The value of the greatest step; if that step has several values, the greatest of them."""

    step: jax.Array = state()
    value: jax.Array = state()

    def empty(self) -> dict[str, PyTree]:
        return {"step": _none("int32"), "value": _none(default_float())}

    def of(self, x: jax.Array, step: jax.Array, counts: jax.Array) -> Self:
        """The newest value of a batch, among those that count."""
        newest = xp.max(step, initial=_FIRST, where=counts)
        # -0.0 becomes 0.0, because the maximum of both may be either of them.
        x = xp.where(x == 0, 0, x)
        last = xp.max(x, initial=-xp.inf, where=counts & (step == newest))
        return self.with_parts({"step": newest, "value": last})

    def weighted_by(self, factor: ScaledDouble) -> Self:
        return self

    def combine(self, other: Self) -> Self:
        a, b = self, other
        greater = xp.where(a.step < b.step, b.value, xp.maximum(a.value, b.value))
        return self.with_parts(
            {
                "step": xp.maximum(a.step, b.step),
                "value": xp.where(a.step > b.step, a.value, greater),
            }
        )


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
        w = w * self._decay_since(newest, step).high
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

    def combine(self, other: Self) -> Self:
        newest = xp.maximum(self.step, other.step)
        mine, others = (each._decay_since(newest, xp.asarray(each.step)) for each in (self, other))
        return self._holding(
            newest,
            DoubleFloat(*self.total) * mine + DoubleFloat(*other.total) * others,
            DoubleFloat(*self.weight) * mine + DoubleFloat(*other.weight) * others,
        )


class LastStep(State):
    """The value of the greatest step, among values that can be used."""

    newest = Newest()
    invalid = InvalidCounts()

    def update(self, values: ArrayLike, step: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `values` of any shape; `step` and `weights` broadcast on their leading axes."""
        x = numeric(values, "values").astype(default_float())
        step, known = numbered_steps(step, x)
        w, invalid = rows_weight(not_finite(x) | out_of_range(~known), weights)
        counts = xp.broadcast_to(w.astype(xp.bool_), x.shape)
        return self.replace(
            newest=self.newest.combine(self.newest.of(x, step, counts)),
            invalid=self.invalid.update(invalid),
        )

    @property
    def value(self) -> jax.Array:
        """The last value; NaN where there is no data."""
        last = xp.asarray(self.newest.value)
        return nan_where(~xp.isfinite(last), last)


class DecayedTotal(State, kw_only=False):
    """A total and a weight that decay by the factor `decay` with each step."""

    decay: float
    """Above 0, at most 1."""

    invalid = InvalidCounts()

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
        return self.replace(
            sums=self.sums.combine(self.sums.of(x, w, step)),
            invalid=self.invalid.update(invalid),
        )

    @property
    def mean(self) -> jax.Array:
        """NaN where there is no data."""
        return (DoubleFloat(*self.sums.total) / DoubleFloat(*self.sums.weight)).to_float()
