"""The envelopes of speech in bands of a third of an octave, without its silent parts."""

from functools import lru_cache
from typing import NamedTuple

import jax
import numpy as np

from datarax._xp import lax, xp

RATE = 10_000
"""Samples a second of the signals."""
FRAME, HOP, BINS = 256, 128, 512
"""Samples of a frame, from one frame to the next, and of a Fourier transform."""
_BANDS, _LOWEST, _RANGE = 15, 150.0, 40.0
_TINY = float(np.finfo(np.float64).eps)
_HIGHEST = lax.Precision.HIGHEST


class Envelopes(NamedTuple):
    """The amplitudes in each band and frame of two signals, less the frames that are silent."""

    preds: jax.Array
    target: jax.Array
    """(bands, frames); meaningless in frames that do not count."""
    frames: jax.Array
    """How many frames there are; they come first."""


def frames_of(size: int) -> int:
    """How many frames the envelopes of signals of `size` samples have at most."""
    return max(0, -(-(size - FRAME) // HOP) - 1)


def envelopes(preds: jax.Array, target: jax.Array) -> Envelopes:
    """The envelopes of two signals (T,), at `RATE`.

    Frames of the target whose energy is 40 dB or more below that of the loudest are removed from
    both signals. What is left is joined, with overlapping windows, and cut into frames again.
    """
    window = xp.asarray(np.hanning(FRAME + 2)[1:-1], target.dtype)
    starts = np.arange(frames_of(len(target)) + 1) * HOP
    places = starts[:, None] + np.arange(FRAME)[None, :]
    x, y = target[places] * window[None, :], preds[places] * window[None, :]
    energy = 20 * xp.log10(xp.sqrt(xp.sum(x * x, -1)) + _TINY)
    kept = xp.max(energy) - _RANGE - energy < 0
    count = xp.sum(kept, dtype=xp.int32)
    # The frames that are kept move to the front, in their order.
    order = xp.argsort(~kept, stable=True)
    used = xp.arange(len(starts), dtype=xp.int32) < count

    def amplitudes(frames: jax.Array) -> jax.Array:
        frames = xp.where(used[:, None], frames[order], 0)
        first, second = frames[:, :HOP], frames[:, HOP:]
        joined = first + xp.pad(second[:-1], [(1, 0), *[(0, 0)] * (second.ndim - 1)])
        again = xp.concatenate([joined[:-1], joined[1:]], -1) * window[None, :]
        # As products: a Fourier transform of sharded signals would gather them.
        parts = xp.einsum(
            "ft,tbc->bfc", again, xp.asarray(_waves(), again.dtype), precision=_HIGHEST
        )
        power = xp.sum(xp.square(parts), -1)
        return xp.sqrt(
            xp.einsum("kb,bf->kf", xp.asarray(_bands(), power.dtype), power, precision=_HIGHEST)
        )

    return Envelopes(amplitudes(y), amplitudes(x), count - 1)


@lru_cache
def _waves() -> np.ndarray:
    """The cosine and the sine of each bin of a spectrum, (samples, bins, 2)."""
    turns = np.arange(FRAME)[:, None] * np.arange(BINS // 2 + 1) % BINS / BINS
    return np.stack([np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)], -1)


@lru_cache
def _bands() -> np.ndarray:
    """Which bins of a spectrum belong to each band, (bands, bins): 1 or 0."""
    frequencies = np.arange(BINS // 2 + 1) * (RATE / BINS)
    edges = _LOWEST * 2 ** ((2 * np.arange(_BANDS)[:, None] + np.array([-1, 1])) / 6)
    nearest = np.abs(frequencies - edges[..., None]).argmin(-1)
    bins = np.arange(len(frequencies))
    return (bins >= nearest[:, :1]) & (bins < nearest[:, 1:])
