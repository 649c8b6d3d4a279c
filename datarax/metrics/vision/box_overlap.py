"""The overlap of two boxes, and their distance."""

from typing import ClassVar, Self

import jax

from datarax._checks import same_shape
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.state import State
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.numerics.boxes import MEASURES, overlaps
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.batches import rows_weight
from datarax.statistics.detected_shapes import checked_boxes, unusable_boxes
from datarax.statistics.invalid_counts import InvalidCounts
from datarax.statistics.scaled_total import ScaledTotal, quotient


class BoxPairs(State):
    """The total of each measure of `MEASURES` over pairs of boxes, and their weight."""

    terms_by_row = True

    sums = ScaledTotal((len(MEASURES) + 1,))
    """The sums of `w * x` of each measure, and of `w`."""
    invalid = InvalidCounts()

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in boxes (N, 4) in pairs: see `datarax.metrics.IoU`."""
        preds, target = checked_boxes(preds, "preds", "N"), checked_boxes(target, "target", "N")
        same_shape(preds, target)
        w, invalid = rows_weight(unusable_boxes(preds) | unusable_boxes(target), weights)
        # What is not used may hold NaN.
        used = w.astype(xp.bool_)[:, None]
        preds, target = (xp.where(used, x, xp.zeros((), x.dtype)) for x in (preds, target))
        measures = overlaps(preds, target)
        w = xp.broadcast_to(w, measures.shape[1:])
        # The ones give the total weight as the last of the sums.
        values = xp.concatenate([measures, xp.ones_like(measures[:1])])
        total = self.sums.of(xp.moveaxis(values, 0, -1), w[:, None])
        return self.replace(sums=self.sums.combine(total), invalid=self.invalid.update(invalid))

    def mean(self, measure: str) -> jax.Array:
        """The weighted mean of a measure, rounded once; NaN where the weight is zero."""
        return quotient(self.sums[MEASURES.index(measure)], self.sums[-1])

    def as_ratio(self, measure: str) -> tuple[DoubleFloat, DoubleFloat]:
        """The total of a measure, and the total weight."""
        return self.sums[MEASURES.index(measure)].double, self.sums[-1].double


class BoxOverlap(Metric):
    """The weighted mean over pairs of boxes of a measure of overlap.

    In a `Collection`, all such metrics share one `BoxPairs`.
    """

    higher_is_better = True
    measure: ClassVar[str]
    """One of `datarax.numerics.boxes.MEASURES`."""

    statistic = BoxPairs()

    @shareable
    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the pairs of boxes folded in; no communication.

        Args:
            preds: boxes (N, 4): x1, y1, x2, y2, with x1 <= x2 and y1 <= y2; a pair with any other
                box is invalid.
            target: the boxes that belong to them, of the same shape. Boxes of one integer dtype are
                not rounded to floats.
            weights: by pair, (N,).

        Raises:
            MetricInputError: shapes that are not (N, 4) or not equal; shows both.
        """
        return self.replace(statistic=self.statistic.update(preds, target, weights=weights))

    def compute(self) -> PyTree:
        return self.statistic.mean(self.measure)

    def as_ratio(self) -> tuple[DoubleFloat, DoubleFloat]:
        return self.statistic.as_ratio(self.measure)


class IoU(BoxOverlap):
    """The mean intersection over union of pairs of boxes.

    The area that both boxes cover over the area that either covers, from 0 to 1. It is 0 where
    neither box has an area. No data gives NaN. As `torchvision.ops.box_iou`, of pairs.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import IoU
        >>> preds = jnp.array([[0, 0, 2, 2], [0, 0, 1, 1]])
        >>> target = jnp.array([[1, 0, 3, 2], [0, 0, 1, 2]])
        >>> print(round(float(IoU().update(preds, target).compute()), 4))  # (1/3 + 1/2) / 2
        0.4167
    """

    value_range = (0.0, 1.0)
    measure = "iou"


class GIoU(BoxOverlap):
    """The mean generalised IoU: it also tells how far boxes are apart that do not overlap.

    IoU - (C - U) / C, where U is the area of the union and C that of the smallest box that holds
    both: from -1 to 1. A C of zero subtracts nothing. No data gives NaN. H. Rezatofighi and others
    (2019), https://doi.org/10.1109/CVPR.2019.00075.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import GIoU
        >>> preds, target = jnp.array([[0, 0, 1, 1]]), jnp.array([[3, 0, 4, 1]])
        >>> print(GIoU().update(preds, target).compute())  # 0 - (4 - 2) / 4
        -0.5
    """

    value_range = (-1.0, 1.0)
    measure = "giou"


class DIoU(BoxOverlap):
    """The mean distance IoU: the IoU less the squared distance of the centres.

    IoU - d^2 / c^2, where d is the distance of the centres, and c the diagonal of the smallest box
    that holds both: above -1, and at most 1. Two equal points subtract nothing. No data gives NaN.
    Z. Zheng and others (2020), https://doi.org/10.1609/aaai.v34i07.6999.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import DIoU
        >>> preds, target = jnp.array([[0, 0, 2, 2]]), jnp.array([[0, 0, 4, 4]])
        >>> print(DIoU().update(preds, target).compute())  # 4/16 - 2/32
        0.1875
    """

    value_range = (-1.0, 1.0)
    measure = "diou"


class CIoU(BoxOverlap):
    """The mean complete IoU: the DIoU less a term for different ratios of width to height.

    DIoU - v^2 / (1 - IoU + v), where v = (2 / pi * (atan(w / h) - atan(w' / h')))^2, from the
    widths and heights of both boxes. A box that is a point has the ratio of the other. No data
    gives NaN. Z. Zheng and others (2020), https://doi.org/10.1609/aaai.v34i07.6999.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import CIoU
        >>> preds, target = jnp.array([[0, 0, 2, 2]]), jnp.array([[0, 0, 4, 4]])
        >>> print(CIoU().update(preds, target).compute())  # squares: as DIoU
        0.1875
    """

    measure = "ciou"
