"""All ranking metrics at once: oracles, reference libraries, the flat form, published examples."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import pytrec_eval
import sklearn.metrics

import datarax
from datarax import metrics
from datarax.testing import assert_within_ulps
from tests.helpers import update
from tests.registry import BATCH, Case
from tests.registry.ranking import (
    CASES,
    DOCUMENTS,
    HARD,
    IN_ORDER,
    JUDGED,
    POOLED,
    QUERIES,
    K,
    recommendations,
)

RANKINGS = [case for case in CASES if case.inputs in (QUERIES, JUDGED, POOLED)]
RECOMMENDATIONS = [case for case in CASES if case not in RANKINGS]


def collection_of(cases: list[Case]) -> datarax.Collection:
    return datarax.Collection({case.id: case.make(on_invalid="exclude") for case in cases})


COLLECTION = collection_of(RANKINGS)
WEIGHTS = np.float32([0, 0.5, 1, 3])


def flat_of(
    rng: np.random.Generator, batch: dict[str, np.ndarray], size: int, *, shuffled: bool = True
) -> dict[str, Any]:
    """The flat form of queries, padded to a size with rows of weight zero."""
    ids = rng.choice(2**31 - 1, len(batch["preds"]), replace=False).astype(np.int32) - 2**30
    flat = {name: x.reshape(-1, *x.shape[2:]) for name, x in batch.items() if name != "weights"}
    by_query = {"query": ids, "weights": batch["weights"]}
    flat |= {name: np.repeat(x, DOCUMENTS) for name, x in by_query.items()}
    junk = {
        "preds": np.float32(np.nan),
        "target": -1,
        "valid": True,
        "retrieved": True,
        "judged": True,
        "query": ids[0],
        "weights": 0,
    }
    missing = size - len(flat["query"])
    order = rng.permutation(size) if shuffled else np.arange(size)
    return {
        name: np.append(x, np.full((missing, *x.shape[1:]), junk.get(name, -1), x.dtype), 0)[order]
        for name, x in flat.items()
    }


def test_oracles_and_the_flat_form(rng):
    in_order = datarax.Collection({name: COLLECTION[name] for name in IN_ORDER})
    for kind in QUERIES.kinds * 2:
        batch = POOLED.draw_kind(kind, rng, BATCH)
        weights = rng.choice(WEIGHTS, BATCH)
        batch = POOLED.spoilt(rng, batch, np.flatnonzero(weights == 0)) | {"weights": weights}
        padded = update(COLLECTION, **batch)
        flat = update(COLLECTION, **flat_of(rng, batch, BATCH * DOCUMENTS + 4))
        ordered = update(in_order, **flat_of(rng, batch, BATCH * DOCUMENTS + 4, shuffled=False))
        values, of_flat = padded.compute(), flat.compute() | ordered.compute()
        w = weights.astype(np.float64)
        inputs = {n: x.astype(np.float64) for n, x in batch.items() if n != "weights"}
        for case in RANKINGS:
            given = {name: inputs[name] for name in case.inputs.draw(rng, 1)}
            assert_within_ulps(values[case.id], case.oracle(w, **given), case.ulps, name=case.id)
            # The sums are in another order, and then rounded once.
            assert_within_ulps(of_flat[case.id], values[case.id], 1, name=case.id)


def test_recommendations(rng):
    collection = collection_of(RECOMMENDATIONS)
    for how in ({}, *HARD.values()):
        batch = recommendations(rng, BATCH, **how)
        weights = rng.choice(WEIGHTS, BATCH)
        for case in RECOMMENDATIONS:
            batch |= case.inputs.spoilt(
                rng, {n: batch[n] for n in case.inputs.draw(rng, 1)}, np.flatnonzero(weights == 0)
            )
        batch |= {"weights": weights}
        values = update(collection, **batch).compute()
        rows = flat_of(rng, batch, BATCH * DOCUMENTS + 4, shuffled=False)
        of_flat = update(collection, **rows).compute()
        w = weights.astype(np.float64)
        inputs = {n: x.astype(np.float64) for n, x in batch.items() if n != "weights"}
        for case in RECOMMENDATIONS:
            want = case.oracle(w, **inputs | {"items": batch["items"]})
            atol = case.atol(w)
            assert_within_ulps(values[case.id], want, case.ulps, atol=atol, name=case.id)
            # The sums are in another order, and then rounded once.
            assert_within_ulps(of_flat[case.id], values[case.id], 1, name=case.id)
    batch = recommendations(rng, BATCH) | {"weights": np.ones(BATCH, np.float32)}
    for name, index in (("popularity", (0, 0)), ("items", (0, 0)), ("embeddings", (0, 0, 0))):
        batch[name][index] = -1 if name != "embeddings" else np.inf
    batch["valid"][0] = batch["retrieved"][0] = True
    updated: Any = update(collection, **batch)
    assert [int(x.invalid_count()) for x in updated.values()] == [1, 1, 1]


OF_SKLEARN = {
    "ndcg": (metrics.NDCG(empty="zero"), sklearn.metrics.ndcg_score, False),
    "ndcg_k": (metrics.NDCG(k=K, empty="zero"), partial(sklearn.metrics.ndcg_score, k=K), False),
    "dcg": (metrics.DCG(k=K), partial(sklearn.metrics.dcg_score, k=K), False),
    "coverage": (metrics.CoverageError(), sklearn.metrics.coverage_error, True),
    "loss": (metrics.LabelRankingLoss(), sklearn.metrics.label_ranking_loss, True),
    "precision": (
        metrics.LabelRankingAveragePrecision(),
        sklearn.metrics.label_ranking_average_precision_score,
        True,
    ),
}  # fmt: skip


def test_agrees_with_scikit_learn_with_ties_and_empty_queries(rng):
    collection = datarax.Collection({name: row[0] for name, row in OF_SKLEARN.items()})
    for levels in (2, 4, 1000):
        preds = rng.integers(0, levels, (200, 12)).astype(np.float32) / 8
        target = rng.integers(0, 4, preds.shape) * (rng.random(preds.shape) < rng.random((200, 1)))
        values = update(collection, preds=preds, target=target.astype(np.int32)).compute()
        for name, (_, score, binary) in OF_SKLEARN.items():
            want = score((target > 0).astype(int) if binary else target, preds)
            np.testing.assert_allclose(values[name], want, rtol=1e-6, err_msg=name)


OF_TREC = {
    "ndcg": metrics.NDCG(),
    "ndcg_cut_5": metrics.NDCG(k=5),
    "map": metrics.RetrievalMAP(),
    "map_cut_5": metrics.RetrievalMAP(k=5),
    "recip_rank": metrics.MRR(),
    "P_5": metrics.PrecisionAtK(k=5),
    "P_100": metrics.PrecisionAtK(k=100),
    "recall_5": metrics.RecallAtK(k=5),
    "recall_100": metrics.RecallAtK(k=100),
    "success_5": metrics.HitRate(k=5),
    "Rprec": metrics.RPrecision(),
    "bpref": metrics.Bpref(),
    "infAP": metrics.InferredAP(),
}


TREC_MEASURES = {
    "ndcg", "ndcg_cut.5", "map", "map_cut.5", "recip_rank", "P.5,100", "recall.5,100", "success.5",
    "Rprec", "bpref", "infAP", "iprec_at_recall",
}  # fmt: skip


def trec_run(rng: np.random.Generator, size: int, documents: int) -> dict[str, np.ndarray]:
    """Runs without ties: judged and unjudged documents, of which some were not retrieved."""
    shape = (size, documents)
    retrieved = rng.random(shape) < rng.uniform(0.1, 1, (size, 1))
    retrieved[:, 0] = True  # trec_eval has a value for queries of which a document was retrieved
    judged = rng.random(shape) < rng.uniform(0.1, 1, (size, 1))
    judged[:, 1] = True  # and judged
    pooled = judged | (rng.random(shape) < 0.3)
    target = rng.integers(0, 4, shape) * (rng.random(shape) < rng.uniform(-0.2, 1, (size, 1)))
    return {
        "preds": rng.permuted(np.tile(np.arange(documents), (size, 1)), axis=1).astype(np.float32),
        "target": (target * judged).astype(np.int32),
        "judged": judged,
        "pooled": pooled,
        "retrieved": retrieved,
        "valid": retrieved | pooled,
    }


def of_trec(runs: dict[str, np.ndarray], measures: set[str]) -> list[dict[str, float]]:
    """The values of trec_eval of each query of `trec_run`."""
    # A negative relevance is that of a document of the pool that was not judged.
    target = np.where(runs["judged"], runs["target"], -1)
    run, relevant = (
        {str(q): {f"{d}": kind(x[q, d]) for d in np.flatnonzero(y[q])} for q in range(len(x))}
        for x, y, kind in (
            (runs["preds"], runs["retrieved"], float), (target, runs["pooled"], int)
        )
    )  # fmt: skip
    found = pytrec_eval.RelevanceEvaluator(relevant, measures).evaluate(run)
    assert len(found) == len(runs["preds"])
    return list(found.values())


def test_agrees_with_trec_eval_without_ties(rng):
    runs = trec_run(rng, 60, 30)
    found = of_trec(runs, TREC_MEASURES)
    # trec_eval has 0 for a query without relevant documents.
    collection = datarax.Collection({
        name: metric.replace(empty="zero") for name, metric in OF_TREC.items()
    } | {"curve": metrics.RetrievalPrecisionRecallCurve(empty="zero")})  # fmt: skip
    given = dict(runs)
    # The scores of what was not retrieved are not looked at.
    given["preds"] = np.where(runs["retrieved"], runs["preds"], rng.choice([np.nan, np.inf, 99]))
    padded = update(collection, **given).compute()
    there = runs["valid"]
    ids = np.repeat(np.arange(60), 30).reshape(there.shape)
    rows = {name: x[there] for name, x in given.items() if name != "valid"}
    order = rng.permutation(there.sum())
    flat = update(collection, **{n: x[order] for n, x in (rows | {"query": ids[there]}).items()})
    for name in OF_TREC:
        want = np.mean([each[name] for each in found])
        np.testing.assert_allclose(padded[name], want, rtol=3e-7, err_msg=name)
        np.testing.assert_allclose(flat.compute()[name], want, rtol=3e-7, err_msg=name)
    curve = [np.mean([x[f"iprec_at_recall_{i / 10:.2f}"] for x in found]) for i in range(11)]
    for values in (padded, flat.compute()):
        np.testing.assert_allclose(values["curve"], curve, rtol=3e-7)


def test_levels_of_recall_are_those_of_trec_eval():
    # The i-th relevant document is the i-th triangular number: each level has another precision.
    ranks = np.cumsum(np.arange(1, 46))
    preds = -np.arange(1.0, ranks[-1] + 1)[None].repeat(45, 0)
    relevant = np.searchsorted(ranks, np.arange(1, ranks[-1] + 1))
    here = np.isin(np.arange(1, ranks[-1] + 1), ranks)
    target = (here & (relevant <= np.arange(45)[:, None])).astype(np.int32)
    masks = {"judged": target > 0, "pooled": target > 0, "retrieved": np.ones(preds.shape, bool)}
    found = of_trec({"preds": preds, "target": target, **masks}, {"iprec_at_recall"})
    for i, each in enumerate(found):
        got = metrics.RetrievalPrecisionRecallCurve().update(preds[i : i + 1], target[i : i + 1])
        want = [each[f"iprec_at_recall_{level / 10:.2f}"] for level in range(11)]
        np.testing.assert_allclose(got.results(), want, rtol=1e-12, err_msg=str(i + 1))


def test_options_out_of_range():
    for make in (
        lambda: metrics.RBP(persistence=1.0),
        lambda: metrics.RBP(persistence=np.nan),
        lambda: metrics.ERR(max_grade=101),
        lambda: metrics.ERR(max_grade=0),
        lambda: metrics.RetrievalPrecisionRecallCurve(num_levels=1),
    ):
        with pytest.raises(datarax.MetricInputError, match="expected"):
            make()
    for name in ("judged", "pooled"):
        masks: Any = {name: np.ones((1, 2), np.int32)}
        with pytest.raises(datarax.MetricTypeError, match=f"{name} has dtype int32"):
            metrics.InferredAP().update([[0.5, 0.1]], [[1, 0]], **masks)


def test_an_array_of_levels_in_wrappers(rng):
    batch = QUERIES.draw(rng, 64)
    curve, slices = metrics.RetrievalPrecisionRecallCurve(), rng.integers(0, 2, 64)
    sliced = datarax.Sliced(curve, 2)
    ids = np.repeat(np.arange(64), DOCUMENTS)
    flat = {name: x.reshape(-1) for name, x in batch.items()} | {"query": ids}
    for got in (
        sliced.update(**batch, slices=slices),
        sliced.update(**flat, slices=np.repeat(slices, DOCUMENTS)),
    ):
        for i in range(2):
            rows = {name: x[slices == i] for name, x in batch.items()}
            want = curve.update(**rows).results()
            np.testing.assert_allclose(got.results()[f"{i}"], want, rtol=1e-12)
    interval: Any = datarax.Interval(curve).update(**batch).results()
    np.testing.assert_allclose(interval["value"], curve.update(**batch).results(), rtol=1e-12)
    assert (interval["std_error"] > 0).all()


def test_all_retrieved_is_the_default(rng):
    batch = QUERIES.draw_kind("all retrieved", rng, BATCH)
    assert batch.pop("retrieved").all()
    values = update(COLLECTION, **batch).compute()
    for name, x in update(COLLECTION, **batch, retrieved=np.ones_like(batch["valid"])).items():
        assert_within_ulps(x.compute(), values[name], 0, name=name)
    with pytest.raises(datarax.MetricTypeError, match="retrieved has dtype float32"):
        metrics.NDCG().update(batch["preds"], batch["target"], retrieved=batch["preds"])
    with pytest.raises(datarax.MetricInputError, match=r"retrieved of shape \(1, 2\)"):
        metrics.Novelty(k=1).update([[0.5]], [[0.5]], retrieved=np.ones((1, 2), bool))


def test_the_auroc_of_each_query_is_that_of_scikit_learn(rng):
    preds = rng.integers(0, 5, (100, 12)).astype(np.int8)
    target = (rng.random(preds.shape) < rng.random((100, 1))).astype(np.int32)
    defined = (target.any(1)) & (target.min(1) == 0)
    want = np.mean([
        sklearn.metrics.roc_auc_score(t, p)
        for t, p in zip(target[defined], preds[defined], strict=True)
    ])  # fmt: skip
    got = update(metrics.RetrievalAUROC(), preds, target).compute()
    np.testing.assert_allclose(got, want, rtol=3e-7)


def test_published_examples():
    # Jarvelin and Kekalainen (2002): their G' discounts from the second rank on by log2(rank). The
    # same gains by the discount of today, as on Wikipedia, "Discounted cumulative gain".
    gains = np.array([[3, 2, 3, 0, 1, 2]])
    preds = -np.arange(6.0)[None]
    assert round(float(metrics.DCG().update(preds, gains).compute()), 3) == 6.861
    ideal = metrics.DCG().update(preds, np.array([[3, 3, 2, 2, 1, 0]])).compute()
    assert round(float(ideal), 3) == 7.141
    assert round(float(metrics.NDCG().update(preds, gains).compute()), 3) == 0.961
    # Manning, Raghavan and Schuetze (2008), exercise 8.8: two systems, four relevant documents.
    for judged, average in (("RNRNNNNNRR", 0.6), ("NRNNRRRNNN", 0.493)):
        target = np.array([[x == "R" for x in judged]])
        seen = update(metrics.RetrievalMAP(), -np.arange(10.0, dtype=np.float32)[None], target)
        assert round(float(seen.compute()), 3) == average
    # Wikipedia, "Mean reciprocal rank": the right answers are third, second and first.
    target = np.array([[0, 0, 1], [0, 1, 0], [1, 0, 0]])
    mrr = metrics.MRR().update(np.tile([3.0, 2.0, 1.0], (3, 1)), target).compute()
    assert float(mrr) == pytest.approx(11 / 18)


def test_the_mean_of_a_million_queries_is_exact_to_one_rounding(rng):
    # Each batch holds 2**15 queries, whose reciprocal rank is 1, or 1/2 or 1/4.
    ranks = rng.integers(0, 3, 2**15)
    target = (np.arange(4) == np.array([0, 1, 3])[ranks][:, None]).astype(np.int8)
    preds = np.tile(-np.arange(4, dtype=np.float32), (len(target), 1))
    metric = metrics.MRR()
    for _ in range(32):
        metric = update(metric, preds, target)
    want = np.mean(np.array([1, 0.5, 0.25])[ranks])
    assert float(metric.compute()) == np.float32(want)
    assert float(metric.statistic.weight.value) == 2**20


def test_a_long_tie_and_a_long_query(rng):
    # One relevant document among n that are tied: the expected reciprocal rank is H(n) / n.
    n = 2**12
    target = (np.arange(n) == rng.integers(n)).astype(np.int32)[None]
    preds = np.zeros((1, n), np.float32)
    harmonic = (1 / np.arange(1, n + 1)).sum()
    collection = datarax.Collection({
        "mrr": metrics.MRR(), "hit": metrics.HitRate(k=100), "ndcg": metrics.NDCG(),
        "precision": metrics.PrecisionAtK(k=100), "huge": metrics.RecallAtK(k=2**40),
    })  # fmt: skip
    values = update(collection, preds=preds, target=target).compute()
    np.testing.assert_allclose(values["mrr"], harmonic / n, rtol=3e-7)
    np.testing.assert_allclose(values["hit"], 100 / n, rtol=3e-7)
    np.testing.assert_allclose(values["precision"], 1 / n, rtol=3e-7)
    np.testing.assert_allclose(values["ndcg"], sklearn.metrics.ndcg_score(target, preds), rtol=3e-7)
    np.testing.assert_allclose(values["huge"], 1, rtol=3e-7)
    # Half of them relevant: far from certain, but for the first few ranks impossible.
    half = (rng.permutation(n) < n // 2).astype(np.int32)[None]
    chances = np.append(1, np.cumprod((n - n // 2 - np.arange(n // 2)) / (n - np.arange(n // 2))))
    place = np.arange(1, n // 2 + 2)
    first = chances * (n // 2) / (n - place + 1)
    values = update(collection, preds=preds, target=half).compute()
    np.testing.assert_allclose(values["mrr"], (first / place).sum(), rtol=1e-6)
    np.testing.assert_allclose(values["hit"], 1 - chances[100], rtol=1e-6)


def test_an_error_shows_the_shapes_of_a_large_batch(rng):
    preds = rng.random((20_000, 10), np.float32)
    with pytest.raises(datarax.MetricInputError, match=r"\(20000, 10\) and target .*\(20000, 9\)"):
        metrics.NDCG().update(preds, preds[:, :9])
    with pytest.raises(datarax.MetricInputError, match=r"shape \(200000,\)"):
        metrics.NDCG().update(preds.reshape(-1), preds.reshape(-1))
    with pytest.raises(datarax.MetricInputError, match=r"shape \(\)"):
        metrics.NDCG().update(0.5, 1.0)
    relevant = rng.random((20_000, 10)) < 0.3
    relevant[:, 0] = True
    whole = metrics.NDCG().update(preds, relevant, weights=2.0)
    assert whole.results() == pytest.approx(sklearn.metrics.ndcg_score(relevant, preds), 1e-9)


def test_slices_and_intervals_of_a_large_batch(rng):
    preds, slices = rng.random((4_000, 10), np.float32), rng.integers(0, 2, 4_000)
    relevant = rng.random((4_000, 10)) < 0.3
    relevant[:, 0] = True
    ranked = np.take_along_axis(relevant, np.argsort(-preds, 1), 1)
    best, discounts = np.sort(relevant, 1)[:, ::-1], 1 / np.log2(np.arange(2, 12))
    scores = ranked @ discounts / (best @ discounts)
    interval = datarax.Interval(metrics.NDCG()).update(preds, relevant).results()
    assert interval["value"] == pytest.approx(scores.mean(), 1e-9)
    assert interval["std_error"] == pytest.approx(scores.std() / 4_000**0.5, 1e-3)
    sliced = datarax.Sliced(metrics.NDCG(), 2).update(preds, relevant, slices=slices).results()
    for i in range(2):
        assert sliced[f"{i}"] == pytest.approx(scores[slices == i].mean(), 1e-9)
