"""Sums over the rows of a batch of powers of the distances from the mean."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from datarax._typing import PyTree
from datarax._xp import BLOCK, lax, xp
from datarax.algebra.fold import Fold, Term, reduced
from datarax.numerics import limbs
from datarax.numerics.double_float import (
    DoubleFloat,
    FiniteDouble,
    each_part,
    float_difference,
    stack,
    where,
)
from datarax.numerics.scaled_double import ScaledDouble, scaled_by
from datarax.numerics.scaled_sums import exact_number, exact_numbers, masked
from datarax.numerics.scaling import normal_power_of_two

_MOST_COUNTED = 2**31
"""An int32 counts a mask of fewer elements."""


class SumsAboutMean(NamedTuple):
    """Sums over rows of powers of the distances from the mean.

    Of several variables, each array has an axis for them: the first one, of stacked states the one
    that follows that of the states.
    """

    weight: DoubleFloat
    """The total weight, of the shape of the means."""
    means: DoubleFloat
    """The mean of each variable; 0 where the weight is 0."""
    powers: list[DoubleFloat]
    """For k from 2 on, `sum(w * (x - mean)**k)`."""
    co: DoubleFloat | None
    """`sum(w * (x - mean x) * (y - mean y))` of the two variables, if it is asked for."""
    second: jax.Array | None = None
    """If given, a small correction of the means."""
    units: tuple[jax.Array, jax.Array] | None = None
    """The exponents of the units of the values, and of the weights; None for units of 1, which are
    for sums in float64."""


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
    """Sums of variables over rows, in two passes: in float64, or else in pairs.

    The first pass gives the means. The second one is about a centre near the mean, which is the
    value itself if all values are equal: so their distances are exactly 0. The centre has a few
    digits more than a float in float64, and those of a float in pairs. How far the mean is above it
    is known from the mean. In float64, a sum of fewer than 2**29 equal values is exact, and so is
    its quotient: then the centre is the mean.

    Pairs are in units in which values and weights are about 1. The first pass gives the greatest
    exponents, too, of which the units are made.

    With `of_errors`, the first variable is the difference of the first two that are given.
    """
    is_mask = w.dtype == np.bool_
    some = w if is_mask else w != 0
    rows = exact_numbers(variables, some, of_errors=of_errors)
    in_units = isinstance(rows[0], ScaledDouble)
    is_exact = not in_units and is_mask and order == 2 and w.size < 2**29
    n, dtype = len(rows), rows[0].dtype
    # Weights are added up as floats, and so are masks of more elements than an int32 counts.
    # A mask of so few elements is added up as an int32, which is exact.
    weights = None if is_mask and w.size < _MOST_COUNTED else exact_number(w.astype(dtype))
    terms: list[Term] = [Term(w if weights is None else weights, axes)]
    terms += [Term(x if is_mask else x * weights, axes) for x in rows]
    if in_units and not is_mask:
        terms += [Term(x.exponent, axes, "max") for x in rows]

    def second(total: Any, *found: Any) -> PyTree:
        sums, units, factor = _joined(found[:n]), None, w
        if in_units:
            # The greatest exponents: those of sums in which all weights are 1 are the same.
            tops = sums.exponent if is_mask else xp.stack(found[n:]) if n > 1 else found[n]
            weight, units = _weight_and_units(
                total, tops, dtype, is_mask=is_mask, are_few=w.size < 2**24
            )
            unit = units[0] if is_mask else units[0] + _broadcast(units[1], tops.shape)
            sums = scaled_by(sums.double.finite, sums.exponent - unit)
            factor = (
                w if is_mask else w * lax.expand_dims(normal_power_of_two(-units[1], dtype), axes)
            )
        else:
            weight = total if isinstance(total, DoubleFloat) else DoubleFloat.of(total, dtype)
        weight = weight.broadcast_to(sums.shape)
        means: Any = sums / where(weight.high > 0, weight, _constant(1, weight))
        if in_units:
            centres, rests = means.high, means.low
        elif is_exact:
            centres, rests = means, None
        else:
            centres = means.map(lambda x: lax.reduce_precision(x, 11, 30))
            rests = means - centres
        apart = _distances(variables, some, axes, centres, units, of_errors=of_errors)

        def weighted(x: DoubleFloat) -> Term:
            return Term(x if is_mask else x * factor, axes)

        raised, again = apart, []
        for _ in range(2, order + 1):
            raised = [p * d for p, d in zip(raised, apart, strict=True)]
            again += map(weighted, raised)
        if crossed:
            # In the same pass as the squares, which reads both variables anyway.
            again.append(weighted(apart[0] * apart[1]))
        results = reduced(again)
        co = results.pop() if crossed else None
        powers = [_joined(results[i : i + n]) for i in range(0, len(results), n)]
        if rests is not None:
            if powers:  # if all values are equal, the rest is rounding alone
                flat = _rough(powers[0]) == 0
                rests = _replaced(flat, rests)
            means = DoubleFloat(centres, rests).finite if in_units else centres + rests
            powers = powers_about_mean(weight, rests, powers)
            if co is not None:
                co = co_moment_about_means(weight, rests, powers[0], co)
        return finish(SumsAboutMean(weight, means, powers, co, units=units))

    return Fold(terms, second)


def _distances(
    variables: Sequence[jax.Array | DoubleFloat],
    some: jax.Array,
    axes: tuple[int, ...],
    centres: Any,
    units: tuple[jax.Array, jax.Array] | None,
    *,
    of_errors: bool,
) -> list[DoubleFloat]:
    """The distances of the variables from centres, in units; 0 where `some` does not hold."""
    several = len(variables) > 1

    def of_each(found: Any, i: int) -> Any:
        """That of a variable, with the axes of its rows."""
        return each_part(found[i] if several else found, lambda x: lax.expand_dims(x, axes))

    if units is None:
        x, *rest = map(DoubleFloat.of, map(_again, variables))
        values = [x - rest[0] if of_errors else x, *rest]
        return [masked(some, x - of_each(centres, i)) for i, x in enumerate(values)]
    found = []
    powers = normal_power_of_two(-units[0], centres.dtype)
    x, *rest = map(_again, variables)
    for i, each in enumerate((x, *rest)):
        power = of_each(powers, i)
        scaled = each_part(each, lambda part, power=power: part * power)
        if of_errors and not i:
            # Equal numbers, however great, have the difference 0.
            scaled, other = (
                each_part(part, lambda x: xp.clip(x, -_GREATEST, _GREATEST))
                for part in (scaled, each_part(rest[0], lambda part, power=power: part * power))
            )
            scaled = _exact_difference(scaled, other)
        found.append(masked(some, _exact_difference(scaled, of_each(centres, i))))
    return found


def _exact_difference(x: Any, y: Any) -> DoubleFloat:
    """The difference of floats or double-floats."""
    if isinstance(x, DoubleFloat):
        return x.finite - y
    return DoubleFloat.of(x).finite - y if isinstance(y, DoubleFloat) else float_difference(x, y)


_GREATEST = 2.0**126


def _weight_and_units(
    total: Any, tops: jax.Array, dtype: np.dtype, *, is_mask: bool, are_few: bool
) -> tuple[DoubleFloat, tuple[jax.Array, jax.Array]]:
    """The total weight, and the exponents of the units of values and of weights."""
    least = xp.int32(xp.finfo(dtype).minexp)
    # The power of the unit, and of its inverse, must be normal numbers.
    unit = xp.clip(tops - xp.int32(DIGITS), least, -least)
    if not isinstance(total, ScaledDouble):
        # A float holds the number of a few rows.
        weight = DoubleFloat.of(total.astype(dtype)) if are_few else limbs.as_double(total)
        return weight.finite, (unit, xp.where(total > 0, xp.int32(0), least))
    # Weights of 1 are in units of 1.
    some_unit = xp.int32(0) if is_mask else total.exponent
    weight_unit = xp.clip(xp.where(total.double.high > 0, some_unit, least), least, -least)
    return scaled_by(total.double.finite, total.exponent - weight_unit), (unit, weight_unit)


def _joined(variables: Sequence[Any]) -> Any:
    """Numbers of several variables with a first axis for them; those of one as they are."""
    x, *others = variables
    if not others:
        return x
    if isinstance(x, ScaledDouble):
        doubles = stack([each.double for each in variables])
        return ScaledDouble(doubles, xp.stack([each.exponent for each in variables]))
    return stack(variables)


def _replaced(flat: jax.Array, x: Any) -> Any:
    """Numbers, but 0 where a mask holds."""
    return each_part(x, lambda part: xp.where(flat, xp.zeros((), part.dtype), part))


def _broadcast(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return x if x.shape == shape else xp.broadcast_to(x, shape)


def _constant(x: float, like: DoubleFloat) -> DoubleFloat:
    """A number to choose instead of one of a double-float."""
    made = DoubleFloat.of(x, like.dtype)
    return made.finite if isinstance(like, FiniteDouble) else made


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
            # Columns first: NumPy adds up pairwise along a contiguous last axis, which rounds less.
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
    # The caller goes on in units in which no square overflows. That is slow, and rarely needed.
    if not np.isfinite(squares).all():
        return None
    # Zero is right for equal values, and wrong where squares underflowed.
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
    weight: DoubleFloat, rests: Any, powers: Sequence[DoubleFloat]
) -> list[DoubleFloat]:
    """Sums of powers about the mean, from those about a centre that is `rests` below it.

    All are 0 where rounding alone is left of the sum of squares, which is never below 0.
    """
    if not powers:
        return []
    # What is subtracted is small: floats have enough digits of it.
    weight, rests, *found = map(_rough, (weight, rests, *powers))
    square = weight * rests * rests
    moved = [powers[0] - square]
    if len(powers) > 1:
        moved.append(powers[1] - rests * (found[0] * 3 - square * 2))
    if len(powers) > 2:
        moved.append(powers[2] - rests * (found[1] * 4 - rests * (found[0] * 6 - square * 3)))
    varies = _rough(moved[0]) > square * _ROUNDING
    return [where(varies, x, _constant(0, x)) for x in moved]


def co_moment_about_means(
    weight: DoubleFloat, rests: Any, squares: DoubleFloat, co: DoubleFloat, axis: int = 0
) -> DoubleFloat:
    """The co-moment of two variables about their means, from that about centres.

    Args:
        weight: the total weight.
        rests: how far each mean is above the centre.
        squares: the sums of squares about the means.
        co: the co-moment about the centres.
        axis: that of the two variables.
    """
    x, y = (
        each_part(_rough(rests), lambda r, i=i: r[(slice(None),) * axis + (i,)]) for i in (0, 1)
    )
    weight = each_part(_rough(weight), lambda r: r[(slice(None),) * axis + (0,)])
    co = co - weight * x * y
    # Of what does not vary, rounding alone is left.
    return where(xp.all(_rough(squares) > 0, axis), co, _constant(0, co))


def _rough(x: Any) -> Any:
    """As `DoubleFloat.rough`, also of a float."""
    return x.rough if isinstance(x, DoubleFloat) else x


DIGITS = 16
"""The binary digits of the greatest value in its unit. The distances of 32-bit integers then range
from 2**-16 to 2**17, and the sums of their fourth powers are far from overflow and underflow."""
_ROUNDING = 2.0**-46
"""A sum of squares that is less than this part of what is subtracted is what rounding leaves."""
