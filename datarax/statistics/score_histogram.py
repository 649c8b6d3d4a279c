"""`ScoreHistogram`: scores in bins over all floats, the statistic of curves."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax._checks import as_float
from datarax._errors import MetricInputError
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.numerics.float_grid import FloatGrid, default_bits
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.fields import state
from datarax.statistics.scatter_counts import ScatterCounts, extreme_at
from datarax.statistics.scores import Groups, Scores

_MOST_WITH_EXTREMES = 16


class ScoreHistogram(Scores):
    """Two histograms for each class: the scores of its positives, and of its negatives.

    Scores are finite floats of any size: logits or probabilities. -0.0 and subnormal numbers count
    as 0.0. With 16 bits, each bfloat16 score has its own bin. With up to 16 classes, each bin also
    keeps its least and greatest score. If both are equal, all scores of the bin are tied.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import ScoreHistogram
        >>> seen = ScoreHistogram().update(jnp.array([0.1, 0.2, 0.3]), jnp.array([0, 1, 1]))
        >>> print(seen.groups().total_positives.to_float(), seen.bits)
        [[2.]] 16
    """

    bits: int | None = None
    """How many upper bits of a float32 select its bin, from 10 to 22: the sign, 8 bits of the
    exponent, the rest of the significand. One more bit doubles the memory and halves the width of a
    bin. `None` gives 16 bits for up to 2 classes, 14 for up to 16, 12 for up to 256, otherwise 10.
    """

    counts: ScatterCounts = state()
    """The weights of negatives, then of positives, by class and bin: of shape (2, size, bins). They
    share one table, so that one scatter updates both."""
    least: MetricAccumulator = state()
    """The least score of each bin; only with `keeps_extremes`."""
    greatest: MetricAccumulator = state()
    """The greatest score of each bin; only with `keeps_extremes`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits is None:
            self.bits = default_bits(self.size)
        if not isinstance(self.bits, int) or not 10 <= self.bits <= 22:
            raise MetricInputError(f"bits={self.bits!r}; expected an integer from 10 to 22")
        shape = (self.size, self.grid.size)
        self.counts = ScatterCounts((2, *shape))
        if self.keeps_extremes:
            infinity = np.full(shape, np.inf, np.float32)
            self.least = MetricAccumulator(infinity, MetricReduceOp.min)
            self.greatest = MetricAccumulator(-infinity, MetricReduceOp.max)

    @property
    def score_dtype(self) -> Any:
        return jnp.float32  # a bin is selected by the bits of a float32

    @property
    def grid(self) -> FloatGrid:
        """The bins."""
        return FloatGrid(self.bits or default_bits(self.size))

    @property
    def keeps_extremes(self) -> bool:
        """Whether each bin keeps its least and greatest score: with up to 16 classes."""
        return self.size <= _MOST_WITH_EXTREMES

    def add(self, scores: jax.Array, positive: jax.Array, w: jax.Array) -> Self:
        bins = self.grid.size
        if w.dtype != jnp.bool_:
            w = as_float(w)
        seen = w.astype(jnp.bool_)
        scores = jnp.where(seen, scores, 0)
        # The flat index into `counts`, which has the shape (2, size, bins).
        row = jnp.arange(self.size, dtype=jnp.int32)[None, :]
        place = row * bins + self.grid.bin(scores).astype(jnp.int32)
        offset = positive.astype(jnp.int32) * (self.size * bins)
        changes: dict[str, Any] = {"counts": self.counts.add(place + offset, w)}
        if self.keeps_extremes:
            place = jnp.where(seen, place, self.size * bins)  # past the end: ignored
            changes["least"] = extreme_at(self.least, place, scores)
            changes["greatest"] = extreme_at(self.greatest, place, scores)
        return self.replace(**changes)

    def groups(self) -> Groups:
        """The weights of positives and negatives, by class and bin."""
        weights = self.counts.double
        lowest = jnp.broadcast_to(self.grid.lowest()[None, :], weights.shape[1:])
        is_tie = jnp.zeros(weights.shape[1:], jnp.bool_)
        if self.keeps_extremes:
            least = self.least.value
            # Of an empty bin, the least score is infinity and the greatest -infinity: a tie, too.
            is_tie = least >= self.greatest.value
            # The least score of the bin is a better threshold than its edge: it occurs in the data.
            lowest = jnp.where(jnp.isfinite(least), least, lowest)
        return Groups.of(weights[1], weights[0], is_tie, lowest)
