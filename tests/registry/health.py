"""Metrics of the state of a run whose arguments are rows: GradientNoiseScale."""

from functools import partial

import numpy as np

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Arrays, Case, Inputs

U = 2.0**-24


def norms(
    rng: np.random.Generator, size: int, *, scale: float = 1.0, trace: float = 30.0
) -> Arrays:
    small, big = rng.choice([4.0, 8.0], size), rng.choice([32.0, 64.0], size)
    square = rng.uniform(1, 2, size)
    return {
        "small_square_norm": (scale * (square + trace / small)).astype(np.float32),
        "big_square_norm": (scale * (square + trace / big)).astype(np.float32),
        "small_batch": small.astype(np.float32),
        "big_batch": big.astype(np.float32),
    }


def usable(
    small_square_norm: np.ndarray,
    big_square_norm: np.ndarray,
    small_batch: np.ndarray,
    big_batch: np.ndarray,
) -> np.ndarray:
    arrays = small_square_norm, big_square_norm, small_batch, big_batch
    with np.errstate(invalid="ignore"):
        in_order = (small_batch > 0) & (big_batch > small_batch)
        norms = (small_square_norm >= 0) & (big_square_norm >= 0)
    return in_order & norms & np.all([np.isfinite(x) for x in arrays], 0)


NORMS = Inputs(
    "norms",
    draw=norms,
    valid=usable,
    spoil={
        "small_square_norm": (np.nan, np.inf, -1.0),
        "big_square_norm": (np.nan, -1.0),
        "small_batch": (0.0, np.inf),
        "big_batch": (np.nan, 2.0),
    },
    hard={
        "large": partial(norms, scale=1e30),
        "tiny": partial(norms, scale=1e-30),
        "no noise": partial(norms, trace=0.0),
    },
)


def estimates(
    w: np.ndarray,
    small_square_norm: np.ndarray,
    big_square_norm: np.ndarray,
    small_batch: np.ndarray,
    big_batch: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The weights, and the estimates of each example, as McCandlish et al. write them."""
    used = w > 0
    small, big = small_square_norm[used], big_square_norm[used]
    b, n = small_batch[used], big_batch[used]
    return w[used], (small - big) / (1 / b - 1 / n), (n * big - b * small) / (n - b)


def noise_scale(w: np.ndarray, **inputs: np.ndarray) -> dict[str, float]:
    w, traces, squares = estimates(w, **inputs)
    if not w.size:
        return dict.fromkeys(("noise_scale", "square_norm", "trace"), np.nan)
    trace, square = (fsum(w * x) / fsum(w) for x in (traces, squares))
    return {"noise_scale": trace / square, "square_norm": square, "trace": trace}


def noise_scale_error(w: np.ndarray, **inputs: np.ndarray) -> float:
    # The estimates of an example are rounded once, and each of the three results once more.
    w, traces, squares = estimates(w, **inputs)
    if not w.size:
        return 0.0
    trace, square = (fsum(w * np.abs(x)) / fsum(w) for x in (traces, squares))
    mean = fsum(w * squares) / fsum(w)
    return 4 * U * max(trace, square, trace / mean * (1 + square / mean))


CASES = [
    Case("noise_scale", metrics.GradientNoiseScale, NORMS, noise_scale, atol=noise_scale_error),
]
