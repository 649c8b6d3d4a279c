"""Curves and areas, of scores that each have a bin of their own, so that areas are exact."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import scipy.special
import scipy.stats
import sklearn.metrics

from datarax import metrics
from datarax.metrics.curves import curve_points, gain_lift
from tests.helpers import fsum
from tests.registry.case import Arrays, Case, Inputs
from tests.registry.classification import ratio
from tests.registry.predictions import (
    BINARY,
    MULTICLASS,
    MULTILABEL,
    binary,
    multiclass,
    multilabel,
    target_labels,
)
from tests.registry.reference import Reference, several_classes, sklearn_of

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
        "logits": partial(scores, values=(-1e4, -40.0, -1.0, 0.75, 1e4)),
        "huge": partial(scores, values=(-1e30, -1e27, 0.75, 1e27, 1e30)),
    },
)


def auroc_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    (p, v), (n, u) = ((preds[(target == c) & (w > 0)], w[(target == c) & (w > 0)]) for c in (1, 0))
    won = (p[:, None] > n) + 0.5 * (p[:, None] == n)
    return ratio(fsum(v[:, None] * u * won), fsum(v) * fsum(u))


def average_precision_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    right = np.where(target == 1, w, 0.0)
    at_least = preds[:, None] <= preds  # the examples found at the threshold of each
    some = right > 0
    found, true = (at_least[some] * w).sum(1), (at_least[some] * right).sum(1)
    return ratio(fsum(right[some] * true / found), fsum(right))


# Of one class, scikit-learn raises, or gives a number.
sklearn_curve = partial(sklearn_of, defined=several_classes)


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

    def rate(c: int) -> np.ndarray:
        found = np.array([0.0, *(fsum(w[(target == c) & (preds >= t)]) for t in distinct)])
        return found / found[-1] if found[-1] else np.full(found.shape, np.nan)

    return rate(0), rate(1)


# On that grid and in the hard inputs, bins of as many bits hold one score each.
BITS: dict[str, Any] = {"bits": 13}
POINTS = 80  # more than there are distinct scores in any test


def padded(points: Any, columns: tuple[Any, ...]) -> Any:
    """Each column with its last entry repeated, as a named tuple; NaN where there is no data."""
    if len(columns[0]) == 1:
        return points(*(np.full(POINTS, np.nan) for _ in columns))
    return points(*(np.append(x, np.full(POINTS - len(x), x[-1])) for x in columns))


def thresholds_of(w: np.ndarray, preds: np.ndarray) -> np.ndarray:
    return np.append(np.inf, np.unique(preds[w > 0])[::-1])


def roc_curve_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    return padded(curve_points.RocPoints, (*roc_of(w, preds, target), thresholds_of(w, preds)))


def sklearn_roc(target: np.ndarray, preds: np.ndarray, *, sample_weight: np.ndarray) -> Any:
    return padded(
        curve_points.RocPoints,
        sklearn.metrics.roc_curve(
            target, preds, sample_weight=sample_weight, drop_intermediate=False
        ),
    )


def det_curve_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    """From the highest threshold that misses no positive to the lowest without a false alarm."""
    fpr, tpr = roc_of(w, preds, target)
    has_all, has_none = ~(tpr < 1), ~(fpr > 0)
    end = int(np.argmax(has_all))
    start = min(int(has_none.sum()) - 1, end)
    columns = (x[start : end + 1][::-1] for x in (fpr, 1 - tpr, thresholds_of(w, preds)))
    if len(fpr) == 1:
        columns = [np.full(1, np.nan)] * 3
    return det_points(tuple(columns))


def det_points(columns: Any) -> Any:
    return curve_points.DetPoints(*(np.append(x, np.full(POINTS - len(x), x[-1])) for x in columns))


def sklearn_det(target: np.ndarray, preds: np.ndarray, *, sample_weight: np.ndarray) -> Any:
    if (target[preds == preds.max()] == 0).any():
        return None  # early versions have no infinite threshold
    return det_points(sklearn.metrics.det_curve(target, preds, sample_weight=sample_weight))


def precision_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Precision at each threshold, from infinity on, where it is 1."""
    found = [(preds >= t) for t in thresholds_of(w, preds)[1:]]
    return np.array([1.0, *(ratio(fsum(w[x & (target == 1)]), fsum(w[x])) for x in found)])


def precision_recall_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    columns = precision_of(w, preds, target), roc_of(w, preds, target)[1], thresholds_of(w, preds)
    return padded(curve_points.PrecisionRecallPoints, tuple(x[::-1] for x in columns))


def sklearn_precision_recall(
    target: np.ndarray, preds: np.ndarray, *, sample_weight: np.ndarray
) -> Any:
    precision, recall, thresholds = sklearn.metrics.precision_recall_curve(
        target, preds, sample_weight=sample_weight
    )
    columns = precision, recall, np.append(thresholds, np.inf)
    return padded(curve_points.PrecisionRecallPoints, columns)


def gain_curve_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    distinct = thresholds_of(w, preds)
    fraction = np.array([ratio(fsum(w[preds >= t]), fsum(w)) for t in distinct])
    return padded(gain_lift.GainPoints, (fraction, roc_of(w, preds, target)[1], distinct))


def lift_curve_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    fraction, gain, distinct = gain_curve_of(w, preds, target)
    with np.errstate(invalid="ignore"):
        lift = gain / fraction
    lift[0] = lift[1]
    return gain_lift.LiftPoints(fraction, lift, distinct)


def gain_of(
    w: np.ndarray, preds: np.ndarray, target: np.ndarray, *, fraction: float = 0.3
) -> float:
    """The gains curve at a fraction, straight between the points."""
    _, tpr = roc_of(w, preds, target)
    reached = [ratio(fsum(w[preds >= t]), fsum(w)) for t in thresholds_of(w, preds)]
    return np.nan if np.isnan(tpr).any() else float(np.interp(fraction, reached, tpr))


def best_of(
    w: np.ndarray,
    preds: np.ndarray,
    target: np.ndarray,
    *,
    rate: str,
    given: str,
    least: float = 0.6,
) -> dict[str, float]:
    """The highest rate where another is at least so high; of equal ones, that with most of it."""
    fpr, tpr = roc_of(w, preds, target)
    rates = {"recall": tpr, "specificity": 1 - fpr, "precision": precision_of(w, preds, target)}
    wanted, other, start = rates[rate], rates[given], 1 if rate == "precision" else 0
    if np.isnan(tpr).any() or np.isnan(wanted + other).any():
        return {"value": np.nan, "threshold": np.nan}
    points = zip(wanted[start:], other[start:], thresholds_of(w, preds)[start:], strict=True)
    # Quotients that are equal may differ by a rounding of float64.
    value, _, threshold = max(
        (round(v, 12), round(g, 12), -t) for v, g, t in points if g >= least - 1e-12
    )
    return {"value": value, "threshold": -threshold}


def equal_error_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> dict[str, float]:
    fpr, tpr = roc_of(w, preds, target)
    if np.isnan(fpr + tpr).any():
        return {"value": np.nan, "threshold": np.nan}
    beyond = fpr + tpr - 1
    end = int(np.argmax(beyond >= -1e-12))
    share = -beyond[end - 1] / (beyond[end] - beyond[end - 1])
    value = fpr[end - 1] + share * (fpr[end] - fpr[end - 1])
    return {"value": value, "threshold": thresholds_of(w, preds)[end]}


def distance_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    fpr, tpr = roc_of(w, preds, target)
    return float(np.abs(tpr - fpr).max())


def scipy_distance(target: np.ndarray, preds: np.ndarray, *, sample_weight: np.ndarray) -> Any:
    if len(np.unique(sample_weight)) > 1:
        return None  # SciPy takes no weights
    result: Any = scipy.stats.ks_2samp(preds[target == 1], preds[target == 0])
    return result.statistic


def by_class(
    oracle: Any, w: np.ndarray, preds: np.ndarray, target: np.ndarray, average: str | None = None
) -> Any:
    """A binary oracle for each class or label, and the average over those that have a value."""
    size = preds.shape[-1]
    if target.ndim == 1:
        target, w = target[:, None] == np.arange(size), np.repeat(w[:, None], size, 1)
    columns = [(w[:, c], preds[:, c], target[:, c]) for c in range(size)]
    values = [oracle(*column) for column in columns]
    if average is None:
        return jax.tree.map(lambda *x: np.stack(x), *values)
    support = np.array([fsum(w[:, c][target[:, c] == 1]) for c in range(size)])
    some = ~np.isnan(values)
    weights = (support if average == "weighted" else np.ones(size))[some]
    return ratio(fsum(np.array(values)[some] * weights), fsum(weights))


def pooled(oracle: Any, w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    """A binary oracle of all classes, each an example."""
    size = preds.shape[-1]
    one_hot = target[:, None] == np.arange(size)
    return oracle(np.repeat(w, size), preds.ravel(), one_hot.ravel())


def one_against_one_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    """The mean over the pairs of classes of which both occur, weighted by both."""
    areas, weights = [], []
    for a, b in itertools.combinations(range(preds.shape[-1]), 2):
        some = np.isin(target, (a, b))
        each = [auroc_of(w[some], preds[some, c], target[some] == c) for c in (a, b)]
        areas.append(np.mean(each))
        weights.append(fsum(w[some]))
    some = ~np.isnan(areas)
    kept, by = np.array(areas)[some], np.array(weights)[some]
    return ratio(fsum(kept * by), fsum(by))


def sklearn_by_class(
    score: Any, average: str | None, scores: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> Reference:
    def indicators(preds: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if target.ndim == 1:
            target = target[:, None] == np.arange(preds.shape[-1])
        return scores(preds), target.astype(int)

    def some_of_each(preds: np.ndarray, target: np.ndarray) -> bool:
        positives = target.sum(0)  # of none or all, scikit-learn raises, or gives 0
        return ((positives > 0) & (positives < len(target))).all()

    return sklearn_of(score, prepare=indicators, defined=some_of_each, average=average)


CLASS_SCORES = Inputs(
    "class_scores",
    draw=partial(multiclass, scores=GRID),
    valid=MULTICLASS.valid,
    spoil=MULTICLASS.spoil,
    hard={
        "one class": partial(multiclass, scores=GRID, labels=(2,)),
        "absent classes": partial(multiclass, scores=GRID, labels=(0, 3)),
        "ties": partial(multiclass, scores=(0.0, 0.5, 1.0)),
        "logits": partial(multiclass, scores=(-1e30, -40.0, 0.75, 1e30)),
    },
)
AS_THEY_ARE: dict[str, Any] = {"num_classes": 5, "from_logits": False}

# The probabilities of a class are equal or far apart, so that a bin holds one of them.
LOGITS = np.array(
    [
        [2.0, 0.5, -1.0, -3.0, 0.25],
        [-1.0, 3.0, 0.0, 1.5, -2.0],
        [0.75, -2.0, 4.0, -1.0, 1.0],
        [-4.0, 1.0, 2.5, 3.0, -0.5],
        [-2.5, -1.25, 1.25, -5.0, 6.0],
        [0.0, 0.0, 0.0, 0.0, 0.0],
    ]
)


# Of each row a class, and of the last one all but one.
IMPOSSIBLE = np.where(np.eye(6, 5, dtype=bool), -np.inf, 0.0)
IMPOSSIBLE[5, 1:] = -np.inf


def logits(
    rng: np.random.Generator,
    size: int,
    *,
    labels: Any = range(5),
    scale: float = 1.0,
    impossible: Any = 0.0,
) -> Arrays:
    """Logits whose rows are offset by a whole number each, which changes no probability.

    Without a scale, they are below 64, so that half precision holds them exactly.
    """
    rows = rng.choice(scale * LOGITS + impossible, size) + rng.integers(-50, 51, (size, 1))
    return {"preds": rows.astype(np.float32), "target": target_labels(rng, size, labels)}


def log_odds(preds: np.ndarray) -> np.ndarray:
    """The log-odds of the softmax, so that nearly equal ones are equal."""
    columns = range(preds.shape[-1])
    others = [scipy.special.logsumexp(np.delete(preds, c, -1), axis=-1) for c in columns]
    return np.round(preds - np.stack(others, -1), 10)


def roc_of_logits(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    points = by_class(roc_curve_of, w, log_odds(preds), target)
    # Nothing is predicted positive at the first threshold, also if a probability is 1.
    thresholds = scipy.special.expit(points.thresholds)
    thresholds[:, 0] = points.thresholds[:, 0]
    return points._replace(thresholds=thresholds)


CLASS_LOGITS = Inputs(
    "class_logits",
    draw=logits,
    valid=lambda preds, target: (
        ~np.isnan(preds).any(-1) & np.isfinite(preds.max(-1)) & (target >= 0) & (target < 5)
    ),
    spoil={"preds": (np.nan, np.inf), "target": MULTICLASS.spoil["target"]},
    hard={
        "absent classes": partial(logits, labels=(0, 3)),
        "saturated": partial(logits, scale=32.0),
        "impossible classes": partial(logits, impossible=IMPOSSIBLE),
    },
)
LABEL_SCORES = Inputs(
    "label_scores",
    draw=partial(multilabel, scores=GRID),
    valid=MULTILABEL.valid,
    spoil=MULTILABEL.spoil,
    hard={
        "a label never": partial(multilabel, scores=GRID, prevalence=(0.0, 0.5, 1.0)),
        "ties": partial(multilabel, scores=(0.5, 0.25)),
    },
)
AREAS = {
    "auroc": (metrics.AUROC, auroc_of, sklearn.metrics.roc_auc_score, 1),
    "average_precision": (
        metrics.AveragePrecision,
        average_precision_of,
        sklearn.metrics.average_precision_score,
        4,
    ),
}
# A point holds two quotients of counts, each rounded once. An operating point is chosen by
# comparing a rounded quotient with 0.6, which the quotient may equal.
POINT: dict[str, Any] = {"ulps": 1, "atol": lambda w, **inputs: 1e-12, "exact": True}
CHOSEN = {
    "precision_at_fixed_recall": (
        metrics.PrecisionAtFixedRecall,
        "min_recall",
        partial(best_of, rate="precision", given="recall"),
    ),
    "recall_at_fixed_precision": (
        metrics.RecallAtFixedPrecision,
        "min_precision",
        partial(best_of, rate="recall", given="precision"),
    ),
    "sensitivity_at_specificity": (
        metrics.SensitivityAtSpecificity,
        "min_specificity",
        partial(best_of, rate="recall", given="specificity"),
    ),
    "specificity_at_sensitivity": (
        metrics.SpecificityAtSensitivity,
        "min_sensitivity",
        partial(best_of, rate="specificity", given="recall"),
    ),
}


CASES = [
    Case(
        "auroc",
        metrics.AUROC,
        SCORES,
        auroc_of,
        BITS,
        reference=sklearn_curve(sklearn.metrics.roc_auc_score),
        exact=True,
    ),
    Case(
        "auroc_max_fpr",
        metrics.AUROC,
        SCORES,
        partial_auroc_of,
        BITS | {"max_fpr": 0.3},
        reference=sklearn_curve(sklearn.metrics.roc_auc_score, max_fpr=0.3),
        atol=lambda w, **inputs: 1e-12,  # the oracle's own rounding
        exact=True,
    ),
    Case(
        "gini",
        metrics.Gini,
        SCORES,
        lambda w, preds, target: 2 * auroc_of(w, preds, target) - 1,
        BITS,
        # One rounding; and the oracle's own where the two terms cancel.
        atol=lambda w, **inputs: 1e-15,
        exact=True,
    ),
    Case(
        "average_precision",
        metrics.AveragePrecision,
        SCORES,
        average_precision_of,
        BITS,
        reference=sklearn_curve(sklearn.metrics.average_precision_score),
        ulps=4,  # the precision, its product, their sum and the quotient
        exact=True,
    ),
    Case(
        "log_auc",
        metrics.LogAUC,
        SCORES,
        log_auc_of,
        BITS | {"fpr_range": (0.05, 0.6)},
        reference=None,  # nothing to compare with integrates the same
        # Each quotient, the logarithm, and five products and sums, all of positive terms; then the
        # scale.
        ulps=24,
        # A start that rounding puts past the end of a group that the range begins with.
        atol=lambda w, **inputs: 1e-6,
        exact=True,
    ),
    Case(
        "roc",
        metrics.ROC,
        SCORES,
        roc_curve_of,
        BITS | {"num_points": POINTS},
        reference=sklearn_curve(sklearn_roc),
        **POINT,
    ),
    Case(
        "precision_recall_curve",
        metrics.PrecisionRecallCurve,
        SCORES,
        precision_recall_of,
        BITS | {"num_points": POINTS},
        reference=sklearn_curve(sklearn_precision_recall),
        **POINT,
    ),
    Case(
        "det_curve",
        metrics.DETCurve,
        SCORES,
        det_curve_of,
        BITS | {"num_points": POINTS},
        reference=sklearn_curve(sklearn_det),
        **POINT,
    ),
    Case(
        "gain_curve",
        metrics.GainCurve,
        SCORES,
        gain_curve_of,
        BITS | {"num_points": POINTS},
        **POINT,
    ),
    Case(
        "lift_curve",
        metrics.LiftCurve,
        SCORES,
        lift_curve_of,
        BITS | {"num_points": POINTS},
        ulps=3,  # two quotients, and the quotient of both
        exact=True,
    ),
    Case(
        "gain",
        metrics.Gain,
        SCORES,
        gain_of,
        BITS | {"fraction": 0.3},
        atol=lambda w, **inputs: 1e-12,  # the oracle's own rounding
        exact=True,
        perfect="no worse",  # a fraction of the examples may hold fewer than all positives
    ),
    Case(
        "lift",
        metrics.Lift,
        SCORES,
        lambda w, **inputs: gain_of(w, **inputs) / 0.3,
        BITS | {"fraction": 0.3},
        atol=lambda w, **inputs: 1e-12,
        exact=True,
    ),
    *(
        Case(id, cls, SCORES, oracle, BITS | {name: 0.6}, **POINT)
        for id, (cls, name, oracle) in CHOSEN.items()
    ),
    Case(
        "equal_error_rate",
        metrics.EqualErrorRate,
        SCORES,
        equal_error_of,
        BITS,
        atol=lambda w, **inputs: 1e-12,
        exact=True,
    ),
    Case(
        "kolmogorov_smirnov",
        metrics.KolmogorovSmirnov,
        SCORES,
        distance_of,
        BITS,
        reference=sklearn_curve(scipy_distance),
        atol=lambda w, **inputs: 1e-15,  # the oracle's own rounding
        exact=True,
    ),
    *(
        Case(
            f"{id}_{inputs.id}_{average}",
            cls,
            inputs,
            partial(by_class, oracle, average=average),
            BITS | size | {"average": average},
            reference=sklearn_by_class(score, average),
            # By class, as above; then the weights, the products, two sums and a quotient.
            ulps=ulps if average is None else ulps + 2 * 5 + 2,
            exact=True,
        )
        for inputs, size in ((CLASS_SCORES, AS_THEY_ARE), (LABEL_SCORES, {"num_labels": 3}))
        for id, (cls, oracle, score, ulps) in AREAS.items()
        for average in ("macro", "weighted", None)
    ),
    *(
        Case(
            f"{id}_class_scores_micro",
            cls,
            CLASS_SCORES,
            partial(pooled, oracle),
            BITS | AS_THEY_ARE | {"average": "micro"},
            reference=sklearn_by_class(score, "micro"),
            ulps=ulps,
            exact=True,
        )
        for id, (cls, oracle, score, ulps) in AREAS.items()
    ),
    Case(
        "auroc_one_against_one",
        metrics.AUROC,
        CLASS_SCORES,
        one_against_one_of,
        AS_THEY_ARE | {"bits": 12, "average": "weighted", "multi_class": "ovo"},
        # scikit-learn only takes scores that sum to one, and no weights: see the tests of areas.
        reference=None,
        ulps=2 * 10 + 4,  # ten areas and weights, their products, two sums and a quotient
        exact=True,
    ),
    Case(
        "roc_class_scores",
        metrics.ROC,
        CLASS_SCORES,
        partial(by_class, roc_curve_of),
        BITS | AS_THEY_ARE | {"num_points": POINTS},
        **POINT,
    ),
    Case(
        "auroc_class_logits",
        metrics.AUROC,
        CLASS_LOGITS,
        lambda w, preds, target: by_class(auroc_of, w, log_odds(preds), target, "macro"),
        BITS | {"num_classes": 5, "from_logits": True},
        reference=sklearn_by_class(
            sklearn.metrics.roc_auc_score,
            "macro",
            lambda preds: scipy.stats.rankdata(log_odds(preds), "dense", axis=0),
        ),
        ulps=1 + 2 * 5 + 2,  # as of other scores
    ),
    Case(
        "roc_class_logits",
        metrics.ROC,
        CLASS_LOGITS,
        roc_of_logits,
        BITS | {"num_classes": 5, "from_logits": True, "num_points": POINTS},
        # A threshold: two units of log-odds below 16, and a few roundings of the sigmoid.
        ulps=40,
        atol=lambda w, **inputs: 1e-12,
    ),
    Case(
        "precision_recall_curve_label_scores",
        metrics.PrecisionRecallCurve,
        LABEL_SCORES,
        partial(by_class, precision_recall_of),
        BITS | {"num_labels": 3, "num_points": POINTS},
        **POINT,
    ),
    *(
        Case(
            f"{id}_class_scores",
            cls,
            CLASS_SCORES,
            partial(by_class, oracle),
            BITS | AS_THEY_ARE | {name: 0.6},
            **POINT,
        )
        for id, (cls, name, oracle) in CHOSEN.items()
    ),
]
