"""Overlap of segmentations: ratios of counts of pixels by class, and of matched segments."""

from typing import Any, ClassVar, Literal, Self

from datarax._checks import positive_int, refuse_ignored
from datarax._typing import ArrayLike, Average, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.metrics.classification.count_ratio import Counts
from datarax.metrics.segmentation.image_overlap import (
    Empty,
    ImageDice,
    ImageIoU,
    ImageOverlap,
    ImageScores,
    generalized_dice,
)
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaling import nan_where, weighted_mean
from datarax.statistics.class_counts import ClassCounts
from datarax.statistics.segment_matches import SegmentMatches


class PixelMetric(Metric):
    """A metric of the classes of pixels; by default all images are counted together."""

    higher_is_better = True
    num_classes: int
    """C, how many classes there are; 0 is the background."""
    ignore_index: int | None = None
    """A target that excludes its pixel, without counting it as invalid. If it is one of the
    classes, the class is in no average, and NaN where there is one value per class."""

    # A `ClassCounts`, or another state whose `update` takes the same arguments.
    statistic: Any = state()

    value_range = (0.0, 1.0)

    def __post_init__(self) -> None:
        positive_int(self.num_classes, "num_classes", least=2)
        self.statistic = ClassCounts.from_fields(self)

    def as_ratio(self) -> tuple[DoubleFloat, DoubleFloat] | None:
        if not isinstance(self.statistic, ImageScores):
            return None
        scores = self.statistic.scores
        return scores.total.double, scores.weight.double

    @shareable
    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the images folded in; no communication.

        Args:
            preds: predicted classes (N, H, W), or scores (N, H, W, C); any number of axes for
                pixels.
            target: integer classes (N, H, W). A class out of range is invalid.
            weights: by image or by pixel: broadcast against the leading axes of `target`.

        Raises:
            MetricInputError: shapes that do not go together; shows both.
            MetricTypeError: classes that are not integers.
        """
        return self.replace(statistic=self.statistic.update(preds, target, weights=weights))


class ClassOverlap(PixelMetric):
    """A ratio of counts of pixels for each class, averaged; a subclass defines `ratio`."""

    average: Average = "macro"
    """"macro" is the mean over the classes that occur, among the targets or the predictions;
    "weighted" weighs them by how often each is the target; "micro" adds up the pixels of all
    classes; `None` gives one value per class."""
    include_background: bool = True
    """True if class 0 is one of the classes that are averaged."""

    def ratio(self, c: Counts) -> tuple[DoubleFloat, DoubleFloat]:
        """The numerator and the denominator, by class."""
        raise TypeError(f"{type(self).__name__} does not define ratio()")

    def compute(self) -> PyTree:
        counts = Counts.by_class(self.statistic)
        if not self.include_background:
            counts = Counts(*(each[1:] for each in counts))
        if self.average == "micro":
            counts = counts.summed()
        numerator, denominator = self.ratio(counts)
        value = (numerator / denominator).to_float()
        if self.average == "micro":
            return value[0]
        if self.average is None:
            return value
        # NaN, where the denominator is zero, excludes a class from the mean.
        support = counts.positives.to_float()
        return weighted_mean(value, support if self.average == "weighted" else xp.ones_like(value))


class SetOverlap(ClassOverlap):
    """A `ClassOverlap` over the pixels of all images, or of each image by itself."""

    aggregate: Literal["dataset", "image"] = "dataset"
    """"dataset" is one ratio of the pixels of all images; "image" is the mean over images of the
    ratio of each, averaged over classes in the image: with `average=None`, the mean for each class
    is over the images that have it."""
    empty: Empty = "skip"
    """With `aggregate="image"`, the value of a class that the target of an image does not have.
    "skip": 0 if it is predicted, and else the class is left out there. "one": 0 if it is predicted,
    and else 1. "ignore": the class is left out there, whether it is predicted or not."""

    image_scores: ClassVar[type[ImageScores]]
    """The statistic of the ratios of images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aggregate == "image":
            self.statistic = self.image_scores.from_fields(self)
        else:
            refuse_ignored(self, "empty", "without aggregate='image'")

    def compute(self) -> PyTree:
        return self.statistic.scores.mean if self.aggregate == "image" else super().compute()


class MeanIoU(SetOverlap):
    """Intersection over union of the predicted pixels and those of the class, averaged.

    TP / (TP + FP + FN) over the pixels of all images together; with `aggregate="image"`, the mean
    over images of the quotients of each, as the `MeanIoU` of MONAI and of torchmetrics. A class
    that is neither predicted nor a target has NaN, and is excluded from the mean. No data gives
    NaN. As `sklearn.metrics.jaccard_score` of all pixels. Exact to one rounding for each class.
    M. Everingham and others (2010), https://doi.org/10.1007/s11263-009-0275-4.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MeanIoU
        >>> preds, target = jnp.array([[[0, 1], [1, 1]]]), jnp.array([[[0, 0], [1, 1]]])
        >>> print(round(float(MeanIoU(num_classes=2).update(preds, target).compute()), 4))
        0.5833
    """

    image_scores = ImageIoU

    def ratio(self, c: Counts) -> tuple[DoubleFloat, DoubleFloat]:
        return c.tp, c.positives + c.fp  # positives are TP + FN


class Dice(SetOverlap):
    """The Dice coefficient of the predicted pixels and those of the class, averaged: F1.

    2 TP / (2 TP + FP + FN) over the pixels of all images together. With `aggregate="image"`, the
    mean over images of the coefficient of each, as the `DiceScore` of torchmetrics by default. The
    `DiceMetric` of MONAI has `empty="ignore"`, and `empty="one"` for its `ignore_empty=False`. A
    class that is neither predicted nor a target has NaN, and is excluded from the mean, and so is
    an image that has no other class. No data gives NaN. As `sklearn.metrics.f1_score` of all
    pixels. L. R. Dice (1945), https://doi.org/10.2307/1932409.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Dice
        >>> target = jnp.array([[[0, 0], [1, 1]], [[0, 0], [0, 0]]])
        >>> preds = jnp.array([[[0, 1], [1, 1]], [[0, 0], [0, 0]]])
        >>> print(round(float(Dice(num_classes=2).update(preds, target).compute()), 4))
        0.8545
        >>> by_image = Dice(num_classes=2, aggregate="image", average=None)
        >>> print([round(x, 4) for x in by_image.update(preds, target).compute().tolist()])
        [0.8333, 0.8]
    """

    image_scores = ImageDice

    def ratio(self, c: Counts) -> tuple[DoubleFloat, DoubleFloat]:
        # (TP + FP) + (TP + FN)
        return c.tp * 2, c.predicted_positives + c.positives


class PixelAccuracy(ClassOverlap):
    """The fraction of pixels that are predicted right, overall or by class.

    TP / (TP + FN) over the pixels of all images together. No data gives NaN. As
    `sklearn.metrics.accuracy_score` of all pixels, "macro" as `balanced_accuracy_score`. J. Long,
    E. Shelhamer and T. Darrell (2015), https://doi.org/10.1109/CVPR.2015.7298965.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PixelAccuracy
        >>> preds, target = jnp.array([[[0, 1], [1, 1]]]), jnp.array([[[0, 0], [1, 1]]])
        >>> print(PixelAccuracy(num_classes=2).update(preds, target).compute())
        0.75
    """

    average: Literal["micro", "macro"] | None = "micro"  # type: ignore[override]
    """"micro" counts all pixels alike; "macro" is the mean over the classes that are targets;
    `None` gives one value per class."""
    include_background: ClassVar[bool] = True  # type: ignore[override]

    def ratio(self, c: Counts) -> tuple[DoubleFloat, DoubleFloat]:
        return c.tp, c.positives


class GeneralizedDice(PixelMetric):
    """The Dice coefficient of all classes at once, in which small ones weigh as much as large ones.

    2 sum(v TP) / sum(v (2 TP + FP + FN)) over classes, with v = 1 / (TP + FN)^2; a class that is
    not a target has the greatest v of those that are. With `aggregate="image"` weights are by
    image, an image with a class out of range is invalid as a whole, and an image that holds none of
    the classes, predicted or not, has no score and is excluded.
    No data gives NaN. Not in scikit-learn. C. H. Sudre and others (2017),
    https://doi.org/10.1007/978-3-319-67558-9_28, after W. R. Crum and others (2006),
    https://doi.org/10.1109/TMI.2006.880587.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import GeneralizedDice
        >>> preds, target = jnp.array([[[0, 1], [1, 1]]]), jnp.array([[[0, 0], [0, 1]]])
        >>> metric = GeneralizedDice(num_classes=2).update(preds, target)
        >>> print(round(float(metric.compute()), 4))
        0.5
    """

    aggregate: Literal["image", "dataset"] = "image"
    """"image" is the mean over images; "dataset" is one score of the pixels of all images."""
    include_background: bool = True
    """True if class 0 is one of the classes in the score."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aggregate == "image":
            self.statistic = ImageOverlap.from_fields(self)

    def compute(self) -> PyTree:
        if self.aggregate == "image":
            return self.statistic.scores.mean
        counts = Counts.by_class(self.statistic)
        parts = (counts.tp, counts.predicted_positives, counts.positives)
        start = 0 if self.include_background else 1
        return generalized_dice(*(each.to_float()[start:] for each in parts))


class PanopticQuality(Metric):
    """The IoU of matched segments over matched, spurious and missed segments, averaged.

    sum(IoU) / (TP + FP / 2 + FN / 2) for each class, over all images together: a predicted and a
    true segment of one class and image match where their IoU exceeds 1/2. A class without segments
    has NaN, and is excluded from the mean. No data gives NaN.

    Matching takes `num_classes * max_segments**2` integers of memory, for one image at a time.

    A. Kirillov and others (2019), https://doi.org/10.1109/CVPR.2019.00963. As there, pixels without
    a target label are excluded, and a predicted segment with more than half of its area on such
    pixels is not a false positive.

    Raises:
        MetricInputError: sizes that are not positive integers, `things` that are not classes, or an
            `ignore_index` that is one.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PanopticQuality
        >>> target = jnp.array([[[[0, 0], [0, 0], [1, 0], [1, 1]]]])  # (1, 1, 4, 2)
        >>> preds = jnp.array([[[[0, 0], [0, 0], [0, 0], [1, 5]]]])
        >>> metric = PanopticQuality(num_classes=2, things=(1,)).update(preds, target)
        >>> print(round(float(metric.compute()), 4))
        0.6667
    """

    higher_is_better = True
    num_classes: int
    """The number of classes, things and stuff, numbered from 0."""
    things: tuple[int, ...]
    """The classes whose segments have numbers, for example `(1, 2)`. Each of the others, stuff, is
    one segment of an image."""
    max_segments: int = 64
    """The segments of a class in an image are numbered from 0 to `max_segments - 1`."""
    ignore_index: int | None = None
    """The class, out of range, of pixels that are not labelled; a pixel predicted as it belongs to
    no segment."""
    quality: Literal["panoptic", "segmentation", "recognition"] = "panoptic"
    """"panoptic" is the product of the other two: "segmentation", the mean IoU of matched segments
    (0 where no segment is matched), and "recognition", the F1 score of matching."""
    average: Literal["macro"] | None = "macro"
    """"macro" is the mean over the classes that occur; `None` gives one value per class."""

    statistic: SegmentMatches = state()

    def __post_init__(self) -> None:
        self.statistic = SegmentMatches.from_fields(self)
        self.things = self.statistic.things

    @shareable
    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the images folded in; no communication.

        Args:
            preds: integers (N, H, W, 2): for each pixel its class and the number of its segment,
                which is not used in classes that are not things.
            target: the same of the true segments. An image with a class or a number out of range
                is invalid.
            weights: by image, (N,).

        Raises:
            MetricInputError: shapes that do not go together; shows both.
            MetricTypeError: classes or numbers that are not integers.
        """
        return self.replace(statistic=self.statistic.update(preds, target, weights=weights))

    def compute(self) -> PyTree:
        seen = self.statistic
        matched, overlap = seen.matched.double, seen.overlap.double
        # Panoptic quality is IoU / (TP + FP / 2 + FN / 2): segmentation quality IoU / TP, times
        # recognition quality TP / (TP + FP / 2 + FN / 2).
        segments = matched + (seen.spurious.double + seen.missed.double) * 0.5
        if self.quality == "segmentation":
            value = xp.where(matched.high > 0, (overlap / matched).to_float(), 0)
            value = nan_where(~(segments.high > 0), value)
        else:
            part = overlap if self.quality == "panoptic" else matched
            value = (part / segments).to_float()
        return value if self.average is None else weighted_mean(value, xp.ones_like(value))


class ModifiedPanopticQuality(PanopticQuality):
    """Panoptic quality in which a class that is no thing has its IoU of each image.

    Of a class in `things` as `PanopticQuality`. Of each other class, the sum of its IoU in all
    images over the number of images whose target has it: an IoU of at most 1/2 counts, too, and a
    class that is predicted where the target has none is no false positive. A class without segments
    in the target has NaN, and is excluded from the mean. No data gives NaN.

    L. Porzi and others (2019), https://doi.org/10.1109/CVPR.2019.00847. It equals torchmetrics'
    metric of this name where all pixels are predicted to be of a class.

    Raises:
        MetricInputError: sizes that are not positive integers, `things` that are not classes, or an
            `ignore_index` that is one.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ModifiedPanopticQuality
        >>> target = jnp.array([[[[0, 0], [0, 0], [0, 0], [1, 1]]]])  # (1, 1, 4, 2)
        >>> preds = jnp.array([[[[0, 0], [2, 0], [2, 0], [1, 5]]]])
        >>> metric = ModifiedPanopticQuality(num_classes=3, things=(1,), average=None)
        >>> print([round(x, 4) for x in metric.update(preds, target).compute().tolist()])
        [0.3333, 1.0, nan]
    """

    def __post_init__(self) -> None:
        self.statistic = SegmentMatches.from_fields(self, stuff_matches_always=True)
        self.things = self.statistic.things
