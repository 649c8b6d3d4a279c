"""A metric with copies moves to another mesh: no row is lost, and none counts twice."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import datarax
from datarax import io, per_device
from datarax.distributed import global_batch
from datarax.metrics import Accuracy, Max, Mean, MeanSquaredError, Std, Sum
from datarax.training import StatefulMetric
from tests import processes
from tests.helpers import LONG, bits, make_mesh
from tests.training.loops import Seen, busy

IDS = 64


def mesh_of(size: int, name: str = "data") -> Mesh:
    return jax.make_mesh((size,), (name,), (AxisType.Auto,), devices=jax.devices()[:size])


def meshes() -> list[tuple[Mesh, str | tuple[str, ...]]]:
    """1 to 8 devices, of several names, with one axis and with two, and in another order."""
    one = [(mesh_of(size, f"of {size % 3}"), f"of {size % 3}") for size in range(1, 9)]
    two = Mesh(np.array(jax.devices()[::-1]).reshape(4, 2), ("data", "model"))
    return [*one, (make_mesh("explicit", {"a": 2, "b": 4}), ("a", "b")), (two, "data")]


def test_random_lives_lose_and_double_no_row(rng, tmp_path):
    places, lives, empty = meshes(), 1000 if LONG else 300, Seen(IDS)

    def anywhere(metric: datarax.Metric) -> datarax.PerDevice:
        return per_device(metric, *places[rng.integers(len(places))])

    collected = []
    with datarax.AsyncMetricCollector(anywhere(empty), max_in_flight=4) as collector:
        for life in range(lives):
            metric, want = anywhere(empty), np.zeros(IDS, int)
            saved, windows, before = (metric.state_dict(), want), [], []
            for what in rng.choice(5, rng.integers(2, 8), p=[0.4, 0.3, 0.1, 0.1, 0.1]):
                if what == 0:
                    ids = rng.integers(0, IDS, 6).astype(np.int32)
                    metric, want = metric.update(ids), want + np.bincount(ids, minlength=IDS)
                elif what == 1:
                    before.append((metric, want))
                    metric = anywhere(metric)
                elif what == 2:
                    metric = collector.schedule_collection(metric, step=(life, len(windows)))
                    windows.append(((life, len(windows)), want))
                    want = np.zeros(IDS, int)
                elif what == 3:
                    saved = metric.state_dict(), want
                else:
                    metric, want = anywhere(empty).load_state_dict(saved[0]), saved[1]
            if life % 100 == 0:  # and through a file
                io.save(tmp_path / f"{life}", metric)
                metric = io.restore(tmp_path / f"{life}", like=anywhere(empty))
            for held, times in [*before, (metric, want)]:
                np.testing.assert_array_equal(held.results(), times)
            collected += windows
    read = collector.ready()
    assert [step for step, _ in read] == [step for step, _ in collected]
    assert len(read) > lives / 5
    for (_, got), (_, want) in zip(read, collected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_whatever_it_holds_moves_with_it(rng):
    mean, largest, std, total = (each(on_invalid="exclude") for each in (Mean, Max, Std, Sum))
    metric = datarax.MultiTask(
        {
            "all": datarax.Collection({"mean": mean, "max": largest, "std": std}),
            "window": datarax.Window(total, 3),
            "sliced": datarax.Sliced(mean, 3),
            "resampled": datarax.Bootstrap(total, 4, seed=1),
        }
    )
    apart = per_device(metric, mesh_of(8), "data")
    for step in range(5):
        values = rng.integers(-999, 999, 8).astype(np.float32)
        values[step] = np.nan  # is counted, and left out
        slices, index = rng.integers(0, 3, 8).astype(np.int32), np.arange(8) + 8 * step
        outputs = {name: {"values": values} for name in metric}
        outputs["sliced"] |= {"slices": slices}
        outputs["resampled"] |= {"index": index.astype(np.int32)}
        apart, metric = apart.update(**outputs), metric.update(**outputs)
        if step == 1:
            bits_before = bits(apart.merge_copies().canonical())
            apart = per_device(apart, make_mesh("explicit", {"a": 2, "b": 2, "c": 2}), ("c", "a"))
            assert apart.device_count == 4
            assert bits(apart.merge_copies().canonical()) == bits_before
        if step == 3:
            apart = per_device(apart, mesh_of(8), "data")  # where it has been
    with pytest.warns(datarax.InvalidValuesWarning):
        got, want = apart.results(), metric.results()
    assert got.keys() == want.keys()
    assert got["all/mean/invalid"] == 5
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-7 if "std" in name else 0)


def test_on_the_same_mesh_it_is_itself():
    mean = per_device(Mean().update(3.0), mesh_of(4), "data")
    for axes in ("data", ("data",), ["data"]):
        assert per_device(mean, mesh_of(4), axes) is mean
    assert per_device(mean, mesh_of(4, "rows"), "rows") is not mean
    step = jax.jit(lambda m: per_device(m, mesh_of(4), "data").update(jnp.arange(4.0)))
    assert step(mean).results() == 9 / 5
    with jax.set_mesh(mesh_of(8)):  # another mesh that is set changes nothing
        assert per_device(mean, mesh_of(2), "data").results() == 3.0
    # The constructor makes a new one, with the same data.
    assert datarax.PerDevice(mean, mesh_of(4), "data").results() == 3.0


def test_what_is_refused():
    mean, fewer = per_device(Mean(), mesh_of(8), "data"), mesh_of(2)
    with pytest.raises(datarax.MetricTypeError, match="call per_device between two steps"):
        jax.jit(lambda m: per_device(m, fewer, "data"))(mean)
    for axes in ("rows", ()):
        with pytest.raises(datarax.MetricInputError, match="per_device: "):
            per_device(mean, fewer, axes)
    for holds in (datarax.Collection({"mean": mean}), datarax.MultiTask({"mean": mean})):
        with pytest.raises(datarax.MetricTypeError, match="move each of those it holds"):
            per_device(holds, fewer, "data")
    step = jax.jit(lambda m: m.update(jnp.arange(8.0)), donate_argnums=0)
    after = step(mean)
    with pytest.raises(datarax.DonatedStateError, match="PerDevice"):
        per_device(mean, fewer, "data")
    assert per_device(after, fewer, "data").results() == 3.5


def test_a_window_in_flight_stays_on_its_mesh():
    mesh, seconds = mesh_of(8), 0.3
    sum_of = per_device(Sum(), mesh, "data")
    on_first = jax.device_put(jnp.float32(seconds), mesh.devices.flat[0])
    parts = [jax.device_put(jnp.ones(1), device) for device in mesh.devices.flat]
    with datarax.AsyncMetricCollector(sum_of) as collector:
        parts[0] = busy(on_first)[:1] + 1
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
        slow = jax.make_array_from_single_device_arrays((8,), sharding, parts)
        sum_of = collector.schedule_collection(sum_of.update(slow), step="old mesh")
        moved = per_device(sum_of, mesh_of(4, "rows"), "rows")
        moved = collector.schedule_collection(moved.update(np.full(4, 2.0)), step="new mesh")
        assert moved.device_count == 4
        back = per_device(moved.update(np.full(4, 3.0)), mesh, "data")
        collector.schedule_collection(back, step="back")
    assert collector.ready() == [("old mesh", 8.0), ("new mesh", 8.0), ("back", 12.0)]


def test_a_collector_still_refuses_another_metric():
    half, most = (per_device(Accuracy(threshold=t), mesh_of(2), "data") for t in (0.5, 0.9))
    with (
        datarax.AsyncMetricCollector(half) as collector,
        pytest.raises(datarax.ConfigurationMismatchError, match=r"Accuracy.threshold is 0\.5"),
    ):
        collector.schedule_collection(per_device(most, mesh_of(4), "data"))


def test_a_metric_of_a_trainer_moves_in_place():
    stateful = StatefulMetric(per_device(Mean(), mesh_of(8), "data"))
    step: Any = nnx.jit(lambda metric, x: metric.update(values=x))
    with datarax.AsyncMetricCollector(stateful) as collector:
        step(stateful, np.arange(8, dtype=np.float32))
        stateful.metric = per_device(stateful.metric, mesh_of(4), "data")
        step(stateful, np.arange(8, 12, dtype=np.float32))
        collector.schedule_collection()
        step(stateful, np.arange(4, dtype=np.float32))
        collector.schedule_collection()
    assert collector.ready() == [(None, 5.5), (None, 1.5)]


# Over processes.


def over_processes() -> dict[str, Any]:
    rank, said = jax.process_index(), {}
    devices = np.array(jax.devices())
    all_of_them, fewer = Mesh(devices, ("data",)), Mesh(devices[:2], ("rows",))
    reverse = Mesh(devices[::-1], ("again",))

    def updated(metric: Any, value: float, mesh: Mesh = all_of_them) -> Any:
        rows = global_batch(np.full(1, value + rank, np.float32), mesh, mesh.axis_names)[0]
        return jax.block_until_ready(metric.update(rows))

    def attempt(name: str, call: Any) -> None:
        try:
            said[name] = call()
        except datarax.DataraxError as error:
            said[name] = type(error).__name__, str(error)

    sum_of = updated(per_device(Sum(), all_of_them, "data"), 1)  # 1 + 2 + 3
    with datarax.AsyncMetricCollector(sum_of, timeout=30) as collector:
        sum_of = collector.schedule_collection(sum_of, step=0)
        sum_of = updated(sum_of, 10)  # 10 + 11 + 12
        sum_of = per_device(sum_of, reverse, "again")
        sum_of = collector.schedule_collection(updated(sum_of, 1, reverse), step=1)
        # One process does not move: an error on all, and no program that waits for it.
        stayed = per_device(Sum(), all_of_them, "data")
        apart = stayed if rank == 1 else sum_of
        attempt("apart", lambda: collector.schedule_collection(apart))
        collector.schedule_collection(updated(sum_of, 2, reverse), step=2)
    said["windows"] = collector.ready()
    sum_of = per_device(updated(sum_of, 1, reverse), fewer, "rows")
    if rank < 2:
        sum_of = updated(sum_of, 5, fewer)  # 5 + 6
    attempt("fewer", sum_of.results)
    if rank == 2:
        processes.mark(said["fewer"][1])
    attempt("more", lambda: per_device(sum_of, all_of_them, "data").results())
    sum_of = updated(per_device(Sum(), all_of_them, "data"), 1)
    sum_of.results()
    processes.mark("before the kill")
    sys.stdin.readline()
    attempt("gone", lambda: per_device(sum_of, Mesh(devices[:1], ("data",)), "data"))
    return said


def test_it_moves_to_fewer_processes_and_says_what_it_cannot():
    with processes.kept(over_processes, 3, timeout=60) as group:
        for rank in range(3):
            group.await_mark(rank, "before the kill")
        (without, _) = group.marks(2)
        for rank in (1, 2):
            group.kill(rank)
        group.tell(0, "go on")
        (outcome,) = group.outcomes([0])
    assert outcome.ended == "returned", outcome
    said = outcome.value
    assert said["windows"] == [(0, 6.0), (1, 39.0), (2, 9.0)]
    assert said["fewer"] == 17.0
    assert without.endswith(
        "no device of the mesh, so it cannot read the metric; read it on the processes [0, 1]"
    )
    kind, text = said["apart"]
    assert kind == "ConfigurationMismatchError"
    assert "Sum[per_device axes] is " in text
    kind, text = said["more"]
    assert kind == "NotAddressableError"
    assert "on devices of the processes [0, 1], and the new mesh also has devices of [2]" in text
    assert "datarax.io.restore(path, like=datarax.per_device(" in text
    kind, text = said["gone"]
    assert kind == "NotAddressableError"
    assert "the copies on the old mesh cannot be read" in text


# Metrics of two meshes, of an actor and of a learner for example.


def two_meshes() -> tuple[Mesh, Mesh]:
    here, there = jax.devices()[:4], jax.devices()[4:]
    auto, explicit = (AxisType.Auto,), (AxisType.Explicit,)
    return (
        jax.make_mesh((4,), ("data",), auto, devices=here),
        jax.make_mesh((4,), ("rows",), explicit, devices=there),
    )


def on(x: Any, mesh: Mesh) -> jax.Array:
    return jax.device_put(x, NamedSharding(mesh, P(mesh.axis_names)))


def test_metrics_of_two_meshes_merge_where_the_first_is(rng):
    x, y = (rng.normal(size=16).astype(np.float32) for _ in range(2))
    for metric in (Std(), datarax.Collection({"a": Mean(), "b": Sum(), "c": Max()})):
        want = metric.update(values=x).merge(metric.update(values=y)).results()
        for kind in (
            datarax.replicate,
            lambda metric, mesh: per_device(metric, mesh, mesh.axis_names),
        ):
            a, b = (
                kind(metric, mesh).update(values=on(values, mesh))
                for mesh, values in zip(two_meshes(), (x, y), strict=True)
            )
            for one, other in ((a, b), (b, a)):
                merged = one.merge(other)
                jax.tree.map(np.testing.assert_allclose, merged.results(), want)
                # The program of the next step is that of the first metric.
                assert [leaf.sharding for leaf in jax.tree.leaves(merged)] == [
                    leaf.sharding for leaf in jax.tree.leaves(one)
                ]
    with pytest.raises(datarax.ConfigurationMismatchError, match="Sum"):
        per_device(Sum(), two_meshes()[0], "data").merge(per_device(Max(), two_meshes()[1], "rows"))


def test_a_collection_takes_arrays_of_two_meshes_and_a_metric_does_not(rng):
    here, there = two_meshes()
    x, y = (rng.normal(size=16).astype(np.float32) for _ in range(2))
    given = {"loss": on(x, here), "reward": on(y, there)}
    loss, reward = (Std().from_outputs(values=name) for name in ("loss", "reward"))
    inner = datarax.Collection({"reward": reward, "least": Max().from_outputs(values="reward")})
    both = datarax.Collection({"loss": loss, "reward": reward, "inner": inner})
    seen = both.update(**given).update(**given)
    want = both.update(loss=x, reward=y).update(loss=x, reward=y).results()
    jax.tree.map(np.testing.assert_allclose, seen.results(), want)
    jax.tree.map(np.testing.assert_allclose, seen.compute(), seen.results())
    jax.tree.map(np.testing.assert_allclose, seen.merge(both.reset()).results(), want)
    jax.tree.map(np.testing.assert_allclose, seen.reset().merge(seen).results(), want)
    say = r"MeanSquaredError.update: .*: preds on the devices \[0, 1, 2, 3\]; target .*device_put"
    with pytest.raises(datarax.MetricInputError, match=say):
        MeanSquaredError().update(given["loss"], given["reward"])
    with pytest.raises(datarax.MetricInputError, match=r"its state on .*; values on .* merge"):
        Mean().update(given["loss"]).update(given["reward"])
    with pytest.raises(datarax.MetricInputError, match=r"loss.*Std.update"):
        both.update(**given).update(loss=given["reward"], reward=given["reward"])
