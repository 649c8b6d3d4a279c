"""Quality of images of many bands, as of satellites: angles, relative errors, fine detail."""

import math

import jax

from datarax._checks import real
from datarax._errors import MetricInputError
from datarax._xp import xp
from datarax.metrics.vision.image_score import ImageScore


class SAM(ImageScore):
    """Spectral angle mapper: the angle between the spectra of a pixel, in radians.

    arccos(p . t / (|p| |t|)) of the channels of each pixel, the mean over pixels and images; from 0
    to pi. A pixel that is zero in either image has no angle and is left out; an image without any
    other pixel is invalid. Accurate for small angles too, where an arc cosine is not. No data gives
    NaN. Not in scikit-image. F. A. Kruse and others (1993),
    https://doi.org/10.1016/0034-4257(93)90013-N.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SAM
        >>> preds, target = jnp.array([[[[1.0, 0.0]]]]), jnp.array([[[[2.0, 2.0]]]])
        >>> print(round(float(SAM().update(preds, target).compute()), 4))
        0.7854
    """

    higher_is_better = False

    def scores(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        (p, p_some), (t, t_some) = unit_spectra(preds), unit_spectra(target)
        # W. Kahan: twice the angle of the triangle of both unit vectors.
        angle = 2 * xp.arctan2(_norm(p - t), _norm(p + t))
        some = p_some & t_some
        count = xp.sum(some, (1, 2), dtype=angle.dtype)
        total = xp.sum(xp.where(some, angle, 0), (1, 2))
        return xp.where(count > 0, total / xp.maximum(count, 1), xp.nan)


class ERGAS(ImageScore):
    """Relative dimensionless global error of synthesis, the mean over images.

    100 / ratio * sqrt(mean over channels of MSE / m^2) for each image, with m the mean of the
    channel in the target; 0 for equal images. Infinite or invalid where m is 0. No data gives NaN.
    Not in scikit-image. L. Wald (2000), Quality of high resolution synthesised images: is there a
    simple criterion?, https://hal.science/hal-00395027.

    Raises:
        MetricInputError: a ratio that is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ERGAS
        >>> preds, target = jnp.full((1, 4, 4, 2), 1.1), jnp.full((1, 4, 4, 2), 1.0)
        >>> print(round(float(ERGAS(ratio=4).update(preds, target).compute()), 4))
        2.5
    """

    higher_is_better = False
    ratio: float = 4
    """The number of pixels of the sharp image along a pixel of the coarse one."""

    def __post_init__(self) -> None:
        self.ratio = real(self.ratio, "ratio")
        if not 0 < self.ratio < math.inf:
            raise MetricInputError(f"ratio={self.ratio}; expected a positive number")

    def scores(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        mean = xp.mean(target, self.axes)
        relative = xp.mean(_mean_squares(preds, target) / (mean * mean), -1)
        return 100 / self.ratio * xp.sqrt(relative)


class RASE(ImageScore):
    """Relative average spectral error in percent, the mean over images.

    100 / m * sqrt(MSE) for each image, with MSE the mean over channels and m the mean of the whole
    target; 0 for equal images. Infinite or invalid where m is 0. No data gives NaN. Not in
    scikit-image. M. Gonzalez-Audicana and others (2004),
    https://doi.org/10.1109/TGRS.2004.825593.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RASE
        >>> preds, target = jnp.full((1, 4, 4, 2), 1.1), jnp.full((1, 4, 4, 2), 1.0)
        >>> print(round(float(RASE().update(preds, target).compute()), 4))
        10.0
    """

    higher_is_better = False

    def scores(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        mean = xp.abs(xp.mean(target, (1, 2, 3)))
        return 100 * xp.sqrt(xp.mean(_mean_squares(preds, target), -1)) / mean


class SpatialCorrelation(ImageScore):
    """Correlation of the fine detail of two images, the mean over channels and images: SCC.

    Pearson's correlation, over the pixels of a channel, of both images after the high-pass filter
    with 8 in the middle and -1 around it. Only pixels with all neighbours count. An image with a
    channel without detail, where one of them is constant or a plane, is invalid. No data gives NaN.
    Not in scikit-image. J. Zhou, D. L. Civco and J. A. Silander (1998),
    https://doi.org/10.1080/014311698215973.

    Example:
        >>> import jax
        >>> from datarax.metrics import SpatialCorrelation
        >>> target = jax.random.uniform(jax.random.key(0), (2, 16, 16, 3))
        >>> metric = SpatialCorrelation().update(0.5 * target + 3, target)
        >>> print(round(float(metric.compute()), 4))
        1.0
    """

    higher_is_better = True
    least_size = 3

    def scores(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        (a, a_some), (b, b_some) = _detail(preds), _detail(target)
        # Of channels with mean 0 and norm 1, the product is Pearson's correlation.
        correlation = xp.sum(a * b, self.axes)
        return xp.mean(xp.where(a_some & b_some, correlation, xp.nan), -1)


def unit_spectra(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The channels of each pixel divided by their norm, and the mask of pixels that have one."""
    greatest = xp.max(xp.abs(x), -1, keepdims=True)
    some = greatest > 0
    # Divided by the greatest first, so that no square overflows or underflows.
    x = x / xp.where(some, greatest, 1)
    return x / xp.where(some, _norm(x)[..., None], 1), some[..., 0]


def _norm(x: jax.Array) -> jax.Array:
    return xp.sqrt(xp.sum(x * x, -1))


def _mean_squares(preds: jax.Array, target: jax.Array) -> jax.Array:
    """The mean square of the error of each channel, (N, C)."""
    return xp.mean((preds - target) ** 2, (1, 2))


def _detail(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """High-pass filtered channels, less their mean and of norm 1; and which have detail, (N, C)."""
    x = x - xp.mean(x, (1, 2), keepdims=True)
    rows = x[:, :-2] + x[:, 1:-1] + x[:, 2:]
    around = rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:]
    # `around` is the sum of all 3 x 3 pixels, so 9 gives the weight 8 in the middle.
    high = 9 * x[:, 1:-1, 1:-1] - around
    high = high - xp.mean(high, (1, 2), keepdims=True)
    norm = xp.sqrt(xp.sum(high * high, (1, 2), keepdims=True))
    # What is left of a channel without detail is rounding, of sums of 18 pixels.
    rounding = 64 * float(xp.finfo(x.dtype).eps) * xp.sqrt(xp.sum(x * x, (1, 2), keepdims=True))
    some = norm > rounding
    return high / xp.where(some, norm, 1), some[:, 0, 0]
