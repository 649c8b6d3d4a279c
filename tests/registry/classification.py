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


def top_classes(preds: np.ndarray, k: int = 1) -> np.ndarray:
    """The k highest scores of each example, of equal ones the first: (N, k)."""
    if preds.ndim == 1:
        return preds[:, None]
    return np.argsort(-preds, axis=-1, kind="stable")[:, :k]


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


def sklearn_hamming(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    if w.ndim == 1:
        return 1 - sklearn_accuracy(w, preds, target)
    used = (w > 0).all(1)
    if (w != w[:, :1]).any() or not used.any():
        return None  # it has one weight for all labels of a row
    chosen, target, w = preds[used] > 0.5, target[used] == 1, w[used, 0]
    return sklearn.metrics.hamming_loss(target, chosen, sample_weight=w)


def sklearn_accuracy(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    chosen = top_classes(preds)[:, 0] if preds.ndim > 1 else preds
    used = w > 0
    if not used.any():
        return np.nan
    return sklearn.metrics.accuracy_score(target[used], chosen[used], sample_weight=w[used])


def sklearn_balanced(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    used = w > 0
    if not used.any():
        return np.nan
    chosen, target = top_classes(preds)[used, 0], target[used]
    return sklearn.metrics.recall_score(
        target, chosen, labels=np.unique(target), average="macro", sample_weight=w[used]
    )


def sklearn_top_2(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    used = w > 0
    if not used.any() or len(np.unique(preds[used])) < preds[used].size:
        return None  # it breaks ties the other way
    return sklearn.metrics.top_k_accuracy_score(
        target[used], preds[used], k=2, labels=range(CLASSES), sample_weight=w[used]
    )


ROWS = replace(
    MULTILABEL, id="rows of labels", valid=lambda **inputs: MULTILABEL.valid(**inputs).all(1)
)


def exact_match(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    hit = ((preds > 0.5) == (target == 1)).all(1)
    return ratio(fsum(w[hit]), fsum(w))


def sklearn_exact_match(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    used = w > 0
    if not used.any():
        return None
    return sklearn.metrics.accuracy_score(
        target[used] == 1, preds[used] > 0.5, sample_weight=w[used]
    )


# Counts are exact; each ratio is rounded once, within a whisker of u, and the mean of C ratios
# adds a rounding for each weight, each sum, and the quotient: 2 C + 2 in all.
AVERAGE = 2 * CLASSES + 2

CASES = [
    Case(
        "accuracy_binary",
        metrics.Accuracy,
        BINARY,
        accuracy_binary,
        reference=lambda w, preds, target: sklearn_accuracy(w, preds > 0.5, target),
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
    Case(
        "accuracy_threshold",
        metrics.Accuracy,
        BINARY,
        partial(accuracy_binary, threshold=np.float32(0.3)),
        {"threshold": 0.3},
        exact=True,
    ),
    *(
        Case(
            f"accuracy_{inputs.id}_{average}",
            metrics.Accuracy,
            inputs,
            partial(accuracy_multiclass, average=average),
            {"num_classes": CLASSES, "average": average},
            reference={"micro": sklearn_accuracy, "macro": sklearn_balanced}.get(str(average)),
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
        reference=sklearn_top_2,
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
            reference=sklearn_hamming,
            exact=True,
        )
        for inputs, config in (
            (LABELS, {"num_classes": CLASSES}),
            (MULTILABEL, {"num_labels": 3}),
        )
    ),
    Case(
        "exact_match",
        metrics.ExactMatch,
        ROWS,
        exact_match,
        {"num_labels": 3},
        reference=sklearn_exact_match,
        exact=True,
    ),
]
