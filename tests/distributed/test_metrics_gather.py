"""`all_gather` bit for bit, and `collect_from_devices` of any array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from datarax.distributed import (
    all_gather,
    collect_from_devices,
)
from tests.helpers import DTYPES, assert_same, draw, make_mesh, over_shards, place


def test_collect_from_devices_of_any_dtype_and_of_numpy(rng):
    for dtype in DTYPES:
        rows = draw(rng, (4, 2), dtype)
        for entry, row in zip(
            collect_from_devices({"x": jnp.asarray(rows)})["x"], rows, strict=True
        ):
            assert_same(entry, row)
        for entry, row in zip(collect_from_devices({"x": rows})["x"], rows, strict=True):
            assert isinstance(entry, np.ndarray)
            np.testing.assert_array_equal(entry, row, strict=True)
    assert collect_from_devices({"x": np.zeros((0, 3))}) == {"x": []}
    assert collect_from_devices({"a": {"b": "c", "d": None}}) == {"a": {"b": "c", "d": None}}


def test_the_order_of_a_tuple_of_names_is_that_of_lax(rng):
    mesh = make_mesh("auto", {"data": 4, "model": 2})
    x = place(draw(rng, (4, 2)), mesh, P("data", "model"))
    for names in (("data", "model"), ("model", "data")):
        ours = over_shards(lambda x, n=names: all_gather(x, n), mesh, P("data", "model"), P())
        theirs = jax.jit(
            jax.shard_map(
                lambda x, n=names: lax.all_gather(x, n),
                mesh=mesh,
                in_specs=P("data", "model"),
                out_specs=P(),
                check_vma=False,
            )
        )
        assert_same(jax.block_until_ready(ours(x)), np.asarray(jax.block_until_ready(theirs(x))))


@pytest.mark.parametrize(
    ("axis", "tiled"), [(0, False), (1, False), (-1, False), (0, True), (-1, True)]
)
def test_all_gather_stacks_and_concatenates_as_lax_does(rng, axis, tiled):
    mesh = make_mesh("auto", {"data": 8})
    tree = {d: draw(rng, (16, 3), d) for d in DTYPES} | {"odd": draw(rng, (8, 3), "int8")}
    run = over_shards(
        lambda tree: all_gather(tree, "data", axis=axis, tiled=tiled), mesh, P("data"), P()
    )
    got = jax.block_until_ready(run(place(tree, mesh, P("data"))))
    for name, x in tree.items():
        shards = np.split(x, 8)
        want = np.concatenate(shards, axis) if tiled else np.stack(shards, axis)
        assert_same(got[name], want)


def test_all_gather_keeps_every_bit(rng):
    mesh = make_mesh("auto", {"data": 8})
    # Arbitrary bits: NaNs with payloads, infinities, subnormals, both zeros among them.
    tree = {
        "float32": rng.integers(0, 2**32, (8, 64), np.uint32).view(np.float32),
        "float16": rng.integers(0, 2**16, (8, 64), np.uint16).view(np.float16),
        "bfloat16": rng.integers(0, 2**16, (8, 64), np.uint16).view(jnp.bfloat16),
        "int8": rng.integers(-128, 128, (8, 3), np.int8),
        "uint32": rng.integers(0, 2**32, (8, 1), np.uint32),
        "empty": np.zeros((8, 0), np.float32),
    }
    tree["float32"][:, :4] = np.asarray([-0.0, np.nan, 1e-45, -np.inf], np.float32)
    run = over_shards(lambda tree: all_gather(tree, "data"), mesh, P("data"), P())
    got = jax.block_until_ready(run(place(tree, mesh, P("data"))))
    for name, x in tree.items():
        assert got[name].dtype == x.dtype
        assert np.asarray(got[name]).tobytes() == x[:, None].tobytes()
