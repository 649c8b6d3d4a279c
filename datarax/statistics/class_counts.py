"""Counts by class: what accuracy, precision, recall and their kin are read from."""

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax._checks import (
    all_finite,
    is_integer,
    numeric,
    positive_int,
    real,
    rows_weight,
    same_shape,
)
from datarax._errors import MetricInputError, MetricTypeError
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import check_task, examples
from datarax.statistics.labels import count_labels, equals, first_highest, in_range
from datarax.statistics.state import State


class ClassCounts(State):
    """For each class: how often it was right, predicted, and the target; and examples in all.

    Args:
        num_classes: multiclass: scores (..., C) or predicted labels (...), labels (...) as target.
        num_labels: multilabel: scores (..., L), 0/1 targets (..., L). Neither: binary, with scores
            (...) and 0/1 targets (...), counted as one class, the positive one.
        threshold: binary and multilabel: a score above it predicts the class.
        top_k: multiclass: the classes of the k highest scores are predicted.
        ignore_index: a target that leaves its example out, uncounted.

    Counts are sums of weights in pairs of floats: exact to 2**48 without weights or with a mask;
    with other weights, those of a batch are first summed in float32 (float64 with x64). Examples
    with NaN or infinite scores, or with a label out of range, are excluded and counted in
    `invalid`.
    """

    invalid = MetricAccumulator(0)

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        threshold: float = 0.5,
        top_k: int = 1,
        ignore_index: int | None = None,
    ):
        check_task(num_classes, num_labels)
        positive_int(top_k, "top_k")
        if top_k > (num_classes or 1):
            raise MetricInputError(
                f"top_k={top_k}; expected at most num_classes={num_classes}"
                if num_classes
                else f"top_k={top_k} is for multiclass scores; give num_classes="
            )
        self.num_classes, self.num_labels = num_classes, num_labels
        self.threshold = real(threshold, "threshold")
        self.top_k, self.ignore_index = top_k, ignore_index
        self.right = MetricAccumulator(np.zeros(self.size))
        self.predicted = MetricAccumulator(np.zeros(self.size))
        self.actual = MetricAccumulator(np.zeros(self.size))
        self.total = MetricAccumulator(np.zeros(self.size if num_labels else ()))

    @property
    def size(self) -> int:
        """How many classes are counted: C, L, or 1."""
        return self.num_classes or self.num_labels or 1

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """Folds in a batch.

        Raises:
            MetricInputError: shapes that do not go together; shows both.
            MetricTypeError: labels that are no integers.
        """
        if self.num_classes is None:
            return self._binary(preds, target, weights)
        return self._multiclass(numeric(preds, "preds"), numeric(target, "target"), weights)

    def _binary(self, preds: Any, target: Any, weights: Any) -> Self:
        preds, positive, w, invalid, _ = examples(
            preds, target, weights, num_labels=self.num_labels, ignore_index=self.ignore_index
        )
        chosen = preds > jnp.asarray(self.threshold, preds.dtype)
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

    def _multiclass(self, preds: jax.Array, target: jax.Array, weights: Any) -> Self:
        seen = predictions(preds, target, weights, self.size, self.top_k, self.ignore_index)
        chosen, target, w, invalid = seen
        hit = jnp.any(chosen == target[..., None], -1)
        zero = jnp.zeros((), w.dtype)
        spread = jnp.broadcast_to(w[..., None], chosen.shape)
        return self.replace(
            right=self.right.update(count_labels(target, jnp.where(hit, w, zero), self.size)),
            predicted=self.predicted.update(count_labels(chosen, spread, self.size)),
            actual=self.actual.update(count_labels(target, w, self.size)),
            total=self.total.update(w),
            invalid=self.invalid.update(invalid),
        )


class Predictions(NamedTuple):
    """Predicted classes and targets; those of weight zero may be any."""

    chosen: jax.Array
    """(..., k) int32."""
    target: jax.Array
    """(...) int32."""
    weight: jax.Array
    """As from `rows_weight`."""
    invalid: jax.Array
    """Which cannot be used, though their weight is not zero."""


def predictions(
    preds: jax.Array,
    target: jax.Array,
    weights: Any,
    size: int,
    top_k: int = 1,
    ignore_index: int | None = None,
) -> Predictions:
    """A multiclass batch, checked: scores (..., C) or labels (...), and integer targets (...).

    Raises:
        MetricInputError: shapes that do not go together; shows both.
        MetricTypeError: labels that are no integers.
    """
    if not is_integer(target):
        raise MetricTypeError(f"target has dtype {target.dtype}; expected integer labels")
    scores = preds.ndim == target.ndim + 1
    if scores and preds.shape != (*target.shape, size):
        raise MetricInputError(
            f"preds of shape {preds.shape} and target of shape {target.shape}; expected scores "
            f"of shape {(*target.shape, size)} for num_classes={size}"
        )
    if not scores:
        same_shape(preds, target)
        if not is_integer(preds):
            raise MetricTypeError(
                f"preds has shape {preds.shape} and dtype {preds.dtype}; expected scores of "
                f"shape {(*target.shape, size)}, or integer labels"
            )
        if top_k > 1:
            raise MetricInputError(f"top_k={top_k} needs scores; preds are labels")
    valid = in_range(target, size)
    if scores:
        valid &= is_integer(preds) or all_finite(preds)
        chosen = _top(preds, top_k)
    else:
        valid &= in_range(preds, size)
        chosen = preds[..., None]
    ignored = equals(target, ignore_index)
    w, invalid = rows_weight(valid | ignored, weights)
    w = jnp.where(ignored, jnp.zeros((), w.dtype), w)
    # In one dtype that holds every valid label: in a narrower one, others would look equal.
    return Predictions(chosen.astype(jnp.int32), target.astype(jnp.int32), w, invalid)


def _top(scores: jax.Array, k: int) -> jax.Array:
    if k == 1:
        return first_highest(scores)[..., None]
    if not is_integer(scores):  # a sort tells zeros of both signs apart
        scores = jnp.where(scores == 0, jnp.zeros((), scores.dtype), scores)
    return jax.lax.top_k(scores, k)[1]
