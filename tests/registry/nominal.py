"""Categorical variables, on the same inputs as clusterings, and ratings of subjects by raters."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import krippendorff
import numpy as np
import scipy.stats

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Arrays, Case, Inputs
from tests.registry.clustering import (
    CLUSTERS,
    COLUMNS,
    INFORMATION,
    NOTHING,
    ROWS,
    entropy_of,
    from_table,
    information_of,
    table_of,
)


def square_of(table: np.ndarray) -> float:
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    return fsum((table - expected) ** 2 / expected) / table.sum()


def degrees_of(table: np.ndarray, *, correct: bool) -> tuple[float, float, float]:
    """The mean square contingency, and the degrees of freedom of rows and columns."""
    (r, k), n, square = table.shape, table.sum(), square_of(table)
    if not correct:
        return square, r - 1, k - 1
    if n <= max(r, k):
        return np.nan, np.nan, np.nan
    square = max(0.0, square - (r - 1) * (k - 1) / (n - 1))
    return square, r - (r - 1) ** 2 / (n - 1) - 1, k - (k - 1) ** 2 / (n - 1) - 1


def over(mean: Callable[[float, float], float], *, correct: bool) -> Callable[[Any], float]:
    def value(table: np.ndarray) -> float:
        if min(table.shape) < 2:
            return np.nan
        square, r, k = degrees_of(table, correct=correct)
        return float(np.sqrt(square / mean(r, k)))

    return value


def pearson_of(table: np.ndarray) -> float:
    square = square_of(table)
    return float(np.sqrt(square / (1 + square)))


def theil_of(table: np.ndarray, axis: int = 1) -> float:
    sums = table.sum(axis)
    return information_of(table) / entropy_of(sums) if len(sums) > 1 else np.nan


def association(method: str) -> Callable[..., float | None]:
    """SciPy's value, for integer counts and variables of at least two categories."""

    def reference(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float | None:
        table = table_of(w, preds, target)
        if min(table.shape) < 2 or (table % 1).any():
            return None
        return scipy.stats.contingency.association(table.astype(int), method=method)

    return reference


def pairs_apart(w: np.ndarray, known: np.ndarray) -> float:
    """The weight of the ordered pairs of examples that differ in a variable."""
    return fsum(w[:, None] * w * (known[:, None] != known))


def somers_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray, given: str) -> float:
    w, preds, target = w[w > 0], preds[w > 0], target[w > 0]
    order = np.sign(preds[:, None] - preds) * np.sign(target[:, None] - target)
    apart = pairs_apart(w, preds if given == "preds" else target)
    return fsum(w[:, None] * w * order) / apart if apart else np.nan


def scipy_somers(w: np.ndarray, preds: np.ndarray, target: np.ndarray, given: str) -> float | None:
    """SciPy's value, for integer counts and variables of at least two categories."""
    table = table_of(w, preds, target)
    if min(table.shape) < 2 or (table % 1).any():
        return None
    by_known = table.T if given == "preds" else table
    return scipy.stats.somersd(by_known.astype(int)).statistic


def somers_error(w: np.ndarray, preds: np.ndarray, target: np.ndarray, given: str) -> float:
    # The pairs are off by a few units of 2**-47 of the square of the total, and cancel.
    known = preds if given == "preds" else target
    apart = pairs_apart(w[w > 0], known[w > 0])
    return 2.0**-42 * fsum(w) ** 2 / apart if apart else 0.0


def corrected_error(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    # The difference errs by 12 units of the size of its terms, over degrees of at least 1/15 (for
    # 16 examples). Where the difference should be 0, the value is the root of that error.
    table = table_of(w, preds, target)
    if not table.size or min(table.shape) < 2:
        return 0.0
    square, r, k = degrees_of(table, correct=True)
    if np.isnan(square):
        return 0.0
    error = 12 * 2.0**-23 * (2 * square_of(table) + 1) / min(r, k)
    value = float(np.sqrt(square / min(r, k)))
    return float(np.sqrt(error)) if value**2 <= error else error / value


RATERS, CATEGORIES = 4, 3


def ratings(
    rng: np.random.Generator, size: int, *, shares: Any = (0.5, 0.3, 0.2), raters: Any = RATERS
) -> Arrays:
    of = rng.choice(np.atleast_1d(raters), size)
    return {"ratings": rng.multinomial(of, shares).astype(np.int32)}


def agreeing(rng: np.random.Generator, size: int) -> Arrays:
    chosen = rng.integers(0, CATEGORIES, size)
    return {"ratings": (RATERS * np.eye(CATEGORIES, dtype=np.int32))[chosen]}


RATINGS = Inputs(
    "ratings",
    draw=ratings,
    valid=lambda ratings: (ratings >= 0).all(-1),
    spoil={"ratings": (-1, -100, -(2**31))},
    hard={
        "all agree": agreeing,
        "one category": partial(ratings, shares=(0.0, 1.0, 0.0)),
        "a category never": partial(ratings, shares=(0.5, 0.0, 0.5)),
        "several numbers of raters": partial(ratings, raters=(0, 1, 2, 5)),
        "no pairs": partial(ratings, raters=(0, 1)),
    },
)


def fleiss_of(w: np.ndarray, ratings: np.ndarray) -> float:
    w, ratings = w[w > 0], ratings[w > 0]
    raters = ratings.sum(-1)
    pairs = fsum(w * raters * (raters - 1))
    by_category = (w[:, None] * ratings).sum(0)
    if not pairs or (by_category > 0).sum() < 2:
        return np.nan
    agree = fsum(w[:, None] * ratings * (ratings - 1)) / pairs
    chance = fsum((by_category / by_category.sum()) ** 2)
    return (agree - chance) / (1 - chance)


def by_rater(
    rng: np.random.Generator,
    size: int,
    *,
    shares: Any = (0.5, 0.3, 0.2),
    missing: float = 0.2,
    agree: float = 0.6,
) -> Arrays:
    edges = np.cumsum(shares)[:-1]
    true, given = (np.searchsorted(edges, rng.random((size, n)), side="right") for n in (1, RATERS))
    chosen = np.where(rng.random(given.shape) < agree, true, given)
    return {
        "ratings": np.where(rng.random(given.shape) < missing, -1, chosen).astype(np.int32),
    }


RATED = Inputs(
    "ratings by rater",
    draw=by_rater,
    valid=lambda ratings: ((ratings >= -1) & (ratings < CATEGORIES)).all(-1),
    spoil={"ratings": (-2, CATEGORIES, 2**31 - 1)},
    hard={
        "all agree": partial(by_rater, agree=1.0),
        "by chance": partial(by_rater, agree=0.0),
        "one category": partial(by_rater, shares=(0.0, 1.0, 0.0)),
        "a category never": partial(by_rater, shares=(0.5, 0.0, 0.5)),
        "few ratings": partial(by_rater, missing=0.8),
        "no ratings": partial(by_rater, missing=1.0),
    },
)


def alpha_of(w: np.ndarray, ratings: np.ndarray, *, level: str) -> float:
    """By the definition: each pair of ratings of a subject, and each pair of all."""
    subjects = [(v, x[x >= 0]) for v, x in zip(w, ratings, strict=True) if v > 0]
    subjects = [(v, x) for v, x in subjects if len(x) > 1]
    if not subjects:
        return np.nan
    values = np.concatenate([x for _, x in subjects])
    weights = np.concatenate([np.full(len(x), v) for v, x in subjects])
    count = np.array([fsum(weights[values == c]) for c in range(CATEGORIES)])

    def apart(a: float, b: float) -> float:
        if level == "nominal":
            return float(a != b)
        low, high = int(min(a, b)), int(max(a, b))
        if level == "interval":
            return (high - low) ** 2
        return (fsum(count[low : high + 1]) - (count[low] + count[high]) / 2) ** 2

    total = fsum(weights)
    observed = fsum(
        [
            v * apart(a, b) / (len(x) - 1)
            for v, x in subjects
            for i, a in enumerate(x)
            for j, b in enumerate(x)
            if i != j
        ]
    )
    both = product(range(CATEGORIES), repeat=2)
    expected = fsum([count[a] * count[b] * apart(a, b) for a, b in both])
    return 1 - (total - 1) * observed / expected if expected and total > 1 else np.nan


def library_alpha(w: np.ndarray, ratings: np.ndarray, *, level: str) -> float | None:
    """That of the package `krippendorff`, of whole weights: copies."""
    if (w % 1).any() or len(np.unique(ratings[(w > 0)[:, None] & (ratings >= 0)])) < 2:
        return None
    data = np.where(ratings < 0, np.nan, ratings).repeat(w.astype(int), 0).T
    with np.errstate(invalid="ignore"):
        domain = list(range(CATEGORIES))
        return krippendorff.alpha(data, level_of_measurement=level, value_domain=domain)


def alpha_error(w: np.ndarray, ratings: np.ndarray, *, level: str) -> float:
    # Of 1 less a quotient of sums, whose terms are rounded three times.
    value = alpha_of(w, ratings, level=level)
    return 4 * 2.0**-24 * (1 + abs(1 - np.nan_to_num(value)))


def gwet_of(w: np.ndarray, ratings: np.ndarray) -> float:
    """As equations 1 to 5 of Gwet's program irrCAC, gwet.ac1.raw without weights of categories."""
    w, ratings = w[w > 0], ratings[w > 0]
    counts = np.array([(ratings == c).sum(-1) for c in range(CATEGORIES)]).T
    raters = counts.sum(-1)
    some, several = raters > 0, raters > 1
    if not several.any():
        return np.nan
    agree = (counts * (counts - 1)).sum(-1)[several] / (raters * (raters - 1))[several]
    agreement = fsum(w[several] * agree) / fsum(w[several])
    share = (w[some, None] * counts[some] / raters[some, None]).sum(0) / fsum(w[some])
    chance = fsum(share * (1 - share)) / (CATEGORIES - 1)
    return (agreement - chance) / (1 - chance)


CASE = partial(Case, inputs=CLUSTERS, exact=True)
CONFIG = {"num_classes": ROWS, "num_preds": COLUMNS}

CASES = [
    *(
        CASE(
            name,
            cls,
            oracle=from_table(over(mean, correct=False)),
            config=CONFIG,
            reference=association(method),
            ulps=6,  # terms of one sign err by 6 units, then a quotient; the root halves that
            atol=lambda w, preds, target: NOTHING**0.5,
        )
        for name, cls, mean, method in (
            ("cramers_v", metrics.CramersV, min, "cramer"),
            ("tschuprows_t", metrics.TschuprowsT, lambda r, k: np.sqrt(r * k), "tschuprow"),
        )
    ),
    *(
        CASE(
            f"{name}_corrected",
            cls,
            oracle=from_table(over(mean, correct=True)),
            config=CONFIG | {"bias_correction": True},
            atol=corrected_error,
        )
        for name, cls, mean in (
            ("cramers_v", metrics.CramersV, min),
            ("tschuprows_t", metrics.TschuprowsT, lambda r, k: np.sqrt(r * k)),
        )
    ),
    CASE(
        "pearsons_contingency",
        metrics.PearsonsContingency,
        oracle=from_table(pearson_of),
        config=CONFIG,
        reference=association("pearson"),
        ulps=6,
        atol=lambda w, preds, target: NOTHING**0.5,
    ),
    *(
        CASE(
            f"theils_u_{given}",
            metrics.TheilsU,
            oracle=from_table(partial(theil_of, axis=axis)),
            config=CONFIG | {"given": given},
            ulps=2 * INFORMATION + 1,
            atol=lambda w, preds, target: NOTHING,
        )
        for given, axis in (("preds", 1), ("target", 0))
    ),
    *(
        CASE(
            f"somers_d_{given}",
            metrics.SomersD,
            oracle=partial(somers_of, given=given),
            config=CONFIG | {"given": given},
            reference=partial(scipy_somers, given=given),
            atol=partial(somers_error, given=given),
        )
        for given in ("preds", "target")
    ),
    *(
        Case(
            f"krippendorff_alpha_{level}",
            metrics.KrippendorffAlpha,
            RATED,
            partial(alpha_of, level=level),
            {"level": level, "num_values": CATEGORIES},
            reference=partial(library_alpha, level=level),
            atol=partial(alpha_error, level=level),
        )
        for level in ("nominal", "ordinal", "interval")
    ),
    Case(
        "gwet_ac1",
        metrics.GwetAC1,
        RATED,
        gwet_of,
        {"num_categories": CATEGORIES},
        # The share of each subject is rounded twice, and the value is a difference of up to 1.
        atol=lambda w, ratings: 8 * 2.0**-24,
    ),
    Case(
        "fleiss_kappa",
        metrics.FleissKappa,
        RATINGS,
        fleiss_of,
        {"num_categories": CATEGORIES},
        # The product of a count and a weight is rounded for each subject.
        atol=lambda w, ratings: NOTHING if (w == np.round(w)).all() else 2.0**-22,
        exact=True,
    ),
]
