"""The flat form, where rows are documents: wrappers, devices, invalid data, refusals."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import datarax
from datarax import metrics
from tests.helpers import make_mesh, update

QUERIES, DOCUMENTS = 24, 4


def padded(rng: np.random.Generator) -> dict[str, np.ndarray]:
    shape = (QUERIES, DOCUMENTS)
    preds = rng.integers(0, 6, shape).astype(np.float32)
    return {"preds": preds, "target": rng.integers(0, 2, shape).astype(np.int32)}


def flat(batch: dict[str, np.ndarray], ids: np.ndarray, order: np.ndarray) -> dict[str, np.ndarray]:
    """The same, with `ids` as the query of each row, and arrays of one value for each query."""
    rows = {
        name: x.ravel() if x.ndim == 2 else np.repeat(x, DOCUMENTS) for name, x in batch.items()
    }
    return {name: x[order] for name, x in (rows | {"query": np.repeat(ids, DOCUMENTS)}).items()}


def assert_close(a: Any, b: Any) -> None:
    """Equal but for the last digit of a sum, which depends on the order of the documents."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=2**-22)


def test_slices_and_replicas_are_of_whole_queries(rng):
    ids = rng.permutation(10 * QUERIES)[:QUERIES].astype(np.int32)
    order = rng.permutation(QUERIES * DOCUMENTS)
    batch = padded(rng)
    sliced = datarax.Sliced(metrics.NDCG(), 3)
    slices = {"slices": rng.integers(0, 3, QUERIES).astype(np.int32)}
    want = update(sliced, **batch, **slices).compute()
    assert_close(update(sliced, **flat(batch | slices, ids, order)).compute(), want)
    index = {"index": ids}
    replicas = datarax.Bootstrap(datarax.Collection({"mrr": metrics.MRR()}), 20)
    want = update(replicas, **batch, **index).compute()
    got = update(replicas, **flat(batch | index, ids, order)).compute()
    for name, value in want.items():
        np.testing.assert_allclose(got[name]["mrr"], value["mrr"], rtol=1e-6)
    # Each query has the reciprocal rank 1/2, but not if some of its documents were left out.
    alike = {
        "preds": np.tile(np.arange(DOCUMENTS, dtype=np.float32), (QUERIES, 1)),
        "target": np.tile(np.array([1, 0, 1, 0], np.int32), (QUERIES, 1)),
    }
    for given in ({}, index):
        found = update(replicas, **flat(alike | given, ids, order)).compute()
        assert {name: float(x["mrr"]) for name, x in found.items()} == {
            "value": 0.5,
            "lower": pytest.approx(np.nan, nan_ok=True),  # as all replicas are equal
            "upper": pytest.approx(np.nan, nan_ok=True),
            "std_error": 0.0,
        }


def test_both_models_of_a_comparison_draw_the_same_queries(rng):
    batch = padded(rng)
    # The second ranks irrelevant documents in another order, which changes no reciprocal rank.
    batch["preds"] = rng.permuted(np.tile(np.arange(4), (QUERIES, 1)), axis=1).astype(np.float32)
    batch["target"] = (batch["preds"] == 1).astype(np.int32)
    other = np.where(batch["preds"] > 1, 5 - batch["preds"], batch["preds"]).astype(np.float32)
    batch["target"][: QUERIES // 2] = 1  # so that not all have one reciprocal rank
    both = {"preds_a": batch.pop("preds"), "preds_b": other, **batch}
    ids = np.arange(QUERIES, dtype=np.int32)
    rows = flat(both, ids, rng.permutation(QUERIES * DOCUMENTS))
    found = update(datarax.Compare(metrics.MRR(), replicas=20), **rows).compute()
    assert float(found["difference"]) == 0
    assert np.isnan([found["lower"], found["upper"]]).all()  # all replicas are equal


def test_documents_of_a_query_are_on_one_device(rng):
    mesh = make_mesh("auto", {"data": 4})
    ids, order = np.arange(QUERIES, dtype=np.int32), np.arange(QUERIES * DOCUMENTS)
    batch = padded(rng)
    rows = flat(batch, ids, order)
    metric = datarax.per_device(metrics.MRR(), mesh, "data")
    want = update(metrics.MRR(), **batch).compute()
    assert_close(metric.update(**rows).compute(), want)
    moved = {name: np.roll(x, 1) for name, x in rows.items()}
    with pytest.raises(datarax.MetricInputError, match="query=5 has rows on several devices"):
        metric.update(**moved)
    with pytest.raises(datarax.MetricInputError, match=r"'rank'.*several devices"):
        datarax.per_device(datarax.Collection({"rank": metrics.MRR()}), mesh, "data").update(
            **{name: jnp.asarray(x) for name, x in moved.items()}
        )
    # Rows of weight zero may be anywhere.
    alone = np.ones(QUERIES * DOCUMENTS, bool)
    alone[moved["query"] == QUERIES - 1] = False
    cut = {name: x[:-1] for name, x in (moved | {"query": ids[:1].repeat(len(alone))}).items()}
    assert np.isnan(metric.update(**cut, weights=np.zeros(len(cut["query"]), bool)).compute())

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=P("data"), out_specs=P())
    def synced(rows):
        return metrics.MRR().update(**rows).sync("data").compute()

    assert_close(jax.block_until_ready(synced(rows)), want)


def test_a_document_that_cannot_be_used_excludes_its_query(rng):
    batch = padded(rng) | {"weights": np.ones(QUERIES, np.float32)}
    batch["preds"][3, 1] = batch["preds"][3, 2] = np.nan
    batch["target"][5, 0] = -2
    batch["weights"][[7, 8]] = np.inf, 0
    batch["preds"][8] = np.nan
    rows = flat(batch, np.arange(QUERIES, dtype=np.int32), rng.permutation(QUERIES * DOCUMENTS))
    metric = metrics.MRR(on_invalid="exclude")
    kinds = r"3 values .*1 NaN, 1 out of range, 1 with weights that are NaN.*, for example -2"
    with pytest.warns(datarax.InvalidValuesWarning, match=kinds):
        want = update(metric, **batch).compute()
    with pytest.warns(datarax.InvalidValuesWarning, match=kinds):
        assert_close(update(metric, **rows).compute(), want)
    assert 0 < want <= 1
    # Weights that differ within a query have no meaning.
    clean = padded(rng) | {"weights": np.ones(QUERIES, np.float32)}
    rows = flat(clean, np.arange(QUERIES, dtype=np.int32), np.arange(QUERIES * DOCUMENTS))
    rows["weights"][[2, 9]] = 0.5
    assert int(update(metric, **rows).invalid_count()) == 2
    clean["weights"][[0, 2]] = 0
    with pytest.warns(datarax.InvalidValuesWarning):
        value = update(metric, **rows).compute()
    assert_close(value, update(metric, **clean).compute())


def test_scores_of_any_dtype_and_graded_relevance(rng):
    batch = padded(rng)
    want = update(metrics.MRR(), **batch).compute()
    # A float32 would make ties of these scores.
    large = batch | {"preds": batch["preds"].astype(np.int32) + 2**30}
    assert_close(update(metrics.MRR(), **large).compute(), want)
    metric = metrics.DCG(gain="exponential")
    graded = update(metric, np.float32([[2, 1]]), np.float32([[0.5, 100]])).compute()
    np.testing.assert_allclose(graded, (2**0.5 - 1) + (2.0**100 - 1) / np.log2(3), rtol=3e-7)
    with pytest.warns(datarax.InvalidValuesWarning, match="1 out of range, for example 101"):
        assert np.isnan(update(metric, np.float32([[2, 1]]), np.float32([[0, 101]])).compute())


def test_refusals():
    x, ids = np.ones(4, np.float32), np.zeros(4, np.int32)
    cases: list[tuple[tuple[Any, ...], dict[str, Any], Any, str]] = [
        ((x, x), {}, datarax.MetricInputError, r"expected \(Q, D\).*or \(N,\) with query="),
        ((x[:, None], x), {}, datarax.MetricInputError, r"\(4, 1\) and target of shape \(4,\)"),
        ((x, x), {"query": x}, datarax.MetricTypeError, "query has dtype float32"),
        ((x, x), {"query": ids[:3]}, datarax.MetricInputError, r"query of shape \(3,\)"),
        ((x[None], x[None]), {"query": ids[None]}, datarax.MetricInputError, "Leave query= out"),
        ((x[None], x[None]), {"valid": x[None]}, datarax.MetricTypeError, "valid has dtype"),
        ((x[None], x[None]), {"valid": x > 0}, datarax.MetricInputError, "valid of shape"),
        ((x[None], x[None]), {"weights": x}, datarax.MetricInputError, "weights of shape"),
    ]
    for args, kwargs, error, match in cases:
        with pytest.raises(error, match=match):
            metrics.MRR().update(*args, **kwargs)
    for make, match in (
        (lambda: metrics.PrecisionAtK(k=0), "k=0"),
        (lambda: metrics.PrecisionAtK(k=None), "k=None"),
        (lambda: metrics.NDCG(k=2.5), "k=2.5"),
        (lambda: metrics.NDCG(gain="square"), "linear"),
        (lambda: metrics.MRR(empty="nan"), "skip"),
    ):
        with pytest.raises(datarax.MetricInputError, match=match):
            make()


def test_no_documents_at_all():
    none = np.zeros((2, 0), np.float32)
    assert float(metrics.DCG().update(none, none).compute()) == 0
    assert float(metrics.MRR(empty="one").update(none, none).compute()) == 1
    assert np.isnan(metrics.MRR().update(none, none).compute())
    nothing = metrics.MRR().update(none[0], none[0], query=none[0].astype(np.int32))
    assert np.isnan(nothing.compute())
