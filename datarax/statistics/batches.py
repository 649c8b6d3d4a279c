"""Validates batches: finds the examples that can be used, and the weight of each.

A wrong shape or dtype raises an error when the update is traced. Values are never inspected on the
host: an example with an invalid value gets weight zero, and is counted as invalid, by kind.
"""

import math
import numbers
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from datarax._checks import (
    as_float,
    default_float,
    integers,
    is_integer,
    numeric,
    positive_int,
    same_shape,
)
from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import lax, xp
from datarax.numerics.highest import first_highest, first_highest_and_code
from datarax.numerics.limbs import difference, is_wide
from datarax.statistics.class_rows import ClassRows, class_rows
from datarax.statistics.invalid_counts import (
    Invalid,
    evidence_of,
    is_nan,
    logit_codes,
    no_weights,
    not_finite,
    not_logits,
    of_logit_codes,
    out_of_range,
)
from datarax.statistics.score_kinds import FLOAT32_EPS, ScoreKind, eps_of, root_eps
from datarax.statistics.thresholds import (
    check_labels,
    check_one_hot,
    check_sums_of_axes,
)


class Examples(NamedTuple):
    """A checked batch. Examples of weight zero must be ignored: they may hold any value."""

    preds: jax.Array
    """Scores as floats, of the given shape. From multiclass integers that floats would round, the
    highest score of the example is subtracted. On the host of float64, but logits of which `rows`
    computes the losses: those have the dtype in which they are given."""
    target: jax.Array
    """Multiclass: int32 labels from 0 to C - 1. Otherwise booleans, true for the positive class."""
    weight: jax.Array
    """The weight of each example, from `rows_weight`, of the shape of `target`."""
    invalid: Invalid
    """The invalid examples: they cannot be used, and their given weight is not zero. Of others, the
    evidence that scores are of another kind."""
    eps: float
    """The distance from 1 to the next float in the dtype of the given scores; that of float32 for a
    coarser dtype and for integers."""
    rows: PyTree
    """Multiclass: the `ClassRows` of the scores, with `by_label` of the labels, too; else None."""


def check_task(num_classes: int | None, num_labels: int | None) -> None:
    """Checks the sizes of a task: `num_classes`, `num_labels`, or neither for a binary task.

    Raises:
        MetricInputError: both sizes are given, or a size is too small or not an integer.
    """
    if num_classes is not None and num_labels is not None:
        raise MetricInputError(
            "num_classes= (multiclass) and num_labels= (multilabel) exclude each other"
        )
    if num_classes is not None:
        positive_int(num_classes, "num_classes", least=2)
    if num_labels is not None:
        positive_int(num_labels, "num_labels")


def examples(
    preds: ArrayLike,
    target: ArrayLike,
    weights: Weights,
    *,
    num_classes: int | None = None,
    num_labels: int | None = None,
    probabilities: bool = False,
    ignore_index: int | None = None,
    infinite: bool = False,
    from_logits: bool = False,
    kind: ScoreKind = "",
    by_label: bool = False,
    name: str = "preds",
) -> Examples:
    """Checks a batch of scores and targets.

    Labels of a binary or multilabel task must be 0 and 1; those on the host are checked.

    Args:
        preds: scores: multiclass (..., C); multilabel (..., L); binary (...).
        target: multiclass: labels (...); otherwise 0/1, of the shape of `preds`.
        weights: broadcast against the leading axes of `target`.
        num_classes: the number of classes of a multiclass task.
        num_labels: the number of labels of a multilabel task. With neither, the task is binary.
        probabilities: whether `preds` must be probabilities. If not, any finite score is valid, and
            so is -inf, the logit of a class that is ruled out.
        ignore_index: examples with this target get weight zero, and are not counted as invalid.
        infinite: whether infinite scores are valid.
        from_logits: whether `preds` are logits, of a softmax for multiclass, else of a sigmoid.
            Then -inf is valid.
        kind: what the scores are taken for. Evidence of another kind is in `Examples.invalid`, so
            that the reading warns. Of "probabilities", which are compared with a threshold,
            infinities are invalid, and so are integers that are no labels 0 and 1.
        by_label: whether `Examples.rows` is asked for the scores of the labels.
        name: the name of `preds` in messages.

    Raises:
        MetricInputError: the shapes do not fit together; shows both. Or a label on the host is
            not 0 or 1.
        MetricTypeError: multiclass targets are not integers.
    """
    # A softmax does not depend on subnormal logits. Scores that may be infinite are log-odds, and
    # those of the least normal numbers do.
    of_softmax = from_logits and num_classes is not None
    given = numeric(preds, name, subnormals=of_softmax and not infinite, any_range=infinite)
    target = numeric(target, "target")
    # The rows of a cross entropy convert what they need.
    as_given = kind == "softmax" and by_label and not is_integer(given)
    scores, rows = given if as_given else as_float(given), None
    any_score, has_threshold = infinite and not of_softmax, kind == "probabilities"
    if num_classes is None:
        check_label_shapes(given, target, num_labels, name)
        # The constants 1 and 0 have the dtype of the target, which may be boolean.
        one, zero = (xp.asarray(x, target.dtype) for x in (1, 0))
        labels = target == one
        # NaN is no other label: it is counted as NaN by `not_finite`.
        other = ~labels & (target != zero) & xp.isfinite(as_float(target))
        unusable_scores = is_nan if any_score else not_finite if has_threshold else not_logits
        unusable = unusable_scores(scores) | not_finite(target) | out_of_range(other, target)
        if probabilities or (has_threshold and is_integer(given)):
            unusable |= out_of_range((scores < 0) | (scores > 1), scores)
    else:
        target = class_labels(target, num_classes)
        if given.shape != (*target.shape, num_classes):
            refuse_shapes(given, target, num_classes, name)
        if given.ndim > 2:
            check_class_axis(given, num_classes, name)
        # Before they are rounded: of scores, only differences matter.
        if is_wide(given) and not (probabilities or any_score):
            scores = difference(given, xp.max(given, -1, keepdims=True))
        known = in_range(target, num_classes)
        # An invalid target becomes label 0, so that every label can index the scores.
        labels = xp.where(known, target, xp.zeros((), target.dtype)).astype(xp.int32)
        rows = class_rows(scores, labels if by_label else None)
        scores = rows.scores
        if probabilities:
            unusable_rows = not_distribution(rows, given)
        elif kind or by_label:
            unusable_rows = rows.is_nan() if any_score else rows.not_logits()
        else:
            unusable_rows = is_nan(scores, -1) if any_score else not_logits(scores, -1)
        unusable = out_of_range(~known, target) | unusable_rows
    if kind:
        unusable |= evidence_of(kind, scores if rows is None else rows, given)
    weight, invalid = kept_weight(unusable, weights, target, ignore_index)
    if num_classes is None:
        # After the weights are known to fit: labels of weight zero are not looked at.
        check_labels(target, "target", target, weights, ignore_index)
        if has_threshold and is_integer(given):
            check_labels(given, name, target, weights, ignore_index)
    return Examples(scores, labels, weight, invalid, min(eps_of(given), FLOAT32_EPS), rows)


def check_class_axis(preds: jax.Array, size: int, name: str) -> None:
    """Warns if the classes of scores (N, C, ..., C) on the host are along axis 1.

    Of other shapes, it is an error; in these both axes have the number of classes.
    """
    shape = preds.shape
    if len(shape) > 2 and shape[1] == size == shape[-1]:
        check_sums_of_axes(preds, name)


def class_labels(target: ArrayLike, size: int) -> jax.Array:
    """The targets of a task of `size` classes as an array of integers or booleans.

    Raises:
        MetricTypeError: they have another dtype.
    """
    array = numeric(target, "target")
    if is_integer(array):
        return array
    if array.shape[-1:] == (size,):
        raise MetricTypeError(
            f"target has shape {array.shape} and dtype {array.dtype}; expected integer labels. If "
            f"target is one-hot, give target.argmax(-1)"
        )
    return integers(array, "target", "integer labels", booleans=True)


def check_label_shapes(
    preds: jax.Array, target: jax.Array, num_labels: int | None, name: str
) -> None:
    """Raises unless scores and 0/1 targets have one shape, which ends in the number of labels."""
    given = preds.shape
    if preds.ndim == target.ndim + 1 and given[:-1] == target.shape != given[-1:]:
        size = given[-1]
        hint = f"for scores of {size} classes, give num_classes={size}"
        if size == 1:
            hint = f"for one score for each example, give {name}[..., 0]"
        raise MetricInputError(
            f"{name} of shape {given} and target of shape {target.shape}; {hint}"
        )
    same_shape(preds, target, (name, "target"))
    if num_labels is not None and given[-1:] != (num_labels,):
        raise MetricInputError(
            f"{name} of shape {given} for num_labels={num_labels}; expected (..., {num_labels})"
        )


def refuse_shapes(preds: jax.Array, target: jax.Array, size: int, name: str) -> None:
    """Raises the error of scores and labels of `size` classes whose shapes do not fit together."""
    given, shape = preds.shape, target.shape
    start = f"{name} of shape {given} and target of shape {shape}"
    if given[-1:] == (size,):
        # The classes are there, so it is the target that has another shape.
        due, hint = given[:-1], ""
        if given == shape:
            hint = ". If target is one-hot, give target.argmax(-1)"
        elif math.prod(due) == target.size:
            hint = f"; give target.reshape({due})"
            if shape == (*due, 1):
                hint += " or target[..., 0]"
        raise MetricInputError(
            f"{start}; expected target of shape {due}, the labels of {size} classes{hint}"
        )
    hint = ""
    if len(given) == len(shape) + 1 and given == (*shape[:1], size, *shape[1:]):
        hint = f". If axis 1 is that of the classes, give moveaxis({name}, 1, -1)"
    raise MetricInputError(
        f"{start}; expected {name} of shape {(*shape, size)} for num_classes={size}{hint}"
    )


def not_distribution(rows: ClassRows, given: jax.Array) -> Invalid:
    """The rows that do not hold probabilities with a sum of 1.

    The tolerance of the sum is `sqrt(eps)` of the dtype of what was `given`: 3.5e-4 for float32 and
    float64, and more for a coarser dtype. It covers the rounding of each probability.
    """
    tolerance = root_eps(given)
    total, least, greatest = rows.total, rows.least, rows.greatest
    bad = (least < 0) | (greatest > 1) | (xp.abs(total - 1) > tolerance)
    unusable = not_finite(total)  # a sum is not finite if a term is not

    def value() -> jax.Array:
        """The value to report: one that is no probability, or the sum."""
        return xp.where(least < 0, least, xp.where(greatest > 1, greatest, total))

    return unusable | out_of_range(bad, value)


class Predictions(NamedTuple):
    """A checked batch of predicted classes. Examples of weight zero must be ignored."""

    chosen: jax.Array
    """The k predicted classes of each example: (..., k) int32."""
    target: jax.Array
    """The labels: (...) int32."""
    weight: jax.Array
    """The weight of each example, from `rows_weight`, of the shape of `target`."""
    invalid: Invalid
    """The invalid examples: they cannot be used, and their given weight is not zero."""


def predictions(
    preds: ArrayLike,
    target: ArrayLike,
    weights: Weights,
    size: int,
    top_k: int = 1,
    ignore_index: int | None = None,
    name: str = "preds",
    *,
    in_rows: bool = False,
) -> Predictions:
    """Checks a multiclass batch.

    Args:
        preds: scores (..., C), some possibly -inf, or predicted labels (...).
        target: integer labels (...).
        weights: broadcast against the leading axes of `target`.
        size: the number of classes C.
        top_k: how many classes are predicted: those of the highest scores.
        ignore_index: examples with this target get weight zero, and are not counted as invalid.
        name: the name of `preds` in messages.
        in_rows: whether labels come in rows of any length, so that none are taken for one-hot.

    Raises:
        MetricInputError: the shapes do not fit together; shows both. Or labels may be one-hot.
        MetricTypeError: the labels are not integers.
    """
    preds = numeric(preds, name, any_range=True)
    target = class_labels(target, size)
    scores = preds.ndim == target.ndim + 1
    if scores and preds.shape != (*target.shape, size):
        refuse_shapes(preds, target, size, name)
    if scores and preds.ndim > 2:
        check_class_axis(preds, size, name)
    if not scores:
        one_column = target.shape == (*preds.shape[:-1], 1)
        if preds.ndim > 1 and preds.shape[-1] == size > 1 and (one_column or not is_integer(preds)):
            refuse_shapes(preds, target, size, name)
        if target.shape == (*preds.shape, size):
            raise MetricInputError(
                f"{name} of shape {preds.shape} and target of shape {target.shape}: expected "
                f"labels of the same shape. If target is one-hot, give target.argmax(-1)"
            )
        same_shape(preds, target, (name, "target"))
        if not is_integer(preds):
            hint = "Leave num_classes= out for a binary task; convert labels to integers"
            if target.shape[-1:] == (size,):
                hint = "If target is one-hot, give target.argmax(-1)"
            raise MetricTypeError(
                f"{name} has shape {preds.shape} and dtype {preds.dtype}; expected scores of "
                f"shape {(*target.shape, size)} for num_classes={size}, or integer labels. {hint}"
            )
        if not in_rows:
            refuse_one_hot(preds, target, size, name)
        if top_k > 1:
            raise MetricInputError(f"top_k={top_k} needs scores; {name} are labels")
    unusable = out_of_range(~in_range(target, size), target)
    if scores and top_k == 1 and not is_integer(preds):
        # One pass over the scores for both.
        first, code = first_highest_and_code(preds, logit_codes)
        unusable, chosen = unusable | of_logit_codes(code, target.shape), first[..., None]
    elif scores:
        unusable |= not_logits(preds, -1)
        chosen = _top(preds, top_k)
    else:
        unusable |= out_of_range(~in_range(preds, size), preds)
        chosen = preds[..., None]
    # Before the labels are narrowed: `ignore_index` may be any integer of the given dtype.
    w, invalid = kept_weight(unusable, weights, target, ignore_index)
    # Cast only after the check of the range: a cast may wrap an invalid label to a valid one.
    return Predictions(chosen.astype(xp.int32), target.astype(xp.int32), w, invalid)


def refuse_one_hot(
    preds: jax.Array, target: jax.Array, size: int | None, name: str = "preds"
) -> None:
    """Raises if labels are one-hot: then each entry would count as a label of an example.

    Integers (N, C), and of four and more axes (..., C), are refused for their shape. Arrays of
    three axes may be images (N, H, W) whose width is C: they are refused if they are on the host
    and are one-hot, along the last axis, or of channels along the second one. So are
    arrays of two axes if C is not known, as of tokens.

    Args:
        preds: integers.
        target: integers of the same shape.
        size: the number of classes C; None if it is not known.
        name: the name of `preds` in messages.

    Raises:
        MetricInputError: they are, or may be, one-hot.
    """
    if target.ndim < 2:
        return
    if target.shape[-1] == size and target.ndim != 3:
        raise MetricInputError(
            f"{name} and target of shape {target.shape} hold integers, and num_classes={size}, so "
            f"they may be one-hot. If they are, give {name}.argmax(-1) and target.argmax(-1); if "
            f"they are labels, give {name}.reshape(-1) and target.reshape(-1)"
        )
    check_one_hot(preds, target, size, name)


def _top(scores: jax.Array, k: int) -> jax.Array:
    """The classes of the k highest scores, (..., k); of equal scores, the first classes."""
    if k == 1:
        return first_highest(scores)[..., None]
    if not is_integer(scores):
        # -0.0 becomes 0.0, because `lax.top_k` orders -0.0 below 0.0.
        scores = xp.where(scores == 0, 0, scores)
    return lax.top_k(scores, k)[1]


def pairs(
    preds: ArrayLike,
    target: ArrayLike,
    weights: Weights,
    shape: tuple[int, ...],
    domain: Callable[[jax.Array, jax.Array, float], jax.Array] | None = None,
    parameter: float = 0.0,
    *,
    any_range: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array, Invalid]:
    """Checks predictions and targets that are numbers, as in regression.

    Args:
        preds: of shape (..., *shape).
        target: of the shape of `preds`.
        weights: broadcast against the leading axes.
        shape: the shape of one example.
        domain: takes both as floats, and `parameter`; returns the mask of the finite ones that can
            be used. `None` if all can.
        parameter: the last argument of `domain`.
        any_range: see `numeric`.

    Returns:
        Predictions and targets as arrays, integers not as floats; the weight of each example, from
        `rows_weight`, with one more axis of size one for each axis of an example; and the invalid
        examples (...), which cannot be used, and whose given weight is not zero.

    Raises:
        MetricInputError: the two shapes differ, or do not end in `shape`.
    """
    preds = numeric(preds, "preds", any_range=any_range)
    target = numeric(target, "target", any_range=any_range)
    same_shape(preds, target)
    batch = preds.ndim - len(shape)
    if batch < 0 or preds.shape[batch:] != shape:
        raise MetricInputError(
            f"preds and target of shape {preds.shape}; expected a shape that ends in {shape}, "
            f"one value for each of num_outputs"
        )
    # One output that is NaN makes the example invalid, so that all outputs are of the same rows.
    axes = tuple(range(batch, preds.ndim))
    unusable = not_finite(preds, axes, target)
    if domain is not None:
        p, t = as_float(preds), as_float(target)
        # A value that is not finite is unusable already, whatever `domain` says of it.
        finite = xp.isfinite(p) & xp.isfinite(t)
        unusable |= out_of_range(xp.any(finite & ~domain(p, t, parameter), axes))
    w, invalid = rows_weight(unusable, weights)
    return preds, target, lax.expand_dims(w, range(w.ndim, preds.ndim)), invalid


def in_range(labels: jax.Array, size: int) -> jax.Array:
    """The mask of the labels from 0 to `size - 1`; they may have any integer or boolean dtype."""
    # A boolean has no `iinfo`, and both of its values are classes.
    if labels.dtype == xp.bool_:
        return xp.ones(labels.shape, xp.bool_)
    # A narrow dtype may not hold `size`; then all its values are below it.
    if size > xp.iinfo(labels.dtype).max:
        return labels >= 0
    return (labels < size) & (labels >= 0)


def equals(target: jax.Array, index: int | None) -> jax.Array:
    """The mask of the targets that equal `index`; all false if it is None or does not fit them.

    Raises:
        MetricInputError: an `index` that is not an integer; names it `ignore_index`.
    """
    if not isinstance(index, numbers.Integral | None):
        raise MetricInputError(f"ignore_index={index!r}; expected an integer or None")
    try:
        # An index that the dtype does not hold equals no target. A cast would wrap it to one.
        held = index is not None and np.asarray(index).astype(target.dtype) == index
    except OverflowError:  # more than 64 bits
        held = False
    if not held:
        return xp.zeros(target.shape, xp.bool_)
    return target == xp.asarray(index, target.dtype)


def class_of(index: int | None, num_classes: int | None) -> int | None:
    """The `index` if it is one of several classes; else None, also where there are no classes."""
    if index is None or num_classes is None or not 0 <= index < num_classes:
        return None
    return index


def is_class(target: jax.Array, size: int) -> jax.Array:
    """For labels (...), whether each of `size` classes is the label: (..., size)."""
    classes = lax.broadcasted_iota(xp.int32, (*target.shape, size), target.ndim)
    return classes == target[..., None]


def on_leading_axes(
    x: jax.Array, shape: tuple[int, ...], name: str, of: str = "values"
) -> jax.Array:
    """`x` with axes of size one appended, so that it broadcasts against values of `shape`.

    Raises:
        MetricInputError: `x` does not broadcast against the leading axes of `shape`.
    """
    fits = x.ndim <= len(shape) and all(n in (1, m) for n, m in zip(x.shape, shape, strict=False))
    if not fits:
        raise MetricInputError(
            f"{name} of shape {x.shape} does not broadcast against the leading axes of the {of}, "
            f"of shape {shape}"
        )
    return lax.expand_dims(x, range(x.ndim, len(shape)))


def broadcast_leading(x: jax.Array, shape: tuple[int, ...], name: str) -> jax.Array:
    """`x`, which broadcasts against the leading axes of values of `shape`, in that shape.

    Raises:
        MetricInputError: `x` does not broadcast against them.
    """
    return xp.broadcast_to(on_leading_axes(x, shape, name), shape)


def numbered_steps(step: ArrayLike, values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The step of each value as int32, and the mask of the steps that int32 can hold.

    Raises:
        MetricInputError: the steps do not broadcast against the leading axes of the values.
        MetricTypeError: the steps are not integers.
    """
    step = on_leading_axes(integers(step, "step"), values.shape, "step")
    # Steps beyond int32 are invalid rather than an error, because in a program their values are not
    # known.
    narrow = step.astype(xp.int32)
    # Casting back is not enough: a large uint32 wraps to a negative int32, and back to itself.
    known = (narrow.astype(step.dtype) == step) & ((narrow < 0) == (step < 0))
    return xp.broadcast_to(narrow, values.shape), xp.broadcast_to(known, values.shape)


def least_weight() -> float:
    """The least weight that does not count as zero; see `rows_weight`."""
    return float(xp.finfo(default_float()).tiny)


def kept_weight(
    unusable: Invalid, weights: Weights, target: jax.Array, ignore_index: int | None
) -> tuple[jax.Array, Invalid]:
    """`rows_weight` of examples, without those whose target is `ignore_index`.

    Raises:
        MetricInputError: the weights do not broadcast against the leading axes of the examples.
    """
    if ignore_index is None:
        return rows_weight(unusable, weights)
    # An ignored example passes the check, so that it is not invalid, and then gets weight zero.
    ignored = equals(target, ignore_index)
    w, invalid = rows_weight(unusable.where(~ignored), weights)
    return xp.where(ignored, xp.zeros((), w.dtype), w), invalid


def rows_weight(
    unusable: Invalid, weights: Weights, name: str = "weights"
) -> tuple[jax.Array, Invalid]:
    """The weight of each row, and the invalid rows.

    A row is invalid if it cannot be used, or if its weight is negative or not finite; but never if
    its weight is zero. An invalid row gets weight zero. A weight below the least normal number of
    the default float, 1.2e-38 for float32, counts as zero: some devices make it so.

    Args:
        unusable: the rows that cannot be used.
        weights: `None`, or an array that broadcasts against the leading axes of the rows.
        name: the name of the weights in error messages.

    Returns:
        The weights, with one for each row: booleans if the given weights are booleans or `None`,
        otherwise floats. And the invalid rows.

    Raises:
        MetricInputError: the weights do not broadcast against the leading axes of the rows.
    """
    valid = unusable.usable
    if weights is None:
        return valid, unusable
    w = on_leading_axes(numeric(weights, name), valid.shape, name, "examples")
    if w.dtype == xp.bool_:
        return w & valid, unusable.where(w)
    w = as_float(w)
    w = xp.where(xp.abs(w) < least_weight(), xp.zeros((), w.dtype), w)
    # The default float may turn a large float64 weight into infinity: so the cast comes first.
    invalid = unusable.where(w != 0) | no_weights(w)
    return xp.where(invalid.mask, 0, w), invalid
