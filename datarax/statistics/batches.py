"""Batches, checked: which examples can be used, and how much each counts."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from datarax._checks import (
    all_finite,
    as_float,
    is_integer,
    numeric,
    positive_int,
    same_shape,
)
from datarax._errors import MetricInputError, MetricTypeError
from datarax.statistics.labels import equals, first_highest, in_range

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


def pairs(
    preds: Any,
    target: Any,
    weights: Any,
    shape: tuple[int, ...],
    domain: Callable[[jax.Array, jax.Array], jax.Array | None] = lambda p, t: None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Predictions and targets as floats, what each example counts, and which cannot be used.

    Args:
        preds: of shape (..., *shape).
        target: of the shape of `preds`.
        weights: broadcast against the leading axes.
        shape: of one example.
        domain: which finite values can be used; `None` for all.

    Returns:
        Both; the weight of each example, see `rows_weight`, with axes of size one for those of an
        example; and the mask of examples that cannot be used, without them.

    Raises:
        MetricInputError: shapes that differ, or do not end in `shape`.
    """
    preds, target = numeric(preds, "preds"), numeric(target, "target")
    same_shape(preds, target)
    batch = preds.ndim - len(shape)
    if batch < 0 or preds.shape[batch:] != shape:
        raise MetricInputError(
            f"preds and target of shape {preds.shape}; expected a shape that ends in {shape}, "
            f"one value for each of num_outputs"
        )
    p, t = as_float(preds), as_float(target)
    usable, defined = jnp.isfinite(p) & jnp.isfinite(t), domain(p, t)
    usable = usable if defined is None else usable & defined
    valid = jnp.all(usable, tuple(range(batch, p.ndim)))
    w, invalid = rows_weight(valid, weights)
    return p, t, jax.lax.expand_dims(w, range(w.ndim, p.ndim)), invalid


def on_leading_axes(x: jax.Array, shape: tuple[int, ...], name: str) -> jax.Array:
    """`x` with axes of one appended, so that it broadcasts against values of `shape`."""
    fits = x.ndim <= len(shape) and all(n in (1, m) for n, m in zip(x.shape, shape, strict=False))
    if not fits:
        raise MetricInputError(
            f"{name} of shape {x.shape} does not broadcast against the leading axes of the values, "
            f"of shape {shape}"
        )
    return lax.expand_dims(x, range(x.ndim, len(shape)))


def numbered_steps(step: Any, values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Steps as int32 that broadcast against the values, and which of them are in its range."""
    step = numeric(step, "step")
    if not is_integer(step) or step.dtype == jnp.bool_:
        raise MetricTypeError(f"step has dtype {step.dtype}; expected integers")
    step = on_leading_axes(step, values.shape, "step")
    narrow = step.astype(jnp.int32)
    known = (narrow.astype(step.dtype) == step) & ((narrow < 0) == (step < 0))
    return jnp.broadcast_to(narrow, values.shape), jnp.broadcast_to(known, values.shape)


def rows_weight(
    valid: jax.Array, weights: Any, name: str = "weights"
) -> tuple[jax.Array, jax.Array]:
    """What each row counts, and which rows were asked for but hold values that cannot be used.

    Args:
        valid: booleans of the shape of the rows.
        weights: `None`, or an array that broadcasts against the leading axes of `valid`.

    Returns:
        The weight of each row, of the shape of `valid`: booleans where weights are (or are not
        given), else floats; zero where the row or its weight is not valid. And a mask of the rows
        that are excluded for that, though their weight is not zero.
    """
    if weights is None:
        return valid, ~valid
    w = numeric(weights, name)
    fits = w.ndim <= valid.ndim and all(
        n in (1, m) for n, m in zip(w.shape, valid.shape, strict=False)
    )
    if not fits:
        raise MetricInputError(
            f"{name} of shape {w.shape} does not broadcast against the leading axes of the "
            f"examples, of shape {valid.shape}"
        )
    w = jax.lax.expand_dims(w, range(w.ndim, valid.ndim))
    if w.dtype == jnp.bool_:
        return w & valid, w & ~valid
    w = as_float(w)
    fine = jnp.isfinite(w) & (w >= 0)
    counted = jnp.where(fine & valid, w, jnp.zeros((), w.dtype))
    return counted, (w != 0) & ~(fine & valid)
