"""Means and co-moments: of predictions, targets and errors; of features, as a matrix."""

from collections.abc import Sequence
from typing import Any, Self

import jax
import numpy as np

from datarax._checks import (
    as_float,
    default_float,
    numeric,
    positive_int,
    warn_of_rounded,
)
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.devices import Asking, NeedsMaxima
from datarax.algebra.fields import state
from datarax.algebra.fold import Fold
from datarax.algebra.leaf_state import Travel
from datarax.algebra.pytrees import children_of
from datarax.distributed.collectives import from_key, replicated, to_key
from datarax.distributed.merge_ops import zeros
from datarax.numerics.double_float import DoubleFloat, split, stack
from datarax.numerics.limbs import float_or_double, has_many_digits
from datarax.numerics.products import sum_of_outer
from datarax.numerics.scaled_double import ScaledDouble, scaled_by
from datarax.numerics.sums import in_three_parts, sum_floats
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import pairs, rows_weight
from datarax.statistics.example_count import (
    ExampleCount,
)
from datarax.statistics.extremes import Greatest
from datarax.statistics.invalid_counts import CountsInvalid, not_finite
from datarax.statistics.moments import (
    DIGITS,
    Apart,
    CentralMoments,
    Parts,
    about_mean,
    as_double,
    in_unit_of_greatest,
    unit_in_float32,
)
from datarax.statistics.sums_about_mean import (
    HostSums,
    SumsAboutMean,
    sums_on_host,
)


class CrossedMoments(CentralMoments):
    """Central moments, and the co-moments of pairs of elements: `product` says of which.

    A co-moment is the sum of `w * (x - mean x) * (y - mean y)`. It is merged by the pairwise
    formula of Pébay (2008): a merge adds the product of the distances of the means times
    n m / (n + m). All elements must have the same weight.
    """

    co: Parts | DoubleFloat | tuple[()] = state()
    """The co-moments; empty if they are not kept."""

    def product(self, x: PyTree, y: PyTree) -> PyTree:
        """The products, first of `x` and second of `y`, of the pairs whose co-moment is kept."""
        raise TypeError(f"{type(self).__name__} does not define product()")

    def first(self, x: jax.Array) -> jax.Array:
        """The first element of an array of `shape`, also of stacked ones."""
        return x[..., 0]

    def with_co(self, co: DoubleFloat | tuple[()]) -> Self:
        """A copy with other co-moments, in the units of this state; itself if none are kept."""
        return self.with_parts({"co": co}) if self.co else self

    @property
    def co_double(self) -> DoubleFloat:
        """The co-moments in the units of this state."""
        return as_double(self.co)  # type: ignore[arg-type]

    def stored(self) -> Self:
        return super().stored().with_co(tuple(self.co))  # type: ignore[arg-type]

    def finite(self) -> Self:
        held = super().finite()
        return held.with_co(self.co_double.finite) if self.co else held

    def _times(self, weight: Any, unit: jax.Array | None = None) -> Self:
        held = super()._times(weight, unit)
        if not self.co:
            return held
        if unit is None:
            return held.with_co(self.co_double * weight)
        return held.with_co(self.co_double.times_power(self.product(unit, unit * weight)))

    def plus(self, other: Self, total: DoubleFloat, apart: Apart) -> Self:
        merged = super().plus(other, total, apart)
        if not self.co:
            return merged
        # The co-moment of the two means, which a sum about each own mean leaves out.
        between = self.product(apart.step, apart.means)
        return merged.with_co(self.co_double + other.co_double + between)


class TwoMoments(CrossedMoments):
    """The central moments of two variables of one `shape`, stacked on a leading axis of size 2."""

    crossed: bool = False  # type: ignore[reportIncompatibleVariableOverride]
    """True to keep the co-moment of the two."""

    def empty(self) -> dict[str, PyTree]:
        zero = zeros(self.shape, default_float().name)
        co = (zero, zero) if self.crossed else ()
        return self.empty_of((2, *self.shape)) | {"co": co}

    def of_two(
        self,
        x: jax.Array | DoubleFloat,
        y: jax.Array | DoubleFloat,
        w: jax.Array,
        *,
        many_digits: bool = False,
    ) -> Self:
        """The moments of rows `x` and `y`, each (N, *shape), weighted by `w` of that shape.

        The weights are floats, or booleans for 1 and 0. `many_digits`: see `has_many_digits`.
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
        held = self.holding(weight, *mean.parts(many_digits), [squares], (unit, units))
        return held.with_co(sum_floats(w * d[0] * d[1], axes) if self.crossed else ())

    def plus_two(
        self,
        x: jax.Array | DoubleFloat,
        y: jax.Array | DoubleFloat,
        w: jax.Array,
        *,
        of_errors: bool = False,
        many_digits: bool = False,
    ) -> Fold | Self:
        """These moments with those of rows merged in: the arguments are those of `of_two`.

        With `of_errors`, the first variable is `x - y`.
        """
        given = [x, y]
        return self.plus_variables(given, w, of_errors=of_errors, many_digits=many_digits)

    def plus_in_numpy(
        self, given: Sequence[Any], w: Any, *, of_errors: bool = False, many_digits: bool
    ) -> Self:
        x, y = given
        if of_errors:
            # As a double-float: where both are close, a float would keep few digits of the
            # difference.
            x = DoubleFloat.of(x) - y
        axes = tuple(range(x.ndim - len(self.shape)))
        p, q = (DoubleFloat.of(each).wide for each in (x, y))
        # By `of_two` alone, an update takes 1.5 to 5 times as long.
        sums = sums_on_host(p, q, w, axes, crossed=self.crossed, many_digits=many_digits)
        if sums is not None:
            return self._plus_sums(sums)
        return self.combine(self.of_two(x, y, w, many_digits=many_digits))

    def _plus_sums(self, sums: HostSums) -> Self:
        """These moments with sums of float64 merged in by the formulas of `plus`, in NumPy.

        Float64 holds all of them in units of one, so units are chosen once, for the result.
        """
        exponent, weight_exponent = self.exponents
        scales = np.array([weight_exponent, exponent, weight_exponent + 2 * exponent])
        high, low = zip(self.count, self.mean, *self.powers, strict=True)
        n, mean, squares = np.ldexp(np.add(high, low, dtype=np.float64), scales)
        total = n + sums.weight
        # Without weight, the sums are 0 and stay 0; NaN would stay in the state.
        safe = np.where(total > 0, total, 1)
        share, rest = sums.weight / safe, None
        if sums.has_rests or np.count_nonzero(self.mean_rest):
            rest = np.ldexp(np.float64(self.mean_rest), exponent)
            first, left = sums.centres - mean, sums.rests - rest
            apart = first + left
            kept, rest = in_three_parts(mean, first * share, rest + left * share)
            mean = kept.wide
        else:
            apart = sums.means - mean
            mean = mean + apart * share
        factor = n * share
        squares = squares + sums.squares + apart * apart * factor
        # No moment is larger in this unit: the mean, and the spread about it.
        greatest = np.abs(mean) + np.sqrt(squares / safe)
        unit = np.maximum(exponent, unit_in_float32(greatest, DIGITS))
        weight_unit = np.maximum(weight_exponent, unit_in_float32(total, 0))
        scales = np.array([weight_unit, unit, weight_unit + 2 * unit])
        high, low = split(np.ldexp(np.array([total, mean, squares]), -scales))
        changed: dict[str, PyTree] = {
            "count": (high[0], low[0]),
            "mean": (high[1], low[1]),
            "powers": ((high[2], low[2]),),
            "exponent": unit,
            "weight_exponent": weight_unit,
        }
        if rest is not None:
            changed["mean_rest"] = np.ldexp(rest, -unit).astype(np.float32)
        if self.co:
            high, low = self.co
            co = np.ldexp(np.add(high, low, dtype=np.float64), weight_exponent[0] + sum(exponent))
            co = co + sums.co + apart[0] * apart[1] * factor[0]
            changed["co"] = split(np.ldexp(co, -(weight_unit[0] + sum(unit))))
        return self.with_parts(changed)

    def of_all_sums(self, sums: SumsAboutMean) -> Self:
        if sums.co is None:
            return super().of_all_sums(sums)
        if sums.units is not None:
            return super().of_all_sums(sums).with_co(sums.co)
        held, (values, weights) = self.of_sums(sums.weight, sums.means, sums.powers, sums.second)
        units = self.first(weights) * self.first(values) * self.second(values)
        return held.with_co(sums.co * units)

    def product(self, x: PyTree, y: PyTree) -> PyTree:
        return self.first(x) * self.second(y)

    # The axis of the two variables, which follows that of stacked states.

    def first(self, x: PyTree) -> PyTree:
        return x[(..., 0, *(slice(None),) * len(self.shape))]

    def second(self, x: PyTree) -> PyTree:
        """The elements of the second variable."""
        return x[(..., 1, *(slice(None),) * len(self.shape))]

    @property
    def difference_of_means(self) -> ScaledDouble:
        """The mean of the first variable less that of the second."""
        (_, mean, _), (unit, _), rest = self.doubles(), self.exponents, self.mean_rest
        means, rests = ScaledDouble(mean, unit), ScaledDouble(DoubleFloat.of(rest), unit)
        # The rests are far below the last digits of the means, whose difference may be small.
        first, left = (self.first(x) - self.second(x) for x in (means, rests))
        return first + left

    @property
    def co_moment(self) -> ScaledDouble:
        """The sum of products of the distances of both variables from their means."""
        # A sum of products is in the unit of the weights times those of both variables.
        (x, y), (weight, _) = self.exponents
        return ScaledDouble(self.co_double, weight + x + y)


class CoMoments(NeedsMaxima, CrossedMoments):
    """The mean of vectors of `shape` (F,), and the co-moments of all pairs of their elements.

    `co` is `sum(w * outer(x - mean, x - mean))`, (F, F).
    """

    order: int = 1

    def by_row(self, rows: int) -> None:
        return None

    def empty(self) -> dict[str, PyTree]:
        zero = zeros((*self.shape, *self.shape), default_float().name)
        return self.empty_of(self.shape) | {"co": (zero, zero)}

    def of(self, x: jax.Array | DoubleFloat, w: jax.Array, *, many_digits: bool = False) -> Self:
        """The moments of rows `x` (N, F), with weights `w` (N, 1), floats or booleans."""
        w, weight_unit = in_unit_of_greatest(w, (0,), x.dtype)
        weight, mean, d, unit = about_mean(x, w, (0,))
        units = unit, xp.broadcast_to(weight_unit, self.shape)
        mean = mean.parts(many_digits)
        held = self.holding(weight.broadcast_to(self.shape), *mean, [], units)
        return held.with_co(sum_of_outer(d, w))

    def product(self, x: PyTree, y: PyTree) -> PyTree:
        return x.reshape(-1, 1) * y.reshape(1, -1)

    @property
    def co_moments(self) -> ScaledDouble:
        """The co-moments, (F, F)."""
        unit, weight_unit = self.exponents
        return ScaledDouble(self.co_double, unit[:, None] + (unit + weight_unit)[None])

    # Over devices: the means merge element by element. The co-moments are added up, once all
    # devices take them about the common mean: so each device first learns the means of all.

    def ask_maxima(self, index: jax.Array, size: int) -> Asking[Self]:
        count, mean, _ = self.scaled()
        known = xp.concatenate([count.to_double().high[:1], *mean.to_double()])
        # A maximum over the devices gathers the rows: each device knows one of them.
        # Maxima are of integers. The key of a float keeps its order and its bits.
        keys = to_key(known)
        mine = xp.arange(size, dtype=xp.int32) == index
        least = xp.asarray(xp.iinfo(keys.dtype).min, keys.dtype)
        *exponents, keys = yield [*self.exponents, xp.where(mine[:, None], keys[None], least)]
        # In one unit on all devices, so that the co-moments can be added up as they are.
        held = self.in_units((exponents[0], exponents[1]))
        rows = from_key(keys, default_float())
        n, (high, low) = rows[:, :1], xp.split(rows[:, 1:], 2, -1)
        # Without any data, the shares are 0 and not NaN.
        share = n / xp.maximum(xp.sum(n), xp.finfo(n.dtype).tiny)
        common = (DoubleFloat(high, low) * xp.broadcast_to(share, high.shape)).sum(0)
        count, mean, _ = held.doubles()
        # Moved to another centre c, the co-moments grow by n * outer(mean - c, mean - c).
        apart = mean - scaled_by(common, -exponents[0])
        return held.with_co(held.co_double + self.product(apart, apart) * count[0]).stored()

    def to_mesh(self) -> list[Travel]:
        return self._means().to_mesh() + self._sums().to_mesh()

    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        *means, high, low = arrays
        merged = self._means().from_mesh(means)
        co = self._sums().from_mesh([high, low]).parts
        return self.with_parts({**children_of(merged), "co": co})

    def _means(self) -> CentralMoments:
        # The means and weights alone, which merge like those of any moments.
        means = CentralMoments(self.shape, 1)
        return means.with_parts({name: getattr(self, name) for name in children_of(means)})

    def _sums(self) -> MetricAccumulator:
        zero = np.zeros((*self.shape, *self.shape), default_float())
        return MetricAccumulator(zero).with_parts({"parts": self.co})


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
        p, t, w, invalid = pairs(preds, target, weights, self.shape)
        warn_of_rounded(preds=p, target=t)
        w = xp.broadcast_to(w, p.shape)
        # Float64 of the host keeps its digits as double-floats, integers beyond 2**24 too.
        x, y, many = float_or_double(p), float_or_double(t), _have_many_digits(p, t)
        moments = self.moments.plus_two(x, y, w, many_digits=many)
        return self.with_batch(invalid, moments=moments)

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
    """The moments of errors `preds - target` and of targets.

    R2, explained variance and relative errors are computed from them.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import Residuals
        >>> seen = Residuals().update(jnp.array([1.0, 5.0]), jnp.array([2.0, 3.0]))
        >>> print(*(x.to_float() for x in (seen.squares, seen.target_squares)))
        5.0 0.5
    """

    extremes: bool = False
    """True to keep the least and the greatest target, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.moments = TwoMoments(self.shape)
        self.examples = ExampleCount()
        if self.extremes:
            self.greatest, self.negated = Greatest(self.shape), Greatest(self.shape)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `preds` and `target` of shape (..., *shape); `weights` count as repetitions.

        Examples that hold a NaN or an infinity are excluded and counted.
        """
        p, t, w, invalid = pairs(preds, target, weights, self.shape)
        warn_of_rounded(preds=p, target=t)
        examples, y = self.examples.plus_rows(w), float_or_double(t)
        w, many = xp.broadcast_to(w, t.shape), _have_many_digits(p, t)
        x = float_or_double(p)
        moments = self.moments.plus_two(x, y, w, of_errors=True, many_digits=many)
        changes = {}
        if self.extremes:
            y, counts = DoubleFloat.of(y), w.astype(xp.bool_)
            changes["greatest"] = self.greatest.fold(y, counts)
            changes["negated"] = self.negated.fold(-y, counts)
        return self.with_batch(invalid, moments=moments, examples=examples, **changes)

    @property
    def half_range(self) -> jax.Array:
        """Half of the greatest minus the least target."""
        # Halved first, because the difference of two large values may overflow.
        return (self.greatest.double * 0.5 + self.negated.double * 0.5).to_float()

    @property
    def bias_squares(self) -> ScaledDouble:
        """The total weight times the square of the mean error."""
        # sum(w e**2) = sum(w (e - mean)**2) + n mean**2; this is the second term.
        mean = self.error_mean
        return self.count * (mean * mean)

    @property
    def error_mean(self) -> ScaledDouble:
        """The mean error."""
        return self.moments.scaled()[1][0]

    @property
    def error_squares(self) -> ScaledDouble:
        """The sum of squares of the errors about their mean."""
        return self.moments.scaled()[2][0][0]

    @property
    def squares(self) -> ScaledDouble:
        """The sum of squares of the errors: those about their mean, plus those of the mean."""
        return self.error_squares + self.bias_squares


class FeatureMoments(CountsInvalid, kw_only=False):
    """The mean and the covariance matrix of features, stable at any offset.

    Rows with a NaN or an infinity are excluded, and counted in `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import FeatureMoments
        >>> seen = FeatureMoments(2).update(jnp.array([[1e6, 1.0], [1e6 + 2, 5.0]]))
        >>> print(seen.covariance(ddof=1).to_float().tolist())
        [[2.0, 4.0], [4.0, 8.0]]
    """

    num_features: int
    """F, how many elements each row has."""

    def __post_init__(self) -> None:
        positive_int(self.num_features, "num_features")
        self.central = CoMoments((self.num_features,))

    def update(self, features: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in features (N, F); `weights` (N,) count as repetitions.

        Raises:
            MetricInputError: another shape.
        """
        given = numeric(features, "features")
        check_features(given, self.num_features)
        warn_of_rounded(features=given)
        w, invalid = rows_weight(not_finite(as_float(given), 1), weights)
        x, w = replicated((float_or_double(given), w))
        batch = self.central.of(x, w[:, None], many_digits=has_many_digits(given))
        return self.with_batch(invalid, central=self.central.combine(batch))

    @property
    def count(self) -> DoubleFloat:
        """The total weight."""
        return self.central.scaled()[0][0].to_double()

    @property
    def mean(self) -> DoubleFloat:
        """The mean, (F,); 0 where there is no data."""
        return self.central.scaled()[1].to_double()

    def mean_apart_from(self, other: "FeatureMoments") -> DoubleFloat:
        """The mean less that of other features, (F,)."""
        of_both = [
            tuple(ScaledDouble(x, each.central.exponents[0]) for x in (mean, rest))
            for each in (self, other)
            for mean, rest in [(each.central.doubles()[1], DoubleFloat.of(each.central.mean_rest))]
        ]
        # The rests may be below the last digits of the means.
        first, left = (a - b for a, b in zip(*of_both, strict=True))
        return (first + left).to_double()

    def covariance(self, ddof: float = 0) -> DoubleFloat:
        """The co-moments over `count - ddof`, (F, F); NaN where that is zero."""
        return self.central.co_moments.to_double() / (self.count - ddof)


def _have_many_digits(p: jax.Array, t: jax.Array) -> bool:
    return has_many_digits(p) or has_many_digits(t)


def check_features(x: jax.Array, num_features: int) -> None:
    """Raises unless `x` is of shape (N, num_features)."""
    if x.ndim != 2 or x.shape[1] != num_features:
        raise MetricInputError(
            f"features of shape {x.shape} for num_features={num_features}; expected "
            f"(N, {num_features})"
        )
