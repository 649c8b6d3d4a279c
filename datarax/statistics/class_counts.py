"""Counts by class, from which accuracy, precision, recall and similar metrics are computed."""

from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax._checks import numeric, positive_int, real
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import check_task, examples, predictions
from datarax.statistics.labels import count_labels
from datarax.statistics.state import State


class ClassCounts(State):
    """For each class: true positives, predicted positives and support; and the total weight.

    Counts are sums of weights in double-floats: exact to 2**48 without weights or with a mask;
    with other weights, those of a batch are first summed in float32 (float64 with x64). Examples
    with NaN or infinite scores, or with a label out of range, are excluded and counted in
    `invalid`.
    """

    num_classes: int | None = None
    """Multiclass: scores (..., C) or predicted labels (...), and labels (...) as target."""
    num_labels: int | None = None
    """Multilabel: scores (..., L) and 0/1 targets (..., L). With neither size the task is binary:
    scores (...) and 0/1 targets (...), counted as one class, the positive one."""
    threshold: float = 0.5
    """Binary and multilabel: a score above it predicts the class."""
    top_k: int = 1
    """Multiclass: the classes of the k highest scores are predicted."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted in `invalid`."""

    invalid = MetricAccumulator(0)

    def __post_init__(self) -> None:
        check_task(self.num_classes, self.num_labels)
        positive_int(self.top_k, "top_k")
        if self.top_k > (self.num_classes or 1):
            raise MetricInputError(
                f"top_k={self.top_k}; expected at most num_classes={self.num_classes}"
                if self.num_classes
                else f"top_k={self.top_k} is for multiclass scores; give num_classes="
            )
        self.threshold = real(self.threshold, "threshold")
        zeros = np.zeros(self.size)
        self.right = MetricAccumulator(zeros)
        self.predicted = MetricAccumulator(zeros)
        self.actual = MetricAccumulator(zeros)
        self.total = MetricAccumulator(zeros if self.num_labels else 0.0)

    @property
    def size(self) -> int:
        """The number of classes that are counted: C, L, or 1."""
        return self.num_classes or self.num_labels or 1

    def by_class(self) -> dict[str, DoubleFloat]:
        """ "right" (true positives), "predicted" and "actual" (support), (C,), and "total".

        The total has shape (L,) for labels, else ().
        """
        names = ("right", "predicted", "actual", "total")
        return {name: getattr(self, name).double for name in names}

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in a batch.

        Raises:
            MetricInputError: shapes that do not go together; shows both.
            MetricTypeError: labels that are not integers.
        """
        if self.num_classes is None:
            return self._binary(preds, target, weights)
        return self._multiclass(numeric(preds, "preds"), numeric(target, "target"), weights)

    def _binary(self, preds: ArrayLike, target: ArrayLike, weights: Weights) -> Self:
        preds, positive, w, invalid, _ = examples(
            preds, target, weights, num_labels=self.num_labels, ignore_index=self.ignore_index
        )
        chosen = preds > self.threshold
        if self.num_labels is None:  # one class, the positive one
            chosen, positive, w, invalid = (x[..., None] for x in (chosen, positive, w, invalid))
        zero = jnp.zeros((), w.dtype)
        return self.replace(
            right=self.right.update(jnp.where(chosen & positive, w, zero)),
            predicted=self.predicted.update(jnp.where(chosen, w, zero)),
            actual=self.actual.update(jnp.where(positive, w, zero)),
            total=self.total.update(w if self.num_labels else w[..., 0]),
            invalid=self.invalid.update(invalid),
        )

    def _multiclass(self, preds: jax.Array, target: jax.Array, weights: Weights) -> Self:
        seen = predictions(preds, target, weights, self.size, self.top_k, self.ignore_index)
        chosen, target, w, invalid = seen
        hit = jnp.any(chosen == target[..., None], -1)
        zero = jnp.zeros((), w.dtype)
        weight_of_chosen = jnp.broadcast_to(w[..., None], chosen.shape)
        return self.replace(
            right=self.right.update(count_labels(target, jnp.where(hit, w, zero), self.size)),
            predicted=self.predicted.update(count_labels(chosen, weight_of_chosen, self.size)),
            actual=self.actual.update(count_labels(target, w, self.size)),
            total=self.total.update(w),
            invalid=self.invalid.update(invalid),
        )
