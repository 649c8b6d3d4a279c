"""Resampling of signals by a rational factor."""

from functools import lru_cache
from math import ceil, gcd

import jax
import numpy as np

from datarax._xp import lax, xp


def resample(x: jax.Array, up: int, down: int) -> jax.Array:
    """A signal (T,) at `up / down` times its rate: `ceil(T * up / down)` samples.

    The filter is that of the function `resample` of Octave: a sinc in a Kaiser window, with 60 dB
    of rejection. Sample m of the result is `sum over j of x[j] * h(m * down - j * up)`, as by
    `scipy.signal.resample_poly`.
    """
    up, down = up // gcd(up, down), down // gcd(up, down)
    size = -(-len(x) * up // down)
    if up == down or not size:
        return x
    # Of `up` results in turn, each has a filter of its own; all start `down` samples further on.
    filters, before = _filters(up, down)
    blocks, width = -(-size // up), filters.shape[1]
    after = max(0, (blocks - 1) * down + width - before - len(x))
    padded = xp.pad(x, (before, after))[: (blocks - 1) * down + width]
    kernel = xp.asarray(filters[:, None], x.dtype)
    found = lax.conv_general_dilated(
        padded[None, None], kernel, (down,), "VALID", precision=lax.Precision.HIGHEST
    )
    return found[0].T.reshape(-1)[:size]


@lru_cache
def _filters(up: int, down: int) -> tuple[np.ndarray, int]:
    """The filter (up, width) of each of `up` results in turn, and how far before it starts."""
    cutoff, rejection = 1 / (2 * max(up, down)), 60.0
    half = ceil((rejection - 8) / (28.714 * cutoff / 10))
    t = np.arange(-half, half + 1)
    h = np.sinc(2 * cutoff * t) * np.kaiser(2 * half + 1, 0.1102 * (rejection - 8.7))
    h *= up / h.sum()
    # Result i is the sum over s of x[s] * h(i * down - s * up).
    first, last = -(half // up), (half + (up - 1) * down) // up
    place = half + np.arange(up)[:, None] * down - np.arange(first, last + 1) * up
    inside = (place >= 0) & (place <= 2 * half)
    return np.where(inside, h[np.clip(place, 0, 2 * half)], 0), -first
