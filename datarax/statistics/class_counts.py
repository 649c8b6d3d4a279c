"""Counts of right and wrong predictions: by class, of all classes together, or of two models."""

from collections.abc import Callable
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax._checks import numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax.numerics.digit_sums import sum_by_digits
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import check_task, examples, predictions
from datarax.statistics.fields import state
from datarax.statistics.invalid_counts import Invalid, InvalidCounts
from datarax.statistics.labels import count_labels
from datarax.statistics.state import State
from datarax.statistics.thresholds import checked_threshold, is_above, of_probabilities


class TaskCounts(State):
    """Counts of predictions. A subclass says which, in `__post_init__` and `update`.

    Counts are sums of weights, kept as double-floats. Without weights or with a mask, they are
    exact to 2**48. With other weights, each count is within a few units of 2**-46 of itself: no
    count is a difference of rounded sums, so a small count beside large ones keeps its digits, and
    zero is exactly zero. Examples with NaN or infinite scores, or with a label out of range, are
    excluded and counted in `invalid`.
    """

    num_classes: int | None = None
    """Multiclass: scores (..., C) or predicted labels (...), and labels (...) as target."""
    num_labels: int | None = None
    """Multilabel: scores (..., L) and 0/1 targets (..., L).

    Without `num_classes` and `num_labels` the task is binary: scores (...) and 0/1 targets (...).
    Then there is one class: the positive class."""
    threshold: float = 0.5
    """Binary and multilabel: a score above it predicts the class."""
    from_logits: bool = False
    """Binary and multilabel: whether scores are logits; then the threshold is of their sigmoid."""
    top_k: int = 1
    """Multiclass: the classes of the k highest scores are predicted."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted in `invalid`."""

    cells: MetricAccumulator = state()
    """The counts, as a sum of floats: double-floats hold counts and fractional weights alike."""
    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        check_task(self.num_classes, self.num_labels)
        positive_int(self.top_k, "top_k")
        if self.top_k > (self.num_classes or 1):
            raise MetricInputError(
                f"top_k={self.top_k}; expected at most num_classes={self.num_classes}"
                if self.num_classes
                else f"top_k={self.top_k} is for multiclass scores; give num_classes="
            )
        if self.from_logits and self.num_classes is not None:
            raise MetricInputError(
                "from_logits=True is for binary and multilabel tasks, which have a threshold; the "
                "highest logit is also the highest probability, so leave it out with num_classes="
            )
        self.threshold = checked_threshold(self.threshold, self.from_logits)

    @property
    def size(self) -> int:
        """The number of classes: C, L, or 1."""
        return self.num_classes or self.num_labels or 1

    def counted(
        self, w: jax.Array, count: Callable[[jax.Array], jax.Array], invalid: Invalid
    ) -> Self:
        """With what `count` gives of integer weights added to the counts, for the weights `w`."""
        cells = self.cells.double + sum_by_digits(w, count)
        return self.replace(
            cells=self.cells.with_value(cells), invalid=self.invalid.update(invalid)
        )


class PredictionCounts(TaskCounts):
    """Counts of the predictions of one model: see `TaskCounts`. A subclass defines two methods."""

    def of_labels(self, chosen: jax.Array, positive: jax.Array, w: jax.Array) -> jax.Array:
        """The counts of classes that are chosen or positive, each (..., L), of integer weights."""
        raise TypeError(f"{type(self).__name__} does not define of_labels()")

    def of_classes(
        self, chosen: jax.Array, hit: jax.Array, target: jax.Array, w: jax.Array
    ) -> jax.Array:
        """The counts of targets (...) and chosen classes (..., k), of integer weights (...).

        `hit` is the mask of the targets that are among the chosen classes.
        """
        raise TypeError(f"{type(self).__name__} does not define of_classes()")

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in a batch.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: the labels are not integers.
        """
        if self.num_classes is None:
            return self._binary(preds, target, weights)
        return self._multiclass(numeric(preds, "preds"), numeric(target, "target"), weights)

    def _binary(self, preds: ArrayLike, target: ArrayLike, weights: Weights) -> Self:
        preds, positive, w, invalid, _ = examples(
            preds,
            target,
            weights,
            num_labels=self.num_labels,
            ignore_index=self.ignore_index,
            threshold=of_probabilities(self.threshold, self.from_logits),
        )
        chosen = is_above(preds, self.threshold, self.from_logits)
        if self.num_labels is None:  # one class, the positive one
            chosen, positive, w = (x[..., None] for x in (chosen, positive, w))
            invalid = invalid[..., None]
        return self.counted(w, lambda w: self.of_labels(chosen, positive, w), invalid)

    def _multiclass(self, preds: jax.Array, target: jax.Array, weights: Weights) -> Self:
        seen = predictions(preds, target, weights, self.size, self.top_k, self.ignore_index)
        chosen, target, w, invalid = seen
        # With top_k, one example adds to k predicted classes, but to one target.
        hit = jnp.any(chosen == target[..., None], -1)

        return self.counted(w, lambda w: self.of_classes(chosen, hit, target, w), invalid)


class ClassCounts(PredictionCounts):
    """The true and false positives and negatives of each class, (4, C): see `TaskCounts`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cells = MetricAccumulator(np.zeros((4, self.size)))

    def of_labels(self, chosen: jax.Array, positive: jax.Array, w: jax.Array) -> jax.Array:
        batch = tuple(range(w.ndim - 1))
        parts = (chosen & positive, chosen, positive, True)
        return _cells(*(jnp.sum(jnp.where(part, w, 0), batch, w.dtype) for part in parts))

    def of_classes(
        self, chosen: jax.Array, hit: jax.Array, target: jax.Array, w: jax.Array
    ) -> jax.Array:
        of_chosen = jnp.broadcast_to(w[..., None], chosen.shape)
        return _cells(
            count_labels(target, jnp.where(hit, w, 0), self.size),
            count_labels(chosen, of_chosen, self.size),
            count_labels(target, w, self.size),
            jnp.sum(w, dtype=w.dtype),
        )


class MatchCounts(PredictionCounts):
    """How many predictions are right and how many are wrong, (2,): two counters for all classes.

    In a multilabel task, each label is a prediction.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import MatchCounts
        >>> seen = MatchCounts(num_classes=3).update(jnp.array([0, 1, 2]), jnp.array([0, 1, 1]))
        >>> print(seen.cells.value)
        [2. 1.]
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cells = MetricAccumulator(np.zeros(2))

    def of_labels(self, chosen: jax.Array, positive: jax.Array, w: jax.Array) -> jax.Array:
        return _right_and_wrong(chosen == positive, w)

    def of_classes(
        self, chosen: jax.Array, hit: jax.Array, target: jax.Array, w: jax.Array
    ) -> jax.Array:
        return _right_and_wrong(hit, w)


def _right_and_wrong(right: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.stack([jnp.sum(jnp.where(part, w, 0), dtype=w.dtype) for part in (right, ~right)])


def _cells(right: jax.Array, predicted: jax.Array, actual: jax.Array, n: jax.Array) -> jax.Array:
    """TP, FP, FN and TN, (4, C), from integers by class and the total `n`."""
    return jnp.stack([right, predicted - right, actual - right, n - predicted - actual + right])
