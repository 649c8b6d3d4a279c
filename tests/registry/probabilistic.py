"""Cases of losses of predicted probabilities, and of calibration."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.stats
import sklearn.calibration
import sklearn.metrics

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Arrays, Case, Inputs
from tests.registry.predictions import (
    BINARY,
    CLASSES,
    MULTICLASS,
    binary,
    multilabel,
    target_labels,
)
from tests.registry.reference import Reference, several_classes, sklearn_of, whole_target

EPS = 2.0**-23  # of float32; scikit-learn clips to it


def sums_to_one(p: np.ndarray) -> np.ndarray:
    """Which rows hold probabilities that sum to one within the precision of their dtype."""
    eps = max(EPS, {2: 2.0**-7 if p.dtype.name == "bfloat16" else 2.0**-10}.get(p.itemsize, 0))
    p = p.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return ((p >= 0) & (p <= 1)).all(-1) & (np.abs(p.sum(-1) - 1) <= eps**0.5)


def rows(rng: np.random.Generator, size: int, *, scale: float = 2.0) -> np.ndarray:
    """Distributions over the classes; a large scale makes them certain, with zeros."""
    logits = scale * rng.normal(size=(size, CLASSES))
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)).astype(np.float32)


def forecasts(
    rng: np.random.Generator, size: int, *, labels: Any = range(CLASSES), scale: float = 2.0
) -> Arrays:
    return {"preds": rows(rng, size, scale=scale), "target": target_labels(rng, size, labels)}


def certain(rng: np.random.Generator, size: int, *, right: float) -> Arrays:
    target = target_labels(rng, size, range(CLASSES))
    chosen = np.where(rng.random(size) < right, target, (target + 1) % CLASSES)
    return {"preds": np.eye(CLASSES, dtype=np.float32)[chosen], "target": target}


FORECASTS = Inputs(
    "forecasts",
    draw=forecasts,
    valid=lambda preds, target: sums_to_one(preds) & (target >= 0) & (target < CLASSES),
    spoil={"preds": (np.nan, np.inf, -0.5, 1.5), "target": (-1, CLASSES, -100, 2**31 - 1)},
    hard={
        "one class": partial(forecasts, labels=(2,)),
        "nearly certain": partial(forecasts, scale=30.0),
        "uniform": partial(forecasts, scale=0.0),
        "certain and right": partial(certain, right=1.0),
        "certain and wrong": partial(certain, right=0.5),
    },
)


def is_probability(p: np.ndarray) -> np.ndarray:
    p = p.astype(np.float64)
    return (p >= 0) & (p <= 1)


CHANCES = Inputs(
    "chances",
    draw=binary,
    valid=lambda preds, target: is_probability(preds) & np.isin(target, (0, 1)),
    spoil={"preds": (np.nan, np.inf, -0.5, 1.5), "target": BINARY.spoil["target"]},
    hard={
        "no positives": partial(binary, prevalence=0.0),
        "no negatives": partial(binary, prevalence=1.0),
        "saturated": partial(binary, scores=(0.0, 1.0)),
        "near to the ends": partial(binary, scores=(1e-30, 1e-8, 2.0**-24, 1 - 2.0**-24)),
    },
)


LABEL_CHANCES = Inputs(
    "chances_of_labels",
    draw=multilabel,
    valid=lambda preds, target: is_probability(preds) & np.isin(target, (0, 1)),
    spoil=CHANCES.spoil,
    hard={
        "a label never": partial(multilabel, prevalence=(0.0, 0.5, 1.0)),
        "saturated": partial(multilabel, scores=(0.0, 1.0)),
    },
)


def weighted_mean(w: np.ndarray, scores: np.ndarray) -> float:
    used = w > 0
    total = fsum(w[used])
    return fsum(w[used] * scores[used]) / total if total else np.nan


def log_loss_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    used = w > 0
    p = np.clip(preds[used, target[used].astype(int)], EPS, 1 - EPS)
    return weighted_mean(w[used], -np.log(p))


def brier_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    return weighted_mean(w, (preds - target) ** 2)


def skill(w: np.ndarray, preds: np.ndarray, target: np.ndarray, *, score: Any, null: Any) -> float:
    """One less a score by that of the class frequencies f: the sum of f times `null` of f."""
    total = fsum(w)
    f = np.array([fsum(w[target == c]) / total if total else 0 for c in range(CLASSES)])
    return 1 - score(w, preds, target) / fsum(f * null(f)) if (f > 0).sum() > 1 else np.nan


def skill_error(w: np.ndarray, preds: np.ndarray, target: np.ndarray, *, score: Any) -> float:
    # The score errs by 6 units, that of the frequencies by 12, and it is at least 1/2000 of 1.
    return 32 * 2.0**-24 * (1 + 2000 * np.nan_to_num(score(w, preds, target)))


# Newer than the oldest scikit-learn that the tests run on.
d2_brier_score: Any = getattr(sklearn.metrics, "d2_brier_score", None)


def hinge_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    used = w > 0
    w, preds, target = w[used], preds[used], target[used].astype(int)
    others = np.where(np.eye(CLASSES, dtype=bool)[target], -np.inf, preds)
    margin = preds[np.arange(len(w)), target] - others.max(-1, initial=-np.inf)
    return weighted_mean(w, np.maximum(0, 1 - margin))


def surprises(preds: np.ndarray, target: np.ndarray) -> np.ndarray:
    """`-log softmax(preds)[target]` of each row."""
    top = preds.max(-1, keepdims=True, initial=-1e300)
    own = preds[np.arange(len(target)), target.astype(int)]
    return top[:, 0] + np.log(np.exp(preds - top).sum(-1)) - own


def top_label(preds: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The confidence of each prediction, and whether it is correct."""
    return preds.max(-1, initial=0), preds.argmax(-1) == target


def equal_width(confidence: np.ndarray, bins: int) -> np.ndarray:
    # The product of a float32 and a small integer is exact in float64.
    return np.maximum(np.ceil(confidence * bins) - 1, 0).astype(int)


def equal_mass(w: np.ndarray, confidence: np.ndarray, bins: int) -> np.ndarray:
    # Weights in tests are multiples of 1/2, so that their sums are exact in any order.
    below = (w * (confidence[None, :] < confidence[:, None])).sum(1)
    return np.minimum(np.floor(below * bins / max(fsum(w), 0.5)), bins - 1).astype(int)


def diagram_of(
    w: np.ndarray,
    preds: np.ndarray,
    target: np.ndarray,
    *,
    judged: Callable[..., Any] = top_label,
    mass: bool = False,
    bins: int = 15,
) -> dict[str, np.ndarray]:
    """By bin: accuracy, mean confidence, and share of the total weight."""
    used = w > 0
    w = w[used]
    confidence, right = judged(preds[used], target[used])
    place = equal_mass(w, confidence, bins) if mass else equal_width(confidence, bins)
    inside = [place == b for b in range(bins)]
    total = fsum(w)
    return {
        "accuracy": np.array([weighted_mean(w[i], right[i]) for i in inside]),
        "confidence": np.array([weighted_mean(w[i], confidence[i]) for i in inside]),
        "weight": np.array([fsum(w[i]) / total if total else np.nan for i in inside]),
    }


def calibration_error_of(
    w: np.ndarray,
    preds: np.ndarray,
    target: np.ndarray,
    norm: str = "l1",
    debias: bool = False,
    **how: Any,
) -> float:
    diagram = diagram_of(w, preds, target, **how)
    if np.isnan(diagram["weight"]).any():
        return np.nan
    some = diagram["weight"] > 0
    gap = np.abs(diagram["accuracy"] - diagram["confidence"])[some]
    if norm == "max":
        return gap.max()
    share = diagram["weight"][some]
    if norm == "l1":
        return fsum(share * gap)
    squares = gap**2
    if debias:
        n, right = share * fsum(w), diagram["accuracy"][some]
        squares = squares - np.where(n > 1, right * (1 - right) / np.where(n > 1, n - 1, 1), 0)
    return max(fsum(share * squares), 0) ** 0.5


def sklearn_chances(score: Callable[..., float], **config: Any) -> Reference:
    def quiet(*args: Any, **kwargs: Any) -> float:
        with warnings.catch_warnings():
            # It sees in float64 that float32 rows do not sum exactly to one.
            warnings.simplefilter("ignore", UserWarning)
            return score(*args, **kwargs)

    return sklearn_of(quiet, prepare=whole_target, **config)


def sklearn_log_loss(target: np.ndarray, preds: np.ndarray, **weights: Any) -> float:
    clipped = np.clip(preds, EPS, 1 - EPS)  # it would clip to the eps of float64
    return sklearn.metrics.log_loss(target, clipped, labels=range(CLASSES), **weights)


GRID = Inputs(
    "chances on a grid",  # each in its own cell of confidence
    draw=partial(binary, scores=np.arange(65) / 64),
    valid=CHANCES.valid,
    spoil=CHANCES.spoil,
    hard={
        "no positives": partial(binary, prevalence=0.0, scores=np.arange(65) / 64),
        "constant": partial(binary, scores=(0.75,)),
        "fewer than bins": partial(binary, scores=(0.25, 0.5)),
        "saturated": partial(binary, scores=(0.0, 2.0**-20, 1 - 2.0**-23, 1.0)),
        "shuffled": lambda rng, size: {
            "preds": rng.permutation(np.arange(size) / 16).astype(np.float32),
            "target": target_labels(rng, size, (0, 1)),
        },
    },
)
BY_MASS: dict[str, Any] = {
    "judged": lambda preds, target: (preds, target == 1),
    "mass": True,
    "bins": 4,
}
CALIBRATED: dict[str, Any] = {"num_classes": CLASSES}


def calibration_curve(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    """The curve of scikit-learn, with NaN for the empty bins that it drops; it takes no weights."""
    if not len(w) or not np.isin(w, (0, 1)).all():
        return None
    confidence, right = top_label(preds[w > 0], target[w > 0])
    if not len(confidence):
        return None
    accuracy, mean = sklearn.calibration.calibration_curve(right, confidence, n_bins=15)
    want = diagram_of(w, preds, target)
    for name, values in (("accuracy", accuracy), ("confidence", mean)):
        want[name][want["weight"] > 0] = values
    return want


def isotonic(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The least mean squared error of a non-decreasing function of `preds`, by its definition.

    At each prediction, the greatest over lower starts of the least over higher ends of the mean
    target from start to end.
    """
    at = np.unique(preds)
    weight = np.array([fsum(w[preds == x]) for x in at])
    right = np.array([fsum((w * target)[preds == x]) for x in at])
    # Weights in tests are multiples of 1/2, so that their sums are exact in any order.
    upto = [np.concatenate([[0.0], np.cumsum(x)]) for x in (right, weight)]
    start, end = np.arange(len(at)), np.arange(1, len(at) + 1)
    runs = [x[end] - x[start[:, None]] for x in upto]
    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.where(end > start[:, None], runs[0] / runs[1], np.inf)
    ends = np.minimum.accumulate(means[:, ::-1], 1)[:, ::-1]  # the least over higher ends
    fits = [ends[: i + 1, i].max() for i in range(len(at))]
    return np.array(fits)[np.searchsorted(at, preds)] if len(at) else preds


def scores_of(preds: np.ndarray, target: np.ndarray, score: str, eps: float = 0.0) -> np.ndarray:
    if score == "brier":
        return (preds - target) ** 2
    p = np.clip(np.where(target == 1, preds, 1 - preds), eps, 1 - eps)
    return -np.log(p)


def decomposition_of(
    w: np.ndarray, preds: np.ndarray, target: np.ndarray, score: str = "brier"
) -> dict[str, float]:
    used = w > 0
    w, preds, target = w[used], preds[used], target[used]
    given = weighted_mean(w, scores_of(preds, target, score, EPS))
    rate = np.full(len(w), weighted_mean(w, target))
    recalibrated, of_rate = (
        weighted_mean(w, scores_of(x, target, score)) for x in (isotonic(w, preds, target), rate)
    )
    return {
        "score": given,
        "miscalibration": given - recalibrated,
        "discrimination": of_rate - recalibrated,
        "uncertainty": of_rate,
    }


def spiegelhalter(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """The squared errors less their expectation, over the root of their variance."""
    used = w > 0
    w, preds, target = w[used], preds[used], target[used]
    expected = preds * (1 - preds)
    excess = fsum(w * ((target - preds) ** 2 - expected))
    of_each = preds * ((1 - preds) ** 2 - expected) ** 2 + (1 - preds) * (preds**2 - expected) ** 2
    variance = fsum(w**2 * of_each)
    z = np.nan
    if variance or excess > 0:
        z = excess / variance**0.5 if variance else np.inf
    return {"statistic": np.float64(z), "p_value": np.float64(2 * scipy.stats.norm.sf(abs(z)))}


def spiegelhalter_error(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    # Each term is rounded by a few units of itself.
    used = w > 0
    w, preds, target = w[used], preds[used], target[used]
    size = fsum(w * np.abs((target - preds) * (1 - 2 * preds)))
    variance = fsum(w**2 * (1 - 2 * preds) ** 2 * preds * (1 - preds))
    return 8 * 2.0**-24 * size / variance**0.5 if variance else 0.0


# Counts are exact; the product of each confidence and weight is rounded once, by u of it.
ROUNDED = 2.0**-24 + 2.0**-40


def rounded(w: np.ndarray, **inputs: np.ndarray) -> float:
    return ROUNDED


CASES = [
    Case(
        "log_loss",
        metrics.LogLoss,
        FORECASTS,
        log_loss_of,
        {"num_classes": CLASSES},
        reference=sklearn_chances(sklearn_log_loss),
        ulps=6,  # the logarithm (within 2 units), the product, the sum, the quotient
    ),
    Case(
        "brier",
        metrics.BrierScore,
        CHANCES,
        brier_of,
        reference=sklearn_chances(sklearn.metrics.brier_score_loss),
        ulps=6,  # the difference, twice in its square, the product, the sum, the quotient
    ),
    Case(
        "log_loss_by_label",
        metrics.LogLoss,
        LABEL_CHANCES,
        lambda w, preds, target: np.array(
            [
                log_loss_of(x, np.stack([1 - p, p], -1), t)
                for x, p, t in zip(w.T, preds.T, target.T, strict=True)
            ]
        ),
        {"num_labels": 3, "average": None},
        ulps=6,
    ),
    Case(
        "d2_log_loss",
        metrics.D2LogLoss,
        FORECASTS,
        partial(skill, score=log_loss_of, null=lambda f: -np.log(np.where(f > 0, f, 1))),
        {"num_classes": CLASSES},
        reference=sklearn_chances(
            lambda target, preds, **weights: sklearn.metrics.d2_log_loss_score(
                target, np.clip(preds, EPS, 1 - EPS), labels=range(CLASSES), **weights
            ),
            least=2,
            defined=several_classes,
        ),
        atol=partial(skill_error, score=log_loss_of),
    ),
    Case(
        "d2_brier",
        metrics.D2Brier,
        CHANCES,
        lambda w, preds, target: skill(
            w, preds, target, score=lambda *x: 2 * brier_of(*x), null=lambda f: 1 - f
        ),
        reference=d2_brier_score
        and sklearn_chances(d2_brier_score, least=2, defined=several_classes),
        atol=partial(skill_error, score=brier_of),
    ),
    Case(
        "hinge",
        metrics.HingeLoss,
        MULTICLASS,
        hinge_of,
        {"num_classes": CLASSES},
        reference=sklearn_chances(
            sklearn.metrics.hinge_loss,
            labels=range(CLASSES),
            defined=lambda preds, target: np.isfinite(preds).all(),
        ),
        # The margin and 1 - margin each err by at most half a unit of numbers below 16.
        ulps=4,
        atol=lambda w, **inputs: 16 * EPS,
    ),
    *(
        Case(
            f"score_decomposition_{score}",
            metrics.ScoreDecomposition,
            GRID,
            partial(decomposition_of, score=score),
            {"score": score},
            ulps=6,
            # Differences of mean scores, each within 6 units of itself.
            atol=lambda w, score=score, **inputs: (
                12
                * 2.0**-24
                * (1 + np.nan_to_num(decomposition_of(w, **inputs, score=score)["score"]))
            ),
        )
        for score in ("brier", "log")
    ),
    *(
        Case(
            f"calibration_error_{norm}",
            metrics.CalibrationError,
            FORECASTS,
            partial(calibration_error_of, norm=norm),
            CALIBRATED | {"norm": norm},
            ulps=ulps,
            atol=rounded,
        )
        # "l1" and "max": one quotient. "l2": the bins are summed; quotients, squares, the root.
        for norm, ulps in (("l1", 1), ("l2", 15 + 4), ("max", 1))
    ),
    Case(
        "calibration_error_debiased",
        metrics.CalibrationError,
        FORECASTS,
        partial(calibration_error_of, norm="l2", debias=True),
        CALIBRATED | {"norm": "l2", "debias": True},
        # The root of a difference of squares that may cancel.
        atol=lambda w, **inputs: 2.0**-11,
    ),
    Case(
        "calibration_test",
        metrics.CalibrationTest,
        CHANCES,
        spiegelhalter,
        atol=spiegelhalter_error,
        perfect="any",
    ),
    Case(
        "reliability_diagram",
        metrics.ReliabilityDiagram,
        FORECASTS,
        diagram_of,
        CALIBRATED,
        reference=calibration_curve,
        atol=rounded,
    ),
    Case(
        "calibration_error_mass",
        metrics.CalibrationError,
        GRID,
        partial(calibration_error_of, **BY_MASS),
        {"binning": "mass", "num_bins": 4},
        atol=rounded,
        exact=True,  # the confidences are multiples of 1/64, and ranks are integers
    ),
]
