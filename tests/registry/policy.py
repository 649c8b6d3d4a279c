"""Metrics of policies that are trained on rewards: ApproxKL, ClipFraction, GroupSpread."""

from functools import partial
from typing import Any

import numpy as np
from scipy.special import kl_div

from datarax import metrics
from tests.helpers import fsum, sum_bound
from tests.registry.aggregation import MOMENTS, TINY, mean_error, mean_of, variance_error
from tests.registry.aggregation import variance_of as variance
from tests.registry.case import Arrays, Case, Inputs

U = 2.0**-24


def log_probs(
    rng: np.random.Generator, size: int, *, apart: float = 0.3, offset: float = -2.0
) -> Arrays:
    own = rng.normal(offset, 1, (size, 3))
    return {
        "log_probs": own.astype(np.float32),
        "reference_log_probs": (own + rng.normal(0, apart, own.shape)).astype(np.float32),
    }


def equal(rng: np.random.Generator, size: int) -> Arrays:
    own = log_probs(rng, size)["log_probs"]
    return {"log_probs": own, "reference_log_probs": own}


BOTH = "log_probs", "reference_log_probs"
LOG_PROBS = Inputs(
    "log probs",
    draw=log_probs,
    valid=lambda log_probs, reference_log_probs: (
        np.isfinite(log_probs) & np.isfinite(reference_log_probs)
    ),
    spoil=dict.fromkeys(BOTH, (np.nan, np.inf, -np.inf)),
    hard={
        "near": partial(log_probs, apart=1e-4),
        "far": partial(log_probs, apart=8.0),
        "unlikely": partial(log_probs, offset=-1e4),
        "equal": equal,
        "bfloat16 steps": lambda rng, size: {
            name: np.round(x * 16) / np.float32(16) for name, x in log_probs(rng, size).items()
        },
    },
)


def log_ratio(w: np.ndarray, log_probs: np.ndarray, reference_log_probs: np.ndarray) -> np.ndarray:
    """That of the reference to the policy, of tokens that count."""
    return np.where(w > 0, reference_log_probs, 0) - np.where(w > 0, log_probs, 0)


def scores(estimator: str, w: np.ndarray, **inputs: np.ndarray) -> np.ndarray:
    """The estimates of Schulman."""
    d = log_ratio(w, **inputs)
    # SciPy's divergence of two numbers is p log(p / q) - p + q.
    return {"k1": -d, "k2": d**2 / 2, "k3": kl_div(1, np.exp(d))}[estimator]


def kl(estimator: str, w: np.ndarray, **inputs: np.ndarray) -> float:
    return mean_of(w, scores(estimator, w, **inputs))


def by_definition(estimator: str, w: np.ndarray, **inputs: np.ndarray) -> float:
    """In the words of the source, in float64, where the terms of k3 cancel."""
    d = log_ratio(w, **inputs)
    found = {"k1": -d, "k2": d**2 / 2, "k3": np.exp(d) - 1 - d}[estimator]
    return mean_of(w, found)


def kl_error(estimator: str, w: np.ndarray, **inputs: np.ndarray) -> float:
    if not (w > 0).any():
        return 0.0
    score, d = scores(estimator, w, **inputs), log_ratio(w, **inputs)
    # The difference is rounded once, and the slope of an estimate is its derivative. An estimate
    # has 8 ulp of its own. In float64, the terms of the oracles cancel near equal policies.
    slope = {"k1": 1.0, "k2": np.abs(d), "k3": np.abs(np.expm1(d))}[estimator]
    off = U * np.abs(d) * slope + 8 * 2 * U * np.abs(score) + 2.0**-50
    return mean_error(w, score) + mean_of(w, off)


def ratios(
    rng: np.random.Generator, size: int, *, sign: Any = (-1, 0, 1), apart: float = 0.4
) -> Arrays:
    return {
        "ratio": np.exp(rng.normal(0, apart, (size, 3))).astype(np.float32),
        "advantage": (rng.choice(sign, (size, 3)) * rng.uniform(0.1, 2, (size, 3))).astype("f4"),
    }


def on_bounds(rng: np.random.Generator, size: int) -> Arrays:
    bounds = np.float32([1 - LOW, 1 + HIGH])
    near = [np.nextafter(bounds, np.float32(end)) for end in (0, 2)]
    ratio = rng.choice(np.concatenate([bounds, *near]), (size, 3))
    return ratios(rng, size) | {"ratio": ratio}


LOW, HIGH = 0.1875, 0.28125  # so that no dtype rounds the bounds
RATIOS = Inputs(
    "ratios",
    draw=ratios,
    valid=lambda ratio, advantage: np.isfinite(ratio) & (ratio >= 0) & np.isfinite(advantage),
    spoil={"ratio": (np.nan, np.inf, -1.0), "advantage": (np.nan, np.inf, -np.inf)},
    hard={
        "on the bounds": on_bounds,
        "no advantage": partial(ratios, sign=(0,)),
        "far": partial(ratios, apart=20.0),
    },
)


def clipped(w: np.ndarray, ratio: np.ndarray, advantage: np.ndarray) -> float:
    lowest, highest = (float(np.float32(x)) for x in (1 - LOW, 1 + HIGH))
    # The clipped surrogate of PPO is less than the plain one exactly where the clip decides.
    ratio, advantage = (np.where(w > 0, x, 0) for x in (ratio, advantage))
    plain, clip = ratio * advantage, np.clip(ratio, lowest, highest) * advantage
    return mean_of(w, np.float64(np.minimum(plain, clip) != plain))


GROUPS = 4


def grouped(rng: np.random.Generator, size: int, *, offset: float = 0.0, levels: int = 0) -> Arrays:
    values = rng.integers(0, levels, size) if levels else rng.normal(offset, 1, size)
    return {
        "values": values.astype(np.float32),
        "group": rng.integers(0, GROUPS, size).astype(np.int32),
    }


def flat(rng: np.random.Generator, size: int) -> Arrays:
    drawn = grouped(rng, size)
    return drawn | {"values": rng.normal(size=GROUPS).astype(np.float32)[drawn["group"]]}


GROUPED = Inputs(
    "grouped values",
    draw=grouped,
    valid=lambda values, group: np.isfinite(values) & (group >= 0) & (group < GROUPS),
    spoil={"values": (np.nan, np.inf, -np.inf), "group": (-1, GROUPS, 2**31 - 1)},
    hard={
        "offset of 1e4": partial(grouped, offset=1e4),
        "rewards of 0 and 1": partial(grouped, levels=2),
        "equal within groups": flat,
        "one group": lambda rng, size: grouped(rng, size) | {"group": np.full(size, 2, np.int32)},
    },
)


def spread(w: np.ndarray, values: np.ndarray, group: np.ndarray) -> dict[str, float]:
    stds, equal = [], []
    for g in range(GROUPS):
        mine = np.where(group == g, w, 0)
        if fsum(mine) > 1:
            stds.append(np.sqrt(variance(mine, values, 1)))
            equal.append(np.ptp(values[mine > 0]) == 0)
    return {
        "mean": mean_of(w, values),
        "std": float(np.mean(stds)) if stds else np.nan,
        "zero_share": float(np.mean(equal)) if stds else np.nan,
    }


def spread_error(w: np.ndarray, values: np.ndarray, group: np.ndarray) -> float:
    off = mean_error(w, values)
    for g in range(GROUPS):
        mine = np.where(group == g, w, 0)
        if fsum(mine) > 1:
            off += np.sqrt(variance_error(mine, values, 1)) * np.sqrt(GROUPS)
    return 2 * off + TINY


CASES = [
    *(
        Case(
            f"approx_kl_{estimator}",
            metrics.ApproxKL,
            LOG_PROBS,
            partial(kl, estimator),
            {"estimator": estimator},
            reference=partial(by_definition, estimator),
            ulps=2,
            atol=partial(kl_error, estimator),
        )
        for estimator in ("k1", "k2", "k3")
    ),
    Case("clip_fraction", metrics.ClipFraction, RATIOS, clipped, {"low": LOW, "high": HIGH}),
    Case(
        "group_spread",
        metrics.GroupSpread,
        GROUPED,
        spread,
        {"num_groups": GROUPS},
        ulps=MOMENTS,
        atol=spread_error,
        state_atol=lambda w, values, group: sum_bound(
            40, fsum(w) * (1 + np.abs(values[w > 0]).max(initial=0)) ** 2
        ),
    ),
]
