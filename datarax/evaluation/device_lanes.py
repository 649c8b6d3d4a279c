"""Parts on all devices of this process: one thread for each device."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import jax


class DeviceLanes(Executor):
    """An executor whose calls each run on one device, which no other call uses meanwhile.

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
