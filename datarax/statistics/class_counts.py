"""Counts of right and wrong predictions: by class, of all classes together, or in a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Self

import jax
import numpy as np

from datarax._checks import default_float, numeric, positive_int, refuse_ignored
from datarax._errors import MetricInputError
from datarax._platform import lowered_for
from datarax._typing import ArrayLike, Weights
from datarax._xp import faster_in_numpy, lax, replaced, xp
from datarax.algebra.fields import state
from datarax.algebra.fold import Fold, Term
from datarax.algebra.rows import Merging, RowTerms, Target, rows_last
from datarax.numerics.digit_sums import sum_by_digits
from datarax.numerics.double_float import DoubleFloat, sums_in_float64
from datarax.numerics.limbs import double_from_int
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import Examples, check_task, class_of, examples, predictions
from datarax.statistics.invalid_counts import CountsInvalid, Invalid, InvalidCounts
from datarax.statistics.scatter_counts import ScatterCounts, count_labels
from datarax.statistics.thresholds import (
    HIGHEST_SCORE,
    checked_threshold,
    is_above,
    score_kind,
)


class ThresholdCounts(CountsInvalid):
    """Counts of predictions of classes or labels that have a score above a threshold."""

    threshold: float = 0.5
    """Binary and multilabel: a score above it predicts the class."""
    from_logits: bool = False
    """Binary and multilabel: whether scores are logits; then the threshold is of their sigmoid."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted in `invalid`."""

    def __post_init__(self) -> None:
        self.threshold = checked_threshold(self.threshold, self.from_logits)
        if self.has_threshold:
            self.invalid = InvalidCounts(score_kind(self.threshold, self.from_logits))

    @property
    def has_threshold(self) -> bool:
        """True if scores are compared with the threshold: not of a multiclass task."""
        return True

    def above_threshold(
        self,
        preds: ArrayLike,
        target: ArrayLike,
        weights: Weights,
        *,
        num_labels: int | None = None,
        name: str = "preds",
    ) -> Examples:
        """The batch of a binary or multilabel task, with `preds` as booleans: what is predicted.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
        """
        preds = numeric(preds, name)
        batch = examples(
            preds,
            target,
            weights,
            num_labels=num_labels,
            ignore_index=self.ignore_index,
            from_logits=self.from_logits,
            kind=self.invalid.scores,
            name=name,
        )
        above = is_above(batch.preds, self.threshold, self.from_logits, preds.dtype)
        return batch._replace(preds=above)


class TaskCounts(ThresholdCounts):
    """Counts of predictions. A subclass says which, in `__post_init__` and `update`.

    Counts are sums of weights, kept as double-floats. Without weights or with a mask, they are
    exact to 2**48. With other weights, each count is within a few units of 2**-46 of itself: no
    count is a difference of rounded sums, so a small count beside large ones keeps its digits, and
    zero is exactly zero. Examples with a score of NaN or +inf, or with a label out of range, are
    excluded and counted in `invalid`. A score of -inf rules a class out, which is invalid if it
    rules out all classes of an example, or if scores should be probabilities: binary and
    multilabel, with a threshold between 0 and 1 and without `from_logits`.
    """

    num_classes: int | None = None
    """Multiclass: scores (..., C) or predicted labels (...), and labels (...) as target."""
    num_labels: int | None = None
    """Multilabel: scores (..., L) and 0/1 targets (..., L).

    Without `num_classes` and `num_labels` the task is binary: scores (...) and 0/1 targets (...).
    Then there is one class: the positive class."""
    top_k: int = 1
    """Multiclass: the classes of the k highest scores are predicted."""

    cells: MetricAccumulator = state()
    """The counts, as a sum of floats: double-floats hold counts and fractional weights alike."""

    def __post_init__(self) -> None:
        check_task(self.num_classes, self.num_labels)
        positive_int(self.top_k, "top_k")
        if self.top_k > (self.num_classes or 1):
            raise MetricInputError(
                f"top_k={self.top_k}; expected at most num_classes={self.num_classes}"
                if self.num_classes
                else f"top_k={self.top_k} is for multiclass scores; give num_classes="
            )
        if self.num_classes is not None:
            refuse_ignored(self, "threshold", HIGHEST_SCORE)
        if self.from_logits and self.num_classes is not None:
            raise MetricInputError(
                "from_logits=True is for binary and multilabel tasks, which have a threshold; the "
                "highest logit is also the highest probability, so leave it out with num_classes="
            )
        super().__post_init__()

    @property
    def has_threshold(self) -> bool:
        return self.num_classes is None

    @property
    def size(self) -> int:
        """The number of classes: C, L, or 1."""
        return self.num_classes or self.num_labels or 1

    @property
    def ignored_class(self) -> int | None:
        """The class that is `ignore_index`; `None` if no class is."""
        return class_of(self.ignore_index, self.num_classes)

    def counted(
        self, w: jax.Array, count: Callable[[jax.Array], jax.Array], invalid: Invalid
    ) -> Self:
        """A copy with a batch of weights `w` counted, by `count`, which takes integer weights."""
        return self.with_batch(invalid, cells=self.cells.plus(sum_by_digits(w, count)))


class _Batch(NamedTuple):
    """A checked batch."""

    weight: jax.Array
    invalid: Invalid
    masks: tuple[jax.Array, ...]
    """The masks that are counted, if these are what `of_sums` takes."""
    labels: "Labels | None" = None
    """Else the labels that are counted by class."""


class Labels(NamedTuple):
    """The labels of a multiclass batch; arrays with a leading axis of rows."""

    chosen: jax.Array
    """The chosen classes, (..., k)."""
    hit: jax.Array
    """The mask of the targets that are among the chosen classes, (...)."""
    target: jax.Array
    """The targets, (...)."""


_FEW = 32
"""Up to this many classes, the table of targets and predictions is smaller than a batch."""


class PredictionCounts(TaskCounts):
    """Counts of the predictions of one model: see `TaskCounts`. A subclass defines two methods."""

    def masks(self, chosen: jax.Array, positive: jax.Array) -> tuple[jax.Array, ...]:
        """The masks that are counted of classes that are chosen or positive, each (..., L)."""
        raise TypeError(f"{type(self).__name__} does not define masks()")

    def axes(self, ndim: int) -> tuple[int, ...]:
        """The axes of such masks over which they are counted."""
        return tuple(range(ndim))

    def of_sums(self, *sums: jax.Array) -> jax.Array:
        """The counts, from the sums of weights in each mask, and then of all weights."""
        raise TypeError(f"{type(self).__name__} does not define of_sums()")

    def masks_of_hits(self, hit: jax.Array) -> tuple[jax.Array, ...]:
        """The masks that are counted of targets, given those that were hit; none for others."""
        return ()

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in a batch.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: the labels are not integers.
        """
        w, invalid, masks, labels = self._examples(preds, target, weights)
        apart = isinstance(self.cells, RowTerms)
        if labels is not None:
            if apart:
                cells = RowLabels(w, labels, self.size)
                return self.with_batch(invalid, cells=cells)
            if _has_masks(labels, w, self.size):
                return self.with_batch(invalid, cells=self._by_masks(labels, w))
            return self.counted(w, lambda w: counts_by_class(labels, w, self.size), invalid)
        axes = self.axes(w.ndim)
        if apart:
            *masks, w = map(rows_last, (*masks, w))
            axes = axes[:-1]

        return self._plus_sums(masks, w, axes, invalid)

    def _plus_sums_apart(
        self, masks: Sequence[jax.Array], w: jax.Array, axes: tuple[int, ...], invalid: Invalid
    ) -> Self:
        def count(w: jax.Array) -> jax.Array:
            parts = *(xp.where(mask, w, xp.zeros((), w.dtype)) for mask in masks), w
            return self.of_sums(*(xp.sum(part, axes, w.dtype) for part in parts))

        return self.counted(w, count, invalid)

    @faster_in_numpy(_plus_sums_apart)  # of 64 rows, a fold takes 7 to 10 % longer
    def _plus_sums(
        self, masks: Sequence[jax.Array], w: jax.Array, axes: tuple[int, ...], invalid: Invalid
    ) -> Self:
        """A copy with the sums of masks, weighted, over these axes added."""
        if w.dtype != xp.bool_:
            return self._plus_sums_apart(masks, w, axes, invalid)

        def finish(*sums: jax.Array) -> MetricAccumulator:
            return self.cells.plus(double_from_int(self.of_sums(*sums), default_float()))

        terms = [Term(each, axes) for each in (*(mask & w for mask in masks), w)]
        return self.with_batch(invalid, cells=Fold(terms, finish))

    def _by_masks(self, labels: "Labels", w: jax.Array) -> Fold:
        """The counts by class, as sums of masks: see `_has_masks`."""
        size, axes = self.size, tuple(range(w.ndim))
        predicted, actual = (
            xp.where(w, x.astype(xp.int32), -1) for x in (labels.chosen[..., 0], labels.target)
        )
        right = xp.where(labels.hit, actual, -1)

        def finish(*sums: jax.Array) -> MetricAccumulator:
            starts = range(0, len(sums), size)
            right, predicted, actual = (xp.stack(sums[i : i + size]) for i in starts)
            cells = _cells(right, predicted, actual, xp.sum(actual, dtype=xp.int32))
            return self.cells.plus(double_from_int(cells, default_float()))

        masks = [x == c for x in (right, predicted, actual) for c in range(size)]
        return Fold([Term(mask, axes) for mask in masks], finish)

    def _examples(self, preds: ArrayLike, target: ArrayLike, weights: Weights) -> _Batch:
        if self.num_classes is not None:
            chosen, labels, w, invalid = predictions(
                preds, target, weights, self.size, self.top_k, self.ignore_index
            )
            # With top_k, one example adds to k predicted classes, but to one target.
            if self.top_k == 1:
                hit = chosen[..., 0] == labels
            else:
                hit = xp.any(chosen == labels[..., None], -1)
            masks = self.masks_of_hits(hit)
            return _Batch(w, invalid, masks, None if masks else Labels(chosen, hit, labels))
        chosen, positive, w, invalid, *_ = self.above_threshold(
            preds, target, weights, num_labels=self.num_labels
        )
        if self.num_labels is None:  # one class, the positive one
            chosen, positive, w = (x[..., None] for x in (chosen, positive, w))
            invalid = invalid[..., None]
        return _Batch(w, invalid, self.masks(chosen, positive))


class ClassCounts(PredictionCounts):
    """The true and false positives and negatives of each class, (4, C): see `TaskCounts`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import ClassCounts
        >>> counts = ClassCounts(num_classes=2).update(jnp.array([0, 1, 1]), jnp.array([0, 1, 0]))
        >>> print(counts.cells.value)
        [[1. 1.]
         [0. 1.]
         [1. 0.]
         [1. 1.]]
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cells = MetricAccumulator(np.zeros((4, self.size)))

    def masks(self, chosen: jax.Array, positive: jax.Array) -> tuple[jax.Array, ...]:
        return chosen & positive, chosen, positive

    def axes(self, ndim: int) -> tuple[int, ...]:
        return tuple(range(ndim - 1))

    def of_sums(self, *sums: jax.Array) -> jax.Array:
        return _cells(*sums)


class MatchCounts(PredictionCounts):
    """The numbers of right and of wrong predictions, (2,): two counters for all classes.

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
        # Of all predictions, whatever the number of classes: accuracy needs no counts by class.
        self.cells = MetricAccumulator(np.zeros(2))

    def masks(self, chosen: jax.Array, positive: jax.Array) -> tuple[jax.Array, ...]:
        return (chosen == positive,)

    def masks_of_hits(self, hit: jax.Array) -> tuple[jax.Array, ...]:
        return (hit,)

    def of_sums(self, *sums: jax.Array) -> jax.Array:
        correct, total = sums  # of integers, see `sum_by_digits`, so the difference is exact
        return xp.stack([correct, total - correct])


def _has_masks(labels: Labels, w: jax.Array, size: int) -> bool:
    """True if classes are counted by a mask of each of them, in one pass with the invalid rows.

    On TPUs: of 10 classes, a comparison of all labels with all classes takes six times as many
    cycles, by the compiler's estimate. Of 64 classes, the masks no longer fit in registers.
    """
    is_alone = labels.chosen.shape[-1] == 1
    return w.dtype == xp.bool_ and size <= _FEW and is_alone and not sums_in_float64(w)


def counts_by_class(
    labels: Labels, w: jax.Array, size: int, place: jax.Array | None = None, places: int = 1
) -> jax.Array:
    """The counts of labels of `size` classes, (4, size), of integer weights (...).

    The weights may have one more axis, of replicas, and then the counts have it, too. With the
    place of each row, which must be one of `places`, they are (4, places, size).
    """
    chosen, hit, target = labels
    replicas = w.shape[target.ndim :]
    if place is None:
        if chosen.shape[-1] == 1 and size <= _FEW and lowered_for() == "cpu":
            # One scatter into the table of both, of which the sums by class are those of a few.
            # The label of a row that does not count may be out of range: cell 0 gets its weight,
            # which is 0.
            used = w > 0 if w.ndim == target.ndim else xp.any(w > 0, -1)
            cell = replaced(used, target * size + chosen[..., 0], 0)
            table = count_labels(cell, w, size * size).reshape(size, size, *replicas)
            right = xp.diagonal(table)  # the axis of replicas comes first
            right = xp.moveaxis(right, -1, 0) if replicas else right
            return _cells(right, table.sum(0), table.sum(1), table.sum((0, 1)))
        shape = (size, *replicas)
    else:
        # The classes of all places are as many labels.
        place = xp.broadcast_to(lax.expand_dims(place, range(1, target.ndim)), target.shape)
        # So the tables of all places are one table, and there is one scatter.
        target, chosen = target + place * size, chosen + place[..., None] * size
        shape = (places, size, *replicas)
    of_hits = xp.where(lax.expand_dims(hit, range(hit.ndim, w.ndim)), w, xp.zeros((), w.dtype))
    # Each of the k chosen classes gets the weight of the example.
    of_chosen = lax.expand_dims(w, (target.ndim,))
    of_chosen = xp.broadcast_to(of_chosen, (*chosen.shape, *replicas))
    right, predicted, actual = (
        count_labels(each, weight, places * size).reshape(shape)
        for each, weight in ((target, of_hits), (chosen, of_chosen), (target, w))
    )
    # A row that counts has a target in range, so these are all weights.
    total = xp.sum(actual, len(shape) - len(replicas) - 1, w.dtype, keepdims=True)
    return _cells(right, predicted, actual, total)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RowLabels(RowTerms):
    """The labels of each row and their weights, of which a row counts few of many classes."""

    row_axis: ClassVar[int] = 0

    weight: jax.Array
    """The weights, (...)."""
    labels: Labels
    size: int = field(metadata={"static": True})
    """The number of classes."""

    @property
    def num_rows(self) -> int:
        return self.weight.shape[0]

    def added_to(self, stacked: MetricAccumulator, target: Target) -> Merging:
        yield from ()
        return stacked.plus(self.counts_at(target))

    def counts_at(self, target: Target) -> DoubleFloat:
        """The counts of each state, (target.size, 4, size)."""
        w, places = self.weight, target.places
        place, used = target.place.astype(xp.int32), target.place < places
        w = xp.where(lax.expand_dims(used, range(1, w.ndim)), w, xp.zeros((), w.dtype))
        place = None if places == 1 else xp.where(used, place, 0)

        def count(w: jax.Array) -> jax.Array:
            return counts_by_class(self.labels, w, self.size, place, places)

        # Each row counts once: there is no axis of replicas.
        if (times := target.times) is None:
            total = sum_by_digits(w, count)
            states = places, 4, self.size
            return total.map(lambda x: xp.moveaxis(x.reshape(4, *states[::2]), 0, 1))
        times = lax.expand_dims(times, range(1, w.ndim))
        times = xp.broadcast_to(times, (*w.shape, target.replicas))
        if w.dtype == xp.bool_:
            # Integers, so the counts of a replica are as exact as those of the data.
            times = xp.where(w[..., None], times, 0)
            total = double_from_int(count(times), default_float())
        else:
            total = sum_by_digits(w[..., None] * times.astype(w.dtype), count)
        states = (target.size, 4, self.size)
        return total.map(
            lambda x: xp.moveaxis(
                x.reshape(4, places, self.size, target.replicas), (3, 1), (0, 1)
            ).reshape(states)
        )

    def as_state(self) -> MetricAccumulator:
        rows = self.num_rows
        each = self.counts_at(Target(xp.arange(rows, dtype=xp.uint32), rows))
        # Each row is a place of its own.
        empty = MetricAccumulator(np.zeros((4, self.size))).by_row(rows)
        return empty.plus(each.map(lambda x: rows_last(x)))


def _cells(right: jax.Array, predicted: jax.Array, actual: jax.Array, n: jax.Array) -> jax.Array:
    """TP, FP, FN and TN, (4, C), from integers by class and the total `n`."""
    n = xp.broadcast_to(n, right.shape)  # one number, or one for each replica
    # FP = predicted - TP, FN = actual - TP, TN = n - TP - FP - FN. These are integers, so no
    # difference is rounded.
    return xp.stack([right, predicted - right, actual - right, n - predicted - actual + right])


class ConfusionCounts(CountsInvalid):
    """The weight of examples by target (rows) and predicted class (columns).

    An update adds each example to one cell, in place. It makes no array of the size of the matrix,
    nor of N by C. Exact to 2**48 without weights or with a mask. Examples with a score of NaN or
    +inf, without any score above -inf, or with a label out of range, are excluded and counted in
    `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import ConfusionCounts
        >>> seen = ConfusionCounts(num_classes=2)
        >>> print(seen.update(jnp.array([0, 1, 1]), jnp.array([0, 0, 1])).matrix.value)
        [[1. 1.]
         [0. 1.]]
    """

    num_classes: int
    """Scores (..., C) or predicted labels (...), and labels (...) as target."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted in `invalid`."""

    matrix: ScatterCounts = state()

    def __post_init__(self) -> None:
        positive_int(self.num_classes, "num_classes", least=2)
        self.matrix = ScatterCounts((self.num_classes, self.num_classes))

    @property
    def size(self) -> int:
        """The number of classes."""
        return self.num_classes

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in a batch.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: the labels are not integers.
        """
        chosen, labels, w, invalid = predictions(
            preds, target, weights, self.num_classes, ignore_index=self.ignore_index
        )
        cell = labels * self.num_classes + chosen[..., 0]  # in the flat matrix
        # Labels of weight zero may be anything, so their cell may not exist.
        return self.with_batch(
            invalid, matrix=self.matrix.add(xp.where(w.astype(xp.bool_), cell, 0), w)
        )
