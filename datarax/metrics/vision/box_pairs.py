"""Pairs of boxes, and how far they overlap."""

from typing import Self

import jax

from datarax._checks import same_shape
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.algebra.state import State
from datarax.numerics.boxes import Overlaps, PairSizes
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.batches import rows_weight
from datarax.statistics.box_batches import checked_boxes, unusable_boxes
from datarax.statistics.invalid_counts import InvalidCounts
from datarax.statistics.scaled_total import ScaledTotal, quotient

_MEASURES = Overlaps._fields


class BoxPairs(State):
    """The total of each measure of `Overlaps` over pairs of boxes, and their weight."""

    sums = ScaledTotal((len(_MEASURES) + 1,))
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
        measures = [x.to_float() for x in Overlaps.of(PairSizes.of(preds, target))]
        w = xp.broadcast_to(w, measures[0].shape)
        values = xp.stack([*measures, xp.ones_like(measures[0])], -1)
        total = ScaledTotal(self.sums.shape).of(values, w[:, None])
        return self.replace(sums=self.sums.combine(total), invalid=self.invalid.update(invalid))

    def mean(self, measure: str) -> jax.Array:
        """The weighted mean of a measure, rounded once; NaN where the weight is zero."""
        return quotient(self.sums[_MEASURES.index(measure)], self.sums[len(_MEASURES)])

    def as_ratio(self, measure: str) -> tuple[DoubleFloat, DoubleFloat]:
        """The total of a measure, and the total weight."""
        return self.sums[_MEASURES.index(measure)].double, self.sums[len(_MEASURES)].double
