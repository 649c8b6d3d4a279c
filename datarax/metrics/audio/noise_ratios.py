"""Ratios of the energies of a signal and of its noise or distortion, in decibels."""

import math
from typing import Self

import jax
import numpy as np

from datarax._checks import numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import lax, xp
from datarax.distributed.collectives import unsharded
from datarax.metrics.audio.signal_metric import SignalMetric
from datarax.numerics.scaling import one_where_zero


def decibels(signal: jax.Array, noise: jax.Array) -> jax.Array:
    """`10 log10(signal / noise)`: infinite without noise, and -inf without a signal."""
    # Without either, as of a silent prediction, the ratio is that of no signal.
    noise = xp.where(signal + noise > 0, noise, 1)
    # A difference of logarithms: the quotient of two energies could overflow.
    return 10 * (xp.log10(signal) - xp.log10(noise))


def _ratio(preds: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The ratio of the energies of the target and of the noise, and whether there is one."""
    energy = xp.sum(target**2)
    return decibels(energy, xp.sum((target - preds) ** 2)), energy > 0


def _scaled_ratio(preds: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same of the multiple of the target that is nearest to the prediction."""
    energy = xp.sum(target**2)
    scaled = xp.sum(preds * target) / one_where_zero(energy) * target
    signal, noise = xp.sum(scaled**2), xp.sum((preds - scaled) ** 2)
    # What is left of a multiple of the target is the rounding of `scaled`.
    rounding = (8 * xp.finfo(noise.dtype).eps) ** 2
    noise = xp.where(noise <= rounding * signal, 0, noise)
    return decibels(signal, noise), energy > 0


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
    """True if the mean of each signal is subtracted first."""

    def score(self, preds: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self.zero_mean:
            preds, target = _centred(preds), _centred(target)
        return _ratio(preds, target)


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
    """True if the mean of each signal is subtracted first."""

    def score(self, preds: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self.zero_mean:
            preds, target = _centred(preds), _centred(target)
        return _scaled_ratio(preds, target)


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


class SASDR(SignalMetric):
    """The source-aggregated signal-to-distortion ratio in decibels, as a mean over mixtures.

    `10 log10(sum(s**2) / sum((preds - s)**2))`, with both sums over all sources of a mixture, and
    `s = a * target`: one factor for all sources, `a = sum(preds * target) / sum(target**2)`, or
    `a = 1` without `scale_invariant`. So a source that is silent for the whole signal counts with
    its distortion, where the mean of the `SISDR` of each source has no value. Infinite if every
    prediction is that multiple of its source. A mixture whose sources are all silent has no ratio:
    it is invalid. The sources are compared in the order given. No data gives NaN.

    T. von Neumann and others (2022), SA-SDR: a novel loss function for separation of meeting style
    data, https://doi.org/10.1109/ICASSP43922.2022.9746757.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SASDR
        >>> target = jnp.array([[[1.0, -1.0, 1.0], [0.0, 0.0, 0.0]]])  # the second is silent
        >>> preds = jnp.array([[[1.0, -1.0, 1.0], [0.1, 0.0, 0.1]]])
        >>> print(round(float(SASDR().update(preds, target).compute()), 3))
        21.761
    """

    terms_by_row = True
    several = True
    scale_invariant: bool = True
    """True if the sources are scaled by one factor that fits them best to the predictions."""
    zero_mean: bool = False
    """True if the mean of each source is subtracted first."""

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the mixtures folded in; no communication.

        Args:
            preds: the predicted sources of each mixture (..., S, T), of any real dtype.
            target: the sources, of the same shape. A mixture that holds a NaN or an infinity, or
                whose sources are all silent, is invalid.
            weights: of the mixtures; broadcast against the leading axes.

        Raises:
            MetricInputError: the shapes differ, or have less than two axes.
        """
        return super().update(preds, target, weights=weights)

    def score(self, preds: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self.zero_mean:
            preds, target = (x - xp.mean(x, -1, keepdims=True) for x in (preds, target))
        ratio = _scaled_ratio if self.scale_invariant else _ratio
        return ratio(preds, target)


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


def solve_toeplitz(column: jax.Array, right: jax.Array) -> jax.Array:
    """The solution x of `A x = right`, where `A[i, j] = column[|i - j|]` is positive definite.

    The recursion of N. Levinson (1946), in L steps with L numbers of memory. Its residual is
    comparable to that of a Cholesky factorization: G. Cybenko (1980),
    https://doi.org/10.1137/0901021.

    Args:
        column: the first column of the matrix, (L,).
        right: (L,).
    """
    zero = column[:1] * 0 + right[:1] * 0
    rest = column[1:] / column[0]

    def shifted(x: jax.Array) -> jax.Array:
        return xp.concatenate([zero, x[:-1]])

    def larger(
        now: tuple[jax.Array, jax.Array, jax.Array], b: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], None]:
        # Of the leading n equations: the solutions for the first and for the last unit vector, and
        # that for `right`, backwards. All entries from n on are zero.
        first, last, backwards = now
        after = shifted(last)
        error, missing = xp.sum(rest * last[:-1]), xp.sum(rest * backwards[:-1])
        scale = 1 / (1 - error * error)
        first, last = scale * (first - error * after), scale * (after - error * first)
        return (first, last, shifted(backwards) + (b - missing) * first), None

    right = right / column[0]
    unit = xp.concatenate([zero + 1, rest * 0])
    start = unit, unit, unit * right[0]
    (_, _, backwards), _ = lax.scan(larger, start, right[1:])
    return backwards[::-1]


_SOLUTIONS = {4: 4, 8: 2}  # by the bytes of the dtype


class SDR(SignalMetric):
    """The signal-to-distortion ratio of BSS-eval in decibels, as a mean over signals.

    `10 log10(sum(s**2) / sum((preds - s)**2))`, where `s` is the target after the filter of
    `filter_length` taps that makes it nearest to the prediction. So a delay up to that length, or
    another microphone, is no distortion. The filter solves the normal equations, whose Toeplitz
    matrix is the autocorrelation of the target. Correlations and the filtered target are computed
    by FFT.

    Of signals that are sharded over devices, XLA gathers what an FFT takes, unless each device has
    an update of its own: use `per_device`.

    The ratio of a prediction that is a filtered target shows how it is rounded: some 310 dB if the
    two are equal, some 150 dB if it was filtered in float32; it may be infinite. A target that is
    silent (all zero) has no ratio: it is invalid. No data gives NaN.

    As `mir_eval.separation.bss_eval_sources` of one source. E. Vincent, R. Gribonval and C. Fevotte
    (2006), Performance measurement in blind audio source separation,
    https://doi.org/10.1109/TSA.2005.858005.

    Raises:
        MetricInputError: a `filter_length` that is not an integer of at least 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SDR
        >>> preds, target = jnp.array([[0.0, 1.0, 2.0, 3.0]]), jnp.array([[1.0, 2.0, 3.0, 4.0]])
        >>> print(round(float(SDR(filter_length=2).update(preds, target).compute()), 3))
        13.196
    """

    filter_length: int = 512
    """The number of taps of the filter."""

    def __post_init__(self) -> None:
        positive_int(self.filter_length, "filter_length")

    def score(self, preds: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
        energy = xp.sum(target**2)
        target = xp.where(energy > 0, target, 1)  # whose matrix can be solved
        taps, length = self.filter_length, len(target) + self.filter_length - 1
        size = 1 << (length - 1).bit_length()
        spectrum = xp.fft.rfft(target, size)

        def correlated(x: jax.Array) -> jax.Array:
            """The products of x with the target, delayed by 0 to `taps - 1`."""
            return xp.fft.irfft(xp.fft.rfft(x, size) * xp.conj(spectrum), size)[:taps]

        column, padded = correlated(target), xp.pad(preds, (0, taps - 1))
        # Rounded, the matrix of a smooth target may not be positive definite: so its diagonal is
        # raised a little. Each solution for the residual takes back most of what that changes.
        scale = np.ones(taps, column.dtype)
        scale[0] += 256 * float(xp.finfo(column.dtype).eps)
        raised = column * scale

        def solved(_: PyTree, found: PyTree) -> PyTree:
            coefficients, _, rest = found
            coefficients = coefficients + solve_toeplitz(raised, correlated(rest))
            filtered = xp.fft.irfft(xp.fft.rfft(coefficients, size) * spectrum, size)[:length]
            return coefficients, filtered, padded - filtered

        found = xp.zeros_like(column), xp.zeros_like(padded), padded
        rounds = _SOLUTIONS[column.dtype.itemsize]
        if column.dtype == xp.float64:  # a loop of two rounds takes 1.3 times as long on a CPU
            for i in range(rounds):
                found = solved(i, found)
        else:
            # Zeros, so that all arrays vary over the axes of `shard_map` over which the signals do.
            zero = (column[:1] + padded[:1]) * 0
            found = lax.fori_loop(0, rounds, solved, tuple(x + zero for x in found))
        _, filtered, rest = found
        signal, noise = xp.sum(filtered**2), xp.sum(rest**2)
        return decibels(signal, noise), energy > 0
