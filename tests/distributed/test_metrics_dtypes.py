"""Values and dtypes of every reducer for every dtype, with 64-bit types off and on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import datarax
from datarax.distributed import (
    all_gather,
    reduce_custom,
    reduce_custom_collective,
    reduce_max,
    reduce_max_collective,
    reduce_mean,
    reduce_mean_collective,
    reduce_min,
    reduce_min_collective,
    reduce_sum,
    reduce_sum_collective,
)
from tests.helpers import (
    DTYPES,
    assert_same,
    draw,
    make_mesh,
    mean,
    over_shards,
    place,
    wide,
    x64,
)

NARROW = (*DTYPES, "int16", "uint16", "uint32")
# What each dtype becomes: as a mean, a sum, an extremum. Written out, not computed.
BECOMES = {
    "float32": ("float32", "float32", "float32"),
    "bfloat16": ("float32", "float32", "float32"),
    "float16": ("float32", "float32", "float32"),
    "int8": ("float32", "int32", "int8"),
    "int16": ("float32", "int32", "int16"),
    "int32": ("float32", "int32", "int32"),
    "uint8": ("float32", "uint32", "uint8"),
    "uint16": ("float32", "uint32", "uint16"),
    "uint32": ("float32", "uint32", "uint32"),
    "bool": ("float32", "int32", "int32"),
}
BECOMES_X64 = {
    "float64": ("float64", "float64", "float64"),
    "float32": ("float32", "float32", "float32"),
    "bfloat16": ("float32", "float32", "float32"),
    "float16": ("float32", "float32", "float32"),
    "int8": ("float64", "int64", "int8"),
    "int16": ("float64", "int64", "int16"),
    "int32": ("float64", "int64", "int32"),
    "int64": ("float64", "int64", "int64"),
    "uint8": ("float64", "uint64", "uint8"),
    "uint16": ("float64", "uint64", "uint16"),
    "uint32": ("float64", "uint64", "uint32"),
    "uint64": ("float64", "uint64", "uint64"),
    "bool": ("float64", "int64", "int32"),
}


@pytest.fixture(params=["x64 off", "x64 on"])
def table(request):
    on = request.param == "x64 on"
    with x64(on):
        yield BECOMES_X64 if on else BECOMES


def check(got, tree, table, axis):
    ops = ("mean", "sum", "max", "min")
    for op in ops:
        for name, x in tree.items():
            dtype = table[name][min(ops.index(op), 2)]
            want = {
                "mean": lambda x: mean(x, None, axis),
                "sum": lambda x: wide(x).sum(axis),
                "max": lambda x: wide(x).max(axis),
                "min": lambda x: wide(x).min(axis),
            }[op](x)
            assert_same(got[op][name], want, dtype, ulps=1 if op == "mean" else 0)


def test_global(rng, table):
    tree = {name: draw(rng, (8, 5), name) for name in table}

    def reduce(tree):
        return {
            "mean": reduce_mean(tree),
            "sum": reduce_sum(tree),
            "max": reduce_max(tree),
            "min": reduce_custom(tree, dict.fromkeys(tree, "min")),
        }

    # Outside a program, NumPy adds integers up in 64 bits.
    in_numpy = {
        name: (mean, total.replace("int32", "int64"), extreme)
        for name, (mean, total, extreme) in table.items()
    }
    check(reduce(tree), tree, in_numpy, None)
    mesh = make_mesh("explicit", {"data": 8})
    got = jax.block_until_ready(jax.jit(reduce)(place(tree, mesh, P("data"))))
    check(got, tree, table, None)
    masks = {name: np.arange(8) != np.argmax(wide(x).max(1)) for name, x in tree.items()}

    @jax.jit
    def extremes(tree, masks):
        return {
            name: [each({"x": x}, where=masks[name])["x"] for each in (reduce_max, reduce_min)]
            for name, x in tree.items()
        }

    for name, (high, low) in extremes(tree, masks).items():
        kept = wide(tree[name][masks[name]])
        assert_same(high, kept.max(), table[name][2])
        assert_same(low, kept.min(), table[name][2])


def test_collective(rng, table):
    tree = {name: draw(rng, (8, 5), name) for name in table}
    mesh = make_mesh("auto", {"data": 8})

    def reduce(tree):
        tree = {name: x[0] for name, x in tree.items()}
        return {
            "mean": reduce_mean_collective(tree, "data"),
            "sum": reduce_sum_collective(tree, "data"),
            "max": reduce_custom_collective(tree, dict.fromkeys(tree, "max"), "data"),
            "min": reduce_min_collective(tree, "data"),
            "gathered": all_gather(tree, "data"),
        }

    run = over_shards(reduce, mesh, P("data"), P())
    got = jax.block_until_ready(run(place(tree, mesh, P("data"))))
    check(got, tree, table, 0)
    for name, x in tree.items():
        assert_same(got["gathered"][name], x)


def test_weighted(rng, table):
    tree = {name: draw(rng, (8, 5), name) for name in table}
    mesh = make_mesh("auto", {"data": 8})
    weights = {
        "float32": np.asarray([0, 1, 2, 0.5, 0, 1, 3, 0.25], np.float32),
        "bool": np.asarray([0, 1, 1, 0, 1, 0, 1, 1], bool),
        "int8": np.asarray([0, 1, 2, 3, 0, 1, 2, 5], np.int8),
        "bfloat16": np.asarray([0, 1, 2, 0.5, 0, 1, 3, 0.25], jnp.bfloat16),
    }

    def reduce(tree, weights):
        return {
            name: (
                reduce_mean_collective(tree, "data", weights=w),
                reduce_sum_collective(tree, "data", weights=w),
            )
            for name, w in weights.items()
        }

    run = over_shards(reduce, mesh, P("data"), P())
    got = jax.block_until_ready(run(*place((tree, weights), mesh, P("data"))))

    @jax.jit
    def reduce_global(tree, weights):
        return {
            name: (
                reduce_mean(tree, weights=w, axis=0),
                reduce_sum(tree, weights=w, axis=0),
            )
            for name, w in weights.items()
        }

    again = reduce_global(tree, weights)
    for key, w in weights.items():
        averages, sums = got[key]
        averages_again, sums_again = again[key]
        for name, x in tree.items():
            float_dtype, sum_dtype, _ = table[name]
            dtype = sum_dtype if key in ("bool", "int8") else float_dtype
            if key == "int8" and name.startswith("uint"):
                # A signed dtype that holds both, or a float where there is none.
                none = name == ("uint64" if "uint64" in table else "uint32")
                dtype = float_dtype if none else table["int8"][1]
            total = (wide(x) * wide(w)[:, None]).sum(0)
            assert_same(averages[name][0], mean(x, w, 0), float_dtype, ulps=1)
            assert_same(sums[name][0], total, dtype)
            assert_same(averages_again[name], mean(x, w, 0), float_dtype, ulps=1)
            assert_same(sums_again[name], total, dtype)


def test_integers_of_64_bits_are_exact_with_x64_on():
    with x64():
        x = np.asarray([[2**53 + 1], [-(2**62)], [2**62 + 1], [3], [0], [1], [2], [5]])
        u = x.astype(np.uint64)  # the negative one is above 2**63
        f = np.asarray([1e300, -1e300, 1.0, np.pi, 0.0, 2.0**-1074, 1.0, np.e])[:, None]
        mesh = make_mesh("auto", {"data": 8})
        run = over_shards(
            lambda tree: (
                reduce_sum_collective(tree, "data"),
                reduce_max_collective(tree, "data"),
                reduce_min_collective(tree, "data"),
                all_gather(tree | {"z": lax.complex(tree["f"], -tree["f"])}, "data", tiled=True),
            ),
            mesh,
            P("data"),
            P(),
        )
        tree = {"x": x, "u": u, "f": f, "h": np.ones((8, 1), np.float32)}
        sums, highs, lows, every = jax.block_until_ready(run(place(tree, mesh, P("data"))))
        assert_same(sums["x"][0], x.sum(0))
        assert_same(sums["u"][0], u.sum(0))  # modulo 2**64, as NumPy
        for name, value in tree.items():
            assert_same(highs[name][0], value.max(0))
            assert_same(lows[name][0], value.min(0))
            assert_same(every[name], value)
            assert_same(reduce_max({"x": value})["x"], value.max())
            assert_same(reduce_min({"x": value})["x"], value.min())
        assert_same(reduce_sum({"x": x})["x"], x.sum())
        assert_same(every["z"], f - 1j * f)


def test_the_mean_of_large_integers_does_not_wrap():
    top = np.full(4, 2**31 - 1, np.int32)
    assert_same(reduce_mean({"x": top})["x"], 2.0**31, np.float32)
    low = np.full(4, -(2**31), np.int32)
    assert_same(reduce_mean({"x": low}, weights=np.ones(4, bool))["x"], -(2.0**31), np.float32)
    u = np.full(4, 2**32 - 1, np.uint32)
    assert_same(reduce_mean({"x": u})["x"], 2.0**32, np.float32)
    mesh = make_mesh("auto", {"data": 8})
    run = over_shards(lambda x: reduce_mean_collective(x, "data"), mesh, P("data"), P())
    got = jax.block_until_ready(run(place(np.full(8, 2**31 - 1, np.int32), mesh, P("data"))))
    assert_same(got, [2.0**31], np.float32)


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64"])
def test_numpy_arrays_of_64_bits_with_x64_off(rng, dtype):
    # Outside a program they are reduced in NumPy, where no digit is lost.
    numbers = rng.integers(0, 1000, (5, 3)) + 2**41 + 1
    x, rows = {"x": numbers.astype(dtype)}, np.asarray([1, 1, 0, 1, 1], bool)
    kept = numbers[rows]
    with x64(False):
        assert_same(reduce_mean(x)["x"], numbers.mean(), np.float64)
        assert_same(reduce_mean(x, weights=rows, axis=0)["x"], kept.mean(0), np.float64)
        assert_same(reduce_sum(x)["x"], numbers.sum(), dtype)
        assert_same(reduce_sum(x, weights=rows.astype(np.uint8))["x"], kept.sum(), dtype)
        assert_same(reduce_max(x, where=rows)["x"], kept.max(), dtype)
        assert_same(reduce_min(x, axis=1)["x"], numbers.min(1), dtype)
        assert_same(reduce_sum({"x": np.zeros(0, dtype)})["x"], 0, dtype)
        if dtype == "float64":
            assert np.isnan(reduce_mean({"x": np.zeros(0)})["x"])
            assert_same(reduce_mean({"x": [np.asarray([1, np.nan])]}, weights=[1, 0])["x"][0], 1.0)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "uint32"])
def test_a_sum_of_numpy_integers_is_exact_outside_a_program(rng, dtype):
    greatest = 1 if dtype == "bool" else np.iinfo(dtype).max
    x = np.full(9, greatest).astype(dtype)
    wide = "uint64" if dtype.startswith("u") else "int64"
    with x64(False):
        assert_same(reduce_sum({"x": x})["x"], 9 * greatest, wide)
        assert_same(reduce_sum({"x": x}, weights=[True] * 5 + [False] * 4)["x"], 5 * greatest, wide)
        got = reduce_custom({"x": x}, {"x": "sum"}, weights=np.full(9, 2**20))["x"]
        assert_same(got, 9 * 2**20 * greatest, "int64")
        in_program = jax.jit(lambda: reduce_sum({"x": x})["x"])()
        assert in_program.dtype == jax.eval_shape(jnp.sum, x).dtype


@pytest.mark.parametrize("enabled", [False, True])
def test_a_sum_of_integers_that_64_bits_cannot_hold(enabled):
    with x64(enabled):
        for x, w in (([2**62] * 2, None), ([-(2**62)] * 3, None), ([2**40] * 2, [2**30] * 2)):
            with pytest.raises(datarax.MetricInputError, match=r"reduce_sum.*'x'.*int64.*float64"):
                reduce_sum({"x": np.asarray(x)}, weights=w)
        most = {"x": np.asarray([2**62, 2**62 - 1])}
        assert_same(reduce_sum(most)["x"], 2**63 - 1, "int64")
        assert_same(reduce_sum({"x": np.asarray([2**63, 2**63 - 1], "u8")})["x"], 2**64 - 1, "u8")


def test_complex_numbers_have_a_mean_and_a_sum(rng):
    x = (draw(rng, (8,)) + 1j * draw(rng, (8,))).astype(np.complex64)
    assert_same(reduce_sum({"x": x})["x"], x.astype(complex).sum(), np.complex64)
    got = np.asarray(reduce_mean({"x": x})["x"])
    assert got.dtype == np.complex64
    assert abs(got - x.astype(complex).mean()) < 1e-5  # |mean| < 22, whose unit is 2e-6
