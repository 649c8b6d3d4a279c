"""`ScoreTable`: the scores of each class by the class of the example, in bins."""

from typing import NamedTuple, Self

import jax

from datarax._checks import as_float
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.algebra.memo import computed_once
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.float_grid import default_bits
from datarax.numerics.scaling import power_of_two_near_reciprocal
from datarax.statistics.adaptive_bins import AdaptiveBins
from datarax.statistics.scores import LOG_ODDS_OCTAVES, Groups, Scores, sums_above


class OrderedPairs(NamedTuple):
    """Pairs of an example of a class c (column) and one of a class t (row), each of shape (C, C).

    All weights are scaled by one power of two.
    """

    ordered: DoubleFloat
    """The weight of the pairs in which the score for c of the example of c is in a higher bin."""
    tied: DoubleFloat
    """The weight of the pairs whose scores for c are known to be equal."""
    unknown: DoubleFloat
    """The weight of the pairs whose scores for c are in one bin, and may differ."""
    totals: DoubleFloat
    """The weight of the examples of each class, (C,)."""


class ScoreTable(Scores):
    """For each pair of classes, the scores for one of them of the examples of the other.

    As `ScoreHistogram`, with a histogram for each target class in place of those of positives and
    negatives. So it has `num_classes**2 * 2**bits` cells of 12 bytes.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.curves.score_table import ScoreTable
        >>> seen = ScoreTable(num_classes=2).update(jnp.eye(2), jnp.array([0, 1]))
        >>> print(seen.pairs().ordered.to_float() / seen.pairs().ordered.to_float().max())
        [[0. 1.]
         [1. 0.]]
    """

    bits: int | None = None
    """There are `2**bits` bins for each pair of classes, from 10 to 22 bits. `None` gives 14 bits
    for up to 4 classes, 12 for up to 16, otherwise 10."""

    bins: AdaptiveBins = state()
    """The weights of the scores for each class, with a row for each target."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits is None:
            self.bits = default_bits(self.size * self.size)
        octaves, mirrored = (LOG_ODDS_OCTAVES, 0) if self.from_logits else (20, 20)
        self.bins = AdaptiveBins(
            size=self.size, rows=self.size, bits=self.bits, octaves=octaves, mirrored=mirrored
        )

    def add(self, scores: jax.Array, positive: jax.Array, w: jax.Array) -> Self:
        w = w if w.dtype == xp.bool_ else as_float(w)
        target = xp.argmax(positive, -1).astype(xp.int32)[:, None]
        return self.replace(bins=self.bins.add(scores, w, target))

    @computed_once
    def pairs(self) -> OrderedPairs:
        """The pairs of examples, by how their scores are ordered."""
        seen = self.bins.contents()
        # Before they are summed, so that no sum overflows.
        others = seen.weights * power_of_two_near_reciprocal(xp.max(seen.weights.high))
        totals = others[:, 0].sum(-1)
        index = xp.arange(self.size, dtype=xp.uint32)
        own = others.map(lambda x: x[index, index])[None]
        tied, unknown = (
            own.map(lambda x, mask=mask: xp.where(mask[None], x, 0))
            for mask in (seen.is_tie, ~seen.is_tie)
        )
        above, tied, unknown = (
            (others * each).sum(-1) for each in (sums_above(own), tied, unknown)
        )
        return OrderedPairs(above, tied, unknown, totals)

    def groups(self) -> Groups:
        raise TypeError("a ScoreTable has no positives; see `pairs`")
