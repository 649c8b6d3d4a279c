"""Scores of positives and negatives one by one, in a buffer: what exact curves are read from."""

from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax

from datarax import numerics as nx
from datarax._checks import default_float, positive_int
from datarax.numerics.exact import Exact
from datarax.statistics.buffer import Rows
from datarax.statistics.scores import Groups, Scored, sums_above


class ScoreBuffer(Scored):
    """The scores, targets and weights of the first `capacity` examples, and how many more came.

    Args:
        capacity: examples in all; a merge keeps the first `capacity` of both.
        num_classes: multiclass, one against the rest: scores (..., C), integer labels (...).
        num_labels: multilabel: scores and 0/1 targets (..., L). Neither: binary, (...) and (...).
        ignore_index: a target that leaves its example out, uncounted.

    Scores are kept in float32 (float64 with x64); subnormal numbers count as 0. Examples of weight
    zero take no room.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import ScoreBuffer
        >>> kept = ScoreBuffer(3).update(jnp.array([0.1, 0.2, 0.3, 0.4]), jnp.array([0, 0, 1, 1]))
        >>> print(kept.rows.filled, kept.overflow)
        3 1
    """

    def __init__(
        self,
        capacity: int,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        ignore_index: int | None = None,
    ):
        super().__init__(num_classes, num_labels, ignore_index)
        positive_int(capacity, "capacity")
        # The scores; then the label and the weight, or a target and a weight for each score.
        width = self.size + 2 if num_classes else 3 * self.size
        self.rows = Rows(capacity, (width,), default_float().name)

    @property
    def overflow(self) -> Any:
        """How many examples did not fit."""
        return Exact(*map(jnp.asarray, self.rows.lost))

    def _counted(self, scores: jax.Array, positive: jax.Array, w: jax.Array) -> Self:
        used, dtype = w.astype(jnp.bool_), self.rows.dtype
        # What is not used holds anything, and must not reach the sort.
        scores = jnp.where(used, scores, jnp.zeros((), scores.dtype))
        target, w = positive, w.astype(dtype)
        if self.num_classes:
            target, w = jnp.argmax(positive, -1)[:, None], w[:, :1]
        parts = (scores.astype(dtype), target.astype(dtype), w)
        kept = self.rows.append(jnp.concatenate(parts, -1), jnp.any(used, -1))
        return self.replace(rows=kept)

    def _columns(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Scores, weights of positives and weights of negatives, of shape (size, capacity)."""
        data, size = jnp.asarray(self.rows.data).T, self.size
        scores, target, w = data[:size], data[size:-1], data[-1:]
        if self.num_classes:
            classes = jnp.arange(size, dtype=jnp.int32)[:, None]
            positive = target.astype(jnp.int32) == classes
        else:
            target, w = data[size : 2 * size], data[2 * size :]
            positive = target == 1
        there = jnp.arange(data.shape[-1], dtype=jnp.int32) < self.rows.filled
        w = jnp.where(there[None, :], w, jnp.zeros((), w.dtype))
        w = jnp.broadcast_to(w, scores.shape)
        zero = jnp.zeros((), w.dtype)
        # Rows that are not there come last.
        scores = jnp.where(w != 0, scores, jnp.asarray(jnp.inf, scores.dtype))
        return scores, jnp.where(positive, w, zero), jnp.where(positive, zero, w)

    def groups(self) -> Groups:
        """What was seen; each distinct score is a group, at the first of its place in the order."""
        scores, pos, neg = lax.sort(self._columns(), dimension=-1, num_keys=1)
        edge = jnp.ones_like(scores[:, :1], jnp.bool_)
        differs = scores[:, 1:] != scores[:, :-1]
        first = jnp.concatenate([edge, differs], -1)
        last = jnp.concatenate([differs, edge], -1)
        pos, neg = (_at_first(w, first, last) for w in (pos, neg))
        return Groups(pos, neg, sums_above(pos), sums_above(neg), jnp.ones_like(first), scores)


def _at_first(w: jax.Array, first: jax.Array, last: jax.Array) -> nx.Pair:
    """The sum of each run of equal scores at its first place, zero at the others."""
    size = w.shape[-1]
    place = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32)[None, :], w.shape)
    end = lax.cummin(jnp.where(last, place, jnp.int32(size)), axis=w.ndim - 1, reverse=True)
    zero = jnp.zeros((), w.dtype)

    def double(k: jax.Array, total: nx.Pair) -> nx.Pair:
        # As `nx.pair_suffix_sums`, up to the end of the run.
        step = jnp.int32(1) << k
        inside = place + step <= end

        def shifted(x: jax.Array) -> jax.Array:
            padded = jnp.concatenate([x, jnp.zeros_like(x)], -1)
            moved = lax.dynamic_slice_in_dim(padded, step, size, x.ndim - 1)
            return jnp.where(inside, moved, zero)

        return nx.pair_add(total, (shifted(total[0]), shifted(total[1])))

    rounds = jnp.int32((size - 1).bit_length())
    high, low = lax.fori_loop(jnp.int32(0), rounds, double, (w, jnp.zeros_like(w)))
    return jnp.where(first, high, zero), jnp.where(first, low, zero)
