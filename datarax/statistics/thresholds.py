"""Predictions by a threshold, and checks of labels and scores on the host."""

from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import NamedTuple

import jax
import numpy as np

from datarax._checks import default_float, is_integer, real, warn
from datarax._errors import MetricInputError, ScoresWarning
from datarax._typing import Array, ArrayLike, Weights
from datarax._update_context import raises_for, warns_of
from datarax._xp import xp
from datarax.statistics.score_kinds import FEW, FLOAT32_EPS, ScoreKind, advice, eps_of, root_eps

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
    if threshold in (0, 1):
        return -np.inf if threshold == 0 else np.inf
    with localcontext() as context:
        context.prec = 60  # a double is exact in `Decimal`, but a product of two may be long
        exact = Decimal(threshold).ln() - (1 - Decimal(threshold)).ln()
        nearest = np.asarray(float(exact), dtype)[()]
        if Decimal(float(nearest)) > exact:
            nearest = np.nextafter(nearest, np.asarray(-np.inf, dtype))
    return float(nearest)


def of_probabilities(threshold: float, from_logits: bool) -> float | None:
    """The threshold if scores should be probabilities, or labels 0 and 1; else None.

    A threshold of 0 or less, or of 1 or more, is for other scores, as no probability is on one side
    of it.
    """
    return threshold if not from_logits and 0 < threshold < 1 else None


def score_kind(threshold: float, from_logits: bool) -> ScoreKind:
    """Returns the kind of scores that are compared with a threshold."""
    if from_logits:
        return "sigmoid"
    return "" if of_probabilities(threshold, from_logits) is None else "probabilities"


OfArray = Callable[[Array], Array]


class _Given(NamedTuple):
    """The arguments of an update as they were given, and which examples are left out."""

    target: ArrayLike | None
    weights: Weights
    ignore_index: int | None


def check_known(
    target: ArrayLike,
    weights: Weights,
    preds: ArrayLike,
    ignore_index: int | None,
    threshold: float | None,
    name: str,
) -> None:
    """Checks the labels of a binary or multilabel task that are on the host.

    Examples that are left out are not looked at. NaN and infinities pass: they are counted as
    invalid. If `preds` should be probabilities, or 0 and 1, `threshold` is what they are compared
    with. `name` is the name of `preds`.

    Raises:
        MetricInputError: a target, or a predicted label, is another number than 0 and 1; shows it.
    """
    given = _Given(target, weights, ignore_index)
    _refuse_other_labels(target, "target", given)
    if threshold is None or not warns_of(preds, target, weights):
        return
    if not _is_float(preds):
        _refuse_other_labels(preds, name, given)
        return
    other = _first(preds, _NOT_PROBABILITY, given)
    if other is not None:
        warn(
            f"{name} holds {other:g}, which is no probability, and is compared with threshold="
            f"{threshold:g}. {advice('probabilities', name)}",
            ScoresWarning,
        )


def check_one_hot(preds: ArrayLike, target: ArrayLike, size: int | None, name: str) -> None:
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
    shape = np.shape(target)
    if np.shape(preds) != shape or not raises_for(preds, target):
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


def _is_one_hot(x: ArrayLike, axis: int) -> bool:
    x = np.asarray(x)
    return bool(((x == 0) | (x == 1)).all() and (x.sum(axis) == 1).all()) and x.size > 0


def check_logits(
    target: ArrayLike | None,
    weights: Weights,
    preds: ArrayLike,
    ignore_index: int | None,
    name: str,
) -> None:
    """Warns if logits (..., C) of a softmax on the host are probabilities.

    That is: there are several rows that count, and all hold numbers from 0 to 1 with a sum of 1, up
    to a few roundings of their dtype.
    """
    if not warns_of(preds, target, weights):
        return
    if np.ndim(preds) < 2 or not np.size(preds) or np.shape(preds)[-1] < 2:
        return
    every = np.ones(np.shape(preds)[:-1], np.bool_)
    counted = _counted(every, _Given(target, weights, ignore_index))
    if np.count_nonzero(counted) < 2 or not _are_probabilities(preds, counted):
        return
    warn(
        f"all rows of {name} hold numbers from 0 to 1 with a sum of 1, and their softmax is "
        f"computed, as of logits. {advice('softmax', name)}",
        ScoresWarning,
    )


def check_binary_logits(
    target: ArrayLike, weights: Weights, preds: ArrayLike, ignore_index: int | None, name: str
) -> None:
    """Warns if logits of a sigmoid on the host look like probabilities.

    A few logits may all be from 0 to 1. So may many, if they hardly differ, as those of a layer
    that is not trained. So there must be 64 that count, no other number among them, and some
    below 1/4 and above 3/4: the values fill the range of a probability, and end where it ends.
    """
    if np.size(preds) < FEW or not warns_of(preds, target, weights) or not _is_float(preds):
        return
    # The first numbers are enough to tell most logits, so the others are not read.
    first = _numbers(np.asarray(preds).reshape(-1)[:FEW])
    if ((first < 0) | (first > 1)).any():
        return
    given = _Given(target, weights, ignore_index)
    if _first(preds, _NOT_PROBABILITY, given) is not None:
        return
    x = _numbers(preds)
    x = x[_counted(np.ones(x.shape, np.bool_), given)]
    if x.size >= FEW and 0 <= x.min() < 0.25 and 0.75 < x.max() <= 1:
        warn(
            f"all {x.size} numbers of {name} are from 0 to 1, and their sigmoid is computed, as of "
            f"logits. {advice('sigmoid', name)}",
            ScoresWarning,
        )


def check_sums(
    target: ArrayLike, weights: Weights, preds: ArrayLike, ignore_index: int | None, name: str
) -> None:
    """Warns if a row of scores (..., C) on the host does not sum to 1.

    The tolerance is the root of the eps of the dtype. Rows with NaN pass: they are invalid.
    """
    if not warns_of(preds, target, weights):
        return
    tolerance = root_eps(xp.asarray(preds))
    is_off = _Outside(1 - tolerance, 1 + tolerance, infinite=True)
    total = _first(preds, is_off, _Given(target, weights, ignore_index), _row_sums)
    if total is not None:
        warn(
            f"{name} holds a row with a sum of {total:g}, so it holds no probabilities, and the "
            f"scores of different rows are compared as they are. {advice('distributions', name)}",
            ScoresWarning,
        )


def check_sums_of_axes(preds: ArrayLike, name: str) -> None:
    """Warns if scores (N, C, ..., C) are probabilities along axis 1, and not along the last axis.

    All are numbers from 0 to 1 on the host, whose sums along one axis are 1.
    """
    if not warns_of(preds) or not np.size(preds) or not _is_float(preds):
        return
    x = _numbers(preds)
    tolerance = max(FLOAT32_EPS**0.5, 4 * eps_of(xp.asarray(preds)))
    if not ((x >= 0) & (x <= 1)).all():
        return
    first, last = (bool((abs(x.sum(axis) - 1) <= tolerance).all()) for axis in (1, -1))
    if first and not last:
        warn(
            f"{name} of shape {x.shape} holds probabilities along axis 1, and the last axis is "
            f"read as that of the classes. Give moveaxis({name}, 1, -1)",
            ScoresWarning,
        )


def check_losses(
    target: ArrayLike | None,
    weights: Weights,
    losses: ArrayLike,
    ignore_index: int | None,
    name: str,
) -> None:
    """Warns if a loss `-log(p)` on the host is negative beyond rounding."""
    if not warns_of(target, weights, losses):
        return
    is_negative = _Outside(-root_eps(xp.asarray(losses)), np.inf)
    loss = _first(losses, is_negative, _Given(target, weights, ignore_index))
    if loss is not None:
        warn(
            f"{name} holds {loss:g}, and a loss -log(p) is not negative. {advice('losses', name)}",
            ScoresWarning,
        )


def _refuse_other_labels(labels: ArrayLike, name: str, given: _Given) -> None:
    if not raises_for(labels, given.target, given.weights):
        return
    other = _first(labels, _is_other, given)
    if other is not None:
        leave_out = ". To leave such examples out, give ignore_index= or weights= of 0"
        hint = f"For labels of several classes, a metric needs num_classes={leave_out}"
        if not other.is_integer():
            hint = f"For fractions, use a metric of regression, or give target > 0.5{leave_out}"
        elif _first(labels, _is_not_1_or_2, given) is None:
            hint = "If labels are 1 and 2, subtract 1 from them"
        raise MetricInputError(f"{name} holds {other:g}; expected 0 and 1. {hint}")


def _is_other(x: Array, /) -> Array:
    """The finite numbers other than 0 and 1."""
    return (x != 0) & (x != 1) & (abs(x) < np.inf)


def _is_not_1_or_2(x: Array, /) -> Array:
    return (x != 1) & (x != 2)


class _Outside(NamedTuple):
    """The numbers below `least` or above `most`; of infinite ones, only if `infinite` is true."""

    least: float
    most: float
    infinite: bool = False

    def __call__(self, x: Array, /) -> Array:
        outside = (x < self.least) | (x > self.most)
        return outside if self.infinite else outside & (abs(x) < np.inf)


_NOT_PROBABILITY = _Outside(0, 1)


def _is_float(x: ArrayLike) -> bool:
    return not is_integer(xp.asarray(x))


def _are_probabilities(preds: ArrayLike, counted: np.ndarray) -> bool:
    """True if all rows that are counted are distributions."""
    tolerance = max(FLOAT32_EPS**0.5, 4 * eps_of(xp.asarray(preds)))
    preds, counted = np.asarray(preds).reshape(-1, np.shape(preds)[-1]), counted.reshape(-1)
    # The first rows of logits are enough to tell them, so the others are not read.
    return all(
        _distributions(_numbers(preds[rows]), counted[rows], tolerance)
        for rows in (slice(8), slice(None))
    )


def _distributions(x: Array, counted: np.ndarray, tolerance: float) -> ArrayLike:
    is_one = abs(_row_sums(x) - 1) <= tolerance
    return ((is_one & (x.min(-1) >= 0)) | ~counted).all()


def _row_sums(x: Array, /) -> Array:
    """The sum of each row along the last axis."""
    x = x.astype(np.float32) if x.dtype.itemsize < 4 else x
    # For short rows a product takes a tenth of the time of NumPy's sums.
    with np.errstate(all="ignore"):
        return x @ np.ones(x.shape[-1], x.dtype)


def _first(
    x: ArrayLike, condition: OfArray, given: _Given, of: OfArray | None = None
) -> float | None:
    """The first number for which a condition holds, of those that count; None if there is none.

    The numbers are those of `x`, or what `of` computes of its rows.
    """
    x = _numbers(x)
    if x.dtype == np.bool_:
        return None
    # No condition holds for the integers 0 and 1; NumPy finds extremes faster than others.
    if of is not None:
        x = of(x)
    elif x.dtype.kind in "iu" and x.size and x.min() >= 0 and x.max() <= 1:
        return None
    found = np.asarray(condition(x))
    if found.any():
        found = _counted(found, given)
    return float(x[found][0]) if found.any() else None


def _counted(mask: np.ndarray, given: _Given) -> np.ndarray:
    """The examples of a mask that are not left out."""
    if given.ignore_index is not None and given.target is not None:
        mask = mask & (_numbers(given.target) != given.ignore_index)
    if given.weights is not None:
        # Axes are appended, because weights broadcast against the leading axes.
        weights = _numbers(given.weights)
        mask = mask & (weights.reshape(weights.shape + (1,) * (mask.ndim - weights.ndim)) != 0)
    return mask


def _numbers(x: ArrayLike) -> np.ndarray:
    """A NumPy array of a standard dtype: others, such as bfloat16, become float32."""
    x = np.asarray(x)
    return x if x.dtype.kind in "biuf" else x.astype(np.float32)
