"""Probabilities, distributions and forecasts: log loss, Brier score, hinge loss, perplexity."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import sklearn.metrics

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Arrays, Case, Inputs
from tests.registry.predictions import BINARY, CLASSES, MULTICLASS, binary, target_labels

EPS = 2.0**-23  # of float32, to which scikit-learn clips


def sums_to_one(p: np.ndarray) -> np.ndarray:
    """Which rows hold probabilities that do, as nearly as their dtype lets them."""
    eps = max(EPS, {2: 2.0**-7 if p.dtype.name == "bfloat16" else 2.0**-10}.get(p.itemsize, 0))
    p = p.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return ((p >= 0) & (p <= 1)).all(-1) & (np.abs(p.sum(-1) - 1) <= eps**0.5)


def rows(rng: np.random.Generator, size: int, *, scale: float = 2.0) -> np.ndarray:
    """Distributions over the classes; a large scale makes them certain, and some of them zero."""
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


def perplexity_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    used = w > 0
    return float(np.exp(weighted_mean(w[used], surprises(preds[used], target[used]))))


def sklearn_of(score: Callable[..., float]) -> Callable[..., float | None]:
    """A score of scikit-learn's, where some example counts."""

    def reference(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float | None:
        used = w > 0
        if not used.any():
            return None
        with warnings.catch_warnings():
            # In float64 it finds that float32 rows sum to one only nearly.
            warnings.simplefilter("ignore", UserWarning)
            return score(target[used].astype(int), preds[used], sample_weight=w[used])

    return reference


def sklearn_log_loss(target: np.ndarray, preds: np.ndarray, **weights: Any) -> float:
    clipped = np.clip(preds, EPS, 1 - EPS)  # the input is float32; it sees float64
    return sklearn.metrics.log_loss(target, clipped, labels=range(CLASSES), **weights)


CASES = [
    Case(
        "log_loss",
        metrics.LogLoss,
        FORECASTS,
        log_loss_of,
        {"num_classes": CLASSES},
        reference=sklearn_of(sklearn_log_loss),
        ulps=6,  # the logarithm, which libraries round within 2 units; product, sum, quotient
    ),
    Case(
        "brier",
        metrics.BrierScore,
        CHANCES,
        brier_of,
        reference=sklearn_of(sklearn.metrics.brier_score_loss),
        ulps=6,  # the difference, twice in its square; product, sum, quotient
    ),
    Case(
        "hinge",
        metrics.HingeLoss,
        MULTICLASS,
        hinge_of,
        {"num_classes": CLASSES},
        reference=sklearn_of(partial(sklearn.metrics.hinge_loss, labels=range(CLASSES))),
        # The margin and its distance from 1 may each be off by half a unit of numbers below 16.
        ulps=4,
        atol=lambda w, **inputs: 16 * EPS,
    ),
    Case(
        "perplexity",
        metrics.Perplexity,
        MULTICLASS,
        perplexity_of,
        # The mean surprise, below 8 here, may be off by 6 units; so much relatively is the value.
        ulps=8 * 6,
    ),
]
