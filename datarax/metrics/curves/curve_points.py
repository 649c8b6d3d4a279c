"""Curves over all thresholds, as arrays of a fixed size: every point lies on the exact curve."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from datarax._checks import positive_int
from datarax._typing import PyTree
from datarax.metrics.curves.score_metric import ScoreMetric
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.scores import Groups


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


class CurvePoints(NamedTuple):
    """Counts at the points of a curve, by descending threshold; arrays are of shape (size, points).

    At the first point nothing is predicted positive; its threshold is infinite.
    """

    true_positives: DoubleFloat
    false_positives: DoubleFloat
    total_positives: DoubleFloat
    """Of shape (size, 1)."""
    total_negatives: DoubleFloat
    """Of shape (size, 1)."""
    thresholds: jax.Array
    """NaN without data."""
    last: jax.Array
    """The index of the last point, which repeats up to the end; of shape (size, 1)."""

    @property
    def predicted_positives(self) -> DoubleFloat:
        """The weight of all scores of at least the threshold."""
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

    There is one point for each bin that holds a score: for each distinct score where bins hold one
    each, and with `exact`. If there are more than `num_points`, so many are chosen evenly along the
    curve, by the mean of the true and the false positive rate; if fewer, the last one repeats.

    Raises:
        MetricInputError: a `num_points` that is not an integer of at least 2.
    """

    num_points: int = 1024
    """How many points the curve has."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int(self.num_points, "num_points", least=2)

    def points(self) -> CurvePoints:
        """The points of the curve."""
        return _chosen(self.groups(), self.num_points)


def _chosen(groups: Groups, points: int) -> CurvePoints:
    """All groups that are not empty, or `points` of them, evenly along the curve."""
    positives, negatives = groups.total_positives, groups.total_negatives
    descending = groups.occupied, groups.true_positives, groups.false_positives, groups.lowest
    occupied, true, false, lowest = jax.tree.map(lambda x: x[:, ::-1], descending)
    rank = jnp.cumsum(occupied.astype(jnp.int32), -1)
    count = rank[:, -1:]
    # How far along the curve, by the mean of both rates, or by the one that is defined.
    rates = [(true / positives).to_float(), (false / negatives).to_float()]
    share = jnp.nanmean(jnp.stack(rates), 0)
    is_crowded = count > points - 1
    place = jnp.where(is_crowded, share * (points - 1), rank.astype(share.dtype))
    # The first group that reaches each of the wanted places, and at most the last group.
    wanted = jnp.arange(points, dtype=jnp.int32)
    index = jax.vmap(lambda x: jnp.searchsorted(x, wanted.astype(x.dtype)))(place)
    end = jax.vmap(jnp.searchsorted)(rank, count)
    index = jnp.minimum(index, end).astype(jnp.int32)
    is_first = jnp.broadcast_to((wanted == 0)[None, :], index.shape)

    def taken(x: jax.Array, first: float = 0) -> jax.Array:
        x = jnp.take_along_axis(x, jnp.minimum(index, x.shape[-1] - 1), -1)
        return jnp.where(is_first, first, x)

    return CurvePoints(
        true.map(taken),
        false.map(taken),
        positives,
        negatives,
        jnp.where(count > 0, taken(lowest, jnp.inf), jnp.nan),
        jnp.where(is_crowded, points - 1, count),
    )


class ROC(CurveMetric):
    """The receiver operating characteristic: true and false positive rates over all thresholds.

    `compute()` gives a named tuple `(fpr, tpr, thresholds)` of arrays of shape (num_points,), or
    (C, num_points): the rates of predictions `score >= threshold`, at descending thresholds, from
    (0, 0) at infinity. A rate is NaN without the class it refers to; without data all are NaN. As
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
    (num_points,), or (C, num_points): of predictions `score >= threshold`, at ascending thresholds,
    up to precision 1 and recall 0 at infinity. Without a positive the recall is NaN, where
    scikit-learn gives 1; without data all is NaN. As `sklearn.metrics.precision_recall_curve`,
    whose thresholds lack the infinity.

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
        predicts_nothing = (predicted.high == 0) & ~jnp.isnan(points.thresholds)
        columns = (
            jnp.where(predicts_nothing, 1, precision),
            points.true_positive_rate,
            points.thresholds,
        )
        # In reverse order, and again with the repeated point at the end.
        place = jnp.arange(self.num_points, dtype=jnp.int32)[None, :]
        index = jnp.maximum(points.last - place, 0)
        columns = (jnp.take_along_axis(x, index, -1) for x in columns)
        return self.by_task(PrecisionRecallPoints(*columns))
