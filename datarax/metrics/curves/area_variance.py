"""The variance of areas under curves, from what each example adds to an area."""

from functools import partial
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import vmap, xp
from datarax.algebra.fields import state
from datarax.metric.base import Metric
from datarax.metric.sampling import Sampling
from datarax.metric.squared_weights import SquaredWeights, SummedSquares
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaling import nan_where
from datarax.statistics.class_counts import ClassCounts
from datarax.statistics.score_sample import SampledRows, ScoreSample
from datarax.statistics.scores import Groups, Scores


class Influences(NamedTuple):
    """What an area gains per share of the weight of a class, for an example of it in each group.

    Of shape (size, groups). Over all data, the influences of a class add up to 0.
    """

    of_positives: DoubleFloat
    of_negatives: DoubleFloat

    def __mul__(self, factor: float) -> "Influences":  # type: ignore[override]
        return Influences(self.of_positives * factor, self.of_negatives * factor)


class SampledScores(Metric):
    """The squared weights by class, and a sample of the rows of one or two models.

    Args:
        scores: the statistic of a metric, without data.
        models: how many models score each row.
    """

    squares: SquaredWeights = state()
    squares_b: Any = state(optional=True)
    """Those of the second model, which may leave out other rows."""
    sample: ScoreSample = state()

    def __init__(self, scores: Scores, models: int):
        self.squares = squared_weights_of(scores)
        if models > 1:
            self.squares_b = self.squares
        self.sample = ScoreSample.from_fields(scores, pooled=False, models=models)

    def update(
        self,
        preds: ArrayLike,
        target: ArrayLike,
        *,
        preds_b: ArrayLike | None = None,
        weights: Weights = None,
        index: ArrayLike | None = None,
    ) -> Self:
        """A new metric with the batch folded in. The arguments are those of `ScoreSample.update`.

        Raises:
            MetricInputError: rows hold several examples, which may depend on each other.
        """
        states: dict[str, PyTree] = {"squares": self.squares.update(preds, target, weights=weights)}
        if self.squares_b is not None:
            states["squares_b"] = self.squares_b.update(preds_b, target, weights=weights)
        sample = self.sample.update(preds, target, preds_b=preds_b, weights=weights, index=index)
        return self.with_parts({**states, "sample": sample})

    def of_model(self, model: int) -> SquaredWeights:
        """The squared weights of the first model, 0, or of the second."""
        return self.squares_b if model else self.squares


def squared_weights_of(scores: Scores) -> SquaredWeights:
    """The sums of the squared weights of the positives and of the negatives of each class."""
    # Only the targets matter; of logits, any score is one.
    counts = ClassCounts(
        num_classes=scores.num_classes,
        num_labels=scores.num_labels,
        ignore_index=scores.ignore_index,
        from_logits=scores.num_classes is None,
    )
    return SquaredWeights(counts)


def variance_by_influence(
    groups: Groups, influences: Influences, squares: SquaredWeights
) -> jax.Array:
    """The variance of an area from the influence of an example of each group, of shape (size,).

    With m examples of a class, its part of the variance is `mean(influence**2) / (m - 1)`. Weighted
    examples count as `(sum w)**2 / sum w**2` (Kish), which is exact where weights do not depend on
    scores. NaN for fewer than 2 examples of a class.
    """
    total, single = DoubleFloat.of(xp.zeros(groups.scale.shape, groups.scale.dtype)), False
    for x, whole, influence, squared in (
        (groups.positives, groups.total_positives, influences[0], squares.of_positives),
        (groups.negatives, groups.total_negatives, influences[1], squares.of_negatives),
    ):
        mean_square = (x * influence * influence).sum((-1,)) / whole[:, 0]
        m = _observations(groups, whole, squared)
        total, single = total + mean_square / (m - 1), single | ~(m.to_float() > 1.5)
    return nan_where(single, total.to_float())


def _observations(groups: Groups, whole: DoubleFloat, squared: DoubleFloat) -> DoubleFloat:
    """The number of observations that the examples of a class count as."""
    weight = whole[:, 0] / DoubleFloat.of(groups.scale)
    return weight * weight / squared


def gains_of_rows(
    groups: Groups, influences: Influences, squares: SquaredWeights, rows: SampledRows, model: int
) -> tuple[jax.Array, jax.Array]:
    """What each row of a sample adds to the area of each class, and the variance beside it.

    The gains (size, rows) are such that, over all rows, the sum of their squares is the variance by
    `variance_by_influence`: the sample only says how areas vary together. The second array (size,)
    is the variance of classes of which no sampled row has a gain.
    """
    gains = _gains(groups, influences, squares, rows.scores[model], rows.positive, rows.weights)
    exact = variance_by_influence(groups, influences, squares)
    seen = xp.sum(gains * gains * rows.stands_for[None], 1)
    factor = xp.where(seen > 0, xp.sqrt(exact / xp.where(seen > 0, seen, 1)), 0)
    return gains * factor[:, None], xp.where(seen > 0, 0, exact)


def pooled_gains_of_rows(
    groups: Groups,
    influences: Influences,
    squares: SquaredWeights,
    rows: SampledRows,
    model: int,
    ignored: int | None,
) -> jax.Array:
    """What each row adds to the area of one binary task, whose examples its scores are: (rows,).

    The scores for the class that is `ignored` are no examples.
    """
    classes = [label for label in range(len(rows.positive)) if label != ignored]
    kept, size = np.asarray(classes), len(classes)
    one = squares.summed(kept)
    gains = _gains(
        groups,
        influences,
        one,
        rows.scores[model][kept].reshape(1, -1),
        rows.positive[kept].reshape(1, -1),
        xp.tile(rows.weights, size),
    )
    return xp.sum(gains.reshape(size, -1), 0)


def _gains(
    groups: Groups,
    influences: Influences,
    squares: SquaredWeights | SummedSquares,
    scores: jax.Array,
    positive: jax.Array,
    weights: jax.Array,
) -> jax.Array:
    place = _group_of(groups, scores)
    parts = []
    for influence, whole, squared in (
        (influences[0], groups.total_positives, squares.of_positives),
        (influences[1], groups.total_negatives, squares.of_negatives),
    ):
        m = _observations(groups, whole, squared).to_float()
        per_weight = xp.sqrt(m / (m - 1)) * groups.scale / whole[:, 0].to_float()
        gain = xp.take_along_axis(influence.to_float(), place, -1)
        parts.append(gain * (nan_where(~(m > 1.5), per_weight)[:, None] * weights[None]))
    left_out = xp.isnan(scores) | (weights == 0)[None]
    return xp.where(left_out, 0, xp.where(positive, *parts))


def _group_of(groups: Groups, scores: jax.Array) -> jax.Array:
    """The index of the group of each score, (size, rows); any index for NaN."""
    order = xp.argsort(~groups.occupied, -1, stable=True)
    count = xp.sum(groups.occupied, -1, keepdims=True, dtype=xp.int32)
    is_used = xp.arange(order.shape[-1], dtype=xp.int32)[None] < count
    edges = xp.where(is_used, xp.take_along_axis(groups.lowest, order, -1), xp.inf)
    after = vmap(partial(xp.searchsorted, side="right"))(edges, scores)
    place = xp.clip(after.astype(xp.int32) - 1, 0, xp.maximum(count - 1, 0))
    return xp.take_along_axis(order, place, -1)


class AreaSampling(Sampling):
    """The standard error of areas under curves. A subclass defines `influences`."""

    def influences(self) -> Influences:
        """What the area of each class gains by an example of each group."""
        raise TypeError(f"{type(self).__name__} does not define influences()")

    @property
    def _is_by_class(self) -> bool:
        """True if the areas are not averaged."""
        return self.metric.is_binary or self.metric.average is None

    def squares(self) -> SquaredWeights | SampledScores | None:
        if self._is_by_class:
            return squared_weights_of(self.metric.statistic)
        # The areas of classes depend on each other, which only rows with all their scores show.
        return self._sample(1)

    def paired_sample(self) -> SampledScores | None:
        return self._sample(2)

    def _sample(self, models: int) -> SampledScores | None:
        sampled = SampledScores(self.metric.statistic, models)
        return sampled if sampled.sample.is_large_enough else None

    def variance(self, squares: PyTree) -> jax.Array:
        if isinstance(squares, SquaredWeights):
            variance = variance_by_influence(self.metric.groups(), self.influences(), squares)
            return self.metric.by_task(variance)
        gains, beside = self._gains(squares, 0)
        return _variance_of(squares, gains) + beside

    def paired_variance(self, other: Any, sampled: SampledScores) -> tuple[jax.Array, jax.Array]:
        a, beside_a = self._gains(sampled, 0)
        b, beside_b = other.sampling()._gains(sampled, 1)
        variance = _variance_of(sampled, b - a) + beside_a + beside_b
        variance = self.metric.by_task(variance) if variance.ndim else variance
        return variance, self._paired_size(sampled)

    def _paired_size(self, sampled: SampledScores) -> jax.Array:
        """The harmonic mean of the numbers of positives and negatives; the least of all classes."""
        rows = sampled.sample.sampled()
        w = rows.weights[None] * xp.ones_like(rows.scores[0])
        w = xp.where(xp.isnan(rows.scores[0]), xp.zeros((), w.dtype), w)
        positive = rows.positive
        if self.metric.is_pooled:
            w = xp.max(w, 0, keepdims=True)
            positive = xp.any(positive, 0, keepdims=True)

        def number(mask: jax.Array) -> jax.Array:
            """Weighted rows count as (sum w)**2 / sum w**2."""
            kept = xp.where(mask, w, 0)
            total = xp.sum(kept * rows.stands_for[None], -1)
            squares = xp.sum(kept * kept * rows.stands_for[None], -1)
            return total * total / xp.where(squares > 0, squares, 1)

        ours, others = number(positive), number(~positive)
        if self.metric.is_pooled:
            return ours[0]
        size = 2 * ours * others / xp.maximum(ours + others, 1)
        if self._is_by_class:
            return self.metric.by_task(size)
        return xp.min(xp.where(size > 0, size, xp.inf))

    def _gains(self, sampled: SampledScores, model: int) -> tuple[jax.Array, jax.Array]:
        """What each sampled row adds to the value, with a last axis of rows; and the variance of
        the value that they do not show."""
        rows, groups = sampled.sample.sampled(), self.metric.statistic.stored_groups()
        given = groups, self.influences(), sampled.of_model(model), rows, model
        if self.metric.is_pooled:
            gains = pooled_gains_of_rows(*given, self.metric.statistic.ignored_class)
            return gains, xp.zeros((), gains.dtype)
        gains, beside = gains_of_rows(*given)
        if self._is_by_class:
            return gains, beside
        area = self.metric.area_by_class().to_float()
        positives = groups.total_positives.to_float()[:, 0]
        is_used = ~xp.isnan(area)
        share = xp.ones_like(area) if self.metric.average == "macro" else positives
        share = xp.where(is_used, share, 0)
        total = xp.sum(share)
        share = share / total
        gains = xp.sum(xp.where(is_used[:, None], share[:, None] * gains, 0), 0)
        if self.metric.average == "weighted":
            # A positive also gives weight to the area of its class.
            excess = xp.where(is_used, area - xp.sum(xp.where(is_used, share * area, 0)), 0)
            weight = rows.weights * groups.scale / total
            counted = rows.positive & ~xp.isnan(rows.scores[model])
            added = xp.where(counted, weight[None] * excess[:, None], 0)
            gains = gains + xp.sum(added, 0)
        return gains, xp.sum(xp.where(is_used, share * share * beside, 0))


def _variance_of(sampled: SampledScores, gains: jax.Array) -> jax.Array:
    """The sum over all rows of the squares of what they add, from that over the sample."""
    stands_for = sampled.sample.sampled().stands_for
    return xp.sum(gains * gains * xp.broadcast_to(stands_for, gains.shape), -1)
