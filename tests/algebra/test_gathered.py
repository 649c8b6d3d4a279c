"""Rows from `jax.lax.all_gather` count once inside `shard_map`, as those of `datarax`'s do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import datarax
from datarax.algebra.gathered import gathered_axes
from datarax.distributed import all_gather
from datarax.metrics import AUROC, Accuracy, Mean, Std, Sum
from tests.helpers import make_mesh, over_shards, place

DATA = {"data": 8}


def run(function, rows, *others):
    mesh = make_mesh("auto", DATA)
    specs = (P("data"), *[P()] * len(others))
    mapped = over_shards(function, mesh, specs, P())
    return jax.block_until_ready(mapped(place(rows, mesh, P("data")), *others))


def gathered(x):
    return lax.all_gather(x, "data", tiled=True)


@jax.jit
def gathered_inside(x):
    return gathered(x) * jnp.float32(1)


WAYS = {
    "tiled": gathered,
    "stacked": lambda x: lax.all_gather(x, "data").reshape(-1),
    "in an inner jit": gathered_inside,
    "by datarax": lambda x: all_gather({"x": x}, "data", tiled=True)["x"],
    "computed from it": lambda x: jnp.sort(jnp.where(gathered(x) > 0, gathered(x), 0.0) - 1.0) + 1,
    "by a scan": lambda x: lax.scan(lambda c, y: (c, y * 1.0), lax.axis_size("data"), gathered(x))[
        1
    ],
}
METRICS = {
    "Sum": Sum(),
    "Std": Std(),
    "Interval": datarax.Interval(Mean()),
    "Window": datarax.Window(Sum(), 4),
    "Bootstrap": datarax.Bootstrap(Mean(), replicas=4),
    "Collection": datarax.Collection({"a": Sum(), "b": Mean(), "c": Std(), "d": Mean()}),
}


def assert_equal(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_gather_counts_once(rng, way):
    x = rng.random(32).astype(np.float32)
    metrics = datarax.Collection({"sum": Sum(), "interval": datarax.Interval(Mean())})

    def evaluate(x):
        return metrics.update(values=WAYS[way](x)).sync("data")

    assert_equal(run(evaluate, x).results(), metrics.update(values=x).results())


@pytest.mark.parametrize("name", METRICS)
def test_what_a_state_holds_before_and_after_counts_once_too(rng, name):
    metric = METRICS[name]
    x, y, z = (rng.random(16).astype(np.float32) for _ in range(3))
    before = metric.update(values=x)  # global, on all devices

    def go_on(rows, metric):
        everything = {"values": gathered(rows["y"])}
        if name == "Bootstrap":  # whose draws are those of each update
            return metric.update(**everything).sync("data")
        metric = metric.update(**everything).update(values=rows["z"])
        return metric.sync("data").update(**everything).sync("data")

    got = run(go_on, {"y": y, "z": z}, before).results()
    if name == "Bootstrap":
        assert got["value"] == pytest.approx(np.concatenate([x, y]).mean(), rel=1e-6)
        return
    want = before.update(values=y)
    if name == "Window":  # each device counts its own rows of an update
        want = want.update(values=z).update(values=y)
        assert got == pytest.approx(want.results(), rel=1e-6)
        return
    assert_equal(got, want.update(values=z).update(values=y).results())


class CountsRows(datarax.Metric):
    """Of its two counts, one does not depend on the data."""

    total: datarax.MetricAccumulator = datarax.MetricAccumulator(0.0)
    rows: datarax.MetricAccumulator = datarax.MetricAccumulator(0)

    def update(self, values):
        ones = np.ones(np.shape(values), np.int32)
        return self.replace(total=self.total.update(values), rows=self.rows.update(ones))

    def compute(self):
        return {"total": self.total.value, "rows": self.rows.value}


@pytest.mark.parametrize("order", ["own, gathered", "gathered, own", "own, gathered, own"])
@pytest.mark.parametrize("is_fresh", [True, False])
def test_own_rows_and_gathered_ones_in_any_order(rng, order, is_fresh):
    x = rng.integers(-50, 50, 64).astype(np.float32)
    metrics = {"own class": CountsRows(), **{name: METRICS[name] for name in ("Sum", "Collection")}}
    before = {
        name: each if is_fresh else each.update(values=x[:5]) for name, each in metrics.items()
    }

    def evaluate(x, metrics):
        for one in order.split(", "):
            rows = gathered(x) if one == "gathered" else x
            metrics = {name: each.update(values=rows) for name, each in metrics.items()}
        return {name: each.sync("data") for name, each in metrics.items()}

    got = run(evaluate, x, before)
    want = before
    for _ in order.split(", "):
        want = {name: each.update(values=x) for name, each in want.items()}
    for name, each in want.items():
        assert_equal(got[name].results(), each.results())


def test_micro_batches_that_are_gathered_in_a_scan_count_once(rng):
    x = rng.random((8, 5, 4)).astype(np.float32)

    def evaluate(x):
        def step(metric, rows):
            return metric.update(gathered(rows)), None

        return lax.scan(step, Sum().varying("data"), x[0])[0].sync("data")

    assert run(evaluate, x).results() == pytest.approx(x.sum(dtype=np.float64), rel=1e-6)


def test_a_contrastive_evaluation(rng):
    n = 32
    image, text = (rng.normal(size=(n, 4)).astype(np.float32) for _ in range(2))

    def whole(rows):
        scores = gathered(rows["image"]) @ gathered(rows["text"]).T
        return Accuracy(num_classes=n).update(scores, jnp.arange(n)).sync("data")

    def own(rows):  # the rows of a device against all columns: each counts on its device
        index = lax.axis_index("data").astype(jnp.int32) * (n // 8) + jnp.arange(n // 8)
        scores = rows["image"] @ gathered(rows["text"]).T
        return Accuracy(num_classes=n).update(scores, index).sync("data")

    want = Accuracy(num_classes=n).update(image @ text.T, np.arange(n)).state_dict()
    for evaluate in (whole, own):
        got = run(evaluate, {"image": image, "text": text}).state_dict()
        jax.tree.map(np.testing.assert_array_equal, got, want)


def test_what_differs_between_devices_is_not_taken_for_gathered(rng):
    x = rng.random(64).astype(np.float32)

    def parts(x):
        everything, index = gathered(x), lax.axis_index("data")
        own = lax.dynamic_slice_in_dim(everything, index.astype(jnp.int32) * 8, 8)
        halves = lax.psum_scatter(everything, "data", tiled=True)
        moved = lax.ppermute(x, "data", [(i, (i + 1) % 8) for i in range(8)])
        looped = lax.fori_loop(
            0, 2, lambda _, y: y + lax.axis_index("data").astype(y.dtype), everything
        )
        found = (own, halves, moved, looped, x, x * everything[:8])
        assert all(gathered_axes(each, ["data"]) == frozenset() for each in found)
        assert gathered_axes((everything, everything[3:] * 2), ["data"]) == {"data"}
        assert gathered_axes((everything, x), ["data"]) == frozenset()
        seen = datarax.Collection(
            {"own": Sum().from_outputs(values="own"), "moved": Sum().from_outputs(values="moved")}
        )
        return seen.update(own=own, moved=moved).sync("data")

    want = pytest.approx(x.sum(dtype=np.float64), rel=1e-6)
    assert run(parts, x).results() == {"own": want, "moved": want}


def test_without_a_sync_each_device_has_the_value_of_all_rows(rng):
    x, target = rng.random(64).astype(np.float32), rng.integers(0, 2, 64)
    mesh = make_mesh("auto", DATA)

    def evaluate(x, target):
        return AUROC().update(gathered(x), gathered(target)).compute()[None]

    mapped = over_shards(evaluate, mesh, (P("data"), P("data")), P("data"))
    got = jax.block_until_ready(mapped(*place((x, target), mesh, P("data"))))
    np.testing.assert_allclose(got, [AUROC().update(x, target).results()] * 8, rtol=1e-6)


def test_over_two_axes_of_which_the_rows_are_gathered_over_one(rng):
    mesh = make_mesh("auto", {"data": 4, "model": 2})
    x = rng.random(32).astype(np.float32)

    def evaluate(x):
        over = lax.all_gather(x, "model", tiled=True)
        return Sum().update(over).sync(("data", "model"))

    mapped = over_shards(evaluate, mesh, P(("data", "model")), P())
    got = jax.block_until_ready(mapped(place(x, mesh, P(("data", "model")))))
    assert got.results() == pytest.approx(x.sum(dtype=np.float64), rel=1e-6)


def test_many_layers_with_gathered_weights_are_looked_at_once(rng):
    """Each adds its result to its input, so there are 2**40 ways through 40 of them."""

    @jax.checkpoint
    def layer(shard, x):
        return x * jnp.mean(gathered(shard))

    def evaluate(rows, shard):
        x = gathered(rows)
        for _ in range(40):
            x = x + layer(shard, x)
        return Sum().update(x).sync("data")

    mesh = make_mesh("auto", DATA)
    rows, shards = (place(x, mesh, P("data")) for x in (np.ones(16, np.float32), np.zeros(16)))
    mapped = over_shards(evaluate, mesh, (P("data"), P("data")), P())
    assert mapped(rows, shards).results() == 16


def test_members_of_several_shapes_and_updates_within_vmap_and_grad_count_once(rng):
    """Where an array is a tracer of `vmap`, or of derivatives, what is within it was gathered."""
    names, shapes = ("a", "b", "c"), ((16,), (16, 2), (16,))
    first, second = (
        {
            name: rng.random(shape).astype(np.float32)
            for name, shape in zip(names, shapes, strict=True)
        }
        for _ in range(2)
    )
    # Two shapes in one stack: each batch is folded into an empty state, within `vmap`.
    metrics = datarax.Collection({name: Sum().from_outputs(values=name) for name in names})

    def evaluate(rows, metrics):
        return metrics.update(**jax.tree.map(gathered, rows)).sync("data")

    got = run(evaluate, second, run(evaluate, first, metrics)).results()
    assert_equal(got, metrics.update(**first).update(**second).results())

    def of_columns(x):
        return jax.vmap(Sum().update, in_axes=1)(gathered(x)).sync("data")

    got = jax.device_get(run(of_columns, second["b"]))
    for i, column in enumerate(second["b"].T):
        one = jax.tree.map(lambda x, i=i: x[i], got)
        assert_equal(one.results(), Sum().update(column).results())

    def loss(scale, rows, metrics):
        rows = jax.tree.map(lambda x: gathered(x) * scale, rows)
        return jnp.sum(rows["a"]), metrics.update(**rows).sync("data")

    def in_a_loss(rows, metrics):
        _, metrics = jax.value_and_grad(loss, has_aux=True)(jnp.float32(1), rows, metrics)[0]
        return metrics

    assert_equal(run(in_a_loss, first, metrics).results(), metrics.update(**first).results())
