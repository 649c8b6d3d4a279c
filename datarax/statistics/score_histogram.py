"""Scores of positives and negatives in bins that need no range: what curves are read from."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax import numerics as nx
from datarax._checks import as_float
from datarax._errors import MetricInputError
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.numerics.float_grid import Layout, default_bits
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.scatter_counts import ScatterCounts, extreme_at
from datarax.statistics.scores import Groups, Scored, sums_above


class ScoreHistogram(Scored):
    """For each class, a histogram of the scores of its positives and of its negatives.

    Args:
        num_classes: multiclass, one against the rest: scores (..., C), integer labels (...).
        num_labels: multilabel: scores and 0/1 targets (..., L). Neither: binary, (...) and (...).
        bits: of the key that tells the bin, from 10 to 22: sign, 8 of exponent, the rest of
            significand; each bit doubles memory and halves the width of a bin. By default 16 for
            binary, fewer for many classes.
        ignore_index: a target that leaves its example out, uncounted.

    Scores are any floats: logits, probabilities, of any size and sign; -0.0 is 0.0, and so are
    subnormal numbers, which much hardware does not tell from it. bfloat16 scores have a bin each
    at 16 bits. Each bin also keeps its least and greatest score (up to 16 classes), so that one
    that holds a single value is known to be a tie.
    """

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        bits: int | None = None,
        ignore_index: int | None = None,
    ):
        super().__init__(num_classes, num_labels, ignore_index)
        self.bits = default_bits(self.size) if bits is None else bits
        if not isinstance(self.bits, int) or not 10 <= self.bits <= 22:
            raise MetricInputError(f"bits={bits!r}; expected an integer from 10 to 22")
        self.ties = self.size <= 16
        shape = (self.size, self.layout.size)
        # Of negatives first, then of positives: one scatter serves both.
        self.counts = ScatterCounts((2, *shape))
        if self.ties:
            self.least = MetricAccumulator(np.full(shape, np.inf, np.float32), MetricReduceOp.min)
            self.greatest = MetricAccumulator(
                np.full(shape, -np.inf, np.float32), MetricReduceOp.max
            )

    @property
    def _dtype(self) -> Any:
        return jnp.float32  # the keys are of 32 bits

    @property
    def layout(self) -> Layout:
        """How scores fall into bins."""
        return Layout(self.bits)

    def _counted(self, scores: jax.Array, positive: jax.Array, w: jax.Array) -> Self:
        bins = self.layout.size
        if w.dtype != jnp.bool_:
            w = as_float(w)
        seen = w.astype(jnp.bool_)
        scores = jnp.where(seen, scores, jnp.float32(0)) + jnp.float32(0)  # -0.0 becomes 0.0
        first = jnp.arange(self.size, dtype=jnp.int32)[None, :] * bins
        place = first + self.layout.bin(scores).astype(jnp.int32)
        own = positive.astype(jnp.int32) * (self.size * bins)
        changes: dict[str, Any] = {"counts": self.counts.add(place + own, w)}
        if self.ties:
            place = jnp.where(seen, place, jnp.int32(self.size * bins))
            changes["least"] = extreme_at(self.least, place, scores)
            changes["greatest"] = extreme_at(self.greatest, place, scores)
        return self.replace(**changes)

    @property
    def negatives(self) -> nx.Pair:
        """The weight of negatives, by class and bin."""
        high, low = self.counts.parts
        return high[0], low[0]

    @property
    def positives(self) -> nx.Pair:
        """The weight of positives, by class and bin."""
        high, low = self.counts.parts
        return high[1], low[1]

    @property
    def is_tie(self) -> jax.Array:
        """Which bins are known to hold one distinct score at most."""
        if self.ties:
            return self.least.value >= self.greatest.value
        return jnp.zeros(self.counts.shape[1:], jnp.bool_)

    @property
    def lowest(self) -> jax.Array:
        """A score that is at most the least of its bin, and above all of lower bins."""
        edges = jnp.broadcast_to(jnp.asarray(self.layout.lowest())[None, :], self.is_tie.shape)
        if not self.ties:
            return edges
        # The least score itself, where there is one.
        return jnp.where(jnp.isfinite(self.least.value), self.least.value, edges)

    def groups(self) -> Groups:
        """What was seen, by class and bin."""
        pos, neg = self.positives, self.negatives
        return Groups(pos, neg, sums_above(pos), sums_above(neg), self.is_tie, self.lowest)
