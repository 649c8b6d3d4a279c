"""Predictions by a threshold, and checks of values on the host."""

from decimal import Decimal, localcontext
from functools import lru_cache

import jax
import numpy as np

from datarax._checks import default_float, is_integer, real, warn
from datarax._errors import MetricInputError, ScoresWarning
from datarax._typing import ArrayLike, Weights
from datarax._update_context import raises_for, warns_of
from datarax._xp import xp
from datarax.statistics.score_kinds import FLOAT32_EPS, ScoreKind, eps_of

HIGHEST_SCORE = "with num_classes=, where the class of the highest score is predicted"
"""Why a threshold has no effect."""


def checked_threshold(threshold: float, from_logits: bool) -> float:
    """The threshold as a float.

    Raises:
        MetricInputError: it is not a number; or it is for logits and not from 0 to 1.
    """
    threshold = real(threshold, "threshold")
    if from_logits and not 0 <= threshold <= 1:
        raise MetricInputError(
            f"threshold={threshold!r}; expected a probability, because from_logits=True compares "
            f"it with the sigmoid of preds"
        )
    return threshold


def is_above(scores: jax.Array, threshold: float, from_logits: bool, dtype: np.dtype) -> jax.Array:
    """True for scores, or with `from_logits` sigmoids of scores, above the threshold.

    `dtype` is that of the scores as they were given: see `rounded_to`.
    """
    if from_logits:
        return scores > logit_below(threshold, np.dtype(scores.dtype).name)
    return scores > rounded_to(dtype, threshold)


@lru_cache(maxsize=256)
def rounded_to(dtype: np.dtype, threshold: float) -> float:
    """The threshold, rounded to the dtype of the scores that are compared with it.

    So a score of 0.3 in float32 equals a threshold of 0.3. To the default float for integers.
    """
    if not xp.issubdtype(dtype, np.floating):
        dtype = default_float()
    return float(np.asarray(threshold).astype(dtype))


@lru_cache(maxsize=256)
def logit_below(threshold: float, dtype: str) -> float:
    """The greatest float of a dtype that is at most `log(threshold / (1 - threshold))`.

    A float is above this one exactly if its sigmoid is above the threshold, with no rounding.
    """
    # A sigmoid is never 0 or 1 but by rounding, which the comparison of logits avoids.
    if threshold in (0, 1):
        return -np.inf if threshold == 0 else np.inf
    with localcontext() as context:
        context.prec = 60  # a double is exact in `Decimal`, but a product of two may be long
        exact = Decimal(threshold).ln() - (1 - Decimal(threshold)).ln()
        nearest = np.asarray(float(exact), dtype)[()]
        # Rounded down, so that the float itself is not above the threshold, and the next one is.
        if Decimal(float(nearest)) > exact:
            nearest = np.nextafter(nearest, np.asarray(-np.inf, dtype))
    return float(nearest)


def score_kind(threshold: float, from_logits: bool) -> ScoreKind:
    """Returns the kind of scores that are compared with a threshold.

    A threshold of 0 or less, or of 1 or more, is for other scores than probabilities, as no
    probability is on one side of it.
    """
    if from_logits:
        return "sigmoid"
    return "probabilities" if 0 < threshold < 1 else ""


def check_labels(
    labels: jax.Array, name: str, target: jax.Array, weights: Weights, ignore_index: int | None
) -> None:
    """Checks that labels on the host are 0 and 1. NaN and infinities pass: they are invalid.

    Args:
        labels: targets, or predicted labels.
        name: the name of `labels` in messages.
        target: labels whose target is `ignore_index` are not looked at.
        weights: nor are labels of weight zero.
        ignore_index: the target of examples that are left out.

    Raises:
        MetricInputError: a label is another number; shows it.
    """
    if not raises_for(labels, target, weights):
        return
    x = _numbers(labels)
    # NumPy finds extremes faster than others.
    if x.dtype == np.bool_ or (x.dtype.kind in "iu" and x.size and x.min() >= 0 and x.max() <= 1):
        return
    others = (x != 0) & (x != 1) & (abs(x) < np.inf)
    if not others.any():
        return
    # Only now, because most labels are right and weights need not be looked at.
    counted = _counted(x.shape, target, weights, ignore_index)
    others &= counted
    if not others.any():
        return
    other = float(x[others][0])
    leave_out = ". To leave such examples out, give ignore_index= or weights= of 0"
    hint = f"For labels of several classes, a metric needs num_classes={leave_out}"
    if not other.is_integer():
        hint = f"For fractions, use a metric of regression, or give target > 0.5{leave_out}"
    elif np.isin(x[counted], (1, 2)).all():
        hint = "If labels are 1 and 2, subtract 1 from them"
    raise MetricInputError(f"{name} holds {other:g}; expected 0 and 1. {hint}")


def check_one_hot(preds: jax.Array, target: jax.Array, size: int | None, name: str) -> None:
    """Checks that labels on the host are not one-hot along axis -1 or 1.

    Args:
        preds: labels. Arrays of two axes are checked only if `size` is None and there are three
            rows and columns: fewer may be short sequences with a single 1 each.
        target: labels of the same shape; others are not looked at.
        size: the number of classes, which such an axis has; None if it is not known.
        name: the name of `preds` in messages.

    Raises:
        MetricInputError: predictions and targets both hold a single 1 along an axis, and else 0.
    """
    shape = target.shape
    if preds.shape != shape or not raises_for(preds, target):
        return
    if len(shape) < 3 and (len(shape) < 2 or size is not None or min(shape) < 3):
        return
    for axis in (-1, 1) if len(shape) > 2 else (-1,):
        fits = shape[axis] > 1 and size in (None, shape[axis])
        # The targets first: of most labels one look at them is enough.
        if fits and all(_is_one_hot(x, axis) for x in (target, preds)):
            raise MetricInputError(
                f"{name} and target of shape {shape} are one-hot along axis {axis}; "
                f"expected labels: give {name}.argmax({axis}) and target.argmax({axis})"
            )


def _is_one_hot(x: jax.Array, axis: int) -> bool:
    return bool(((x == 0) | (x == 1)).all() and (x.sum(axis) == 1).all()) and x.size > 0


def check_sums_of_axes(preds: jax.Array, name: str) -> None:
    """Warns if scores (N, C, ..., C) are probabilities along axis 1, and not along the last axis.

    All are numbers from 0 to 1 on the host, whose sums along one axis are 1.
    """
    if not warns_of(preds) or not preds.size or is_integer(preds):
        return
    x, tolerance = _numbers(preds), max(FLOAT32_EPS**0.5, 4 * eps_of(preds))
    # Scores that are no probabilities along any axis are no evidence of a swapped axis.
    if not ((x >= 0) & (x <= 1)).all():
        return
    first, last = (bool((abs(x.sum(axis) - 1) <= tolerance).all()) for axis in (1, -1))
    if first and not last:
        warn(
            f"{name} of shape {x.shape} holds probabilities along axis 1, and the last axis is "
            f"read as that of the classes. Give moveaxis({name}, 1, -1)",
            ScoresWarning,
        )


def _counted(
    shape: tuple[int, ...], target: jax.Array, weights: Weights, ignore_index: int | None
) -> np.ndarray:
    """The mask of the examples that are not left out."""
    mask = np.ones(shape, np.bool_)
    if ignore_index is not None:
        mask &= _numbers(target) != ignore_index
    if weights is not None:
        # Axes are appended, because weights broadcast against the leading axes.
        w = _numbers(weights)
        mask &= w.reshape(w.shape + (1,) * (mask.ndim - w.ndim)) != 0
    return mask


def _numbers(x: ArrayLike) -> np.ndarray:
    """A NumPy array of a standard dtype: others, such as bfloat16, become float32."""
    x = np.asarray(x)
    return x if x.dtype.kind in "biuf" else x.astype(np.float32)
