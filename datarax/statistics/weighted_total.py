"""A weighted sum and the total weight, the statistic of means; and the exact sum of integers."""

from typing import Self

import jax

from datarax._checks import as_float, is_integer, numeric, x64_enabled
from datarax._typing import ArrayLike, Weights
from datarax._xp import lax, xp
from datarax.algebra.fields import state
from datarax.algebra.state import State
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.numerics.exact import Exact, WholeOrFloat
from datarax.numerics.limbs import sum_products
from datarax.numerics.scaled_double import ScaledDouble
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import least_weight, rows_weight
from datarax.statistics.invalid_counts import Invalid, InvalidCounts, not_finite
from datarax.statistics.scaled_total import ScaledTotal, quotient


class WeightedTotal(State, kw_only=False):
    """The sum of `w * x`, the sum of `w`, and the number of values that could not be used.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import WeightedTotal
        >>> seen = WeightedTotal().update(jnp.array([1.0, 3.0, jnp.nan]))
        >>> print(seen.mean, seen.invalid.value)
        2.0 1
    """

    shape: tuple[int, ...] = ()
    """The shape of one example: there is a sum for each of its elements."""

    sums: ScaledTotal = state()
    """The sums of `w * x` and of `w`, (2, *shape)."""
    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        self.shape = tuple(self.shape)
        self.sums = ScaledTotal((2, *self.shape))

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `values` (..., *shape); `weights` broadcast against their leading axes.

        NaN and infinities are excluded, and counted in `invalid` unless their weight is zero.
        """
        x = numeric(values, "values")
        if not is_integer(x):
            # Cast first: a finite float64 may be infinite in the dtype of the total.
            x = as_float(x)
        return self.add(x, *rows_weight(not_finite(x), weights))

    def add(self, x: jax.Array, w: jax.Array, invalid: Invalid) -> Self:
        """Folds in values that have been checked; they may be infinite.

        Args:
            x: the values; a value of weight zero is ignored, even NaN.
            w: their weights, as from `rows_weight`.
            invalid: the values that could not be used, as from `rows_weight`.
        """
        of_each = w if w.shape == x.shape else xp.broadcast_to(w, x.shape)
        return self.replace(
            sums=self.sums.plus((x, w), (of_each, None)),
            invalid=self.invalid.update(invalid),
        )

    @property
    def total(self) -> ScaledTotal:
        """The sum of `w * x`."""
        return self.sums[0]

    @property
    def weight(self) -> ScaledTotal:
        """The sum of `w`."""
        return self.sums[1]

    @property
    def mean(self) -> jax.Array:
        """The weighted mean, rounded once; NaN where the weight is zero."""
        return quotient(self.total, self.weight)


class ExactTotal(WeightedTotal):
    """A `WeightedTotal` that also holds the sum of integers exactly, up to 2**63.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics.weighted_total import ExactTotal
        >>> seen = ExactTotal().update(jnp.array([2**30, 1]), weights=jnp.array([2**30, 1]))
        >>> print(seen.exact)
        1152921504606846977
    """

    whole = MetricAccumulator(0)
    """The sum of `w * x` over the integers whose weights are whole numbers."""
    is_float = MetricAccumulator(0, MetricReduceOp.max)
    """1 if there were values of a float dtype, or weights that are not whole."""

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        x, w = numeric(values, "values"), None if weights is None else numeric(weights, "weights")
        seen = super().update(x, weights=w)
        whole, is_float = self.whole, xp.bool_(not is_integer(x))
        if w is None and is_integer(x):
            whole = whole.update(x)
        elif w is None or not is_integer(x):
            pass  # the total alone holds it
        elif w.dtype == xp.bool_:
            w = lax.expand_dims(w, range(w.ndim, x.ndim))
            whole = whole.update(xp.where(w, x, xp.zeros((), x.dtype)))
        else:
            w, is_float = _whole_weights(w)
            w = xp.broadcast_to(lax.expand_dims(w, range(w.ndim, x.ndim)), x.shape)
            if x64_enabled():
                whole = whole.update(x.astype(xp.int64) * w.astype(xp.int64))
            else:
                whole = whole.update(Exact(*sum_products(x, w, tuple(range(x.ndim)))))
        return seen.replace(whole=whole, is_float=self.is_float.update(is_float))

    def weighted_by(self, factor: ScaledDouble) -> Self:
        # The products with the factor are not whole: from now on, the sum of floats is the total.
        return self.replace(
            sums=self.sums.weighted_by(factor),
            whole=self.whole.reset(),
            is_float=self.is_float.update(1),
        )

    @property
    def exact(self) -> WholeOrFloat:
        """The total: an integer if values of integer dtype and whole weights make it up."""
        return WholeOrFloat(self.whole.value, self.total.double, self.is_float.value > 0)


def _whole_weights(w: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weights as integers, 0 where they are negative or not whole; and a mask of the latter."""
    if is_integer(w):
        return xp.maximum(w, xp.zeros((), w.dtype)), xp.zeros((), xp.bool_)
    # A mask of floats, for example, still gives whole numbers.
    w = as_float(w)
    fits = (w >= 0) & (w == xp.round(w)) & (w < 2.0**31)
    is_part = ~fits & xp.isfinite(w) & (w >= least_weight())
    return xp.where(fits, w, 0).astype(xp.int32), is_part
