"""Predictions by a threshold, and checks of the labels and scores that are known outside `jit`."""

from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from datarax._checks import is_integer, real, warn
from datarax._errors import MetricInputError, ScoresWarning
from datarax._typing import ArrayLike, Weights
from datarax.statistics.argument_checks import kept

HIGHEST_SCORE = "with num_classes=, where the class of the highest score is predicted"
"""Why a threshold has no effect."""


def checked_threshold(threshold: Any, from_logits: bool) -> float:
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


def is_above(scores: jax.Array, threshold: float, from_logits: bool) -> jax.Array:
    """Which scores, or with `from_logits` which sigmoids of the scores, are above the threshold."""
    if from_logits:
        return scores > logit_below(threshold, np.dtype(scores.dtype).name)
    return scores > threshold


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
    """The threshold if what is compared with it should be probabilities, or 0 and 1; else None.

    A threshold of 0 or less, or of 1 or more, is for other scores, as no probability is on one side
    of it.
    """
    return threshold if not from_logits and 0 < threshold < 1 else None


class _Given(NamedTuple):
    """The arguments of an update as they were given, and which examples are left out."""

    target: ArrayLike
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
    """Checks the labels of a binary or multilabel task, as far as they are known outside `jit`.

    It looks at nothing that is traced or partly on other processes, nor at examples that are left
    out. NaN and infinities pass: they are counted as invalid. If `preds` should be probabilities,
    or 0 and 1, `threshold` is what they are compared with. `name` is the name of `preds`.

    Raises:
        MetricInputError: a target, or a predicted label, is another number than 0 and 1; shows it.
    """
    given = _Given(target, weights, ignore_index)
    _refuse_other_labels(target, "target", given)
    if threshold is None:
        return
    if is_integer(preds if isinstance(preds, jax.Array) else jnp.asarray(preds)):
        _refuse_other_labels(preds, name, given)
        return
    other = _first(preds, _is_outside, given)
    if other is not None:
        warn(
            f"{name} holds {other:g}, which is no probability, and is compared with threshold="
            f"{threshold:g}. If {name} are logits, give from_logits=True; if they are other "
            f"scores, give a threshold= that is not between 0 and 1, or scale them",
            ScoresWarning,
        )


def check_one_hot(preds: Any, target: Any, axes: tuple[int, ...], name: str) -> None:
    """Checks that labels that are known outside `jit` are not one-hot along one of some axes.

    Raises:
        MetricInputError: predictions and targets both hold a single 1 along an axis, and else 0.
    """
    if kept() != "all" or not (_is_known(preds) and _is_known(target)):
        return
    for axis in axes:
        # The targets first: of most labels one look at them is enough.
        if np.shape(target)[axis] > 1 and all(_is_one_hot(x, axis) for x in (target, preds)):
            raise MetricInputError(
                f"{name} and target of shape {np.shape(target)} are one-hot along axis {axis}, and "
                f"expected are labels: give {name}.argmax({axis}) and target.argmax({axis})"
            )


def _is_one_hot(x: Any, axis: int) -> bool:
    x = np.asarray(x)
    return bool(((x == 0) | (x == 1)).all() and (x.sum(axis) == 1).all()) and x.size > 0


def _refuse_other_labels(labels: ArrayLike, name: str, given: _Given) -> None:
    other = _first(labels, _is_other, given) if kept() == "all" else None
    if other is not None:
        hint = "For labels of several classes, a metric needs num_classes="
        if not other.is_integer():
            hint = "For fractions, use a metric of regression, or give target > 0.5"
        raise MetricInputError(
            f"{name} holds {other:g}; expected 0 and 1. {hint}. To leave such examples out, give "
            f"ignore_index= or weights= of 0"
        )


def _is_other(x: Any, /) -> Any:
    """The finite numbers other than 0 and 1."""
    return (x != 0) & (x != 1) & (abs(x) < np.inf)


def _is_outside(x: Any, /) -> Any:
    """The finite numbers below 0 or above 1."""
    return ((x < 0) | (x > 1)) & (abs(x) < np.inf)


_any_other = jax.jit(lambda x: jnp.any(_is_other(x.astype(jnp.float32))))
_any_outside = jax.jit(lambda x: jnp.any(_is_outside(x.astype(jnp.float32))))
_ON_DEVICE = {_is_other: _any_other, _is_outside: _any_outside}


def _first(x: Any, condition: Callable[[Any], Any], given: _Given) -> float | None:
    """The first number for which a condition holds, of those that count; None if there is none."""
    if not all(_is_known(each) for each in (x, given.target, given.weights)):
        return None
    # From an accelerator, one number is read, not the array, unless there is something to report.
    on_device = isinstance(x, jax.Array) and any(d.platform != "cpu" for d in x.devices())
    if on_device and not bool(_ON_DEVICE[condition](x)):
        return None
    x = _numbers(x)
    if x.dtype == np.bool_:
        return None
    # Of integers, both conditions hold for those beyond 0 and 1; NumPy finds extremes faster.
    if x.dtype.kind in "iu" and x.size and x.min() >= 0 and x.max() <= 1:
        return None
    found = condition(x)
    if not found.any():
        return None
    if given.ignore_index is not None:
        found &= _numbers(given.target) != given.ignore_index
    if given.weights is not None:
        weights = _numbers(given.weights)
        found = found & (weights.reshape(weights.shape + (1,) * (x.ndim - weights.ndim)) != 0)
    return float(x[found][0]) if found.any() else None


def _numbers(x: Any) -> np.ndarray[Any, Any]:
    """An array of NumPy's own dtypes: of floats for bfloat16 and narrow integers."""
    x = np.asarray(x)
    return x if x.dtype.kind in "biuf" else x.astype(np.float32)


def _is_known(x: Any) -> bool:
    """Whether all values of an array are known on this process."""
    if isinstance(x, Tracer):
        return False
    if isinstance(x, list | tuple):  # may hold traced numbers
        return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(x))
    return not isinstance(x, jax.Array) or (x.is_fully_addressable and not x.is_deleted())
