"""Orders of predictions and targets, with ties."""

from functools import partial
from typing import Any

import numpy as np
import scipy.stats

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Arrays, Case, Inputs
from tests.registry.reference import scipy_of
from tests.registry.regression import (
    NOT_NUMBERS,
    SUMS,
    constant_preds,
    finite,
    pairs,
    pearson_of,
    ratio,
    test_of,
    tested_by_t,
    unrelated,
    used,
)


def ties(rng: np.random.Generator, size: int, *, values: Any = (-1.5, -0.0, 0.0, 7.0)) -> Arrays:
    drawn = rng.choice(np.float32(values), (2, size))
    return {"preds": drawn[0], "target": drawn[1]}


def reversed_(rng: np.random.Generator, size: int) -> Arrays:
    target = pairs(rng, size)["target"]
    return {"preds": -target, "target": target}


ORDERS = Inputs(
    "orders",
    draw=pairs,
    valid=finite,
    spoil={"preds": NOT_NUMBERS, "target": NOT_NUMBERS},
    hard={
        "ties": ties,
        "two values": partial(ties, values=(0.0, 1e30)),
        "extreme": partial(ties, values=(-3e38, -1.0, 1e-30, 3e38)),
        "constant": constant_preds,
        "unrelated": unrelated,
        "reversed": reversed_,
        "offset of 1e6": partial(pairs, offset=1e6),
    },
)


# Each has a bin of its own, of eight for each power of two.
VALUES = (-6.0, -2.5, -0.25, -0.0, 0.0, 1.0, 1.25, 1.5, 3.0, 64.0)
FEW_VALUES = Inputs(
    "few_values",
    draw=partial(ties, values=VALUES),
    valid=finite,
    spoil={"preds": NOT_NUMBERS, "target": NOT_NUMBERS},
    hard={
        "two values": partial(ties, values=(0.0, 1e30)),
        "constant": partial(ties, values=(7.0,)),
        "reversed": lambda rng, size: {
            "preds": -(target := ties(rng, size, values=VALUES)["target"]),
            "target": target,
        },
    },
)


def mean_ranks(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The mean rank of each value: the weight below it, and half of its own."""
    return np.array([fsum(w[x < v]) + 0.5 * fsum(w[x == v]) for v in x])


def spearman_of(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    return pearson_of(w, mean_ranks(w, p), mean_ranks(w, t))


def kendall_of(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    a, b = (np.sign(x[:, None] - x[None, :]) for x in (p, t))
    pair = w[:, None] * w[None, :]
    return ratio(fsum(pair * a * b), np.sqrt(fsum(pair * a**2)) * np.sqrt(fsum(pair * b**2)))


def kendall_test_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> dict[str, Any]:
    """As SciPy computes it, of groups of ties with real weights."""
    value, n = np.float64(used(kendall_of)(w, preds, target)), fsum(w)
    if np.isnan(value) or n <= 2 or n < 3:
        return {"correlation": value, "p_value": np.float64(np.nan if n != 2 else value * 0 + 1)}
    p, t, w = preds[w > 0], target[w > 0], w[w > 0]
    counts = [np.array([fsum(w[x == v]) for v in np.unique(x)]) for x in (p, t)]
    discordant = n * (n - 1) * (1 - abs(value)) / 4
    if all((c == 1).all() for c in counts) and (n <= 33 or discordant < 1.5):
        exact = scipy.stats.kendalltau(p, t, method="exact")
        return {"correlation": value, "p_value": np.float64(exact[1])}
    m = n * (n - 1)
    (x, x0, x1), (y, y0, y1) = (
        (fsum(c * (c - 1)) / 2, fsum(c * (c - 1) * (c - 2)), fsum(c * (c - 1) * (2 * c + 5)))
        for c in counts
    )
    variance = (m * (2 * n + 5) - x1 - y1) / 18 + 2 * x * y / m + x0 * y0 / (9 * m * (n - 2))
    difference = value * np.sqrt((m / 2 - x) * (m / 2 - y))
    found = 2 * scipy.stats.norm.sf(abs(difference) / np.sqrt(variance))
    return {"correlation": value, "p_value": np.float64(found)}


def error_of_p_value(w: np.ndarray, **_: Any) -> float:
    # The slope is sqrt(n) / (1 - r**2)**1.5 at most, times the error of the correlation.
    return 2.0**-14


CASES = [
    Case(
        "spearman",
        metrics.SpearmanCorrCoef,
        ORDERS,
        used(spearman_of),
        {"capacity": 512, "bits": 6},
        reference=scipy_of(scipy.stats.spearmanr),
        # As for Pearson's, of ranks that are exact.
        atol=lambda w, **_: (4 * SUMS + 8) * 2.0**-24,
    ),
    Case(
        "spearman_binned",
        metrics.SpearmanCorrCoef,
        FEW_VALUES,
        used(spearman_of),
        {"bits": 8, "capacity": 1},
        reference=scipy_of(scipy.stats.spearmanr),
        atol=lambda w, **_: 2.0**-20,  # each bin holds one value; two products and a quotient
        exact=True,
    ),
    Case(
        "kendall",
        metrics.KendallTau,
        ORDERS,
        used(kendall_of),
        {"capacity": 512, "exact": True},
        reference=scipy_of(scipy.stats.kendalltau),
        ulps=6,  # sums of pairs are exact; two quotients and a root
    ),
    Case(
        "kendall_binned",
        metrics.KendallTau,
        FEW_VALUES,
        used(kendall_of),
        {"bits": 8, "capacity": 1},
        reference=scipy_of(scipy.stats.kendalltau),
        atol=lambda w, **_: 2.0**-20,
        exact=True,
    ),
    Case(
        "spearman_test",
        metrics.SpearmanTest,
        ORDERS,
        tested_by_t(spearman_of),
        {"capacity": 512, "bits": 6},
        reference=test_of(scipy.stats.spearmanr),
        atol=error_of_p_value,
        perfect="any",
    ),
    Case(
        "spearman_test_binned",
        metrics.SpearmanTest,
        FEW_VALUES,
        tested_by_t(spearman_of),
        {"bits": 8, "capacity": 1},
        reference=test_of(scipy.stats.spearmanr),
        atol=error_of_p_value,
        exact=True,
        perfect="any",
    ),
    Case(
        "kendall_test",
        metrics.KendallTest,
        ORDERS,
        kendall_test_of,
        {"capacity": 512, "exact": True},
        reference=test_of(scipy.stats.kendalltau),
        atol=error_of_p_value,
        perfect="any",
    ),
    Case(
        "kendall_test_binned",
        metrics.KendallTest,
        FEW_VALUES,
        kendall_test_of,
        {"bits": 8, "capacity": 1},
        reference=test_of(scipy.stats.kendalltau),
        atol=error_of_p_value,
        exact=True,
        perfect="any",
    ),
]
