"""What scikit-learn and SciPy say of the rows in use, or None where they have no value.

A reference takes the weight of each row, predictions and targets. Rows in use are those with a
weight above zero.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Reference = Callable[[Array, Array, Array], Any]


def sklearn_of(
    score: Callable[..., Any],
    *,
    prepare: Callable[[Array, Array], tuple[Array, Array]] = lambda preds, target: (preds, target),
    least: int = 1,
    defined: Callable[[Array, Array], Any] = lambda preds, target: True,
    weighted: bool = True,
    nothing: Any = None,
    **config: Any,
) -> Reference:
    """scikit-learn's value of the rows in use, or None where it has none.

    scikit-learn has one weight for all labels of a row. Of weights by label, (rows, labels), there
    is a value if they are equal within each row.

    Args:
        score: a function of scikit-learn, of (target, preds).
        prepare: makes what it takes of the (preds, target) in use.
        least: how many rows it needs. It counts rows, not weights.
        defined: whether it has a value for the (preds, target) that it takes.
        weighted: whether it takes weights. If not, it has a value where each weight is 0 or 1.
        nothing: the value of fewer rows than it needs.
        config: more arguments of the function.
    """

    def reference(w: Array, preds: Array, target: Array) -> Any:
        if w.ndim == 2:
            if (w != w[:, :1]).any():
                return None
            w = w[:, 0]
        used = w > 0
        if used.sum() < least:
            return nothing
        if not weighted and not np.isin(w, (0, 1)).all():
            return None
        preds, target = prepare(preds[used], target[used])
        if not defined(preds, target):
            return None
        weights = {"sample_weight": w[used]} if weighted else {}
        return score(target, preds, **weights, **config)

    return reference


def scipy_of(score: Callable[..., Any]) -> Reference:
    """The first of SciPy's results, without weights: rows are repeated where weights are whole."""

    def reference(w: Array, preds: Array, target: Array) -> Any:
        if (w != np.round(w)).any() or not w.any():
            return None
        preds, target = (np.repeat(x, w.astype(int)) for x in (preds, target))
        if np.ptp(preds) == 0 or np.ptp(target) == 0:
            return None  # NaN, with a warning
        return score(preds, target)[0]

    return reference


# What a score takes.


def whole(preds: Array, target: Array) -> tuple[Array, Array]:
    """Both as integers."""
    return preds.astype(int), target.astype(int)


def whole_target(preds: Array, target: Array) -> tuple[Array, Array]:
    """Scores, and integer labels."""
    return preds, target.astype(int)


def at_half(preds: Array, target: Array) -> tuple[Array, Array]:
    """Whether each score is above 1/2, and whether each target is 1."""
    return preds > 0.5, target == 1


# Where a score has a value.


def several_classes(preds: Array, target: Array) -> bool:
    """Whether the targets are of two classes or more."""
    return len(np.unique(target)) > 1


def several_in_either(preds: Array, target: Array) -> bool:
    """Whether predictions and targets together are of two classes or more."""
    return len(np.union1d(preds, target)) > 1
