"""The signal-to-distortion ratio of BSS-eval, which allows the target to be filtered."""

import jax

from datarax._checks import positive_int
from datarax._xp import at, lax, xp
from datarax.metrics.audio.noise_ratios import decibels
from datarax.metrics.audio.signal_metric import SignalMetric


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

    `10 log10(sum(s**2) / sum((preds - s)**2))`, where `s` is what a filter of `filter_length` taps
    makes of the target, and is nearest to the prediction. So a delay up to that length, or another
    microphone, is no distortion. The filter solves the normal equations, whose Toeplitz matrix is
    the autocorrelation of the target. Correlations and the filtered target are computed by FFT.

    Of signals that are sharded over devices, XLA gathers what an FFT takes, unless each device has
    an update of its own: use `per_device`.

    A prediction that is a filtered target has a ratio of some 200 dB, or an infinite one. A target
    that is silent (all zero) has no ratio: it is invalid. No data gives NaN.

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
    """How many taps the filter has."""

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
        raised = at(column)[0].multiply(1 + 256 * float(xp.finfo(column.dtype).eps))
        coefficients, filtered, rest = xp.zeros_like(column), xp.zeros_like(padded), padded
        for _ in range(_SOLUTIONS[column.dtype.itemsize]):
            coefficients = coefficients + solve_toeplitz(raised, correlated(rest))
            filtered = xp.fft.irfft(xp.fft.rfft(coefficients, size) * spectrum, size)[:length]
            rest = padded - filtered
        signal, noise = xp.sum(filtered**2), xp.sum(rest**2)
        value, _ = decibels(signal, xp.where(signal + noise > 0, noise, 1))
        return value, energy > 0
