"""Scores of positives and negatives in bins that need no range: what curves are computed from."""

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
    """For each class, a histogram of the scores of its positives and of its negatives.

    Scores are any floats: logits or probabilities, of any size and sign. -0.0 and subnormal
    numbers count as 0.0. At 16 bits each bfloat16 score has a bin of its own. For up to 16 classes
    each bin also keeps its least and greatest score, so that a bin with a single value is known to
    be a tie.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import ScoreHistogram
        >>> seen = ScoreHistogram().update(jnp.array([0.1, 0.2, 0.3]), jnp.array([0, 1, 1]))
        >>> print(seen.groups().total_positives.to_float(), seen.bits)
        [[2.]] 16
    """

    bits: int | None = None
    """Bits of the key that selects the bin, from 10 to 22: sign, 8 of exponent, the rest of
    significand. Each bit doubles memory and halves the width of a bin. `None`: 16 for up to 2
    classes, 14 for up to 16, 12 for up to 256, else 10."""

    counts: ScatterCounts = state()
    """The weights of negatives, then of positives, by class and bin: one scatter serves both."""
    least: MetricAccumulator = state()
    """The least score of each bin, where extremes are kept."""
    greatest: MetricAccumulator = state()
    """The greatest score of each bin, where extremes are kept."""

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
        return jnp.float32  # the keys are made of 32 bits

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
        row = jnp.arange(self.size, dtype=jnp.int32)[None, :]
        place = row * bins + self.grid.bin(scores).astype(jnp.int32)
        offset = positive.astype(jnp.int32) * (self.size * bins)
        changes: dict[str, Any] = {"counts": self.counts.add(place + offset, w)}
        if self.keeps_extremes:
            place = jnp.where(seen, place, self.size * bins)  # beyond the table: dropped
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
            is_tie = least >= self.greatest.value
            # The least score itself, where there is one: a threshold that occurs in the data.
            lowest = jnp.where(jnp.isfinite(least), least, lowest)
        return Groups.of(weights[1], weights[0], is_tie, lowest)
