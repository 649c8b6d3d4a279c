"""Image quality from the differences of pixels, and the variation within one image."""

import math
from typing import Self

import jax

from datarax._checks import positive_int
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.metrics.vision.image_score import ImageMean, ImageScore, RangedScore, VolumeScore
from datarax.metrics.vision.image_windows import uniform_taps, window_means
from datarax.numerics.limbs import as_double


class PSNR(VolumeScore):
    """Peak signal-to-noise ratio in decibels, the mean over images.

    10 log10(R^2 / MSE) for each image, with R the `data_range` and MSE the mean over its pixels and
    channels. Equal images have an infinite ratio, and so has the mean with them. No data gives NaN.
    As `skimage.metrics.peak_signal_noise_ratio` of each image. Q. Huynh-Thu and M. Ghanbari (2008),
    https://doi.org/10.1049/el:20080522.

    Raises:
        MetricInputError: a `data_range` that is not positive, or none for pixels whose dtype is
            neither uint8 nor uint16.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PSNR
        >>> preds, target = jnp.full((1, 8, 8, 1), 0.6), jnp.full((1, 8, 8, 1), 0.5)
        >>> print(round(float(PSNR(data_range=1.0).update(preds, target).compute()), 4))
        20.0
    """

    def scores(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        # In units of the range, R is 1. Equal images have a logarithm of minus infinity.
        return -10 * xp.log10(_mean_square(preds - target))


class PSNRB(RangedScore):
    """PSNR with a penalty for edges between the blocks of a compressed image, in decibels.

    10 log10(R^2 / (MSE + BEF)) for each image, the mean over images. BEF, the blocking effect
    factor of the prediction, is how much larger the mean square of the steps across the edges of
    blocks is than that of the other steps, times log2(B) / log2(min(H, W)); 0 if it is not larger.
    All channels count together. Equal images have an infinite ratio if they show no blocks. No data
    gives NaN. Not in scikit-image. C. Yim and A. C. Bovik (2011),
    https://doi.org/10.1109/TIP.2010.2061859.

    Raises:
        MetricInputError: as `PSNR`; a block of less than two pixels, or images that are smaller
            than two blocks.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PSNRB
        >>> preds = jnp.zeros((1, 16, 16, 1)).at[:, 8:].set(0.2)
        >>> target = jnp.full((1, 16, 16, 1), 0.1)
        >>> print(round(float(PSNRB(data_range=1.0).update(preds, target).compute()), 4))
        16.0206
    """

    block_size: int = 8
    """The pixels along each side of a block; 8 for JPEG."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int(self.block_size, "block_size", least=2)

    @property
    def least_size(self) -> int:  # type: ignore[override]
        return 2 * self.block_size

    def scores(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        across, within, edges, others = 0.0, 0.0, 0, 0
        for axis in self.axes:
            squares = xp.moveaxis(xp.diff(preds, axis=axis) ** 2, axis, 1)
            by_step = xp.sum(squares, (2, 3))
            at_edge = by_step[:, self.block_size - 1 :: self.block_size]
            edge = xp.sum(at_edge, 1)
            across, within = across + edge, within + (xp.sum(by_step, 1) - edge)
            each = math.prod(squares.shape[2:])
            edges = edges + at_edge.shape[1] * each
            others = others + (by_step.shape[1] - at_edge.shape[1]) * each
        # The blocking effect: the mean squared step across edges of blocks, less that elsewhere.
        share = math.log2(self.block_size) / math.log2(min(preds.shape[1:-1]))
        blocking = share * xp.maximum(across / edges - within / others, 0)
        return -10 * xp.log10(_mean_square(preds - target) + blocking)


class RMSESW(ImageScore):
    """Root mean squared error in sliding windows, the mean over windows, channels and images.

    The root is taken within each window of `window` x `window` pixels, at every place within the
    image, so a local error counts less than in the error of the whole image. No data gives NaN. Not
    in scikit-image.

    Raises:
        MetricInputError: a window that is not a positive integer, or larger than the images.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RMSESW
        >>> preds, target = jnp.full((1, 8, 8, 1), 3.0), jnp.full((1, 8, 8, 1), 1.0)
        >>> print(RMSESW().update(preds, target).compute())
        2.0
    """

    higher_is_better = False
    window: int = 8
    """The pixels along each side of a window."""

    def __post_init__(self) -> None:
        positive_int(self.window, "window")

    @property
    def least_size(self) -> int:  # type: ignore[override]
        return self.window

    def scores(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        squares = window_means((preds - target) ** 2, uniform_taps(self.window), self.axes)
        return xp.mean(xp.sqrt(squares), (1, 2, 3))


class TotalVariation(ImageMean):
    """The sum of the absolute differences of neighbouring pixels, the mean over images.

    Sum |x(i+1, j) - x(i, j)| + |x(i, j+1) - x(i, j)| over pixels and channels: the anisotropic
    form. No data gives NaN. As `tensorflow.image.total_variation` of each image. L. I. Rudin,
    S. Osher and E. Fatemi (1992), https://doi.org/10.1016/0167-2789(92)90242-F.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import TotalVariation
        >>> image = jnp.array([[[[0.0], [1.0]], [[3.0], [3.0]]]])  # (1, 2, 2, 1)
        >>> print(TotalVariation().update(image).compute())
        6.0
    """

    terms_by_row = True

    def update(self, images: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the images folded in; no communication.

        Args:
            images: (N, H, W, C), integers or floats. An image with a NaN or an infinity is invalid.
            weights: by image, (N,); zero excludes an image, whatever it holds.

        Raises:
            MetricInputError: a shape that is not that of images.
        """
        return self.scored(weights, images=images)

    def image_scores(self, *images: jax.Array) -> jax.Array:
        def variation(x: jax.Array) -> jax.Array:
            steps = (xp.sum(xp.abs(xp.diff(x, axis=a)), (1, 2, 3)) for a in self.axes)
            return sum(steps, start=xp.zeros(len(x), x.dtype))

        return as_double(images[0]).evaluated(variation)


def _mean_square(difference: jax.Array) -> jax.Array:
    return xp.mean(difference * difference, tuple(range(1, difference.ndim)))
