"""Ratios of counts by class: Precision, Recall, FBeta and similar metrics."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.stats
import sklearn.metrics

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Case, Inputs
from tests.registry.classification import AVERAGE, ROWS, chosen_class, top_classes
from tests.registry.predictions import BINARY, CLASSES, LABELS, MULTICLASS, MULTILABEL
from tests.registry.reference import Reference, at_half, several_classes, sklearn_of

Array = np.ndarray[Any, Any]
TASKS: dict[str, dict[str, Any]] = {
    "binary": {},
    "multiclass": {"num_classes": CLASSES},
    "labels": {"num_classes": CLASSES},
    "multilabel": {"num_labels": 3},
}


def members(
    preds: Array, target: Array, *, task: str, k: int = 1, threshold: float = 0.5
) -> tuple[Array, Array]:
    """For each example and class, whether it was predicted, and whether it is the target."""
    if task == "binary":
        return (preds > threshold)[:, None], (target == 1)[:, None]
    if task == "multilabel":
        return preds > threshold, target == 1
    classes = np.arange(CLASSES)
    chosen = (top_classes(preds, k)[:, :, None] == classes).any(1)
    return chosen, target[:, None] == classes


def table_of(
    w: Array, preds: Array, target: Array, *, ignored: int | None = None, **config: Any
) -> Array:
    """TP, FP, FN and TN by class: (4, C)."""
    chosen, actual = members(preds, target, **config)
    w = np.where(target == ignored, 0.0, w)
    w = np.broadcast_to(w if w.ndim == 2 else w[:, None], chosen.shape)
    cells = (chosen & actual, chosen & ~actual, ~chosen & actual, ~chosen & ~actual)
    return np.array([[fsum(w[cell[:, c], c]) for c in range(w.shape[1])] for cell in cells])


Formula = Callable[..., tuple[float, float]]
FORMULAS: dict[str, Formula] = {
    "precision": lambda tp, fp, fn, tn: (tp, tp + fp),
    "recall": lambda tp, fp, fn, tn: (tp, tp + fn),
    "specificity": lambda tp, fp, fn, tn: (tn, tn + fp),
    "negative_predictive_value": lambda tp, fp, fn, tn: (tn, tn + fn),
    "f1": lambda tp, fp, fn, tn: (2 * tp, 2 * tp + fp + fn),
    "f_beta": lambda tp, fp, fn, tn: (5 * tp, 5 * tp + 4 * fn + fp),
    "jaccard": lambda tp, fp, fn, tn: (tp, tp + fp + fn),
    "informedness": lambda tp, fp, fn, tn: (tp * tn - fp * fn, (tp + fn) * (tn + fp)),
}


def averaged(by_class: Array, weight: Array) -> float:
    """The mean of what is not NaN; the plain one where all weights are zero."""
    some = ~np.isnan(by_class)
    if not some.any():
        return np.nan
    by_class, weight = by_class[some], weight[some]
    weight = weight if weight.any() else np.ones(len(weight))
    return fsum(by_class * weight) / fsum(weight)


def ratio_of_rows(
    w: Array, preds: Array, target: Array, *, formula: Formula, zero_division: float = 0.0
) -> float:
    """The mean over rows of labels of the ratio of the counts of a row."""
    chosen, actual = preds > 0.5, target == 1
    cells = (chosen & actual, chosen & ~actual, ~chosen & actual, ~chosen & ~actual)
    terms = [formula(*row) for row in np.array([cell.sum(1) for cell in cells]).T.astype(float)]
    scores = np.array([part / of if of else zero_division for part, of in terms])
    return averaged(np.where(w > 0, scores, np.nan), w)


def ratio_of(
    w: Array,
    preds: Array,
    target: Array,
    *,
    formula: Formula,
    task: str,
    average: str | None = "macro",
    zero_division: float = 0.0,
    labels: tuple[int, ...] | None = None,
    **config: Any,
) -> Any:
    table = table_of(w, preds, target, task=task, **config)
    ignored = config.get("ignored")
    if task in ("multiclass", "labels") and ignored is not None:
        table[:, ignored] = 0  # it is a class, which is in no average
    if labels is not None:
        table = table[:, list(labels)]
    if average == "micro" or task == "binary":
        table = table.sum(1, keepdims=True)  # of few multiples of 1/2: exact
    tp, fp, fn, _ = table
    by_class = np.full(table.shape[1], np.nan)
    for c, cells in enumerate(table.T):
        part, of = formula(*cells)
        if cells.any():
            by_class[c] = part / of if of else zero_division
    if average == "micro" or task == "binary":
        return by_class[0]
    if average is None:
        return by_class
    if task != "multilabel" and labels is None:
        occurs = tp + fn + (fp if config.get("k", 1) == 1 else 0) > 0
        by_class = np.where(occurs, by_class, np.nan)
    return averaged(by_class, tp + fn if average == "weighted" else np.ones(len(tp)))


def geometric_mean_of(w: Array, preds: Array, target: Array, *, task: str) -> Any:
    tp, fp, fn, tn = table_of(w, preds, target, task=task)

    def mean(correct: Array, support: Array) -> float:
        some = support > 0
        return np.prod(correct[some] / support[some]) ** (1 / some.sum()) if some.any() else np.nan

    if task in ("multiclass", "labels"):
        return mean(tp, tp + fn)
    labels = [mean(*both) for both in np.array([[tp, tn], [tp + fn, tn + fp]]).transpose(2, 0, 1)]
    return np.array(labels) if task == "multilabel" else labels[0]


def mean_of_recalls(target: Array, preds: Array, **weights: Any) -> float:
    """SciPy's geometric mean of scikit-learn's recalls, as imbalanced-learn computes it."""
    classes = np.unique(target)
    recalls = sklearn.metrics.recall_score(target, preds, labels=classes, average=None, **weights)
    return scipy.stats.gmean(recalls)


def sklearn_ratio(
    score: Callable[..., Any],
    *,
    task: str,
    average: str | None = "macro",
    zero_division: float = 0.0,
    labels: tuple[int, ...] | None = None,
    **config: Any,
) -> Reference:
    def classes(preds: Array, target: Array) -> tuple[Array, Array]:
        chosen, actual = members(preds, target, task=task, **config)
        if task == "binary":
            chosen, actual = chosen[:, 0], actual[:, 0]
        elif task != "multilabel":
            chosen, actual = chosen.argmax(1), actual.argmax(1)
        return chosen.astype(int), actual.astype(int)

    arguments: dict[str, Any] = {"average": "binary" if task == "binary" else average}
    if average is None and task not in ("binary", "multilabel"):
        arguments["labels"] = range(CLASSES)
    if labels is not None:
        arguments["labels"] = labels
    return sklearn_of(score, prepare=classes, zero_division=zero_division, **arguments)


# What scikit-learn has. It has no top_k=, and no ignore_index=.
REFERENCES: dict[str, Callable[..., Any]] = {
    "precision": sklearn.metrics.precision_score,
    "recall": sklearn.metrics.recall_score,
    "f1": sklearn.metrics.f1_score,
    "f_beta": partial(sklearn.metrics.fbeta_score, beta=2),
    "jaccard": sklearn.metrics.jaccard_score,
}


# Of a binary task, of the other class.
of_negatives = partial(sklearn_of, prepare=at_half, pos_label=0, zero_division=0)
CLASS: dict[str, Any] = {
    "precision": metrics.Precision,
    "recall": metrics.Recall,
    "specificity": metrics.Specificity,
    "negative_predictive_value": metrics.NegativePredictiveValue,
    "f1": metrics.F1,
    "f_beta": metrics.FBeta,
    "jaccard": metrics.JaccardIndex,
    "informedness": metrics.InformednessYouden,
}


def case(
    name: str,
    inputs: Inputs,
    average: str | None = "macro",
    *,
    suffix: str = "",
    oracle: dict[str, Any] | None = None,
    reference: Callable[..., Any] | None = None,
    **config: Any,
) -> Case:
    """A case of one task; `oracle` is what the oracle calls the rest of the configuration."""
    task = inputs.id
    about = {"task": task, "average": average, **(oracle or {})}
    if name in REFERENCES and not {"k", "ignored"} & about.keys():
        reference = sklearn_ratio(REFERENCES[name], **about)
    mean = task != "binary" and average in ("macro", "weighted")
    averages = {} if task == "binary" else {"average": average}
    return Case(
        f"{name}_{task}" + ("" if task == "binary" else f"_{average}") + suffix,
        CLASS[name],
        inputs,
        partial(ratio_of, formula=FORMULAS[name], **about),
        {**TASKS[task], **averages, **config, **({"beta": 2.0} if name == "f_beta" else {})},
        reference=reference,
        ulps=AVERAGE if mean else 1,
        # Products are kept to 2**-46, and what is above may cancel; so may the terms of a mean.
        atol=lambda w, **inputs: (
            0.0 if name != "informedness" else AVERAGE * 2.0**-24 if mean else 2.0**-44
        ),
        exact=True,
    )


CASES = [
    *(case(name, inputs) for name in REFERENCES for inputs in (BINARY, MULTICLASS, MULTILABEL)),
    case("specificity", BINARY, reference=of_negatives(sklearn.metrics.recall_score)),
    case(
        "negative_predictive_value",
        BINARY,
        reference=of_negatives(sklearn.metrics.precision_score),
    ),
    case(
        "informedness",
        BINARY,
        # Of one class, it is the recall of that.
        reference=sklearn_of(
            sklearn.metrics.balanced_accuracy_score,
            prepare=at_half,
            defined=several_classes,
            adjusted=True,
        ),
    ),
    case("specificity", MULTICLASS),
    case("specificity", MULTICLASS, "micro"),
    case("negative_predictive_value", MULTICLASS, "weighted"),
    case("informedness", MULTICLASS),
    case("informedness", MULTILABEL, None),
    *(case("f1", LABELS, average) for average in ("micro", "weighted", None)),
    *(case("precision", MULTILABEL, average) for average in ("micro", "weighted", None)),
    case("jaccard", LABELS, "weighted"),
    *(
        case("f1", LABELS, average, suffix="_chosen", oracle={"labels": (3, 1)}, labels=(3, 1))
        for average in ("micro", "macro", None)
    ),
    *(
        Case(
            f"f1_samples_zero_division_{zero_division}",
            metrics.F1,
            ROWS,
            partial(ratio_of_rows, formula=FORMULAS["f1"], zero_division=zero_division),
            {"num_labels": 3, "average": "samples", "zero_division": zero_division},
            reference=sklearn_of(
                sklearn.metrics.f1_score,
                prepare=at_half,
                average="samples",
                zero_division=zero_division,
                nothing=np.nan,
            ),
            ulps=3,  # each score is rounded once, the mean once, and that of the oracle
            perfect="no worse",  # rows without labels count as `zero_division` says
        )
        for zero_division in (0.0, np.nan)
    ),
    case("precision", MULTICLASS, suffix="_top_2", oracle={"k": 2}, top_k=2),
    case("recall", MULTICLASS, "micro", suffix="_top_2", oracle={"k": 2}, top_k=2),
    case("f1", LABELS, suffix="_ignore_index", oracle={"ignored": 2}, ignore_index=2),
    case(
        "precision",
        BINARY,
        suffix="_threshold",
        oracle={"threshold": 0.3125},  # which bfloat16 and float16 do not round
        threshold=0.3125,
    ),
    *(
        case(
            name,
            inputs,
            average,
            suffix=f"_zero_division_{value}",
            oracle={"zero_division": value},
            zero_division=value,
        )
        for name, inputs, average, value in (
            ("precision", MULTICLASS, "macro", 1.0),
            ("recall", LABELS, "macro", np.nan),
            ("f1", MULTILABEL, "weighted", np.nan),
        )
    ),
    *(
        Case(
            f"geometric_mean_{inputs.id}",
            metrics.GeometricMeanScore,
            inputs,
            partial(geometric_mean_of, task=inputs.id),
            TASKS[inputs.id],
            reference=None
            if inputs is MULTILABEL
            else sklearn_of(mean_of_recalls, prepare=partial(chosen_class, task=inputs.id)),
            # The logarithm of the value x errs by a unit for each class and step of its own size,
            # and x (1 - log x) is at most 1.
            atol=lambda w, **inputs: (CLASSES + 4) * 2.0**-23,
            exact=True,
        )
        for inputs in (BINARY, MULTICLASS, LABELS, MULTILABEL)
    ),
]
