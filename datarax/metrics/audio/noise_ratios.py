"""Ratios of the energies of a signal and of the noise in its prediction, in decibels."""

import math
from typing import Self

import jax

from datarax._checks import numeric
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.distributed.collectives import unsharded
from datarax.metrics.audio.signal_metric import SignalMetric
from datarax.numerics.scaling import one_where_zero


def decibels(signal: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`10 log10(signal / noise)`, and whether it is defined: not for 0 / 0.

    Infinite without noise.
    """
    defined = (signal > 0) | (noise > 0)
    ratio = xp.log10(xp.where(defined, signal, 1)) - xp.log10(xp.where(defined, noise, 1))
    return 10 * ratio, defined


class SNR(SignalMetric):
    """The signal-to-noise ratio in decibels, as a mean over signals.

    `10 log10(sum(target**2) / sum((target - preds)**2))`. A prediction that equals its target has
    no noise: its ratio, and any mean with it, is infinite. A target that is silent (all zero) has
    no ratio: it is invalid. No data gives NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SNR
        >>> preds, target = jnp.array([[3.0, 3.0, 3.0]]), jnp.array([[2.5, 3.5, 3.0]])
        >>> print(round(float(SNR().update(preds, target).compute()), 4))
        17.4036
    """

    zero_mean: bool = False
    """Whether the mean of each signal is subtracted first."""

    def score(self, preds: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self.zero_mean:
            preds, target = _centred(preds), _centred(target)
        energy = xp.sum(target**2)
        value, defined = decibels(energy, xp.sum((target - preds) ** 2))
        return value, defined & (energy > 0)


class SISDR(SignalMetric):
    """The scale-invariant signal-to-distortion ratio in decibels, as a mean over signals.

    `10 log10(sum(s**2) / sum((preds - s)**2))`, where `s = a * target` is the multiple of the
    target nearest to the prediction, `a = sum(preds * target) / sum(target**2)`. Infinite if the
    prediction is a multiple of its target, up to rounding; and -inf if it is silent or orthogonal
    to it. A target that is silent (all zero) has no ratio: it is invalid. No data gives NaN.

    J. Le Roux and others (2019), SDR: half-baked or well done?,
    https://doi.org/10.1109/ICASSP.2019.8683855.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SISDR
        >>> preds, target = jnp.array([[2.5, 0.0, 2.0, 8.0]]), jnp.array([[3.0, -0.5, 2.0, 7.0]])
        >>> print(round(float(SISDR().update(preds, target).compute()), 4))
        18.403
    """

    zero_mean: bool = False
    """Whether the mean of each signal is subtracted first."""

    def score(self, preds: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self.zero_mean:
            preds, target = _centred(preds), _centred(target)
        energy = xp.sum(target**2)
        scaled = xp.sum(preds * target) / one_where_zero(energy) * target
        signal, noise = xp.sum(scaled**2), xp.sum((preds - scaled) ** 2)
        # What is left of a multiple of the target is the rounding of `scaled`.
        rounding = (8 * xp.finfo(noise.dtype).eps) ** 2
        noise = xp.where(noise <= rounding * signal, 0, noise)
        # A silent prediction has neither signal nor noise, and its ratio is that of no signal.
        value, _ = decibels(signal, xp.where(signal + noise > 0, noise, 1))
        return value, energy > 0


class SISNR(SISDR):
    """The scale-invariant signal-to-noise ratio in decibels: `SISDR` of signals less their means.

    No data gives NaN. Y. Luo and N. Mesgarani (2018), TasNet, section 2.3,
    https://arxiv.org/abs/1711.00541.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SISNR
        >>> preds, target = jnp.array([[2.5, 0.0, 2.0, 8.0]]), jnp.array([[3.0, -0.5, 2.0, 7.0]])
        >>> print(round(float(SISNR().update(preds, target).compute()), 4))
        15.0918
    """

    zero_mean: bool = True


class ComplexSISNR(SISDR):
    """The scale-invariant signal-to-noise ratio of complex spectra, as a mean over spectra.

    `SISDR` of all real and imaginary parts of a spectrum as one signal: the scale `a` is real, so
    that a turned phase is noise. No data gives NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ComplexSISNR
        >>> preds = jnp.array([[[2j, 1.0], [1.0, 0.0]]])
        >>> target = jnp.array([[[2j, 1.0], [0.0, 0.0]]])
        >>> print(round(float(ComplexSISNR().update(preds, target).compute()), 4))
        6.9897
    """

    terms_by_row = True

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the spectra folded in; no communication.

        Args:
            preds: complex (..., F, T), or real (..., F, T, 2) with real and imaginary parts.
            target: spectra of the same shape. One that holds a NaN or an infinity, and a silent
                one, is invalid.
            weights: of the spectra; broadcast against the leading axes.

        Raises:
            MetricInputError: the shapes differ, or are no spectra.
        """
        return super().update(_parts(preds, "preds"), _parts(target, "target"), weights=weights)


def _centred(x: jax.Array) -> jax.Array:
    return x - xp.mean(x)


def _parts(x: ArrayLike, name: str) -> jax.Array:
    """A spectrum (..., F, T) or (..., F, T, 2) as a signal of its parts."""
    x = xp.asarray(x)
    if xp.iscomplexobj(x):
        x = xp.stack([x.real, x.imag], -1)
    x = numeric(x, name)
    if x.ndim < 3 or x.shape[-1] != 2:
        raise MetricInputError(
            f"{name} of shape {x.shape} and dtype {x.dtype}; expected complex spectra (..., F, T), "
            f"or real ones (..., F, T, 2)"
        )
    for axis in (-1, -2, -3):
        x = unsharded(x, axis)
    return x.reshape(*x.shape[:-3], math.prod(x.shape[-3:]))
