"""The intelligibility of speech."""

from functools import lru_cache
from math import ceil, gcd

import jax
import numpy as np

from datarax._checks import positive_int
from datarax._xp import lax, xp
from datarax.metrics.audio.signal_metric import SignalMetric

RATE = 10_000
"""Samples a second of the signals."""
FRAME, HOP, BINS = 256, 128, 512
"""Samples of a frame, from one frame to the next, and of a Fourier transform."""
_BANDS, _LOWEST, _RANGE = 15, 150.0, 40.0
_TINY = float(np.finfo(np.float64).eps)
_HIGHEST = lax.Precision.HIGHEST


def frames_of(size: int) -> int:
    """Returns the most frames that the envelopes of signals of `size` samples have."""
    return max(0, -(-(size - FRAME) // HOP) - 1)


def envelopes(preds: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The envelopes of two signals (T,), at `RATE`.

    Frames of the target whose energy is 40 dB or more below that of the loudest are removed from
    both signals. What is left is joined, with overlapping windows, and cut into frames again.

    Returns:
        The amplitudes of both signals, (bands, frames), and the number of frames that count. These
        come first; in the others the amplitudes have no meaning.
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
        joined = first + xp.pad(second[:-1], [(1, 0), (0, 0)])
        again = xp.concatenate([joined[:-1], joined[1:]], -1) * window[None, :]
        # As products: a Fourier transform of sharded signals would gather them.
        waves, bands = (xp.asarray(each, again.dtype) for each in (_waves(), _bands()))
        parts = lax.dot(again, waves.reshape(waves.shape[0], -1), precision=_HIGHEST)
        power = xp.sum(xp.square(parts.reshape(-1, *waves.shape[1:])), -1)
        return xp.sqrt(lax.dot(bands, power.T, precision=_HIGHEST))

    return amplitudes(y), amplitudes(x), count - 1


@lru_cache
def _waves() -> np.ndarray:
    """The cosine and the sine of each bin of a spectrum, (samples, bins, 2)."""
    turns = np.arange(FRAME)[:, None] * np.arange(BINS // 2 + 1) % BINS / BINS
    return np.stack([np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)], -1)


@lru_cache
def _bands() -> np.ndarray:
    """Returns 1 for the bins of a spectrum that belong to a band, else 0: (bands, bins)."""
    frequencies = np.arange(BINS // 2 + 1) * (RATE / BINS)
    # Third octaves: the edges are a sixth of an octave from the centre `_LOWEST * 2**(i / 3)`.
    edges = _LOWEST * 2 ** ((2 * np.arange(_BANDS)[:, None] + np.array([-1, 1])) / 6)
    nearest = np.abs(frequencies - edges[..., None]).argmin(-1)
    bins = np.arange(len(frequencies))
    return (bins >= nearest[:, :1]) & (bins < nearest[:, 1:])


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
        padded[None, None], kernel, (down,), "VALID", precision=_HIGHEST
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


_SEGMENT = 30  # frames, 384 ms
_CLIP = 1 + 10 ** (15 / 20)  # -15 dB
_TOO_SHORT = 1e-5


class STOI(SignalMetric):
    """The short-time objective intelligibility of speech, as a mean over signals.

    The correlation of the envelopes of both signals, in 15 bands of a third of an octave and in
    segments of 384 ms, as a mean over bands and segments: near 1 for intelligible speech. Signals
    are resampled to 10 kHz, and frames in which the target is silent are removed, on the device:
    they move behind the others, as shapes are fixed.

    If fewer than 30 frames are left, the value is 1e-5. A silent target gives 0. No data gives NaN.

    As `pystoi.stoi`, which for `extended` adds noise of the size of rounding errors. C. H. Taal and
    others (2011), https://doi.org/10.1109/TASL.2011.2114881; extended: J. Jensen and C. H. Taal
    (2016), https://doi.org/10.1109/TASLP.2016.2585878.

    Raises:
        MetricInputError: a `sample_rate` that is not an integer of at least 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import STOI
        >>> t = jnp.arange(8000.0)
        >>> target = jnp.sin(t) * jnp.sin(t / 50) + jnp.sin(t / 3) * jnp.sin(t / 70)
        >>> preds = target + jnp.sin(t * t / 9000)
        >>> metric = STOI(sample_rate=10000)
        >>> print(round(float(metric.update(preds[None], target[None]).compute()), 1))
        0.5
    """

    sample_rate: int
    """Samples a second."""
    extended: bool = False
    """True to compute the extended measure, ESTOI, for noise that is modulated."""

    def __post_init__(self) -> None:
        positive_int(self.sample_rate, "sample_rate")

    def score(self, preds: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
        preds, target = (resample(x, RATE, self.sample_rate) for x in (preds, target))
        segments = frames_of(len(target)) - _SEGMENT + 1
        short, defined = xp.asarray(_TOO_SHORT, target.dtype), xp.ones((), xp.bool_)
        if segments < 1:
            return short, defined
        *amplitudes, frames = envelopes(preds, target)
        places = np.arange(segments)[:, None] + np.arange(_SEGMENT)[None, :]
        y, x = (xp.moveaxis(each[:, places], 1, 0) for each in amplitudes)
        count = frames - (_SEGMENT - 1)
        used = xp.arange(segments, dtype=xp.int32) < count
        # A mean over bands or over frames; each segment has the same number of them.
        each = xp.mean(_similarity(y, x) if self.extended else _correlations(y, x), -1)
        total = xp.sum(xp.where(used, each, 0)) / xp.maximum(count, 1).astype(each.dtype)
        return xp.where(count > 0, total, short), defined


def _correlations(y: jax.Array, x: jax.Array) -> jax.Array:
    """Of segments (S, bands, frames): the correlation of y, scaled and clipped, and x by band."""
    y = y * (_norm(x, -1) / (_norm(y, -1) + _TINY))
    y, x = (each - xp.mean(each, -1, keepdims=True) for each in (xp.minimum(y, x * _CLIP), x))
    return xp.sum(y / (_norm(y, -1) + _TINY) * (x / (_norm(x, -1) + _TINY)), -1)


def _similarity(y: jax.Array, x: jax.Array) -> jax.Array:
    """Of segments (S, bands, frames): the correlation over bands of both by frame."""
    for axis in (-1, -2):
        y, x = (each - xp.mean(each, axis, keepdims=True) for each in (y, x))
        y, x = (each / (_norm(each, axis) + _TINY) for each in (y, x))
    return xp.sum(y * x, -2)


def _norm(x: jax.Array, axis: int) -> jax.Array:
    return xp.sqrt(xp.sum(x * x, axis, keepdims=True))
