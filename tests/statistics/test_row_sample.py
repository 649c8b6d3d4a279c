"""`RowSample`: as many rows of each stratum, those with the least keys, in any order."""

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import datarax
from datarax.algebra.devices import sync_states
from datarax.metrics import Mean
from datarax.metrics.clustering.point_sample import ClusteredPoints
from datarax.statistics.row_sample import RowSample
from datarax.statistics.score_sample import ScoreSample
from tests.helpers import make_mesh, over_shards

STRATA, CAPACITY = 5, 40


def kept(stratum, keys):
    """The rows that are kept, in order, by the definition."""
    counts = np.bincount(stratum, minlength=STRATA)
    quota = max(q for q in range(CAPACITY + 1) if np.minimum(counts, q).sum() <= CAPACITY)
    rows = []
    for each in range(STRATA):
        own = np.flatnonzero(stratum == each)
        rows.extend(own[np.argsort(keys[own])][:quota])
    return np.array(rows, int)


def drawn(rng, rows):
    shares = rng.dirichlet(np.ones(STRATA) / 2)
    stratum = rng.choice(STRATA, rows, p=shares).astype(np.int32)
    keys = rng.permutation(2**32 - 1)[:rows] if rows > 2**20 else rng.integers(0, 2**32, rows)
    return stratum, keys.astype(np.uint32)


def sampled(stratum, keys, parts=1, keep=None):
    keep = np.ones(len(keys), bool) if keep is None else keep
    rows = np.arange(len(keys), dtype=np.float32)[:, None]
    states = []
    for part in np.array_split(np.arange(len(keys)), parts):
        empty = RowSample(STRATA, CAPACITY, 1)
        states.append(empty.plus(rows[part], stratum[part], keys[part], keep[part]))
    return states


def rows_in(state):
    return np.asarray(state.data)[np.asarray(state.is_row), 0].astype(int)


plus = jax.jit(RowSample.plus)
combined = jax.jit(RowSample.combine)


@pytest.mark.parametrize("rows", [0, 7, 40, 41, 300, 4000])
def test_which_rows_are_kept_is_a_function_of_all_rows(rows, rng):
    stratum, keys = drawn(rng, rows)
    want = kept(stratum, keys)
    (whole,) = sampled(stratum, keys)
    np.testing.assert_array_equal(rows_in(whole), want)
    # In any order of merging, and row by row.
    states = sampled(stratum, keys, 6)
    order = rng.permutation(6)
    left, right = (states[i] for i in order[:2])
    merged = left.combine(right)
    for i in order[2:]:
        merged = states[i].combine(merged) if rng.random() < 0.5 else merged.combine(states[i])
    for state in (merged, combined(left, right)) if rows else (merged,):
        if state is merged:
            np.testing.assert_array_equal(rows_in(state), want)
        assert int(np.asarray(state.is_row).sum()) <= CAPACITY
    assert jax.tree.all(jax.tree.map(np.array_equal, merged, whole))
    one = RowSample(STRATA, CAPACITY, 1)
    data = np.arange(rows, dtype=np.float32)[:, None]
    for start in range(0, rows, 97):
        part = slice(start, start + 97)
        given = data[part], stratum[part], keys[part], np.ones(len(data[part]), bool)
        on_device = start % 2 and len(data[part]) == 97  # parts of one size, for one program
        one = jax.device_get(plus(one, *given)) if on_device else one.plus(*given)
    np.testing.assert_array_equal(rows_in(one), want)


def test_rows_that_do_not_count_take_no_room(rng):
    stratum, keys = drawn(rng, 200)
    keep = rng.random(200) < 0.3
    (state,) = sampled(stratum, keys, keep=keep)
    want = np.flatnonzero(keep)[kept(stratum[keep], keys[keep])]
    np.testing.assert_array_equal(rows_in(state), want)


@pytest.mark.parametrize("small", [0, 1 << 20])
def test_over_devices(small, rng):
    stratum, keys = drawn(rng, 800)
    keys[::17] = 2**32 - 1  # the greatest key is a key, too
    data = np.arange(800, dtype=np.float32)[:, None]
    mesh = make_mesh("auto", {"d": 8})

    def program(data, stratum, keys):
        own = RowSample(STRATA, CAPACITY, 1).plus(data, stratum, keys, keys == keys)
        return sync_states([own], ("d",), small=small)[0]

    run = jax.jit(jax.shard_map(program, mesh=mesh, in_specs=P("d"), out_specs=P()))
    (whole,) = sampled(stratum, keys)
    assert jax.tree.all(jax.tree.map(np.array_equal, run(data, stratum, keys), whole))


def test_it_holds_what_is_rare_and_says_what_each_row_stands_for(rng):
    rows = 100_000
    target = (rng.random(rows) < 0.01).astype(np.int32)
    preds = rng.beta(1 + target, 3 - 2 * target).astype(np.float32)
    w = rng.integers(0, 3, rows).astype(np.float32)
    seen = ScoreSample().update(preds, target, weights=w)
    assert sum(x.nbytes for x in jax.tree.leaves((seen.rows, seen.total))) <= 1 << 16
    sample = seen.sampled()
    used = sample.weights > 0
    assert used.sum() > 2500
    assert sample.positive[0][used].mean() > 0.1  # a tenth, of one row in a hundred
    # Each stratum counts as many rows as there were.
    np.testing.assert_allclose(sample.stands_for[used].sum(), (w > 0).sum(), rtol=1e-5)
    for label in (0, 1):
        own = used & (sample.positive[0] == label)
        count = sample.stands_for[own].sum()
        np.testing.assert_allclose(count, ((w > 0) & (target == label)).sum(), rtol=1e-5)
        mean = (sample.stands_for * sample.scores[0, 0])[own].sum() / count
        want = preds[(w > 0) & (target == label)]
        assert abs(mean - want.mean()) < 6 * want.std() / np.sqrt(own.sum())
    # The batches change nothing if rows have ids, and padding changes nothing at all.
    index = np.arange(rows)
    by_id = ScoreSample().update(preds, target, index=index)
    halves = [
        ScoreSample().update(preds[part], target[part], index=index[part])
        for part in np.array_split(rng.permutation(rows), 3)
    ]
    merged = halves[2].merge(halves[0].merge(halves[1]))
    assert jax.tree.all(jax.tree.map(np.array_equal, merged.rows, by_id.rows))
    padded = [np.concatenate([x, np.zeros(5, x.dtype)]) for x in (preds, target, w)]
    again = ScoreSample().update(*padded[:2], weights=padded[2])
    assert jax.tree.all(jax.tree.map(np.array_equal, again.rows, seen.rows))


def samples(rng):
    """A state of each kind that draws rows by their keys, with rows for it."""
    x, target = rng.random(160, np.float32), rng.integers(0, 2, 160).astype(np.int32)
    return {
        "scores": (ScoreSample(), (x, target)),
        "replicas": (datarax.Bootstrap(Mean(), 20), (x,)),
        "points": (ClusteredPoints(2, 1, 32), (x[:, None], target)),
    }


@pytest.mark.parametrize("kind", ["scores", "replicas", "points"])
def test_rows_that_were_gathered_have_the_same_keys_on_all_devices(kind, rng):
    empty, rows = samples(rng)[kind]

    def program(state, *rows):
        for i in range(2):
            state = state.update(*(lax.all_gather(x[i::2], "data", tiled=True) for x in rows))
        return state.sync("data")

    specs = (P(), *(P("data") for _ in rows))
    got = over_shards(program, make_mesh("auto", {"data": 8}), specs, P())(empty, *rows)
    want = empty
    for i in range(2):
        parts = (x.reshape(8, 20, *x.shape[1:])[:, i::2] for x in rows)
        want = want.update(*(x.reshape(80, *x.shape[2:]) for x in parts))
    if isinstance(empty, datarax.Metric):
        assert got.results() == pytest.approx(want.results(), rel=1e-6)
    else:
        # Each row once, and with the key that it has on the host.
        np.testing.assert_array_equal(got.rows.keys, want.rows.keys)


def test_wrong_ids():
    with pytest.raises(datarax.MetricInputError, match=r"index of shape \(2,\) for 3 rows"):
        ScoreSample().update(np.ones(3), np.array([0, 1, 1]), index=np.arange(2))
