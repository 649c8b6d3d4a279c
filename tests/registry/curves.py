"""Curves and areas, of scores that have a bin each at 16 bits, so that areas are exact."""

from functools import partial
from typing import Any

import numpy as np
import sklearn.metrics

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Arrays, Case, Inputs
from tests.registry.classification import ratio
from tests.registry.predictions import BINARY, binary

GRID = np.arange(65) / 64


def scores(
    rng: np.random.Generator, size: int, *, prevalence: float = 0.4, values: Any = GRID
) -> Arrays:
    return binary(rng, size, prevalence=prevalence, scores=values)


SCORES = Inputs(
    "scores",
    draw=scores,
    valid=BINARY.valid,
    spoil=BINARY.spoil,
    hard={
        "no positives": partial(scores, prevalence=0.0),
        "no negatives": partial(scores, prevalence=1.0),
        "ties": partial(scores, values=(0.25, 0.5)),
        "constant": partial(scores, values=(-3.0,)),
        "zeros of both signs": partial(scores, values=(-0.0, 0.0)),
        "saturated": partial(scores, values=(1 - 2.0**-24, 1 - 2.0**-23, 1.0)),
        "small": partial(scores, values=2.0 ** -np.arange(100, 120)),
        "logits": partial(scores, values=(-1e30, -1e4, -40.0, -1.0, 0.75, 1e30)),
    },
)


def auroc_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    (p, v), (n, u) = ((preds[(target == c) & (w > 0)], w[(target == c) & (w > 0)]) for c in (1, 0))
    won = (p[:, None] > n) + 0.5 * (p[:, None] == n)
    return ratio(fsum(v[:, None] * u * won), fsum(v) * fsum(u))


def average_precision_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    right = np.where(target == 1, w, 0.0)
    at_least = preds[:, None] <= preds  # those found at the threshold of each
    some = right > 0
    found, true = (at_least[some] * w).sum(1), (at_least[some] * right).sum(1)
    return ratio(fsum(right[some] * true / found), fsum(right))


def sklearn_of(score: Any) -> Any:
    def reference(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
        w, preds, target = w[w > 0], preds[w > 0], target[w > 0]
        return score(target, preds, sample_weight=w) if len(np.unique(target)) == 2 else None

    return reference


CASES = [
    Case(
        "auroc",
        metrics.AUROC,
        SCORES,
        auroc_of,
        reference=sklearn_of(sklearn.metrics.roc_auc_score),
        exact=True,
    ),
    Case(
        "average_precision",
        metrics.AveragePrecision,
        SCORES,
        average_precision_of,
        reference=sklearn_of(sklearn.metrics.average_precision_score),
        ulps=4,  # the precision, its product, their sum and the quotient
        exact=True,
    ),
]
