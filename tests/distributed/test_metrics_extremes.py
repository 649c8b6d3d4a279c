"""Maxima and minima of NaN, infinities, both zeros, and the ends of the integers' ranges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from datarax.distributed import (
    reduce_custom,
    reduce_custom_collective,
    reduce_max,
    reduce_max_collective,
    reduce_min,
    reduce_min_collective,
)
from tests.helpers import assert_same, draw, make_mesh, over_shards, place, wide


@pytest.mark.parametrize("transform", ["eager", "jit"])
def test_special_values_in_the_extremes_of_shards(rng, transform):
    # XLA's all-reduce for a maximum loses NaN on the CPU: each column has one on one shard.
    x = draw(rng, (8, 6))
    for column, special in enumerate([np.nan, np.inf, -np.inf, np.nan, -0.0]):
        x[rng.integers(8), column] = special
    x[:, 5] = np.nan
    x[rng.integers(8), 3] = np.inf
    mask = ~np.isnan(x)
    placed = place((x, mask, x.astype(jnp.bfloat16)), make_mesh("auto", {"data": 8}), P("data"))

    def reduce(x, mask, half):
        return {
            "max": reduce_max({"x": x, "half": half}, axis=0),
            "min": reduce_min({"x": x}, axis=0)["x"],
            "all": reduce_custom({"x": x}, {"x": "max"})["x"],
            "numbers": reduce_max({"x": x}, where=mask, axis=0)["x"],
            "half": reduce_custom({"half": half}, {"half": "min"}, weights=mask)["half"],
        }

    got = jax.block_until_ready((jax.jit(reduce) if transform == "jit" else reduce)(*placed))
    for leaf in (got["max"]["x"], got["max"]["half"]):
        assert_same(leaf, x.max(0), np.float32)
    assert_same(got["min"], x.min(0))
    assert_same(got["all"], np.nan, np.float32)
    numbers = np.where(mask, x, -np.inf).max(0)
    numbers[5] = np.nan  # no number at all
    assert_same(got["numbers"], numbers)
    assert_same(got["half"], -np.inf, np.float32)


def special_floats(rng, dtype):
    """One column a case; a NaN anywhere is the result, as in NumPy."""
    tiny = float(jnp.finfo(dtype).tiny)
    cases = np.where(rng.random((8, 12)) < 0.5, 1.5, -2.5)
    cases[rng.integers(8), 0] = np.nan
    cases[:, 1] = np.nan
    cases[rng.integers(8), 2] = np.inf
    cases[rng.integers(8), 3] = -np.inf
    cases[:, 4], cases[:, 5], cases[:, 6] = np.inf, -np.inf, -0.0
    cases[:, 7] = rng.permutation([np.nan, np.inf, -np.inf, 0, 1, 2, 3, 4])
    cases[:, 8] = rng.permutation([-0.0, -0.0, -0.0, 0, 0, 0, 0, 0])
    cases[:, 9] = rng.permutation([tiny, -tiny, tiny, -tiny, 0, 0, -0.0, 0])
    cases[0, 10], cases[1:, 10] = float(jnp.finfo(dtype).max), -np.inf
    cases[0, 11], cases[1:, 11] = float(jnp.finfo(dtype).min), -1e-3
    return cases.astype(dtype)


FORMS = {
    "max": lambda x: reduce_max_collective(x, "data"),
    "min": lambda x: reduce_min_collective(x, "data"),
    "custom max": lambda x: reduce_custom_collective({"x": x}, {"x": "max"}, "data")["x"],
    "custom min": lambda x: reduce_custom_collective({"x": x}, {"x": "min"}, "data")["x"],
    "masked": lambda x: reduce_max_collective(x, "data", where=jnp.asarray([True])),
}


def test_extremes_of_special_floats(rng):
    dtypes = ("float32", "bfloat16", "float16")
    cases = {dtype: special_floats(rng, dtype) for dtype in dtypes}

    def reduce(cases):
        return {d: {name: form(x) for name, form in FORMS.items()} for d, x in cases.items()}

    mesh = make_mesh("auto", {"data": 8})
    run = over_shards(reduce, mesh, P("data"), P())
    got = jax.block_until_ready(run(place(cases, mesh, P("data"))))
    whole = jax.jit(lambda x: reduce_max(x, axis=0))(cases)
    for dtype, x in cases.items():
        for form, value in (got[dtype] | {"global": whole[dtype][None]}).items():
            assert value.shape == (1, 12)
            want = (wide(x).min if form.endswith("min") else wide(x).max)(axis=0)
            assert_same(value[0], want, np.float32)
            assert np.signbit(np.asarray(value[0])[6])  # all of them -0.0


def test_extremes_of_integers_at_the_ends_of_their_range(rng):
    cases = {}
    for dtype in ("int8", "int32", "uint8", "uint32"):
        info = np.iinfo(dtype)
        x = rng.integers(info.min, info.max, (8, 6), dtype, endpoint=True)
        x[rng.integers(8), 0] = info.max
        x[rng.integers(8), 1] = info.min
        x[:, 2], x[:, 3] = info.max, info.min
        cases[dtype] = x
    mesh = make_mesh("auto", {"data": 8})

    def reduce(x):
        none = jnp.zeros((1, 1), bool)
        return {
            "max": reduce_max_collective(x, "data"),
            "min": reduce_min_collective(x, "data"),
            "none max": reduce_max_collective(x, "data", where=none),
            "none min": reduce_min_collective(x, "data", where=none),
        }

    run = over_shards(reduce, mesh, P("data"), P())
    got = jax.block_until_ready(run(place(cases, mesh, P("data"))))
    for dtype, x in cases.items():
        info = np.iinfo(dtype)
        assert_same(got["max"][dtype][0], x.max(0))
        assert_same(got["min"][dtype][0], x.min(0))
        assert_same(got["none max"][dtype][0], np.full(6, info.min, dtype))
        assert_same(got["none min"][dtype][0], np.full(6, info.max, dtype))
