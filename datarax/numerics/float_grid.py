"""`FloatGrid`: bins over all floats, whose width grows with the value; and bins of equal width."""

from typing import NamedTuple

import jax
import numpy as np

from datarax._xp import lax, on_host, xp
from datarax.numerics.pairs import two_product

_TINY = 2.0**-24  # the least value of 1 - x for a float32 x below 1


class FloatGrid(NamedTuple):
    """Bins over the float32 numbers, in ascending order.

    The bin of a number is given by its key: its upper `bits` bits. The bits of positive floats,
    read as integers, have the order of the floats, so a bin is an interval. Its width is at most a
    constant fraction of its values. From 1/2 to 1 the key is that of `1 - x`, in reverse order:
    so bins are as narrow near 1 as near 0, as probabilities need.
    """

    bits: int
    """The length of a key: the sign, 8 bits of the exponent, the rest of the significand."""

    def _key(self, x: jax.Array) -> jax.Array:
        return lax.bitcast_convert_type(x, xp.int32) >> (32 - self.bits)

    def _key_of(self, x: float) -> int:
        return int(np.float32(x).view(np.int32) >> (32 - self.bits))

    @property
    def size(self) -> int:
        """The number of bins."""
        return self._above + self._key_of(np.inf) - self._key_of(1.0) + 1

    # The first bin of each part of the grid. The negative numbers are before `_zero`, in reverse
    # order of their keys.

    @property
    def _zero(self) -> int:
        """The bin of 0."""
        return self._key_of(np.inf)

    @property
    def _half(self) -> int:
        """The bin of 1/2."""
        return self._zero + self._key_of(0.5)

    @property
    def _above(self) -> int:
        """The first bin of the numbers above 1."""
        return self._half + self._key_of(0.5) - self._key_of(_TINY) + 2

    def bin(self, x: jax.Array) -> jax.Array:
        """The bin of each finite float32."""
        # Key of 1 - x, for x from 1/2 to 1; the bin of x = 1 comes after that of `1 - _TINY`.
        mirrored = xp.maximum(self._key(xp.maximum(1 - x, 0)), self._key_of(_TINY) - 1)
        mirrored = self._half + self._key_of(0.5) - mirrored
        magnitude = self._key(xp.abs(x))
        below = xp.where(x < 0, self._zero - 1 - magnitude, self._zero + magnitude)
        above = self._above + magnitude - self._key_of(1.0)
        return xp.where(x < 0.5, below, xp.where(x <= 1, mirrored, above))

    def lowest(self) -> np.ndarray:
        """The least float32 of each bin, in ascending order."""
        shift, bins = 32 - self.bits, np.arange(self.size)

        def greatest_of(key: np.ndarray) -> np.ndarray:
            """The greatest finite float with this key: all its lower bits are set."""
            bits = ((key.astype(np.int64) + 1) << shift) - 1
            return np.minimum(bits, 0x7F7FFFFF).astype(np.int32).view(np.float32)

        below = -greatest_of(np.maximum(self._zero - 1 - bins, 0))
        small = (np.maximum(bins - self._zero, 0) << shift).astype(np.int32).view(np.float32)
        # The least x of a mirrored bin is 1 minus the greatest `1 - x` with its key, rounded down
        # to a multiple of 2**-24, the distance of the floats below 1.
        rest = greatest_of(np.clip(self._half + self._key_of(0.5) - bins, 0, self._key_of(0.5)))
        rest = np.where(bins == self._above - 1, 0.0, np.minimum(rest, 0.5))
        upper = 1 - np.floor(rest.astype(np.float64) * 2**24) / 2**24
        keys = np.clip(bins - self._above + self._key_of(1.0), 0, self._key_of(np.inf) - 1)
        above = (keys.astype(np.int64) << shift).astype(np.int32).view(np.float32)
        # 1.0 itself is the last bin of the mirrored part.
        above = np.where(above == 1, np.nextafter(np.float32(1), np.float32(2)), above)
        parts = [bins < self._zero, bins < self._half, bins < self._above]
        return np.select(parts, [below, small, upper.astype(np.float32)], above)


def default_bits(size: int) -> int:
    """Returns the bits of a key for `size` histograms: 16 for one or two, fewer for more."""
    return 16 if size <= 2 else 14 if size <= 16 else 12 if size <= 256 else 10


def equal_width(p: jax.Array, num_bins: int) -> jax.Array:
    """The bin k of each probability, with `k / num_bins < p <= (k + 1) / num_bins`; 0 for zero.

    By the exact product `p * num_bins`, so that no edge is rounded.
    """
    if on_host(p) and p.dtype == np.float32:  # of both, float64 holds the product
        upper = np.ceil(np.multiply(p, num_bins, dtype=np.float64))
        return xp.clip(upper.astype(np.int32) - 1, 0, num_bins - 1)
    product, error = two_product(p, xp.full(p.shape, num_bins, p.dtype))
    upper = xp.ceil(product)
    # A product that was rounded down to an integer is above it.
    upper = upper + ((product == upper) & (error > 0)).astype(p.dtype)
    return xp.clip(upper.astype(xp.int32) - 1, 0, num_bins - 1)
