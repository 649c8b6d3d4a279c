"""Which bin a float falls into, and which floats a bin holds."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_TINY = 2.0**-24  # what 1 - x is at least, for a float32 x below 1


class Layout(NamedTuple):
    """Which bin a float32 falls into, for keys of so many bits: monotone over all reals.

    A float's bits order like the float, so its upper bits are a bin of constant relative width.
    From 1/2 to 1 they are those of `1 - x`, mirrored: as fine toward 1 as toward 0.
    """

    bits: int

    def _key(self, x: Any) -> Any:
        return lax.bitcast_convert_type(x, jnp.int32) >> (32 - self.bits)

    def _edge(self, x: float) -> int:
        return int(np.float32(x).view(np.int32) >> (32 - self.bits))

    @property
    def size(self) -> int:
        """How many bins there are."""
        return self._above + self._edge(np.inf) - self._edge(1.0) + 1

    @property
    def _zero(self) -> int:
        return self._edge(np.inf)

    @property
    def _half(self) -> int:
        return self._zero + self._edge(0.5)

    @property
    def _above(self) -> int:
        return self._half + self._edge(0.5) - self._edge(_TINY) + 2

    def bin(self, x: jax.Array) -> jax.Array:
        """The bin of each finite float32."""
        one, half = jnp.float32(1), jnp.float32(0.5)
        upper = self._key(jnp.maximum(one - x, jnp.float32(0)))
        upper = self._half + self._edge(0.5) - jnp.maximum(upper, self._edge(_TINY) - 1)
        magnitude = self._key(jnp.abs(x))
        below = jnp.where(x < 0, self._zero - 1 - magnitude, self._zero + magnitude)
        above = self._above + magnitude - self._edge(1.0)
        return jnp.where(x < half, below, jnp.where(x <= one, upper, above))

    def lowest(self) -> np.ndarray[Any, Any]:
        """The least float32 of each bin: of scores at least that high, all lie in it or above."""
        shift, bins = 32 - self.bits, np.arange(self.size)

        def last_of(key: Any) -> Any:  # the greatest magnitude with that key
            bits = ((key.astype(np.int64) + 1) << shift) - 1
            return np.minimum(bits, 0x7F7FFFFF).astype(np.int32).view(np.float32)

        below = -last_of(np.maximum(self._zero - 1 - bins, 0))
        small = (np.maximum(bins - self._zero, 0) << shift).astype(np.int32).view(np.float32)
        # Of 1 - x at most that, on the grid of floats below 1.
        rest = last_of(np.clip(self._half + self._edge(0.5) - bins, 0, self._edge(0.5)))
        rest = np.where(bins == self._above - 1, 0.0, np.minimum(rest, 0.5))
        upper = 1 - np.floor(rest.astype(np.float64) * 2**24) / 2**24
        keys = np.clip(bins - self._above + self._edge(1.0), 0, self._edge(np.inf) - 1)
        above = (keys.astype(np.int64) << shift).astype(np.int32).view(np.float32)
        # 1.0 itself is the last bin below.
        above = np.where(above == 1, np.nextafter(np.float32(1), np.float32(2)), above)
        kinds = [bins < self._zero, bins < self._half, bins < self._above]
        return np.select(kinds, [below, small, upper.astype(np.float32)], above)


def default_bits(size: int) -> int:
    """Bits of the key, by the number of histograms: 16 for one, fewer for many."""
    return 16 if size <= 2 else 14 if size <= 16 else 12 if size <= 256 else 10
