"""Metrics of powers of values: RootMeanSquare, Norm, GeometricMean, HarmonicMean."""

from collections.abc import Callable
from functools import partial

import numpy as np
from scipy import stats

from datarax import metrics
from tests.helpers import fsum
from tests.registry.aggregation import REALS, TINY
from tests.registry.case import Arrays, Case, Inputs


def positive(rng: np.random.Generator, size: int, *, scale=1.0, spread=1.0) -> Arrays:
    return {"values": (scale * rng.lognormal(0, spread, size)).astype(np.float32)}


def with_zeros(rng: np.random.Generator, size: int) -> Arrays:
    return {"values": rng.choice(np.float32([0.0, -0.0, 0.5, 3.0]), size)}


POSITIVE = Inputs(
    "positive values",
    draw=positive,
    valid=lambda values: np.isfinite(values) & (values >= 0),
    spoil={"values": (np.nan, np.inf, -np.inf, -1.0)},
    hard={
        "large": partial(positive, scale=1e35),
        "tiny": partial(positive, scale=1e-35),
        "of all sizes": partial(positive, spread=15.0),
        "near one": partial(positive, spread=1e-4),
        "offset of 1e6": lambda rng, size: {"values": rng.normal(1e6, 1, size).astype(np.float32)},
        "with zeros": with_zeros,
    },
)


def root_mean_square(w: np.ndarray, values: np.ndarray) -> float:
    used = w > 0
    total = fsum(w[used])
    return np.sqrt(fsum(w[used] * values[used] ** 2) / total) if total else np.nan


def norm(w: np.ndarray, values: np.ndarray) -> float:
    used = w > 0
    return np.sqrt(fsum(w[used] * values[used] ** 2)) if used.any() else np.nan


def greatest(w: np.ndarray, values: np.ndarray) -> float:
    return np.abs(values[w > 0]).max() if (w > 0).any() else np.nan


def geometric(w: np.ndarray, values: np.ndarray) -> float:
    w, x = w[w > 0], values[w > 0]
    if not w.size or not x.all():
        return 0.0 if w.size else np.nan
    return np.exp(fsum(w * np.log(x)) / fsum(w))


def harmonic(w: np.ndarray, values: np.ndarray) -> float:
    w, x = w[w > 0], values[w > 0]
    if not w.size or not x.all():
        return 0.0 if w.size else np.nan
    return fsum(w) / fsum(w / x)


def scipys(function: Callable[..., float]) -> Callable[..., float | None]:
    def mean(w: np.ndarray, values: np.ndarray) -> float | None:
        used = w > 0  # SciPy divides by a total weight of zero
        # Without negative zeros: the sum of 1 / -0.0 and 1 / 0.0 would be NaN.
        return float(function(values[used] + 0.0, weights=w[used])) if used.any() else None

    return mean


CASES = [
    # A square and its product with a weight are rounded, which the root halves; so are the quotient
    # and the root: 3 units of 2**-24, each at most half a unit in the last place.
    Case(
        "root_mean_square",
        metrics.RootMeanSquare,
        REALS,
        root_mean_square,
        reference=scipys(lambda x, weights: stats.pmean(np.abs(x), 2, weights=weights)),
        ulps=2,
        atol=lambda w, values: TINY,
    ),
    Case("norm", metrics.Norm, REALS, norm, ulps=2, atol=lambda w, values: TINY * np.sqrt(w.sum())),
    Case(
        "norm_inf",
        metrics.Norm,
        REALS,
        greatest,
        {"ord": float("inf")},
        ulps=0,
        atol=lambda w, values: TINY,
        exact=True,
    ),
    # The mean of the logarithms of significands, from -1/2 to 1/2, the fraction of the mean
    # exponent and their sum are off by about 4 units of 2**-25; the power of two by 2 of 2**-24.
    Case(
        "geometric_mean",
        metrics.GeometricMean,
        POSITIVE,
        geometric,
        reference=scipys(stats.gmean),
        ulps=4,
    ),
    # Rounded are a reciprocal, its product with a weight, the quotient, and its reciprocal.
    Case(
        "harmonic_mean",
        metrics.HarmonicMean,
        POSITIVE,
        harmonic,
        reference=scipys(stats.hmean),
        ulps=3,
    ),
]
