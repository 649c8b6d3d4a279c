"""A grid of bins over all floats: which bin a float falls into, and the least float of each bin."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_TINY = 2.0**-24  # the least value of 1 - x for a float32 x below 1


class FloatGrid(NamedTuple):
    """Bins of float32 numbers by a key of `bits` bits; the bin is a monotone function of the float.

    The bits of a float order like the float, so its upper bits are a bin of constant relative
    width. From 1/2 to 1 the key is made of `1 - x`, mirrored, so that bins are as fine toward 1 as
    toward 0.
    """

    bits: int

    def _key(self, x: jax.Array) -> jax.Array:
        return lax.bitcast_convert_type(x, jnp.int32) >> (32 - self.bits)

    def _key_of(self, x: float) -> int:
        return int(np.float32(x).view(np.int32) >> (32 - self.bits))

    @property
    def size(self) -> int:
        """How many bins there are."""
        return self._above + self._key_of(np.inf) - self._key_of(1.0) + 1

    # The first bin of each part of the grid; negative numbers come before them.

    @property
    def _zero(self) -> int:
        """Of 0."""
        return self._key_of(np.inf)

    @property
    def _half(self) -> int:
        """Of 1/2."""
        return self._zero + self._key_of(0.5)

    @property
    def _above(self) -> int:
        """Of numbers above 1."""
        return self._half + self._key_of(0.5) - self._key_of(_TINY) + 2

    def bin(self, x: jax.Array) -> jax.Array:
        """The bin of each finite float32."""
        mirrored = jnp.maximum(self._key(jnp.maximum(1 - x, 0)), self._key_of(_TINY) - 1)
        mirrored = self._half + self._key_of(0.5) - mirrored
        magnitude = self._key(jnp.abs(x))
        below = jnp.where(x < 0, self._zero - 1 - magnitude, self._zero + magnitude)
        above = self._above + magnitude - self._key_of(1.0)
        return jnp.where(x < 0.5, below, jnp.where(x <= 1, mirrored, above))

    def lowest(self) -> np.ndarray[Any, Any]:
        """The least float32 of each bin: a float is at least that in this bin and higher ones."""
        shift, bins = 32 - self.bits, np.arange(self.size)

        def greatest_of(key: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            bits = ((key.astype(np.int64) + 1) << shift) - 1
            return np.minimum(bits, 0x7F7FFFFF).astype(np.int32).view(np.float32)

        below = -greatest_of(np.maximum(self._zero - 1 - bins, 0))
        small = (np.maximum(bins - self._zero, 0) << shift).astype(np.int32).view(np.float32)
        # The greatest 1 - x with that key, rounded down to the grid of floats below 1.
        rest = greatest_of(np.clip(self._half + self._key_of(0.5) - bins, 0, self._key_of(0.5)))
        rest = np.where(bins == self._above - 1, 0.0, np.minimum(rest, 0.5))
        upper = 1 - np.floor(rest.astype(np.float64) * 2**24) / 2**24
        keys = np.clip(bins - self._above + self._key_of(1.0), 0, self._key_of(np.inf) - 1)
        above = (keys.astype(np.int64) << shift).astype(np.int32).view(np.float32)
        # 1.0 itself is the last bin of the mirrored part.
        above = np.where(above == 1, np.nextafter(np.float32(1), np.float32(2)), above)
        parts = [bins < self._zero, bins < self._half, bins < self._above]
        return np.select(parts, [below, small, upper.astype(np.float32)], above)


Layout = FloatGrid


def default_bits(size: int) -> int:
    """Bits of the key for so many histograms: 16 for one or two, fewer for more."""
    return 16 if size <= 2 else 14 if size <= 16 else 12 if size <= 256 else 10
