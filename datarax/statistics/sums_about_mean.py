"""Sums over the rows of a batch of powers of the distances from the mean, in float64."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from datarax._typing import PyTree
from datarax._xp import BLOCK, lax, xp
from datarax.algebra.one_pass import Fold, Term, reduced
from datarax.numerics import limbs
from datarax.numerics.double_float import DoubleFloat, is_one, where
from datarax.numerics.scaled_double import ScaledDouble, scaled_by, unit_difference, unit_product
from datarax.numerics.scaling import power_of_two

_MOST_COUNTED = 2**31
"""An int32 counts a mask of fewer elements."""


class SumsAboutMean(NamedTuple):
    """Sums over rows of powers of the distances from the mean, in float64."""

    weight: DoubleFloat
    """The total weight."""
    means: list[DoubleFloat]
    """The mean of each variable; 0 where the weight is 0."""
    powers: list[list[DoubleFloat]]
    """For k from 2 on, `sum(w * (x - mean)**k)` of each variable."""
    co: DoubleFloat | None
    """`sum(w * (x - mean x) * (y - mean y))` of the first two variables, if it is asked for."""
    seconds: list[jax.Array] | None = None
    """If given, a small correction of each mean."""
    units: tuple[list[jax.Array], jax.Array] | None = None
    """If given, the exponents of the units of each variable, and that of the weights."""


def sums_about_mean(
    variables: Sequence[jax.Array | DoubleFloat],
    w: jax.Array,
    axes: tuple[int, ...],
    order: int,
    finish: Callable[[SumsAboutMean], PyTree],
    *,
    crossed: bool = False,
    of_errors: bool = False,
) -> Fold:
    """Sums of variables over rows, in two passes.

    The first pass gives the means. The second one is about a centre near the mean, which is the
    value itself if all values are equal: so their distances are exactly 0. A sum of fewer than
    2**29 equal values is exact, and so is its quotient; of weighted values, the quotient is rounded
    to a few digits more than a float has, and the second pass gives the distance of the mean, too.

    With `of_errors`, the first variable is the difference of the first two that are given.
    """
    if not _is_one(variables[0]):
        return _sums_in_units(
            variables, w, axes, order, finish, crossed=crossed, of_errors=of_errors
        )
    is_mask = w.dtype == np.bool_
    some = w if is_mask else w != 0
    is_exact = is_mask and order == 2 and w.size < 2**29

    def values(given: Iterable[jax.Array | DoubleFloat]) -> list[DoubleFloat]:
        first, *rest = map(DoubleFloat.of, given)
        return [first - rest[0] if of_errors else first, *rest]

    xs = [x.map(lambda part: xp.where(some, part, 0)) for x in values(variables)]

    def weighted(x: DoubleFloat) -> Term:
        return Term((x if is_mask else x * w).wide, axes)

    def second(total: DoubleFloat | jax.Array, *sums: DoubleFloat) -> PyTree:
        weight = total if isinstance(total, DoubleFloat) else DoubleFloat.of(total, np.float32)
        safe = where(weight.high > 0, weight, DoubleFloat.of(1, np.float32))
        centres = [each / safe for each in sums]
        if not is_exact:
            centres = [c.map(lambda x: lax.reduce_precision(x, 11, 30)) for c in centres]
        apart = [
            (x - centre.map(lambda part: lax.expand_dims(part, axes))).map(
                lambda part: xp.where(some, part, 0)
            )
            for x, centre in zip(values(map(_again, variables)), centres, strict=True)
        ]
        terms = [] if is_exact else [weighted(d) for d in apart]
        raised = apart
        for _ in range(2, order + 1):
            raised = [p * d for p, d in zip(raised, apart, strict=True)]
            terms += map(weighted, raised)
        if crossed:
            terms.append(weighted(apart[0] * apart[1]))
        found = reduced(terms)
        n, co = len(xs), found.pop() if crossed else None
        if is_exact:
            return finish(SumsAboutMean(weight, centres, [found], co))
        first, *powers = (found[i : i + n] for i in range(0, n * order, n))
        rest = [each / safe for each in first]
        means = [centre + r for centre, r in zip(centres, rest, strict=True)]
        columns = [
            powers_about_mean(weight, r, [each[i] for each in powers]) for i, r in enumerate(rest)
        ]
        if co is not None:
            co = co_moment_about_means(weight, list(zip(rest, columns, strict=True)), co)
        return finish(
            SumsAboutMean(weight, means, [list(k) for k in zip(*columns, strict=True)], co)
        )

    # Weights are added up in float64, and so are masks of more elements than an int32 counts.
    weight = w if is_mask and w.size < _MOST_COUNTED else DoubleFloat.of(w, np.float32).wide
    return Fold([Term(weight, axes), *map(weighted, xs)], second)


def _sums_in_units(
    variables: Sequence[jax.Array | DoubleFloat],
    w: jax.Array,
    axes: tuple[int, ...],
    order: int,
    finish: Callable[[SumsAboutMean], PyTree],
    *,
    crossed: bool,
    of_errors: bool,
) -> Fold:
    """`sums_about_mean` without float64: values and weights in units in which they are about 1.

    The first pass gives the means, and the greatest exponents, of which the units are made. The
    centres of the second pass are floats, as near to the means as floats are.
    """
    is_mask = w.dtype == np.bool_
    some = w if is_mask else w != 0

    def masked(x: PyTree) -> PyTree:
        def chosen(part: jax.Array) -> jax.Array:
            return xp.where(some, part, xp.zeros((), part.dtype))

        return x.map(chosen) if isinstance(x, DoubleFloat) else chosen(x)

    def scaled(given: Sequence[PyTree]) -> list[ScaledDouble]:
        """The variables in units of their own."""
        x, *rest = map(masked, given)
        first = unit_difference(x, rest[0]) if of_errors else unit_product(x)
        return [first, *map(unit_product, rest)]

    def in_units(given: Sequence[PyTree], units: Sequence[jax.Array]) -> list[DoubleFloat]:
        """The variables in given units."""
        units = [lax.expand_dims(unit, axes) for unit in units]
        x, *rest = map(masked, given)
        if of_errors:
            e = unit_difference(x, rest[0])
            first = scaled_by(e.double, e.exponent - units[0])
        else:
            first = scaled_by(DoubleFloat.of(x), -units[0])
        return [
            first,
            *(scaled_by(DoubleFloat.of(y), -u) for y, u in zip(rest, units[1:], strict=True)),
        ]

    rows = scaled(variables)
    weight = w if is_mask and w.size < _MOST_COUNTED else unit_product(w.astype(rows[0].dtype))
    terms: list[Term] = [Term(weight, axes)]
    if is_mask:
        terms += [Term(x, axes) for x in rows]
    else:
        weights = unit_product(w)
        terms += [Term(x * weights, axes) for x in rows]
        terms += [Term(x.exponent, axes, "max") for x in rows]

    def second(total: ScaledDouble | jax.Array, *found: Any) -> PyTree:
        sums = found[: len(rows)]
        # The greatest exponents: those of sums in which all weights are 1 are the same.
        tops = [x.exponent for x in sums] if is_mask else found[len(rows) :]
        dtype = sums[0].dtype
        least = xp.int32(xp.finfo(dtype).minexp)
        units = [xp.clip(top - xp.int32(DIGITS), least, -least) for top in tops]
        if isinstance(total, ScaledDouble):
            # Weights of 1 are in units of 1.
            some_unit = xp.int32(0) if is_mask else total.exponent
            weight_unit = xp.clip(xp.where(total.double.high > 0, some_unit, least), least, -least)
            weight = scaled_by(total.double, total.exponent - weight_unit)
        else:
            weight_unit = xp.where(total > 0, xp.int32(0), least)
            weight = limbs.as_double(total)
        safe = where(weight.high > 0, weight, DoubleFloat.of(1, dtype))
        means = [
            scaled_by(x.double / safe, x.exponent - unit - (0 if is_mask else weight_unit))
            for x, unit in zip(sums, units, strict=True)
        ]
        apart = [
            masked(x - lax.expand_dims(mean.high, axes))
            for x, mean in zip(in_units(list(map(_again, variables)), units), means, strict=True)
        ]
        factor = None if is_mask else w * lax.expand_dims(power_of_two(-weight_unit, dtype), axes)

        def weighted(x: DoubleFloat) -> Term:
            return Term(x if factor is None else x * factor, axes)

        raised, again = apart, []
        for _ in range(2, order + 1):
            raised = [p * d for p, d in zip(raised, apart, strict=True)]
            again += map(weighted, raised)
        if crossed:
            again.append(weighted(apart[0] * apart[1]))
        results = reduced(again)
        co = results.pop() if crossed else None
        powers = [results[i :: len(rows)] for i in range(len(rows))]
        # The distance of a mean from its centre. If all values are equal, it is rounding alone.
        rests = [
            xp.where(own[0].high == 0, xp.zeros((), dtype), mean.low) if own else mean.low
            for mean, own in zip(means, powers, strict=True)
        ]
        means = [DoubleFloat(mean.high, rest) for mean, rest in zip(means, rests, strict=True)]
        columns = [
            powers_about_mean(weight, DoubleFloat.of(rest), own)
            for rest, own in zip(rests, powers, strict=True)
        ]
        if co is not None:
            moved = [(DoubleFloat.of(r), own) for r, own in zip(rests, columns, strict=True)]
            co = co_moment_about_means(weight, moved, co)
        by_power = [list(each) for each in zip(*columns, strict=True)]
        return finish(SumsAboutMean(weight, means, by_power, co, units=(units, weight_unit)))

    return Fold(terms, second)


class HostSums(NamedTuple):
    """Sums over rows of two variables, in NumPy: the fields of `SumsAboutMean`."""

    weight: np.ndarray
    """Of the shape of an example."""
    centres: np.ndarray
    """Numbers near the means, (2, *shape)."""
    rests: np.ndarray
    """The means less the centres, (2, *shape)."""
    has_rests: bool
    """True if the means have more digits than two parts keep."""
    squares: np.ndarray
    """(2, *shape)."""
    co: np.ndarray
    """Of the shape of an example; 0 if it is not asked for."""

    @property
    def means(self) -> np.ndarray:
        """The mean of each variable, (2, *shape)."""
        return self.centres + self.rests


def sums_on_host(
    x: Any, y: Any, w: Any, axes: tuple[int, ...], *, crossed: bool, many_digits: bool
) -> HostSums | None:
    """As `sums_about_mean` of two variables in float64, of order 2, in NumPy.

    `many_digits`: the numbers may have more digits than a float32. None if a square leaves the
    range of float64.
    """
    shape = x.shape[len(axes) :]
    columns = math.prod(shape)
    w = w if w.shape == x.shape else np.broadcast_to(w, x.shape)
    w, x, y = (each.reshape(-1, columns) for each in (w, x, y))
    counts_all = np.count_nonzero(w) == w.size
    weighs = w.dtype != np.bool_

    def blocks() -> Iterator[tuple[Any, list[Any]]]:
        """The weights of some rows and both variables, each (columns, rows)."""
        step = max(1, BLOCK // max(1, columns))
        for i in range(0, len(w), step):
            each, *both = (np.ascontiguousarray(part[i : i + step].T) for part in (w, x, y))
            yield each, both if counts_all else [xp.where(each != 0, part, 0) for part in both]

    def total(each: Any, *factors: Any) -> Any:
        if weighs:
            factors = each.astype(np.float64), *factors
        if len(factors) == 1:
            return np.add.reduce(factors[0], -1)
        return np.einsum(",".join(["kn"] * len(factors)) + "->k", *factors)

    weight, sums = np.zeros(columns), np.zeros((2, columns))
    for each, both in blocks():
        known = counts_all and not weighs
        weight += each.shape[-1] if known else np.add.reduce(each, -1, np.float64)
        sums += [total(each, part) for part in both]
    safe = np.where(weight > 0, weight, 1)
    centres: Any = sums / safe
    if many_digits:
        # In the range of the data, so that the mean of equal values is that value.
        ends = np.full((2, 2, columns), [[[np.inf]], [[-np.inf]]])
        for each, both in blocks():
            counts = each != 0
            ends[0] = [
                np.minimum(low, np.min(part, -1, where=counts, initial=np.inf))
                for low, part in zip(ends[0], both, strict=True)
            ]
            ends[1] = [
                np.maximum(high, np.max(part, -1, where=counts, initial=-np.inf))
                for high, part in zip(ends[1], both, strict=True)
            ]
        centres = np.where(weight > 0, np.clip(centres, *ends), 0)
    else:
        # A sum of equal floats is rounded, and the centre is the float again.
        centres = lax.reduce_precision(centres, 11, 30)
    sums, squares, co = np.zeros((2, columns)), np.zeros((2, columns)), np.zeros(columns)
    for each, both in blocks():
        apart = [part - centre[:, None] for part, centre in zip(both, centres, strict=True)]
        if not counts_all:
            apart = [xp.where(each != 0, d, 0) for d in apart]
        sums += [total(each, d) for d in apart]
        squares += [total(each, d, d) for d in apart]
        if crossed:
            co += total(each, *apart)
    if not np.isfinite(squares).all():
        return None
    if (small := squares < _LEAST_SQUARE).any():
        for each, both in blocks():
            differ = (np.stack(both) != centres[..., None]) & (each != 0)
            if (small & differ.any(-1)).any():
                return None
    rests = sums / safe
    squares = np.maximum(squares - weight * rests * rests, 0)  # it may be rounded to below 0
    if crossed:
        co -= weight * rests[0] * rests[1]
    both_shape = (2, *shape)
    return HostSums(
        weight.reshape(shape),
        centres.reshape(both_shape),
        rests.reshape(both_shape),
        many_digits,
        squares.reshape(both_shape),
        co.reshape(shape),
    )


_LEAST_SQUARE = 2.0**-900
"""A sum of squares below it may have lost digits."""


def _again(x: jax.Array | DoubleFloat) -> jax.Array | DoubleFloat:
    """The same values for a second pass: XLA would make an array of what both passes use."""
    if isinstance(x, DoubleFloat):
        return x.map(lambda part: lax.optimization_barrier(part))
    return lax.optimization_barrier(x)


def powers_about_mean(
    weight: DoubleFloat, rest: DoubleFloat, powers: Sequence[DoubleFloat]
) -> list[DoubleFloat]:
    """Sums of powers about the mean, from those about a centre that is `rest` below it.

    All are 0 where rounding alone is left of the sum of squares, which is never below 0.
    """
    if not powers:
        return []
    # What is subtracted is small: floats have enough digits of it.
    weight, rest, *found = map(_rough, (weight, rest, *powers))
    square = weight * rest * rest
    moved = [powers[0] - square]
    if len(powers) > 1:
        moved.append(powers[1] - rest * (found[0] * 3 - square * 2))
    if len(powers) > 2:
        moved.append(powers[2] - rest * (found[1] * 4 - rest * (found[0] * 6 - square * 3)))
    varies = moved[0] > square * _ROUNDING
    return [where(varies, x, DoubleFloat.of(0, powers[0].dtype)) for x in moved]


def co_moment_about_means(
    weight: DoubleFloat, moved: Sequence[tuple[DoubleFloat, list[DoubleFloat]]], co: DoubleFloat
) -> DoubleFloat:
    """The co-moment of two variables about their means, from that about centres.

    Args:
        weight: the total weight.
        moved: of each variable, how far its mean is above the centre, and its sums of powers.
        co: the co-moment about the centres.
    """
    (rest, (squares, *_)), (other_rest, (other_squares, *_)) = moved
    co = co - _rough(weight) * _rough(rest) * _rough(other_rest)
    # Of what does not vary, rounding alone is left.
    varies = (squares > 0) & (other_squares > 0)
    return where(varies, co, DoubleFloat.of(0, co.dtype))


def _is_one(x: jax.Array | DoubleFloat) -> bool:
    return x.is_one if isinstance(x, DoubleFloat) else is_one(x)


def _rough(x: DoubleFloat) -> Any:
    """A number in float64, or its nearest float."""
    return x if x.is_one else x.high


DIGITS = 16
"""The binary digits of the greatest value in its unit. The distances of 32-bit integers then range
from 2**-16 to 2**17, and the sums of their fourth powers are far from overflow and underflow."""
_ROUNDING = 2.0**-46
"""A sum of squares that is less than this part of what is subtracted is what rounding leaves."""
