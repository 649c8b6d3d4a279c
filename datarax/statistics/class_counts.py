"""`ClassCounts`: counts by class, the statistic of accuracy, precision, recall and others."""

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
    """The true positives, the predicted positives and the support of each class; the total weight.

    Counts are sums of weights, kept as double-floats. Without weights or with a mask, they are
    exact to 2**48. With other weights, the weights of a batch are first summed in float32 (float64
    with x64). Examples with NaN or infinite scores, or with a label out of range, are excluded and
    counted in `invalid`.
    """

    num_classes: int | None = None
    """Multiclass: scores (..., C) or predicted labels (...), and labels (...) as target."""
    num_labels: int | None = None
    """Multilabel: scores (..., L) and 0/1 targets (..., L).

    Without `num_classes` and `num_labels` the task is binary: scores (...) and 0/1 targets (...).
    Then only one class is counted: the positive class."""
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
        # Float sums: they are double-floats, which hold counts and fractional weights alike.
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
        """The counts by name, each of shape (size,), and the total weight.

        "right" are the true positives, "predicted" the predicted positives, and "actual" the
        support. "total" has shape (L,) for a multilabel task, because a target can be ignored in
        one label alone; otherwise ().
        """
        names = ("right", "predicted", "actual", "total")
        return {name: getattr(self, name).double for name in names}

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
            preds, target, weights, num_labels=self.num_labels, ignore_index=self.ignore_index
        )
        chosen = preds > self.threshold
        if self.num_labels is None:  # one class, the positive one
            chosen, positive, w, invalid = (x[..., None] for x in (chosen, positive, w, invalid))
        # Booleans stay booleans, so that they are counted exactly.
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
        # With top_k, one example adds to k predicted classes, but to one target.
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
