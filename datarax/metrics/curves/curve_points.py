"""Curves over all thresholds, as arrays of a fixed size: every point lies on the exact curve."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import positive_int
from datarax.metrics.curves.score_metric import ScoredMetric, spread
from datarax.statistics.scores import Groups


class RocPoints(NamedTuple):
    """What `ROC` computes: rates at descending thresholds."""

    fpr: jax.Array
    tpr: jax.Array
    thresholds: jax.Array


class PrecisionRecallPoints(NamedTuple):
    """What `PrecisionRecallCurve` computes: precision and recall at ascending thresholds."""

    precision: jax.Array
    recall: jax.Array
    thresholds: jax.Array


class Chosen(NamedTuple):
    """The points of a curve, from the highest threshold down; arrays are of shape (size, points).

    The first is that of no prediction at all, at an infinite threshold; after `last` it repeats.
    """

    true: nx.Pair
    false: nx.Pair
    positives: nx.Pair
    negatives: nx.Pair
    thresholds: jax.Array
    last: jax.Array


def _choose(groups: Groups, points: int) -> Chosen:
    """All groups that are not empty, or so many of them, evenly spaced along the curve."""
    occupied, true, false, lowest = (
        jax.tree.map(lambda x: x[:, ::-1], x)
        for x in (groups.occupied, groups.true, groups.false, groups.lowest)
    )
    rank = jnp.cumsum(occupied.astype(jnp.int32), -1)
    count = rank[:, -1:]
    positives, negatives = (spread(total, true[0].shape) for total in groups.totals)
    rates = [nx.pair_divide(*x) for x in ((true, positives), (false, negatives))]
    # By the mean of both rates, or by the one that there is.
    share = jnp.nanmean(jnp.stack(rates), 0)
    crowded = count > points - 1
    place = jnp.where(crowded, share * (points - 1), rank.astype(share.dtype))
    wanted = jnp.arange(points, dtype=jnp.int32)
    index = jax.vmap(lambda x: jnp.searchsorted(x, wanted.astype(x.dtype)))(place)
    end = jax.vmap(jnp.searchsorted)(rank, count)
    index = jnp.minimum(index, end).astype(jnp.int32)
    start = jnp.broadcast_to((wanted == 0)[None, :], index.shape)

    def taken(x: jax.Array, first: float) -> jax.Array:
        x = jnp.take_along_axis(x, jnp.minimum(index, x.shape[-1] - 1), -1)
        return jnp.where(start, jnp.asarray(first, x.dtype), x)

    last = jnp.where(crowded, jnp.int32(points - 1), count)
    (true, false) = ((taken(x[0], 0), taken(x[1], 0)) for x in (true, false))
    nothing = jnp.asarray(jnp.nan, lowest.dtype)
    thresholds = jnp.where(count > 0, taken(lowest, jnp.inf), nothing)
    positives, negatives = (spread(total, thresholds.shape) for total in groups.totals)
    return Chosen(true, false, positives, negatives, thresholds, last)


class Curve(ScoredMetric):
    def __init__(
        self,
        *,
        num_points: int = 1024,
        num_classes: int | None = None,
        num_labels: int | None = None,
        bits: int | None = None,
        exact: bool = False,
        capacity: int | None = None,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        positive_int(num_points, "num_points", least=2)
        self.num_points = num_points
        super().__init__(
            num_classes=num_classes,
            num_labels=num_labels,
            bits=bits,
            exact=exact,
            capacity=capacity,
            ignore_index=ignore_index,
            on_invalid=on_invalid,
        )

    def compute(self) -> Any:
        return self._by_task(self._read(_choose(self._groups(), self.num_points)))

    def _read(self, chosen: Chosen) -> Any:
        raise TypeError(type(self).__name__)


class ROC(Curve):
    """The receiver operating characteristic: the rates of true and of false positives.

    `compute()` gives a named tuple `(fpr, tpr, thresholds)` of arrays of shape (num_points,), or
    (C, num_points): of predictions `score >= threshold`, at descending thresholds, from (0, 0) at
    infinity on, as `sklearn.metrics.roc_curve(drop_intermediate=False)`.
    `update(preds, target, *, weights=None)` as for `AUROC`.

    Every point lies on the exact curve. There is one for each bin that holds a score: for each
    distinct score, where bins hold one each. Where there are more than `num_points`, so many of
    them, evenly along the curve: by the mean of both rates. Where there are fewer, the last one
    repeats. A rate is NaN without the class it is of, and all is NaN without data.

    Args:
        num_points: how many points the curve has.
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        bits: the resolution, see `datarax.statistics.ScoreHistogram`.
        exact: keep the scores themselves, up to `capacity`: every distinct score is a point.
        capacity: with `exact`, how many examples to keep; those that do not fit count as invalid.
        ignore_index: a target that leaves its example out.
        on_invalid: as for `Accuracy`.

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

    def _read(self, chosen: Chosen) -> RocPoints:
        return RocPoints(
            nx.pair_divide(chosen.false, chosen.negatives),
            nx.pair_divide(chosen.true, chosen.positives),
            chosen.thresholds,
        )


class PrecisionRecallCurve(Curve):
    """Precision and recall over all thresholds.

    `compute()` gives a named tuple `(precision, recall, thresholds)` of arrays of shape
    (num_points,), or (C, num_points): of predictions `score >= threshold`, at ascending
    thresholds, up to precision 1 and recall 0 at infinity, as
    `sklearn.metrics.precision_recall_curve`, whose thresholds lack the infinity.
    `update(preds, target, *, weights=None)` as for `AUROC`.

    Every point lies on the exact curve; which there are, is as for `ROC`. Without a positive
    recall is NaN, where scikit-learn gives 1; without data all is NaN.

    Args:
        num_points: how many points the curve has.
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        bits: the resolution, see `datarax.statistics.ScoreHistogram`.
        exact: keep the scores themselves, up to `capacity`: every distinct score is a point.
        capacity: with `exact`, how many examples to keep; those that do not fit count as invalid.
        ignore_index: a target that leaves its example out.
        on_invalid: as for `Accuracy`.

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

    def _read(self, chosen: Chosen) -> PrecisionRecallPoints:
        found = nx.pair_add(chosen.true, chosen.false)
        precision = nx.pair_divide(chosen.true, found)
        none = (found[0] == 0) & ~jnp.isnan(chosen.thresholds)
        precision = jnp.where(none, jnp.ones((), precision.dtype), precision)
        recall = nx.pair_divide(chosen.true, chosen.positives)
        # The other way round, and still with the repeated one at the end.
        place = jnp.arange(self.num_points, dtype=jnp.int32)[None, :]
        index = jnp.maximum(chosen.last - place, 0)
        points = (precision, recall, chosen.thresholds)
        return PrecisionRecallPoints(*(jnp.take_along_axis(x, index, -1) for x in points))
