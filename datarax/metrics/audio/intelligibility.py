"""How intelligible speech is."""

import jax
import numpy as np

from datarax._checks import positive_int
from datarax._xp import xp
from datarax.metrics.audio.resampling import resample
from datarax.metrics.audio.short_time import RATE, envelopes, frames_of
from datarax.metrics.audio.signal_metric import SignalMetric

_SEGMENT = 30  # frames, 384 ms
_CLIP = 1 + 10 ** (15 / 20)  # -15 dB
_TINY = float(np.finfo(np.float64).eps)
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
    """Whether to compute the extended measure, ESTOI, for noise that is modulated."""

    def __post_init__(self) -> None:
        positive_int(self.sample_rate, "sample_rate")

    def score(self, preds: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
        preds, target = (resample(x, RATE, self.sample_rate) for x in (preds, target))
        segments = frames_of(len(target)) - _SEGMENT + 1
        short, defined = xp.asarray(_TOO_SHORT, target.dtype), xp.ones((), xp.bool_)
        if segments < 1:
            return short, defined
        seen = envelopes(preds, target)
        places = np.arange(segments)[:, None] + np.arange(_SEGMENT)[None, :]
        y, x = (xp.moveaxis(each[:, places], 1, 0) for each in seen[:2])
        count = seen.frames - (_SEGMENT - 1)
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
