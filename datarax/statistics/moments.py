"""Mean and central moments, merged pairwise: no digits are lost if the mean is far from zero."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import numpy as np

from datarax._checks import as_float, default_float, numeric, warn_of_rounded
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._x64 import in_x64
from datarax._xp import faster_in_numpy, lax, none_true, xp
from datarax.algebra.fields import state
from datarax.algebra.fold import Fold
from datarax.algebra.leaf_state import ElementwiseState
from datarax.algebra.rows import Merging, Packed, RowTerms, Target, in_float64
from datarax.distributed.merge_ops import filled, zeros
from datarax.numerics.double_float import DoubleFloat, stack, where
from datarax.numerics.limbs import float_or_double, has_many_digits
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.scaling import (
    exponent_of,
    nan_where,
    one_where_zero,
    power_of_two,
)
from datarax.numerics.sums import in_three_parts, sum_floats, sum_with_rest
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import CountsInvalid, not_finite
from datarax.statistics.sums_about_mean import (
    DIGITS,
    SumsAboutMean,
    co_moment_about_means,
    powers_about_mean,
    sums_about_mean,
)

Parts = tuple[jax.Array, jax.Array]


class CentralMoments(ElementwiseState, kw_only=False):
    """The total weight, the mean, and sums of powers of the distances from the mean.

    All are double-floats. Two states are merged by the pairwise formulas of Chan, Golub and LeVeque
    (1979), extended to third and fourth powers by Pébay (2008), https://doi.org/10.2172/1028931.

    Values are held in units of a power of two that is chosen by the greatest of them, and weights
    likewise, so that powers and products neither overflow nor underflow.

    Within an update, `count`, `mean` and `powers` are `DoubleFloat`s: to split a number into its
    parts and to join them again costs more operations than the formulas. `combine` splits them at
    the end, and so do `canonical` and `weighted_by`: see `stored`.

    Args:
        shape: the shape of one example.
        order: the highest power, from 1 (the mean alone) to 4.
    """

    shape: tuple[int, ...] = ()
    order: int = 2
    crossed: ClassVar[bool] = False
    """True if the co-moment of two variables is kept."""

    count: Parts | DoubleFloat = state()
    """The total weight, in units of `2**weight_exponent`."""
    mean: Parts | DoubleFloat = state()
    """The weighted mean, in units of `2**exponent`; 0 where the weight is zero."""
    mean_rest: jax.Array = state()
    """What the two parts of the mean leave out, in the same units. Only an update on the host has
    more digits, of float64 and of large integers: without them, moments of batches far from zero
    could not be merged. It is 0 for other numbers."""
    powers: tuple[Parts | DoubleFloat, ...] = state()
    """`sum(w * (x - mean)**k)` for k from 2 to `order`, in the same units."""
    exponent: jax.Array = state()
    """The exponent of the unit of the values; the least one where there are none but zeros."""
    weight_exponent: jax.Array = state()
    """The exponent of the unit of the weights."""

    def empty(self) -> dict[str, PyTree]:
        return self.empty_of(self.shape)

    def empty_of(self, shape: tuple[int, ...]) -> dict[str, PyTree]:
        """The arrays of the empty state, of this shape."""
        zero = zeros(shape, default_float().name)
        least = filled(shape, "int32", int(xp.finfo(default_float()).minexp))
        powers = tuple((zero, zero) for _ in range(2, self.order + 1))
        return {
            "count": (zero, zero),
            "mean": (zero, zero),
            "mean_rest": zero,
            "powers": powers,
            "exponent": least,
            "weight_exponent": least,
        }

    def of(self, x: jax.Array | DoubleFloat, w: jax.Array, *, many_digits: bool = False) -> Self:
        """The moments of rows `x` (N, *shape), weighted by `w`, which broadcasts against it.

        They are to be merged with `combine`. The weights are floats, or booleans for 1 and 0.
        `many_digits`: see `has_many_digits`.
        """
        axes = tuple(range(x.ndim - len(self.shape)))
        # Relative to the greatest one, so that no sum of weights leaves the range of floats.
        w, weight_unit = in_unit_of_greatest(xp.broadcast_to(w, x.shape), axes, x.dtype)
        weight, mean, d, unit = about_mean(x, w, axes)
        powers = [DoubleFloat.of(xp.sum(w * d**k, axes)) for k in range(2, self.order + 1)]
        return self.holding(weight, *mean.parts(many_digits), powers, (unit, weight_unit))

    def plus_rows(
        self, x: jax.Array | DoubleFloat, w: jax.Array, *, many_digits: bool = False
    ) -> Fold | Self:
        """These moments with those of rows merged in: the arguments are those of `of`."""
        return self.plus_variables([x], xp.broadcast_to(w, x.shape), many_digits=many_digits)

    # In NumPy, the fold of a program takes 1.3 times as long for one variable, 1.9 to 2.9 for two.
    @faster_in_numpy(lambda self, *args, **named: self.plus_in_numpy(*args, **named), x64=False)
    def plus_variables(
        self,
        given: Sequence[jax.Array | DoubleFloat],
        w: jax.Array,
        *,
        of_errors: bool = False,
        many_digits: bool,
    ) -> Fold | Self:
        """These moments with those of variables merged in; the first may be an error."""

        def finish(sums: "SumsAboutMean") -> Self:
            return self.combine(self.of_all_sums(sums))

        axes = tuple(range(given[0].ndim - len(self.shape)))
        return sums_about_mean(
            given, w, axes, self.order, finish, crossed=self.crossed, of_errors=of_errors
        )

    def plus_in_numpy(
        self, given: Sequence[Any], w: Any, *, of_errors: bool = False, many_digits: bool
    ) -> Self:
        """As `plus_variables`, with sums that are computed now."""
        return self.combine(self.of(given[0], w, many_digits=many_digits))

    def of_all_sums(self, sums: "SumsAboutMean") -> Self:
        """Moments from sums: as they are if they are in units, else see `of_sums`."""
        if sums.units is None:
            return self.of_sums(sums.weight, sums.means, sums.powers, sums.second)[0]
        unit, weight_unit = sums.units
        units = unit, xp.broadcast_to(weight_unit, unit.shape)
        rest = xp.zeros(unit.shape, sums.means.dtype)
        return self.holding(sums.weight, sums.means, rest, sums.powers, units)

    def of_sums(
        self,
        weight: DoubleFloat,
        mean: DoubleFloat,
        powers: Sequence[DoubleFloat],
        second: PyTree = None,
    ) -> "tuple[Self, tuple[DoubleFloat, DoubleFloat]]":
        """Moments from sums in float64, in units of which none is far from 1, and the units.

        `second` is a correction of the mean, on the host.
        """
        spread = (powers[0] / weight).apply(xp.sqrt) if powers else DoubleFloat.of(0, np.float32)
        # Sums do not tell the greatest value: the mean and the deviation stand for it.
        greatest = where(weight.high > 0, mean.map(xp.abs) + spread, DoubleFloat.of(0, np.float32))
        unit, weight_unit = (
            unit_in_float32(x.wide, digits) for x, digits in ((greatest, DIGITS), (weight, 0))
        )
        # In float64, in which no power of them overflows.
        values, weights = (
            DoubleFloat.of(power_of_two(-each, np.float32)) for each in (unit, weight_unit)
        )
        scaled = [
            power * weights * values.apply(lambda x, k=k: lax.integer_pow(x, k))
            for k, power in enumerate(powers, 2)
        ]
        units = unit, weight_unit
        mean, rest = mean * values, zeros(unit.shape, default_float().name)
        if second is not None:
            mean, rest = in_three_parts(mean.wide, second * values.wide, np.float32(0))
        return self.holding(weight * weights, mean, rest, scaled, units), (values, weights)

    def holding(
        self,
        count: DoubleFloat,
        mean: DoubleFloat,
        mean_rest: PyTree,
        powers: Sequence[DoubleFloat],
        exponents: tuple[jax.Array, jax.Array],
    ) -> Self:
        """A copy that holds these moments, in units of these exponents: of values, of weights."""
        return self.with_parts(
            {
                "count": count,
                "mean": mean,
                "mean_rest": mean_rest,
                "powers": tuple(powers),
                "exponent": exponents[0],
                "weight_exponent": exponents[1],
            }
        )

    def stored(self) -> Self:
        """The same moments with every double-float as two arrays, as a state holds them."""
        return self.with_parts(
            {
                "count": tuple(self.count),
                "mean": tuple(self.mean),
                "powers": tuple(tuple(power) for power in self.powers),
            }
        )

    def finite(self) -> Self:
        """The same moments with double-floats that are known to be finite, to merge them."""
        count, mean, powers = self.doubles()
        return self.with_parts(
            {
                "count": count.finite,
                "mean": mean.finite,
                "powers": tuple(power.finite for power in powers),
            }
        )

    def doubles(self) -> tuple[DoubleFloat, DoubleFloat, list[DoubleFloat]]:
        """The count, the mean without `mean_rest`, the sums of powers; in units of the state."""
        count, mean, *powers = map(as_double, (self.count, self.mean, *self.powers))
        return count, mean, powers

    @property
    def exponents(self) -> tuple[jax.Array, jax.Array]:
        """The exponents of the units: of values, and of weights."""
        return self.exponent, self.weight_exponent

    def scaled(self) -> tuple[ScaledDouble, ScaledDouble, list[ScaledDouble]]:
        """The count, the mean, and the sums of powers."""
        (count, mean, powers), (unit, weight_unit) = self.doubles(), self.exponents
        return (
            ScaledDouble(count, weight_unit),
            ScaledDouble(mean + self.mean_rest, unit),
            [ScaledDouble(p, weight_unit + unit * k) for k, p in enumerate(powers, 2)],
        )

    def in_units(self, exponents: tuple[jax.Array, jax.Array]) -> Self:
        """The same moments in other units; what is negligible in greater units becomes 0."""
        count = self.count
        dtype = count.dtype if isinstance(count, DoubleFloat) else count[0].dtype
        units = [a - b for a, b in zip(self.exponents, exponents, strict=True)]
        if none_true(*units):
            return self
        unit, weight_unit = (power_of_two(unit, dtype) for unit in units)
        scaled = self._times(weight_unit, unit)
        return scaled.with_parts({"exponent": exponents[0], "weight_exponent": exponents[1]})

    def _times(self, weight: Any, unit: jax.Array | None = None) -> Self:
        """The moments with weights times a number, or weights and values times powers of two."""
        (count, mean, powers), rest = self.doubles(), self.mean_rest
        if unit is None:
            powers = [p * weight for p in powers]
            return self.holding(count * weight, mean, rest, powers, self.exponents)
        # A sum of k-th powers is in the unit of the weights times that of the values to the k.
        factors = [weight * lax.integer_pow(unit, k) for k in range(2, self.order + 1)]
        powers = [p.times_power(factor) for p, factor in zip(powers, factors, strict=True)]
        count, mean = count.times_power(weight), mean.times_power(unit)
        return self.holding(count, mean, rest * unit, powers, self.exponents)

    def combine(self, other: Self) -> Self:
        first, second = self.exponents, other.exponents
        exponents = xp.maximum(first[0], second[0]), xp.maximum(first[1], second[1])
        a, b = (each.in_units(exponents).finite() for each in (self, other))
        (n, mean, _), (m, other_mean, _) = a.doubles(), b.doubles()
        total, first, rests = n + m, other_mean - mean, None
        if not none_true(a.mean_rest, b.mean_rest):  # as of most means
            rests = b.mean_rest - a.mean_rest
        means = first if rests is None else first.corrected(rests)
        share = m.share_of(total)
        apart = Apart(means, means * _factor(n, share), share, n, total, first, rests)
        return a.plus(b, total, apart).stored()

    def plus(self, other: Any, total: DoubleFloat, apart: "Apart") -> Self:
        """The merge with moments in equal units; `total` is the weight of both."""
        (_, mean, powers), (_, _, other_powers) = self.doubles(), other.doubles()
        share, d = apart.share, apart.means.to_float()
        # The merged mean is `share * d` above the mean of self, and `rest * d` below that of other.
        # `cross[k - 2]` is what the k-th power gains from this. `a` and `b` are the powers of self
        # and of other, from k = 2 on.
        cross: list[Any] = []
        if self.order > 1:
            # As exact as the co-moments, of which differences are taken.
            cross.append(apart.step * apart.means)
        if self.order > 2:
            rest, factor = apart.rest, apart.factor
            a, b = ([p.to_float() for p in each] for each in (powers, other_powers))
            cross.append(d**3 * factor * (rest - share) + 3 * d * (rest * b[0] - share * a[0]))
            if self.order > 3:
                cross.append(
                    d**4 * factor * (rest * rest - rest * share + share * share)
                    + 6 * d * d * (rest * rest * b[0] + share * share * a[0])
                    + 4 * d * (rest * b[1] - share * a[1])
                )
        merged = [p + q + c for p, q, c in zip(powers, other_powers, cross, strict=True)]
        mean, rest = self._moved_mean(mean, apart)
        return self.holding(total, mean, rest, merged, self.exponents)

    def _moved_mean(self, mean: DoubleFloat, apart: "Apart") -> tuple[DoubleFloat, PyTree]:
        """The mean of the merge with other moments, and what its parts leave out."""
        rest, share = self.mean_rest, apart.share
        if apart.rests is not None and apart.first.exceeds_parts:
            step = (apart.first * share).wide
            return in_three_parts(mean.wide, step, rest + apart.rests * share)
        return mean + apart.means * share, rest

    def by_row(self, rows: int) -> "MomentTerms | None":
        # Only float64 holds any power of float32 numbers.
        return in_float64(MomentTerms())

    def weighted_by(self, factor: ScaledDouble) -> Self:
        held = self._times(factor.double)
        count, (unit, weight_unit) = held.doubles()[0], held.exponents
        # In units of the power of the count itself, so that sums of powers do not underflow.
        weight_unit = weight_unit + factor.exponent
        least = xp.int32(xp.finfo(count.dtype).minexp)
        new = xp.maximum(weight_unit + exponent_of(count.high), least)
        held = held.with_parts({"weight_exponent": weight_unit}).in_units((unit, new)).stored()
        # There is no lesser unit: of what is too small for it, nothing is kept.
        some = held.doubles()[0].high >= _LEAST_COUNT

        def kept(x: jax.Array, nothing: jax.Array) -> jax.Array:
            # A co-moment has axes of its own; all elements have the same weight.
            return xp.where(some if x.shape == some.shape else some[0], x, nothing)

        return jax.tree.map(kept, held, held.emptied())

    def canonical(self) -> Self:
        # In units of 1 where the powers of ordinary numbers of values stay in the range of floats.
        unit, weight_unit = self.exponents
        near = (unit >= -64 // max(self.order, 2)) & (unit <= 8)
        near_weights = xp.abs(weight_unit) <= 20
        units = xp.where(near, 0, unit), xp.where(near_weights, 0, weight_unit)
        return self.in_units(units).stored()


def as_double(parts: Parts | DoubleFloat) -> DoubleFloat:
    """The double-float of two arrays."""
    return parts if isinstance(parts, DoubleFloat) else DoubleFloat(*parts)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MomentTerms(RowTerms):
    """The values of each row and their weights, of which the moments at each place are made."""

    row_axis: ClassVar[int] = 0

    variables: tuple[DoubleFloat, ...] = ()
    """The values of each variable, (rows, ..., *shape), as arrays of float64; 0 without weight."""
    weight: DoubleFloat | tuple[()] = ()

    @property
    def num_rows(self) -> int | None:
        return self.variables[0].shape[0] if self.variables else None

    many_digits: bool = field(default=False, metadata={"static": True})
    """See `has_many_digits`."""

    def plus_rows(self, x: PyTree, w: jax.Array, *, many_digits: bool = False) -> "MomentTerms":
        """The terms of values, with the arguments of `CentralMoments.plus_rows`."""
        return self.of_two(x, None, w, many_digits=many_digits)

    def of_two(
        self, x: PyTree, y: PyTree, w: jax.Array, *, many_digits: bool = False
    ) -> "MomentTerms":
        """The terms of two variables, with the arguments of `TwoMoments.of_two`."""
        w = xp.broadcast_to(w, x.shape)
        some = w.astype(xp.bool_)
        given = [DoubleFloat.of(each, np.float32) for each in (x, y) if each is not None]
        values = tuple(each.map(lambda part: xp.where(some, part, 0)) for each in given)
        return MomentTerms(values, DoubleFloat.of(w, np.float32), many_digits)

    def plus_two(
        self,
        x: PyTree,
        y: PyTree,
        w: jax.Array,
        *,
        of_errors: bool = False,
        many_digits: bool = False,
    ) -> "MomentTerms":
        """The terms of two variables, with the arguments of `TwoMoments.plus_two`."""
        x = DoubleFloat.of(x) - DoubleFloat.of(y) if of_errors else x
        return self.of_two(x, y, w, many_digits=many_digits)

    def combine(self, other: "MomentTerms") -> "MomentTerms":
        """These terms, of which there are none, with others added."""
        return other

    def on_other_devices(self) -> "MomentTerms":
        """The other devices keep no terms of a replicated state."""
        return MomentTerms()

    def added_to(self, stacked: Any, target: Target) -> Merging:
        w: Any = self.weight
        n = len(stacked.shape)
        within = w.ndim - 1 - n
        """How many axes of examples there are between that of rows and those of `shape`."""

        def of_rows(x: DoubleFloat) -> DoubleFloat:
            end = x.ndim - n
            x = x.sum(tuple(range(end - within, end))) if within else x
            return x.map(lambda part: xp.moveaxis(part, -1 - n, -1)) if n else x

        def of_each(known: jax.Array) -> jax.Array:
            moved = xp.moveaxis(known, -1, -1 - n)
            return lax.expand_dims(moved, range(moved.ndim - n, moved.ndim - n + within))

        weights_and_totals = [w, *(w * x for x in self.variables)]
        everything, *totals = yield Packed("total", list(map(of_rows, weights_and_totals)))
        # A place without rows has no mean. It is left out at the end.
        everything = _one_where_zero(everything)
        # A float, which is the value itself if all values are equal floats.
        centres = [DoubleFloat.of((total / everything).high) for total in totals]
        by_tag, *apart = map(target.by_tag, (w, *self.variables))
        apart = [x - target.of_rows(c).map(of_each) for x, c in zip(apart, centres, strict=True)]
        # Of float64, the centre is three floats, which hold the value if all values are equal.
        is_long = self.many_digits and everything.exceeds_parts
        nearer = []
        for _ in range(2 if is_long else 0):
            totals = yield target.apart("total", [of_rows(by_tag * d) for d in apart])
            steps = [DoubleFloat.of((total / everything).high) for total in totals]
            apart = [x - target.of_rows(c).map(of_each) for x, c in zip(apart, steps, strict=True)]
            nearer.append(steps)
        terms = []
        for d in apart:
            raised = by_tag
            for _ in range(stacked.order):
                raised = raised * d
                terms.append(raised)
        if crossed := len(apart) > 1 and bool(stacked.co):
            terms.append(by_tag * apart[0] * apart[1])
        (weight,) = yield Packed("sum", [of_rows(w)])
        sums = yield target.apart("sum", list(map(of_rows, terms)))
        co = sums.pop() if crossed else None
        # The axis of two variables follows that of the states.
        axis = weight.ndim - n
        joined = partial(stack, axis=axis) if len(apart) > 1 else itemgetter(0)
        centre, firsts = joined(centres), joined(sums[:: stacked.order])
        weight = (
            weight
            if weight.ndim == centre.ndim
            else weight.map(lambda x: lax.expand_dims(x, (axis,)))
        )
        weight = weight.broadcast_to(centre.shape)
        rest = firsts / _one_where_zero(weight)
        some, none, second = weight.high != 0, DoubleFloat.of(0, np.float32), None
        if is_long:
            steps = [joined(each) for each in nearer]
            second = where(some, steps[0] + steps[1] + rest, none).to_float()
        else:
            centre = centre + rest
        powers = [joined(sums[k :: stacked.order]) for k in range(1, stacked.order)]
        powers = powers_about_mean(weight, rest, powers)
        if co is not None:
            co = co_moment_about_means(weight, rest, powers[0], co, axis)
        sums = SumsAboutMean(weight, where(some, centre, none), powers, co, second)
        return stacked.combine(stacked.of_all_sums(sums))


def _one_where_zero(x: DoubleFloat) -> DoubleFloat:
    return where(x.high != 0, x, DoubleFloat.of(1, np.float32))


_LEAST_COUNT = 2.0**-60  # in its unit; the low parts of the sums of powers are normal floats


class LongMean(NamedTuple):
    """A mean that is a number and a small correction of it."""

    first: DoubleFloat
    second: jax.Array

    def apart_from(self, i: PyTree) -> jax.Array:
        """The distances of means (N, ...) from the i-th."""
        # The corrections may be below the last digits of the means.
        first = self.first - self.first[i][None]
        return (first + (self.second - self.second[i][None])).to_float()

    def parts(self, many_digits: bool) -> tuple[DoubleFloat, PyTree]:
        """The mean in two parts; on the host, with `many_digits`, also what these leave out."""
        first, second = self
        if many_digits:
            return sum_with_rest(first, second)
        return first + second, xp.zeros(first.shape, first.dtype)


class Apart(NamedTuple):
    """The distance of the means of two moments, and their shares of the weight, for a merge."""

    means: DoubleFloat
    """The mean of the second minus that of the first."""
    step: DoubleFloat
    """`means` times `factor`: its product with `means` is what the merged sum of squares gains."""
    share: jax.Array
    """The share of the second."""
    weight: DoubleFloat
    """The weight of the first."""
    total: DoubleFloat
    """The weight of both."""
    first: DoubleFloat
    """`means`, without what the parts of the means leave out."""
    rests: jax.Array | None
    """The other part of `means`; None if it is known to be 0."""

    @property
    def rest(self) -> jax.Array:
        """The share of the first."""
        return self.weight.share_of(self.total)

    @property
    def factor(self) -> jax.Array:
        """`n * m / (n + m)`, of weights n and m."""
        return _factor(self.weight, self.share)


def _factor(weight: DoubleFloat, share: jax.Array) -> jax.Array:
    return weight.to_float() * share


def unit_exponent(greatest: jax.Array, digits: int) -> jax.Array:
    """The exponent of the unit in which `greatest`, not negative, has up to `digits` binary digits.

    The unit and its reciprocal are normal floats.
    """
    info = xp.finfo(greatest.dtype)
    unit = exponent_of(greatest) - xp.int32(digits)
    return xp.clip(unit, xp.int32(info.minexp), -xp.int32(info.minexp))


def in_unit_of_greatest(
    w: jax.Array, axes: tuple[int, ...], dtype: np.dtype
) -> tuple[jax.Array, jax.Array]:
    """Weights as floats in a unit in which the greatest is near 1, and the unit's exponent.

    The maximum is over `axes`. Booleans are 1 and 0, in units of 1. Zeros are in the least unit.
    """
    least = xp.int32(xp.finfo(dtype).minexp)
    if w.dtype == xp.bool_:
        return w.astype(dtype), xp.where(xp.any(w, axes), xp.int32(0), least)
    # On the host, weights may be float64, with other units than `dtype` has.
    unit = xp.maximum(unit_exponent(xp.max(w, axes, initial=0), 0), least)
    unit = unit if w.dtype == dtype else xp.minimum(unit, -least)
    return w * lax.expand_dims(power_of_two(-unit, dtype), axes), unit


def about_mean(
    x: jax.Array | DoubleFloat, w: jax.Array, axes: tuple[int, ...]
) -> tuple[DoubleFloat, LongMean, jax.Array, jax.Array]:
    """The total weight and the mean of values over `axes`, and `x - mean` of each value.

    The mean and the distances are in units of `2**exponent`. Returns weight, mean, distances and
    exponent.

    The weights may have one element on axes that are not reduced. Values of weight zero are
    ignored. If all values are equal, `x - mean` is exactly 0.
    """
    x, low = x if isinstance(x, DoubleFloat) else (x, None)
    zero = xp.zeros((), x.dtype)
    counts = w != zero
    x = xp.where(counts, x, zero)
    infinity = xp.asarray(xp.inf, x.dtype)
    least = xp.min(x, axes, initial=infinity, where=counts)
    greatest = xp.max(x, axes, initial=-infinity, where=counts)
    total = sum_floats(w, axes)
    n = total.to_float()
    some = n != 0
    least, greatest = (xp.where(some, end, zero) for end in (least, greatest))
    unit = unit_exponent(xp.maximum(-least, greatest), DIGITS)
    scale = power_of_two(-unit, x.dtype)
    wide = lax.expand_dims(scale, axes)
    x = x * wide
    safe = xp.where(some, n, xp.ones((), n.dtype))
    # The mean is computed in two steps. The second step is the mean of `x - first`: it corrects the
    # rounding of the first. `first` has one bit less than the dtype, so that no compiler can fuse
    # the unrounded quotient into the subtraction.
    info = xp.finfo(x.dtype)
    first = lax.reduce_precision(xp.sum(w * x, axes) / safe, info.nexp, info.nmant - 1)
    # The first mean is clipped to the range of the data, so that the mean of equal values is that
    # value.
    first = xp.clip(first, least * scale, greatest * scale)
    d = x - lax.expand_dims(first, axes)
    if low is not None:
        d = d + xp.where(counts, low, zero) * wide
    second = xp.sum(w * d, axes) / safe
    d = d - lax.expand_dims(second, axes)
    return total, LongMean(DoubleFloat.of(first), second), d, unit


def unit_in_float32(greatest: jax.Array, digits: int) -> jax.Array:
    """`unit_exponent` of numbers in float64, of a unit that is a normal float32."""
    info = xp.finfo(np.float32)
    unit = in_x64(exponent_of, greatest, elementary=True) - xp.int32(digits)
    return xp.clip(unit, xp.int32(info.minexp), -xp.int32(info.minexp))


class Moments(CountsInvalid, kw_only=False):
    """The weighted mean, variance and higher moments of examples, for each element of `shape`.

    Args:
        shape: the shape of one example; `()` for scalars.
        order: 2 for mean and variance; 3 adds skewness; 4 adds kurtosis.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import Moments
        >>> seen = Moments().update(jnp.array([10001.0, 10003.0]))
        >>> print(seen.mean, seen.variance())
        10002.0 1.0
    """

    shape: tuple[int, ...] = ()
    order: Literal[2, 3, 4] = 2

    def __post_init__(self) -> None:
        self.shape = tuple(self.shape)
        self.central = CentralMoments(self.shape, self.order)

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `values` of shape (..., *shape); `weights` broadcast against the leading axes.

        Examples that hold a NaN or an infinity are excluded, and counted in `invalid`.
        """
        given = numeric(values, "values")
        warn_of_rounded(values=given)
        x, values = float_or_double(given), as_float(given)
        batch = x.ndim - len(self.shape)
        if batch < 0 or x.shape[batch:] != self.shape:
            raise MetricInputError(
                f"values of shape {x.shape}; expected a shape that ends in {self.shape}"
            )
        w, invalid = rows_weight(not_finite(values, tuple(range(batch, x.ndim))), weights)
        w = lax.expand_dims(w, range(w.ndim, x.ndim))
        many = has_many_digits(given)
        return self.with_batch(invalid, central=self.central.plus_rows(x, w, many_digits=many))

    @property
    def count(self) -> jax.Array:
        """The total weight."""
        return self.central.scaled()[0].to_float()

    @property
    def mean(self) -> jax.Array:
        """The weighted mean; NaN where there is no data."""
        count, mean, _ = self.central.scaled()
        return nan_where(count.double.high == 0, mean.to_float())

    def variance(self, ddof: float = 0) -> jax.Array:
        """The sum of squares about the mean over `count - ddof`; NaN if that is not positive."""
        return self._variance(ddof).to_float()

    def std(self, ddof: float = 0) -> jax.Array:
        """The root of the variance, also where the variance leaves the range of floats."""
        return self._variance(ddof).root()

    def _variance(self, ddof: float) -> ScaledDouble:
        count, _, (squares, *_) = self.central.scaled()
        divisor = count
        if ddof:
            divisor = count - ScaledDouble.of(xp.full_like(count.double.high, ddof))
        # A divisor that is not positive becomes 0, and the variance NaN.
        high, low = divisor.double
        double = DoubleFloat(xp.maximum(high, 0), xp.where(high > 0, low, 0))
        return squares / ScaledDouble(double, divisor.exponent)

    @property
    def skewness(self) -> jax.Array:
        """The third standardised moment, biased, as `scipy.stats.skew`; NaN for constant data."""
        self._need(3, "skewness")
        # sqrt(n) * m3 / m2**1.5, divided in two steps: m2**1.5 could overflow. The units cancel.
        n, m2, m3 = self._count_and_powers()[:3]
        safe = one_where_zero(m2)
        return nan_where(n * m2 == 0, xp.sqrt(n) * (m3 / safe) / xp.sqrt(safe))

    @property
    def kurtosis(self) -> jax.Array:
        """The fourth standardised moment minus 3, biased, as `scipy.stats.kurtosis`.

        NaN for constant data.
        """
        self._need(4, "kurtosis")
        # n * m4 / m2**2 - 3, divided in two steps: m2**2 could overflow. The units cancel.
        n, m2, _, m4 = self._count_and_powers()
        safe = one_where_zero(m2)
        return nan_where(n * m2 == 0, n * (m4 / safe) / safe - 3)

    def _count_and_powers(self) -> list[jax.Array]:
        """The count and the sums of powers, in the units of the state."""
        count, _, powers = self.central.doubles()
        return [x.to_float() for x in (count, *powers)]

    def _need(self, order: int, name: str) -> None:
        if self.central.order < order:
            raise MetricInputError(
                f"Moments of order={self.central.order} hold no {name}; it needs order={order}"
            )
