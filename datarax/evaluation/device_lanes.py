"""Parts on all devices of this process, and on all cores of the CPU: lanes of one thread each."""

import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import jax


def lane_devices() -> list[Any]:
    """The device of each lane: all of this process; of the CPU one for every two cores, at least.

    The programs of an update are too small to use several cores each. The other core reads.
    """
    devices = jax.local_devices()
    if devices[0].platform != "cpu":
        return devices
    return [devices[i % len(devices)] for i in range(max(len(devices), cores() // 2))]


def cores() -> int:
    """How many cores of the CPU this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class DeviceLanes(Executor):
    """An executor whose calls each run on one of some devices.

    A part is folded on one device from its start to its end. So no program needs several devices,
    and the result does not depend on their number.
    """

    def __init__(self, devices: Sequence[Any]):
        self.stopped = threading.Event()
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for device in devices:
            self._free.put(device)
        self._threads = ThreadPoolExecutor(len(devices), "datarax-lane")

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._threads.submit(self._on_device, fn, args, kwargs)

    def _on_device(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        device = self._free.get()
        try:
            with jax.default_device(device):
                return fn(*args, **kwargs)
        finally:
            self._free.put(device)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads; with `cancel_futures`, also parts that are being folded end early."""
        if cancel_futures:
            self.stopped.set()
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
