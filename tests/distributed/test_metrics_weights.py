"""Weights of the global reducers, against exact rationals."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jax.sharding import PartitionSpec as P

from datarax.distributed import (
    reduce_custom,
    reduce_max,
    reduce_mean,
    reduce_mean_collective,
    reduce_min,
    reduce_sum,
)
from tests.helpers import assert_same, by_row, draw, make_mesh, mean, over_shards, place, wide

SHAPE = (8, 3)
WEIGHT_SHAPES = [(), (8,), (1,), (8, 1), (1, 3), (8, 3)]
BAD = [np.nan, np.inf, -np.inf]
exact_floats = hnp.arrays(np.float32, SHAPE, elements=st.integers(-800, 800).map(lambda n: n / 8))
small_weights = st.sampled_from([0, 0, 1, 2, 3, 7])


def exact_mean(x, weights, axis):
    """The mean in rationals, of each slice along `axis`; None where the total weight is zero."""
    weights = np.broadcast_to(by_row(weights, 2), x.shape)
    axes = range(2) if axis is None else [a % 2 for a in np.atleast_1d(axis)]
    kept = [a for a in range(2) if a not in axes]
    out = np.empty([x.shape[a] for a in kept], object)
    for index in np.ndindex(out.shape):
        at = [slice(None)] * 2
        for a, i in zip(kept, index, strict=True):
            at[a] = i
        pairs = zip(x[tuple(at)].ravel().tolist(), weights[tuple(at)].ravel().tolist(), strict=True)
        pairs = [(Fraction(v), Fraction(w)) for v, w in pairs if w != 0]
        total = sum(w for _, w in pairs)
        out[index] = sum(v * w for v, w in pairs) / total if total else None
    return out


# Every shape with every dtype, and every axis among them.
LAYOUTS = [
    (shape, dtype, [None, 0, 1, -1, (0, 1)][(2 * i + j) % 5])
    for i, shape in enumerate(WEIGHT_SHAPES)
    for j, dtype in enumerate((np.float32, np.int8, bool))
]


@jax.jit
def every_layout(batches):
    """Each reducer for each layout, the mean also by name and in groups: one program."""
    got = []
    for (_, _, axis), (x, w) in zip(LAYOUTS, batches, strict=True):
        named = ({"g/x": w}, {"g": w}, {"g": {"x": w}})
        means = [reduce_mean({"x": x}, weights=w, axis=axis)["x"]]
        means += [reduce_mean({"g": {"x": x}}, weights=each, axis=axis)["g"]["x"] for each in named]
        if axis is None:
            means.append(reduce_custom({"x": x}, weights=w)["x"])
        high = reduce_max({"x": x}, where=w, axis=axis)["x"]
        got.append((means, high, reduce_min({"x": x}, where=w.astype(bool), axis=axis)["x"]))
    return got


@settings(max_examples=20)
@given(st.data(), exact_floats, st.sampled_from(BAD))
def test_the_weighted_mean_is_the_exact_one_rounded(data, x, bad):
    drawn = {
        shape: data.draw(hnp.arrays(np.int8, shape, elements=small_weights))
        for shape in WEIGHT_SHAPES
    }
    batches = []
    for shape, dtype, _ in LAYOUTS:
        weights = drawn[shape].astype(dtype)
        batches.append((np.where(by_row(weights, 2) == 0, np.float32(bad), x), weights))
    for (_, _, axis), (x, weights), (means, high, low) in zip(
        LAYOUTS, batches, every_layout(batches), strict=True
    ):
        exact = exact_mean(x, weights, axis)
        want = np.vectorize(lambda f: np.nan if f is None else float(f), otypes=[float])(exact)
        assert_same(means[0], want, np.float32, ulps=1)
        for again in means[1:]:
            assert_same(again, np.asarray(means[0]))
        absent = np.broadcast_to(by_row(weights, 2), SHAPE) == 0
        none = absent.all(axis)
        keep = np.where(absent, -np.inf, wide(x)).max(axis)
        assert_same(high, np.where(none, np.nan, keep), np.float32)
        keep = np.where(absent, np.inf, wide(x)).min(axis)
        assert_same(low, np.where(none, np.nan, keep), np.float32)


@jax.jit
def weighted_and_copied(x, weights, padded, present):
    return (
        reduce_mean({"x": x}, weights=weights)["x"],
        reduce_mean({"x": padded}, weights=present)["x"],
        reduce_sum({"x": x}, weights=weights)["x"],
    )


@settings(max_examples=40)
@given(
    hnp.arrays(np.int16, (6,), elements=st.integers(-500, 500)),
    hnp.arrays(np.int8, (6,), elements=st.integers(0, 4)),
)
def test_a_weight_of_k_is_k_copies_and_zero_is_absence(x, weights):
    copies = np.repeat(x, weights)
    padded = np.zeros(24, np.int16)
    padded[: copies.size] = copies
    present = np.arange(24) < copies.size
    by_weight, by_copies, total = weighted_and_copied(x, weights, padded, present)
    assert_same(by_weight, np.asarray(by_copies))
    assert_same(total, copies.sum(dtype=np.int32))


_run_shards = None


def run_shards(x, weights):
    """The weighted mean of 8 shards: one compiled program for all draws."""
    global _run_shards
    mesh = make_mesh("auto", {"data": 8})
    if _run_shards is None:
        _run_shards = over_shards(
            lambda x, w: (
                reduce_mean_collective({"x": x}, "data", weights=w)["x"][0],
                reduce_mean_collective(
                    {"x": reduce_mean({"x": x}, weights=w)["x"]}, "data", weights=w.sum()
                )["x"],
            ),
            mesh,
            P("data"),
            P(),
        )
    return jax.block_until_ready(_run_shards(*place((x, weights), mesh, P("data"))))


@settings(max_examples=40)
@given(exact_floats, hnp.arrays(np.int8, 8, elements=small_weights), st.sampled_from(BAD))
def test_shards_of_unequal_weight_give_the_global_mean(x, weights, bad):
    x[weights == 0] = bad
    columns, overall = run_shards(x, weights.astype(np.float32))
    exact = exact_mean(x, weights, 0)
    want = [np.nan if f is None else float(f) for f in exact]
    assert_same(columns, np.asarray(want), np.float32, ulps=1)
    # A mean of the shards' own means: they are rounded before they are averaged again.
    if weights.any():
        want = mean(x, weights)
        largest = np.abs(x[weights > 0]).max()
        assert abs(float(overall) - want) <= 16 * 2.0**-24 * largest
    else:
        assert np.isnan(overall)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_a_ragged_last_batch(rng, kind):
    # 101 examples in batches of 32 over 8 devices: the last batch holds 5, the padding is bad.
    mesh = make_mesh(kind, {"data": 8})
    x = draw(rng, (101,))
    padded = np.full(128, np.nan, np.float32)
    padded[:101] = x
    padded[110:120] = np.inf
    present = np.arange(128) < 101

    @jax.jit
    def batch(x, w):
        return reduce_mean({"x": x}, weights=w), reduce_sum({"x": x, "n": w}, weights={"x": w})

    total = count = 0.0
    for start in range(0, 128, 32):
        rows = slice(start, start + 32)
        placed = place((padded[rows], present[rows]), mesh, P("data"))
        average, sums = jax.block_until_ready(batch(*placed))
        assert_same(average["x"], mean(x[rows]), np.float32, ulps=1)
        total, count = total + float(sums["x"]), count + int(sums["n"])
    assert (total, count) == (wide(x).sum(), 101)


def test_no_weight_at_all_is_nan_and_never_zero():
    x = np.ones((4, 2), np.float32)
    nothing = np.zeros(4, np.float32)
    for weights in (nothing, nothing > 0, nothing.astype(np.int32), {"x": nothing}):
        assert_same(reduce_mean({"x": x}, weights=weights)["x"], np.nan, np.float32)
        assert_same(reduce_custom({"x": x}, weights=weights)["x"], np.nan, np.float32)
        assert_same(reduce_custom({"x": x}, {"x": "max"}, weights=weights)["x"], np.nan, np.float32)
        assert_same(reduce_sum({"x": x}, weights=weights)["x"], 0.0, np.float32)
    # A total of zero from weights that are not.
    got = reduce_mean({"x": x}, weights=np.asarray([1, -1, 2, -2], np.float32), axis=0)["x"]
    assert_same(got, [np.nan, np.nan], np.float32)
    # One row without weight among others.
    rows = np.asarray([[0, 0], [1, 1], [0, 3], [0, 0]], np.float32)
    got = reduce_mean({"x": x}, weights=rows, axis=1)["x"]
    assert_same(got, [np.nan, 1, 1, np.nan], np.float32)


def test_integers_masked_away_give_the_end_of_their_range():
    x = {"x": np.asarray([3, 4], np.int8)}
    none = np.zeros(2, bool)
    assert_same(reduce_max(x, where=none)["x"], -128, np.int8)
    assert_same(reduce_min(x, where=none)["x"], 127, np.int8)
    assert_same(reduce_custom(x, {"x": "max"}, weights=none)["x"], -128, np.int8)
    assert_same(reduce_mean(x, weights=none)["x"], np.nan, np.float32)
    assert_same(reduce_sum(x, weights=none)["x"], 0, np.int64)


def test_no_elements():
    empty = {
        "f": np.zeros((0,), np.float32),
        "i": np.zeros((0, 2), np.int32),
        "h": jnp.zeros((0,), jnp.bfloat16),
    }
    means, sums = reduce_mean(empty), reduce_sum(empty)
    for name in empty:
        assert_same(means[name], np.nan, np.float32)
    assert_same(sums["f"], 0.0, np.float32)
    assert_same(sums["i"], 0, np.int64)
    floats = {"f": empty["f"], "h": empty["h"]}
    assert_same(reduce_max(floats)["h"], np.nan, np.float32)
    assert_same(reduce_min(floats)["f"], np.nan, np.float32)
    assert_same(reduce_mean(empty["i"], axis=0), [np.nan, np.nan], np.float32)
    assert_same(reduce_mean(empty["i"], axis=1), np.zeros(0, np.float32))
    assert_same(reduce_max(np.zeros((0, 2), np.float32), axis=0), [np.nan, np.nan], np.float32)
    assert_same(reduce_max(empty["i"], axis=1), np.zeros(0, np.int32))
    assert_same(reduce_max(empty["i"], where=np.zeros(0, bool), axis=1), np.zeros(0, np.int32))
    assert_same(reduce_mean(empty["f"], weights=np.zeros(0, np.float32)), np.nan, np.float32)


def test_weights_by_name(rng):
    x = draw(rng, (6,))
    w, v = np.asarray([1, 0, 2, 0, 1, 1], np.float32), np.asarray([0, 0, 0, 1, 1, 0], bool)
    tree = {"loss": x, "train": {"a": x, "b": {"c": x, "d": x}}, "step": 3}
    given = {"loss": w, "train": {"b": v}, "train/b/d": w, "step": w}
    got = reduce_mean(tree, weights=given)
    assert_same(got["loss"], mean(x, w), np.float32, ulps=1)
    assert_same(got["train"]["a"], mean(x), np.float32, ulps=1)
    assert_same(got["train"]["b"]["c"], mean(x, v), np.float32, ulps=1)
    assert_same(got["train"]["b"]["d"], mean(x, w), np.float32, ulps=1)
    assert got["step"] == 3
    got = reduce_mean(tree, weights={"train": {"b": {"c": w}}})
    assert_same(got["train"]["b"]["c"], mean(x, w), np.float32, ulps=1)
    assert_same(got["train"]["b"]["d"], mean(x), np.float32, ulps=1)
    ops = {"train": "max", "train/b": "sum", "loss": None}
    got = reduce_custom(tree, ops, weights={"train": {"b/c": w}, "train/a": v})
    assert got["loss"] is x
    assert_same(got["train"]["a"], x[v].max(), np.float32)
    assert_same(got["train"]["b"]["c"], (x * w).sum(), np.float32)
    assert_same(got["train"]["b"]["d"], x.sum(), np.float32)
    got = reduce_max(tree, where={"train": v})
    assert_same(got["train"]["b"]["d"], x[v].max(), np.float32)
    assert_same(got["loss"], x.max(), np.float32)


@pytest.mark.parametrize(
    ("dtype", "each"), [("bfloat16", 1), ("float16", 1), ("uint8", 200), ("int8", 100), ("bool", 1)]
)
def test_many_weights_of_a_narrow_dtype_neither_stall_nor_wrap(dtype, each):
    # 300 bfloat16 ones add up to 256 in bfloat16; 200s wrap at once in uint8.
    n = 70_000
    weights = jnp.full(n, each, dtype)
    x = jnp.arange(n) % 2
    for values in (x.astype(jnp.int8), x.astype(jnp.float32), x.astype(jnp.bfloat16), x == 1):
        assert_same(reduce_mean({"x": values}, weights=weights)["x"], 0.5, np.float32)
        total = reduce_sum({"x": values}, weights=weights)["x"]
        assert float(total) == each * n / 2


def test_products_of_narrow_integers_are_exact():
    x = np.asarray([100, -100, 127], np.int8)
    w = np.asarray([100, 100, 127], np.int8)
    assert_same(reduce_sum({"x": jnp.asarray(x)}, weights=w)["x"], 16129, np.int32)
    assert_same(reduce_mean({"x": x}, weights=w)["x"], 16129 / 327, np.float32, ulps=1)


def test_the_dtype_of_a_weighted_sum():
    x = np.asarray([1, 2, 3], np.int32)
    for weights, dtype in (
        (np.asarray([True, False, True]), np.int32),
        (np.asarray([2, 0, 1], np.int8), np.int32),
        (np.asarray([2, 0, 1], np.uint8), np.int32),
        (np.asarray([0.5, 0, 1], np.float32), np.float32),
        (jnp.asarray([0.5, 0, 1], jnp.bfloat16), np.float32),
        (np.asarray([0.5, 0, 1], np.float64), np.float32),
    ):
        want = (wide(x) * wide(weights)).sum()
        assert_same(reduce_sum({"x": jnp.asarray(x)}, weights=weights)["x"], want, dtype)


def test_shards_without_weight_on_a_mesh(rng):
    mesh = make_mesh("explicit", {"data": 8})
    x = draw(rng, (32, 2))
    w = np.repeat(np.asarray([0, 1, 0, 2, 3, 0, 0, 1], np.float32), 4)
    x[w == 0] = np.nan
    got = jax.block_until_ready(
        jax.jit(lambda x, w: reduce_mean({"x": x}, weights=w))(*place((x, w), mesh, P("data")))
    )
    assert_same(got["x"], mean(x, w), np.float32, ulps=1)
