"""The reducers on numbers in two parts, `Exact` and `DoubleFloat`, and on narrow integers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from datarax import MetricAccumulator, MetricInputError
from datarax.distributed import (
    all_gather,
    collect_from_devices,
    reduce_custom,
    reduce_custom_collective,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_sum,
)
from datarax.metrics import Accuracy, Mean, Sum
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import Exact
from tests.helpers import assert_same, collectives, make_mesh, over_shards

OPS = ("mean", "sum", "max", "min")


def exact_of(x):
    """An `Exact` of Python's integers, or of floats to 48 bits."""
    x = np.asarray(x)
    if x.dtype.kind == "i":
        return Exact(jnp.asarray((x >> 32).astype(np.int32)), jnp.asarray(x.astype(np.uint32)))
    high = x.astype(np.float32)
    return Exact(jnp.asarray(high), jnp.asarray((x - high).astype(np.float32)))


def double_of(x):
    held = exact_of(x)
    return DoubleFloat(held.high, held.low)


def numbers(x):
    if isinstance(x, DoubleFloat):
        return np.asarray(x.high, np.float64) + np.asarray(x.low, np.float64)
    return np.asarray(x)


def some(rng, kind, shape):
    """Integers of any size, whose sum fits 63 bits; or floats of 46 bits, whose sum fits 48."""
    if kind == "integers":
        values = rng.integers(-(2**62), 2**62, shape) >> rng.integers(4, 60, shape)
        values.flat[:2] = -1, 1
        return values, exact_of(values)
    values = rng.integers(-(2**40), 2**40, shape) / 1024.0
    return values, (exact_of if kind == "floats" else double_of)(values)


def reduced(op, x, weights=None):
    """The definition, over the first axis, in Python's numbers."""
    w = np.ones(len(x), bool) if weights is None else np.asarray(weights)
    if op in ("max", "min"):
        return getattr(x[w != 0], op)(0)
    total = (x.astype(object) * w[:, None].astype(object)).sum(0)
    return np.asarray(
        total if op == "sum" else total / w.sum(), np.float64 if op == "mean" else x.dtype
    )


def same(got, want, op):
    got = numbers(got)
    if op == "mean" or got.dtype == np.float32:
        # Rounded once, from a total in double-floats.
        np.testing.assert_allclose(got, want, 2.0**-23)
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", ["integers", "floats", "double-floats"])
@pytest.mark.parametrize("weighting", ["none", "mask", "integers"])
def test_global_and_collective(rng, kind, weighting):
    values, x = some(rng, kind, (8, 3))
    w = {"none": None, "mask": np.arange(8) % 3 > 0, "integers": rng.integers(0, 3, 8)}[weighting]
    if weighting == "integers":
        w[0] = 1
    metrics = dict.fromkeys(OPS, x)
    ops = {op: op for op in OPS}
    reducers = dict(zip(OPS, (reduce_mean, reduce_sum, reduce_max, reduce_min), strict=True))
    for op in OPS:
        given = {} if w is None else {"where" if op in ("max", "min") else "weights": w}
        for held in (x, jax.tree.map(np.asarray, x)):  # on a device, and on the host
            same(reducers[op](held, axis=0, **given), reduced(op, values, w), op)

    def local(metrics, w):
        mine = jax.tree.map(lambda part: part[0], metrics)
        weights = None if w is None else w[0]
        return reduce_custom_collective(mine, ops, "data", weights=weights)

    run = over_shards(local, make_mesh("auto", {"data": 8}), P("data"), P())
    got = jax.block_until_ready(run(metrics, w))
    for op in OPS:
        same(got[op], reduced(op, values, w), op)
    # All of them travel as one sum of integers.
    assert collectives(run, metrics, w) == {"all-reduce": 1}


def test_the_example_of_minus_one_and_one():
    x = exact_of([-1, 1])
    assert int(reduce_sum(x)) == 0
    assert float(reduce_mean(x)) == 0
    assert (int(reduce_max(x)), int(reduce_min(x))) == (1, -1)
    assert isinstance(reduce_custom({"a": x}, {"a": "sum"})["a"], Exact)
    assert reduce_custom({"a": x}, {"a": None})["a"] is x


def test_a_count_of_three_on_each_device():
    def local(x):
        count = MetricAccumulator(0).update(x).value
        return reduce_custom_collective({"mean": count, "sum": count}, {"sum": "sum"}, "i")

    got = jax.vmap(local, axis_name="i")(jnp.full((4, 3), 1))
    np.testing.assert_array_equal(got["mean"], np.full(4, 3.0))
    np.testing.assert_array_equal(np.asarray(got["sum"]), np.full(4, 12))


def test_gathered_and_collected(rng):
    values, x = some(rng, "integers", (4, 3))
    for each, want in zip(collect_from_devices({"x": x})["x"], values, strict=True):
        np.testing.assert_array_equal(np.asarray(each), want)
    gathered = jax.vmap(lambda part: all_gather(part, "i"), axis_name="i")(x)
    np.testing.assert_array_equal(np.asarray(gathered[0]), values)
    scalar = exact_of(np.asarray(5))
    assert collect_from_devices({"x": scalar})["x"] is scalar
    assert reduce_sum(scalar) is scalar


def test_no_data_and_nan():
    none = exact_of(np.zeros(3)), np.zeros(3, bool)
    assert np.isnan(reduce_mean(none[0], weights=none[1]))
    assert np.isnan(np.asarray(reduce_max(none[0], where=none[1])))
    assert float(reduce_sum(none[0], weights=none[1])) == 0
    x = exact_of(np.array([np.nan, 1.0]))
    assert np.isnan(np.asarray(reduce_min(x)))
    assert float(reduce_min(x, where=np.array([False, True]))) == 1
    with pytest.raises(MetricInputError, match=r"reduce_max: metric 'a' .* no elements"):
        reduce_max({"a": exact_of(np.zeros(0, int))})


# Weights of integers, and dtypes of fewer than 8 bits.


@pytest.mark.parametrize(
    ("dtype", "weights"),
    [
        ("uint8", "int32"),
        ("uint16", "int8"),
        ("int8", "uint8"),
        ("uint32", "uint8"),
        ("int16", "uint16"),
    ],
)
def test_sums_of_integers_with_weights_of_either_sign(rng, dtype, weights):
    x = rng.integers(0, 100, 6).astype(dtype)
    low = 0 if weights.startswith("u") else -100
    w = rng.integers(low, 100, 6).astype(weights)
    want = int((x.astype(int) * w.astype(int)).sum())
    got = reduce_sum(x, weights=w)
    assert jnp.issubdtype(got.dtype, jnp.integer)
    assert int(got) == want
    each = jax.vmap(
        lambda x, w: reduce_custom_collective({"x": x}, {"x": "sum"}, "i", weights=w)["x"],
        axis_name="i",
    )(x, w)
    np.testing.assert_array_equal(each, np.full(6, want))


def test_weights_that_no_integer_dtype_holds_beside_the_values():
    large = np.uint32([3_000_000_000, 1])
    got = reduce_sum(jnp.asarray([-1, 1]), weights=large)
    assert_same(got, -2_999_999_999, np.float32, ulps=1)
    assert_same(reduce_sum(np.int32([-1, 1]), weights=large), -2_999_999_999, np.int64)
    assert_same(reduce_sum(np.uint32([1, 1]), weights=large), np.uint64(3_000_000_001))
    assert_same(reduce_mean(np.int32([-1, -1]), weights=large), -1, np.float32)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2"])
def test_integers_of_fewer_than_8_bits(dtype):
    x = jnp.array([1, 0, 1]).astype(dtype)
    assert int(reduce_sum(x)) == int(reduce_sum(jnp.array([1, 2, 1]), weights=x)) == 2
    assert int(reduce_max(x)) == 1
    assert float(Mean().update(x).compute()) == pytest.approx(2 / 3)
    assert Sum().update(x, weights=x).results() == 2
    assert float(
        Accuracy(num_classes=2).update(x, jnp.array([1, 1, 1])).compute()
    ) == pytest.approx(2 / 3)
    gathered = jax.vmap(lambda v: all_gather(v, "i"), axis_name="i")(x)
    assert gathered.dtype == x.dtype
    np.testing.assert_array_equal(gathered[0].astype(jnp.int32), [1, 0, 1])
