"""The generalised Dice score, of each image and in total."""

from typing import Self

import jax

from datarax._checks import as_float, numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import vmap, xp
from datarax.algebra.state import State
from datarax.numerics.scaling import nan_where
from datarax.statistics.batches import predictions, rows_weight
from datarax.statistics.weighted_total import WeightedTotal


class ImageOverlap(State):
    """The weighted total of the generalised Dice scores of images."""

    num_classes: int
    """How many classes there are; 0 is the background."""
    include_background: bool = True
    """Whether class 0 is one of the classes in the score."""
    ignore_index: int | None = None
    """Pixels with this target are excluded."""

    scores = WeightedTotal()

    def __post_init__(self) -> None:
        positive_int(self.num_classes, "num_classes", least=2)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in images: predicted classes (N, ...) or scores (N, ..., C), classes (N, ...).

        An image with a pixel that cannot be used is excluded and counted. An image without any of
        the classes, predicted or not, has no score; it is excluded and not counted.

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

        classes = xp.arange(not self.include_background, self.num_classes, dtype=xp.int32)
        counts = vmap(counts_of, out_axes=-1)(classes)
        score = generalized_dice(*map(as_float, counts))
        has_score = ~xp.isnan(score)
        w = xp.where(has_score, w, xp.zeros((), w.dtype))
        return self.replace(scores=self.scores.add(xp.where(has_score, score, 0), w, invalid))


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
