"""A 64-bit hash of numbers. Equal numbers have equal hashes, whatever their dtypes."""

import math

import jax

from datarax._checks import is_integer
from datarax._xp import lax, xp
from datarax.numerics.limbs import negate_limbs

Words = tuple[jax.Array, jax.Array]
"""64 bits for each element: the upper and the lower 32, as uint32."""

# One key for each round: odd numbers without a pattern of bits, from the fractional parts of the
# square roots of 2, 3, 5, 7, 11 and 13.
_ROUNDS = (0x6A09E667, 0xBB67AE85, 0x3C6EF373, 0xA54FF53B, 0x510E527F, 0x9B05688D)
_FRACTION = 0x5BE0CD19  # the upper word of a number that is not an integer


def hashed(x: jax.Array) -> Words:
    """The hash of each finite number.

    Equal numbers have equal hashes: 3 as int32, 3 as uint8 and 3.0 have one hash, and so have -0.0
    and 0.0. Distinct numbers of 32 bits have distinct hashes.
    """
    left, right = _bits_of_value(x)
    # A Feistel network maps 64 bits one to one, whatever the function of its rounds is.
    for key in _ROUNDS:
        left, right = right, left ^ mixed(right ^ xp.uint32(key))
    return left, right


def mixed(x: jax.Array) -> jax.Array:
    """Mixes the bits of `x`: every bit of the result depends on every bit of `x`."""
    x = (x ^ (x >> 16)) * xp.uint32(0x9E3779B1)
    x = (x ^ (x >> 15)) * xp.uint32(0x85EBCA77)
    return x ^ (x >> 16)


def bits_of_rows(x: jax.Array) -> jax.Array:
    """A hash of each row of an array: the sum of its bits, each times an odd number."""
    if is_integer(x):
        bits = x.astype(xp.uint32)
    else:
        bits = lax.bitcast_convert_type(x.astype(xp.float32), xp.uint32)
    # Odd factors are invertible modulo 2**32, so each element changes the sum; they differ, so that
    # the order of the elements matters.
    bits = bits.reshape(len(x), math.prod(x.shape[1:]))
    factors = mixed(xp.arange(bits.shape[1], dtype=xp.uint32)) | xp.uint32(1)
    return xp.sum(bits * factors[None], 1, dtype=xp.uint32)


def _bits_of_value(x: jax.Array) -> Words:
    """64 bits of the value of each number: equal for equal numbers, and only for them.

    An integer, also as a float, gives its 64-bit two's complement; another float gives its bits.
    """
    if is_integer(x):
        return bits_of_integer(x)
    if x.dtype.itemsize < 4:
        x = x.astype(xp.float32)
    size = xp.abs(x)
    whole = (size == xp.floor(size)) & (size < 2.0**63)
    # Both limbs are exact, because each holds some of the bits of the float.
    size = xp.where(whole, size, 0)
    high = xp.floor(size * 2.0**-32)
    limbs = high.astype(xp.int32), (size - high * 2.0**32).astype(xp.uint32)
    upper, lower = _where(x < 0, negate_limbs(limbs), limbs)
    integer = lax.bitcast_convert_type(upper, xp.uint32), lower
    return _where(whole, integer, _bits_of_fraction(x))


def bits_of_integer(x: jax.Array) -> Words:
    """The 64-bit two's complement of each integer: equal for equal ones of all dtypes."""
    if x.dtype.itemsize == 8:
        return _halves(lax.bitcast_convert_type(x, xp.uint64))
    if x.dtype == xp.uint32:
        return xp.zeros_like(x), x
    x = x.astype(xp.int32)
    return lax.bitcast_convert_type(x >> 31, xp.uint32), lax.bitcast_convert_type(x, xp.uint32)


def _bits_of_fraction(x: jax.Array) -> Words:
    if x.dtype.itemsize == 4:
        mark = xp.full_like(x, _FRACTION, xp.uint32)
        return mark, lax.bitcast_convert_type(x, xp.uint32)
    # A float64 that a float32 can hold must have the hash of that float32.
    narrow = x.astype(xp.float32)
    own = _halves(lax.bitcast_convert_type(x, xp.uint64))
    return _where(narrow.astype(x.dtype) == x, _bits_of_fraction(narrow), own)


def _where(condition: jax.Array, a: Words, b: Words) -> Words:
    return xp.where(condition, a[0], b[0]), xp.where(condition, a[1], b[1])


def _halves(bits: jax.Array) -> Words:
    low = xp.asarray(0xFFFFFFFF, bits.dtype)
    return (bits >> xp.asarray(32, bits.dtype)).astype(xp.uint32), (bits & low).astype(xp.uint32)
