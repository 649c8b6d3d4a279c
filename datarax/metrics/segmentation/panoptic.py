"""Panoptic segmentation: classes of pixels and segments of things at once."""

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import choice
from datarax.metrics.base import Metric, check_policy
from datarax.numerics.pairs import weighted_mean
from datarax.statistics.segment_matches import SegmentMatches


class PanopticQuality(Metric):
    """The IoU of matched segments, over matched, spurious and missed ones, averaged over classes.

    `sum(IoU) / (TP + FP / 2 + FN / 2)`: a predicted and a true segment of one class and image
    match where their IoU exceeds 1/2. `update(preds, target, *, weights=None)`: integers
    (N, H, W, 2), of each pixel its class and the number of its segment; weights (N,). The number
    is not looked at in classes that are no things. Counts are of all images together. A class
    without a segment is left out of the mean; by itself it is NaN, and so is no data.

    Matching takes `num_classes * max_segments**2` integers of memory, one image after the other.

    A. Kirillov and others (2019), https://doi.org/10.1109/CVPR.2019.00963. As there, pixels
    without a target label are not looked at, and a predicted segment of which more than half lies
    there is no false positive.

    Args:
        num_classes: how many classes there are, things and stuff, from 0.
        things: the classes whose segments are told apart, as `(1, 2)`; of the others, stuff, each
            is one segment of an image.
        max_segments: segments of a class in an image are numbered from 0 to `max_segments - 1`.
        ignore_index: the class, out of range, of pixels that are not labelled; predicted, it is
            of no segment.
        quality: "panoptic"; or its factors: "segmentation", the mean IoU of matched segments (0
            where there are but unmatched ones), and "recognition", their F1 score.
        average: "macro" is the mean over the classes that occur, `None` gives one per class.
        on_invalid: for classes and numbers out of range, and negative weights: "exclude" the
            image and count it, "propagate" (the result is NaN), or "raise" when read on the host.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PanopticQuality
        >>> target = jnp.array([[[[0, 0], [0, 0], [1, 0], [1, 1]]]])  # (1, 1, 4, 2)
        >>> preds = jnp.array([[[[0, 0], [0, 0], [0, 0], [1, 5]]]])
        >>> metric = PanopticQuality(num_classes=2, things=(1,)).update(preds, target)
        >>> print(round(float(metric.compute()), 4))
        0.6667
    """

    def __init__(
        self,
        *,
        num_classes: int,
        things: tuple[int, ...],
        max_segments: int = 64,
        ignore_index: int | None = None,
        quality: str = "panoptic",
        average: str | None = "macro",
        on_invalid: str = "exclude",
    ):
        choice(quality, ("panoptic", "segmentation", "recognition"), "quality")
        choice(average, ("macro", None), "average")
        self.quality, self.average = quality, average
        self.on_invalid = check_policy(on_invalid)
        self.statistic = SegmentMatches(
            num_classes, things=tuple(things), max_segments=max_segments, ignore_index=ignore_index
        )

    def compute(self) -> jax.Array:
        seen = self.statistic
        matched, overlap, *others = (
            each.parts for each in (seen.matched, seen.overlap, seen.spurious, seen.missed)
        )
        unmatched = nx.pair_add(*others)
        segments = nx.pair_add(matched, (unmatched[0] / 2, unmatched[1] / 2))
        if self.quality == "segmentation":
            value = nx.pair_divide(overlap, matched)
            value = jnp.where(matched[0] > 0, value, jnp.zeros((), value.dtype))
            value = jnp.where(segments[0] > 0, value, jnp.asarray(jnp.nan, value.dtype))
        else:
            value = nx.pair_divide(overlap if self.quality == "panoptic" else matched, segments)
        return value if self.average is None else weighted_mean(value, jnp.ones_like(value))
