"""Curves over the thresholds of scores, as arrays of a fixed size.

Every point lies on the exact curve.
"""

from typing import NamedTuple

import jax

from datarax._checks import positive_int
from datarax._typing import PyTree
from datarax._xp import vmap, xp
from datarax.metrics.curves.score_metric import ScoreMetric
from datarax.numerics.double_float import DoubleFloat


class RocPoints(NamedTuple):
    """The result of `ROC`: rates at descending thresholds."""

    fpr: jax.Array
    tpr: jax.Array
    thresholds: jax.Array


class PrecisionRecallPoints(NamedTuple):
    """The result of `PrecisionRecallCurve`: precision and recall at ascending thresholds."""

    precision: jax.Array
    recall: jax.Array
    thresholds: jax.Array


class DetPoints(NamedTuple):
    """The result of `DETCurve`: error rates at ascending thresholds."""

    fpr: jax.Array
    fnr: jax.Array
    thresholds: jax.Array


class CurvePoints(NamedTuple):
    """The counts at the points of a curve, in descending order of the thresholds.

    Arrays are of shape (size, points), with one row per class. The first point has an infinite
    threshold: nothing is predicted positive.
    """

    true_positives: DoubleFloat
    false_positives: DoubleFloat
    total_positives: DoubleFloat
    """The weight of all positives, of shape (size, 1)."""
    total_negatives: DoubleFloat
    """The weight of all negatives, of shape (size, 1)."""
    thresholds: jax.Array
    """The least score that is predicted positive; NaN without data."""
    last: jax.Array
    """The index of the last point, of shape (size, 1). All points after it repeat it."""

    @property
    def predicted_positives(self) -> DoubleFloat:
        """The weight of all examples with a score of at least the threshold."""
        return self.true_positives + self.false_positives

    @property
    def false_positive_rate(self) -> jax.Array:
        return (self.false_positives / self.total_negatives).to_float()

    @property
    def true_positive_rate(self) -> jax.Array:
        """The recall."""
        return (self.true_positives / self.total_positives).to_float()


class CurveMetric(ScoreMetric):
    """A curve over the thresholds of scores, as a fixed number of points.

    There is one point at infinity, and one for each bin that holds a score; with `exact`, one for
    each distinct score. If there are more than `num_points`, then `num_points` of them are chosen:
    evenly along the curve, by the mean of the true and the false positive rate. If there are fewer,
    the last point repeats.

    Raises:
        MetricInputError: `num_points` is not an integer of at least 2.
    """

    num_points: int | None = None
    """The number of points of the curve. `None` gives 1024; with `exact`, one for each score that
    may be kept and the one at infinity, so that none is left out: `capacity + 1`, or with
    `average="micro"` more."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_points is not None:
            positive_int(self.num_points, "num_points", least=2)

    def points(self) -> CurvePoints:
        """The points of all groups that are not empty, or `num_points` of them along the curve."""
        groups, points = self.groups(), self.num_points
        if points is None:
            points = groups.lowest.shape[-1] + 1 if self.exact else 1024
        positives, negatives = groups.total_positives, groups.total_negatives
        descending = groups.occupied, groups.true_positives, groups.false_positives, groups.lowest
        occupied, true, false, lowest = jax.tree.map(lambda x: x[:, ::-1], descending)
        # From here on, groups are in descending order of scores. The first group that is not empty
        # has rank 1; rank 0 is the point at infinity.
        rank = xp.cumsum(occupied.astype(xp.int32), -1)
        count = rank[:, -1:]
        # How far along the curve each group is, from 0 to 1: the mean of both rates. Without
        # positives or without negatives one rate is NaN; then the other is used.
        rates = [(true / positives).to_float(), (false / negatives).to_float()]
        share = xp.nanmean(xp.stack(rates), 0)
        is_crowded = count > points - 1
        # The place of each group on the curve, in points: ascending from 0.
        place = xp.where(is_crowded, share * (points - 1), rank.astype(share.dtype))
        # For each place 0, 1, ..., the first group that reaches it; at most the last group, `end`.
        wanted = xp.arange(points, dtype=xp.int32)
        index = vmap(lambda x: xp.searchsorted(x, wanted.astype(x.dtype)))(place)
        end = vmap(xp.searchsorted)(rank, count)
        index = xp.minimum(index, end).astype(xp.int32)
        # The first point has no group: its counts are 0, and its threshold is infinite.
        is_first = xp.broadcast_to((wanted == 0)[None, :], index.shape)

        def taken(x: jax.Array, first: float = 0) -> jax.Array:
            x = xp.take_along_axis(x, xp.minimum(index, x.shape[-1] - 1), -1)
            return xp.where(is_first, first, x)

        return CurvePoints(
            true.map(taken),
            false.map(taken),
            positives,
            negatives,
            xp.where(count > 0, taken(lowest, xp.inf), xp.nan),
            xp.where(is_crowded, points - 1, count),
        )


class ROC(CurveMetric):
    """The receiver operating characteristic: true and false positive rates over all thresholds.

    `compute()` gives a named tuple `(fpr, tpr, thresholds)` of arrays of shape (num_points,), or
    (C, num_points): the rates of predictions `score >= threshold`, at descending thresholds. The
    first point is (0, 0) at an infinite threshold. Without a positive the true positive rate is
    NaN; without a negative the false positive rate is. Without data all values are NaN. As
    `sklearn.metrics.roc_curve(drop_intermediate=False)`. T. Fawcett (2006),
    https://doi.org/10.1016/j.patrec.2005.10.010.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ROC
        >>> metric = ROC(num_points=6)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> for values in metric.compute():
        ...     print(values)
        [0.  0.  0.5 0.5 1.  1. ]
        [0.  0.5 0.5 1.  1.  1. ]
        [ inf  8.   3.   0.5 -2.  -2. ]
    """

    def compute(self) -> PyTree:
        points = self.points()
        rates = points.false_positive_rate, points.true_positive_rate
        return self.by_task(RocPoints(*rates, points.thresholds))


class PrecisionRecallCurve(CurveMetric):
    """Precision and recall over all thresholds.

    `compute()` gives a named tuple `(precision, recall, thresholds)` of arrays of shape
    (num_points,), or (C, num_points), for predictions `score >= threshold` at ascending thresholds.
    The last point has an infinite threshold, precision 1 and recall 0. Without a positive the
    recall is NaN, where scikit-learn gives 1. Without data all values are NaN. As
    `sklearn.metrics.precision_recall_curve`, which leaves out the infinite threshold.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PrecisionRecallCurve
        >>> metric = PrecisionRecallCurve(num_points=6)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> for values in metric.compute():
        ...     print([round(float(x), 3) for x in values])
        [0.5, 0.667, 0.5, 1.0, 1.0, 1.0]
        [1.0, 1.0, 0.5, 0.5, 0.0, 0.0]
        [-2.0, 0.5, 3.0, 8.0, inf, inf]
    """

    def compute(self) -> PyTree:
        points = self.points()
        predicted = points.predicted_positives
        precision = (points.true_positives / predicted).to_float()
        # Precision is 0/0 at the infinite threshold: 1 by convention. Without data it stays NaN.
        predicts_nothing = (predicted.high == 0) & ~xp.isnan(points.thresholds)
        columns = PrecisionRecallPoints(
            xp.where(predicts_nothing, 1, precision),
            points.true_positive_rate,
            points.thresholds,
        )
        return self.by_task(_reversed(columns, 0, points.last))


class DETCurve(CurveMetric):
    """The detection error tradeoff: false positive and false negative rates over the thresholds.

    `compute()` gives a named tuple `(fpr, fnr, thresholds)` of arrays of shape (num_points,), or
    (C, num_points), for predictions `score >= threshold` at ascending thresholds: from the highest
    one without a false negative to the lowest one without a false positive. The last point repeats.
    Without a positive the false negative rate is NaN; without a negative the false positive rate
    is. Without data all values are NaN. As `sklearn.metrics.det_curve`. A. Martin and others
    (1997), The DET curve in assessment of detection task performance.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import DETCurve
        >>> metric = DETCurve(num_points=5)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> for values in metric.compute():
        ...     print(values)
        [0.5 0.5 0.  0.  0. ]
        [0.  0.5 0.5 0.5 0.5]
        [0.5 3.  8.  8.  8. ]
    """

    def compute(self) -> PyTree:
        points = self.points()
        missed = points.total_positives - points.true_positives
        columns = DetPoints(
            points.false_positive_rate,
            (missed / points.total_positives).to_float(),
            points.thresholds,
        )
        # The points descend in their thresholds, so false positives rise, and misses fall.
        has_all = missed.high <= 0
        end = xp.argmax(has_all, -1, keepdims=True).astype(xp.int32)
        alarms = points.false_positives.high > 0
        start = xp.sum(~alarms, -1, keepdims=True, dtype=xp.int32) - 1
        return self.by_task(_reversed(columns, xp.minimum(start, end), end))


def _reversed(columns: PyTree, first: jax.Array | int, last: jax.Array) -> PyTree:
    """The points from `last` down to `first`, which repeats."""
    place = xp.arange(columns[0].shape[-1], dtype=xp.int32)[None, :]
    index = xp.maximum(last - place, first)
    return jax.tree.map(lambda x: xp.take_along_axis(x, index, -1), columns)
