"""Rankings of documents by query: all queries have as many documents, of which some are not there.

Others are there, but were not retrieved: they have no rank.

Of ties, an oracle takes the mean over all their orders, which it lists.
"""

import itertools
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Arrays, Case, Draw, Inputs

DOCUMENTS = 6
K, GRADES = 3, 3
LEVELS = 11


def queries(
    rng: np.random.Generator, size: int, *, levels: int = 4, grades: Any = (0, 0, 1, 3),
    there: float = 0.9, retrieved: float = 0.8,
) -> Arrays:  # fmt: skip
    shape = (size, DOCUMENTS)
    return {
        "preds": (rng.integers(0, levels, shape) - levels // 2).astype(np.float32) / 4,
        "target": rng.choice(np.int32(grades), shape),
        "valid": rng.random(shape) < there,
        "retrieved": rng.random(shape) < retrieved,
    }


def infinite(rng: np.random.Generator, size: int) -> Arrays:
    drawn = queries(rng, size)
    return drawn | {"preds": rng.choice(np.float32([-np.inf, -0.0, 0.0, np.inf]), (size, 6))}


def documents_in_range(
    preds: np.ndarray, target: np.ndarray, valid: np.ndarray, retrieved: np.ndarray
) -> np.ndarray:
    usable = ~(np.isnan(preds) & (retrieved > 0)) & (target >= 0) & np.isfinite(target)
    return np.all(usable | ~valid.astype(bool), axis=1)


class Documents(Inputs):
    """Inputs of which the documents that are spoilt are there, and retrieved."""

    def spoilt(self, rng: np.random.Generator, arrays: Arrays, rows: np.ndarray) -> Arrays:
        spoilt = {name: x.copy() for name, x in arrays.items()}
        for name, values in self.spoil.items():
            # Of embeddings, the first feature.
            entry = rows, rng.integers(0, DOCUMENTS, len(rows))
            x = spoilt[name]
            x[(*entry, *(0 for _ in x.shape[2:]))] = rng.choice(values, len(rows))
            for mask in {"valid", "retrieved", "judged"} & {*spoilt}:
                spoilt[mask][entry] = True
        return spoilt


QUERIES = Documents(
    "queries",
    draw=queries,
    valid=documents_in_range,
    spoil={"preds": (np.nan,), "target": (-1, -(2**31))},
    hard={
        "no ties": partial(queries, levels=1000),
        "all tied": partial(queries, levels=1),
        "nothing relevant": partial(queries, grades=(0,)),
        "all relevant": partial(queries, grades=(1, 2)),
        "few documents": partial(queries, there=0.2),
        "no documents": partial(queries, there=0.0),
        "all retrieved": partial(queries, retrieved=1.0),
        "nothing retrieved": partial(queries, retrieved=0.0),
        "infinite scores": infinite,
    },
)


def judged_queries(rng: np.random.Generator, size: int, draw: Draw = queries) -> Arrays:
    drawn = draw(rng, size)
    return drawn | {"judged": rng.random(drawn["preds"].shape) < 0.7}


def pooled_queries(rng: np.random.Generator, size: int, draw: Draw = queries) -> Arrays:
    drawn = judged_queries(rng, size, draw)
    return drawn | {"pooled": rng.random(drawn["preds"].shape) < 0.5}


def judged_in_range(
    preds: np.ndarray, target: np.ndarray, valid: np.ndarray, retrieved: np.ndarray,
    judged: np.ndarray, pooled: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    return documents_in_range(preds, np.where(judged > 0, target, 0), valid, retrieved)


JUDGED, POOLED = (
    Documents(
        name, draw, judged_in_range, QUERIES.spoil,
        {kind: partial(draw, draw=each) for kind, each in QUERIES.hard.items()},
    )
    for name, draw in (("judged queries", judged_queries), ("pooled queries", pooled_queries))
)  # fmt: skip


def ties(preds: np.ndarray, values: np.ndarray) -> list[np.ndarray]:
    """The values of tied documents, those of the highest score first."""
    return [values[preds == score] for score in np.unique(preds)[::-1]]


@lru_cache(maxsize=4096)
def orders(groups: tuple[tuple[int, int], ...]) -> np.ndarray:
    """All orders of (n, r) documents, r of them relevant, as rows of 0 and 1; equally likely."""

    def of(n: int, r: int) -> list[list[bool]]:
        return [[i in chosen for i in range(n)] for chosen in itertools.combinations(range(n), r)]

    each = itertools.product(*(of(n, r) for n, r in groups))
    return np.array([list(itertools.chain(*order)) for order in each], bool)


def expected(
    score: Callable[[np.ndarray, int, int], Any],
    preds: np.ndarray,
    target: np.ndarray,
    found: np.ndarray,
) -> float:
    """The mean of a score of 0 and 1 by rank, over the orders of ties of what was retrieved.

    The score also takes how many documents of the query are relevant, and how many irrelevant.
    """
    groups = tuple((len(x), int(x.sum())) for x in ties(preds[found], target[found] > 0))
    relevant = int((target > 0).sum())
    counts = relevant, len(target) - relevant
    return float(np.mean([score(order, *counts) for order in orders(groups)]))


def precisions(order: np.ndarray) -> np.ndarray:
    return np.cumsum(order) / np.arange(1, len(order) + 1)


# Scores of orders: rows of 0 and 1.
SCORES: dict[str, Callable[[np.ndarray, int, int], Any]] = {
    "precision": lambda order, r, i: order[:K].sum() / K,
    "recall": lambda order, r, i: order[:K].sum() / r,
    "hit": lambda order, r, i: order[:K].any(),
    "fall_out": lambda order, r, i: (~order[:K]).sum() / i,
    "r_precision": lambda order, r, i: order[:r].sum() / r,
    "reciprocal_rank": lambda order, r, i: order.any() and 1 / (1 + np.argmax(order)),
    "average_precision": lambda order, r, i: precisions(order)[order].sum() / r,
}


def preferences(order: np.ndarray, r: int, i: int) -> float:
    above = np.cumsum(~order)[order]
    return float((1 - np.minimum(above, r) / max(min(i, r), 1)).sum() / r)


def biased_precision_of(preds: np.ndarray, target: np.ndarray, found: np.ndarray) -> float:
    by_rank = [np.full(len(x), x.mean()) for x in ties(preds[found], target[found] > 0)]
    return float(sum(0.2 * 0.8**i * x for i, x in enumerate(np.concatenate(by_rank or [[]]))))


def in_order(preds: np.ndarray, found: np.ndarray) -> np.ndarray:
    """The places of what was retrieved by rank, of equal scores in the given order."""
    places = np.flatnonzero(found)
    return places[np.argsort(-preds[places], kind="stable")]


def reciprocal_rank_of(preds: np.ndarray, target: np.ndarray, found: np.ndarray) -> float:
    score, goes_on = 0.0, 1.0
    for rank, place in enumerate(in_order(preds, found), 1):
        stops = (2.0 ** target[place] - 1) / 2.0**GRADES
        score += goes_on * stops / rank
        goes_on *= 1 - stops
    return float(score)


def preference_of(
    preds: np.ndarray, target: np.ndarray, found: np.ndarray, judged: np.ndarray
) -> float:
    # The order of those that were judged does not depend on the others.
    return expected(preferences, preds[judged], target[judged], found[judged])


def inferred_precision_of(
    preds: np.ndarray,
    target: np.ndarray,
    found: np.ndarray,
    judged: np.ndarray,
    pooled: np.ndarray,
) -> float:
    score, e, of_pool, of_judged, relevant = 0.0, 1e-5, 0, 0, 0
    for rank, place in enumerate(in_order(preds, found), 1):
        if target[place] > 0:
            share = (relevant + e) / (of_judged + 2 * e)
            score += 1 / rank + (rank - 1) / rank * (of_pool / max(rank - 1, 1)) * share
        of_pool += pooled[place] | judged[place]
        of_judged += judged[place]
        relevant += target[place] > 0
    return score / (target > 0).sum()


def interpolated_precision_of(
    level: float, preds: np.ndarray, target: np.ndarray, found: np.ndarray
) -> float:
    order = target[in_order(preds, found)] > 0
    enough = np.cumsum(order) >= max(int(level * (target > 0).sum() + 0.9), 1)
    return float(precisions(order)[enough].max(initial=0))


def gain_of(
    preds: np.ndarray,
    target: np.ndarray,
    found: np.ndarray,
    *,
    k: int | None = None,
    exponential: bool = False,
) -> float:
    gains = (2**target - 1 if exponential else target)[found]
    by_rank = np.concatenate([np.full(len(x), x.mean()) for x in ties(preds[found], gains)] or [[]])
    return float((by_rank / np.log2(np.arange(2, len(by_rank) + 2)))[:k].sum())


def normalized_gain_of(
    preds: np.ndarray, target: np.ndarray, found: np.ndarray, **how: Any
) -> float:
    best = gain_of(target, target, np.ones_like(found), **how)
    return gain_of(preds, target, found, **how) / best


def below_all(preds: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Ranks of scores, where what was not retrieved is tied below all others."""
    return np.where(found, 1 + np.searchsorted(np.unique(preds), preds), 0)


def coverage_of(preds: np.ndarray, target: np.ndarray, found: np.ndarray) -> float:
    preds = below_all(preds, found)
    return float((preds >= preds[target > 0].min()).sum())


def pairs(preds: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Scores of relevant documents less those of irrelevant ones, as signs."""
    a, b = preds[target > 0][:, None], preds[target == 0][None, :]
    return (a > b).astype(float) - (a < b)


def label_loss_of(preds: np.ndarray, target: np.ndarray, found: np.ndarray) -> float:
    wrong = pairs(below_all(preds, found), target) <= 0
    return float(wrong.mean()) if wrong.size else 0.0


def auroc_of(preds: np.ndarray, target: np.ndarray, found: np.ndarray) -> float:
    return float(((pairs(below_all(preds, found), target) + 1) / 2).mean())


def label_precision_of(preds: np.ndarray, target: np.ndarray, found: np.ndarray) -> float:
    as_high = found & (preds >= preds[found & (target > 0)][:, None])
    return float(((as_high & (target > 0)).sum(1) / as_high.sum(1)).sum() / (target > 0).sum())


def mean_over_queries(
    score: Callable[..., float],
    undefined: Callable[[np.ndarray], bool] | None,
    instead: float | None,
    w: np.ndarray,
    preds: np.ndarray,
    target: np.ndarray,
    valid: np.ndarray,
    retrieved: np.ndarray,
    judged: np.ndarray | None = None,
    pooled: np.ndarray | None = None,
) -> float:
    if judged is not None:
        target = np.where(judged > 0, target, 0)
    scores, weights = [], []
    for i in np.flatnonzero(w > 0):
        there = valid[i] > 0
        p, t, found = preds[i, there], target[i, there], retrieved[i, there] > 0
        if undefined is None or not undefined(t):
            others = (x[i, there] > 0 for x in (judged, pooled) if x is not None)
            scores.append(score(p, t, found, *others))
        elif instead is None:
            continue
        else:
            scores.append(instead)
        weights.append(w[i])
    return fsum(np.multiply(scores, weights)) / fsum(weights) if weights else np.nan


def none_relevant(target: np.ndarray) -> bool:
    return not (target > 0).any()


def none_irrelevant(target: np.ndarray) -> bool:
    return not (target == 0).any()


def _empty(cls: Any, config: dict[str, Any]) -> str:
    field = cls.fields.get("empty")
    return config.get("empty", field.default if field else "skip")


def case(
    id: str,
    cls: Any,
    score: Callable[..., float],
    undefined: Callable[[np.ndarray], bool] | None = none_relevant,
    perfect: Literal["best", "no worse"] = "no worse",
    inputs: Inputs = QUERIES,
    ulps: float = 3,  # each score is rounded once, the mean once, and a gain once
    **config: Any,
) -> Case:
    # Perfect rankings have a worse value than the best: queries without relevant documents count as
    # `empty=` says, and k may be more or less than the number of relevant documents.
    instead = {"skip": None, "zero": 0.0, "one": 1.0}[_empty(cls, config)]
    return Case(
        id,
        cls,
        inputs,
        partial(mean_over_queries, score, undefined, instead),
        config,
        ulps=ulps,
        together="rankings",
        perfect=perfect,
    )


def by_order(name: str) -> Callable[[np.ndarray, np.ndarray, np.ndarray], float]:
    return partial(expected, SCORES[name])


# What is recommended.

ITEMS, FEATURES = 40, 3


def recommendations(rng: np.random.Generator, size: int, **how: Any) -> Arrays:
    drawn = queries(rng, size, **how)
    shape = drawn.pop("target").shape
    return drawn | {
        "popularity": (rng.integers(1, 9, shape) / 8).astype(np.float32),
        "items": rng.integers(0, ITEMS, shape).astype(np.int32),
        "embeddings": rng.integers(1, 5, (*shape, FEATURES)).astype(np.float32),
    }


SPOIL = {
    "popularity": (0.0, 1.5, np.nan), "items": (-1, ITEMS, 2**31 - 1),
    "embeddings": (np.nan, np.inf),
}  # fmt: skip
HARD = {
    "no ties": {"levels": 1000}, "all tied": {"levels": 1}, "few items": {"there": 0.2},
    "no items": {"there": 0.0},
}  # fmt: skip


def inputs_of(name: str) -> Inputs:
    """Recommendations of which one argument is given besides the scores."""

    def draw(rng: np.random.Generator, size: int, **how: Any) -> Arrays:
        drawn = recommendations(rng, size, **how)
        return {key: drawn[key] for key in ("preds", name, "valid", "retrieved")}

    def valid(
        preds: np.ndarray, valid: np.ndarray, retrieved: np.ndarray, **given: np.ndarray
    ) -> np.ndarray:
        x = given[name]
        usable = {
            "popularity": (x > 0) & (x <= 1), "items": (x >= 0) & (x < ITEMS),
            "embeddings": np.isfinite(x),
        }[name]  # fmt: skip
        usable = usable.reshape(*preds.shape, -1).all(-1)
        there = valid.astype(bool) & retrieved.astype(bool)
        return documents_in_range(preds, usable - 1.0, there, retrieved)

    hard = {kind: partial(draw, **how) for kind, how in HARD.items()}
    return Documents(name, draw, valid, {"preds": (np.nan,), name: SPOIL[name]}, hard)


def recommended(
    w: np.ndarray, preds: np.ndarray, valid: np.ndarray, retrieved: np.ndarray
) -> list[np.ndarray]:
    """The places of the items that are recommended for each query, of tied ones the first."""
    return [
        np.array([j for j in np.argsort(-p, kind="stable") if v[j]][: K * (weight > 0)], int)
        for weight, p, v in zip(w, preds, (valid > 0) & (retrieved > 0), strict=True)
    ]


def mean_where_defined(values: list[Any], w: np.ndarray) -> float:
    x = np.array(values, np.float64)
    some = ~np.isnan(x)
    return fsum(x[some] * w[some]) / fsum(w[some]) if w[some].any() else np.nan


def novelty_of(
    w: np.ndarray, *, preds: Any, valid: Any, retrieved: Any, popularity: Any, **_: Any
) -> float:
    values = []
    there = (valid > 0) & (retrieved > 0)
    for weight, p, v, x in zip(w, preds, there, popularity, strict=True):
        if not weight or not v.any():
            values.append(np.nan)
            continue
        means = [np.full(len(each), each.mean()) for each in ties(p[v], -np.log2(x[v]))]
        values.append(np.concatenate(means)[:K].mean())
    return mean_where_defined(values, w)


def diversity_of(
    w: np.ndarray, *, preds: Any, valid: Any, retrieved: Any, embeddings: Any, **_: Any
) -> float:
    values = []
    for places, x in zip(recommended(w, preds, valid, retrieved), embeddings, strict=True):
        x = x[places]
        unit = x / np.linalg.norm(x, axis=-1, keepdims=True)
        apart = [1 - a @ b for a, b in itertools.combinations(unit, 2)]
        values.append(np.mean(apart) if apart else np.nan)
    return mean_where_defined(values, w)


def coverage_of_catalog(
    w: np.ndarray, *, preds: Any, valid: Any, retrieved: Any, items: Any, **_: Any
) -> float:
    each = zip(recommended(w, preds, valid, retrieved), items, strict=True)
    found = {item for places, x in each for item in x[places]}
    return len(found) / ITEMS if found else np.nan


CASES = [
    Case(
        "novelty", metrics.Novelty, inputs_of("popularity"), novelty_of, {"k": K},
        ulps=4,
    ),
    Case(
        "intra_list_diversity", metrics.IntraListDiversity, inputs_of("embeddings"), diversity_of,
        {"k": K}, ulps=4, atol=lambda w, **inputs: 1e-6,
    ),
    Case(
        "catalog_coverage", metrics.CatalogCoverage, inputs_of("items"), coverage_of_catalog,
        {"num_items": ITEMS, "k": K},
    ),
    case("ndcg", metrics.NDCG, normalized_gain_of),
    case(
        "ndcg_k_exponential",
        metrics.NDCG,
        partial(normalized_gain_of, k=K, exponential=True),
        k=K,
        gain="exponential",
        empty="zero",
    ),
    case("dcg", metrics.DCG, partial(gain_of, k=K), None, k=K),
    case("mrr", metrics.MRR, by_order("reciprocal_rank"), empty="one"),
    case("retrieval_map", metrics.RetrievalMAP, by_order("average_precision")),
    case("precision_at_k", metrics.PrecisionAtK, by_order("precision"), k=K, empty="zero"),
    case("recall_at_k", metrics.RecallAtK, by_order("recall"), k=K),
    case("hit_rate", metrics.HitRate, by_order("hit"), k=K),
    case("r_precision", metrics.RPrecision, by_order("r_precision")),
    case(
        "fall_out", metrics.FallOut, by_order("fall_out"), none_irrelevant, k=K, empty="one"
    ),
    case("retrieval_auroc", metrics.RetrievalAUROC, auroc_of,
         lambda t: none_relevant(t) or none_irrelevant(t)),
    case("coverage_error", metrics.CoverageError, coverage_of),
    case("label_ranking_loss", metrics.LabelRankingLoss, label_loss_of, perfect="best"),
    case(
        "label_ranking_average_precision",
        metrics.LabelRankingAveragePrecision,
        label_precision_of,
        perfect="best",
    ),
    case("rbp", metrics.RBP, biased_precision_of, None),
    case("err", metrics.ERR, reciprocal_rank_of, None, max_grade=GRADES),
    case("bpref", metrics.Bpref, preference_of, inputs=JUDGED),
    # Two roundings more, of the share and of its product.
    case("inferred_ap", metrics.InferredAP, inferred_precision_of, inputs=POOLED, ulps=5),
    Case(
        "retrieval_precision_recall_curve",
        metrics.RetrievalPrecisionRecallCurve,
        QUERIES,
        lambda w, **inputs: np.array([
            mean_over_queries(
                partial(interpolated_precision_of, i / (LEVELS - 1)), none_relevant, None, w,
                **inputs,
            )
            for i in range(LEVELS)
        ]),
        ulps=3,
        together="rankings",
        perfect="any",
    ),
]  # fmt: skip

IN_ORDER = ("err", "inferred_ap", "retrieval_precision_recall_curve")
"""The cases of metrics that take ties in the order given."""
