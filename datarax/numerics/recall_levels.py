"""Average precision at the recall levels of COCO's evaluation, by class."""

from typing import NamedTuple, Self

import jax
import numpy as np

from datarax._xp import beside, vmap, xp
from datarax.numerics.double_float import DoubleFloat, where
from datarax.numerics.sums import run_prefix_maxima, run_suffix_sums

LEVELS = 101
"""The levels are 0, 0.01, ..., 1."""


# By how much a recall in percent may miss each level, where it is not negative. A recall is a ratio
# of rounded sums where weights are, so one that equals a level may be just below it. But some
# levels of COCO, which are float64, are above the hundredths that they stand for. A recall of
# exactly that many hundredths does not reach them.
_PERCENT = np.arange(LEVELS)
_IS_ABOVE = np.linspace(0, 1, LEVELS) > _PERCENT / 100
_SLACK = np.where(_IS_ABOVE, 1, -1) * np.maximum(_PERCENT, 1) * 2.0**-40


class RankedDetections(NamedTuple):
    """Detections (n,), sorted by class, and in each class by score, lowest first.

    Unused rows come last, with a class that there is not.
    """

    label: jax.Array
    first: jax.Array
    """The first row of each class."""
    last: jax.Array
    """The last row of each class."""
    is_point: jax.Array
    """The first row of each score in a class: the curve has a point where all of them count."""

    @classmethod
    def of(cls, label: jax.Array, score: jax.Array) -> Self:
        """The ranking of detections that are sorted."""
        changes = label[1:] != label[:-1]
        edge = xp.ones_like(label[:1], xp.bool_)
        first, last = xp.concatenate([edge, changes]), xp.concatenate([changes, edge])
        differs = xp.concatenate([edge, score[1:] != score[:-1]])
        return cls(label, first, last, first | differs)


class LevelCurve(NamedTuple):
    """The curves of T thresholds and C classes at the levels of recall, the highest first."""

    precision: jax.Array
    """The highest precision at each level or a higher one, (T, C, LEVELS); 0 beyond the recall."""
    place: jax.Array
    """The row of the highest score whose recall reaches each level; -1 if none does."""
    recall: DoubleFloat
    """The recall of all detections, (T, C)."""


def average_precision(
    ranking: RankedDetections, right: jax.Array, wrong: jax.Array, support: DoubleFloat
) -> tuple[DoubleFloat, DoubleFloat]:
    """The average precision of each class, and its recall: (T, C).

    The mean over the levels of recall of the highest precision at that recall or a higher one, 0
    where no score reaches it. Detections with equal scores count together.

    Args:
        ranking: the order of the n detections.
        right: the weights of those that are right, (T, n).
        wrong: the weights of those that are wrong, (T, n).
        support: the weight of the ground truth of each class, (C,).
    """
    curve = level_curve(ranking, right, wrong, support)
    return DoubleFloat.of(curve.precision).sum(-1) / LEVELS, curve.recall


def level_curve(
    ranking: RankedDetections, right: jax.Array, wrong: jax.Array, support: DoubleFloat
) -> LevelCurve:
    """The curves of precision at the levels of recall; see `average_precision`."""
    label, size = ranking.label, support.shape[0]
    hits, misses = running_sums(ranking, right, wrong)
    reached = _levels_reached(hits, support[xp.minimum(label, size - 1)])
    precision = (hits / (hits + misses)).to_float()
    precision = xp.where(ranking.is_point[None] & (hits.high > 0), precision, 0)
    # A point with a higher recall is an earlier row.
    first = xp.broadcast_to(ranking.first[None], right.shape)
    precision = run_prefix_maxima(precision, first)

    # The last row of a class that reaches a level: rows are sorted by class and by levels missed.
    classes = xp.arange(size, dtype=xp.int32)[:, None]
    missed = xp.arange(LEVELS, dtype=xp.int32)[None]
    key = label[None] * (LEVELS + 1) + (LEVELS - reached)
    wanted = (classes * (LEVELS + 1) + missed).reshape(-1)

    def at_levels(key: jax.Array, precision: jax.Array) -> tuple[jax.Array, jax.Array]:
        place = xp.searchsorted(key, wanted, side="right").astype(xp.int32) - 1
        found = xp.where(place >= 0, label[place], size).reshape(size, LEVELS) == classes
        best = xp.where(found, precision[place].reshape(size, LEVELS), 0)
        return best, xp.where(found, place.reshape(size, LEVELS), -1)

    best, place = vmap(at_levels)(key, precision)
    start = xp.searchsorted(label, classes[:, 0]).astype(xp.int32)
    start = xp.minimum(start, label.size - 1)
    hits = hits[:, start]
    hits = where((label[start] == classes[:, 0])[None], hits, hits * 0)
    return LevelCurve(best, place, hits / support[None])


def running_sums(
    ranking: RankedDetections, right: jax.Array, wrong: jax.Array
) -> tuple[DoubleFloat, DoubleFloat]:
    """The weights of right and of wrong detections of each row's class with its score or a higher
    one, (T, n), at the first row of the score."""
    both = xp.stack([right, wrong])
    last = xp.broadcast_to(ranking.last[None, None], both.shape)
    sums = run_suffix_sums(DoubleFloat.of(both), last)
    return sums[0], sums[1]


def sums_above(
    ranking: RankedDetections,
    score: jax.Array,
    right: jax.Array,
    wrong: jax.Array,
    least: jax.Array,
    size: int,
) -> tuple[DoubleFloat, DoubleFloat]:
    """The weights of right and wrong detections with at least a score, by class: (T, S, C).

    Args:
        ranking: the order of the n detections.
        score: their scores, (n,).
        right: the weights of those that are right, (T, n).
        wrong: the weights of those that are wrong, (T, n).
        least: the S least scores.
        size: the number of classes C.
    """
    label, classes = ranking.label, xp.arange(size, dtype=ranking.label.dtype)
    below = xp.cumsum((score[None] < least[:, None]).astype(xp.int32), 1)
    below = xp.concatenate([xp.zeros_like(below[:, :1]), below], 1)
    start, stop = (
        xp.searchsorted(label, classes, side=side).astype(xp.int32) for side in ("left", "right")
    )
    # Rows of a class are sorted by score: those below a score are its first.
    place = start[None] + below[:, stop] - below[:, start]
    some, place = place < stop[None], xp.minimum(place, label.size - 1)

    def at_places(sums: DoubleFloat) -> DoubleFloat:
        found = sums[:, place]
        return where(some[None], found, found * 0)

    hits, misses = running_sums(ranking, right, wrong)
    return at_places(hits), at_places(misses)


def _levels_reached(hits: DoubleFloat, support: DoubleFloat) -> jax.Array:
    """Counts the levels that the recall reaches; 0 without ground truth."""
    percent = hits * 100 / support[None]
    percent = where((support.high > 0)[None], percent, hits * 0)
    nearest = xp.clip(xp.round(percent.to_float()), 0, LEVELS - 1)
    level = nearest.astype(xp.int32)
    above = (percent - nearest).to_float() >= beside(level, np.asarray(_SLACK, hits.dtype))[level]
    return level + above.astype(xp.int32)
