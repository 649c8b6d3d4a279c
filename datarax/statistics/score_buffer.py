"""`ScoreBuffer`: keeps scores and targets, the statistic of exact curves."""

from typing import Self

import jax
import numpy as np

from datarax._checks import default_float, positive_int
from datarax._xp import lax, xp
from datarax.algebra.fields import field, state
from datarax.numerics.exact import Exact
from datarax.numerics.run_sums import run_sums
from datarax.statistics.buffer import Rows
from datarax.statistics.scores import Groups, Scores


class ScoreBuffer(Scores):
    """The scores, targets and weights of the first `capacity` examples; counts the others.

    Scores are kept in float32 (float64 with x64); subnormal numbers count as 0. Examples of weight
    zero take no room.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import ScoreBuffer
        >>> kept = ScoreBuffer(3).update(jnp.array([0.1, 0.2, 0.3, 0.4]), jnp.array([0, 0, 1, 1]))
        >>> print(kept.rows.filled, kept.overflow)
        3 1
    """

    capacity: int = field(kw_only=False)
    """How many examples are kept; a merge keeps the first `capacity` of both."""

    rows: Rows = state()
    """One row per example: its scores; then, for multiclass, its label and its weight; otherwise a
    target for each score, and a weight for each score."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int(self.capacity, "capacity")
        width = self.size + 2 if self._has_labels else 3 * self.size
        self.rows = Rows(self.capacity, (width,), default_float().name)

    @property
    def _has_labels(self) -> bool:
        """Whether a row holds a label and a weight, instead of one of each for every score."""
        return self.num_classes is not None and not self.pooled

    @property
    def overflow(self) -> Exact:
        """How many examples did not fit."""
        return self.rows.overflow

    def add(self, scores: jax.Array, positive: jax.Array, w: jax.Array) -> Self:
        used, dtype = w.astype(xp.bool_), self.rows.dtype
        # Scores of weight zero may hold anything, and must not reach the sort. -0.0 equals 0.0, and
        # some devices flush subnormal numbers to zero: all of them become 0.0, so that every device
        # gives the same result.
        tiny = float(np.finfo(default_float()).tiny)
        scores = xp.where(used & (xp.abs(scores) >= tiny), scores, 0)
        target, w = positive, w.astype(dtype)
        if self._has_labels:
            target, w = xp.argmax(positive, -1)[:, None], w[:, :1]
        parts = (scores.astype(dtype), target.astype(dtype), w)
        kept = self.rows.append(xp.concatenate(parts, -1), xp.any(used, -1))
        return self.replace(rows=kept)

    def _columns(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Scores, weights of positives and weights of negatives, of shape (size, capacity)."""
        data, size = xp.asarray(self.rows.data).T, self.size
        scores = data[:size]
        if self._has_labels:
            classes = xp.arange(size, dtype=xp.int32)[:, None]
            positive, w = data[size:-1].astype(xp.int32) == classes, data[-1:]
        else:
            positive, w = data[size : 2 * size] == 1, data[2 * size :]
        w = xp.where(self.rows.is_filled[None, :], w, 0)
        w = xp.broadcast_to(w, scores.shape)
        # Rows without data get the score infinity, so that they come last when sorted.
        scores = xp.where(w != 0, scores, xp.inf)
        return scores, xp.where(positive, w, 0), xp.where(positive, 0, w)

    def groups(self) -> Groups:
        """The weights by class and distinct score, each at the first place of its score."""
        scores, positives, negatives = lax.sort(self._columns(), dimension=-1, num_keys=1)
        edge = xp.ones_like(scores[:, :1], xp.bool_)
        differs = scores[:, 1:] != scores[:, :-1]
        first = xp.concatenate([edge, differs], -1)
        last = xp.concatenate([differs, edge], -1)
        positives, negatives = (run_sums(w, first, last) for w in (positives, negatives))
        return Groups.of(positives, negatives, xp.ones_like(first), scores)
