"""Kolmogorov-Smirnov distance, gain and lift: how well scores separate the two classes."""

from typing import NamedTuple

import jax

from datarax._typing import PyTree
from datarax._xp import xp
from datarax.metrics.curves.curve_points import CurveMetric
from datarax.metrics.curves.score_metric import ScoreMetric, fraction, share_among_highest
from datarax.numerics.scaling import nan_where


class GainPoints(NamedTuple):
    """The result of `GainCurve`: the share of positives found, at descending thresholds."""

    fraction: jax.Array
    gain: jax.Array
    thresholds: jax.Array


class LiftPoints(NamedTuple):
    """The result of `LiftCurve`: the lift, at descending thresholds."""

    fraction: jax.Array
    lift: jax.Array
    thresholds: jax.Array


class KolmogorovSmirnov(ScoreMetric):
    """The Kolmogorov-Smirnov distance between the scores of positives and those of negatives.

    max |TPR - FPR| over all thresholds: the greatest difference of the two cumulative
    distributions. NaN without a positive or without a negative. As
    `scipy.stats.ks_2samp(...).statistic`. Exact if each bin holds one distinct score. Otherwise it
    may be too small: at most by the share of the positives, or of the negatives, in one bin.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import KolmogorovSmirnov
        >>> metric = KolmogorovSmirnov()
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(metric.compute())
        0.5
    """

    higher_is_better = True

    def compute(self) -> PyTree:
        groups = self.groups()
        positives, negatives = groups.total_positives, groups.total_negatives
        pairs = positives * negatives
        apart = groups.true_positives * negatives - groups.false_positives * positives
        farthest = xp.max(xp.abs((apart / pairs).to_float()), -1)
        # A maximum may drop NaN, so undefined distances are made NaN again.
        return self.by_task(nan_where(~(pairs.high[:, 0] > 0), farthest))


class Gain(ScoreMetric):
    """The share of all positives that are among a fraction of the examples with highest scores.

    A point of the cumulative gains curve, with straight lines between thresholds: if the limit cuts
    a tie or a bin, its examples count in proportion, as if drawn at random. NaN without a positive.

    Raises:
        MetricInputError: `fraction` is not above 0 and at most 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Gain
        >>> metric = Gain(fraction=0.25)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(metric.compute())
        0.5
    """

    higher_is_better = True
    fraction: float
    """The fraction of the examples, those with the highest scores; above 0, up to 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fraction = fraction(self.fraction, "fraction", above=0)

    def compute(self) -> PyTree:
        groups = self.groups()
        within = groups.positives + groups.negatives
        above = groups.positives_above + groups.negatives_above
        share = share_among_highest(within, above, self.fraction)
        found = (groups.positives * share).sum()
        return self.by_task(found / groups.total_positives[:, 0])


class Lift(Gain):
    """The ratio of the positives among the highest scores to those of a random choice.

    The `Gain` at a fraction of the examples, divided by that fraction. NaN without a positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Lift
        >>> metric = Lift(fraction=0.25)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(metric.compute())
        2.0
    """

    def compute(self) -> PyTree:
        return super().compute() / self.fraction


class GainCurve(CurveMetric):
    """Cumulative gains: the share of the positives among each fraction of the highest scores.

    `compute()` gives a named tuple `(fraction, gain, thresholds)` of arrays of shape
    (num_points,), or (C, num_points): the fraction of all examples with `score >= threshold`, and
    that of the positives, at descending thresholds from (0, 0). Without a positive the gain is NaN;
    without data all values are NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import GainCurve
        >>> metric = GainCurve(num_points=5)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(metric.compute().fraction, metric.compute().gain)
        [0.   0.25 0.5  0.75 1.  ] [0.  0.5 0.5 1.  1. ]
    """

    def compute(self) -> PyTree:
        points = self.points()
        total = points.total_positives + points.total_negatives
        reached = (points.predicted_positives / total).to_float()
        return self.by_task(GainPoints(reached, points.true_positive_rate, points.thresholds))


class LiftCurve(GainCurve):
    """Lift: how many times as many positives are among the highest scores as by chance.

    `compute()` gives a named tuple `(fraction, lift, thresholds)` as that of `GainCurve`; the lift
    is gain / fraction. At a fraction of 0 it is the lift of the highest score.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import LiftCurve
        >>> metric = LiftCurve(num_points=5)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print([round(float(x), 3) for x in metric.compute().lift])
        [2.0, 2.0, 1.0, 1.333, 1.0]
    """

    def compute(self) -> PyTree:
        reached, gain, thresholds = super().compute()
        some = reached > 0
        lift = gain / xp.where(some, reached, 1)
        highest = xp.broadcast_to(lift[..., 1:2], lift.shape)
        return LiftPoints(reached, xp.where(some, lift, highest), thresholds)
