"""The collector on one process: it never waits, loses nothing, and says what went wrong."""

import logging
import re
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import datarax
from datarax.metrics import Accuracy, Max, Mean, Sum
from datarax.training import StatefulMetric
from tests import processes
from tests.helpers import make_mesh
from tests.training.seen import Seen

LAYOUTS = ("plain", "collection", "per_device", "stateful")


@jax.jit
def busy(seconds_or_so) -> jax.Array:
    """A computation that takes about so long, on any device and without the host."""
    x = jnp.full((16, 16), 0.01)
    rounds = (seconds_or_so * 300_000).astype(jnp.int32)
    return jax.lax.fori_loop(0, rounds, lambda i, a: jnp.tanh(a @ a + 0.1), x)[0, :8] * 0.0


def in_flight(values: Any) -> bool:
    return not values.is_ready()


def made(layout, metric):
    """A metric in one of the layouts."""
    if layout == "collection":
        return datarax.Collection({"it": metric})
    if layout == "per_device":
        return datarax.per_device(metric, make_mesh("auto", {"data": 8}), "data")
    return StatefulMetric(metric) if layout == "stateful" else metric


def value_of(results):
    return results["it"] if isinstance(results, dict) else results


def scheduled(collector, metric, step):
    """Schedules a window in either style; the metric to go on with."""
    if isinstance(metric, StatefulMetric):
        assert collector.schedule_collection(step=step) is None
        return metric
    return collector.schedule_collection(metric, step=step)


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
        for seconds in (0.0, 3.0):  # the first compiles
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

    values = busy(jnp.float32(3))
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
            values.append(busy(jnp.float32(1.5)))
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
        mean = collector.schedule_collection(update(mean, busy(jnp.float32(2))), step="b")
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
    np.testing.assert_array_equal(results["recalls"], np.ones(3, np.float32), strict=True)


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


# What goes wrong is said, and costs no other window.


class Total(datarax.Metric):
    total = datarax.MetricAccumulator(0.0)

    def update(self, x):
        return self.replace(total=self.total.update(x))


def fussy():
    """A total whose compute fails while the list that comes with it is empty."""
    allowed = []

    class Fussy(Total):
        def compute(self):
            if not allowed:
                raise KeyError("no such curve")
            return self.total.value

    return Fussy(), allowed


def test_an_error_in_compute_names_the_window_and_leaves_the_metric_as_it_was():
    metric, allowed = fussy()
    with datarax.AsyncMetricCollector(metric) as collector:
        metric = metric.update(1.0)
        with pytest.raises(datarax.WindowError, match=r"window 0 \(step 3\).*no such curve") as e:
            collector.schedule_collection(metric, step=3)
        assert isinstance(e.value.__cause__, KeyError)
        allowed.append(True)
        metric = collector.schedule_collection(metric.update(2.0), step=4)
        collector.schedule_collection(metric.update(5.0), step=5)
    assert collector.ready() == [(4, 3.0), (5, 5.0)]


def test_a_stateful_metric_keeps_its_state_when_compute_fails():
    plain, allowed = fussy()
    metric = StatefulMetric(plain)
    metric.update(1.0)
    with datarax.AsyncMetricCollector(metric) as collector:
        with pytest.raises(datarax.WindowError, match="window 0"):
            collector.schedule_collection()
        allowed.append(True)
        metric.update(2.0)
        collector.schedule_collection()
        assert collector.collect_results() == 3.0


class Doomed(Total):
    """Its compute fails on the device, for a total of seven."""

    def compute(self):
        def check(total):
            if total == 7:
                raise ValueError("seven")
            return np.asarray(total)

        total = self.total.value
        return jax.pure_callback(check, jax.ShapeDtypeStruct((), total.dtype), total)


def failing_on_the_device():
    """In a process of its own, as JAX says at exit what failed on its devices."""
    metric, said = Doomed(), []
    update = jax.jit(lambda m, x: m.update(x + busy(jnp.float32(0.1))[0]))
    with datarax.AsyncMetricCollector(metric, max_in_flight=8) as collector:
        for step, x in enumerate((1.0, 7.0, 2.0, 7.0, 3.0)):
            # Whether dispatch itself raises depends on whether the update has already finished.
            try:
                metric = collector.schedule_collection(update(metric, x), step=step)
            except datarax.WindowError as error:
                said.append(str(error))
                metric = metric.reset()
    while len(said) < 5:
        try:
            said.append(collector.collect_results())
        except datarax.WindowError as error:
            said.append(str(error))
    return said


def test_an_error_on_the_device_surfaces_with_its_window_and_costs_no_other():
    (said,) = processes.run(failing_on_the_device, 1, join=False)
    failed = [text for text in said if isinstance(text, str)]
    steps = [re.match(r"window \d \(step (\d)\) failed: .*seven", text, re.S) for text in failed]
    assert [match and match[1] for match in steps] == ["1", "3"]
    assert [value for value in said if not isinstance(value, str)] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("read", ["ready", "collect_results"])
def test_data_that_a_metric_refuses_raises_with_the_window(layout, read):
    metric = made(layout, Mean(on_invalid="raise"))
    x = np.arange(8, dtype=np.float32)
    bad = np.where(x == 3, np.nan, x)
    with datarax.AsyncMetricCollector(metric, max_in_flight=3) as collector:
        for step, values in enumerate((x, bad, x + 1)):
            updated = metric.update(values=jnp.asarray(values))
            metric = scheduled(collector, metric if updated is None else updated, step)
    if read == "ready":
        assert [(s, value_of(r)) for s, r in collector.ready()] == [(0, 3.5)]
    else:
        assert value_of(collector.collect_results()) == 3.5
    with pytest.raises(datarax.InvalidValuesError, match=r"window 1 \(step 1\): .*1 value"):
        getattr(collector, read)()
    assert [(s, value_of(r)) for s, r in collector.ready()] == [(2, 4.5)]


def test_a_single_result_warns_of_data_that_was_left_out():
    with datarax.AsyncMetricCollector(Mean()) as collector:
        collector.schedule_collection(Mean().update(jnp.array([1.0, np.inf])), step=9)
        collector.schedule_collection(Mean().update(jnp.array([1.0, np.inf])), step=10)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.warns(datarax.InvalidValuesWarning, match="1 values"):
            assert collector.collect_results() == 1.0
    with pytest.raises(datarax.InvalidValuesWarning, match=r"window 1 \(step 10\)"):
        collector.collect_results()


# Calls out of order, and arguments that do not fit.


def test_calls_out_of_order_say_what_to_do():
    mean = Mean()
    collector = datarax.AsyncMetricCollector(mean)
    for call in (
        lambda: collector.schedule_collection(mean),
        collector.unbind,
        collector.ready,
        collector.collect_results,
    ):
        with pytest.raises(RuntimeError, match=r"not bound; call bind\(\)"):
            call()
    with collector:
        with pytest.raises(RuntimeError, match="bound already"):
            collector.bind()
        assert collector.ready() == []
        with pytest.raises(RuntimeError, match=r"no window.*schedule_collection\(\) first"):
            collector.collect_results()
        collector.schedule_collection(mean.update(1.0))
    with pytest.raises(RuntimeError, match="not bound"):
        collector.schedule_collection(mean)
    assert collector.collect_results() == 1.0  # scheduled before, so it can be read after
    assert collector.ready() == []
    with pytest.raises(RuntimeError, match="not bound"):
        collector.collect_results()
    with collector:
        collector.schedule_collection(mean.update(2.0))
        assert collector.collect_results() == 2.0


def test_another_metric_than_the_collector_was_made_for_is_refused():
    half, most = (Accuracy(threshold=t) for t in (0.5, 0.9))
    with datarax.AsyncMetricCollector(half) as collector:
        with pytest.raises(datarax.ConfigurationMismatchError, match=r"threshold is 0\.5.*0\.9"):
            collector.schedule_collection(most)
        with pytest.raises(datarax.ConfigurationMismatchError, match=r"Accuracy.*Mean"):
            collector.schedule_collection(Mean())
        for wrong in (None, 3.0, Accuracy):
            with pytest.raises(datarax.MetricInputError, match="expected the metric"):
                collector.schedule_collection(wrong)
        assert collector.ready() == []
    with (
        datarax.AsyncMetricCollector(StatefulMetric(half)) as collector,
        pytest.raises(datarax.MetricInputError, match="takes no metric here"),
    ):
        collector.schedule_collection(half)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((Mean,), {}, "expects a datarax.Metric.*the class Mean"),
        ((3,), {}, "expects a datarax.Metric or a StatefulMetric; got int"),
        ((Mean(),), {"max_in_flight": 0}, "max_in_flight=0"),
        ((Mean(),), {"max_in_flight": 1.5}, "max_in_flight=1.5"),
        ((Mean(),), {"timeout": -1}, "timeout=-1"),
        ((Mean(),), {"timeout": float("nan")}, "timeout=nan"),
    ],
)
def test_arguments_are_checked(arguments, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        datarax.AsyncMetricCollector(*arguments, **options)


# Devices that could deadlock, and a long run. In processes of their own: a deadlock aborts.


def many_windows_in_flight(devices, collectors, windows):
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(np.ones(200_000 * devices, np.float32), NamedSharding(mesh, P("data")))
    metrics = datarax.Collection({"mean": Mean(), "most": Max()})
    metrics = [datarax.per_device(metrics, mesh, "data") for _ in range(collectors)]
    step = jax.jit(lambda m, x: m.update(values=x), donate_argnums=0)
    total = 0
    bound = [datarax.AsyncMetricCollector(m, max_in_flight=1000).bind() for m in metrics]
    for i in range(windows):
        for j, collector in enumerate(bound):
            for _ in range((i + j) % 3):
                metrics[j] = step(metrics[j], x)
            metrics[j] = collector.schedule_collection(metrics[j])
    for collector in bound:
        collector.unbind()
        total += len(collector.ready())
    return total


@pytest.mark.parametrize("devices", [2, 8])
def test_simulated_devices_do_not_deadlock_however_many_windows_are_asked_for(devices):
    # Without the bound on what is in flight, eight devices abort here (and four, with more).
    env = {"JAX_NUM_CPU_DEVICES": str(devices)}
    args = (devices, 6, 20)
    assert processes.run(many_windows_in_flight, 1, *args, join=False, env=env, timeout=120) == [
        120
    ]


def a_long_run(windows):
    """Bytes of memory held and threads running, early and late in a run of many windows."""
    mean, seen = Mean(), []
    update = jax.jit(Mean.update, donate_argnums=0)
    one, count = jnp.float32(1), 0
    start = time.monotonic()
    with datarax.AsyncMetricCollector(mean) as collector:
        for i in range(windows + 1):
            if i % (windows // 10) == 0:
                seen.append((resident_bytes(), threads()))
            mean = collector.schedule_collection(update(mean, one), step=i)
            count += len(collector.ready())
    count += len(collector.ready())
    python_threads = [thread.name for thread in threading.enumerate()]
    return count, seen, python_threads, time.monotonic() - start


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def threads():
    return len(list(Path("/proc/self/task").iterdir()))


def test_twenty_thousand_windows_hold_no_memory_and_leave_no_thread():
    windows = 20_000
    ((count, seen, python_threads, seconds),) = processes.run(
        a_long_run, 1, windows, join=False, timeout=120
    )
    assert count == windows + 1
    held = [f"{bytes_ / 2**20:.1f}" for bytes_, _ in seen]
    print(
        f"{windows} windows in {seconds:.1f} s; MiB held: {', '.join(held)}; threads: {seen[-1][1]}"
    )
    # From a tenth of the run on: compilation is over, and every pool has its threads.
    early, late = seen[1], seen[-1]
    assert late[0] - early[0] < 2 * 2**20  # 18,000 windows: 116 bytes each
    assert late[1] <= early[1]
    assert python_threads == ["MainThread"]
