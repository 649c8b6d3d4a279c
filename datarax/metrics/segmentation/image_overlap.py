"""Scores of the overlap of classes in each image by itself: what is averaged over images."""

from typing import Literal, Self

import jax
import numpy as np

from datarax._checks import as_float, numeric
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Average, PyTree, Weights
from datarax._xp import beside, vmap, xp
from datarax.algebra.state import State
from datarax.numerics.scaling import nan_where
from datarax.statistics.batches import class_of, predictions, rows_weight
from datarax.statistics.weighted_total import WeightedTotal

Empty = Literal["skip", "one", "ignore"]


class ImageScores(State):
    """The weighted total of a score of each image; a subclass defines `score`."""

    terms_by_row = True

    num_classes: int
    """The number of classes; 0 is the background."""
    include_background: bool = True
    """True if class 0 is one of the classes in the score."""
    ignore_index: int | None = None
    """Pixels with this target are excluded."""

    scores = WeightedTotal()

    @property
    def classes(self) -> np.ndarray:
        """The classes that are counted; -1, which no pixel has, in place of the ignored one."""
        labels = np.arange(not self.include_background, self.num_classes, dtype=np.int32)
        ignored = class_of(self.ignore_index, self.num_classes)
        return labels if ignored is None else np.where(labels == ignored, np.int32(-1), labels)

    def score(self, right: jax.Array, predicted: jax.Array, actual: jax.Array) -> jax.Array:
        """The score of each image, or of each of its classes; NaN where there is none.

        Args:
            right: floats (N, C): the pixels of each class that are predicted right.
            predicted: the pixels that are predicted as each class.
            actual: the pixels of each class in the target.
        """
        raise TypeError(f"{type(self).__name__} does not define score()")

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in images: predicted classes (N, ...) or scores (N, ..., C), classes (N, ...).

        An image with a pixel that cannot be used is excluded and counted. An image without a score
        is excluded and not counted.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: the classes are not integers.
        """
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        chosen, target, usable, bad_pixel = predictions(
            preds, target, None, self.num_classes, ignore_index=self.ignore_index
        )
        if target.ndim < 2:
            raise MetricInputError(
                f"target of shape {target.shape}; expected images, along a leading axis"
            )
        pixels = tuple(range(1, target.ndim))
        w, invalid = rows_weight(bad_pixel.any(pixels), weights)

        def counts_of(label: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            p, t = usable & (chosen[..., 0] == label), usable & (target == label)
            right, predicted, actual = (xp.sum(x, pixels, dtype=xp.int32) for x in (p & t, p, t))
            return right, predicted, actual

        counts = vmap(counts_of, out_axes=-1)(xp.asarray(self.classes))
        score = self.score(*map(as_float, counts))
        if score.ndim > 1:
            w = w[:, None]
        w = xp.where(xp.isnan(score), xp.zeros((), w.dtype), w)
        return self.replace(scores=self.scores.add(score, w, invalid))


class ImageOverlap(ImageScores):
    """The weighted total of the generalised Dice scores of images."""

    def score(self, right: jax.Array, predicted: jax.Array, actual: jax.Array) -> jax.Array:
        return generalized_dice(right, predicted, actual)


class ImageDice(ImageScores):
    """The weighted total of the Dice coefficients of images, averaged over classes or not."""

    average: Average = "macro"
    """Over the classes of an image; `None` for a total for each class."""
    empty: Empty = "skip"
    """The score of a class that an image does not have: see `Dice`."""

    def __post_init__(self) -> None:
        if self.average is None:
            self.scores = WeightedTotal((len(self.classes),))

    def ratio(
        self, right: jax.Array, predicted: jax.Array, actual: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The numerator and the denominator of each class in each image."""
        return 2 * right, predicted + actual

    def score(self, right: jax.Array, predicted: jax.Array, actual: jax.Array) -> jax.Array:
        some: PyTree = beside(right, self.classes >= 0)
        if self.average == "micro":
            right, predicted, actual = (
                xp.sum(x, -1, keepdims=True) for x in (right, predicted, actual)
            )
            some = xp.any(some, keepdims=True)
        above, below = self.ratio(right, predicted, actual)
        nothing = below <= 0
        value = xp.where(nothing, 1, above / xp.where(nothing, 1, below))
        if self.empty != "one":
            value = nan_where(nothing if self.empty == "skip" else actual <= 0, value)
        value = nan_where(~some, value)
        if self.average is None:
            return value
        # NaN excludes a class from the mean; of an image with nothing else, the mean is NaN.
        counts = ~xp.isnan(value)
        w = xp.where(counts, actual if self.average == "weighted" else 1, 0).astype(value.dtype)
        # Without a pixel in the target, all classes weigh the same.
        w = xp.where(xp.sum(w, -1, keepdims=True) > 0, w, counts.astype(value.dtype))
        return xp.sum(xp.where(counts, value, 0) * w, -1) / xp.sum(w, -1)


class ImageIoU(ImageDice):
    """The weighted total of the intersections over union of images."""

    def ratio(
        self, right: jax.Array, predicted: jax.Array, actual: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return right, predicted + actual - right


def generalized_dice(right: jax.Array, predicted: jax.Array, actual: jax.Array) -> jax.Array:
    """The generalised Dice score of counts of pixels by class, over the last axis.

    `2 sum(v * right) / sum(v * (predicted + actual))` with `v = 1 / actual**2`; a class without
    pixels in the target has the greatest `v` of those that have some. NaN where all counts are
    zero. Within 12 ulp for three classes.
    """
    present = actual > 0
    # All weights are divided by the greatest, so that none overflows or underflows.
    least = xp.min(xp.where(present, actual, xp.inf), -1, keepdims=True)
    share = xp.where(present, least / xp.where(present, actual, 1), 1)
    v = share * share
    above, below = xp.sum(v * right, -1), xp.sum(v * (predicted + actual), -1)
    return nan_where(below <= 0, 2 * above / below)
