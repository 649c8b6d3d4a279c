"""Metrics of values: Mean, Ratio, Sum, Max, Min, MinMax, Variance, Std."""

from collections.abc import Callable
from functools import partial

import numpy as np

from datarax import metrics
from tests.helpers import fsum, sum_bound
from tests.registry.case import BATCH, Arrays, Case, Inputs


def reals(
    rng: np.random.Generator, size: int, *, shape: tuple[int, ...] = (), scale=1.0, offset=3.0
) -> Arrays:
    values = rng.normal(offset, scale, (size, *shape))
    return {"values": values.astype(np.float32)}


def constant(rng: np.random.Generator, size: int) -> Arrays:
    return {"values": np.full(size, rng.normal(), np.float32)}


def ties(rng: np.random.Generator, size: int) -> Arrays:
    return {"values": rng.choice(np.float32([-1.5, -0.0, 0.0, 2.25]), size)}


REALS = Inputs(
    "reals",
    draw=reals,
    valid=lambda values: np.isfinite(values),
    spoil={"values": (np.nan, np.inf, -np.inf)},
    hard={
        "around zero": partial(reals, offset=0.0),
        "offset of 1e6": partial(reals, offset=1e6),
        "offset of -1e4": partial(reals, offset=-1e4),
        "large": partial(reals, scale=1e15),
        "tiny": partial(reals, scale=1e-15, offset=0.0),
        "subnormal": partial(reals, scale=1e-40, offset=0.0),
        "constant": constant,
        "ties": ties,
    },
)
ROWS = Inputs(
    "rows",
    draw=partial(reals, shape=(3,)),
    valid=lambda values: np.isfinite(values),
    spoil={"values": (np.nan, np.inf, -np.inf)},
    hard={"around zero": partial(reals, shape=(3,), offset=0.0)},
)


def integers(rng: np.random.Generator, size: int, *, low: int = -99, high: int = 100) -> Arrays:
    return {"values": rng.integers(low, high, size).astype(np.int32)}


INTEGERS = Inputs(
    "integers",
    draw=integers,
    valid=lambda values: np.ones(values.shape, bool),
    spoil={},
    hard={
        # Exact in int32, and not in float32.
        "above 2**24": partial(integers, low=2**24, high=2**24 + 99),
        "near 2**31": partial(integers, low=2**31 - 9, high=2**31 - 1),
    },
)

TINY = float(np.finfo(np.float32).tiny)  # below it, a processor may flush to zero


def mean_of(w: np.ndarray, values: np.ndarray) -> float:
    used = w > 0
    total = fsum(w[used])
    return fsum(w[used] * values[used]) / total if total else np.nan


def sum_of(w: np.ndarray, values: np.ndarray) -> float:
    return fsum(w[w > 0] * values[w > 0])


def sum_error(w: np.ndarray, values: np.ndarray) -> float:
    # Products are rounded, and the products of a batch are added in any order: gamma(n + 1).
    terms = (BATCH + 1) * max(1, values.size // max(1, len(values)))
    return sum_bound(terms, fsum(np.abs(w[w > 0] * values[w > 0]))) + TINY


def mean_error(w: np.ndarray, values: np.ndarray) -> float:
    return sum_error(w, values) / max(fsum(w), TINY)


def under_weights(error: Callable[..., float], w: np.ndarray, values: np.ndarray) -> float:
    # Integers add up exactly unless they are multiplied by weights, which are floats.
    return 0.0 if np.isin(w, (0, 1)).all() else error(w, values)


def pairs(
    rng: np.random.Generator, size: int, *, scale: float = 1.0, signs: bool = False
) -> Arrays:
    below = rng.uniform(0.5, 2, size) * (rng.choice([-1, 1], size) if signs else 1)
    numerator = rng.normal(3 * below, 1)
    return {
        "numerator": (scale * numerator).astype(np.float32),
        "denominator": (scale * below).astype(np.float32),
    }


def tokens(rng: np.random.Generator, size: int) -> Arrays:
    count = rng.integers(0, 4096, size)
    loss = rng.uniform(0, 12, size) * count
    return {"numerator": loss.astype(np.float32), "denominator": count.astype(np.float32)}


def halves(rng: np.random.Generator, size: int) -> Arrays:
    return {name: x.astype(np.float16) for name, x in pairs(rng, size).items()}


PAIRS = Inputs(
    "pairs",
    draw=pairs,
    valid=lambda numerator, denominator: np.isfinite(numerator) & np.isfinite(denominator),
    spoil={"numerator": (np.nan, np.inf, -np.inf), "denominator": (np.nan, np.inf, -np.inf)},
    hard={
        "any sign": partial(pairs, signs=True),
        "large": partial(pairs, scale=1e30),
        "tiny": partial(pairs, scale=1e-30),
        "tokens": tokens,
        "denominators of zero": lambda rng, size: (
            pairs(rng, size) | {"denominator": np.zeros(size, np.float32)}
        ),
        "float16": halves,
    },
)


def ratio_of(w: np.ndarray, numerator: np.ndarray, denominator: np.ndarray) -> float:
    below = sum_of(w, denominator)
    return sum_of(w, numerator) / below if below else np.nan


def ratio_error(w: np.ndarray, numerator: np.ndarray, denominator: np.ndarray) -> float:
    below = abs(sum_of(w, denominator))
    if not below:
        return 0.0
    off, ratio = sum_error(w, denominator), abs(ratio_of(w, numerator, denominator))
    # Of (a + e) / (b + d): the denominators may cancel.
    return (sum_error(w, numerator) + ratio * off) / max(below - off, TINY)


def variance_of(w: np.ndarray, values: np.ndarray, ddof: float = 0) -> float:
    x, w = values[w > 0], w[w > 0]
    n = fsum(w)
    if n <= ddof or not n:
        return np.nan
    # In float64 the error of the mean of so few float32 values is negligible, once squared.
    distance = x - fsum(w * x) / n
    return fsum(w * distance**2) / (n - ddof)


def variance_error(w: np.ndarray, values: np.ndarray, ddof: float = 0) -> float:
    # The mean of a batch is found in two steps, so distances from it are off by gamma(n)**2 of the
    # values. The square of a distance is off by twice that times the distance.
    if not (w > 0).any():
        return 0.0
    off = sum_bound(BATCH + 1, 1.0) ** 2 * np.abs(values[w > 0]).max()
    ratio = fsum(w) / max(fsum(w) - ddof, TINY)
    return ratio * (2 * off * np.sqrt(variance_of(w, values)) + off**2) + TINY


def std_error(w: np.ndarray, values: np.ndarray) -> float:
    # |sqrt(v + e) - sqrt(v)| <= sqrt(e), and e / (2 sqrt(v)) where e is small beside v.
    error, v = variance_error(w, values), variance_of(w, values)
    return float(np.sqrt(error) if not v > error else error / np.sqrt(v))


# In units of 2**-24: the sum of n squares in any order is off by n, the squares and weights by 3,
# the means of batches by n of the distances, which counts twice in the merge, and formulas by 13.
MOMENTS = 3 * BATCH + 16

CASES = [
    Case("mean", metrics.Mean, REALS, mean_of, atol=mean_error),
    Case("mean_rows", metrics.Mean, ROWS, mean_of, atol=mean_error),
    Case(
        "mean_integers",
        metrics.Mean,
        INTEGERS,
        mean_of,
        atol=partial(under_weights, mean_error),
        exact=True,
    ),
    Case("ratio", metrics.Ratio, PAIRS, ratio_of, atol=ratio_error),
    Case("sum", metrics.Sum, REALS, sum_of, atol=sum_error, empty=0.0),
    Case(
        "sum_integers",
        metrics.Sum,
        INTEGERS,
        sum_of,
        atol=partial(under_weights, sum_error),
        exact=True,
        empty=0.0,
    ),
    Case(
        "max",
        metrics.Max,
        REALS,
        lambda w, values: values[w > 0].max(initial=-np.inf) if (w > 0).any() else np.nan,
        ulps=0,
        atol=lambda w, values: TINY,
        exact=True,
    ),
    Case(
        "min",
        metrics.Min,
        REALS,
        lambda w, values: values[w > 0].min(initial=np.inf) if (w > 0).any() else np.nan,
        ulps=0,
        atol=lambda w, values: TINY,
        exact=True,
    ),
    Case(
        "min_max",
        metrics.MinMax,
        REALS,
        lambda w, values: {
            "min": values[w > 0].min() if (w > 0).any() else np.nan,
            "max": values[w > 0].max() if (w > 0).any() else np.nan,
        },
        ulps=0,
        atol=lambda w, values: TINY,
        exact=True,
    ),
    Case("variance", metrics.Variance, REALS, variance_of, ulps=MOMENTS, atol=variance_error),
    Case(
        "variance_unbiased",
        metrics.Variance,
        REALS,
        partial(variance_of, ddof=1),
        {"ddof": 1},
        ulps=MOMENTS,
        atol=partial(variance_error, ddof=1),
    ),
    Case(
        "std",
        metrics.Std,
        REALS,
        lambda w, values: np.sqrt(variance_of(w, values)),
        ulps=MOMENTS / 2 + 1,  # the root halves a relative error
        atol=std_error,
    ),
]
