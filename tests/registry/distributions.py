"""Cases of distributions of values: Quantile, Median, Histogram, Cardinality."""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from datarax import metrics
from tests.helpers import quantile
from tests.registry.aggregation import REALS, TINY
from tests.registry.case import Arrays, Case, Inputs

QS = (0.0, 0.1, 0.5, 0.9, 1.0)
BITS = 12


def quantiles(w: np.ndarray, values: np.ndarray, method: str = "inverted_cdf") -> np.ndarray:
    return np.array([quantile(values, w, q, method) for q in QS])


def median(w: np.ndarray, values: np.ndarray) -> float:
    return quantile(values, w, 0.5, "averaged_inverted_cdf")


def numpy_quantiles(w: np.ndarray, values: np.ndarray) -> np.ndarray | None:
    used = w > 0  # NumPy raises for a total weight of zero
    if not used.any():
        return None
    return np.quantile(values[used], QS, weights=w[used], method="inverted_cdf")


def width(w: np.ndarray, values: np.ndarray, bits: int = BITS) -> float:
    # The bin of the largest value is the widest: 2**(9 - bits) of the value.
    return 2.0 ** (9 - bits) * np.abs(values[w > 0]).max(initial=0.0) + TINY


# No edge is at zero: negative subnormal numbers may be flushed to zero.
EDGES = (-2.5, -1.5, -0.5, 0.1, 3.0, 2.0**20)


def counts(w: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    def within(lowest: float, highest: float, *, closed: bool = False) -> float:
        inside = (values >= lowest) & ((values < highest) | (closed & (values == highest)))
        return w[(w > 0) & inside].sum()

    bins = [within(*pair, closed=pair[1] == EDGES[-1]) for pair in pairwise(EDGES)]
    below, above = within(-np.inf, EDGES[0]), w[(w > 0) & (values > EDGES[-1])].sum()
    return {"counts": np.array(bins), "below": below, "above": above}


def numpy_counts(w: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    used = w > 0
    found = np.histogram(values[used], EDGES, weights=w[used])[0]
    # NumPy excludes values outside the edges.
    return counts(w, values) | {"counts": found}


def marks(rng: np.random.Generator, size: int, *, choices: tuple[float, ...] = ()) -> Arrays:
    values = rng.choice(choices, size) if choices else rng.normal(0, 9, size)
    return {"values": values.astype(np.float32)}


MARKS = Inputs(
    "marks",
    draw=marks,
    valid=lambda values: np.isfinite(values),
    spoil={"values": (np.nan, np.inf, -np.inf)},
    hard={
        "whole": lambda rng, size: {"values": rng.integers(-9, 9, size).astype(np.float32)},
        "signed zeros": partial(marks, choices=(-0.0, 0.0, 1.0)),
        "one value": partial(marks, choices=(0.1,)),
        "large": partial(marks, choices=(1e30, -1e30, 2.0**31, 2.0**63, -(2.0**63))),
    },
)


def distinct(w: np.ndarray, values: np.ndarray) -> float:
    return float(np.unique(values[w > 0] + 0.0).size)


CASES = [
    Case(
        "quantile",
        metrics.Quantile,
        REALS,
        quantiles,
        {"q": QS, "bits": BITS},
        reference=numpy_quantiles,
        atol=width,
        exact=True,
    ),
    Case("median", metrics.Median, REALS, median, {"bits": BITS}, atol=width, exact=True),
    Case(
        "histogram",
        metrics.Histogram,
        REALS,
        counts,
        {"edges": EDGES},
        reference=numpy_counts,
        exact=True,
        empty=0.0,
    ),
    Case(
        "cardinality",
        metrics.Cardinality,
        MARKS,
        distinct,
        # Two values in one register count as one. With 64 values in 2**14 registers, more than
        # five such pairs occur once in 10**8 runs.
        atol=lambda w, values: 6.0,
        exact=True,
        empty=0.0,
    ),
]
