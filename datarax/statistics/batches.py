"""Predictions and targets of a task, checked: which can be used, and how much each counts."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

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
from datarax.statistics.labels import equals, in_range

_FINE = 2.0**-23  # the resolution of float32


class Examples(NamedTuple):
    """A batch of which every example of non-zero weight can be used; others may hold anything."""

    preds: jax.Array
    """Floats in the dtype that values are accumulated in, of the shape that was given."""
    target: jax.Array
    """Multiclass: labels from 0 to C - 1, as int32. Else: whether it is the positive class."""
    weight: jax.Array
    """As from `rows_weight`, of the shape of `target`."""
    invalid: jax.Array
    """Which cannot be used, though their weight is not zero."""
    eps: float
    """The distance from 1 to the next float of the dtype that was given; float32's if coarser."""


def check_task(num_classes: int | None, num_labels: int | None) -> None:
    """Refuses sizes that state no task: multiclass, multilabel, or neither for binary."""
    if num_classes is not None and num_labels is not None:
        raise MetricInputError(
            "num_classes= (multiclass) and num_labels= (multilabel) exclude each other"
        )
    if num_classes is not None:
        positive_int(num_classes, "num_classes", least=2)
    if num_labels is not None:
        positive_int(num_labels, "num_labels")


def examples(
    preds: Any,
    target: Any,
    weights: Any,
    *,
    num_classes: int | None = None,
    num_labels: int | None = None,
    probabilities: bool = False,
    ignore_index: int | None = None,
) -> Examples:
    """A batch of scores for each class, and its targets, checked.

    Args:
        preds: multiclass (..., C); multilabel (..., L); binary (...).
        target: labels (...) where multiclass, else 0/1 of the shape of `preds`.
        weights: broadcast against the leading axes of `target`.
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        probabilities: what is no probability is invalid, else what is not finite.
        ignore_index: a target that leaves its example out, uncounted.

    Raises:
        MetricInputError: shapes that do not go together; shows both.
        MetricTypeError: multiclass targets that are no integers.
    """
    given, target = numeric(preds, "preds"), numeric(target, "target")
    scores = as_float(given)
    if num_classes is None:
        same_shape(given, target)
        if num_labels is not None and given.shape[-1:] != (num_labels,):
            raise MetricInputError(
                f"preds of shape {given.shape} for num_labels={num_labels}; "
                f"expected (..., {num_labels})"
            )
        positive = target == jnp.ones((), target.dtype)
        valid = is_probability(scores) if probabilities else jnp.isfinite(scores)
        valid &= positive | (target == jnp.zeros((), target.dtype))
        chosen = positive
    else:
        if not is_integer(target):
            raise MetricTypeError(f"target has dtype {target.dtype}; expected integer labels")
        if given.shape != (*target.shape, num_classes):
            raise MetricInputError(
                f"preds of shape {given.shape} and target of shape {target.shape}; expected "
                f"preds of shape {(*target.shape, num_classes)} for num_classes={num_classes}"
            )
        known = in_range(target, num_classes)
        usable = is_distribution(given) if probabilities else all_finite(scores)
        valid = known & usable
        chosen = jnp.where(known, target, jnp.zeros((), target.dtype)).astype(jnp.int32)
    ignored = equals(target, ignore_index)
    weight, invalid = rows_weight(valid | ignored, weights)
    weight = jnp.where(ignored, jnp.zeros((), weight.dtype), weight)
    return Examples(scores, chosen, weight, invalid, min(_resolution(given), _FINE))


def is_probability(p: jax.Array) -> jax.Array:
    """Which floats are from 0 to 1."""
    return (p >= jnp.zeros((), p.dtype)) & (p <= jnp.ones((), p.dtype))


def is_distribution(p: jax.Array) -> jax.Array:
    """Which rows, along the last axis, hold probabilities that sum to one.

    Within the root of the resolution of the dtype that was given, or of float32 where that is
    finer, which is what rounding each of them leaves room for.
    """
    tolerance = max(_resolution(p), _FINE) ** 0.5
    p = as_float(p)
    near = jnp.abs(jnp.sum(p, -1) - jnp.ones((), p.dtype)) <= jnp.asarray(tolerance, p.dtype)
    # Of extremes, which are NaN if any of them is: cheaper than to ask each.
    return near & is_probability(jnp.min(p, -1)) & is_probability(jnp.max(p, -1))


def _resolution(x: jax.Array) -> float:
    return _FINE if is_integer(x) else float(jnp.finfo(x.dtype).eps)
