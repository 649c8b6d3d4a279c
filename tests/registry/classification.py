"""Metrics of predicted classes."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import sklearn.metrics

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Case
from tests.registry.predictions import BINARY, CLASSES, LABELS, MULTICLASS, MULTILABEL
from tests.registry.reference import at_half, sklearn_of


def top_classes(preds: np.ndarray, k: int = 1) -> np.ndarray:
    """The k highest scores of each example, of equal ones the first: (N, k)."""
    if preds.ndim == 1:
        return preds[:, None]
    return np.argsort(-preds, axis=-1, kind="stable")[:, :k]


def chosen_class(
    preds: np.ndarray, target: np.ndarray, *, task: str = "multiclass"
) -> tuple[np.ndarray, np.ndarray]:
    """The predicted class of each example, and its target."""
    chosen = preds > 0.5 if task == "binary" else top_classes(preds)[:, 0]
    return chosen.astype(int), target


def ratio(part: float, of: float) -> float:
    return part / of if of else np.nan


def averaged(right: Any, of: Any, support: Any, average: str | None) -> Any:
    """Ratios by class, averaged over the classes that occur."""
    by_class = np.array([ratio(a, b) for a, b in zip(right, of, strict=True)])
    occurs = np.asarray(of) > 0
    if average is None:
        return by_class
    if not occurs.any():
        return np.nan
    weights = np.asarray(support if average == "weighted" else np.ones(len(by_class)))[occurs]
    weights = weights if weights.any() else np.ones(len(weights))
    return ratio(fsum(by_class[occurs] * weights), fsum(weights))


def accuracy_multiclass(
    w: np.ndarray,
    preds: np.ndarray,
    target: np.ndarray,
    *,
    average: str | None = "micro",
    k: int = 1,
    ignored: int | None = None,
) -> Any:
    used = (w > 0) & (target != (-1 if ignored is None else ignored))
    w, preds, target = w[used], preds[used], target[used].astype(int)
    hit = (top_classes(preds, k) == target[:, None]).any(-1)
    if average == "micro":
        return ratio(fsum(w[hit]), fsum(w))
    right = [fsum(w[hit & (target == c)]) for c in range(CLASSES)]
    of = [fsum(w[target == c]) for c in range(CLASSES)]
    return averaged(right, of, of, average)


def accuracy_binary(
    w: np.ndarray,
    preds: np.ndarray,
    target: np.ndarray,
    *,
    average: str | None = "micro",
    threshold: float = 0.5,
) -> Any:
    w, hit, target = w[w > 0], ((preds > threshold) == (target == 1))[w > 0], target[w > 0]
    if average == "micro":
        return ratio(fsum(w[hit]), fsum(w))
    right = [fsum(w[hit & (target == c)]) for c in (0, 1)]
    of = [fsum(w[target == c]) for c in (0, 1)]
    return averaged(right, of, of, average)


def accuracy_multilabel(
    w: np.ndarray, preds: np.ndarray, target: np.ndarray, *, average: str | None = "micro"
) -> Any:
    hit = (preds > 0.5) == (target == 1)
    if average == "micro":
        return ratio(fsum(w[hit & (w > 0)]), fsum(w))
    right, of, support = (
        [fsum(w[mask[:, c], c]) for c in range(3)] for mask in (hit, w > 0, target == 1)
    )
    return averaged(right, of, support, average)


def hamming(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    oracle = accuracy_multilabel if w.ndim == 2 else accuracy_multiclass
    return 1 - oracle(w, preds, target)


def balanced(target: np.ndarray, preds: np.ndarray, **weights: Any) -> Any:
    """scikit-learn's mean recall of the classes that occur."""
    return sklearn.metrics.recall_score(
        target, preds, labels=np.unique(target), average="macro", **weights
    )


def error_rate(target: np.ndarray, preds: np.ndarray, **weights: Any) -> Any:
    return 1 - sklearn.metrics.accuracy_score(target, preds, **weights)


SKLEARN = {
    "micro": sklearn_of(sklearn.metrics.accuracy_score, prepare=chosen_class, nothing=np.nan),
    "macro": sklearn_of(balanced, prepare=chosen_class, nothing=np.nan),
}
ROWS = replace(
    MULTILABEL, id="rows of labels", valid=lambda **inputs: MULTILABEL.valid(**inputs).all(1)
)


def exact_match(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    hit = ((preds > 0.5) == (target == 1)).all(1)
    return ratio(fsum(w[hit]), fsum(w))


# Counts are exact; each ratio is rounded once, within a whisker of u, and the mean of C ratios
# adds a rounding for each weight, each sum, and the quotient: 2 C + 2 in all.
AVERAGE = 2 * CLASSES + 2

CASES = [
    Case(
        "accuracy_binary",
        metrics.Accuracy,
        BINARY,
        accuracy_binary,
        reference=sklearn_of(
            sklearn.metrics.accuracy_score,
            prepare=partial(chosen_class, task="binary"),
            nothing=np.nan,
        ),
        exact=True,
    ),
    *(
        Case(
            f"accuracy_binary_{average}",
            metrics.Accuracy,
            BINARY,
            partial(accuracy_binary, average=average),
            {"average": average},
            ulps=AVERAGE,
            exact=True,
        )
        for average in ("macro", "weighted", None)
    ),
    # A threshold that no dtype rounds: an oracle does not know that of the scores. `test_edges.py`
    # has thresholds that are rounded.
    Case(
        "accuracy_threshold",
        metrics.Accuracy,
        BINARY,
        partial(accuracy_binary, threshold=0.3125),
        {"threshold": 0.3125},
        exact=True,
    ),
    *(
        Case(
            f"accuracy_{inputs.id}_{average}",
            metrics.Accuracy,
            inputs,
            partial(accuracy_multiclass, average=average),
            {"num_classes": CLASSES, "average": average},
            reference=SKLEARN.get(str(average)),
            ulps=AVERAGE if average in ("macro", "weighted") else 1,
            exact=True,
        )
        for inputs in (MULTICLASS, LABELS)
        for average in ("micro", "macro", "weighted", None)
    ),
    Case(
        "accuracy_top_2",
        metrics.Accuracy,
        MULTICLASS,
        partial(accuracy_multiclass, k=2),
        {"num_classes": CLASSES, "top_k": 2},
        reference=sklearn_of(
            sklearn.metrics.top_k_accuracy_score,
            # It breaks ties the other way, and refuses -inf.
            defined=lambda preds, target: (
                len(np.unique(preds)) == preds.size and np.isfinite(preds).all()
            ),
            k=2,
            labels=range(CLASSES),
        ),
        exact=True,
    ),
    Case(
        "accuracy_top_2_macro",
        metrics.Accuracy,
        MULTICLASS,
        partial(accuracy_multiclass, k=2, average="macro"),
        {"num_classes": CLASSES, "top_k": 2, "average": "macro"},
        ulps=AVERAGE,
        exact=True,
    ),
    Case(
        "accuracy_ignore_index",
        metrics.Accuracy,
        LABELS,
        partial(accuracy_multiclass, ignored=2),
        {"num_classes": CLASSES, "ignore_index": 2},
        exact=True,
    ),
    *(
        Case(
            f"accuracy_multilabel_{average}",
            metrics.Accuracy,
            MULTILABEL,
            partial(accuracy_multilabel, average=average),
            {"num_labels": 3, "average": average},
            ulps=AVERAGE if average in ("macro", "weighted") else 1,
            exact=True,
        )
        for average in ("micro", "macro", "weighted", None)
    ),
    *(
        Case(
            f"hamming_{inputs.id}",
            metrics.HammingDistance,
            inputs,
            hamming,
            config,
            reference=reference,
            exact=True,
        )
        for inputs, config, reference in (
            (
                LABELS,
                {"num_classes": CLASSES},
                sklearn_of(error_rate, prepare=chosen_class, nothing=np.nan),
            ),
            (
                MULTILABEL,
                {"num_labels": 3},
                sklearn_of(sklearn.metrics.hamming_loss, prepare=at_half),
            ),
        )
    ),
    Case(
        "exact_match",
        metrics.ExactMatch,
        ROWS,
        exact_match,
        {"num_labels": 3},
        reference=sklearn_of(sklearn.metrics.accuracy_score, prepare=at_half),
        exact=True,
    ),
]
