"""Means over images of a score of each image: the base of the metrics of image quality."""

from functools import reduce
from operator import or_
from typing import ClassVar, Literal, Self

import jax
import numpy as np

from datarax._checks import as_float, numeric, real, same_shape
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import lax, xp
from datarax.distributed.collectives import unsharded
from datarax.metrics.probabilistic.mean_score import MeanScore
from datarax.numerics.double_float import stack
from datarax.numerics.limbs import as_double
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import is_nan, not_finite


class ImageMean(MeanScore):
    """The weighted mean of a score of each image; a subclass defines `image_scores`."""

    spatial_dims: ClassVar[int] = 2
    least_size: ClassVar[int] = 1
    """The number of pixels that an image needs along each spatial axis."""

    def image_scores(self, *images: jax.Array) -> jax.Array:
        """The scores (N,) of images of the given dtype. An image whose score is NaN is invalid."""
        raise TypeError(f"{type(self).__name__} does not define image_scores()")

    @property
    def axes(self) -> tuple[int, ...]:
        """The spatial axes of a batch of images."""
        return tuple(range(1, 1 + self.spatial_dims))

    def scored(self, weights: Weights, **images: ArrayLike) -> Self:
        """The metric with the scores of a batch folded in: of arrays of images of one shape."""
        arrays = [numeric(x, name) for name, x in images.items()]
        self._check(list(images), arrays)
        pixels = tuple(range(1, arrays[0].ndim))
        # A window may lie across two shards, so no axis of an image is sharded.
        for axis in pixels:
            arrays = [unsharded(x, axis) for x in arrays]
        unusable = [not_finite(as_float(x), pixels) for x in arrays]
        w, invalid = rows_weight(reduce(or_, unusable), weights)
        counts = w.astype(xp.bool_)
        # An excluded image becomes zeros: a NaN in it would reach the sums even with weight 0.
        seen = lax.expand_dims(counts, pixels)
        score = self.image_scores(*(xp.where(seen, x, xp.zeros((), x.dtype)) for x in arrays))
        # A formula marks an image that has no score by NaN.
        undefined = is_nan(score).where(counts)
        w = xp.where(undefined.mask, xp.zeros((), w.dtype), w)
        return self.replace(statistic=self.statistic.add(score, w, invalid | undefined))

    def _check(self, names: list[str], arrays: list[jax.Array]) -> None:
        if len(arrays) == 2:
            same_shape(arrays[0], arrays[1], (names[0], names[1]))
        shape = arrays[0].shape
        letters = "H, W, C" if self.spatial_dims == 2 else "D, H, W, C"
        if len(shape) != self.spatial_dims + 2:
            raise MetricInputError(
                f"{' and '.join(names)} of shape {shape}; expected images (N, {letters}): add an "
                f"axis of size 1 for one image or for one channel"
            )
        sides, least = shape[1:-1], self.least_size
        if min(sides) < least or shape[-1] < 1:
            raise MetricInputError(
                f"images of {' x '.join(map(str, sides))} pixels and {shape[-1]} channels; "
                f"{type(self).__name__} needs {least} pixels or more along each axis, and a channel"
            )


class ImageScore(ImageMean):
    """The weighted mean of a score of each image and its target; a subclass defines `scores`.

    Scores are computed in float64 where the devices have it, and else in float32.
    """

    terms_by_row = True

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the images folded in; no communication.

        Args:
            preds: images (N, H, W, C), integers or floats. An image with a NaN or an infinity is
                invalid, and one that has no score.
            target: images of the same shape.
            weights: by image, (N,); zero excludes an image, whatever it holds.

        Raises:
            MetricInputError: shapes that differ, that are not those of images, or images that are
                too small.
        """
        return self.scored(weights, preds=preds, target=target)

    def image_scores(self, *images: jax.Array) -> jax.Array:
        # Double-floats keep the digits of large integers and of float64.
        both = stack([as_double(x) for x in images])
        return both.evaluated(lambda x: self.scores(*xp.unstack(x)))

    def scores(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        """The scores (N,) of images of one float dtype."""
        raise TypeError(f"{type(self).__name__} does not define scores()")


class RangedScore(ImageScore):
    """An `ImageScore` of images in units of their range: `scores` gets pixels divided by it."""

    higher_is_better = True
    data_range: float | None = None
    """The greatest possible pixel minus the least: 1.0 for floats from 0 to 1. Values are never
    inspected, so floats need it; without it, that of uint8 is 255, and that of uint16 65535."""

    def __post_init__(self) -> None:
        if self.data_range is not None:
            self.data_range = real(self.data_range, "data_range")
            if not 0 < self.data_range < np.inf:
                raise MetricInputError(f"data_range={self.data_range}; expected a positive number")

    def image_scores(self, *images: jax.Array) -> jax.Array:
        # Divided first, so that constants such as `k1` of SSIM are in units of the range.
        unit = self.data_range or self._range_of({x.dtype for x in images})
        both = stack([as_double(x) for x in images])
        return both.evaluated(lambda x: self.scores(*(image / unit for image in xp.unstack(x))))

    def _range_of(self, dtypes: set[np.dtype]) -> float:
        if dtypes == {xp.dtype("uint8")} or dtypes == {xp.dtype("uint16")}:
            return float(xp.iinfo(dtypes.pop()).max)
        raise MetricInputError(
            f"images of dtype {' and '.join(sorted(map(str, dtypes)))} need data_range=, the "
            f"greatest possible pixel minus the least: {type(self).__name__}(data_range=1.0) for "
            f"floats from 0 to 1"
        )


class VolumeScore(RangedScore):
    """A `RangedScore` of images or of volumes."""

    spatial_dims: Literal[2, 3] = 2  # type: ignore[override]
    """2 for images (N, H, W, C); 3 for volumes (N, D, H, W, C)."""
