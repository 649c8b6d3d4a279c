"""Cases of divergences, and of ranked probability scores of ordered classes and of numbers."""

from functools import partial
from typing import Any

import numpy as np
import scipy.spatial.distance
import scipy.special

from datarax import metrics
from tests.registry.case import Arrays, Case, Inputs
from tests.registry.predictions import CLASSES
from tests.registry.probabilistic import FORECASTS, rows, sums_to_one, weighted_mean


def distributions(rng: np.random.Generator, size: int, **how: Any) -> Arrays:
    return {"preds": rows(rng, size, **how), "target": rows(rng, size, **how)}


def near(rng: np.random.Generator, size: int) -> Arrays:
    p = rows(rng, size).astype(np.float64)
    q = p * (1 + 1e-2 * rng.normal(size=p.shape))
    return {"preds": p.astype(np.float32), "target": (q / q.sum(-1, keepdims=True)).astype("f")}


def one_hot(rng: np.random.Generator, size: int) -> Arrays:
    preds, target = (rng.integers(0, CLASSES, size) for _ in range(2))
    return {
        "preds": np.eye(CLASSES, dtype="f")[preds],
        "target": np.eye(CLASSES, dtype="f")[target],
    }


DISTRIBUTIONS = Inputs(
    "distributions",
    draw=distributions,
    valid=lambda preds, target: sums_to_one(preds) & sums_to_one(target),
    spoil={"preds": (np.nan, np.inf, -0.5, 1.5), "target": (np.nan, -np.inf, -0.5, 1.5)},
    hard={
        "near": near,
        "equal": partial(distributions, scale=0.0),
        # Of a greater scale, subnormal probabilities, which devices may flush to zero.
        "nearly certain": partial(distributions, scale=10.0),
        "certain": one_hot,  # KL divergences are 0 or infinite
    },
)


def entropy_terms(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """`sum p log(p / q)` of each row, by definition: a term is 0 if p is 0, infinite if q is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * np.log(p / q), 0.0)
    return terms.sum(-1)


def kl_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    used = w > 0
    return weighted_mean(w[used], entropy_terms(target[used], preds[used]))


def js_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    p, q, w = preds[w > 0], target[w > 0], w[w > 0]
    m = (p + q) / 2
    return weighted_mean(w, (entropy_terms(p, m) + entropy_terms(q, m)) / 2) / np.log(2)


def difference_error(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    # Differences of numbers within a factor of two are exact; others err by u.
    p, q, w = preds[w > 0], target[w > 0], w[w > 0]
    far = np.where((p > 2 * q) | (q > 2 * p), np.abs(p - q), 0).sum(-1)
    return 2.0**-24 * weighted_mean(w, far) if len(w) else 0.0


def scipy_kl(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    used = w > 0
    each = scipy.special.rel_entr(target[used], preds[used]).sum(-1)
    return weighted_mean(w[used], each)


def scipy_js(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float | None:
    p, q, w = preds[w > 0], target[w > 0], w[w > 0]
    if not np.allclose([p.sum(-1), q.sum(-1)], 1, rtol=0, atol=1e-6):
        return None  # it divides rows by their sums, which are not one in half precision
    distance = scipy.spatial.distance.jensenshannon(p, q, base=2, axis=-1)
    return weighted_mean(w, distance**2)


MEMBERS = 6


def ensembles(
    rng: np.random.Generator, size: int, *, offset: float = 0.0, spread: float = 1.0
) -> Arrays:
    preds = rng.normal(offset, spread, (size, MEMBERS)).astype(np.float32)
    return {"preds": preds, "target": rng.normal(offset, 1.0, size).astype(np.float32)}


ENSEMBLES = Inputs(
    "ensembles",
    draw=ensembles,
    valid=lambda preds, target: np.isfinite(preds).all(-1) & np.isfinite(target),
    spoil={"preds": (np.nan, np.inf, -np.inf), "target": (np.nan, np.inf, -np.inf)},
    hard={
        "offset of 1e6": partial(ensembles, offset=1e6),
        "offset of -1e4": partial(ensembles, offset=-1e4),
        "all members equal": partial(ensembles, spread=0.0),
        "wide": partial(ensembles, spread=1e4),
        "ties with the target": lambda rng, size: {
            "preds": rng.integers(0, 3, (size, MEMBERS)).astype(np.float32),
            "target": rng.integers(0, 3, size).astype(np.float32),
        },
    },
)


def crps_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    x, y, w = preds[w > 0], target[w > 0], w[w > 0]
    each = np.abs(x - y[:, None]).mean(-1)
    return weighted_mean(w, each - np.abs(x[:, :, None] - x[:, None]).mean((1, 2)) / 2)


def distance_error(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    # Distances to the target err by u of them, and so do the differences of neighbours.
    x, y, w = preds[w > 0], target[w > 0], w[w > 0]
    return 4 * 2.0**-24 * weighted_mean(w, np.abs(x - y[:, None]).sum(-1)) if len(w) else 0.0


def rps_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    p, y, w = preds[w > 0], target[w > 0], w[w > 0]
    score = np.zeros(len(w))
    for k in range(CLASSES - 1):
        # The error is P(class <= k) below the target, and P(class > k) from it on.
        score += np.where(y > k, p[:, : k + 1].sum(-1), p[:, k + 1 :].sum(-1)) ** 2
    return weighted_mean(w, score)


CASES = [
    Case(
        "kl_divergence",
        metrics.KLDivergence,
        DISTRIBUTIONS,
        kl_of,
        reference=scipy_kl,
        ulps=16,  # for each class the quotient, its logarithm, and their product
        atol=difference_error,
    ),
    Case(
        "js_divergence",
        metrics.JensenShannonDivergence,
        DISTRIBUTIONS,
        js_of,
        {"base": 2},
        reference=scipy_js,
        ulps=16,
        atol=difference_error,
    ),
    Case(
        "crps",
        metrics.ContinuousRankedProbabilityScore,
        ENSEMBLES,
        crps_of,
        ulps=MEMBERS + 4,  # the sum over members; the squared share, its product, the mean
        atol=distance_error,
    ),
    Case(
        "rps",
        metrics.RankedProbabilityScore,
        FORECASTS,
        rps_of,
        {"num_classes": CLASSES},
        ulps=2 * CLASSES + CLASSES + 4,  # the squared cumulative sums, their sum, the mean
    ),
]
