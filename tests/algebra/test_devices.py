"""`sync` on simulated devices: the merge of all copies, on every one, in how many collectives."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from datarax import AxisNotBoundError, Collection, Metric, MetricAccumulator, Sliced, Window
from datarax.algebra.devices import SMALL_BYTES, sync_states
from datarax.algebra.pytrees import map_leaf_states
from datarax.metrics import (
    AUROC,
    Cardinality,
    ConfusionMatrix,
    LastValue,
    Mean,
    MinMax,
    R2Score,
    SpearmanCorrCoef,
    Std,
)
from datarax.statistics import Buffer, Moments
from tests.helpers import (
    assert_same,
    bits,
    collectives_in,
    draw,
    fsum,
    long,
    make_mesh,
    over_shards,
    place,
    update,
    x64,
)

AXES = {"one": ({"data": 8}, "data"), "two": ({"data": 4, "model": 2}, ("data", "model"))}
BIG = 2**40


class Everything(Metric):
    """One of each kind of state, of shape (size,), and a vector of none."""

    def __init__(self, size=3):
        self.size = size
        vector = np.zeros(size)
        self.floats = MetricAccumulator(vector + 100)
        self.counts = MetricAccumulator(vector.astype(int) - 7)
        self.most = MetricAccumulator(vector.astype(np.int32) - 1000, "max")
        self.highest = MetricAccumulator(vector - np.inf, "max")
        self.lowest = MetricAccumulator(vector + np.inf, "min")
        self.moments = Moments((size,))
        self.kept = Buffer(5, (size,))

    def update(self, values, counts, weights=None):
        where = None if weights is None else weights > 0
        return self.replace(
            floats=self.floats.update(values, where=where),
            counts=self.counts.update(counts, where=where),
            most=self.most.update(counts, where=where),
            highest=self.highest.update(values, where=where),
            lowest=self.lowest.update(values, where=where),
            moments=self.moments.update(values, weights=weights),
            kept=self.kept.update(values, weights=weights),
        )


def a_batch(rng, size, rows=24):
    """For 8 devices of 3 rows each; one device, at least, without an example."""
    values = draw(rng, (rows, size))
    counts = rng.integers(-(2**31), 2**31, (rows, size)).astype(np.int32)
    weights = (rng.random(rows) < 0.6).astype(np.float32)
    weights[:3], weights[3] = 0, 1
    return values, counts, weights


def check(got, values, counts, weights):
    """Against the batch as a whole, in NumPy; the floats are exact in any order (see helpers)."""
    on = weights > 0
    values, counts = values[on], counts[on].astype(np.int64)
    np.testing.assert_array_equal(got.floats.value, values.sum(0) + 100)
    np.testing.assert_array_equal(got.counts.value, counts.sum(0) - 7)
    np.testing.assert_array_equal(got.most.value, np.maximum(counts.max(0), -1000))
    np.testing.assert_array_equal(got.highest.value, values.max(0))
    np.testing.assert_array_equal(got.lowest.value, values.min(0))
    wide = values.astype(np.float64)
    np.testing.assert_array_equal(got.moments.count, len(values))
    np.testing.assert_allclose(got.moments.mean, wide.mean(0), 1e-6, 1e-6)
    np.testing.assert_allclose(got.moments.variance(), wide.var(0), 1e-5)
    np.testing.assert_array_equal(got.kept.data, values[:5])
    assert int(got.kept.overflow) == len(values) - 5


def run_once(function, *args):
    """The result of a jitted function, its program, and the collectives in it."""
    program = function.lower(*args).compile()
    return jax.block_until_ready(program(*args)), program, collectives_in(program.as_text())


def synced(size, axis_name):
    def run(values, counts, weights):
        return Everything(size).update(values, counts, weights).sync(axis_name)

    return run


@pytest.mark.parametrize(("kind", "axes"), [("auto", "one"), ("explicit", "two")])
def test_every_kind_of_state_in_one_collective(rng, kind, axes):
    sizes, names = AXES[axes]
    mesh, batch = make_mesh(kind, sizes), a_batch(rng, 3)
    # The replication check is on, and takes the result for replicated: out_specs is P().
    run = over_shards(synced(3, names), mesh, P(names), P())
    placed = place(batch, mesh, P(names))
    got, program, collectives = run_once(run, *placed)
    check(got, *batch)
    assert collectives == {"all-reduce": 1}
    again = jax.block_until_ready(program(*placed))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(again), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_a_large_state_costs_at_most_one_collective_a_kind(rng):
    size = 20_000
    sizes, names = AXES["two"]  # over one axis: in tests/wrappers/test_per_device.py
    state_bytes = sum(x.nbytes for x in jax.tree.leaves(Everything(size)))
    assert 8 * state_bytes > SMALL_BYTES
    mesh, batch = make_mesh("auto", sizes), a_batch(rng, size)
    run = over_shards(synced(size, names), mesh, P(names), P())
    got, _, collectives = run_once(run, *place(batch, mesh, P(names)))
    check(got, *batch)
    # The parts that devices merge; integers and merged parts; maxima and minima, some of them after
    # others. (Sums of integers, sums of floats, maxima, minima, moments and rows are six kinds.)
    assert collectives["all-to-all"] == 1
    assert collectives["all-reduce"] <= 3
    assert collectives.total() <= 4


def test_large_states_of_one_kind(rng):
    mesh = make_mesh("auto", {"data": 8})
    x = jnp.arange(8, dtype=jnp.int32)
    in_parts = {"all-to-all": 1, "all-reduce": 1}
    for start, cost in ((np.zeros(300_000), in_parts), (np.zeros(300_000, int), {"all-reduce": 1})):
        many = MetricAccumulator(start)
        update = lambda x, many=many: many.update(jnp.broadcast_to(x, (300_000,))).sync("data")  # noqa: E731
        got, _, collectives = run_once(over_shards(update, mesh, P("data"), P()), x)
        np.testing.assert_array_equal(np.asarray(got.value), np.full(300_000, 28))
        assert collectives == cost


# The two ways, on any number of devices.


def every_state(rng, rows):
    """Leaf states of all sorts in one metric, and a batch for them; weights are thirds."""
    metric = Collection(
        {
            "area": AUROC(bits=10).from_outputs(preds="scores", target="hits"),
            "confusion": ConfusionMatrix(num_classes=5).from_outputs(preds="a", target="b"),
            "distinct": Cardinality(precision=6).from_outputs(values="a"),
            "last": LastValue().from_outputs(values="scores", step="step"),
            "mean": Mean().from_outputs(values="scores"),
            "pairs": SpearmanCorrCoef(exact=True, capacity=rows // 2).from_outputs(
                preds="scores", target="others"
            ),
            "r2": R2Score().from_outputs(preds="scores", target="others"),
            "range": MinMax().from_outputs(values="others"),
        }
    )
    batch = {
        "scores": rng.normal(1000, 1, rows).astype(np.float32),
        "others": rng.normal(0, 1e3, rows).astype(np.float32),
        "hits": rng.integers(0, 2, rows),
        "a": rng.integers(0, 5, rows),
        "b": rng.integers(0, 5, rows),
        "step": rng.permutation(rows).astype(np.int32),
        "weights": (rng.integers(0, 4, rows) / 3).astype(np.float32),
    }
    batch["weights"][: rows // 6] = 0  # some devices have nothing
    return metric, batch


def seen_by_each(metric, devices, *args, **kwargs):
    """The states of devices that have as many rows each, computed on the host and stacked."""

    def part(tree, i):
        return jax.tree.map(lambda x: np.split(x, devices)[i], tree)

    seen = [update(metric, *part(args, i), **part(kwargs, i)) for i in range(devices)]
    return jax.tree.map(lambda *x: np.stack(x), *seen)


def merged_in_all_ways(copies, mesh, at_once):
    """The merges of stacked states: gathered, and in parts with each of `at_once`."""
    names = mesh.axis_names
    ways = [{"small": 2**30}, *({"small": 0, "at_once": most} for most in at_once)]

    def run(copies):
        seen = jax.tree.map(lambda x: x[0], copies)
        return [
            map_leaf_states(lambda s, way=way: sync_states(s, names, **way), seen) for way in ways
        ]

    return run_once(over_shards(run, mesh, P(names), P()), place(copies, mesh, P(names)))[0]


@pytest.mark.parametrize(
    ("sizes", "masked", "at_once"),
    [
        ((8,), False, (8, 2)),  # at once; and in sections of 2, then between them
        pytest.param((5,), True, (8,), marks=long),
        pytest.param((6,), False, (2,), marks=long),
        pytest.param((2, 3), True, (8,), marks=long),
        ((4, 2), False, (2,)),  # axis by axis, and the first in two stages
    ],
    ids=str,
)
def test_merging_in_parts_equals_gathering(rng, sizes, masked, at_once):
    devices = math.prod(sizes)
    mesh = jax.make_mesh(
        sizes,
        ("a", "b")[: len(sizes)],
        axis_types=(AxisType.Auto,) * len(sizes),
        devices=jax.devices()[:devices],
    )
    metric, batch = every_state(rng, 24 * devices)
    if masked:
        batch["weights"] = batch["weights"] > 0
    copies = seen_by_each(metric, devices, **batch)
    gathered, *in_parts = merged_in_all_ways(copies, mesh, at_once)
    for each in in_parts:
        assert bits(each) == bits(gathered)


def test_rows_beyond_the_capacity_are_lost_in_the_same_order(rng):
    mesh = make_mesh("auto", {"data": 8})
    x = rng.integers(-100, 100, (80, 3)).astype(np.int8)
    keep = rng.random(80) < 0.5

    def run(x, keep):
        kept = Buffer(capacity=17, shape=(3,), dtype="int8").varying("data")
        kept = kept.update(x, weights=keep)
        return map_leaf_states(lambda s: sync_states(s, ("data",), small=0), kept)

    got, _, collectives = run_once(over_shards(run, mesh, P("data"), P()), x, keep)
    np.testing.assert_array_equal(got.data, x[keep][:17])
    assert (int(got.filled), int(got.overflow)) == (17, keep.sum() - 17)
    assert collectives == {"all-reduce": 2}


def test_slices_of_windows_in_parts(rng):
    # A buffer must know how many rows other devices have, and a window first which of them stay.
    metric = Sliced(Window(SpearmanCorrCoef(exact=True, capacity=9), 2), 3, by="ids")
    copies = []
    for device in range(8):
        seen = metric
        for _ in range(device % 4):
            x, ids = draw(rng, (2, 5)), rng.integers(0, 3, 5)
            seen = seen.update(*x, ids=ids)
        copies.append(seen)
    stacked = jax.tree.map(lambda *x: np.stack(x), *copies)
    gathered, in_parts = merged_in_all_ways(stacked, make_mesh("auto", {"data": 8}), (8,))
    assert bits(in_parts) == bits(gathered)


def test_in_parts_with_x64(rng):
    with x64():
        mesh, size = make_mesh("auto", {"data": 8}), 33
        batch = (rng.normal(1e6, 1, (24, size)), *a_batch(rng, size)[1:])
        copies = seen_by_each(Everything(size), 8, *batch)
        gathered, in_parts = merged_in_all_ways(copies, mesh, (8,))
        assert bits(in_parts) == bits(gathered)
        assert in_parts.floats.value.dtype == np.float64


def test_an_empty_array_in_parts():
    mesh = make_mesh("auto", {"data": 8})

    def run(x):
        nothing, one = MetricAccumulator(np.zeros(0)), MetricAccumulator(0.0)
        states = [nothing.varying("data"), one.varying("data").update(x)]
        return sync_states(states, ("data",), small=0)[1].value

    got = jax.block_until_ready(over_shards(run, mesh, P("data"), P())(jnp.ones(8)))
    assert float(got) == 8


def test_in_parts_under_pmap_and_vmap(rng):
    x = rng.normal(0, 1, (8, 7)).astype(np.float32)

    def run(x):
        seen = Std().update(x)
        return map_leaf_states(lambda s: sync_states(s, ("i",), small=0), seen).compute()

    want = np.full(8, x.astype(np.float64).std())
    for mapped in (jax.pmap(run, axis_name="i"), jax.jit(jax.vmap(run, axis_name="i"))):
        np.testing.assert_allclose(jax.block_until_ready(mapped(x)), want, 1e-6)


@pytest.mark.parametrize("size", [3, 200_000])
def test_integers_are_exact_to_63_bits_in_either_way(rng, size):
    mesh = make_mesh("auto", {"data": 8})
    values = rng.integers(-BIG, BIG, 8)
    high, low = (values >> 32).astype(np.int32), (values & 0xFFFFFFFF).astype(np.uint32)

    def run(high, low):
        acc = MetricAccumulator(np.full(size, -1))
        limbs = (jnp.broadcast_to(high, (size,)), jnp.broadcast_to(low, (size,)))
        return acc.replace(parts=limbs).sync("data")

    got = jax.block_until_ready(over_shards(run, mesh, P("data"), P())(high, low))
    np.testing.assert_array_equal(np.asarray(got.value), np.full(size, values.sum() - 1))


@pytest.mark.parametrize("size", [2, 300_000])
def test_nan_and_infinities_in_the_extremes_of_devices(rng, size):
    mesh = make_mesh("auto", {"data": 8})
    x = draw(rng, (8, size))
    x[rng.integers(8), 0], x[rng.integers(8), 1] = np.nan, np.inf

    def run(x):
        high = MetricAccumulator(np.full(size, -np.inf), "max").update(x)
        low = MetricAccumulator(np.full(size, np.inf), "min").update(x)
        return high.sync("data").value, low.sync("data").value

    high, low = jax.block_until_ready(over_shards(run, mesh, P("data"), P())(x))
    assert_same(high, x.max(0))
    assert_same(low, x.min(0))


def test_compensation_survives_the_sync():
    # Each device holds 1e8 and a thousandth; the high words cancel, the low ones are left.
    mesh = make_mesh("auto", {"data": 8})
    x = np.float32([1e8, 2e8, 3e8, -6e8, 5e7, -5e7, 1e9, -1e9])
    rest = np.float32(np.arange(8) / 1024)
    run = over_shards(
        lambda x, r: MetricAccumulator(np.zeros(1)).update(x).update(r).sync("data"),
        mesh,
        P("data"),
        P(),
    )
    got = jax.block_until_ready(run(x[:, None], rest[:, None]))
    assert_same(got.value[0], fsum(rest), np.float32)


def test_over_one_axis_of_two(rng):
    mesh, x = make_mesh("auto", {"data": 4, "model": 2}), draw(rng, (8, 5))
    run = over_shards(
        lambda x: Std().update(x).sync("data").compute()[None],
        mesh,
        P(("data", "model")),
        P("model"),
    )
    got = np.asarray(jax.block_until_ready(run(x)))
    rows = x.reshape(4, 2, 5).astype(np.float64)
    np.testing.assert_allclose(got, [rows[:, 0].std(), rows[:, 1].std()], 1e-6)


def test_empty_devices_and_no_data_at_all():
    mesh = make_mesh("auto", {"data": 8})
    run = over_shards(
        lambda x, w: Mean().update(x, weights=w).sync("data").compute(), mesh, P("data"), P()
    )
    x, w = np.full(8, np.nan, np.float32), np.zeros(8, np.float32)
    x[5], w[5] = 3, 2
    assert float(jax.block_until_ready(run(x, w))) == 3
    assert np.isnan(jax.block_until_ready(run(x, np.zeros(8, np.float32))))


# Carries.


def test_scan_and_while_loop_inside_shard_map_from_the_empty_state(rng):
    mesh, batch = make_mesh("auto", {"data": 8}), a_batch(rng, 3, 48)

    def scan(values, counts, weights):
        rows = (values.reshape(2, 3, 3), counts.reshape(2, 3, 3), weights.reshape(2, 3))
        step = lambda m, row: (m.update(*row), None)  # noqa: E731
        return lax.scan(step, Everything().varying("data"), rows)[0].sync("data")

    def loop(values, counts, weights):
        def body(carry):
            i, m = carry
            row = [lax.dynamic_slice_in_dim(x, 3 * i, 3) for x in (values, counts, weights)]
            return i + 1, m.update(*row)

        start = (jnp.int32(0), Everything().varying(("data",)))
        return lax.while_loop(lambda c: c[0] < 2, body, start)[1].sync("data")

    for function in (scan, loop):
        placed = place(batch, mesh, P("data"))
        got, _, collectives = run_once(over_shards(function, mesh, P("data"), P()), *placed)
        check(got, *batch)
        assert collectives == {"all-reduce": 1}


def test_varying_over_two_axes_and_twice(rng):
    mesh, x = make_mesh("auto", {"data": 4, "model": 2}), draw(rng, (16,))

    def run(x):
        start = Mean().varying("data").varying(("data", "model"))
        step = lambda m, v: (m.update(v), None)  # noqa: E731
        return lax.scan(step, start, x)[0].sync(("data", "model")).compute()

    got = jax.block_until_ready(over_shards(run, mesh, P(("data", "model")), P())(x))
    assert_same(got, x.mean(dtype=np.float64), np.float32, ulps=1)


def test_pmap_and_vmap_with_an_axis_name(rng):
    x = draw(rng, (8, 5))
    compute = lambda x: Mean().update(x).sync("i").compute()  # noqa: E731
    for mapped in (jax.pmap(compute, axis_name="i"), jax.jit(jax.vmap(compute, axis_name="i"))):
        got = np.asarray(jax.block_until_ready(mapped(x)))
        np.testing.assert_allclose(got, np.full(8, x.mean()), 1e-6)


def test_where_the_axis_is_not_bound():
    with pytest.raises(AxisNotBoundError, match=r"Mean\.sync got axis_name='data'"):
        Mean().sync("data")
    mesh = make_mesh("auto", {"data": 8})
    for wrong in ("dta", ("data", "model"), ()):
        with pytest.raises(AxisNotBoundError):
            over_shards(lambda x, w=wrong: Mean().update(x).sync(w), mesh, P("data"), P())(
                jnp.ones(8)
            )
