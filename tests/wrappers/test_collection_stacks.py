"""Members of one kind in one stacked state: what it costs, and that nothing else shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import datarax
from datarax import Collection, InvalidValuesWarning, MultiTask, ScoresWarning, Sliced, per_device
from datarax.metrics import Accuracy, Max, Mean, Min, Std
from tests.helpers import make_mesh, place
from tests.operations import traced

NAMES = [f"m{i}" for i in range(20)]
RL = {
    "reward/mean": Mean().from_outputs(values="reward"),
    "reward/min": Min().from_outputs(values="reward"),
    "reward/max": Max().from_outputs(values="reward"),
    "reward/std": Std().from_outputs(values="reward"),
    "kl/mean": Mean().from_outputs(values="kl"),
    "kl/max": Max().from_outputs(values="kl"),
    "length/mean": Mean().from_outputs(values="length"),
    "length/min": Min().from_outputs(values="length"),
}

update = jax.jit(lambda metrics, batch: metrics.update(**batch))


def means(names=NAMES, **config):
    return Collection({name: Mean(**config).from_outputs(values=name) for name in names})


def drawn(rng, shapes):
    return {f"m{i}": rng.normal(size=shape).astype(np.float32) for i, shape in enumerate(shapes)}


def alone(metrics, batch):
    """The results of each member when it is updated by itself, in one program for each shape."""
    found = {}
    for name, metric in metrics.items():
        one = Collection({"one": metric.from_outputs(values="values")})
        found[name] = update(one, {"values": batch[name]}).results()["one"]
    return found


OLDER = jax.__version_info__ < (0, 10)
SCALARS = [()] * 20
ROWS = [(64,)] * 20
MIXED = [() if i % 2 else (100 + i,) for i in range(20)]
DISTINCT = [(100 + i,) for i in range(20)]


@pytest.mark.parametrize(
    ("metrics", "shapes", "operations", "arrays"),
    [
        (means(), SCALARS, 100, 6),
        (means(), ROWS, 100, 6),
        (means(), MIXED, 200, 6),
        (means(), DISTINCT, 200, 6),
    ],
    ids=["numbers", "rows", "of several shapes", "of twenty shapes"],
)
def test_operations_and_arrays_of_many_means(rng, metrics, shapes, operations, arrays):
    batch = jax.tree.map(jnp.asarray, drawn(rng, shapes))
    assert len(jax.tree.leaves(metrics)) == arrays
    if OLDER:
        operations *= 1.25  # older versions stack arrays in more operations
    assert len(traced(lambda m, b: m.update(**b), (metrics, batch))) <= operations
    with datarax.lowering_for("tpu"):  # without float64
        assert len(traced(lambda m, b: m.update(**b), (metrics, batch))) <= 1.5 * operations


def test_a_further_mean_costs_no_operation_and_no_array(rng):
    def count(number):
        batch = jax.tree.map(jnp.asarray, drawn(rng, [()] * number))
        metrics = means([f"m{i}" for i in range(number)])
        names = traced(lambda m, b: m.update(**b), (metrics, batch))
        # Older versions of JAX give each input an axis and join them sixteen at a time, where newer
        # ones have a `stack`.
        joins = {"broadcast_in_dim", *(["concatenate"] if OLDER else [])}
        return len([name for name in names if name not in joins])

    assert count(20) == count(10)


def test_operations_of_the_metrics_of_reinforcement_learning():
    batch = dict.fromkeys(("reward", "kl", "length"), jnp.ones(1024))
    assert len(traced(lambda m, b: m.update(**b), (Collection(RL), batch))) <= 400


@pytest.mark.parametrize("shapes", [SCALARS, ROWS, MIXED], ids=["numbers", "rows", "mixed"])
def test_members_are_as_they_are_alone(rng, shapes):
    metrics, batch = means(), drawn(rng, shapes)
    assert update(metrics, batch).results() == alone(metrics, batch)
    assert metrics.update(**batch).results() == alone(metrics, batch)


def test_batches_of_several_numbers_of_rows(rng):
    # The shorter ones get rows of weight zero, which are in no result and in no count.
    heads = {
        f"m{i}": Accuracy().from_outputs(preds=f"p{i}", target=f"t{i}", weights="w")
        if i == 3
        else Accuracy().from_outputs(preds=f"p{i}", target=f"t{i}")
        for i in range(4)
    }
    batch = {"w": rng.integers(0, 3, 12).astype(np.float32)}
    for i, size in enumerate([7, 0, 1, 12]):
        batch[f"p{i}"] = rng.uniform(size=size).astype(np.float32)
        batch[f"t{i}"] = rng.integers(0, 2, size, np.int32)
    batch["p3"][:2], batch["t0"][0] = np.nan, 5
    batch["w"][:2] = 1, 0
    seen = update(Collection(heads), batch)
    for name, metric in heads.items():
        own = update(Collection({name: metric}), batch)[name]
        assert own.invalid_count() == {"m0": 1, "m3": 1}.get(name, 0)
        for x, y in zip(*map(jax.tree.leaves, (own, seen[name])), strict=True):
            np.testing.assert_array_equal(x, y)


def test_large_batches_are_not_stacked(rng):
    batch = drawn(rng, [(20_000,)] * 3)
    metrics = means(list(batch))
    assert "20000]" in str(jax.make_jaxpr(update)(metrics, batch))
    assert "3,20000]" not in str(jax.make_jaxpr(update)(metrics, batch))
    assert update(metrics, batch).results() == alone(metrics, batch)


def test_a_reading_names_the_member_whose_scores_are_doubtful():
    heads = {
        name: Accuracy().from_outputs(preds=name, target=f"{name}_target") for name in ("a", "b")
    }
    fine = {"preds": jnp.float32([0.2, 0.7]), "target": jnp.int32([0, 1])}
    batch = {"a": fine["preds"], "a_target": fine["target"]}
    batch |= {"b": jnp.float32([-2.0, 3.0]), "b_target": fine["target"]}
    mesh = make_mesh("auto", {"data": 8})
    batch = place(batch, mesh, P())
    seen = Collection(heads).update(**batch)
    with pytest.warns(ScoresWarning, match="^b: 2 scores were not from 0 to 1"):
        seen.results()


def test_a_task_that_is_left_out_keeps_its_state(rng):
    tasks = MultiTask({"a": Mean(), "b": Mean(), "c": Mean(on_invalid="exclude")})
    step = jax.jit(lambda tasks, given: tasks.update(**given))
    assert len(jax.tree.leaves(tasks)) == 6
    tasks = step(tasks, {"a": {"values": 1.0}, "b": {"values": 2.0}, "c": {"values": jnp.nan}})
    before = jax.tree.map(np.asarray, tasks["b"])
    tasks = step(tasks, {"c": {"values": 4.0}, "a": {"values": 3.0}})
    for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(tasks["b"]), strict=True):
        np.testing.assert_array_equal(x, y)
    assert tasks["a"].results() == 2.0
    with pytest.warns(InvalidValuesWarning, match="1 NaN"):
        assert tasks["c"].results() == 4.0


def test_replicated_members_beside_members_that_vary(rng):
    mesh = make_mesh("auto", {"data": 8})
    metrics, rows = means(["m0", "m1"]), np.arange(16, dtype=np.float32)

    def step(metrics, rows, number):
        seen = metrics.update(m0=rows, m1=number)
        # The replicated one can be read before it is synced.
        return seen.sync("data"), seen["m1"].compute()

    mapped = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data"), P()), out_specs=P()))
    once, number = mapped(metrics, rows, jnp.float32(5.0))
    assert float(number) == 5.0
    assert jax.tree.structure(once) == jax.tree.structure(metrics)
    twice, _ = mapped(once, rows, jnp.float32(7.0))
    assert twice.results() == {"m0": 7.5, "m1": 6.0}
    weights = {name: float(metric.statistic.weight.value) for name, metric in twice.items()}
    assert weights == {"m0": 32.0, "m1": 2.0}


def test_on_devices_and_in_loops(rng):
    batch = drawn(rng, [(16,)] * 4)
    metrics = means(list(batch))
    expected = metrics.update(**batch).update(**batch).results()
    mesh = make_mesh("auto", {"data": 8})
    placed = place(batch, mesh, P("data"))
    copies = per_device(metrics, mesh, "data")
    copies = copies.update(**placed).update(**placed)
    assert copies.results().keys() == expected.keys()
    for name, value in copies.results().items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6)
        assert copies[name].results() == value

    def body(metrics, _):
        return metrics.update(**batch), None

    looped = jax.jit(lambda metrics: lax.scan(body, metrics, None, 2)[0])(metrics)
    assert looped.results() == expected


def test_exchanged_and_restored_members(rng):
    batch = drawn(rng, [(8,)] * 3)
    metrics = update(means(list(batch)), batch)
    swapped = metrics.replace(m1=Mean().from_outputs(values="m1"))
    assert jax.tree.structure(swapped) == jax.tree.structure(metrics)
    assert swapped.results()["m0"] == metrics.results()["m0"]
    assert np.isnan(swapped.results()["m1"])
    both = metrics | {"m3": Mean()}
    assert both.results()["m2"] == metrics.results()["m2"]
    saved = metrics.state_dict()
    assert sorted(saved["state"]) == ["m0", "m1", "m2"]  # a state for each name, as without stacks
    loaded = means(list(batch)).load_state_dict(saved)
    assert loaded.results() == metrics.results()
    assert jax.tree.structure(loaded) == jax.tree.structure(metrics)


def test_slices_of_many_means(rng):
    batch = drawn(rng, [(12,)] * 3)
    metrics, slices = means(list(batch)), np.arange(12, dtype=np.int32) % 2
    sliced = Sliced(metrics, 2)
    for seen in (sliced.update(**batch, slices=slices), update(sliced, batch | {"slices": slices})):
        results = seen.results()
        for name, x in batch.items():
            assert results["overall"][name] == pytest.approx(x.mean(dtype=np.float64), rel=1e-6)


def test_unusable_rows_of_stacked_members():
    labels = {"pa": np.int32([0, 1, 5]), "pb": np.int32([0, 7, 1]), "target": np.int32([0, 1, 2])}
    heads = Collection({x: Accuracy(num_classes=3).from_outputs(preds=f"p{x}") for x in "ab"})
    marked = heads.unusable_rows(heads.calls((), labels))
    np.testing.assert_array_equal(marked, [[False, False, True], [False, True, False]])
