"""Metrics of what a sample says: PredictionPoweredMean, AnytimeInterval."""

from functools import partial

import numpy as np
from scipy.stats import norm

from datarax import metrics
from tests.helpers import fsum
from tests.registry.aggregation import mean_error, mean_of
from tests.registry.case import Arrays, Case, Inputs

Array = np.ndarray


def judged(
    rng: np.random.Generator,
    size: int,
    *,
    share: float = 0.5,
    noise: float = 0.5,
    slope: float = 0.8,
    offset: float = 1.0,
) -> Arrays:
    true = rng.normal(offset, 1, size)
    known = rng.random(size) < share
    return {
        "judged": (slope * true + rng.normal(0, noise, size)).astype(np.float32),
        "target": np.where(known, true, np.nan).astype(np.float32),
        "labelled": known,
    }


def right(rng: np.random.Generator, size: int) -> Arrays:
    drawn = judged(rng, size)
    return drawn | {"judged": np.where(drawn["labelled"], drawn["target"], drawn["judged"])}


JUDGED = Inputs(
    "judged",
    draw=judged,
    valid=lambda judged, target, labelled: (
        np.isfinite(judged) & (np.isfinite(target) | (labelled == 0))
    ),
    spoil={"judged": (np.nan, np.inf, -np.inf), "target": (np.nan, np.inf)},
    hard={
        "useless": partial(judged, slope=0.0),
        "contrary": partial(judged, slope=-1.0),
        "constant": lambda rng, size: judged(rng, size) | {"judged": np.full(size, 0.3, "f4")},
        "right": right,
        "offset of 1e3": partial(judged, offset=1e3),
        "few labelled": partial(judged, share=0.1),
        "all labelled": partial(judged, share=1.0),
        "none labelled": partial(judged, share=0.0),
    },
)


def prediction_powered(w: Array, judged: Array, target: Array, labelled: Array) -> dict[str, float]:
    used, known = w > 0, labelled > 0
    y, a = target[used & known], w[used & known]
    f, g, b = judged[used & known], judged[used & ~known], w[used & ~known]

    def mean(x: Array, w: Array) -> float:
        return fsum(w * x) / fsum(w) if w.size else np.nan

    def moment(x: Array, z: Array, w: Array) -> float:
        """The sum of w**2 (x - mean) (z - mean): n times the covariance, for weights of 1."""
        return fsum(w**2 * (x - mean(x, w)) * (z - mean(z, w)))

    every, weights = np.concatenate([f, g]), np.concatenate([a, b])
    power = 0.0
    if a.size and b.size and np.ptp(every):
        spread = moment(every, every, weights) / fsum(weights**2)
        # 1 / n and 1 / N, for weights of 1.
        shares = fsum(a**2) / fsum(a) ** 2 + fsum(b**2) / fsum(b) ** 2
        power = float(np.clip(moment(y, f, a) / fsum(a) ** 2 / (spread * shares), 0, 1))
    value, error = mean(y, a), np.nan
    if power:
        value += power * (mean(g, b) - mean(f, a))
    if a.size > 1:
        left = y - power * f
        variance = moment(left, left, a) / fsum(a) ** 2
        variance += power**2 * moment(g, g, b) / fsum(b) ** 2 if b.size else 0
        error = np.sqrt(variance)
    z = norm.ppf(0.95)
    found = {
        "value": value,
        "lower": value - z * error,
        "upper": value + z * error,
        "std_error": error,
        "judge_only": mean(every, weights),
        "labelled_only": mean(y, a),
        "lambda": power if a.size else np.nan,
    }
    return {name: np.float64(x) for name, x in found.items()}


def prediction_powered_error(w: Array, judged: Array, target: Array, labelled: Array) -> float:
    known = np.where((labelled > 0) & (w > 0), target, 0)
    every = judged[w > 0]
    scale = 1 + max(np.abs(known).max(initial=0), np.abs(every).max(initial=0))
    # The state has 48 bits. With weights, sums of squares about the mean are differences; the root
    # of one that should be zero is that of its rounding.
    spread = np.std(every) if every.size and np.ptp(every) else 1.0
    return 2.0**-22 * scale + 2.0**-42 * (scale / spread) ** 2


LOW, HIGH = -1.0, 3.0


def bounded(rng: np.random.Generator, size: int, *, low: float = LOW, high: float = HIGH) -> Arrays:
    return {"values": rng.uniform(low, high, size).astype(np.float32)}


BOUNDED = Inputs(
    "bounded values",
    draw=bounded,
    valid=lambda values: (values >= LOW) & (values <= HIGH),
    spoil={"values": (np.nan, np.inf, HIGH + 1e-6, LOW - 1.0)},
    hard={
        "ends": lambda rng, size: {"values": rng.choice(np.float32([LOW, HIGH]), size)},
        "near the low end": partial(bounded, high=LOW + 1e-3),
    },
)


def anytime(w: Array, values: Array) -> dict[str, float]:
    """Equation 14 of Howard et al. (2021), with the variance of Hoeffding's lemma."""
    total, value = fsum(w), mean_of(w, values)
    alpha, deviation = 0.1, (HIGH - LOW) / 2
    level = np.log(1 / alpha**2)
    rho = deviation**2 * 1000 / (level + np.log(1 + level))
    v = deviation**2 * fsum(w**2)
    half = np.sqrt((v + rho) * np.log((v + rho) / (alpha**2 * rho))) / total if total else np.nan
    found = {
        "value": value,
        "lower": np.maximum(value - half, LOW),
        "upper": np.minimum(value + half, HIGH),
    }
    return {name: np.float64(x) for name, x in found.items()}


CASES = [
    Case(
        "anytime_interval",
        metrics.AnytimeInterval,
        BOUNDED,
        anytime,
        {"low": LOW, "high": HIGH, "confidence": 0.9},
        # The half width is a root times a root, each within an ulp, and is at most the range.
        ulps=4,
        atol=lambda w, values: mean_error(w, values) + 4 * 2.0**-23 * (HIGH - LOW),
    ),
    Case(
        "prediction_powered_mean",
        metrics.PredictionPoweredMean,
        JUDGED,
        prediction_powered,
        {"confidence": 0.9},
        ulps=2,
        atol=prediction_powered_error,
        state_atol=lambda w, judged, target, labelled: (
            2.0**-40 * fsum(w) ** 2 * (1 + np.abs(judged[w > 0]).max(initial=0)) ** 2
        ),
    ),
]
