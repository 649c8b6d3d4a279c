"""Means over images of a score of two masks, of one class or of each of several."""

from typing import Any, Literal, Self

import jax
import numpy as np

from datarax._checks import integers, numeric, positive_int, refuse_ignored, same_shape
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import beside, lax, xp
from datarax.distributed.collectives import unsharded
from datarax.metrics.probabilistic.mean_score import MeanScore
from datarax.numerics.scaling import nan_where
from datarax.statistics.batches import equals, in_range, rows_weight
from datarax.statistics.invalid_counts import out_of_range
from datarax.statistics.weighted_total import WeightedTotal


class MaskScore(MeanScore):
    """The weighted mean of a score of each image or volume; a subclass defines `score`.

    A mask that both images lack has no score: the class is left out in that image, and not counted
    as invalid. An image without a score of any class is left out.
    """

    hidden_names = frozenset({"classes", "options", "score"})
    terms_by_row = True
    num_classes: int | None = None
    """C, if `preds` and `target` hold classes from 0 to C - 1; by default they hold binary
    masks."""
    include_background: bool = False
    """True if class 0 is one of the classes; of `num_classes` only."""
    average: Literal["macro"] | None = "macro"
    """"macro" is the mean over the classes of an image that have a score, then over images; `None`
    is one mean over images for each class; of `num_classes` only."""

    def __post_init__(self) -> None:
        if self.num_classes is None:
            for name in ("include_background", "average"):
                refuse_ignored(self, name, "without num_classes=")
            return
        positive_int(self.num_classes, "num_classes", least=2)
        if self.average is None:
            self.statistic = WeightedTotal((len(self.classes),))

    @property
    def classes(self) -> np.ndarray:
        """The labels whose masks are compared."""
        if self.num_classes is None:
            return np.ones(1, np.int32)
        return np.arange(not self.include_background, self.num_classes, dtype=np.int32)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the images folded in; no communication.

        Args:
            preds: binary masks, booleans or 0 and 1, of images (N, H, W) or volumes (N, D, H, W);
                with `num_classes`, integer classes, not one-hot. An image with any other value is
                invalid.
            target: masks of the same shape.
            weights: by image, (N,).

        Raises:
            MetricInputError: shapes that are not those of images or volumes, or not equal.
            MetricTypeError: classes that are not integers.
        """
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        same_shape(preds, target)
        if preds.ndim not in (3, 4):
            raise MetricInputError(
                f"masks of shape {preds.shape}; expected images (N, H, W) or volumes (N, D, H, W)"
            )
        self.check_sides(preds.shape[1:])
        pixels = tuple(range(1, preds.ndim))
        labels, usable = [], xp.ones(preds.shape[0], xp.bool_)
        for x, name in ((preds, "preds"), (target, "target")):
            # A neighbour may lie in another shard, so no axis of an image is sharded.
            for axis in pixels:
                x = unsharded(x, axis)
            label, known = self._labels(x, name)
            labels.append(label)
            usable = usable & xp.all(known, pixels)

        def of_class(given: tuple[jax.Array, ...]) -> jax.Array:
            label, *options = given
            return self.score(*(x == label for x in labels), *options)

        given = tuple(beside(preds, x) for x in (self.classes, *self.options(preds)))
        # One class after the other, because a score may need several arrays of an image's size.
        scores: Any = xp.moveaxis(lax.map(of_class, given), 0, -1)
        w, invalid = rows_weight(out_of_range(~usable | self.refused(scores)), weights)
        if self.average is None:
            w = w[:, None]
        else:
            some = ~xp.isnan(scores)
            count = xp.sum(some, -1, dtype=scores.dtype)
            total = xp.sum(xp.where(some, scores, 0), -1)
            scores = nan_where(count == 0, total / xp.maximum(count, 1))
        w = xp.where(xp.isnan(scores), xp.zeros((), w.dtype), w)
        return self.replace(statistic=self.statistic.add(scores, w, invalid))

    def _labels(self, x: jax.Array, name: str) -> tuple[jax.Array, jax.Array]:
        """The class of each pixel, -1 where it cannot be used, and the mask of those that can."""
        if self.num_classes is None:
            one = equals(x, 1)
            return one.astype(xp.int32), one | equals(x, 0)
        x = integers(x, name, "integer classes", booleans=True)
        known = in_range(x, self.num_classes)
        return xp.where(known, x.astype(xp.int32), xp.int32(-1)), known

    def check_sides(self, sides: tuple[int, ...]) -> None:
        """Raises if images of these sides cannot be measured."""

    def options(self, preds: jax.Array) -> tuple[np.ndarray, ...]:
        """What `score` takes besides masks: arrays with one entry for each of `classes`."""
        return ()

    def refused(self, scores: jax.Array) -> jax.Array:
        """The mask of the images (N,) that are invalid for their scores (N, K)."""
        return xp.zeros(scores.shape[0], xp.bool_)

    def score(self, preds: jax.Array, target: jax.Array, *options: jax.Array) -> jax.Array:
        """The scores (N,) of two masks (N, ...); NaN if both are empty."""
        raise TypeError(f"{type(self).__name__} does not define score()")
