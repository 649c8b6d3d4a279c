"""Clusterings: predicted labels compared with known classes, by their contingency table."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.optimize
import scipy.special
import sklearn.metrics

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Arrays, Case, Inputs
from tests.registry.reference import sklearn_of, whole

ROWS, COLUMNS = 5, 4


def clusters(
    rng: np.random.Generator,
    size: int,
    *,
    labels: Any = range(ROWS),
    names: Any = range(COLUMNS),
    right: float = 0.7,
) -> Arrays:
    target = rng.choice(np.asarray(labels, np.int32), size)
    other = rng.choice(np.asarray(names, np.int32), size)
    own = np.asarray(names, np.int32)[target % len(names)]
    return {"preds": np.where(rng.random(size) < right, own, other), "target": target}


def product(rng: np.random.Generator, size: int) -> Arrays:
    """Independent labels, exactly so where the size is a multiple of four."""
    i = np.arange(size, dtype=np.int32)
    return {"preds": i % 2, "target": i // 2 % 2}


CLUSTERS = Inputs(
    "clusters",
    draw=clusters,
    valid=lambda preds, target: (preds >= 0) & (preds < COLUMNS) & (target >= 0) & (target < ROWS),
    spoil={"preds": (-1, COLUMNS, 2**30), "target": (-1, ROWS, -100, 2**31 - 1)},
    hard={
        "one class": partial(clusters, labels=(2,), right=0.3),
        "one cluster": partial(clusters, names=(1,)),
        "one of both": partial(clusters, labels=(4,), names=(0,)),
        "a perfect match": partial(clusters, labels=(0, 1, 3), right=1.0),
        "independent": product,
        "next to independent": partial(clusters, right=0.0),
    },
)


def table_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The weight of examples by target and prediction, without labels that do not occur."""
    table = np.array(
        [[fsum(w[(target == i) & (preds == j)]) for j in range(COLUMNS)] for i in range(ROWS)]
    )
    return table[table.sum(1) > 0][:, table.sum(0) > 0]


def from_table(formula: Callable[..., float]) -> Callable[..., float]:
    """An oracle: the value of `formula` for the table; NaN where there is no data."""

    def oracle(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
        table = table_of(w, preds, target)
        return formula(table) if table.size else np.nan

    return oracle


def pairs_of(table: np.ndarray) -> tuple[float, float, float, float]:
    """Ordered pairs of examples: together in both, in the class, in the cluster, in neither."""
    n, same = table.sum(), fsum(table**2)
    by_class, by_cluster = fsum(table.sum(1) ** 2), fsum(table.sum(0) ** 2)
    return same - n, by_class - same, by_cluster - same, n**2 - by_class - by_cluster + same


def pair_confusion_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> np.ndarray:
    both, row, column, neither = pairs_of(table_of(w, preds, target))
    return np.array([[neither, column], [row, both]])


def rand_of(table: np.ndarray) -> float:
    both, row, column, neither = pairs_of(table)
    return (both + neither) / (both + row + column + neither) if table.sum() > 1 else 1.0


def adjusted_rand_of(table: np.ndarray) -> float:
    both, row, column, neither = pairs_of(table)
    if table.sum() <= 1 or (row == 0 and column == 0):
        return 1.0
    below = (both + row) * (row + neither) + (both + column) * (column + neither)
    return 2 * (both * neither - row * column) / below


def fowlkes_mallows_of(table: np.ndarray) -> float:
    both, row, column, _ = pairs_of(table)
    return both / np.sqrt((both + row) * (both + column)) if both > 0 else 0.0


def information_of(table: np.ndarray) -> float:
    """By the definition; with counts as small as these, little cancels in float64."""
    n, independent = table.sum(), table.sum(1, keepdims=True) * table.sum(0)
    some = table > 0
    return fsum(table[some] / n * np.log(table[some] * n / independent[some]))


def entropy_of(sums: np.ndarray) -> float:
    p = sums / sums.sum()
    return -fsum(p * np.log(p))


def entropies_of(table: np.ndarray) -> tuple[float, float]:
    return entropy_of(table.sum(1)), entropy_of(table.sum(0))


MEANS = {
    "arithmetic": lambda a, b: (a + b) / 2,
    "geometric": lambda a, b: np.sqrt(a * b),
    "min": min,
    "max": max,
}


def normalized_of(table: np.ndarray, method: str = "arithmetic") -> float:
    if table.shape == (1, 1):
        return 1.0
    mean = MEANS[method](*entropies_of(table))
    return information_of(table) / mean if mean > 0 else 0.0


def share_of(table: np.ndarray, axis: int) -> float:
    entropy = entropy_of(table.sum(axis))
    return information_of(table) / entropy if table.shape[1 - axis] > 1 else 1.0


def v_measure_of(table: np.ndarray, beta: float = 1.0) -> float:
    h, c = share_of(table, 1), share_of(table, 0)
    below = beta * h + c
    # Both shares are rounding errors: they should be 0.
    return (1 + beta) * h * c / below if below > 1e-14 else 0.0


def expected_of(table: np.ndarray) -> float:
    """A sum over all values of each cell, from the least in steps of one; factorials by lgamma.

    The difference of a value from its mean is subtracted. It is 0 on average where counts are
    integers; for other weights this gives the value of the documented formula.
    """
    log_factorial, n, terms = (lambda x: scipy.special.gammaln(x + 1)), table.sum(), []
    for a in table.sum(1):
        for b in table.sum(0):
            least, mean = max(0.0, a + b - n), a * b / n
            x = least + np.arange(np.floor(min(a, b) - least) + 1)
            ways = np.sum([log_factorial(m) for m in (x, a - x, b - x, n - a - b + x)], 0)
            p = np.exp(ways.min() - ways)
            value = scipy.special.xlogy(x, x / mean) - (x - mean)
            terms.append(fsum(p * value) / fsum(p) / n)
    return fsum(terms)


def adjusted_of(table: np.ndarray, method: str = "arithmetic") -> float:
    if ((table > 0).sum(0) == 1).all() and ((table > 0).sum(1) == 1).all():
        return 1.0
    if any(len(sums) == 1 or (sums <= 1).all() for sums in (table.sum(1), table.sum(0))):
        return 0.0
    expected = expected_of(table)
    above, below = information_of(table) - expected, MEANS[method](*entropies_of(table)) - expected
    return min(above / below, 1.0) if below > 0 else 0.0


def adjusted_error(
    w: np.ndarray, preds: np.ndarray, target: np.ndarray, *, method: str = "arithmetic"
) -> float:
    # Every term of the numerator and the denominator errs by at most 4 units of its size.
    table = table_of(w, preds, target)
    if not table.size:
        return 0.0
    expected, mean = expected_of(table), MEANS[method](*entropies_of(table))
    if not mean > expected:
        return 1.0
    unit = 2.0**-23 * (information_of(table) + mean + 2 * expected) / (mean - expected)
    return 4 * unit * (1 + abs(adjusted_of(table, method)))


def matched_of(table: np.ndarray) -> float:
    return table[scipy.optimize.linear_sum_assignment(-table)].sum() / table.sum()


# scikit-learn's scores of clusterings take no weights.
sklearn_clusters = partial(sklearn_of, prepare=whole, weighted=False)


def sklearn_adjusted(
    w: np.ndarray, preds: np.ndarray, target: np.ndarray, **kwargs: Any
) -> float | None:
    table = table_of(w, preds, target)
    if any((sums <= 1).all() for sums in (table.sum(1), table.sum(0))):
        return None  # scikit-learn divides rounding errors
    score = sklearn_clusters(sklearn.metrics.adjusted_mutual_info_score, **kwargs)
    return score(w, preds, target)


CONFIG = {"num_classes": ROWS, "num_clusters": COLUMNS}
CASE = partial(Case, inputs=CLUSTERS, exact=True)

# A term of the information or of an entropy errs by 8 units (one or two quotients, a logarithm,
# two products), their sum, all of one sign, by two more, and a quotient of two such sums by 21.
# Where the value should be 0, the oracle's sum of 20 terms in float64 errs by up to NOTHING.
INFORMATION = 10
NOTHING = 2.0**-48

CASES = [
    CASE(
        "rand",
        metrics.Rand,
        oracle=from_table(rand_of),
        config=CONFIG,
        reference=sklearn_clusters(sklearn.metrics.rand_score),
    ),
    CASE(
        "pair_confusion",
        metrics.PairConfusionMatrix,
        oracle=pair_confusion_of,
        config=CONFIG,
        reference=sklearn_clusters(sklearn.metrics.cluster.pair_confusion_matrix),
        empty=0.0,
    ),
    CASE(
        "adjusted_rand",
        metrics.AdjustedRand,
        oracle=from_table(adjusted_rand_of),
        config=CONFIG,
        reference=sklearn_clusters(sklearn.metrics.adjusted_rand_score),
        ulps=2,  # the oracle's float64 cancels too
        atol=lambda w, preds, target: NOTHING,
    ),
    CASE(
        "fowlkes_mallows",
        metrics.FowlkesMallows,
        oracle=from_table(fowlkes_mallows_of),
        config=CONFIG,
        reference=sklearn_clusters(sklearn.metrics.fowlkes_mallows_score),
        ulps=4,  # two quotients, whose roots halve the error; two roots, and their product
    ),
    CASE(
        "cluster_accuracy",
        metrics.ClusterAccuracy,
        oracle=from_table(matched_of),
        config=CONFIG,
    ),
    CASE(
        "mutual_info",
        metrics.MutualInfo,
        oracle=from_table(information_of),
        config=CONFIG,
        reference=sklearn_clusters(sklearn.metrics.mutual_info_score),
        ulps=INFORMATION,
        atol=lambda w, preds, target: NOTHING,
        # The case has fewer clusters than classes, so some targets are left out as predictions.
        perfect="any",
    ),
    *(
        CASE(
            f"normalized_mutual_info_{method}",
            metrics.NormalizedMutualInfo,
            oracle=from_table(partial(normalized_of, method=method)),
            config=CONFIG | {"average_method": method},
            reference=sklearn_clusters(
                sklearn.metrics.normalized_mutual_info_score, average_method=method
            ),
            ulps=2 * INFORMATION + 1,
            atol=lambda w, preds, target: NOTHING,
        )
        for method in MEANS
    ),
    *(
        CASE(
            f"adjusted_mutual_info_{method}",
            metrics.AdjustedMutualInfo,
            oracle=from_table(partial(adjusted_of, method=method)),
            config=CONFIG | {"average_method": method},
            reference=partial(sklearn_adjusted, average_method=method),
            atol=partial(adjusted_error, method=method),
        )
        for method in ("arithmetic", "max")
    ),
    *(
        CASE(
            name,
            cls,
            oracle=from_table(partial(share_of, axis=axis)),
            config=CONFIG,
            reference=sklearn_clusters(getattr(sklearn.metrics, f"{name}_score")),
            ulps=2 * INFORMATION + 1,
            atol=lambda w, preds, target: NOTHING,
        )
        for name, cls, axis in (
            ("homogeneity", metrics.Homogeneity, 1),
            ("completeness", metrics.Completeness, 0),
        )
    ),
    *(
        CASE(
            f"v_measure_{beta}",
            metrics.VMeasure,
            oracle=from_table(partial(v_measure_of, beta=beta)),
            config=CONFIG | {"beta": beta},
            reference=sklearn_clusters(sklearn.metrics.v_measure_score, beta=beta),
            ulps=2 * (2 * INFORMATION + 1) + 4,
            atol=lambda w, preds, target: NOTHING,
        )
        for beta in (1.0, 0.5)
    ),
]
