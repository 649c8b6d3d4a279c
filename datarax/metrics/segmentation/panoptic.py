"""Panoptic segmentation: the classes of pixels and the segments of things at once."""

from typing import Literal, Self

from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.metrics.base import Metric, shareable
from datarax.numerics.scaling import nan_where, weighted_mean
from datarax.statistics.segment_matches import SegmentMatches


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
    """How many classes there are, things and stuff, numbered from 0."""
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
