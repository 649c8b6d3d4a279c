"""The way in: each process's own examples as global arrays, and which rows of them are real."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from datarax import MetricInputError, per_device
from datarax.distributed import global_batch, reduce_mean
from datarax.metrics import Mean
from tests import processes
from tests.helpers import DTYPES, draw, make_mesh, x64

LAYOUTS = [
    ({"data": 8}, "data", 8),
    ({"data": 4, "model": 2}, "data", 4),
    ({"data": 4, "model": 2}, ("data", "model"), 8),
    ({"model": 2, "data": 4}, ("data", "model"), 8),
]


# All layouts, and both kinds: each is a few programs.
@pytest.mark.parametrize(
    ("kind", "axes", "names", "devices"),
    [("auto", *LAYOUTS[0]), ("auto", *LAYOUTS[2]), *(("explicit", *each) for each in LAYOUTS[1:])],
    ids=str,
)
def test_rows_keep_their_order_and_padding_is_marked(rng, kind, axes, names, devices):
    mesh = make_mesh(kind, axes)
    batch = {"x": draw(rng, (13, 2)), "labels": [draw(rng, (13,), "int32")]}
    arrays, real = global_batch(batch, mesh, names, rows=24)
    assert jax.tree.structure(arrays) == jax.tree.structure(batch)
    for got, want in zip(jax.tree.leaves(arrays), jax.tree.leaves(batch), strict=True):
        assert isinstance(got, jax.Array)
        assert (got.shape, got.dtype) == ((24, *want.shape[1:]), want.dtype)
        np.testing.assert_array_equal(np.asarray(got)[:13], want)
        assert not np.asarray(got)[13:].any()
    for each in (*jax.tree.leaves(arrays), real):
        assert each.sharding == NamedSharding(
            mesh, P(names if isinstance(names, tuple) else (names,))
        )
        assert {shard.data.shape[0] for shard in each.addressable_shards} == {24 // devices}
    assert real.dtype == np.bool_
    np.testing.assert_array_equal(real, np.arange(24) < 13)
    mean = per_device(Mean(), mesh, names).update(arrays["x"], weights=real)
    want = np.float32(batch["x"].mean(dtype=np.float64))
    assert jax.block_until_ready(mean).results() == want
    reduced = jax.jit(lambda x, real: reduce_mean({"x": x}, weights=real))(arrays["x"], real)
    assert np.asarray(reduced["x"]) == want


def test_without_rows_it_is_what_there_is(rng):
    mesh = make_mesh("auto", {"data": 8})
    x = draw(rng, (16, 3))
    for given in (x, jnp.asarray(x), jax.device_put(x, jax.devices()[4])):
        got, real = global_batch(given, mesh, "data")
        np.testing.assert_array_equal(got, x)
        assert real.shape == (16,)
        assert np.asarray(real).all()


@pytest.mark.parametrize("dtype", [*DTYPES, "int64", "float64", "complex64"])
def test_dtypes(rng, dtype):
    mesh = make_mesh("auto", {"data": 8})
    kept = jax.dtypes.canonicalize_dtype(dtype)
    x = draw(rng, (5,), kept).astype(jnp.dtype(dtype))
    got, _ = global_batch(x, mesh, "data", rows=8)
    assert got.dtype == kept
    np.testing.assert_array_equal(got[:5], x.astype(kept))


def test_nothing_at_all():
    mesh = make_mesh("explicit", {"data": 8})
    arrays, real = global_batch({"x": np.zeros((0, 4), np.float32)}, mesh, "data", rows=8)
    assert arrays["x"].shape == (8, 4)
    assert not np.asarray(real).any()
    arrays, real = global_batch({"x": np.zeros((0, 4), np.float32)}, mesh, "data")
    assert arrays["x"].shape == (0, 4)
    assert real.shape == (0,)
    metric = per_device(Mean(), mesh, "data").update(arrays["x"], weights=real)
    assert np.isnan(jax.block_until_ready(metric).results())


def test_what_it_was_given_is_left_alone(rng):
    mesh = make_mesh("auto", {"data": 8})
    x = draw(rng, (8,))
    before = x.copy()
    got, _ = global_batch(x, mesh, "data")
    x[:] = 0
    np.testing.assert_array_equal(got, before)


@pytest.mark.parametrize(
    ("batch", "options", "words"),
    [
        ({"x": (8,), "y": (7,)}, {}, "share one leading axis; got shapes (8,), (7,)"),
        ({"x": (8,), "y": ()}, {}, "share one leading axis; got shapes (8,), ()"),
        ({}, {}, "share one leading axis"),
        ({"x": (9,)}, {"rows": 8}, "9 examples for rows=8"),
        ({"x": (9,)}, {}, "a multiple of 8"),
        ({"x": (9,)}, {"rows": 12}, "a multiple of 8"),
        ({"x": (9,)}, {"axis_names": "batch"}, "no axis 'batch'; it has ('data',)"),
    ],
)
def test_what_is_refused(batch, options, words):
    mesh = make_mesh("auto", {"data": 8})
    arrays = {name: np.ones(shape, np.float32) for name, shape in batch.items()}
    with pytest.raises(MetricInputError) as caught:
        global_batch(arrays, mesh, **{"axis_names": "data"} | options)
    assert words in str(caught.value)


def test_wide_integers_never_wrap():
    mesh = make_mesh("auto", {"data": 8})
    with pytest.raises(MetricInputError, match="does not fit 32 bits"):
        global_batch(np.full(8, 2**40), mesh, "data")
    with x64():
        assert np.asarray(global_batch(np.full(8, 2**40), mesh, "data")[0]).tolist() == [2**40] * 8


# On several processes.


def test_programs_run_where_the_arrays_are_though_another_mesh_is_set():
    few = make_mesh("auto", {"data": 2})
    copies = per_device(Mean(), few, "data")
    with jax.set_mesh(make_mesh("auto", {"data": 8})):
        copies = copies.update(np.arange(8, dtype=np.float32))
        both = copies.merge(copies).sync()
        assert both.results() == copies.results() == 3.5
        assert both.merge(both).results() == 3.5


def gathered(streams, order):
    """What this process holds of the global arrays, and the mean over all of them."""
    rank = jax.process_index()
    devices = np.array(jax.devices())[list(order)]
    mesh = jax.sharding.Mesh(devices, ("data",))
    arrays, real = global_batch({"x": streams[rank]}, mesh, "data", rows=4)
    mean = reduce_mean(arrays, weights=real)["x"]
    own = [np.asarray(shard.data) for shard in arrays["x"].addressable_shards]
    return arrays["x"].shape, own, np.asarray(jax.block_until_ready(mean))


def test_each_process_holds_its_own(rng):
    streams = [draw(rng, (size, 2)) for size in (4, 0, 3)]
    # Also where the mesh does not have the processes in their order.
    outcomes = processes.run(gathered, 3, streams, (2, 0, 1))
    want = np.float32(np.concatenate(streams).mean(dtype=np.float64))
    for own, (shape, held, mean) in zip(streams, outcomes, strict=True):
        assert shape == (12, 2)
        np.testing.assert_array_equal(held, [np.pad(own, [(0, 4 - len(own)), (0, 0)])])
        assert mean == want
