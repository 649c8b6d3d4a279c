"""Metrics of values with a step or a time: LastValue, ExponentialMovingAverage, Rate."""

from functools import partial

import numpy as np

from datarax import metrics
from tests.helpers import fsum, sum_bound
from tests.registry.aggregation import TINY, sum_error, sum_of
from tests.registry.case import Arrays, Case, Inputs


def stepped(
    rng: np.random.Generator, size: int, *, low: int = 0, high: int = 40, offset: float = 3.0
) -> Arrays:
    values = rng.normal(offset, 1, size).astype(np.float32)
    return {"values": values, "step": rng.integers(low, high, size).astype(np.int32)}


def far_apart(rng: np.random.Generator, size: int) -> Arrays:
    steps = np.array([-(2**31), -(2**31) + 1, -1, 0, 1, 2**31 - 2, 2**31 - 1], np.int32)
    return stepped(rng, size) | {"step": rng.choice(steps, size)}


STEPPED = Inputs(
    "stepped",
    draw=stepped,
    valid=lambda values, step: np.isfinite(values),
    spoil={"values": (np.nan, np.inf, -np.inf)},
    hard={
        "around zero": partial(stepped, offset=0.0),
        "offset of 1e6": partial(stepped, offset=1e6),
        "one step": partial(stepped, low=7, high=8),
        "before zero": partial(stepped, low=-40, high=0),
        "above 2**24": partial(stepped, low=2**30, high=2**30 + 9),
        "far apart": far_apart,
    },
)

DECAY = 0.9


def last(w: np.ndarray, values: np.ndarray, step: np.ndarray) -> float:
    used = w > 0
    return values[used & (step == step[used].max())].max() if used.any() else np.nan


def decayed(w: np.ndarray, step: np.ndarray) -> np.ndarray:
    age = step[w > 0].max(initial=-(2**31)) - step
    return w * DECAY ** np.maximum(age, 0)


def moving_average(w: np.ndarray, values: np.ndarray, step: np.ndarray) -> float:
    w = decayed(w, step)
    return fsum(w[w > 0] * values[w > 0]) / fsum(w) if (w > 0).any() else np.nan


def moving_average_error(w: np.ndarray, values: np.ndarray, step: np.ndarray) -> float:
    # Each factor and its two products are rounded, in the total and in the weight.
    w = decayed(w, step)
    size = fsum(w[w > 0] * np.abs(values[w > 0])) / max(fsum(w), TINY)
    return sum_bound(6, size) + TINY


def timed(rng: np.random.Generator, size: int, *, longest: float = 10.0) -> Arrays:
    elapsed = rng.uniform(longest / 10, longest, size)
    return {
        "values": rng.integers(0, 4096, size).astype(np.float32),
        "elapsed": elapsed.astype(np.float32),
    }


TIMED = Inputs(
    "timed",
    draw=timed,
    valid=lambda values, elapsed: np.isfinite(values) & np.isfinite(elapsed) & (elapsed >= 0),
    spoil={"values": (np.nan, np.inf), "elapsed": (np.nan, np.inf, -1.0)},
    hard={
        "microseconds": partial(timed, longest=1e-5),
        "a year": partial(timed, longest=3.2e7),
        "one time": lambda rng, size: timed(rng, size) | {"elapsed": np.full(size, 2.5, "float32")},
    },
)


def rate(w: np.ndarray, values: np.ndarray, elapsed: np.ndarray) -> float:
    used = w > 0
    return sum_of(w, values) / elapsed[used].max() if used.any() else np.nan


def rate_error(w: np.ndarray, values: np.ndarray, elapsed: np.ndarray) -> float:
    return sum_error(w, values) / elapsed[w > 0].max(initial=TINY)


CASES = [
    Case("last_value", metrics.LastValue, STEPPED, last, ulps=0, exact=True),
    Case(
        "moving_average",
        metrics.ExponentialMovingAverage,
        STEPPED,
        moving_average,
        {"decay": DECAY},
        ulps=2,
        atol=moving_average_error,
    ),
    Case("rate", metrics.Rate, TIMED, rate, atol=rate_error),
]
