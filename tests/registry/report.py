"""Counts and ratios of all classes in one: ClassificationReport, StatScores."""

from functools import partial
from typing import Any

import numpy as np
import sklearn.metrics

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Case
from tests.registry.precision_recall import TASKS, Array, table_of
from tests.registry.predictions import BINARY, LABELS, MULTILABEL
from tests.registry.reference import whole

COLUMNS = ("precision", "recall", "f1-score", "support")


def ratios(tp: float, fp: float, fn: float) -> dict[str, float]:
    parts = (tp, tp + fp), (tp, tp + fn), (2 * tp, 2 * tp + fp + fn)
    return dict(zip(COLUMNS, [a / b if b else 0.0 for a, b in parts], strict=False))


def report_of(w: Array, preds: Array, target: Array, *, task: str) -> dict[str, float]:
    tp, fp, fn, tn = table_of(w, preds, target, task=task)
    if task == "binary":
        tp, fp, fn = (np.array([a[0], b[0]]) for a, b in ((tn, tp), (fn, fp), (fp, fn)))
    support, kept = tp + fn, np.arange(len(tp))
    rows = {str(i): ratios(tp[i], fp[i], fn[i]) | {"support": support[i]} for i in kept}
    everything = {"support": fsum(support)}
    together = ratios(*map(fsum, (tp, fp, fn)))
    values: dict[str, Any] = {f"{i}/{k}": x for i, row in rows.items() for k, x in row.items()}
    if task == "multilabel":
        values |= {f"micro avg/{k}": x for k, x in (together | everything).items()}
    else:
        values["accuracy"] = together["recall"]
        kept = kept[support + fp > 0]
    for name, weights in (("macro", np.ones(len(tp))), ("weighted", support)):
        for k in COLUMNS[:3]:
            each = np.array([rows[str(i)][k] for i in kept])
            total = fsum(weights[kept])
            values[f"{name} avg/{k}"] = fsum(weights[kept] * each) / total if total else 0.0
        values[f"{name} avg/support"] = everything["support"]
    if not fsum(w):
        return dict.fromkeys(values, np.nan)
    return {name: np.float64(x) for name, x in values.items()}


def sklearn_report(w: Array, preds: Array, target: Array) -> dict[str, float] | None:
    used = w > 0
    if not used.any():
        return None
    preds, target = whole(preds[used], target[used])
    report: Any = sklearn.metrics.classification_report(
        target, preds, sample_weight=w[used], output_dict=True, zero_division=0
    )
    absent = report_of(np.zeros(1), *(np.zeros(1),) * 2, task="labels")
    named = dict.fromkeys(absent, 0.0) | {"accuracy": report.pop("accuracy")}
    for name, row in report.items():
        named |= {f"{name}/{k}": x for k, x in row.items()}
    return {name: np.float64(x) for name, x in named.items()}


def scores_of(w: Array, preds: Array, target: Array, *, task: str) -> Array:
    tp, fp, fn, tn = table_of(w, preds, target, task=task)
    scores = np.stack([tp, fp, tn, fn, tp + fn], -1)
    return scores[0] if task == "binary" else scores


CASES = [
    *(
        Case(
            f"report_{inputs.id}",
            metrics.ClassificationReport,
            inputs,
            partial(report_of, task=inputs.id),
            TASKS[inputs.id],
            reference=sklearn_report if inputs is LABELS else None,
            ulps=2 * 5 + 3,  # of five quotients: the products, two sums and a quotient
            exact=True,
        )
        for inputs in (BINARY, LABELS, MULTILABEL)
    ),
    Case(
        "stat_scores_labels",
        metrics.StatScores,
        LABELS,
        partial(scores_of, task="labels"),
        TASKS["labels"],
        exact=True,
        empty=0.0,
    ),
]
