"""`ScoreHistogram`: scores in bins that adapt to their range, the statistic of curves."""

from typing import Self

import jax

from datarax._checks import as_float
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.numerics.float_grid import default_bits
from datarax.statistics.adaptive_bins import AdaptiveBins
from datarax.statistics.scores import LOG_ODDS_OCTAVES, Groups, Scores

_MOST_WITH_EXTREMES = 16


class ScoreHistogram(Scores):
    """Two histograms for each class: the scores of its positives, and of its negatives.

    Scores are floats of any size and offset: logits, probabilities, log-probabilities. The bins of
    a class depend on the range of its scores, and become coarser as it grows; see
    `datarax.numerics.dyadic_grid`. Infinite scores have bins of their own. -0.0 and subnormal
    numbers count as 0.0. With up to 16 classes, each bin also keeps its least and greatest score.
    If both are equal, all scores of the bin are tied.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import ScoreHistogram
        >>> seen = ScoreHistogram().update(jnp.array([0.1, 0.2, 0.3]), jnp.array([0, 1, 1]))
        >>> print(seen.groups().total_positives.to_float(), seen.bits)
        [[2.]] 16
    """

    bits: int | None = None
    """There are `2**bits` bins for each class, from 10 to 22 bits. One more bit doubles the memory
    and halves the width of a bin. `None` gives 16 bits for up to 2 classes, 14 for up to 16, 12 for
    up to 256, otherwise 10."""

    bins: AdaptiveBins = state()
    """The weights of negatives, in the first row, and of positives."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits is None:
            self.bits = default_bits(self.size)
        # With few bins, more powers of two would make the bins of logits too wide.
        octaves = 20 if self.bits >= 14 else 10
        mirrored = octaves
        if self.from_logits:
            octaves, mirrored = LOG_ODDS_OCTAVES, 0
        self.bins = AdaptiveBins(
            size=self.size,
            rows=2,
            bits=self.bits,
            octaves=octaves,
            mirrored=mirrored,
            keeps_extremes=self.size <= _MOST_WITH_EXTREMES,
        )

    def add(self, scores: jax.Array, positive: jax.Array, w: jax.Array) -> Self:
        w = w if w.dtype == xp.bool_ else as_float(w)
        return self.replace(bins=self.bins.add(scores, w, positive))

    def groups(self) -> Groups:
        """The weights of positives and negatives, by class and bin."""
        seen = self.bins.contents()
        return Groups.of(seen.weights[1], seen.weights[0], seen.is_tie, seen.lowest)
