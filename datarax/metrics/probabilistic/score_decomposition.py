"""A mean score of forecasts in three parts: miscalibration, discrimination and uncertainty."""

from typing import Literal, Self

import jax

from datarax._checks import choice, default_float
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.distributed.placement import outside_mesh
from datarax.metric.base import Metric, bounds_of
from datarax.metric.declared import shareable
from datarax.metric.reading import Bounds
from datarax.metrics.probabilistic.probability_losses import error_of_two, log_loss_of_two
from datarax.numerics.double_float import DoubleFloat, stack, where
from datarax.numerics.isotonic import isotonic_blocks
from datarax.statistics.batches import examples
from datarax.statistics.scaled_total import ScaledTotal
from datarax.statistics.score_kinds import FLOAT32_EPS, OfProbabilities
from datarax.statistics.scores import ScoreHistogram, log_odds

Score = Literal["brier", "log"]


class ScoredHistogram(ScoreHistogram, OfProbabilities):
    """A `ScoreHistogram` of forecasts of a binary task, with the sum of a score of each.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.probabilistic.score_decomposition import ScoredHistogram
        >>> seen = ScoredHistogram().update(jnp.array([0.5, 0.0, 1.0]), jnp.array([0, 1, 1]))
        >>> print(seen.sums.value, seen.groups().occupied.sum())
        [1.25 3.  ] 3
    """

    score: Score = "brier"
    """The score of a forecast: the squared error, or the logarithm of the probability."""

    sums = ScaledTotal((2,))
    """The weighted sum of the scores, and the sum of the weights."""

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        from_logits = bool(self.from_logits)
        seen = examples(
            preds,
            target,
            weights,
            probabilities=not from_logits,
            from_logits=from_logits,
            kind=self.invalid.scores,
            ignore_index=self.ignore_index,
        )
        if self.score == "brier":
            score = xp.square(error_of_two(seen.preds, seen.target, from_logits=from_logits))
        else:
            score = log_loss_of_two(seen.preds, seen.target, None if from_logits else seen.eps)
        # Float64 scores of the host are rounded where they are stored, which keeps their bounds.
        dtype = seen.preds.dtype if seen.eps < FLOAT32_EPS else default_float()
        scores = log_odds(seen.preds, False, dtype) if from_logits else seen.preds
        scores = scores.astype(dtype)
        w = xp.broadcast_to(seen.weight, score.shape)
        added = self.plus_rows(*(x.reshape(-1, 1) for x in (scores, seen.target, w)))
        return self.with_batch(seen.invalid, **added, sums=self.sums.plus((score, w), (w, None)))


class ScoreDecomposition(Metric):
    """The mean score of binary forecasts, in three parts: CORP, by isotonic regression.

    A dict of numbers of which `score = miscalibration - discrimination + uncertainty`:

    - "score": the mean Brier score, or log loss in nats, as `BrierScore` and `LogLoss` of a binary
      task. It does not depend on the bins.
    - "miscalibration": what the score would lose if the forecasts were recalibrated, by the
      non-decreasing function of them that gives the least score. 0 for calibrated forecasts.
    - "discrimination": by how much the recalibrated forecasts are better than the same forecast
      for all, the share of positives. 0 if the forecasts tell nothing.
    - "uncertainty": the score of that share, f: `f * (1 - f)`, or the entropy of f.

    Lower is better, except for discrimination. No part is negative. With `score="log"` and logits,
    a target with a logit of -inf gives an infinite score and miscalibration; probabilities are
    clipped as by `LogLoss`. No data gives NaN.

    The recalibrated forecasts are found from the bins of `datarax.statistics.ScoreHistogram`, as if
    the forecasts of one bin were equal. They are those of
    `sklearn.isotonic.IsotonicRegression` if each bin holds one distinct forecast. `bounds()` are
    certain for any order within the bins; reading the result warns (`PrecisionWarning`) if they are
    more than 0.01 apart. Weights count as repetitions.

    T. Dimitriadis, T. Gneiting and A. I. Jordan (2021), Stable reliability diagrams for
    probabilistic classifiers, https://doi.org/10.1073/pnas.2016191118.

    Raises:
        MetricInputError: `score` is not "brier" or "log", or `bits` are not from 10 to 22.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ScoreDecomposition
        >>> preds, target = jnp.array([0.1, 0.2, 0.8, 0.9]), jnp.array([0, 1, 0, 1])
        >>> for name, value in ScoreDecomposition().update(preds, target).results().items():
        ...     print(name, round(value, 3))
        discrimination 0.125
        miscalibration 0.2
        score 0.325
        uncertainty 0.25
    """

    value_range = (0.0, float("inf"))
    tasks = ("binary",)
    needs_scores = True
    score: Score = "brier"
    """The score: "brier", the squared error, or "log", minus the logarithm of the probability of
    the target."""
    from_logits: bool = False
    """True if `preds` are logits of a sigmoid, False for probabilities; values are never
    inspected."""
    bits: int | None = None
    """The resolution of the histogram, from 10 to 22; `None` is 16. See
    `datarax.statistics.ScoreHistogram`."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted as invalid."""

    statistic: ScoredHistogram = state()

    def __post_init__(self) -> None:
        choice(self.score, ("brier", "log"), "score")
        self.statistic = ScoredHistogram.from_fields(self)

    @shareable
    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: the forecasts of the positive class, floats of any shape.
            target: 0/1, of the same shape.
            weights: broadcast against the leading axes of `target`; zero excludes an example.

        Raises:
            MetricInputError: the shapes differ; shows both.
        """
        return self.replace(statistic=self.statistic.update(preds, target, weights=weights))

    @outside_mesh
    def bounds(self) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Bounds `(lower, upper)` on the exact values: two dicts with the names of the results.

        Those of the score and the uncertainty are equal, up to the rounding of a float. The lower
        bounds of miscalibration and discrimination are what `compute` gives. The upper ones have
        the best order of the forecasts within each bin: those of its positives are the higher ones.
        If each bin holds one distinct forecast, all are equal.
        """
        return bounds_of(self)

    def compute(self) -> PyTree:
        return self.value_and_bounds()[0]

    def value_and_bounds(self) -> tuple[PyTree, Bounds]:
        groups = self.statistic.groups()
        p, n = groups.positives[0], groups.negatives[0]
        of_all = groups.total_positives[0], groups.total_negatives[0]
        total = (of_all[0] + of_all[1])[0]
        sums = self.statistic.sums
        score = (sums[0].number / sums[1].number).to_double()
        uncertainty = _loss(*of_all, self.score) / total
        # The forecasts as they are, and one forecast for all, are non-decreasing functions of the
        # forecasts, too. So the recalibrated ones are no worse, but for the bins and for rounding.
        worst = _least(score, uncertainty)
        # Equal forecasts within a bin are one order of them, and the one with the least freedom.
        # The best order has its positives above its negatives: if another order has a better
        # function, so has this one, whose values are those of the other in their order.
        apart = ~groups.is_tie[0]
        first, second = where(apart, p * 0, p), where(apart, p, p * 0)
        pooled, best = (
            _least(_loss(*isotonic_blocks(*both)[:2], self.score) / total, worst)
            for both in ((p, n), (_in_turn(first, second), _in_turn(n, n * 0)))
        )
        value, upper = (
            {
                "score": score,
                "miscalibration": score - recalibrated,
                "discrimination": uncertainty - recalibrated,
                "uncertainty": uncertainty,
            }
            for recalibrated in (pooled, _least(best, pooled))
        )
        lower, upper = ({name: x.to_float() for name, x in each.items()} for each in (value, upper))
        return value, Bounds(lower, upper, 0.01)


def _in_turn(first: DoubleFloat, second: DoubleFloat) -> DoubleFloat:
    """An element of one array after an element of the other, (2 * n,)."""
    return stack([first, second], -1).reshape(-1)


def _least(a: DoubleFloat, b: DoubleFloat) -> DoubleFloat:
    return where(a < b, a, b)


def _loss(positives: DoubleFloat, negatives: DoubleFloat, score: Score) -> DoubleFloat:
    """The total score of groups (n,) whose forecast is their share of positives; a number."""
    if score == "brier":
        weight = positives + negatives
        some = weight.high > 0
        share = positives / where(some, weight, weight * 0 + 1)
        return (share * negatives).sum()
    terms = stack([positives, negatives]).evaluated(_weight_times_entropy)
    return DoubleFloat.of(terms).sum()


def _weight_times_entropy(both: jax.Array) -> jax.Array:
    """Of weights of two classes, (2, n): the total weight times the entropy of the shares."""
    weight, less = xp.sum(both, 0), xp.min(both, 0)
    share = less / xp.where(weight > 0, weight, 1)
    log = xp.log(xp.where(share > 0, share, 1))
    return -(less * log + (weight - less) * xp.log1p(-share))
