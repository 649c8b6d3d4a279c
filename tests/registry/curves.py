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


def partial_auroc_of(
    w: np.ndarray, preds: np.ndarray, target: np.ndarray, *, max_fpr: float = 0.3
) -> float:
    """The area under the straight lines of the curve, up to a false positive rate; McClish."""
    fpr, tpr = roc_of(w, preds, target)
    if np.isnan(fpr + tpr).any():
        return np.nan
    kept = np.append(fpr[fpr < max_fpr], max_fpr)
    end = fpr.searchsorted(max_fpr)
    rise = (max_fpr - fpr[end - 1]) / (fpr[end] - fpr[end - 1])
    heights = np.append(tpr[fpr < max_fpr], tpr[end - 1] + rise * (tpr[end] - tpr[end - 1]))
    area = fsum(np.diff(kept) * (heights[1:] + heights[:-1]) / 2)
    chance = max_fpr**2 / 2
    return (1 + (area - chance) / (max_fpr - chance)) / 2


def log_auc_of(
    w: np.ndarray, preds: np.ndarray, target: np.ndarray, *, low: float = 0.05, high: float = 0.6
) -> float:
    """The integral of TPR / FPR of each straight line, in closed form, over log(high / low)."""
    fpr, tpr = roc_of(w, preds, target)
    if np.isnan(fpr + tpr).any():
        return np.nan
    area = 0.0
    for x0, x1, y0, y1 in zip(fpr[:-1], fpr[1:], tpr[:-1], tpr[1:], strict=True):
        start, end = max(x0, low), min(x1, high)
        if start < end:
            slope = (y1 - y0) / (x1 - x0)
            area += (y0 - slope * x0) * np.log(end / start) + slope * (end - start)
    return area / np.log(high / low)


def roc_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> tuple[Any, Any]:
    """False and true positive rates at each distinct score, from (0, 0) on."""
    distinct = np.unique(preds[w > 0])[::-1]
    false, true = (
        np.array([0.0, *(fsum(w[(target == c) & (preds >= t)]) for t in distinct)]) for c in (0, 1)
    )
    return tuple(x / x[-1] if x[-1] else np.full(x.shape, np.nan) for x in (false, true))


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
        "auroc_max_fpr",
        metrics.AUROC,
        SCORES,
        partial_auroc_of,
        {"max_fpr": 0.3},
        reference=sklearn_of(partial(sklearn.metrics.roc_auc_score, max_fpr=0.3)),
        # The rate in float32, its product and the share of the last group; then the quotient, and
        # four roundings of the standardisation, which at 0.3 no more than doubles them.
        ulps=16,
        exact=True,
    ),
    Case(
        "gini",
        metrics.Gini,
        SCORES,
        lambda w, preds, target: 2 * auroc_of(w, preds, target) - 1,
        # One rounding, but the oracle's own where the two cancel.
        atol=lambda w, **inputs: 1e-15,
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
    Case(
        "log_auc",
        metrics.LogAUC,
        SCORES,
        log_auc_of,
        {"fpr_range": (0.05, 0.6)},
        reference=None,  # nothing to compare with integrates the same
        # Both ends of the range, each quotient, the logarithm, and five products and sums, all of
        # positive terms; then the scale.
        ulps=24,
        # A start that rounding puts past the end of a group that the range begins with.
        atol=lambda w, **inputs: 1e-6,
        exact=True,
    ),
]
