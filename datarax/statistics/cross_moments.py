"""Moments of predictions, targets and errors, up to the second, and the covariance."""

from typing import Self

import jax

from datarax._checks import default_float, numeric
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.distributed.merge_ops import zeros
from datarax.numerics.double_float import DoubleFloat, stack
from datarax.numerics.limbs import difference_in_unit, float_or_double
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.sums import sum_floats
from datarax.statistics.batches import pairs
from datarax.statistics.extremes import Greatest
from datarax.statistics.invalid_counts import CountsInvalid
from datarax.statistics.moments import CrossedMoments, ExampleCount, about_mean, in_unit_of_greatest
from datarax.statistics.scaled_total import ScaledTotal, quotient, rows_last, stacked


class TwoMoments(CrossedMoments):
    """The central moments of two variables of one `shape`, stacked on a leading axis of size 2."""

    crossed: bool = False
    """Whether to keep the co-moment of the two."""

    def empty(self) -> dict[str, PyTree]:
        zero = zeros(self.shape, default_float().name)
        co = (zero, zero) if self.crossed else ()
        return self.empty_of((2, *self.shape)) | {"co": co}

    def of_two(self, x: jax.Array | DoubleFloat, y: jax.Array | DoubleFloat, w: jax.Array) -> Self:
        """The moments of rows `x` and `y`, each (N, *shape), weighted by `w` of that shape.

        The weights are floats, or booleans for 1 and 0.
        """
        axes = tuple(range(x.ndim - len(self.shape)))
        w, weight_unit = in_unit_of_greatest(w, axes, x.dtype)
        if isinstance(x, DoubleFloat) or isinstance(y, DoubleFloat):
            both = stack([DoubleFloat.of(x), DoubleFloat.of(y)])
        else:
            both = xp.stack([x, y])
        # One pass over both variables: the first axis is that of the two.
        behind = tuple(a + 1 for a in axes)
        weight, mean, d, unit = about_mean(both, w[None], behind)
        squares = sum_floats(w[None] * d * d, behind)
        weight, units = weight.broadcast_to(unit.shape), xp.broadcast_to(weight_unit, unit.shape)
        held = self.holding(weight, mean, [squares], (unit, units))
        return held.with_co(sum_floats(w * d[0] * d[1], axes) if self.crossed else ())

    def product(self, x: PyTree, y: PyTree) -> PyTree:
        # For distances of means, floats are enough.
        x, y = (z.high if isinstance(z, DoubleFloat) else z for z in (x, y))
        return x[0] * y[1]

    def by_row(self, rows: int) -> "RowMoments":
        return RowMoments((*self.shape, rows), crossed=self.crossed)

    def in_unit_of_first(self, unit: jax.Array) -> Self:
        """The moments of a first variable that is in units of `2**unit`."""
        first, second = xp.asarray(self.exponent)
        return self.with_parts({"exponent": xp.stack([first + unit, second])})

    @property
    def co_moment(self) -> ScaledDouble:
        """The sum of products of the distances of both variables from their means."""
        (x, y), (weight, _) = self.exponents
        return ScaledDouble(self.co_double, weight + x + y)


class RowMoments(TwoMoments):
    """The moments of each row of a batch by itself: see `RowTotals`."""

    def of_two(self, x: jax.Array | DoubleFloat, y: jax.Array | DoubleFloat, w: jax.Array) -> Self:
        return super().of_two(*jax.tree.map(rows_last, (x, y, w)))


class TwoVariables(CountsInvalid, kw_only=False):
    """The moments of two variables. The second one is the target."""

    shape: tuple[int, ...] = ()
    """The shape of one example; `()` for scalars."""

    moments: TwoMoments = state()

    def __post_init__(self) -> None:
        self.shape = tuple(self.shape)

    @property
    def count(self) -> ScaledDouble:
        """The total weight."""
        # `scaled` gives count, mean and powers; both variables have the same count.
        return self.moments.scaled()[0][0]

    @property
    def target_mean(self) -> ScaledDouble:
        """The mean of the targets; 0 where there are none."""
        return self.moments.scaled()[1][1]

    @property
    def target_squares(self) -> ScaledDouble:
        """The sum of squares of the targets about their mean."""
        return self.moments.scaled()[2][0][1]


class CrossMoments(TwoVariables):
    """Means, variances and covariance of predictions and targets, stable at any offset.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import CrossMoments
        >>> seen = CrossMoments().update(jnp.array([1e6, 1e6 + 2]), jnp.array([5.0, 4.0]))
        >>> print(seen.co_moment.to_float())
        -1.0
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.moments = TwoMoments(self.shape, crossed=True)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `preds` and `target` of shape (..., *shape); `weights` count as repetitions.

        Examples that hold a NaN or an infinity are excluded and counted.
        """
        p, _, w, invalid = pairs(preds, target, weights, self.shape)
        w = xp.broadcast_to(w, p.shape)
        x, y = (float_or_double(numeric(each, "preds")) for each in (preds, target))
        return self.with_batch(invalid, moments=self.moments.combine(self.moments.of_two(x, y, w)))

    @property
    def preds_mean(self) -> ScaledDouble:
        """The mean of the predictions; 0 where there are none."""
        return self.moments.scaled()[1][0]

    @property
    def preds_squares(self) -> ScaledDouble:
        """The sum of squares of the predictions about their mean."""
        return self.moments.scaled()[2][0][0]

    @property
    def co_moment(self) -> ScaledDouble:
        """The sum of products of the distances of both from their means."""
        return self.moments.co_moment


class Residuals(TwoVariables):
    """The moments of errors `preds - target` and of targets, and the sum of absolute errors.

    Mean squared and absolute errors, R2 and explained variance are computed from them.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import Residuals
        >>> seen = Residuals().update(jnp.array([1.0, 5.0]), jnp.array([2.0, 3.0]))
        >>> print(*(x.to_float() for x in (seen.squares, seen.target_squares)))
        5.0 0.5
    """

    extremes: bool = False
    """Whether to keep the least and the greatest target, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.moments = TwoMoments(self.shape)
        self.sums = ScaledTotal((2, *self.shape))
        self.examples = ExampleCount()
        if self.extremes:
            self.greatest, self.negated = Greatest(self.shape), Greatest(self.shape)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `preds` and `target` of shape (..., *shape); `weights` count as repetitions.

        Examples that hold a NaN or an infinity are excluded and counted.
        """
        _, t, w, invalid = pairs(preds, target, weights, self.shape)
        # The errors are in units of `2**unit`, in which none overflows.
        e, unit = difference_in_unit(*(numeric(each, "preds") for each in (preds, target)))
        y = float_or_double(numeric(target, "target"))
        examples = self.examples.combine(self.examples.of(w))
        one, w = self.sums.one(), xp.broadcast_to(w, t.shape)
        sums = stacked([one.of(xp.abs(e), w).in_unit(unit), one.of(w)])
        batch = self.moments.of_two(e, y, w).in_unit_of_first(unit)
        counts = w.astype(xp.bool_)
        updated = self.with_batch(
            invalid,
            moments=self.moments.combine(batch),
            sums=self.sums.combine(sums),
            examples=examples,
        )
        if not self.extremes:
            return updated
        return updated.replace(
            greatest=self.greatest.fold(DoubleFloat.of(y), counts),
            negated=self.negated.fold(-DoubleFloat.of(y), counts),
        )

    @property
    def absolute(self) -> ScaledTotal:
        """The sum of the absolute errors."""
        return self.sums[0]

    @property
    def mean_absolute(self) -> jax.Array:
        """The mean absolute error; NaN where there is no data."""
        return quotient(self.sums[0], self.sums[1])

    @property
    def half_range(self) -> jax.Array:
        """Half of the greatest minus the least target."""
        # Halved first, because the difference of two large values may overflow.
        return (self.greatest.double * 0.5 + self.negated.double * 0.5).to_float()

    @property
    def bias_squares(self) -> ScaledDouble:
        """The total weight times the square of the mean error."""
        # sum(w e**2) = sum(w (e - mean)**2) + n mean**2; this is the second term.
        mean = self.moments.scaled()[1][0]
        return self.count * (mean * mean)

    @property
    def error_squares(self) -> ScaledDouble:
        """The sum of squares of the errors about their mean."""
        return self.moments.scaled()[2][0][0]

    @property
    def squares(self) -> ScaledDouble:
        """The sum of squares of the errors: those about their mean, plus those of the mean."""
        return self.error_squares + self.bias_squares
