"""`ScatterCounts` against NumPy: exact counts in place, past 32 bits, merged, synced and spread."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from datarax import MetricInputError
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.scatter_counts import ScatterCounts, extreme_at
from tests.helpers import compiled_text, make_mesh, over_shards, place, x64

SHAPE = (30, 7)
CELLS = 30 * 7


@jax.jit
def add(tally, places, weights):
    return tally.add(places, weights)


def counted(places, weights):
    """The table by definition, in float64; what lies beyond it is left out."""
    inside = places < CELLS
    table = np.bincount(places[inside], np.asarray(weights, np.float64)[inside], CELLS)
    return table.reshape(SHAPE)


def draws(rng, n=400):
    # More than the table holds: those beyond it do not count.
    return rng.integers(0, CELLS + 40, n).astype(np.int32)


def exact(tally):
    return np.asarray(tally.exact, np.float64)


def test_counts_of_masks_and_of_weights_add_up(rng):
    tally, want = ScatterCounts(SHAPE), np.zeros(SHAPE)
    for weights in (rng.random(400) < 0.7, rng.integers(0, 9, 400) / np.float32(8)) * 3:
        places = draws(rng)
        tally, want = add(tally, places, weights), want + counted(places, weights)
    np.testing.assert_array_equal(exact(tally), want)
    np.testing.assert_array_equal(tally.value, want.astype(np.float32), strict=True)


def test_a_cell_counts_past_32_bits():
    # 2**32 + 2**20 ones in one cell; another is hit once, at the end.
    n = 2**20
    ones, first = jnp.ones(n, jnp.bool_), jnp.zeros(n, jnp.int32)

    def last_before_full(tally):
        # It holds one round since the last flush, and now all that it has room for.
        assert (tally.recent.tolist(), int(tally.pending)) == ([n, 0], n)
        return tally.replace(recent=tally.recent * 2047, pending=tally.pending * 2047)

    tally = add(ScatterCounts((2,)), first, ones)
    for _ in range(2):
        tally = add(last_before_full(tally), first, ones)
    assert np.asarray(tally.exact, np.float64).tolist() == [2.0**32 - n, 0.0]
    tally = add(add(tally, first, ones), first, ones)
    tally = add(tally, np.int32([1]), np.array([True]))
    assert np.asarray(tally.exact, np.float64).tolist() == [2.0**32 + n, 1.0]


@pytest.mark.parametrize("cells", [7, 2**14, 2**14 + 1, 40_000])
def test_the_move_to_wide_words_loses_nothing(cells, rng):
    places, mask = rng.integers(0, cells, 400).astype(np.int32), rng.random(400) < 0.7
    want = 2 * np.bincount(places[mask], minlength=cells)
    nearly = add(ScatterCounts((cells,)), places, mask)
    for pending in (2**31 - 1 - 401, 2**31 - 1 - 400, 2**31 - 1 - 399, 2**31 - 1):
        tally = add(nearly.replace(pending=jnp.int32(pending)), places, mask)
        np.testing.assert_array_equal(exact(tally), want, err_msg=str(pending))
        moved = pending > 2**31 - 1 - 400
        assert int(tally.pending) == (400 if moved else pending + 400)


@pytest.mark.parametrize("kind", ["mask", "weights"])
def test_many_equal_weights_do_not_stall(kind):
    weights = {"mask": np.ones(2**20, bool), "weights": np.full(2**20, 0.1, np.float32)}[kind]
    tally = ScatterCounts((1,))
    for _ in range(20):
        tally = add(tally, np.zeros(2**20, np.int32), weights)
    want = 20.0 * 2**20 * float(weights[0])
    np.testing.assert_allclose(np.asarray(tally.exact, np.float64), want, 1e-6)


def test_an_update_touches_no_more_than_the_batch():
    """The program makes no array of the table's size but the table, in place."""
    tally = jax.tree.map(jnp.asarray, ScatterCounts((1000, 1000)))
    places, mask = jnp.arange(64, dtype=jnp.int32), jnp.ones(64, jnp.bool_)
    update = jax.jit(ScatterCounts.add, donate_argnums=0)
    compiled = update.lower(tally, places, mask).compile()
    assert compiled.memory_analysis().alias_size_in_bytes >= 3 * 4_000_000
    assert compiled.memory_analysis().temp_size_in_bytes < 1_000_000
    main = compiled.as_text().partition("\nENTRY ")[2]
    made = re.findall(r"= \w+\[(?:1000000|1000,1000)\]\S* ([\w-]+)\(", main)
    views = ("parameter", "get-tuple-element", "bitcast")
    assert len([kind for kind in made if kind not in views]) <= 1  # the scatter, if it is no loop
    assert "scatter" in main


def test_merge_is_a_sum_and_reset_its_identity(rng):
    tallies = [add(ScatterCounts(SHAPE), draws(rng), rng.random(400) < 0.5) for _ in range(3)]
    a, b, c = tallies
    one, other = a.merge(b).merge(c), c.merge(b.merge(a))
    np.testing.assert_array_equal(exact(one), sum(map(exact, tallies)))
    np.testing.assert_array_equal(exact(one), exact(other))
    np.testing.assert_array_equal(exact(a.merge(a.reset())), exact(a))
    assert all(
        x is y
        for x, y in zip(*map(jax.tree.leaves, (a.emptied(), ScatterCounts(SHAPE))), strict=True)
    )
    restored = ScatterCounts(SHAPE).load_state_dict(a.state_dict())
    np.testing.assert_array_equal(exact(restored), exact(a))


@pytest.mark.parametrize("cells", [200, 200_000])  # gathered, and merged in parts
@pytest.mark.parametrize("axes", ["auto", "explicit"])
def test_sync_is_exact(axes, cells, rng):
    mesh = make_mesh(axes, {"data": 8})
    places = rng.integers(0, 200, 800).astype(np.int32)

    def step(tally, places):
        tally = tally.varying("data").add(places, jnp.ones(places.shape, jnp.bool_))
        big = jnp.full((1,), 2.0**24 + 1, jnp.float32)  # odd: it needs both words
        return tally.add(jnp.zeros(1, jnp.int32), big).sync("data")

    fold = over_shards(step, mesh, (P(), P("data")), P())
    synced = jax.block_until_ready(fold(ScatterCounts((cells,)), place(places, mesh, P("data"))))
    want = np.bincount(places, minlength=cells).astype(np.float64)
    want[0] += 8 * 2.0**24
    np.testing.assert_array_equal(exact(synced), want)


@pytest.mark.parametrize("axes", ["auto", "explicit"])
def test_a_sharded_batch_into_a_replicated_table(axes, rng):
    mesh = make_mesh(axes, {"data": 8})
    places, mask = draws(rng), rng.random(400) < 0.7
    with jax.set_mesh(mesh):
        tally = jax.block_until_ready(
            add(ScatterCounts(SHAPE), *place((places, mask), mesh, P("data")))
        )
        np.testing.assert_array_equal(exact(tally), counted(places, mask))


def test_vmap_over_tables(rng):
    places, mask = draws(rng).reshape(4, 100), rng.random((4, 100)) < 0.7
    stacked = jax.tree.map(lambda x: jnp.broadcast_to(x, (4, *jnp.shape(x))), ScatterCounts(SHAPE))
    mapped = jax.jit(jax.vmap(ScatterCounts.add))(stacked, places, mask)
    for i in range(4):
        one = jax.tree.map(lambda x, i=i: x[i], mapped)
        np.testing.assert_array_equal(exact(one), counted(places[i], mask[i]))


def test_with_64_bit_types(rng):
    with x64():
        places, mask = draws(rng), rng.random(400) < 0.7
        tally = ScatterCounts(SHAPE).add(jnp.asarray(places), jnp.asarray(mask))
        tally = tally.add(jnp.asarray(places), jnp.asarray(mask, jnp.float64))
        assert tally.value.dtype == jnp.float64
        np.testing.assert_array_equal(tally.value, 2 * counted(places, mask))


def test_a_table_that_no_index_reaches():
    with pytest.raises(MetricInputError, match=r"\(65536, 65536\).*2\*\*31"):
        ScatterCounts((65536, 65536))


@pytest.mark.parametrize("op", ["max", "min"])
def test_extremes_in_place(op, rng):
    start = -np.inf if op == "max" else np.inf
    acc = MetricAccumulator(np.full(SHAPE, start, np.float32), op)
    want = np.full(CELLS + 40, start, np.float32)
    fold = jax.jit(extreme_at)
    batches = [(draws(rng), rng.normal(size=400).astype(np.float32)) for _ in range(3)]
    for places, values in batches:
        acc = fold(acc, places, values)
        getattr(np, f"{op}imum").at(want, places, values)
    np.testing.assert_array_equal(acc.value, want[:CELLS].reshape(SHAPE), strict=True)
    assert "scatter" in compiled_text(fold, acc, *batches[0])
