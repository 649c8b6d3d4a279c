"""Scores of one against the rest, whatever they are kept in: what the two ways share."""

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import default_float, is_integer, numeric
from datarax._errors import MetricTypeError
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import check_task, examples
from datarax.statistics.labels import is_class
from datarax.statistics.state import State


class Scored(State):
    """Scores, and which of them are of positives, for each of C classes, L labels or one.

    Whoever keeps them defines `_counted`, and `groups`, as which they are read.
    """

    invalid = MetricAccumulator(0)

    def __init__(self, num_classes: int | None, num_labels: int | None, ignore_index: int | None):
        check_task(num_classes, num_labels)
        self.num_classes, self.num_labels = num_classes, num_labels
        self.ignore_index = ignore_index

    @property
    def _dtype(self) -> Any:
        """What scores are kept in."""
        return default_float()

    @property
    def size(self) -> int:
        """How many classes there are: C, L, or 1."""
        return self.num_classes or self.num_labels or 1

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """Folds in a batch.

        Raises:
            MetricInputError: shapes that do not go together; shows both.
            MetricTypeError: scores that are no floats, or labels that are no integers.
        """
        preds = numeric(preds, "preds")
        if is_integer(preds):
            raise MetricTypeError(f"preds has dtype {preds.dtype}; expected scores, as floats")
        scores, target, w, invalid, _ = examples(
            preds.astype(self._dtype),
            target,
            weights,
            num_classes=self.num_classes,
            num_labels=self.num_labels,
            ignore_index=self.ignore_index,
        )
        # Zeros of both signs are one, and what some devices take for zero is zero on all of them.
        scores = scores.astype(self._dtype)
        tiny, zero = (jnp.asarray(x, scores.dtype) for x in (jnp.finfo(scores.dtype).tiny, 0))
        scores = jnp.where(jnp.abs(scores) < tiny, zero, scores)
        if self.num_classes is not None:
            target = is_class(target, self.num_classes)
            w = jnp.broadcast_to(w[..., None], scores.shape)
        counted = self._counted(*(x.reshape(-1, self.size) for x in (scores, target, w)))
        return counted.replace(invalid=self.invalid.update(invalid))

    def _counted(self, scores: jax.Array, positive: jax.Array, w: jax.Array) -> Self:
        """Folds in (N, size) scores, whether each is of a positive, and its weight or mask."""
        raise TypeError(type(self).__name__)

    def groups(self) -> "Groups":
        """What was seen, by class and group of scores."""
        raise TypeError(type(self).__name__)


class Groups(NamedTuple):
    """Positives and negatives in groups of ascending scores; arrays are of shape (size, groups).

    Attributes:
        positives: the weight of positives, as pairs.
        negatives: the weight of negatives.
        positives_above: the weight of positives in higher groups; exact for integers.
        negatives_above: the weight of negatives in higher groups.
        is_tie: which groups are known to hold one distinct score at most.
        lowest: a score that is at most the least of the group, and above all of lower groups;
            of no meaning for an empty group.
    """

    positives: nx.Pair
    negatives: nx.Pair
    positives_above: nx.Pair
    negatives_above: nx.Pair
    is_tie: jax.Array
    lowest: jax.Array

    @property
    def occupied(self) -> jax.Array:
        """Which groups are not empty."""
        return (self.positives[0] > 0) | (self.negatives[0] > 0)

    @property
    def true(self) -> nx.Pair:
        """The weight of positives with a score at least `lowest`."""
        return nx.pair_add(self.positives_above, self.positives)

    @property
    def false(self) -> nx.Pair:
        """The weight of negatives with a score at least `lowest`."""
        return nx.pair_add(self.negatives_above, self.negatives)

    @property
    def totals(self) -> tuple[nx.Pair, nx.Pair]:
        """The weight of all positives and of all negatives, of shape (size,)."""
        return _first(self.true), _first(self.false)


def _first(a: nx.Pair) -> nx.Pair:
    return a[0][..., 0], a[1][..., 0]


def sums_above(counts: nx.Pair) -> nx.Pair:
    """The sum over all higher groups, exact for integers."""

    def next_group(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x[..., 1:], jnp.zeros_like(x[..., :1])], -1)

    return nx.pair_suffix_sums((next_group(counts[0]), next_group(counts[1])))
