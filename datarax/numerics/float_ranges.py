"""Float64 numbers of the host in float32: as a range that holds each, or in two keys."""

from typing import Any

import jax
import numpy as np

from datarax._checks import as_float, default_float
from datarax._xp import lax, on_host, xp
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.limbs import as_double, is_rounded

_CODE = np.int32(0x20000000)
"""The bits of the least code, a float32. There are 2**29 of them, and all are normal numbers."""
_LAST = np.int32(2**29 - 1)
_TINY = np.finfo(np.float32).tiny
_MOST = np.finfo(np.float32).max


def outward(x: np.ndarray) -> tuple[Any, Any]:
    """The greatest float32 that is not above each float64 number, and the least not below it.

    None is subnormal: a small number is between 0 and the least normal number. NaN stays.
    """
    with np.errstate(over="ignore", under="ignore"):
        near = x.astype(np.float32)
        exact = near.astype(np.float64)
        # The next float is that of the next bits, toward zero or away from it; in a twentieth of
        # the time of `nextafter`. What is near zero is set below.
        bits = near.view(np.int32)
        away = (bits >> np.int32(31)) | np.int32(1)
        least = (bits - away * (exact > x)).view(np.float32)
        greatest = (bits + away * (exact < x)).view(np.float32)
    small = np.abs(x) < _TINY
    if small.any():
        zero = np.float32(0)
        least = np.where(small, np.where(x < 0, -_TINY, zero), least)
        greatest = np.where(small, np.where(x > 0, _TINY, zero), greatest)
    return least, greatest


def outward_doubles(
    x: DoubleFloat, given: DoubleFloat, counted: Any
) -> tuple[DoubleFloat, DoubleFloat]:
    """Double-floats, as two parts hold them, at most and at least each number that is `counted`.

    Both are `x` itself but for float64 numbers of the host, which have more digits.

    Args:
        x: the numbers, but 0 where they are below normal floats, and where they do not count.
        given: the numbers.
        counted: the mask of those that count.
    """
    if not x.exceeds_parts:
        return x, x
    high, low = x
    rest: Any = np.where(counted, given.wide - high, 0)
    if not np.count_nonzero(rest != low):  # mostly
        return x, x
    least, greatest = (np.add(high, part, dtype=np.float64) for part in outward(rest))
    return DoubleFloat.of_float64(least), DoubleFloat.of_float64(greatest)  # type: ignore


def next_float(x: Any, toward: float) -> Any:
    """The next float toward an infinity; none is subnormal, but 0 and the least normal number."""
    tiny = np.copysign(xp.finfo(x.dtype).tiny, toward).astype(x.dtype)
    moved = xp.nextafter(x, xp.full_like(x, toward))
    return xp.where(xp.abs(moved) < abs(tiny), xp.where(x == 0, tiny, xp.zeros_like(x)), moved)


def two_keys(x: Any) -> tuple[Any, Any]:
    """Each float64 number as two float32, which have the order of the numbers, one after the other.

    The first is the number rounded toward zero. The second is 0 if that is the number, else a code
    of the 29 bits that it lacks, with the sign of the number. So both are exact, but for numbers
    beyond the range of float32, and those other than 0 that are below its least normal number: all
    of them share one code, see `is_single`.
    """
    with np.errstate(over="ignore", under="ignore"):
        near = x.astype(np.float32)
        first = np.where(np.abs(near) > np.abs(x), np.nextafter(near, np.float32(0)), near)
        first = np.where(np.abs(x) < _TINY, np.float32(0), first)
        if not np.count_nonzero(first != x):
            return first, np.zeros_like(first)
        size = np.where(np.isfinite(first), np.abs(x), 0)
        rest = np.where(size > 0, size - np.abs(first), 0) / _unit(first) * 2.0**29
    whole = np.minimum(rest, _LAST).astype(np.int32)
    whole = np.where((first == 0) & (x != 0), _LAST, whole)
    code = np.where(whole > 0, (_CODE + whole).view(np.float32), np.float32(0))
    return first, np.copysign(code, np.sign(x).astype(np.float32))


def of_two_keys(first: Any, code: Any) -> Any:
    """The float64 numbers with these keys; of keys that several share, one of them."""
    whole = np.where(code != 0, np.abs(code).view(np.int32) - _CODE, 0)
    rest = whole * np.where(first == 0, _TINY, _unit(first)) / 2.0**29
    return first.astype(np.float64) + np.copysign(rest, code)


def keys_of(x: jax.Array) -> tuple[Any, Any]:
    """Two keys in the order of any numbers, which no two different numbers share."""
    dtype = default_float()
    if type(x) is np.ndarray and x.dtype == dtype:
        return x, np.zeros_like(x)
    if dtype != np.float32 or not is_rounded(x):
        return tuple(as_double(x))  # type: ignore[return-value]
    return two_keys(as_float(x)) if on_host(x) else two_keys_of_integers(as_double(x))


def sort_keys(first: Any, code: Any) -> tuple[tuple[Any, ...], list[Any]]:
    """What sorts numbers by their `two_keys`, and what is sorted with it: codes, if any is not 0.

    NumPy sorts by one key in half the time of two.
    """
    if not on_host(first):
        return (first, code), []
    return ((of_two_keys(first, code),), [code]) if code.any() else ((first,), [])


def two_keys_of_integers(x: DoubleFloat) -> tuple[jax.Array, jax.Array]:
    """`two_keys` of integers of 32 bits, also in a program."""
    high, low = x
    # The low part has the sign of the number once the high part is rounded toward zero.
    over = high * low < 0
    first = xp.where(over, lax.bitcast_convert_type(_bits(high) - 1, high.dtype), high)
    rest = xp.abs((high - first) + low)
    power = lax.bitcast_convert_type(_bits(first) & 0x7F800000, high.dtype)
    whole = (rest * (2.0**52 / xp.where(rest > 0, power, 1))).astype(xp.int32)
    code = xp.where(whole > 0, lax.bitcast_convert_type(_CODE + whole, high.dtype), 0)
    return first, xp.where(first < 0, -code, code)


def _bits(x: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(x, xp.int32)


def _unit(first: np.ndarray) -> np.ndarray:
    """The distance of normal float32 numbers to the next one."""
    return np.ldexp(1.0, np.frexp(np.where(np.isfinite(first), first, 0))[1] - 24)


def is_single(first: Any, code: Any) -> Any:
    """True for the keys, from `two_keys`, that only one number has.

    `first` may also be the number, or the end of it that is nearer to zero.
    """
    last, size = (_CODE + _LAST).view(np.float32), xp.abs(first)
    tiny, most = (np.asarray(end, size.dtype) for end in (_TINY, _MOST))
    return (xp.abs(code) != np.asarray(last, code.dtype)) | ((size >= tiny) & (size < most))


def is_within_floats(gap: Any, size: Any) -> bool:
    """True if some numbers share a bin, and those of no bin are more than two float32 apart.

    Then the bins are as narrow as float32 allows, and the numbers have more digits.

    Args:
        gap: how far apart the ends of each bin are.
        size: one end of each.
    """
    two = np.maximum(2.5 * 2.0**-23 * np.abs(size), _TINY)
    return bool((gap > 0).any() and (gap <= two).all())
