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
    label, size = ranking.label, support.shape[0]
    both = xp.stack([right, wrong])
    last = xp.broadcast_to(ranking.last[None, None], both.shape)
    sums = run_suffix_sums(DoubleFloat.of(both), last)
    hits, misses = sums[0], sums[1]
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

    def at_levels(key: jax.Array, precision: jax.Array) -> jax.Array:
        place = xp.searchsorted(key, wanted, side="right").astype(xp.int32) - 1
        found = xp.where(place >= 0, label[place], size).reshape(size, LEVELS) == classes
        return xp.where(found, precision[place].reshape(size, LEVELS), 0)

    best = DoubleFloat.of(vmap(at_levels)(key, precision))
    start = xp.searchsorted(label, classes[:, 0]).astype(xp.int32)
    start = xp.minimum(start, label.size - 1)
    hits = hits[:, start]
    hits = where((label[start] == classes[:, 0])[None], hits, hits * 0)
    return best.sum(-1) / LEVELS, hits / support[None]


def _levels_reached(hits: DoubleFloat, support: DoubleFloat) -> jax.Array:
    """Counts the levels that the recall reaches; 0 without ground truth."""
    percent = hits * 100 / support[None]
    percent = where((support.high > 0)[None], percent, hits * 0)
    nearest = xp.clip(xp.round(percent.to_float()), 0, LEVELS - 1)
    level = nearest.astype(xp.int32)
    above = (percent - nearest).to_float() >= beside(level, np.asarray(_SLACK, hits.dtype))[level]
    return level + above.astype(xp.int32)
