"""`SquaredWeights`: how many observations weighted rows count as, by target and prediction."""

from typing import Any, Self

from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.metrics.base import Metric
from datarax.numerics.double_float import DoubleFloat, stack
from datarax.statistics.class_counts import ConfusionCounts


class SquaredWeights(Metric):
    """The squared weights of examples, in a statistic of counts by class.

    The variance of a weighted sum of independent rows is a sum over squared weights, and the state
    of the metric itself only has sums over weights. See `Metric.squared_weights`.

    Args:
        statistic: a `ClassCounts` or a `ConfusionCounts`, without data.
    """

    statistic: Any = state()

    def __init__(self, statistic: Any):
        self.statistic = statistic

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in.

        Args:
            preds: as of the metric that the squares are for.
            target: as of that metric, with one example in each row.
            weights: of the rows.

        Raises:
            MetricInputError: rows hold several examples, which may depend on each other.
        """
        # Of several labels, the last axis is that of labels.
        axes = 2 if getattr(self.statistic, "num_labels", None) else 1
        if xp.ndim(target) > axes:
            raise MetricInputError(
                f"target of shape {xp.shape(target)}; an interval takes rows of one example each, "
                f"which are its observations. Reshape to one axis of examples if they are "
                f"independent; else there is Bootstrap"
            )
        if weights is not None and xp.asarray(weights).dtype != xp.bool_:
            weights = xp.asarray(weights)
            weights = weights * weights
        return self.replace(statistic=self.statistic.update(preds, target, weights=weights))

    @property
    def of_positives(self) -> DoubleFloat:
        """Of the examples of each class, (C,); of a `ClassCounts`."""
        tp, _, fn, _ = self._cells
        return tp + fn

    @property
    def of_negatives(self) -> DoubleFloat:
        """Of the examples of all other classes, (C,)."""
        _, fp, _, tn = self._cells
        return fp + tn

    @property
    def _cells(self) -> list[DoubleFloat]:
        cells = self.statistic.cells.double
        return [cells[i] for i in range(4)]

    @property
    def by_kind(self) -> DoubleFloat:
        """By target and prediction, (C, C); (2, 2) of a binary task."""
        if isinstance(self.statistic, ConfusionCounts):
            return self.statistic.matrix.double
        tp, fp, fn, tn = self._cells
        return stack([tn, fp, fn, tp], -1).reshape(2, 2)
