"""Many windows: simulated devices that could deadlock, and memory. `make test-long` runs more.

In processes of their own, as a deadlock ends in an abort.
"""

import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import datarax
from datarax.metrics import Max, Mean
from tests import processes
from tests.helpers import LONG


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


@pytest.mark.parametrize("devices", [2, 8] if LONG else [8])
def test_simulated_devices_do_not_deadlock_however_many_windows_are_asked_for(devices):
    # On one process a window runs no collective: with one each, eight devices abort here.
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


def test_many_windows_hold_no_memory_and_leave_no_thread():
    windows = 20_000 if LONG else 2_000
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
