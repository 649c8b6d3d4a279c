"""`DyadicGrid`: bins over the range of the values; if the range grows, bins are only joined."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SPECIAL = 2
"""How many bins there are besides the `2**bits` of the range: for -infinity and infinity."""


class DyadicGrid(NamedTuple):
    """The bins of each class: a function of its least and greatest finite value.

    Each number has a key, an integer in the order of the numbers. With e the greatest power of two
    in the range, the key of |x| counts floats in the `octaves` powers of two up to e, as the bits
    of a float do; below them it counts equal steps, down to 0. A bin is the numbers whose keys
    agree after a shift: so it is an interval, and narrow where numbers are small. `shift` is the
    least with which the keys of the range differ by less than `2**bits`; if the range holds both
    signs, the least with which all keys do. The place of a number is its shifted key modulo
    `2**bits`: so a range that grows leaves the bins in their places until e or `shift` changes.

    With `mirrored`, numbers x from 1/2 to 1 have the key of `1 - x` in reverse order, so that bins
    are as narrow toward 1 as toward 0, as probabilities need.

    If the range grows, e and `shift` do not fall, and each bin is a union of earlier bins. So
    counts on a grid do not depend on the order in which the values came.
    """

    least: jax.Array
    """The least value of each class, (size,); infinity if there is none."""
    greatest: jax.Array
    """The greatest value of each class, (size,); -infinity if there is none."""
    bottom: jax.Array
    """The biased exponent of the lowest power of two with the bins of floats, (size,)."""
    shift: jax.Array
    """How many bits of the keys are cut, (size,)."""
    bits: int
    """There are `2**bits` bins; at least 10."""
    octaves: int
    mirrored: int
    """How many powers of two of `1 - x` have narrow bins; 0 if 1 is like any other number."""

    @classmethod
    def of(
        cls, least: jax.Array, greatest: jax.Array, bits: int, octaves: int, mirrored: int
    ) -> "DyadicGrid":
        """The grid of the range from `least` to `greatest`."""
        digits = _digits(least.dtype)
        low, high = (jnp.where(least <= greatest, x, 1) for x in (least, greatest))
        top = _bits(jnp.maximum(jnp.abs(low), jnp.abs(high))) >> digits
        bottom = jnp.maximum(top - (octaves - 1), 1)
        grid = cls(least, greatest, bottom, bottom, bits, octaves, mirrored)
        first, last = (grid._key(x, bottom) for x in (low, high))
        every = (2 * (octaves + 1) + mirrored) << digits
        most = max(0, (every - 1).bit_length() - bits)
        shifts = jnp.arange(most, dtype=first.dtype)[:, None]
        wide = (last[None] >> shifts) - (first[None] >> shifts) >= 1 << bits
        fitting = jnp.sum(wide, 0, dtype=first.dtype)
        return grid._replace(shift=jnp.where((low < 0) & (high >= 0), most, fitting))

    @property
    def slots(self) -> int:
        """The length of the table of a class."""
        return (1 << self.bits) + SPECIAL

    @property
    def has_values(self) -> jax.Array:
        """Which classes have a range."""
        return self.least <= self.greatest

    def place(self, x: jax.Array) -> jax.Array:
        """The place of each number, (..., size), in the table of its class; not of NaN."""
        ring = 1 << self.bits
        bottom, shift = (lax.expand_dims(y, range(x.ndim - 1)) for y in (self.bottom, self.shift))
        place = (self._key(x, bottom) >> shift) & (ring - 1)
        ends = jnp.where(x < 0, jnp.int32(ring), jnp.int32(ring + 1))
        return jnp.where(jnp.isinf(x), ends, place.astype(jnp.int32))

    def differs(self, other: "DyadicGrid") -> jax.Array:
        """For which classes a number may have another place than on another grid."""
        return (self.bottom != other.bottom) | (self.shift != other.shift)

    def ranks(self) -> jax.Array:
        """The rank of each place but the special ones, in the order of values: (size, bins)."""
        ring, bottom = 1 << self.bits, self.bottom
        first = self._key(jnp.where(self.has_values, self.least, 1), bottom) >> self.shift
        place = jnp.arange(ring, dtype=first.dtype)[None, :]
        return (place - first[:, None]) & (ring - 1)

    def lowest(self, rank: jax.Array) -> jax.Array:
        """The least number of the bins of these ranks, (size, ...): the bins from `least` on."""
        shift, bottom = (x[:, None] for x in (self.shift, self.bottom))
        least = jnp.where(self.has_values, self.least, 1)[:, None]
        key = ((self._key(least, bottom) >> shift) + rank.astype(shift.dtype)) << shift
        # Of a negative number, the greatest |x|: the float before the one of the next key.
        below = -_float(_bits(self._from_key(jnp.maximum(-key, 1), bottom)) - 1)
        return jnp.where(key < 0, below, self._from_key(jnp.maximum(key, 0), bottom, mirror=True))

    def relative_width(self) -> jax.Array:
        """The width of a bin relative to its values, (size,), in the powers of two of `octaves`."""
        return jnp.exp2((self.shift - _digits(self.least.dtype)).astype(self.least.dtype))

    def _key(self, x: jax.Array, bottom: jax.Array) -> jax.Array:
        digits, bias = _digits(x.dtype), _bias(x.dtype)
        size = jnp.abs(x)
        start = _float(bottom << digits)
        # The scale of the steps, in two factors, because one could be infinite.
        scale = _float((2 * bias - 1 - bottom) << digits)
        steps = (jnp.minimum(size, start) * 2.0 ** (digits + 1) * scale).astype(bottom.dtype)
        key = jnp.where(size < start, steps, _bits(size) - ((bottom - 1) << digits))
        negative = ~key
        if self.mirrored:
            near = (size >= 0.5) & (size < 1) & (bottom < bias)
            half = ((bias - bottom) << digits) + ((self.mirrored + 1) << digits) - 1
            key = jnp.where(size >= 1, key + (self.mirrored << digits), key)
            key = jnp.where(near, half - self._key_to_one(size), key)
        return jnp.where(x < 0, negative, key)

    def _key_to_one(self, x: jax.Array) -> jax.Array:
        """The key of `1 - x`, for x from 1/2 up to 1."""
        digits, bias = _digits(x.dtype), _bias(x.dtype)
        # The floats x are `1 - (t + 1) * 2**-(digits + 1)` for the integers t below 2**digits.
        t = jnp.maximum((1 - x) * 2.0 ** (digits + 1) - 1, 0)
        start, narrow = 2.0 ** (digits - self.mirrored), bias + digits - self.mirrored - 1
        steps = (jnp.minimum(t, start) * 2.0**self.mirrored).astype(_integer(x.dtype))
        return jnp.where(t < start, steps, _bits(t) - (narrow << digits))

    def _from_key(self, key: jax.Array, bottom: jax.Array, mirror: bool = False) -> jax.Array:
        """The least number that is not negative with each key."""
        dtype = _float_dtype(key.dtype)
        digits, bias, top = _digits(dtype), _bias(dtype), jnp.finfo(dtype).max

        def plain(key: jax.Array) -> jax.Array:
            key = jnp.maximum(key, 0)
            start = _float(bottom << digits)
            most = _bits(jnp.asarray(top, dtype)) - ((bottom - 1) << digits)
            bits = jnp.minimum(key, most) + ((bottom - 1) << digits)
            steps = key.astype(dtype) * 2.0**-digits * start
            return jnp.where(key < 1 << digits, steps, _float(bits))

        if not (self.mirrored and mirror):
            return plain(key)
        extra, half = self.mirrored << digits, (bias - bottom) << digits
        is_near = (bottom < bias) & (key >= half) & (key < half + extra + (1 << digits))
        to_one = jnp.clip(half + extra + (1 << digits) - 1 - key, 0, (self.mirrored + 1 << digits))
        narrow = bias + digits - self.mirrored - 1
        t = jnp.where(
            to_one < 1 << digits,
            to_one.astype(dtype) * 2.0**-self.mirrored,
            _float(to_one + (narrow << digits)),
        )
        near = 1 - (jnp.floor(t) + 1) * 2.0 ** -(digits + 1)
        # The key of 1 without those of `1 - x`. Numbers below 1 have at most this key.
        one = jnp.where(bottom < bias, half + (1 << digits), (1 << digits) >> (bottom - bias))
        above = jnp.maximum(plain(jnp.maximum(key - extra, one)), 1)
        return jnp.where(is_near, near, jnp.where(key <= one, plain(key), above))


def _digits(dtype: Any) -> int:
    """How many bits of the significand are stored: 23 or 52."""
    return int(jnp.finfo(dtype).nmant)


def _bias(dtype: Any) -> int:
    """The biased exponent of 1."""
    return 1 - int(jnp.finfo(dtype).minexp)


def _integer(dtype: Any) -> Any:
    return jnp.dtype(f"int{jnp.finfo(dtype).bits}")


def _float_dtype(dtype: Any) -> Any:
    return jnp.dtype(f"float{8 * np.dtype(dtype).itemsize}")


def _bits(x: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(x, _integer(x.dtype))


def _float(bits: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(bits, _float_dtype(bits.dtype))
