"""`TreeHealth` over devices: global sharded arrays, `shard_map`, `per_device`, the collector."""

import re
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import datarax
from datarax import MetricInputError
from datarax.metrics import Mean, TreeHealth
from datarax.testing import assert_within_ulps, subject
from tests.helpers import collectives, compiled_text, make_mesh, over_shards
from tests.metrics.health.trees import assert_results, drawn, expected

KINDS = pytest.mark.parametrize("kind", ["auto", "explicit"])
AXES = {"data": 4, "model": 2}

# Leaves that are sharded over two axes, over one, along either dimension, and replicated.
SPECS = {
    "embed": {"table": P("data", "model")},
    "layers": [
        {"bias": P("model"), "kernel": P("data")},
        {"bias": P(), "kernel": P(("data", "model"))},
    ],
    "scale": P(),
    "unused": P(None, "model"),
}


def placed(tree: Any, mesh: Any) -> Any:
    return jax.tree.map(lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)), tree, SPECS)


@pytest.fixture
def trees(rng):
    params, grads, updates = drawn(rng), drawn(rng, 1e-3, zeros=0.3), drawn(rng, 1e-5)
    grads["layers"][0]["kernel"][17, 3] = np.inf
    return params, grads, updates


@pytest.fixture
def metric(trees):
    return TreeHealth(like=trees[0], groups=1)


def update(metric: Any, params: Any, grads: Any, updates: Any) -> Any:
    return metric.update(params, grads, updates, step=jnp.int32(6))


def assert_one_device(got: Any, metric: Any, trees: Any) -> None:
    """The results are those of one device, and of the definition."""
    got, want = jax.device_get(got), update(metric, *trees)
    assert_within_ulps(got.compute(), want.compute(), 1, name="the value")
    results = got.results()
    with np.errstate(invalid="ignore"):
        assert_results(results, expected(*trees))
        parts = (tree["embed"] for tree in trees)
        assert_results(results, expected(*parts), "embed/")
    assert "invalid" not in results
    assert (results["first_nonfinite"], results["first_nonfinite_step"]) == ("layers/0/kernel", 6)
    assert (results["nonfinite"], results["layers/nonfinite"]) == (1, 1)


@KINDS
def test_global_arrays_are_not_gathered(kind, metric, trees):
    mesh = make_mesh(kind, AXES)
    sharded = [placed(tree, mesh) for tree in trees]
    step = jax.jit(update)
    text = compiled_text(step, metric, *sharded)
    found = set(re.findall(r"(all-\w+|collective-\w+|reduce-scatter)\(", text))
    assert found == {"all-reduce"}
    # One joins the numbers of all leaves of one kind over one of three sets of axes: sums, maxima,
    # and counts, which have two branches.
    assert text.count(" all-reduce(") <= 4 * 3
    assert_one_device(jax.block_until_ready(step(metric, *sharded)), metric, trees)
    if kind == "explicit":  # eagerly too: the type of an array is part of the program
        assert_one_device(jax.block_until_ready(update(metric, *sharded)), metric, trees)


def local(metric: Any, params: Any, grads: Any, updates: Any) -> Any:
    return update(metric, params, grads, updates).sync(("data", "model"))


def test_inside_shard_map_an_update_has_no_collective_and_a_sync_one(metric, trees):
    mesh = make_mesh("explicit", AXES)
    sharded = [placed(tree, mesh) for tree in trees]

    def alone(metric, *trees):
        # `varying` gives all arrays one type, so that they can leave with one specification.
        updated = update(metric.varying(("data", "model")), *trees)
        return jax.tree.map(lambda x: jnp.asarray(x)[None], updated)

    specs = P(), SPECS, SPECS, SPECS
    per_device = over_shards(alone, mesh, specs, P(("data", "model")))
    assert not collectives(per_device, metric, *sharded)
    step = over_shards(local, mesh, specs, P())
    assert sum(collectives(step, metric, *sharded).values()) == 1
    assert_one_device(jax.block_until_ready(step(metric, *sharded)), metric, trees)


@pytest.mark.parametrize("spec", [P(), P("model")])
def test_what_is_replicated_counts_once(spec, metric, trees):
    mesh = make_mesh("auto", AXES)
    # The table over one axis, or none; all else is replicated.
    specs = jax.tree.map(lambda _: P(), SPECS, is_leaf=lambda x: isinstance(x, P))
    specs["embed"]["table"] = spec
    args = P(), specs, P(), P()
    step = over_shards(local, mesh, args, P())
    assert_one_device(jax.block_until_ready(step(metric, *trees)), metric, trees)


def test_a_state_that_was_updated_before_counts_once(metric, trees, rng):
    mesh = make_mesh("auto", AXES)
    before = metric.update(grads=jax.tree.map(lambda x: x * np.float32(np.nan), trees[0]), step=2)
    before = before.update(updates=drawn(rng), step=20)

    def scanned(metric, params, grads):
        def body(metric, step):
            return metric.update(params, grads, step=step), None

        steps = jnp.arange(3, 7, dtype=jnp.int32)
        return jax.lax.scan(body, metric.varying(("data", "model")), steps)[0].sync(
            ("data", "model")
        )

    sharded = [placed(tree, mesh) for tree in trees]
    step = over_shards(scanned, mesh, (P(), SPECS, SPECS), P())
    got = jax.device_get(jax.block_until_ready(step(before, *sharded[:2])))
    want = before
    for number in range(3, 7):
        want = want.update(*trees[:2], step=number)
    assert_within_ulps(subject.numbers(got), subject.numbers(want), 1, name="the state")
    assert "invalid" not in got.results()


@pytest.mark.parametrize(("kind", "axes"), [("auto", "data"), ("explicit", ("data", "model"))])
def test_per_device_takes_whole_trees(kind, axes, metric, trees):
    mesh = make_mesh(kind, AXES)
    copies = datarax.per_device(metric, mesh, axes)
    sharded = [placed(tree, mesh) for tree in trees]
    given = sharded if kind == "explicit" else trees
    assert_one_device(jax.block_until_ready(update(copies, *given).sync()), metric, trees)
    jitted = jax.jit(update)
    assert not {"all-gather", "all-to-all"} & collectives(jitted, copies, *sharded).keys()
    got = jax.block_until_ready(jitted(copies, *sharded))
    assert_one_device(jax.block_until_ready(got.sync()), metric, trees)


def test_replicated_trees_cost_no_collective_with_per_device(metric, trees):
    mesh = make_mesh("auto", AXES)
    copies = datarax.per_device(metric, mesh, "data")
    whole = jax.device_put(trees, NamedSharding(mesh, P()))
    assert not collectives(jax.jit(update), copies, *whole)


def test_in_a_collection_beside_metrics_of_rows(metric, trees, rng):
    mesh = make_mesh("auto", {"data": 8})
    losses = rng.integers(0, 9, (3, 11)).astype(np.float32)  # no multiple of 8: padded
    plain = datarax.Collection({"loss": Mean().from_outputs(values="loss"), "tree": metric})
    copies = datarax.per_device(plain, mesh, "data")
    for step, loss in enumerate(losses):
        outputs = {"loss": loss, "params": trees[0], "grads": trees[1], "step": step}
        plain, copies = plain.update(**outputs), copies.update(**outputs)
    got, want = jax.block_until_ready(copies.sync()).results(), plain.results()
    name = "tree/first_nonfinite"
    assert got.pop(name) == want.pop(name) == "layers/0/kernel"
    assert got == pytest.approx(want, rel=1e-6, nan_ok=True)
    with pytest.raises(MetricInputError, match="step= is required"):
        copies.update(loss=losses[0], params=trees[0])


def test_collected_in_windows(metric, trees):
    mesh = make_mesh("auto", {"data": 8})
    step = jax.jit(lambda m, p, s: m.update(p, step=s), donate_argnums=0)
    for each in (metric, datarax.per_device(metric, mesh, "data")):
        with datarax.AsyncMetricCollector(each) as collector:
            for number in range(4):
                tree = jax.tree.map(lambda x, n=number: x * np.float32(n + 1), trees[0])
                tree["scale"] = np.float32(np.nan if number == 2 else 1)
                each = jax.block_until_ready(step(each, tree, jnp.int32(number)))
                if number % 2:
                    each = collector.schedule_collection(each, step=number)
            first, second = collector.collect_results(), collector.collect_results()
        assert (first["first_nonfinite"], second["first_nonfinite"]) == (None, "scale")
        assert (second["first_nonfinite_step"], second["nonfinite"]) == (2, 1)
        assert second["embed/param_norm"] == 2 * first["embed/param_norm"]


def test_a_checkpoint_is_restored_on_any_number_of_devices(metric, trees, tmp_path):
    mesh = make_mesh("auto", {"data": 8})
    copies = update(datarax.per_device(metric, mesh, "data"), *trees)
    datarax.io.save(tmp_path / "copies", copies)
    plain = datarax.io.restore(tmp_path / "copies", like=metric)
    assert_one_device(plain, metric, trees)
    datarax.io.save(tmp_path / "plain", plain)
    again = datarax.io.restore(tmp_path / "plain", like=datarax.per_device(metric, mesh, "data"))
    assert_one_device(jax.block_until_ready(again.sync()), metric, trees)
    with pytest.raises(datarax.ConfigurationMismatchError, match=r"TreeHealth\.like is"):
        datarax.io.restore(tmp_path / "plain", like=TreeHealth(like=trees[0]["embed"], groups=1))


def test_gradients_that_differ_between_devices_are_refused(metric, trees):
    mesh = make_mesh("auto", {"data": 8})

    def differ(metric, grads):
        grads = jax.tree.map(lambda x: jax.lax.pcast(x, "data", to="varying"), grads)
        return metric.update(grads=grads, step=0).sync("data")

    with pytest.raises(MetricInputError, match=r"grads: .*'embed/table' differs .* average"):
        over_shards(differ, mesh, (P(), P()), P())(metric, trees[1])


def test_a_step_is_required_inside_shard_map(metric, trees):
    mesh = make_mesh("auto", {"data": 8})
    with pytest.raises(MetricInputError, match="step= is required"):
        over_shards(lambda m, p: m.update(p), mesh, (P(), P()), P())(metric, trees[0])


def test_without_the_replication_check_only_what_is_certain_is_taken(rng):
    mesh = make_mesh("auto", {"data": 8})
    like = {"a": rng.normal(size=(16, 3)).astype(np.float32)}
    metric = TreeHealth(like=like)

    def unchecked(function, spec):
        return jax.jit(
            jax.shard_map(function, mesh=mesh, in_specs=(P(), spec), out_specs=P(), check_vma=False)
        )

    def fold(metric, tree):
        return metric.merge(metric.reset().update(tree, step=0).sync("data"))

    got = jax.block_until_ready(unchecked(fold, P("data"))(metric, like))
    np.testing.assert_allclose(got.results()["param_norm"], np.linalg.norm(like["a"]), rtol=1e-6)
    with pytest.raises(MetricInputError, match=r"'a' .* without the replication check"):
        unchecked(fold, P())(metric, like)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(MetricInputError, match=r"'a' .* without the replication check"):
            jax.pmap(lambda t: fold(metric, t), axis_name="data")({"a": np.stack([like["a"]] * 8)})


def test_no_shard_of_the_leaf_is_refused(rng):
    mesh = make_mesh("auto", {"data": 8})
    metric = TreeHealth(like={"a": np.zeros((24, 3), np.float32)})
    with pytest.raises(MetricInputError, match="no shard of"):
        over_shards(lambda m, t: m.update(t, step=0), mesh, (P(), P("data")), P("data"))(
            metric, {"a": np.zeros((56, 3), np.float32)}
        )
