"""Overlap of segmentations, from counts of pixels by class."""

from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp

from datarax._checks import as_float, choice, is_integer, numeric, same_shape
from datarax._errors import MetricInputError, MetricTypeError
from datarax.metrics.base import Metric, check_policy, shareable
from datarax.metrics.classification.accuracy import Accuracy
from datarax.metrics.classification.count_ratio import AveragedRatio, Counts
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.pairs import or_nan
from datarax.statistics.batches import rows_weight
from datarax.statistics.class_counts import ClassCounts
from datarax.statistics.fields import state
from datarax.statistics.labels import in_range
from datarax.statistics.state import State
from datarax.statistics.weighted_total import WeightedTotal


class Overlap(AveragedRatio):
    """A ratio of pixels for each class, of all images together."""

    num_classes: int
    include_background: bool = True
    ignore_index: int | None = None
    zero_division: ClassVar[float] = float("nan")

    statistic: ClassCounts = state()

    def __post_init__(self) -> None:
        self.statistic = ClassCounts.from_fields(self)

    @shareable
    def update(self, preds, target, *, weights=None) -> Self:
        return self.replace(statistic=self.statistic.update(preds, target, weights=weights))

    def counts(self) -> Counts:
        counts = Counts.of(self.statistic)
        return counts if self.include_background else Counts(*(x[1:] for x in counts))


class MeanIoU(Overlap):
    """Intersection over union of the predicted pixels and those of the class, averaged.

    `TP / (TP + FP + FN)` of the pixels of all images together: one quotient a class, not a mean
    over images. `update(preds, target, *, weights=None)`: predicted classes (N, H, W), or scores
    (N, H, W, C), and integer classes (N, H, W), of any number of axes; weights by image or by
    pixel. Exact to one rounding a class. A class that occurs in neither is left out of the mean;
    by itself it is NaN, and so is no data. scikit-learn: `jaccard_score` of all pixels.

    M. Everingham and others (2010), https://doi.org/10.1007/s11263-009-0275-4.

    Args:
        num_classes: C, how many classes there are; 0 is the background.
        average: "macro" is the mean over the classes that occur, "weighted" by how often each is
            the target; "micro" adds up the pixels of all classes; `None` gives one per class.
        include_background: whether class 0 is one of the classes that are averaged.
        ignore_index: a target that leaves its pixel out.
        on_invalid: for classes out of range and negative weights: "exclude" the pixel and count
            it, "propagate" (the result is NaN), or "raise" when read on the host.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MeanIoU
        >>> preds, target = jnp.array([[[0, 1], [1, 1]]]), jnp.array([[[0, 0], [1, 1]]])
        >>> print(round(float(MeanIoU(num_classes=2).update(preds, target).compute()), 4))
        0.5833
    """

    def ratio(self, c: Counts) -> tuple[DoubleFloat, DoubleFloat]:
        return c.tp, c.positives + c.fp


class Dice(Overlap):
    """The Dice coefficient of the predicted pixels and those of the class, averaged; the F1 score.

    `2 TP / (2 TP + FP + FN)` of the pixels of all images together. `update` as for `MeanIoU`. A
    class that occurs in neither is left out of the mean; by itself it is NaN, and so is no data.
    Other libraries average the coefficients of images, which depends on how pixels are cut into
    images: for that, `GeneralizedDice`. scikit-learn: `f1_score` of all pixels.

    L. R. Dice (1945), https://doi.org/10.2307/1932409.

    Args:
        num_classes: as for `MeanIoU`.
        average: as for `MeanIoU`.
        include_background: as for `MeanIoU`.
        ignore_index: as for `MeanIoU`.
        on_invalid: as for `MeanIoU`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Dice
        >>> preds, target = jnp.array([[[0, 1], [1, 1]]]), jnp.array([[[0, 0], [1, 1]]])
        >>> print(round(float(Dice(num_classes=2).update(preds, target).compute()), 4))
        0.7333
    """

    def ratio(self, c: Counts) -> tuple[DoubleFloat, DoubleFloat]:
        return c.tp * 2, c.predicted_positives + c.positives


class PixelAccuracy(Accuracy):
    """The fraction of pixels that were predicted right, overall or by class.

    `update` as for `MeanIoU`. No data gives NaN. scikit-learn: `accuracy_score`, with
    `average="macro"` `balanced_accuracy_score`, of all pixels.

    J. Long, E. Shelhamer and T. Darrell (2015), https://doi.org/10.1109/CVPR.2015.7298965.

    Args:
        num_classes: as for `MeanIoU`.
        average: "micro" counts all pixels alike; "macro" is the mean accuracy of the classes that
            occur among the targets, `None` that of each.
        ignore_index: as for `MeanIoU`.
        on_invalid: as for `MeanIoU`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PixelAccuracy
        >>> preds, target = jnp.array([[[0, 1], [1, 1]]]), jnp.array([[[0, 0], [1, 1]]])
        >>> print(PixelAccuracy(num_classes=2).update(preds, target).compute())
        0.75
    """

    num_classes: int
    average: Literal["micro", "macro"] | None = "micro"
    num_labels: ClassVar[None] = None
    threshold: ClassVar[float] = 0.5
    top_k: ClassVar[int] = 1


class ImageOverlap(State):
    """The total of the generalised Dice score of each image."""

    def __init__(self, num_classes: int, include_background: bool, ignore_index: int | None):
        # Checked as the counts of all images are.
        ClassCounts(num_classes=num_classes, ignore_index=ignore_index)
        self.num_classes, self.ignore_index = num_classes, ignore_index
        self.include_background = include_background
        self.scores = WeightedTotal()

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """Folds in images: predicted classes (N, ...) or scores (N, ..., C), classes (N, ...)."""
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        if preds.ndim == target.ndim + 1 and preds.shape[-1] == self.num_classes:
            finite = jnp.all(jnp.isfinite(preds), -1)
            preds = jnp.argmax(preds, -1).astype(jnp.int32)
        else:
            finite = jnp.ones(preds.shape, jnp.bool_)
        same_shape(preds, target)
        if not (is_integer(preds) and is_integer(target)):
            raise MetricTypeError(
                f"preds has dtype {preds.dtype} and target {target.dtype}; expected integer "
                f"classes, or for preds scores of shape {(*target.shape, self.num_classes)}"
            )
        if target.ndim < 2:
            raise MetricInputError(
                f"target of shape {target.shape}; expected images, along a leading axis"
            )
        pixels = tuple(range(1, target.ndim))
        ignored = jnp.zeros(target.shape, jnp.bool_)
        if self.ignore_index is not None:
            ignored = target.astype(jnp.int32) == self.ignore_index
        valid = finite & in_range(preds, self.num_classes) & in_range(target, self.num_classes)
        w, invalid = rows_weight(jnp.all(valid | ignored, pixels), weights)
        seen = ~ignored & valid
        classes = jnp.arange(not self.include_background, self.num_classes, dtype=jnp.int32)

        def of_class(label: jax.Array) -> tuple[jax.Array, ...]:
            p, t = (seen & (x.astype(jnp.int32) == label) for x in (preds, target))
            return tuple(jnp.sum(x, pixels, dtype=jnp.int32) for x in (p & t, p, t))

        counts = jax.vmap(of_class, out_axes=-1)(classes)
        score = _generalized(*map(as_float, counts))
        # An image without any of the classes has no score.
        some = ~jnp.isnan(score)
        w = jnp.where(some, w, jnp.zeros((), w.dtype))
        score = jnp.where(some, score, jnp.zeros((), score.dtype))
        return self.replace(scores=self.scores.add(score, w, invalid))


class GeneralizedDice(Metric):
    """The Dice coefficient of all classes at once, small ones weighing as much as large ones.

    `2 sum(v * TP) / sum(v * (2 TP + FP + FN))` over classes, `v = 1 / (TP + FN)**2`; a class that
    is not among the targets has the greatest weight of those that are. `update` as for
    `MeanIoU`, weights by image. The mean over images; one with a class out of range is left out
    as a whole, and one that holds none of the classes, predicted or not, has no score and is
    left out uncounted. No data gives NaN. Not in scikit-learn.

    C. H. Sudre and others (2017), https://doi.org/10.1007/978-3-319-67558-9_28, after W. R. Crum
    and others (2006), https://doi.org/10.1109/TMI.2006.880587.

    Args:
        num_classes: as for `MeanIoU`.
        aggregate: "image" is the mean over images, "dataset" one score of all pixels together.
        include_background: as for `MeanIoU`.
        ignore_index: as for `MeanIoU`.
        on_invalid: as for `MeanIoU`; with `aggregate="image"` it is images that are left out.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import GeneralizedDice
        >>> preds, target = jnp.array([[[0, 1], [1, 1]]]), jnp.array([[[0, 0], [0, 1]]])
        >>> metric = GeneralizedDice(num_classes=2).update(preds, target)
        >>> print(round(float(metric.compute()), 4))
        0.5
    """

    def __init__(
        self,
        *,
        num_classes: int,
        aggregate: str = "image",
        include_background: bool = True,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        choice(aggregate, ("image", "dataset"), "aggregate")
        choice(include_background, (False, True), "include_background")
        self.on_invalid, self.include_background = check_policy(on_invalid), include_background
        self.statistic = (
            ImageOverlap(num_classes, include_background, ignore_index)
            if aggregate == "image"
            else ClassCounts(num_classes=num_classes, ignore_index=ignore_index)
        )

    def compute(self) -> jax.Array:
        if isinstance(self.statistic, ImageOverlap):
            return self.statistic.scores.mean
        counts = Counts.of(self.statistic)
        start = 0 if self.include_background else 1
        parts = (counts.tp, counts.predicted_positives, counts.positives)
        return or_nan(_generalized(*(x.high[start:] for x in parts)), counts.total.high[0])


def _generalized(right: jax.Array, predicted: jax.Array, actual: jax.Array) -> jax.Array:
    """The generalised Dice score over the last axis; NaN where there is no pixel."""
    present, one = actual > 0, jnp.ones((), actual.dtype)
    least = jnp.min(jnp.where(present, actual, jnp.inf), -1, keepdims=True)
    # Over the greatest weight, which classes that are absent have too.
    share = jnp.where(present, least / jnp.where(present, actual, one), one)
    v = share * share
    above, below = jnp.sum(v * right, -1), jnp.sum(v * (predicted + actual), -1)
    return 2 * above / below
