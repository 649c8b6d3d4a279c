"""Groups that batches or devices cut are found; groups that are whole are not accused."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import datarax
from datarax import CutGroupsWarning
from datarax.metrics import MRR, NDCG, CatalogCoverage, Novelty
from datarax.statistics.cut_groups import CutGroups
from tests.helpers import make_mesh, place, update, x64


def is_found(metric) -> bool:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        metric.results()
    return any(issubclass(each.category, CutGroupsWarning) for each in seen)


def rows_of(rng, ids):
    return {
        "preds": rng.random(ids.size).astype(np.float32),
        "target": rng.integers(0, 2, ids.size),
        "query": ids,
    }


def queries(rng, count, start=0):
    """The ids of the rows of several queries of two to six documents."""
    return np.repeat(np.arange(count, dtype=np.int32) + start, rng.integers(2, 7, count))


def test_the_hash_is_that_of_all_dtypes(rng):
    ids = rng.integers(-100, 100, 12)
    seen = [
        update(CutGroups(), ids.astype(dtype)).ends.parts[0]
        for dtype in ("int8", "int16", "int32", "int64")
    ]
    seen.append(jax.jit(CutGroups.update)(CutGroups(), jnp.asarray(ids, jnp.int32)).ends.parts[0])
    for each in seen:
        np.testing.assert_array_equal(each, seen[0])
    wide = np.array([2**40 + 1, 2**40 + 1, 1])  # the low words are equal
    assert not update(update(CutGroups(), wide), wide[::-1] + 2**41).found()


def test_with_x64():
    with x64():
        seen = jax.jit(CutGroups.update)(CutGroups(), np.array([1, 1, 2]))
        assert not CutGroups().found()
        assert not seen.found()
        assert jax.jit(CutGroups.update)(seen, np.array([2, 3])).found()


def test_batches_that_cut_queries_are_found_in_any_order_of_merges(rng):
    for count in (3, 40, 2000):
        ids = queries(rng, count)
        size = int(rng.integers(5, 20))
        ids = ids[: ids.size // size * size]
        if (ids[size - 1 : -1 : size] != ids[size::size]).all():
            continue  # by chance, no query is cut
        parts = [update(CutGroups(), part) for part in np.split(ids, ids.size // size)]
        for _ in range(3):
            whole = CutGroups()
            for i in rng.permutation(len(parts)):
                whole = whole.merge(parts[i])
            assert whole.found()


@pytest.mark.parametrize("local", [False, True], ids=("one numbering", "numbered anew"))
def test_queries_that_are_whole_are_never_accused(rng, local):
    seen, start = CutGroups(), 0
    for _ in range(300):
        count = int(rng.integers(1, 12))
        ids = queries(rng, count, 0 if local else start)
        if not local:
            rng.shuffle(ids)
        seen, start = update(seen, ids), start + count
    assert not seen.found()
    # Nor is padding: its rows may have any id.
    for counted in (np.arange(6) < 4, np.zeros(6, bool)):
        seen = update(seen, np.array([1, 1, 2, 2, 0, 0]) + 10**6, counted)
        seen = update(seen, np.array([3, 3, 4, 4, 1, 1]) + 10**6, counted)
    assert not seen.found()


def cut(rng):
    """Rows of queries, of which an odd place, where they are halved, cuts one."""
    ids = np.repeat(np.arange(8, dtype=np.int32), 3)
    return rows_of(rng, ids), 13


def test_each_metric_of_groups_says_that_they_were_cut(rng):
    rows, at = cut(rng)
    masks = {"valid": np.ones(24, bool), "weights": np.ones(24, np.float32)}
    popularity = {"preds": rows["preds"], "popularity": np.full(24, 0.5), "query": rows["query"]}
    items = {"preds": rows["preds"], "items": rows["target"], "query": rows["query"]}
    metrics = {
        "NDCG": (NDCG(), rows),
        "MRR": (MRR(), rows | masks),
        "Novelty": (Novelty(k=2), popularity),
        "CatalogCoverage": (CatalogCoverage(num_items=2, k=1), items),
        "Interval": (datarax.Interval(NDCG()), rows),
        "Collection": (datarax.Collection({"a": NDCG(), "b": MRR()}), rows),
        "Transformed": (datarax.Transformed(NDCG()), rows),
        "Sliced": (datarax.Sliced(NDCG(), 2), rows | {"slices": rows["query"] % 2}),
    }
    for name, (metric, takes) in metrics.items():
        parts = (np.s_[:at], np.s_[at:])
        halves = [{argument: x[part] for argument, x in takes.items()} for part in parts]
        assert is_found(update(update(metric, **halves[0]), **halves[1])), name
        assert not is_found(update(metric, **takes)), name
        merged = update(metric, **halves[1]).merge(update(metric, **halves[0]))
        assert is_found(merged), name
        assert not is_found(merged.reset()), name


def test_devices_that_cut_queries_inside_jit_are_found(rng):
    rows, _ = cut(rng)
    mesh = make_mesh("auto", {"data": 8})
    step = jax.jit(lambda metric, rows: metric.update(**rows))
    whole = place(rows, mesh, P("data"))  # three rows on each device: no query is cut
    apart = place({**rows, "query": np.roll(rows["query"], 1)}, mesh, P("data"))
    metric = datarax.per_device(NDCG(), mesh, "data")
    assert not is_found(step(metric, whole))
    assert is_found(step(metric, apart))
    # A program on global arrays sees whole queries.
    assert not is_found(step(NDCG(), apart))

    def local(rows):
        return NDCG().update(**rows).sync("data")

    mapped = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("data"), out_specs=P()))
    assert is_found(mapped(apart))
    assert not is_found(mapped(whole))
    # A collector says it, too, and a state that was saved.
    with datarax.AsyncMetricCollector(metric) as collector:
        collector.schedule_collection(step(metric, apart))
        with pytest.warns(CutGroupsWarning, match="PerDevice: rows .* in several updates"):
            collector.collect_results()
    assert is_found(NDCG().load_state_dict(step(metric, apart).state_dict()))
