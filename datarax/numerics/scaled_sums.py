"""Sums of products whose value may leave the range of a float: double-floats times powers of two.

Such a sum is a double-float of its parts in a unit, `2**exponent`. The sum of products of float32
numbers in float64 leaves no range: it is a `DoubleFloat`, or on the host an array of float64. Any
other sum is a `ScaledDouble`, or a count.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from datarax._checks import is_beyond_float32, x64_enabled
from datarax._x64 import elementary_in_x64
from datarax._xp import all_finite, on_host, xp
from datarax.numerics.double_float import (
    DoubleFloat,
    each_part,
    has_float64,
    is_one,
    split,
    stack,
)
from datarax.numerics.limbs import as_double
from datarax.numerics.pairs import Pair
from datarax.numerics.scaled_double import (
    NOTHING,
    ScaledDouble,
    scaled_by,
    unit_difference,
    unit_product,
)
from datarax.numerics.scaling import exponent_of, power_of_two, significand, times_power_of_two
from datarax.numerics.sums import sum_floats

Total = ScaledDouble | DoubleFloat | jax.Array
"""A sum: in a unit of its own, in float64, or a count."""
Parts = Pair | DoubleFloat
Sum = tuple[Parts, jax.Array]
"""The parts of a sum, and the exponent of its unit."""
INFINITE = 2**20
"""The exponent of an infinite sum, above all others, so that it is never scaled to NaN."""
_MOST_COUNTED = 2**31  # a mask of fewer elements is added up as int32
_HOST = (np.ndarray, np.float64)
_FLOAT64 = np.dtype(np.float64)
_NONE: Any = (np.float32(0), np.float32(0))


def products(x: Any, w: Any) -> jax.Array | DoubleFloat | ScaledDouble:
    """The products `w * x` without rounding; 0 where `w` is zero. Or a mask.

    In float64, which has the range of the products of float32 numbers, or in units of their own.
    The numbers may be in float64 already.
    """
    is_mask = w is None or w.dtype == np.bool_
    if isinstance(x, ScaledDouble):
        x = x if w is None else x.where(w.astype(xp.bool_))
    elif x.dtype == np.bool_ and is_mask and x.size < _MOST_COUNTED:
        return x if w is None else x & w
    else:
        x = as_double(x)
        if w is not None:
            some = w.astype(xp.bool_)
            x = x.map(lambda part: xp.where(some, part, xp.zeros((), part.dtype)))
    if isinstance(x, DoubleFloat) and not x.is_one:
        return unit_product(x, None if is_mask else w)
    if w is None or is_mask:
        return x
    if isinstance(x, DoubleFloat) or x.double.is_one:
        return x * w
    return x * unit_product(w)


def exact_number(x: jax.Array | DoubleFloat) -> DoubleFloat | ScaledDouble:
    """Finite values as numbers to multiply and to add up: in float64, or in units of their own."""
    return DoubleFloat.of(x) if _is_one(x) else unit_product(x).finite


def exact_numbers(
    variables: Sequence[jax.Array | DoubleFloat], some: jax.Array, *, of_errors: bool
) -> Sequence[Any]:
    """Variables as `exact_number`, but 0 where `some` does not hold; there, they may be anything.

    With `of_errors`, the first one is the difference of the first two that are given.
    """
    if _is_one(variables[0]):
        x, *rest = map(DoubleFloat.of, variables)
        return [masked(some, each) for each in (x - rest[0] if of_errors else x, *rest)]
    x, *rest = (masked(some, each) for each in variables)
    first = unit_difference(x, rest[0]).finite if of_errors else exact_number(x)
    return [first, *map(exact_number, rest)]


def masked(some: jax.Array, x: Any) -> Any:
    """An array or double-floats, but 0 where a mask does not hold."""
    return each_part(x, lambda part: xp.where(some, part, xp.zeros((), part.dtype)))


def _is_one(x: jax.Array | DoubleFloat) -> bool:
    return x.is_one if isinstance(x, DoubleFloat) else is_one(x)


def scaled_part(part: jax.Array, exponents: jax.Array) -> ScaledDouble:
    """`part * 2**exponents`, with parts in float64, or of about 1."""
    number = DoubleFloat.of(part)
    if number.is_one:
        return ScaledDouble(number, xp.where(part != 0, exponents, xp.int32(NOTHING)))
    number = unit_product(part)
    return ScaledDouble(number.double, number.exponent + exponents)


def power_in_range(x: jax.Array, power: int) -> jax.Array | ScaledDouble:
    """Powers of positive values: in float64, or in units in which none overflows.

    Args:
        x: floats.
        power: a positive power, or -1.
    """
    number = DoubleFloat.of(x)
    if not number.is_one or is_beyond_float32(x, 1 / x):
        # 1 / x would overflow for tiny x: significands and exponents are kept apart.
        if power > 0:
            return unit_product(x) ** power
        return scaled_part(1 / significand(x), -exponent_of(x))
    if power < 0:
        return (DoubleFloat.of(1.0, x.dtype) / number).wide
    return (number if power == 1 else number * number).wide


def sum_on_host(x: Any, w: Any, axes: tuple[int, ...], *, unit: int | None = None) -> Any:
    """The sum of `w * x` over axes, in NumPy without x64: as an array of float64, if it fits.

    Products of float32 numbers, and sums of them, are in its range. They are added up as they are
    made, in a third of the time of a sum of `products`.

    Args:
        x: numbers.
        w: weights, or None.
        axes: the axes to reduce.
        unit: the exponent of the unit of `x`, if it was chosen here.
    """
    terms = x
    if w is not None:
        if np.count_nonzero(w) < w.size:
            terms = np.where(w, x, 0)
        terms = terms if w.dtype == np.bool_ else np.multiply(terms, w, dtype=np.float64)
    if terms.dtype == np.bool_ and len(axes) == terms.ndim:
        total: Any = np.float64(np.count_nonzero(terms))
    else:
        total = np.add.reduce(terms, axes, np.float64) if axes else terms.astype(np.float64)
    if unit is None and x.dtype == _FLOAT64 and not all_finite(total):
        # In a unit in which no sum of float64 overflows.
        greatest = np.max(np.abs(x), initial=0, where=np.isfinite(x))
        unit = int(np.frexp(greatest)[1])
        total = sum_on_host(np.ldexp(x, -unit), w, axes, unit=unit)
        exponents: Any = np.full(np.shape(total), unit, np.int32)
        return ScaledDouble(DoubleFloat.of_float64(total), exponents)
    return total


def sums_of_squares(arrays: Sequence[jax.Array]) -> tuple[DoubleFloat, jax.Array, jax.Array]:
    """The sum of the squares of each of n arrays, and its greatest absolute value.

    Args:
        arrays: of any shapes, all float32 or all float64.

    Returns:
        Sums (n,) as `total * 2**exponent`, with a total of at least 1/4 unless it is 0; and the
        greatest values (n,). If an array holds a NaN, its total and greatest value are NaN; if it
        holds an infinity instead, both are infinite.
    """
    greatest = xp.stack([xp.max(xp.abs(x), initial=0) for x in arrays])
    # Up to an exponent whose reciprocal is a normal float.
    top = xp.minimum(exponent_of(greatest), xp.int32(-xp.finfo(greatest.dtype).minexp))
    if greatest.dtype == np.float32 and has_float64():
        # Squares of float32 are exact in float64, and any sum of them is in its range. The sums do
        # not wait for the maxima, so devices exchange both at once.
        wide = [DoubleFloat.of(x) for x in arrays]
        sums = stack([(x * x).sum(tuple(range(x.ndim))) for x in wide])
        total = sums.map(lambda s: times_power_of_two(s, -2 * top))
    else:
        powers = xp.unstack(power_of_two(-top, greatest.dtype))
        scaled = [x * power for x, power in zip(arrays, powers, strict=True)]
        total = stack([sum_floats(x * x, tuple(range(x.ndim))) for x in scaled])
    # A maximum between devices may drop a NaN; a sum does not.
    return total, 2 * top, xp.where(xp.isnan(total.high), total.high, greatest)


def in_own_unit(total: Total, *, in_range: bool = False) -> Sum:
    """A sum in units of a power of two, in which it is a float.

    Args:
        total: the sum.
        in_range: whether it is known to be a float, though it may be given in float64. In programs
            it is then in units of 1.
    """
    if type(total) in _HOST and total.dtype == _FLOAT64:
        return _plus_on_host(_NONE, np.int32(NOTHING), total)
    number, unit = _double(total)
    is_scaled = isinstance(total, ScaledDouble)
    if number.is_one and (is_scaled or not in_range):
        with elementary_in_x64(number.wide):
            usable, exponent = _exponent_of_float64(number.wide)
            power = power_of_two(xp.where(usable, -exponent, xp.int32(0)), np.float64)
            return DoubleFloat.of_float64(number.wide * power), exponent + unit
    if is_scaled:
        # An infinite sum is above all others, so that it is never scaled to NaN.
        return number, xp.where(xp.isfinite(number.high), unit, xp.int32(INFINITE))
    # A sum of nothing but zeros must not change the unit of a sum that it is added to.
    return number, xp.where(number.high == 0, xp.int32(NOTHING), xp.int32(0))


def stacked_totals(totals: Sequence[Total]) -> DoubleFloat | ScaledDouble:
    """Several sums along a new first axis: in float64 if all are, else in units of their own."""
    numbers = [x if isinstance(x, ScaledDouble) else _double(x)[0] for x in totals]
    wide = [x.wide for x in numbers if isinstance(x, DoubleFloat) and x.is_one]
    if len(wide) == len(numbers):
        with elementary_in_x64():
            return DoubleFloat.of_float64(xp.stack(wide))
    parts, exponents = zip(*map(in_own_unit, numbers), strict=True)
    exponents = [xp.broadcast_to(x, p.shape) for p, x in zip(parts, exponents, strict=True)]
    return ScaledDouble(stack(parts), xp.stack(exponents))


def float64_total(total: Total) -> DoubleFloat | None:
    """A sum that is in float64; None for any other."""
    if isinstance(total, ScaledDouble):
        return None
    number, _ = _double(total)
    return number if number.is_one else None


def plus_totals(held: Parts, exponent: jax.Array, totals: Sequence[Total]) -> Sum:
    """Several sums along a first axis, with a sum added to each; its parts are two arrays."""
    if type(held) is tuple and on_host(*held, exponent):
        for x in totals:
            if type(x) not in _HOST or x.dtype != _FLOAT64:
                break
        else:
            return _plus_on_host(held, exponent, np.array(totals))
    return plus_total(held, exponent, stacked_totals(totals))


def plus_total(held: Parts, exponent: jax.Array, total: DoubleFloat | ScaledDouble) -> Sum:
    """`plus_totals` of sums that are stacked."""
    if isinstance(total, ScaledDouble):
        return plus(held, exponent, total.double, total.exponent)
    if type(held) is tuple and on_host(*held, exponent, total):
        return _plus_on_host(held, exponent, total.wide)
    own = _of_parts(held)
    if not own.is_one:
        return plus(own, exponent, *in_own_unit(total))
    with elementary_in_x64():
        usable, unit = _exponent_of_float64(total.wide)
        mine = xp.asarray(exponent)
        top = xp.maximum(mine, unit)
        # The power underflows to zero where a sum is negligible.
        added = own.wide * power_of_two(mine - top, np.float64) + total.wide * power_of_two(
            xp.where(usable, -top, xp.int32(0)), np.float64
        )
        return split(added), top


def plus(held: Parts, exponent: jax.Array, other: Parts, unit: jax.Array) -> Sum:
    """The sum of two sums, in the greater of both units; its parts are two arrays."""
    if not x64_enabled() and on_host(held, exponent, other, unit):
        high, low = other
        return _plus_on_host(held, exponent, np.add(high, low, dtype=np.float64), unit)
    a, b = xp.asarray(exponent), xp.asarray(unit)
    top = xp.maximum(a, b)
    # The power underflows to zero where the lower sum is negligible.
    x, y = (scaled_by(_of_parts(each), e - top) for each, e in ((held, a), (other, b)))
    return tuple(x + y), top  # type: ignore[return-value]


def _plus_on_host(held: Parts, mine: Any, x: Any, unit: Any = None) -> Any:
    """The sum with `x * 2**unit` added, in NumPy."""
    high, low = held
    # Two float32 are exactly one float64. Both summands are scaled to the greater exponent, where
    # what underflows is negligible.
    own = np.add(high, low, dtype=np.float64)
    part, exponent = np.frexp(x)
    if unit is not None:
        exponent = exponent + unit
    if np.count_nonzero(part) < part.size:
        # A zero has the least exponent: it must not change the unit of the other summand.
        exponent = np.where(part == 0, np.int32(NOTHING), exponent)
    if not all_finite(part):
        exponent = np.where(np.isfinite(part), exponent, np.int32(INFINITE))
    top = np.maximum(mine, exponent)
    return split(np.ldexp(own, mine - top) + np.ldexp(part, exponent - top)), top


def _of_parts(parts: Parts) -> DoubleFloat:
    return parts if isinstance(parts, DoubleFloat) else DoubleFloat(*parts)


def _double(total: Total) -> tuple[DoubleFloat, Any]:
    """A sum as a double-float, and the exponent of its unit."""
    if isinstance(total, ScaledDouble):
        return total.double, total.exponent
    return total if isinstance(total, DoubleFloat) else as_double(total), 0


def _exponent_of_float64(total: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where sums in float64 have an exponent of their own, and those of all."""
    usable = xp.isfinite(total) & (total != 0)
    special = xp.where(total == 0, xp.int32(NOTHING), xp.int32(INFINITE))
    return usable, xp.where(usable, exponent_of(total), special)
