"""Similarity of images within windows: SSIM at one scale and at several, UQI, and VIF."""

from typing import Any, NamedTuple

import jax

from datarax._checks import positive_int, real
from datarax._errors import MetricInputError
from datarax._xp import xp
from datarax.metrics.vision.image_score import ImageScore, RangedScore, VolumeScore
from datarax.metrics.vision.image_windows import (
    LocalMoments,
    Taps,
    gaussian_taps,
    halved,
    local_moments,
    uniform_taps,
    window_means,
)

# Of VIF, for pixels from 0 to 255: how many scales, the variance of the noise of the eye, and the
# variance below which a window counts as constant. As in the code of its authors.
_SCALES, _NOISE, _LEAST = 4, 2.0, 1e-10


class Similarity(NamedTuple):
    """The two factors of SSIM, as means over the windows of each image and channel, (N, C)."""

    both: jax.Array
    """Of the product of luminance and contrast: SSIM."""
    contrast: jax.Array
    """Of contrast and structure alone."""


class StructuralMetric(VolumeScore):
    """A metric of the similarity of two images within Gaussian windows."""

    sigma: float = 1.5
    """The standard deviation of the window in pixels."""
    filter_size: int | None = None
    """The width of the window in pixels, an odd number. `None`: the window ends at 3.5 standard
    deviations, so it has 11 pixels for a `sigma` of 1.5."""
    k1: float = 0.01
    """Stabilises the luminance, in units of `data_range`."""
    k2: float = 0.03
    """Stabilises the contrast, in units of `data_range`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sigma, self.k1, self.k2 = (real(getattr(self, k), k) for k in ("sigma", "k1", "k2"))
        if not 0.2 <= self.sigma < 1e4 or min(self.k1, self.k2) <= 0:
            raise MetricInputError(
                f"sigma={self.sigma}, k1={self.k1}, k2={self.k2}; expected sigma of at least 0.2 "
                f"pixels, and k1 and k2 that are positive"
            )
        if self.filter_size is not None:
            positive_int(self.filter_size, "filter_size", least=3)
            if self.filter_size % 2 == 0:
                raise MetricInputError(f"filter_size={self.filter_size}; expected an odd number")

    @property
    def taps(self) -> Taps:
        """The window along one axis."""
        if self.filter_size is not None:
            return gaussian_taps(self.filter_size // 2, self.sigma)
        return gaussian_taps(int(3.5 * self.sigma + 0.5), self.sigma)

    @property
    def least_size(self) -> int:  # type: ignore[override]
        return len(self.taps)

    def similarity(self, preds: jax.Array, target: jax.Array) -> Similarity:
        """The similarity of images in units of their range."""
        local = local_moments(preds, target, self.taps, self.axes)
        # (2 a b + c) / (a^2 + b^2 + c) = 1 - (a - b)^2 / (a^2 + b^2 + c), likewise of variances.
        # The second form keeps the digits of images that are nearly equal.
        squares = local.mean_x**2 + local.mean_y**2
        luminance = 1 - (local.mean_x - local.mean_y) ** 2 / (squares + self.k1**2)
        contrast = 1 - local.var_difference / (local.var_x + local.var_y + self.k2**2)
        return Similarity(*(xp.mean(x, self.axes) for x in (luminance * contrast, contrast)))


class SSIM(StructuralMetric):
    """Structural similarity, the mean over windows, channels and images.

    (2 m_x m_y + C1) (2 s_xy + C2) / ((m_x^2 + m_y^2 + C1) (s_x^2 + s_y^2 + C2)), with means and
    population variances in a Gaussian window, C1 = (k1 R)^2, C2 = (k2 R)^2, and R the `data_range`.
    Only windows within the image count. From -1 to 1; 1 for equal images. No data gives NaN. As
    `skimage.metrics.structural_similarity(gaussian_weights=True, use_sample_covariance=False)` of
    each image. Z. Wang and others (2004), https://doi.org/10.1109/TIP.2003.819861.

    Raises:
        MetricInputError: a `data_range` that is not positive, or none for pixels whose dtype is
            neither uint8 nor uint16; a `filter_size` that is not odd; images that are smaller than
            the window.

    Example:
        >>> import jax
        >>> from datarax.metrics import SSIM
        >>> target = jax.random.uniform(jax.random.key(0), (2, 16, 16, 3))
        >>> metric = SSIM(data_range=1.0).update(0.5 * target, target)
        >>> print(round(float(metric.compute()), 3))
        0.641
    """

    value_range = (-1.0, 1.0)

    def scores(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        return xp.mean(self.similarity(preds, target).both, -1)


class MSSSIM(StructuralMetric):
    """Multi-scale structural similarity, the mean over channels and images.

    The product over scales of the contrast of SSIM to the power of `betas`, and at the last scale
    of SSIM itself. The factors are means over the windows of a channel. Each scale halves the
    images: means of 2 x 2 pixels, without an odd last row or column. A factor that is negative
    counts as 0, so the result is from 0 to 1. No data gives NaN. Not in scikit-image. Z. Wang,
    E. P. Simoncelli and A. C. Bovik (2003), https://doi.org/10.1109/ACSSC.2003.1292216.

    Raises:
        MetricInputError: as `SSIM`; images that are smaller than the window at the last scale,
            176 pixels for five scales.

    Example:
        >>> import jax
        >>> from datarax.metrics import MSSSIM
        >>> target = jax.random.uniform(jax.random.key(0), (2, 24, 24, 3))
        >>> metric = MSSSIM(data_range=1.0, betas=(0.4, 0.6)).update(0.5 * target, target)
        >>> print(round(float(metric.compute()), 3))
        0.704
    """

    betas: tuple[float, ...] = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
    """The power of each scale, the finest first; their number is that of scales."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.betas = tuple(real(beta, "betas") for beta in self.betas)
        if not self.betas or min(self.betas) <= 0:
            raise MetricInputError(f"betas={self.betas}; expected positive powers, one by scale")

    @property
    def least_size(self) -> int:
        return len(self.taps) * 2 ** (len(self.betas) - 1)

    def scores(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        product, last = 1.0, len(self.betas) - 1
        for scale, beta in enumerate(self.betas):
            seen = self.similarity(preds, target)
            factor = seen.both if scale == last else seen.contrast
            # A power of a negative number would be NaN.
            product = product * xp.maximum(factor, 0) ** beta
            if scale < last:
                preds, target = halved(preds, self.axes), halved(target, self.axes)
        return xp.mean(product, -1)


def universal_quality(local: LocalMoments) -> jax.Array:
    """The universal quality index of each window."""
    spread, squares = local.var_x + local.var_y, local.mean_x**2 + local.mean_y**2
    flat, black = spread <= local.noise, squares == 0
    contrast = xp.where(flat, 1, 2 * local.covariance / xp.where(flat, 1, spread))
    product = 2 * local.mean_x * local.mean_y
    luminance = xp.where(black, 1, product / xp.where(black, 1, squares))
    # Means of zero around which the images vary have no luminance in common.
    luminance = xp.where(black & ~flat, 0, luminance)
    return contrast * luminance


class UQI(ImageScore):
    """Universal image quality index, the mean over windows, channels and images.

    4 s_xy m_x m_y / ((s_x^2 + s_y^2) (m_x^2 + m_y^2)) in windows of equal weights, at every place
    within the image: SSIM without constants. Where both images are constant, it is
    2 m_x m_y / (m_x^2 + m_y^2), and 1 where both are zero. From -1 to 1. No data gives NaN. Not in
    scikit-image. Z. Wang and A. C. Bovik (2002), https://doi.org/10.1109/97.995823.

    Raises:
        MetricInputError: a window that is not an integer of at least 2, or larger than the images.

    Example:
        >>> import jax
        >>> from datarax.metrics import UQI
        >>> target = jax.random.uniform(jax.random.key(0), (2, 16, 16, 3))
        >>> print(round(float(UQI().update(0.5 * target, target).compute()), 3))
        0.64
    """

    value_range = (-1.0, 1.0)
    higher_is_better = True
    window: int = 8
    """The pixels along each side of a window."""

    def __post_init__(self) -> None:
        positive_int(self.window, "window", least=2)

    @property
    def least_size(self) -> int:  # type: ignore[override]
        return self.window

    def scores(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        local = local_moments(preds, target, uniform_taps(self.window), self.axes)
        return xp.mean(universal_quality(local), (1, 2, 3))


class VIF(RangedScore):
    """Visual information fidelity in the pixel domain, the mean over channels and images.

    The information that the prediction holds of the target over that which the target holds, by a
    Gaussian model of both in windows at four scales. 1 for equal images, above 1 where the contrast
    is enhanced. An image with a constant channel in the target is invalid. The pixel-domain form
    of the authors' code, `vifp_mscale`. No data gives NaN. Not in scikit-image. H. R. Sheikh and
    A. C. Bovik (2006), https://doi.org/10.1109/TIP.2005.859378.

    Raises:
        MetricInputError: a `data_range` that is not positive, or none for pixels whose dtype is
            neither uint8 nor uint16; images that are smaller than 41 pixels.

    Example:
        >>> import jax
        >>> from datarax.metrics import VIF
        >>> target = jax.random.uniform(jax.random.key(0), (2, 48, 48, 1))
        >>> noise = jax.random.normal(jax.random.key(1), target.shape)
        >>> metric = VIF(data_range=1.0).update(target + 0.1 * noise, target)
        >>> print(round(float(metric.compute()), 3))
        0.306
    """

    least_size = 41

    def scores(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        x, y = 255 * target, 255 * preds
        held: Any = 0.0
        there: Any = 0.0
        for scale in range(_SCALES):
            radius = 2 ** (_SCALES - scale - 1)
            taps = gaussian_taps(radius, (2 * radius + 1) / 5)
            if scale:
                x, y = (window_means(z, taps, self.axes)[:, ::2, ::2] for z in (x, y))
            local = local_moments(x, y, taps, self.axes)
            var_x, var_y = (xp.where(v < _LEAST, 0, v) for v in (local.var_x, local.var_y))
            # The prediction is modelled as `gain * target + noise`. The gain is at least 0.
            both = (var_x > 0) & (var_y > 0) & (local.covariance > 0)
            gain = xp.where(both, local.covariance / xp.where(both, var_x, 1), 0)
            rest = xp.maximum(var_y - gain * xp.where(both, local.covariance, 0), _LEAST)
            # Information is log(1 + signal / noise), in nats. A factor of 1/2 cancels in the ratio.
            held = held + xp.sum(xp.log1p(gain * gain * var_x / (rest + _NOISE)), self.axes)
            there = there + xp.sum(xp.log1p(var_x / _NOISE), self.axes)
        some = there > 0
        ratio = xp.where(some, held / xp.where(some, there, 1), xp.nan)
        return xp.mean(ratio, -1)
