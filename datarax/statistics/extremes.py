"""The least and the greatest value."""

from typing import ClassVar, Self

import jax
import numpy as np

from datarax._checks import default_float, is_integer, numeric
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.algebra.fold import Fold, fold_of_greatest
from datarax.algebra.leaf_state import ElementwiseState
from datarax.algebra.rows import Merging, Packed, RowTerms, Target, in_float64, rows_last
from datarax.distributed.merge_ops import MetricReduceOp, identity, zeros
from datarax.numerics.double_float import DoubleFloat, greater, greatest_with
from datarax.numerics.exact import Exact, Kept, WholeOrFloat
from datarax.numerics.limbs import as_double
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.scaling import nan_where
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import CountsInvalid, not_finite
from datarax.statistics.moments import Parts


class Greatest(ElementwiseState, kw_only=False):
    """The greatest of finite double-floats, for each element of `shape`; -inf without data.

    A double-float holds an integer of 32 bits, which a float32 rounds.
    """

    is_extreme: ClassVar[bool] = True

    shape: tuple[int, ...] = ()

    parts: Parts = state()

    def empty(self) -> dict[str, PyTree]:
        return self.empty_of(self.shape)

    def empty_of(self, shape: tuple[int, ...]) -> dict[str, PyTree]:
        """The arrays of the empty state, of this shape."""
        dtype = np.dtype(default_float())
        (least,) = identity(MetricReduceOp.max, shape, dtype)
        return {"parts": (least, zeros(shape, dtype.name))}

    def by_row(self, rows: int) -> "RowGreatest | None":
        # The maximum of pairs is no maximum of each part.
        return in_float64(RowGreatest((*self.shape, rows)))

    def fold(self, x: DoubleFloat, counts: jax.Array) -> Self:
        """Folds in values of shape (..., *shape) where `counts`, a mask of that shape, is true."""
        axes = tuple(range(x.ndim - len(self.shape)))
        return self._holding(greatest_with(self.parts, x, counts, axes))

    def plus_rows(self, x: DoubleFloat, counts: jax.Array, *, is_float: bool) -> Fold | Self:
        """This with the values of rows folded in: see `fold`. Floats have no low part."""
        axes = tuple(range(x.ndim - len(self.shape)))
        return fold_of_greatest(self.parts, x, counts, axes, self._holding, is_float=is_float)

    def _holding(self, parts: Parts) -> Self:
        return self.with_parts({"parts": parts})

    @property
    def double(self) -> DoubleFloat:
        return DoubleFloat(*self.parts)

    # An extreme does not depend on how often its value came.
    def weighted_by(self, factor: ScaledDouble) -> Self:
        return self

    def combine(self, other: Self) -> Self:
        return self._holding(greater(self.parts, other.parts))


class RowGreatest(RowTerms, Greatest):
    """The greatest value of each row: the last axis of `shape` is the first axis of a batch."""

    def empty(self) -> dict[str, PyTree]:
        return self.empty_of(())

    @property
    def num_rows(self) -> int | None:
        return self.parts[0].shape[-1] if self.parts[0].ndim else None

    def fold(self, x: DoubleFloat, counts: jax.Array) -> Self:
        return super().fold(x.map(rows_last), rows_last(counts))

    def plus_rows(self, x: DoubleFloat, counts: jax.Array, *, is_float: bool) -> Self:
        return self.fold(x, counts)

    def added_to(self, stacked: Greatest, target: Target) -> Merging:
        # As pairs: the maximum of high parts and of low parts may be of different values.
        (greatest,) = yield Packed("max", [self.double])
        return stacked.combine(stacked.with_parts({"parts": tuple(greatest)}))


class Extremes(CountsInvalid):
    """The least and the greatest value; NaN and infinities are excluded and counted.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics.extremes import Extremes
        >>> seen = Extremes().update(jnp.array([2.0, -3.0, jnp.nan]))
        >>> print(seen.minimum, seen.maximum, seen.invalid.value)
        -3.0 2.0 1
    """

    greatest = Greatest()
    negated = Greatest()
    """The greatest of the negated values."""

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `values` of any shape; a value of weight zero does not count."""
        given = numeric(values, "values")
        x = as_double(given)
        # The cast may turn a large float64 into infinity.
        w, invalid = rows_weight(not_finite(given if is_integer(given) else x.high), weights)
        counts = xp.broadcast_to(w.astype(xp.bool_), x.shape)
        is_float = not is_integer(given)
        # The least value is kept as the greatest negated one, so that one class serves both.
        return self.with_batch(
            invalid,
            greatest=self.greatest.plus_rows(x, counts, is_float=is_float),
            negated=self.negated.plus_rows(-x, counts, is_float=is_float),
        )

    @property
    def minimum(self) -> jax.Array | Exact:
        """The least value, in the form of `maximum`."""
        return _nan_without_data(-self.negated.double)

    @property
    def maximum(self) -> jax.Array | Exact:
        """The greatest value, integers up to 2**63 without rounding; NaN without data.

        Of floats beyond float32, two parts are kept: see `Kept`.
        """
        return _nan_without_data(self.greatest.double)


def _nan_without_data(x: DoubleFloat) -> jax.Array | Exact:
    # Infinite values are excluded, so an infinity here is the identity: no data.
    some = xp.isfinite(x.high)
    double = x.map(lambda part: nan_where(~some, part))
    if x.dtype.itemsize == 4:
        return Kept.of_parts(*double)
    # Only an integer above 2**53 has a lower part beside one of float64.
    half = x.high / 2
    fits = (xp.abs(half) < 2.0**62) | ((xp.abs(half) == 2.0**62) & (x.high * x.low < 0))
    is_whole = some & fits & (x.low != 0)
    # Half of it first: 2**63 - 1 has the upper part 2**63, which int64 does not hold.
    half, low = (xp.where(is_whole, part, 0).astype(np.int64) for part in (half, x.low))
    return WholeOrFloat(half + low + half, double, ~is_whole)
