"""Risks and times of which some are censored."""

from functools import partial
from typing import Any

import lifelines.utils
import numpy as np

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Arrays, Case, Inputs
from tests.registry.regression import NOT_NUMBERS


def censored(
    rng: np.random.Generator,
    size: int,
    *,
    risks: Any = None,
    times: Any = None,
    share: float = 0.6,
    offset: float = 0.0,
) -> Arrays:
    time, noise = rng.lognormal(0, 1, size), rng.normal(0, 0.7, size)
    time = time if times is None else np.asarray(times)[rng.integers(0, len(times), size)]
    risk = noise - np.log(time) if risks is None else rng.choice(np.asarray(risks), size)
    return {
        "risk": (offset + risk).astype(np.float32),
        "time": time.astype(np.float32),
        "event": (rng.random(size) < share).astype(np.int32),
    }


def usable(risk: np.ndarray, time: np.ndarray, event: np.ndarray) -> np.ndarray:
    return np.isfinite(risk) & np.isfinite(time) & ((event == 0) | (event == 1))


CENSORED = Inputs(
    "censored",
    draw=censored,
    valid=usable,
    spoil={"risk": NOT_NUMBERS, "time": NOT_NUMBERS, "event": (-1, 2)},
    hard={
        "equal times": partial(censored, times=(1.0, 2.0, 3.0)),
        "equal risks": partial(censored, risks=(-0.5, 0.0, 0.5)),
        "all equal": partial(censored, risks=(1.0,), times=(2.0,)),
        "no events": partial(censored, share=0.0),
        "no censoring": partial(censored, share=1.0),
        "offset of 1e6": partial(censored, offset=1e6),
        "extreme": partial(censored, risks=(-3e38, 0.0, 3e38), times=(1e-30, 1.0, 3e38)),
    },
)


def concordance(w: np.ndarray, risk: np.ndarray, time: np.ndarray, event: np.ndarray) -> float:
    """By the definition, pair by pair."""
    w, risk, time, event = (x[w > 0] for x in (w, risk, time, event))
    earlier = (time[:, None] < time) | ((time[:, None] == time) & (event == 0))
    compared = (event[:, None] == 1) & earlier
    right = (risk[:, None] > risk) + 0.5 * (risk[:, None] == risk)
    pair = w[:, None] * w
    total = fsum(pair[compared])
    return fsum((pair * right)[compared]) / total if total else np.nan


def lifelines_of(
    w: np.ndarray, risk: np.ndarray, time: np.ndarray, event: np.ndarray
) -> float | None:
    """That of Lifelines, for whole weights: copies."""
    if (w % 1).any() or np.isnan(concordance(w, risk, time, event)):
        return None
    risk, time, event = (x.repeat(w.astype(int)) for x in (risk, time, event))
    return lifelines.utils.concordance_index(time, -risk, event)


CASES = [
    Case(
        "concordance_index",
        metrics.ConcordanceIndex,
        CENSORED,
        concordance,
        {"capacity": 512},
        reference=lifelines_of,
        ulps=6,  # sums of rows that are exact, or rounded a few times; a quotient
    ),
]
