"""Counts in bins that adapt: the same in any order, on any mesh, and those of the values."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from datarax.metrics import AUROC, Median
from datarax.statistics.adaptive_bins import AdaptiveBins
from tests.helpers import make_mesh, over_shards, x64
from tests.operations import jaxprs_in

SIZE, BATCHES, ROWS = 3, 6, 64
SMALL = AdaptiveBins(size=SIZE, rows=2, bits=10, octaves=10, mirrored=10)
add = jax.jit(lambda bins, x, w, row: bins.add(x, w, row))
merge = jax.jit(lambda a, b: a.merge(b))


def batches_of(rng):
    """Batches of very different ranges: each adds to the range of those before."""
    x = rng.normal(size=(BATCHES, ROWS, SIZE)) * 10.0 ** rng.uniform(-2, 3, (BATCHES, 1, SIZE))
    x += rng.choice([0, 100], (BATCHES, 1, SIZE))
    x[::3] = 1 / (1 + np.exp(-np.clip(x[::3], -80, 80)))
    x[2, 3, 1], x[4, 3, 1], x[5, 0] = np.inf, -np.inf, 0
    w = rng.random((BATCHES, ROWS, 1)) < 0.9
    return x.astype(np.float32), w, rng.integers(0, 2, x.shape).astype(np.int32)


def batches_around_1(rng):
    """Batches around 1, and on one side of it, of very different scales."""
    x = rng.normal(size=(BATCHES, ROWS, SIZE)) * 10.0 ** rng.uniform(-8, -1, (BATCHES, 1, SIZE))
    x[0], x[3], x[5, :, 0] = -np.abs(x[0]), np.abs(x[3]), np.abs(x[5, :, 0])
    x[5, 0, 1] = rng.choice([-0.9, -3, 0.5, 1.5, 9])
    w = rng.random((BATCHES, ROWS, 1)) < 0.9
    return (1 + x).astype(np.float32), w, rng.integers(0, 2, x.shape).astype(np.int32)


each_kind = pytest.mark.parametrize("drawn", [batches_of, batches_around_1])


def fold(bins, order, batches):
    for i in order:
        bins = add(bins, *(part[i] for part in batches))
    return bins


def assert_same_bits(a, b):
    jax.tree.map(np.testing.assert_array_equal, *(jax.tree.leaves(x.canonical()) for x in (a, b)))


@each_kind
def test_any_order_and_grouping_gives_the_same_counts(rng, drawn):
    batches = drawn(rng)
    whole = fold(SMALL, range(BATCHES), batches)
    for _ in range(3):
        order = rng.permutation(BATCHES)
        assert_same_bits(whole, fold(SMALL, order, batches))
        a, b, c = (fold(SMALL, part, batches) for part in np.split(order, 3))
        assert_same_bits(whole, merge(a, merge(c, b)))
        a, b, c = jax.device_get((a, b, c))  # on the host, only what changes is joined
        assert_same_bits(whole, b.merge(c).merge(a))
    assert_same_bits(whole, merge(whole, SMALL))
    assert_same_bits(whole, merge(SMALL, whole))


def test_a_large_batch_on_the_host_is_the_same_in_parts_and_on_devices(rng):
    n = 100_003  # times SIZE: several blocks, the last one not full
    x, w, row = (
        np.concatenate([part] * (n // (BATCHES * ROWS) + 1))[:n]
        for part in (part.reshape(-1, part.shape[-1]) for part in batches_of(rng))
    )
    whole = SMALL.add(x, w, row)
    assert isinstance(whole.counts.recent, np.ndarray)
    assert_same_bits(whole, SMALL.add(x[:7], w[:7], row[:7]).add(x[7:], w[7:], row[7:]))
    assert_same_bits(whole, add(SMALL, x, w, row))


@each_kind
def test_the_bins_hold_what_was_added(rng, drawn):
    x, w, row = batches = drawn(rng)
    seen = fold(SMALL, range(BATCHES), batches).contents()
    used = np.broadcast_to(w, x.shape)
    for k in range(SIZE):
        values, rows = x[..., k][used[..., k]], row[..., k][used[..., k]]
        weights = np.asarray(seen.weights.high)[:, k]
        some = weights.sum(0) > 0
        lowest, least, greatest = (
            np.asarray(part)[k][some] for part in (seen.lowest, seen.least, seen.greatest)
        )
        assert (lowest <= least).all()
        assert (greatest[:-1] < least[1:]).all()
        within = (values[:, None] >= least) & (values[:, None] <= greatest)
        for r in range(2):
            np.testing.assert_array_equal(within[rows == r].sum(0), weights[r, some])


def test_classes_without_extremes_know_which_bins_above_1_hold_one_float(rng):
    bins = AdaptiveBins(bits=16, octaves=20, mirrored=20, keeps_extremes=False)
    x = 1 + rng.integers(-2000, 2000, (500, 1)) * 2.0**-23
    seen = add(bins, x.astype(np.float32), np.ones((500, 1), bool), None)
    seen = jax.jit(AdaptiveBins.contents)(seen)
    some = np.asarray(seen.weights.high)[0, 0] > 0
    lowest, is_tie = np.asarray(seen.lowest)[0, some], np.asarray(seen.is_tie)[0, some]
    np.testing.assert_array_equal(lowest[lowest >= 1], np.unique(x[x >= 1]))
    assert is_tie[lowest >= 1].all()


def test_large_counts_and_float_weights_are_joined_without_loss():
    bins = AdaptiveBins(bits=10)
    x = jnp.linspace(1000, 1001, 512)[:, None]
    for _ in range(2):
        bins = add(bins, x, jnp.full((512, 1), 2.0**30 + 2.0**10), None)
    wide = add(bins, jnp.array([[-1e20], [1e30]]), jnp.ones((2, 1)), None)
    exact = np.sum(np.asarray(wide.counts.exact, np.float64))
    assert exact == 1024 * (2**30 + 2**10) + 2


@cache
def synced(bits):
    """The program that adds a batch on each device; one for all tests of equal bins."""
    mesh = make_mesh("auto", {"data": BATCHES + 2})

    def run(x, w, row):
        return OF_BITS[bits].add(x[0], w[0], row[0]).sync("data")

    return over_shards(run, mesh, P("data"), P())


OF_BITS = {
    bits: AdaptiveBins(size=SIZE, rows=2, bits=bits, octaves=20, mirrored=20) for bits in (10, 15)
}


@each_kind
@pytest.mark.parametrize("bits", OF_BITS)
def test_synced_over_a_mesh(rng, bits, drawn):
    bins = OF_BITS[bits]
    x, w, row = drawn(rng)
    pad = [(0, 2), (0, 0), (0, 0)]
    parts = [np.pad(part, pad) for part in (x, w, row)]
    got = jax.block_until_ready(synced(bits)(*parts))
    assert_same_bits(got, fold(bins, range(BATCHES), (x, w, row)))


def test_x64_tells_close_numbers_and_large_ones_apart():
    with x64():
        bins = AdaptiveBins(bits=12, keeps_extremes=False)
        x = np.array([1.0, 1.0 + 1e-12, 1e300, 1e300 * (1 + 1e-3)])[:, None]
        near = add(bins, jnp.asarray(x[:2]), jnp.ones((2, 1), bool), None)
        assert (near.counts.value > 0).sum() == 2
        far = add(near, jnp.asarray(x[2:]), jnp.ones((2, 1), bool), None)
        assert np.sum(np.asarray(far.counts.value)) == 4


@pytest.mark.parametrize("on_host", [False, True], ids=["compiled", "on the host"])
def test_full_counts_are_flushed_before_more_are_added(rng, on_host):
    batches = batches_of(rng)
    whole = fold(SMALL, range(BATCHES), batches)
    room = ROWS * SIZE
    for over in (0, 1):
        seen = fold(SMALL, range(3), batches)
        pending = jnp.int32(2**31 - 1 - room + over)
        seen = seen.with_parts({"counts": seen.counts.replace(pending=pending)})
        if on_host:
            seen = jax.device_get(seen)
        step = (lambda bins, *batch: bins.add(*batch)) if on_host else add
        # The range stays as it is: only the bound of the counts asks for the flush.
        again = step(seen, *(part[0] for part in batches))
        assert int(again.counts.pending) == (room if over else 2**31 - 1)
        if over:
            assert int(np.sum(again.counts.recent)) == int(batches[1][0].sum()) * SIZE
        seen = fold(again, range(3, BATCHES), batches)
        assert_same_bits(seen, add(whole, *(part[0] for part in batches)))


@pytest.mark.parametrize(("metric", "arrays"), [(AUROC(), 2), (Median(), 1)])
def test_an_update_is_one_pass_and_three_scatters(metric, arrays):
    size = 2**20  # more than a table has
    batch = [jax.ShapeDtypeStruct((size,), dtype) for dtype in (np.float32, np.int32)][:arrays]
    program = jax.make_jaxpr(lambda metric, batch: metric.update(*batch))(metric, batch)

    def folds(jaxpr):
        for equation in jaxpr.eqns:
            name = equation.primitive.name
            is_fold = name.startswith(("reduce", "scatter", "arg", "sort", "cum", "dot"))
            if is_fold and max(x.aval.size for x in equation.invars) >= size:
                yield name
            else:
                for parameter in equation.params.values():
                    for inner in jaxprs_in(parameter):
                        yield from folds(inner)

    assert sorted(folds(program.jaxpr)) == ["reduce", "scatter-add", "scatter-max", "scatter-max"]
