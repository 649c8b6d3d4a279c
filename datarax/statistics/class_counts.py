"""Counts by class: what accuracy, precision, recall and their kin are read from."""

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax._checks import (
    all_finite,
    as_float,
    is_integer,
    numeric,
    positive_int,
    rows_weight,
    same_shape,
)
from datarax._errors import MetricInputError, MetricTypeError
from datarax.statistics._state import State
from datarax.statistics._tally import add_at, scatter_sum
from datarax.statistics.accumulator import MetricAccumulator


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
        if num_classes is not None and num_labels is not None:
            raise MetricInputError(
                "num_classes= (multiclass) and num_labels= (multilabel) exclude each other"
            )
        if num_classes is not None:
            positive_int(num_classes, "num_classes", least=2)
        if num_labels is not None:
            positive_int(num_labels, "num_labels")
        positive_int(top_k, "top_k")
        if top_k > (num_classes or 1):
            raise MetricInputError(
                f"top_k={top_k}; expected at most num_classes={num_classes}"
                if num_classes
                else f"top_k={top_k} is for multiclass scores; give num_classes="
            )
        self.num_classes, self.num_labels = num_classes, num_labels
        self.threshold, self.top_k, self.ignore_index = float(threshold), top_k, ignore_index
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
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        if self.num_classes is not None:
            return self._multiclass(preds, target, weights)
        return self._binary(preds, target, weights)

    def _binary(self, preds: jax.Array, target: jax.Array, weights: Any) -> Self:
        same_shape(preds, target)
        if self.num_labels is not None and preds.shape[-1:] != (self.num_labels,):
            raise MetricInputError(
                f"preds of shape {preds.shape} for num_labels={self.num_labels}; "
                f"expected (..., {self.num_labels})"
            )
        preds = as_float(preds)
        positive = target == jnp.ones((), target.dtype)
        valid = jnp.isfinite(preds) & (positive | (target == jnp.zeros((), target.dtype)))
        chosen = preds > jnp.asarray(self.threshold, preds.dtype)
        ignored = equals(target, self.ignore_index)
        if self.num_labels is None:  # one class, the positive one
            chosen, positive, valid, ignored = (
                x[..., None] for x in (chosen, positive, valid, ignored)
            )
        w, invalid = rows_weight(valid | ignored, weights)
        w = jnp.where(ignored, jnp.zeros((), w.dtype), w)
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


def equals(target: jax.Array, index: int | None) -> jax.Array:
    """Which targets are a given number, which their dtype may not hold."""
    if index is None or np.asarray(index).astype(target.dtype) != index:
        return jnp.zeros(target.shape, jnp.bool_)
    return target == jnp.asarray(index, target.dtype)


def in_range(labels: jax.Array, size: int) -> jax.Array:
    """Which labels are from 0 to `size - 1`, in any integer dtype, the narrow ones too."""
    if labels.dtype == jnp.bool_:
        return jnp.ones(labels.shape, jnp.bool_)
    below = jnp.ones(labels.shape, jnp.bool_)
    if size <= jnp.iinfo(labels.dtype).max:
        below = labels < jnp.asarray(size, labels.dtype)
    return below & (labels >= jnp.zeros((), labels.dtype))


def count_labels(labels: jax.Array, weights: jax.Array, size: int) -> jax.Array:
    """The total weight of each label: (size,), integers for boolean weights, floats for floats.

    A label out of range must have weight zero.
    """
    labels = labels.astype(jnp.int32)
    if weights.dtype == jnp.bool_:
        weights = weights.astype(jnp.int32)
    if size <= 64:
        # Comparing with every class beats a scatter while there are few.
        same = labels.reshape(-1, 1) == jnp.arange(size, dtype=jnp.int32)[None, :]
        return jnp.sum(jnp.where(same, weights.reshape(-1, 1), jnp.zeros((), weights.dtype)), 0)
    if not is_integer(weights):
        return scatter_sum(labels, weights, size)[0]
    return add_at(jnp.zeros((size,), jnp.int32), labels, weights)


def first_highest(scores: jax.Array) -> jax.Array:
    """The class of the highest score (..., C), of equal ones the first: (...) int32."""
    # On CPU a third of the time of `jnp.argmax`. A row with NaN gives no class.
    classes = jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
    highest = scores == jnp.max(scores, -1, keepdims=True)
    return jnp.min(jnp.where(highest, classes, jnp.int32(scores.shape[-1])), -1)


def _top(scores: jax.Array, k: int) -> jax.Array:
    if k == 1:
        return first_highest(scores)[..., None]
    return jax.lax.top_k(scores, k)[1]
