"""The collective reducers inside `shard_map` and `pmap`, and what they compile to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from datarax.distributed import (
    all_gather,
    collect_from_devices,
    reduce_custom,
    reduce_custom_collective,
    reduce_max,
    reduce_max_collective,
    reduce_mean,
    reduce_mean_collective,
    reduce_min_collective,
    reduce_sum,
    reduce_sum_collective,
)
from tests.helpers import (
    assert_same,
    by_row,
    draw,
    make_mesh,
    mean,
    over_shards,
    place,
    wide,
)

# The mesh, the axis names that the metrics are sharded over.
AXES = {"one": ({"data": 8}, "data"), "two": ({"data": 4, "model": 2}, ("data", "model"))}
KINDS = ["auto", "explicit"]


def everything(axis_name):
    """Each collective in each of its forms, of metrics that are sharded over `axis_name`."""

    def reduce(metrics, weights):
        one = weights[0]  # a zero-dimensional weight, as of a shard's mean
        metrics = metrics | {"scalar": metrics["loss"][0], "lr": 0.5, "name": "x", "none": None}
        by_row = dict.fromkeys(("loss", "hits", "flag", "half"), weights)
        ops = {"loss": "max", "hits": "sum", "half": "min", "flag": None}
        got = {
            "mean": reduce_mean_collective(metrics, axis_name),
            "weighted": reduce_mean_collective(metrics, axis_name, weights=by_row),
            "by shard": reduce_mean_collective(metrics, axis_name, weights=one),
            "sum": reduce_sum_collective(metrics, axis_name),
            "max": reduce_max_collective(metrics, axis_name),
            "masked max": reduce_max_collective(metrics, axis_name, where=one > 0),
            "min": reduce_min_collective(metrics, axis_name),
            "custom": reduce_custom_collective(metrics, ops, axis_name, weights=one),
            "gathered": all_gather(metrics, axis_name),
        }
        for reduced in got.values():
            assert reduced.pop("lr") == 0.5
            assert reduced.pop("name") == "x"
            assert reduced.pop("none") is None
        varying = {"flag": got["custom"].pop("flag")}
        return got, varying

    return reduce


def a_batch(rng):
    """For 8 shards of 3 rows each; weights that are unequal, and zero on a shard or more."""
    metrics = {
        "loss": draw(rng, (24,)),
        "hits": draw(rng, (24, 2), "int32"),
        "flag": draw(rng, (24,), "bool"),
        "half": draw(rng, (24,), "bfloat16"),
    }
    weights = rng.integers(0, 4, 24).astype(np.float32)
    weights[:3], weights[6:9] = 0.0, 2.0
    return metrics, weights


def check_everything(got, varying, metrics, weights):
    def shards(x):
        return np.reshape(np.asarray(x), (8, 3, *np.shape(x)[1:]))

    local = {name: shards(x) for name, x in metrics.items()}
    local["scalar"] = local["loss"][:, 0]
    w = shards(weights)
    one = w[:, 0]

    def kept(x, other):
        return np.where(by_row(one, x.ndim) > 0, wide(x), other)

    want = {
        "mean": lambda x: mean(x, None, 0),
        "by shard": lambda x: mean(x, one, 0),
        "sum": lambda x: wide(x).sum(0),
        "max": lambda x: wide(x).max(0),
        "masked max": lambda x: kept(x, -np.inf).max(0),
        "min": lambda x: wide(x).min(0),
    }
    for form, oracle in want.items():
        assert got[form].keys() == local.keys()
        for name, x in local.items():
            whole = form not in ("mean", "by shard") and name in ("hits", "flag")
            exact = form not in ("mean", "by shard")
            dtype = np.int32 if whole else np.float32
            assert_same(got[form][name], oracle(x), dtype, ulps=0 if exact else 1)
    for name, x in local.items():
        weighted = mean(x, None if name == "scalar" else w, 0)
        assert_same(got["weighted"][name], weighted, np.float32, ulps=1)
        assert_same(got["gathered"][name], x)
    custom = got["custom"]
    assert_same(custom["loss"], kept(local["loss"], -np.inf).max(0), np.float32)
    assert_same(custom["half"], kept(local["half"], np.inf).min(0), np.float32)
    assert_same(custom["hits"], kept(local["hits"] * one[:, None, None], 0).sum(0), np.float32)
    assert_same(custom["scalar"], mean(local["scalar"], one, 0), np.float32, ulps=1)
    np.testing.assert_array_equal(np.asarray(varying["flag"]), metrics["flag"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axes", AXES)
def test_in_shard_map_replicated_results_are_accepted(rng, axes, kind):
    shape, axis_name = AXES[axes]
    mesh = make_mesh(kind, shape)
    metrics, weights = a_batch(rng)
    run = over_shards(everything(axis_name), mesh, P(axis_name), (P(), P(axis_name)))
    placed = place((metrics, weights), mesh, P(axis_name))
    got, varying = jax.block_until_ready(run(*placed))
    check_everything(got, varying, metrics, weights)


def test_in_pmap(rng):
    metrics, weights = a_batch(rng)
    local = jax.tree.map(lambda x: x.reshape(8, 3, *x.shape[1:]), (metrics, weights))
    run = jax.pmap(everything("batch"), axis_name="batch")
    got, varying = jax.block_until_ready(run(*local))
    for device in range(8):
        here = jax.tree.map(lambda x, device=device: jnp.asarray(np.asarray(x)[device]), got)
        flag = {"flag": np.reshape(varying["flag"], 24)}
        check_everything(here, flag, metrics, weights)


def test_what_came_back_from_pmap(rng):
    # The axis name is "batch" by default. What comes back has a leading device axis.
    losses, hits = draw(rng, (8, 5)), draw(rng, (8,), "int32")
    step = jax.pmap(
        lambda loss, hits: reduce_mean_collective({"loss": loss}) | {"own": loss, "hits": hits},
        axis_name="batch",
    )
    out = jax.block_until_ready(step(losses, hits))
    lists = collect_from_devices(out | {"epoch": 3, "name": "x", "zero": jnp.float32(1)})
    assert (lists["epoch"], lists["name"], lists["zero"].shape) == (3, "x", ())
    for name, want in (("own", losses), ("hits", hits)):
        assert isinstance(lists[name], list)
        for entry, row in zip(lists[name], want, strict=True):
            assert_same(entry, row)
    for entry in lists["loss"]:
        assert_same(entry, mean(losses, None, 0), np.float32, ulps=1)
    assert_same(reduce_mean(out)["own"], mean(losses), np.float32, ulps=1)
    assert_same(reduce_sum(out)["hits"], hits.sum(), np.int32)
    assert_same(reduce_max(out, axis=0)["own"], losses.max(0))
    assert_same(
        reduce_mean(out, weights=hits > 0)["own"], mean(losses, hits > 0), ulps=1, dtype="f4"
    )
    assert_same(reduce_custom(out, {"hits": "min"})["hits"], hits.min(), np.int32)
    for entry, row in zip(reduce_mean(lists)["own"], losses, strict=True):
        assert_same(entry, mean(row), np.float32, ulps=1)


@pytest.mark.parametrize("kind", KINDS)
def test_over_one_axis_of_two(rng, kind):
    mesh = make_mesh(kind, {"data": 4, "model": 2})
    x = draw(rng, (4, 2))

    def reduce(x):
        return reduce_mean_collective({"x": x}, "data") | {
            "sum": reduce_sum_collective(x, "model"),
            "max": reduce_max_collective(x, "data"),
            "all": all_gather(x, "data"),
        }

    specs = {"x": P(None, "model"), "sum": P("data"), "max": P(None, "model")}
    run = over_shards(reduce, mesh, P("data", "model"), specs | {"all": P(None, None, "model")})
    got = jax.block_until_ready(run(place(x, mesh, P("data", "model"))))
    assert_same(got["x"], mean(x, None, 0)[None], np.float32, ulps=1)
    assert_same(got["sum"], wide(x).sum(1, keepdims=True), np.float32)
    assert_same(got["max"], x.max(0, keepdims=True))
    assert_same(got["all"], x[:, None, :])


@pytest.mark.parametrize("kind", KINDS)
def test_values_that_are_already_replicated(rng, kind):
    # Alone, and beside one that varies, and varying over one axis of two.
    mesh = make_mesh(kind, {"data": 4, "model": 2})
    x, same = draw(rng, (8,)), draw(rng, (3,))
    axes = ("data", "model")

    def reduce(x, same):
        half = lax.psum(x, "model")  # varies over "data" alone
        metrics = {"same": same, "half": half, "x": x, "constant": jnp.float32(2)}
        return {
            "alone": reduce_sum_collective({"same": same}, axes),
            "sum": reduce_sum_collective(metrics, axes),
            "mean": reduce_mean_collective(metrics, axes, weights=jnp.float32(3)),
            "max": reduce_max_collective(metrics, axes),
            "all": all_gather({"same": same}, axes),
        }

    run = over_shards(reduce, mesh, (P(axes), P()), P())
    got = jax.block_until_ready(run(place(x, mesh, P(axes)), place(same, mesh, P())))
    half = x.reshape(4, 2).sum(1)
    assert_same(got["alone"]["same"], 8 * same)
    assert_same(got["sum"]["same"], 8 * same)
    assert_same(got["sum"]["half"], [2 * half.sum()], np.float32)
    assert_same(got["sum"]["constant"], 16.0, np.float32)
    assert_same(got["mean"]["same"], same, ulps=1)
    assert_same(got["mean"]["half"], [mean(half)], np.float32, ulps=1)
    assert_same(got["max"]["half"], [half.max()], np.float32)
    assert_same(got["all"]["same"], np.tile(same, (8, 1)))


def test_weights_of_shards(rng):
    mesh = make_mesh("auto", {"data": 8})
    x = draw(rng, (8, 4))
    weights = rng.integers(1, 5, 8).astype(np.float32)
    weights[2] = weights[5] = 0
    x[2], x[5, 1] = np.nan, -np.inf  # what must not leak
    nothing = np.zeros(8, np.float32)
    opposite = np.asarray([1, -1, 2, -2, 3, -3, 0, 0], np.float32)
    bad = x.copy()
    bad[2] = bad[5] = 1.0
    masks = {"float": weights, "bool": weights > 0, "int": weights.astype(np.int8)}
    masks |= {"nothing": nothing, "opposite": opposite}

    def reduce(x, bad, w):
        mean_of = {
            k: reduce_mean_collective({"x": x}, "data", weights=v)["x"] for k, v in w.items()
        }
        mean_of["opposite"] = reduce_mean_collective(bad, "data", weights=w["opposite"])
        w = w["float"]
        return {
            "mean": mean_of,
            "sum": reduce_sum_collective(x, "data", weights=w),
            "max": reduce_max_collective(x, "data", where=w),
            "custom min": reduce_custom_collective({"x": x}, {"x": "min"}, "data", weights=w),
            "by name": reduce_mean_collective(
                {"x": x, "g": {"y": bad, "z": bad}}, "data", weights={"x": w, "g/y": w}
            ),
            "group": reduce_mean_collective({"g": {"y": bad}}, "data", weights={"g": w}),
            "zero sum": reduce_sum_collective(x, "data", weights=jnp.zeros(1)),
            "zero max": reduce_max_collective(x, "data", where=jnp.zeros(1, bool)),
        }

    run = over_shards(reduce, mesh, P("data"), P())
    got = jax.block_until_ready(run(*place((x, bad, masks), mesh, P("data"))))
    want = mean(x, weights, 0)[None]
    assert_same(got["mean"]["float"], want, np.float32, ulps=1)
    assert_same(got["mean"]["int"], want, np.float32, ulps=1)
    assert_same(got["mean"]["bool"], mean(x, weights > 0, 0)[None], np.float32, ulps=1)
    for name in ("nothing", "opposite"):
        assert_same(got["mean"][name], np.full((1, 4), np.nan), np.float32)
    keep = weights > 0
    assert_same(got["sum"], (x[keep] * weights[keep, None]).sum(0)[None])
    assert_same(got["max"], x[keep].max(0)[None])
    assert_same(got["custom min"]["x"], x[keep].min(0)[None])
    assert_same(got["by name"]["x"], want, np.float32, ulps=1)
    assert_same(got["by name"]["g"]["y"], mean(bad, weights, 0)[None], np.float32, ulps=1)
    assert_same(got["by name"]["g"]["z"], mean(bad, None, 0)[None], np.float32, ulps=1)
    assert_same(got["group"]["g"]["y"], mean(bad, weights, 0)[None], np.float32, ulps=1)
    assert_same(got["zero sum"], np.zeros((1, 4), np.float32))
    assert_same(got["zero max"], np.full((1, 4), np.nan), np.float32)


def test_a_mean_of_shard_means_weighs_the_shards():
    # A published slip: shards of 3 and 1 examples, whose plain mean of means is 3.375.
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    values, sizes = np.asarray([2.25, 4.5], np.float32), np.asarray([2, 1], np.float32)
    run = over_shards(
        lambda x, n: reduce_mean_collective({"x": x[0]}, "data", weights=n[0])["x"],
        mesh,
        P("data"),
        P(),
    )
    got = jax.block_until_ready(run(*place((values, sizes), mesh, P("data"))))
    assert values.mean() == 3.375
    assert_same(got, 3.0, np.float32)


def test_metrics_beside_a_loss_leave_its_gradient_alone(rng):
    # No gradient comes through a maximum or a gather; a loss beside them keeps its own.
    mesh = make_mesh("auto", {"data": 8})
    x = draw(rng, (8,))

    def loss(p, x):
        each = p * x
        metrics = {
            "mean": reduce_mean_collective(each, "data"),
            "max": reduce_max_collective(each, "data"),
            "min": reduce_min_collective(each, "data", where=x > 0),
            "all": all_gather(each, "data"),
        }
        return metrics["mean"][0], metrics

    run = jax.shard_map(loss, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    step = jax.jit(jax.value_and_grad(run, has_aux=True))
    (value, metrics), gradient = jax.block_until_ready(
        step(jnp.float32(2), place(x, mesh, P("data")))
    )
    assert_same(value, 2 * mean(x), np.float32, ulps=1)
    # A sum of 8 exact terms, each divided by 8 exactly.
    assert_same(gradient, mean(x), np.float32)
    assert_same(metrics["all"][:, 0], 2 * x)
    assert_same(metrics["max"], [2 * x.max()], np.float32)


def test_the_mean_of_equal_values_is_that_value(rng):
    # 41 times the rounded reciprocal of 41 is 0.99999994: a division must stay one.
    mesh = make_mesh("auto", {"data": 8})
    run = over_shards(
        lambda x, w: reduce_mean_collective({"x": x[0]}, "data", weights=w[0])["x"],
        mesh,
        P("data"),
        P(),
    )
    for total in (41, 47, 55, 61, *rng.integers(62, 2**20, 10)):
        weights = rng.multinomial(total, [1 / 8] * 8).astype(np.float32)
        placed = place((np.ones((8, 3), np.float32), weights), mesh, P("data"))
        assert_same(jax.block_until_ready(run(*placed)), np.ones(3, np.float32))


def test_empty_arrays_in_collectives():
    mesh = make_mesh("auto", {"data": 8})
    tree = {"f": np.zeros((8, 0), np.float32), "i": np.zeros((8, 0, 2), np.int32)}

    def reduce(tree):
        return (
            reduce_mean_collective(tree, "data"),
            reduce_sum_collective(tree, "data"),
            reduce_max_collective(tree, "data"),
            reduce_custom_collective({}, {}, "data"),
            all_gather({}, "data"),
        )

    run = over_shards(reduce, mesh, P("data"), P())
    means, sums, maxima, *nothing = jax.block_until_ready(run(place(tree, mesh, P("data"))))
    assert_same(means["f"], np.zeros((1, 0), np.float32))
    assert_same(means["i"], np.zeros((1, 0, 2), np.float32))
    assert_same(sums["i"], np.zeros((1, 0, 2), np.int32))
    assert_same(maxima["i"], np.zeros((1, 0, 2), np.int32))
    assert nothing == [{}, {}]


def test_inside_scan_in_shard_map(rng):
    mesh = make_mesh("auto", {"data": 8})
    x = draw(rng, (4, 8))

    def run(x):
        def step(total, x):
            total = total + reduce_sum_collective({"x": x}, "data")["x"]
            return total, reduce_mean_collective({"x": x}, "data")["x"]

        return lax.scan(step, jnp.zeros(1), x)

    got = over_shards(run, mesh, P(None, "data"), P())(place(x, mesh, P(None, "data")))
    total, means = jax.block_until_ready(got)
    assert_same(total, [x.sum()], np.float32)
    assert_same(means, mean(x, None, 1)[:, None], np.float32, ulps=1)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_of_a_loss_in_shard_map(rng, kind):
    mesh = make_mesh(kind, {"data": 8})
    x, y = draw(rng, (8, 2)), draw(rng, (8,))
    w = np.asarray([1, 2, 0, 3, 1, 1, 0, 2], np.float32)
    y[w == 0] = np.nan
    params = np.asarray([0.5, -2.0], np.float32)

    def loss(params, x, y, w):
        each = x @ params + y
        return reduce_mean_collective({"loss": each[0]}, "data", weights=w[0])["loss"]

    run = jax.shard_map(
        loss, mesh=mesh, in_specs=(P(), P("data"), P("data"), P("data")), out_specs=P()
    )
    placed = place((x, y, w), mesh, P("data"))
    params = place(params, mesh, P())
    got = jax.block_until_ready(jax.jit(jax.grad(run))(params, *placed))
    # Exact products and sums, one rounding by the division before them: one for each of 8 terms.
    want = (w[:, None] * wide(x)).sum(0) / w.sum()
    bound = 10 * 2.0**-24 * (w[:, None] * np.abs(wide(x))).sum(0) / w.sum()
    assert (np.abs(wide(got) - want) <= bound).all()
