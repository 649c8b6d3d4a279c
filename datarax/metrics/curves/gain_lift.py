"""How far scores set positives apart from negatives: distance, gain and lift."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax.metrics.curves.curve_points import Chosen, Curve
from datarax.metrics.curves.score_metric import (
    ScoredMetric,
    among_highest,
    minus,
    number_from,
    spread,
)


class GainPoints(NamedTuple):
    """What `GainCurve` computes: the share of positives found, at descending thresholds."""

    fraction: jax.Array
    gain: jax.Array
    thresholds: jax.Array


class LiftPoints(NamedTuple):
    """What `LiftCurve` computes: the lift, at descending thresholds."""

    fraction: jax.Array
    lift: jax.Array
    thresholds: jax.Array


class KolmogorovSmirnov(ScoredMetric):
    """The Kolmogorov-Smirnov distance between the scores of positives and those of negatives.

    The greatest difference of their cumulative distributions, `max |TPR - FPR|` over all
    thresholds, as `scipy.stats.ks_2samp(...).statistic`.
    `update(preds, target, *, weights=None)` as for `AUROC`. Exact where bins hold one distinct
    score each; else it may lack up to the greater share of positives or negatives that one bin
    holds. NaN without both a positive and a negative.

    Args:
        num_classes: how many classes a multiclass task has: one distance for each.
        num_labels: how many labels a multilabel task has: one for each. Neither: binary.
        bits: the resolution, see `datarax.statistics.ScoreHistogram`.
        exact: keep the scores themselves, up to `capacity`.
        capacity: with `exact`, how many examples to keep; those that do not fit count as invalid.
        ignore_index: a target that leaves its example out.
        on_invalid: as for `Accuracy`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import KolmogorovSmirnov
        >>> metric = KolmogorovSmirnov()
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(metric.compute())
        0.5
    """

    def compute(self) -> jax.Array:
        groups = self._groups()
        positives, negatives = (spread(total, groups.is_tie.shape) for total in groups.totals)
        true, false = (
            nx.pair_product(groups.true, negatives),
            nx.pair_product(groups.false, positives),
        )
        apart = nx.pair_add(true, minus(false))
        pairs = nx.pair_product(positives, negatives)
        farthest = jnp.max(jnp.abs(nx.pair_divide(apart, pairs)), -1)
        # Said in so many words, as a maximum may drop NaN.
        none = jnp.asarray(jnp.nan, farthest.dtype)
        return self._by_task(jnp.where(pairs[0][:, 0] > 0, farthest, none))


class Gain(ScoredMetric):
    """The share of all positives that are among the highest scores, a fraction of all examples.

    A point of the cumulative gains curve, straight between thresholds: where a tie, or a bin,
    straddles the fraction, its examples count in proportion, as if drawn at random.
    `update(preds, target, *, weights=None)` as for `AUROC`. NaN without a positive.

    Args:
        fraction: of the examples, with the highest scores; above 0, up to 1.
        num_classes: how many classes a multiclass task has: one gain for each.
        num_labels: how many labels a multilabel task has: one for each. Neither: binary.
        bits: the resolution, see `datarax.statistics.ScoreHistogram`.
        exact: keep the scores themselves, up to `capacity`.
        capacity: with `exact`, how many examples to keep; those that do not fit count as invalid.
        ignore_index: a target that leaves its example out.
        on_invalid: as for `Accuracy`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Gain
        >>> metric = Gain(fraction=0.25)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(metric.compute())
        0.5
    """

    def __init__(
        self,
        *,
        fraction: float,
        num_classes: int | None = None,
        num_labels: int | None = None,
        bits: int | None = None,
        exact: bool = False,
        capacity: int | None = None,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        self.fraction = number_from(fraction, "fraction", above=0)
        super().__init__(
            num_classes=num_classes,
            num_labels=num_labels,
            bits=bits,
            exact=exact,
            capacity=capacity,
            ignore_index=ignore_index,
            on_invalid=on_invalid,
        )

    def _gain(self) -> jax.Array:
        groups = self._groups()
        within = nx.pair_add(groups.positives, groups.negatives)
        above = nx.pair_add(groups.positives_above, groups.negatives_above)
        total = nx.pair_add(*groups.totals)
        _, share = among_highest(within, above, total, self.fraction)
        found = nx.pair_sum(nx.pair_scale(groups.positives, share))
        return nx.pair_divide(found, groups.totals[0])

    def compute(self) -> jax.Array:
        return self._by_task(self._gain())


class Lift(Gain):
    """How many times more positives are among the highest scores than among as many at random.

    The `Gain` at a fraction of the examples, divided by that fraction.
    `update(preds, target, *, weights=None)` as for `AUROC`. NaN without a positive.

    Args:
        fraction: of the examples, with the highest scores; above 0, up to 1.
        num_classes: how many classes a multiclass task has: one lift for each.
        num_labels: how many labels a multilabel task has: one for each. Neither: binary.
        bits: the resolution, see `datarax.statistics.ScoreHistogram`.
        exact: keep the scores themselves, up to `capacity`.
        capacity: with `exact`, how many examples to keep; those that do not fit count as invalid.
        ignore_index: a target that leaves its example out.
        on_invalid: as for `Accuracy`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Lift
        >>> metric = Lift(fraction=0.25)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(metric.compute())
        2.0
    """

    def compute(self) -> jax.Array:
        gain = self._gain()
        return self._by_task(gain / jnp.asarray(self.fraction, gain.dtype))


class GainCurve(Curve):
    """Cumulative gains: which share of the positives is among how many of the highest scores.

    `compute()` gives a named tuple `(fraction, gain, thresholds)` of arrays of shape
    (num_points,), or (C, num_points): of all examples the fraction with `score >= threshold`, and
    of the positives, at descending thresholds from (0, 0) on.
    `update(preds, target, *, weights=None)` as for `AUROC`.

    Every point lies on the exact curve; which there are, is as for `ROC`. Without a positive the
    gain is NaN; without data all is NaN.

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
        >>> from datarax.metrics import GainCurve
        >>> metric = GainCurve(num_points=5)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(metric.compute().fraction, metric.compute().gain)
        [0.   0.25 0.5  0.75 1.  ] [0.  0.5 0.5 1.  1. ]
    """

    def _read(self, chosen: Chosen) -> GainPoints:
        found, all_ = (
            nx.pair_add(*x)
            for x in ((chosen.true, chosen.false), (chosen.positives, chosen.negatives))
        )
        gain = nx.pair_divide(chosen.true, chosen.positives)
        return GainPoints(nx.pair_divide(found, all_), gain, chosen.thresholds)


class LiftCurve(GainCurve):
    """Lift: how many times more positives are among the highest scores than by chance.

    `compute()` gives a named tuple `(fraction, lift, thresholds)` as that of `GainCurve`; the lift
    is the gain over the fraction. At a fraction of 0 it is that of the highest score.
    `update(preds, target, *, weights=None)` as for `AUROC`.

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
        >>> from datarax.metrics import LiftCurve
        >>> metric = LiftCurve(num_points=5)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print([round(float(x), 3) for x in metric.compute().lift])
        [2.0, 2.0, 1.0, 1.333, 1.0]
    """

    def _read(self, chosen: Chosen) -> Any:
        fraction, gain, thresholds = super()._read(chosen)
        some = fraction > 0
        lift = gain / jnp.where(some, fraction, jnp.ones((), fraction.dtype))
        first = jnp.broadcast_to(lift[:, 1:2], lift.shape)
        return LiftPoints(fraction, jnp.where(some, lift, first), thresholds)
