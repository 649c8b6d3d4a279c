"""The collector on one process never waits, and loses nothing."""

import logging
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import datarax
from datarax.metrics import Accuracy, Mean, Sum
from tests.helpers import LONG, make_mesh
from tests.training.loops import LAYOUTS, Seen, busy, in_flight, made, scheduled, value_of

# It never waits.


def slow_values(layout, seconds) -> jax.Array:
    """Eight zeros that are not there yet; for `per_device`, those of one device of eight."""
    if layout != "per_device":
        return busy(jnp.float32(seconds))
    sharding = NamedSharding(make_mesh("auto", {"data": 8}), P("data"))
    parts = [jax.device_put(jnp.zeros(1), d) for d in sharding.mesh.devices.flat]
    parts[0] = busy(jax.device_put(jnp.float32(seconds), sharding.mesh.devices.flat[0]))[:1]
    return jax.make_array_from_single_device_arrays((8,), sharding, parts)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_call_waits_for_slow_work(layout):
    metric = made(layout, Mean())
    update = jax.jit(lambda m, x: m.update(values=x))
    if layout == "stateful":
        update = nnx.jit(lambda m, x: m.update(values=x))
    with datarax.AsyncMetricCollector(metric) as collector:
        for seconds in (0.0, 1.0):  # the first compiles
            values = slow_values(layout, seconds)
            updated = update(metric, values)
            metric = scheduled(collector, updated or metric, step=seconds)
            if seconds == 0:
                assert collector.collect_results() is not None
        assert collector.ready() == []
        assert in_flight(values)  # so nothing above has waited
        assert value_of(collector.collect_results()) == 0.0
        assert not in_flight(values)


def test_leaving_the_block_waits_for_what_is_in_flight():
    mean = Mean()
    with datarax.AsyncMetricCollector(mean) as collector:
        values = busy(jnp.float32(0.5))
        collector.schedule_collection(jax.jit(Mean.update)(mean, values), step=1)
    assert not in_flight(values)
    assert collector.ready() == [(1, 0.0)]


def test_an_error_in_the_block_is_not_kept_waiting():
    mean, update = Mean(), jax.jit(Mean.update)
    jax.block_until_ready(update(mean, busy(jnp.float32(0))))
    collector = datarax.AsyncMetricCollector(mean)

    def loop():
        with collector:
            collector.schedule_collection(update(mean, values), step=1)
            raise ArithmeticError("the loop's own")

    values = busy(jnp.float32(1))
    with pytest.raises(ArithmeticError, match="the loop's own"):
        loop()
    assert in_flight(values)
    assert collector.collect_results() == 0.0  # and nothing is lost


def test_more_than_max_in_flight_waits_for_the_oldest_and_logs_that_once(caplog):
    mean, update = Mean(), jax.jit(Mean.update)
    with (
        caplog.at_level(logging.WARNING, "datarax"),
        datarax.AsyncMetricCollector(mean, max_in_flight=3) as collector,
    ):
        collector.schedule_collection(update(mean, busy(jnp.float32(0))))  # compiles
        collector.collect_results()
        values = []
        for step in range(6):
            assert bool(caplog.records) == (step > 3)
            values.append(busy(jnp.float32(0.5)))
            collector.schedule_collection(update(mean, values[-1]), step=step)
            assert sum(in_flight(each) for each in values) <= 3
        assert in_flight(values[-1])
        assert [step for step, _ in collector.ready()][:3] == [0, 1, 2]
    (record,) = caplog.records
    assert "window 1 (step 0)" in record.getMessage()
    assert "max_in_flight" in record.getMessage()


def test_a_window_that_is_late_is_named_and_can_be_waited_for_again():
    mean, update = Mean(), jax.jit(Mean.update)
    jax.block_until_ready(update(mean, busy(jnp.float32(0))))
    with datarax.AsyncMetricCollector(mean, timeout=0.05) as collector:
        mean = collector.schedule_collection(update(mean, busy(jnp.float32(1))), step="b")
        with pytest.raises(datarax.MetricTimeoutError, match=r"window 0 \(step b\).* 0\.05 s"):
            collector.collect_results()
        with pytest.raises(datarax.MetricTimeoutError, match=r"window 0 \(step b\).* 0 s"):
            collector.collect_results(timeout=0)
        with pytest.raises(TimeoutError):
            collector.unbind()
        collector.bind()
        assert collector.collect_results(timeout=60) == 0.0


# Nothing is lost.


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_update_lands_in_exactly_one_window(layout, rng):
    steps, batch = 120, 8
    ids = rng.permutation(steps * batch).astype(np.int32)
    metric = made(layout, Seen(ids.size))
    if layout == "stateful":
        step = nnx.jit(lambda m, x: m.update(ids=x), donate_argnums=0)
    else:
        step = jax.jit(lambda m, x: m.update(ids=x), donate_argnums=0)
    windows, order, scheduled_at = [], [], []

    def read(pairs):
        order.extend(at for at, _ in pairs)
        windows.extend(value_of(results) for _, results in pairs)

    with datarax.AsyncMetricCollector(metric, max_in_flight=4) as collector:
        for i in range(steps):
            updated = step(metric, ids[i * batch : (i + 1) * batch])
            metric = metric if updated is None else updated
            while rng.random() < 0.4:  # some windows are empty, one after the other
                metric = scheduled(collector, metric, step=i)
                scheduled_at.append(i)
            if rng.random() < 0.2:
                read(collector.ready())
            if rng.random() < 0.1 and len(order) < len(scheduled_at):
                order.append(scheduled_at[len(order)])
                windows.append(value_of(collector.collect_results()))
        metric = scheduled(collector, metric, step=steps)
        scheduled_at.append(steps)
    read(collector.ready())
    assert order == scheduled_at
    np.testing.assert_array_equal(np.sum(windows, 0), np.ones(ids.size))
    # And each window holds just the steps since the one before.
    edges = [0, *(min(at, steps - 1) + 1 for at in scheduled_at)]
    for start, end, window in zip(edges, edges[1:], windows, strict=False):
        expected = np.zeros(ids.size)
        expected[ids[start * batch : end * batch]] = 1
        np.testing.assert_array_equal(window, expected)


def test_an_update_between_scheduling_and_collecting_is_in_the_next_window():
    mean = Mean()
    with datarax.AsyncMetricCollector(mean) as collector:
        mean = collector.schedule_collection(mean.update(jnp.array([1.0, 3.0])))
        mean = mean.update(10.0)
        assert collector.collect_results() == 2.0
        mean = collector.schedule_collection(mean)
        assert collector.collect_results() == 10.0
        collector.schedule_collection(mean)
        assert np.isnan(collector.collect_results())


def test_results_are_exact_python_numbers_and_numpy_arrays(rng):
    right = rng.integers(0, 3, 200)
    collection = datarax.Collection(
        {
            "tokens": Sum().from_outputs(values="tokens"),
            "loss": Mean().from_outputs(values="loss"),
            "recalls": Accuracy(num_classes=3, average=None),
        }
    )
    with datarax.AsyncMetricCollector(collection) as collector:
        for _ in range(3):
            collection = collection.update(
                tokens=jnp.int32(2**31 - 1),
                loss=jnp.float32(np.nan),
                preds=jnp.asarray(right, jnp.int32),
                target=jnp.asarray(right, jnp.int32),
            )
        collector.schedule_collection(collection)
        results = collector.collect_results()
    assert results["tokens"] == 3 * (2**31 - 1)
    assert isinstance(results["tokens"], int | float)
    assert isinstance(results["loss"], float)
    assert np.isnan(results["loss"])
    assert results["loss/invalid"] == 3
    np.testing.assert_array_equal(results["recalls"], np.ones(3), strict=True)


def test_results_outlive_the_state_they_came_from():
    seen, more = Seen(8), jnp.arange(4)
    update = jax.jit(Seen.update, donate_argnums=0)
    with datarax.AsyncMetricCollector(seen) as collector:
        window = update(update(seen, more), more)
        seen = collector.schedule_collection(window)
        update(window, more)  # the state that was scheduled is donated too
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(window))
        assert collector.collect_results().tolist() == [2, 2, 2, 2, 0, 0, 0, 0]


def test_windows_that_nobody_reads_leave_the_devices_and_have_a_limit(caplog, monkeypatch):
    most = 10_000 if LONG else 300
    monkeypatch.setattr("datarax.training.collector._MOST_UNREAD", most)
    step, total = jax.jit(Sum.update, donate_argnums=0), Sum()
    collector = datarax.AsyncMetricCollector(total).bind()
    early = 0
    for number in range(most):
        total = collector.schedule_collection(step(total, jnp.int32(number)), step=number)
        if number == most // 10:
            early = len(jax.live_arrays())
    assert len(jax.live_arrays()) - early < 100
    for window in collector._windows:
        window.wait(60)
    (said,) = [record.getMessage() for record in caplog.records if "to be read" in record.message]
    # The thread may finish more than one window between two calls.
    assert re.match(r"AsyncMetricCollector: 10\d finished windows wait to be read; read", said)
    total = step(total, jnp.int32(-7))
    with pytest.raises(datarax.CollectorStateError, match=rf"{most} finished .* with ready\(\)"):
        collector.schedule_collection(total, step=most)
    # Nothing is lost: neither the windows nor the metric.
    assert collector.collect_results() == 0
    assert collector.ready() == [(number, number) for number in range(1, most)]
    collector.schedule_collection(total, step=most)
    collector.unbind()
    assert collector.ready() == [(most, -7)]


def test_the_next_window_compiles_nothing_anew():
    traces = []

    @jax.jit
    def step(metric, x):
        traces.append(1)
        return metric.update(values=x)

    for layout in ("plain", "collection", "per_device"):
        metric, x = made(layout, Mean()), jnp.arange(8.0)
        traces.clear()
        with datarax.AsyncMetricCollector(metric) as collector:
            for _ in range(5):
                metric = step(step(metric, x), x)
                shardings = [leaf.sharding for leaf in jax.tree.leaves(metric)]
                metric = collector.schedule_collection(metric)
                assert [leaf.sharding for leaf in jax.tree.leaves(metric)] == shardings
        assert len(traces) == 1, layout


def test_a_restored_metric_is_collected():
    mean = Mean().load_state_dict(Mean().update(jnp.array([1.0, 2.0])).state_dict())
    with datarax.AsyncMetricCollector(mean) as collector:
        mean = collector.schedule_collection(mean)
        collector.schedule_collection(mean.update(7.0))
    assert collector.ready() == [(None, 1.5), (None, 7.0)]


@pytest.mark.parametrize("layout", ["one device", "replicated", "per_device"])
def test_binding_compiles_all_that_a_window_needs(layout, programs):
    metric = Mean().update(jnp.arange(16.0))
    mesh = make_mesh("auto", {"data": 8})
    if layout == "per_device":
        metric = datarax.per_device(metric, mesh, "data")
    elif layout == "replicated":
        metric = jax.device_put(metric, NamedSharding(mesh, P()))
    jax.clear_caches()
    with datarax.AsyncMetricCollector(metric) as collector:
        for thread in threading.enumerate():
            if thread.name == "datarax-compile":
                thread.join()
        assert programs
        programs.clear()
        collector.schedule_collection(metric)
        assert collector.collect_results() == 7.5
    assert programs == []
