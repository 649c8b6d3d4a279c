"""The global reducers wherever they are called: eager, jit, nnx.jit, grad, scan, on any mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import datarax.distributed
import datarax.distributed.metrics
from datarax.distributed import (
    reduce_custom,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_sum,
)
from tests.helpers import assert_same, by_row, draw, fsum, make_mesh, mean, place, sum_bound, wide

REDUCERS = (
    *("reduce_mean", "reduce_sum", "reduce_max", "reduce_min", "reduce_custom"),
    *("reduce_mean_collective", "reduce_sum_collective", "reduce_max_collective"),
    *("reduce_min_collective", "reduce_custom_collective", "all_gather", "collect_from_devices"),
)
# Over one axis; over two, by rows and columns, or both by rows; on every device alike.
LAYOUTS = {
    "rows": ({"data": 8}, P("data")),
    "rows and columns": ({"data": 4, "model": 2}, P("data", "model")),
    "rows over two": ({"data": 4, "model": 2}, P(("data", "model"))),
    "replicated": ({"data": 4, "model": 2}, P()),
}
TRANSFORMS = {"eager": lambda f: f, "jit": jax.jit, "nnx.jit": nnx.jit}


def a_batch(rng):
    """Metrics of several dtypes and ranks, nested, weights for their rows, and a boolean mask."""
    weights = rng.integers(0, 4, 16).astype(np.float32)
    weights[rng.integers(16)] = 0.0
    weights[rng.integers(16)] = 2.0
    metrics = {
        "loss": draw(rng, (16,)),
        "train": {"hits": draw(rng, (16,), "int32"), "half": draw(rng, (16, 4), "bfloat16")},
        "step": np.int32(7),
    }
    return metrics, weights, weights > 0


OPS = {"loss": "max", "train/hits": "sum", "train": {"half": "min"}}
FORMS = {
    "mean": lambda m, w, mask: reduce_mean(m),
    "weighted": lambda m, w, mask: reduce_mean(m, weights=w),
    "columns": lambda m, w, mask: reduce_mean(m, weights=mask, axis=0),
    "sum": lambda m, w, mask: reduce_sum(m),
    "weighted sum": lambda m, w, mask: reduce_sum(m, weights=w, axis=0),
    "max": lambda m, w, mask: reduce_max(m),
    "masked max": lambda m, w, mask: reduce_max(m, where=mask, axis=0),
    "min": lambda m, w, mask: reduce_min(m, axis=-1),
    "masked min": lambda m, w, mask: reduce_min(m, where=mask),
    "custom": lambda m, w, mask: reduce_custom(m, OPS, weights=w),
    "other": lambda m, w, mask: reduce_custom(m, {"loss": None}, weights={"train": w}),
}
# Eager, each operation is compiled by itself for each layout: one form of each reducer, then.
EAGER = ("weighted", "sum", "masked max", "min", "custom")
# Each layout is a program; the other transforms add nothing that depends on it, so that each
# transform has some of the layouts.
ON_A_MESH = [("auto", layout, "jit") for layout in ("rows", "rows and columns", "replicated")]
ON_A_MESH += [
    ("explicit", layout, "jit") for layout in ("rows over two", "rows and columns", "replicated")
]
ON_A_MESH += [
    ("auto", "rows over two", "eager"),
    ("explicit", "rows and columns", "eager"),
    ("explicit", "rows", "nnx.jit"),
]


def everything(metrics, weights, mask):
    """Each reducer in each of its forms: one program for a layout."""
    return {name: form(metrics, weights, mask) for name, form in FORMS.items()}


def run(transform, metrics, weights, mask):
    if transform == "eager":
        return {name: FORMS[name](metrics, weights, mask) for name in EAGER}
    return jax.block_until_ready(TRANSFORMS[transform](everything)(metrics, weights, mask))


def check_everything(got, metrics, weights, mask):
    leaves = {"loss": metrics["loss"]} | metrics["train"]

    def lowest(x, axis=None):
        return np.where(by_row(mask, np.ndim(x)), wide(x), np.inf).min(axis=axis)

    def highest(x, axis=None):
        return np.where(by_row(mask, np.ndim(x)), wide(x), -np.inf).max(axis=axis)

    want = {
        "mean": lambda x: mean(x),
        "weighted": lambda x: mean(x, weights),
        "columns": lambda x: mean(x, mask, 0),
        "sum": lambda x: wide(x).sum(),
        "weighted sum": lambda x: (wide(x) * by_row(weights, np.ndim(x))).sum(axis=0),
        "max": lambda x: wide(x).max(),
        "masked max": lambda x: highest(x, 0),
        "min": lambda x: wide(x).min(axis=-1),
        "masked min": lambda x: lowest(x),
    }
    integer = {"sum", "max", "masked max", "min", "masked min"}
    for form, oracle in want.items():
        if form not in got:
            continue
        flat = {k: v for k, v in got[form].items() if k != "train"} | got[form]["train"]
        assert set(flat) == {*leaves, "step"}
        for name, leaf in leaves.items():
            whole = form in integer and name == "hits"
            dtype = np.int32 if whole else np.float32
            if form == "sum" and whole and not isinstance(flat[name], jax.Array):
                dtype = np.int64  # of NumPy, outside a program
            ulps = 1 if form in ("mean", "weighted", "columns") else 0
            assert_same(flat[name], oracle(leaf), dtype, ulps=ulps)
        assert (np.shape(flat["step"]), flat["step"]) == ((), 7)
    custom = got["custom"]
    assert_same(custom["loss"], highest(metrics["loss"]), np.float32)
    assert_same(custom["train"]["hits"], (leaves["hits"] * weights).sum(), np.float32)
    assert_same(custom["train"]["half"], lowest(leaves["half"]), np.float32)
    if "other" in got:
        np.testing.assert_array_equal(np.asarray(got["other"]["loss"]), metrics["loss"])
        for name, x in metrics["train"].items():
            assert_same(got["other"]["train"][name], mean(x, weights), np.float32, ulps=1)


def test_the_two_modules_export_the_same_functions():
    for name in REDUCERS:
        function = getattr(datarax.distributed.metrics, name)
        assert getattr(datarax.distributed, name) is function


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_one_device_and_numpy(rng, transform):
    batch = a_batch(rng)
    check_everything(run(transform, *batch), *batch)
    check_everything(run(transform, *jax.tree.map(jnp.asarray, batch)), *batch)


@pytest.mark.parametrize(("kind", "layout", "transform"), ON_A_MESH)
def test_global_arrays_on_a_mesh(rng, kind, layout, transform):
    axes, spec = LAYOUTS[layout]
    mesh = make_mesh(kind, axes)
    batch = a_batch(rng)
    check_everything(run(transform, *place(batch, mesh, spec)), *batch)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_weights_that_lie_elsewhere_than_the_metrics(rng, kind):
    # Weights that are replicated, or NumPy's, for metrics that are sharded; in a mesh context.
    mesh = make_mesh(kind, {"data": 8})
    metrics, weights, mask = a_batch(rng)
    placed = place(metrics, mesh, P("data"))
    with jax.set_mesh(mesh):
        for there in (weights, place(weights, mesh, P())):
            got = jax.block_until_ready(jax.jit(everything)(placed, there, mask))
            check_everything(got, metrics, weights, mask)


def test_results_are_replicated(rng):
    mesh = make_mesh("auto", {"data": 8})
    placed = place({"loss": draw(rng, (16,))}, mesh, P("data"))
    got = jax.block_until_ready(jax.jit(reduce_mean)(placed))["loss"]
    assert got.sharding.is_equivalent_to(NamedSharding(mesh, P()), 0)


@pytest.mark.parametrize("layout", [None, "auto", "explicit"])
def test_sums_of_any_floats_are_within_the_bound_of_summation(rng, layout):
    # No data chosen to be exact here: normal values over many magnitudes, a real tolerance.
    x = (rng.normal(size=4096) * 10.0 ** rng.integers(-3, 4, 4096)).astype(np.float32)
    w = rng.uniform(0.1, 2.0, 4096).astype(np.float32)
    placed = x, w
    if layout:
        placed = place(placed, make_mesh(layout, {"data": 8}), P("data"))
    total, average, weighted = jax.block_until_ready(
        jax.jit(
            lambda x, w: (
                reduce_sum({"x": x})["x"],
                reduce_mean({"x": x})["x"],
                reduce_mean({"x": x}, weights=w)["x"],
            )
        )(*placed)
    )
    bound = sum_bound(x.size, fsum(np.abs(x)))
    assert abs(float(total) - fsum(x)) <= bound
    assert abs(float(average) - fsum(x) / x.size) <= 2 * bound / x.size
    products = x.astype(np.float64) * w
    # One more rounding for each product and one each for the total weight and the division.
    bound = sum_bound(2 * x.size + 3, fsum(np.abs(products)) / fsum(w))
    assert abs(float(weighted) - fsum(products) / fsum(w)) <= bound


def test_axis(rng):
    axes = (None, 0, 1, -1, (0, 1), (0, 2), (-1, -3), (), np.int64(2))
    # Powers of two, by which XLA divides exactly.
    x = {"x": draw(rng, (4, 2, 8))}
    reducers = (reduce_mean, reduce_sum, reduce_max, reduce_min)
    got = jax.jit(lambda x: [[r(x, axis=axis)["x"] for r in reducers] for axis in axes])(x)
    want = wide(x["x"])
    for axis, (average, total, high, low) in zip(axes, got, strict=True):
        assert_same(average, want.mean(axis=axis), np.float32, ulps=1)
        assert_same(total, want.sum(axis=axis), np.float32)
        assert_same(high, want.max(axis=axis), np.float32)
        assert_same(low, want.min(axis=axis), np.float32)


def test_what_is_no_array_of_a_dimension_passes_through_as_it_is():
    zero = jnp.asarray(3, jnp.int8)
    numpy_zero = np.zeros((), np.float64)
    passing = {"a": 2, "b": 2.5, "c": "text", "d": None, "e": True, "f": zero, "g": numpy_zero}
    weights = np.ones(5, np.float32)  # of a shape that none of them has
    calls = (
        lambda m: reduce_mean(m),
        lambda m: reduce_mean(m, weights=weights),
        lambda m: reduce_mean(m, axis=0),
        lambda m: reduce_sum(m, weights=weights),
        lambda m: reduce_max(m),
        lambda m: reduce_min(m, axis=-1),
        lambda m: reduce_custom(m, {"a": "sum", "d": "min", "f": "max"}, weights=weights),
    )
    for call in calls:
        got = call(passing)
        assert got.keys() == passing.keys()
        for name in passing:
            assert got[name] is passing[name]


def test_any_structure_comes_back_the_same(rng):
    x = draw(rng, (4,))
    trees = [
        {},
        {"a": {}},
        {"a": [x, (x, {"b": x})]},
        {"a": {"b": {"c": x}}, "d": None},
        [x],
        (x, 1.0),
    ]
    for tree in trees:
        before = jax.tree.structure(tree)
        for reduce in (reduce_mean, reduce_sum, reduce_max, reduce_min, reduce_custom):
            got = reduce(tree)
            assert jax.tree.structure(got) == before
            for leaf in jax.tree.leaves(got):
                assert np.shape(leaf) == ()
    frozen = {"a": x}
    reduce_mean(frozen)
    assert frozen["a"] is x  # what is handed in is left alone


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_gradient_of_a_loss_metric(rng, kind):
    x, y = draw(rng, (16, 3)), draw(rng, (16,))
    w = rng.integers(1, 4, 16).astype(np.float32)
    params = np.asarray([0.5, -1.0, 2.0], np.float32)
    mesh = make_mesh(kind, {"data": 8})
    x_there, y_there, w_there = place((x, y, w), mesh, P("data"))

    @jax.jit
    def gradient(params, x, y, w):
        def loss(params):
            return reduce_mean({"loss": (x @ params - y) ** 2}, weights=w)["loss"]

        return jax.grad(loss)(params)

    got = jax.block_until_ready(gradient(place(params, mesh, P()), x_there, y_there, w_there))
    residual = wide(x) @ wide(params) - wide(y)
    terms = 2 * (w * residual)[:, None] * wide(x) / w.sum()
    # Sixteen terms, each of a product over three columns and three further roundings.
    np.testing.assert_array_less(
        np.abs(wide(got) - terms.sum(0)), sum_bound(64, np.abs(terms).sum(0)) + 1e-30
    )


def test_gradient_is_finite_with_bad_values_where_the_weight_is_zero(rng):
    w = np.asarray([1, 0, 2, 0, 1, 1, 0, 3], np.float32)

    @jax.jit
    def gradients(x, p):
        return (
            jax.grad(lambda x: reduce_mean({"loss": x}, weights=w)["loss"])(x),
            jax.grad(lambda x: reduce_sum({"loss": x}, weights=w)["loss"])(x),
            # A parameter that meets the padding only in a sum with it.
            jax.grad(lambda p: reduce_mean({"loss": p * w + x}, weights=w)["loss"])(p),
            jax.grad(lambda x: reduce_max({"loss": x}, where=w > 0)["loss"])(x),
            # A mask through the weights alone: the gradient with respect to the weights.
            jax.grad(lambda w: reduce_mean({"loss": x}, weights=w)["loss"])(jnp.asarray(w)),
        )

    x = draw(rng, (8,))
    for bad in (np.nan, np.inf, -np.inf):
        x[w == 0] = bad
        average, total, parameter, high, weight = gradients(x, np.float32(1))
        assert_same(average, w / w.sum(), np.float32, ulps=1)
        assert_same(total, w, np.float32)
        assert abs(float(parameter) - (w**2).sum() / w.sum()) < 1e-6
        peaks = (w > 0) & (np.where(w > 0, x, -np.inf) == x[w > 0].max())
        assert_same(high, peaks / peaks.sum(), np.float32, ulps=1)
        assert np.isfinite(np.asarray(weight)).all()


def test_inside_scan(rng):
    batches = draw(rng, (5, 16, 2))
    weights = rng.integers(0, 3, (5, 16)).astype(np.int32)
    weights[:, 0] = 1
    mesh = make_mesh("auto", {"data": 8})
    there = place((batches, weights), mesh, P(None, "data"))

    @jax.jit
    def over_batches(batches, weights):
        def step(best, batch):
            x, w = batch
            now = reduce_mean({"x": x}, weights=w, axis=0)["x"]
            best = reduce_max({"best": jnp.stack([best, now])}, axis=0)["best"]
            return best, reduce_custom({"x": x, "n": w}, {"n": "sum"}, weights={"x": w})

        return jax.lax.scan(step, jnp.full(2, -jnp.inf), (batches, weights))

    best, history = jax.block_until_ready(over_batches(*there))
    means = np.stack([mean(x, w, 0) for x, w in zip(batches, weights, strict=True)])
    assert_same(best, means.max(0), np.float32, ulps=1)
    want = np.stack([mean(x, w) for x, w in zip(batches, weights, strict=True)])
    assert_same(history["x"], want, np.float32, ulps=1)
    assert_same(history["n"], weights.sum(1), np.int32)


def test_under_vmap(rng):
    x, w = draw(rng, (3, 8, 2)), rng.integers(1, 3, (3, 8)).astype(np.int32)
    got = jax.vmap(lambda x, w: reduce_mean({"x": x}, weights=w, axis=0)["x"])(x, w)
    want = np.stack([mean(a, b, 0) for a, b in zip(x, w, strict=True)])
    assert_same(got, want, np.float32, ulps=1)


def test_a_jitted_step_traces_once(rng):
    traces = []

    @jax.jit
    def step(metrics, weights):
        traces.append(None)
        return reduce_mean(metrics, weights=weights)

    for _ in range(3):
        step({"loss": draw(rng, (8,))}, rng.integers(0, 2, 8).astype(bool))
    assert len(traces) == 1


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_the_mean_of_equal_values_is_that_value(transform):
    # An accuracy of 41 out of 41 is 1.0, also where XLA would rather multiply by 1/41, which is
    # 0.99999994. These counts are the first at which float32 shows it.
    reduce = TRANSFORMS[transform](
        lambda x, w: (reduce_mean({"x": x}), reduce_mean({"x": x}, weights=w, axis=0))
    )
    for n in (41,) if transform == "eager" else (41, 47, 55):
        plain, weighted = reduce(np.full((n, n), 0.3, np.float32) > 0, np.ones(n, bool))
        assert_same(plain["x"], 1.0, np.float32)
        assert_same(weighted["x"], np.ones(n), np.float32)


def test_the_mean_of_more_elements_than_an_int32_counts():
    # XLA folds the reduction of a broadcast, so that nothing of this size is ever in memory.
    shape = (50_000, 50_000)

    @jax.jit
    def means(one, true):
        ones = {"x": jnp.broadcast_to(one, shape)}
        return reduce_mean(ones), reduce_mean(ones, weights=jnp.broadcast_to(true, shape))

    for got in means(jnp.float32(1), jnp.asarray(True)):
        assert_same(got["x"], 1.0, np.float32)


def test_the_mean_of_many_bfloat16_ones():
    ones = jnp.ones(256_000, jnp.bfloat16)
    assert_same(reduce_mean({"x": ones})["x"], 1.0, np.float32)
    assert_same(reduce_mean({"x": ones}, weights=ones)["x"], 1.0, np.float32)
    assert_same(reduce_sum({"x": ones})["x"], 256_000.0, np.float32)
