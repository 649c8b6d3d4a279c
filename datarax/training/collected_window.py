"""`CollectedWindow`: a window of a collector, until its results are on the host."""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from datarax._errors import (
    DataraxError,
    InvalidValuesWarning,
    MetricTimeoutError,
    NotAddressableError,
    PrecisionWarning,
    WindowError,
)
from datarax._xp import is_addressable
from datarax.metrics.base import Metric, Reading, read
from datarax.training.agreement import Barrier


class CollectedWindow(NamedTuple):
    name: str
    step: Any
    reading: "Future[Reading]"
    barrier: Barrier | None
    round: int
    number: int

    def is_ready(self) -> bool:
        return self.reading.done()

    def wait(self, timeout: float | None) -> None:
        if self.barrier is not None and not self.is_ready():
            self.barrier.mark_waiting(self.round)
        try:
            self.reading.exception(timeout)
        except TimeoutError:
            late = "the devices of this process are still computing"
            if self.barrier is not None:
                late = self.barrier.missing(self.round)
            raise MetricTimeoutError(
                f"{self.name} did not finish within {timeout:g} s: {late}"
            ) from None


def reading_of(metric: Metric, thread: Executor) -> "Future[Reading]":
    """The reading of a metric, which a thread makes on the host as soon as its arrays are ready.

    On several processes, the copies of a `per_device` metric are merged by a program, which this
    call dispatches.
    """
    if not all(map(is_addressable, jax.tree.leaves(metric))):
        metric = metric.merged()
    metric = jax.tree.map(_copied, metric)
    arrays: list[Any] = [x for x in jax.tree.leaves(metric) if isinstance(x, jax.Array)]
    for x in arrays:
        x.copy_to_host_async()

    def when_ready() -> Reading:
        pause = 1e-5
        # Not by waiting for the arrays: if another process is gone, they are never ready, and the
        # interpreter waits for this thread before it exits.
        while not all(x.is_ready() for x in arrays):
            if not threading.main_thread().is_alive():
                raise CancelledError
            time.sleep(pause)
            pause = min(2 * pause, 2e-3)
        return read(metric)

    return thread.submit(when_ready)


def _copied(x: Any) -> Any:
    """A copy on the devices, as a later step may donate the array; nothing is compiled."""
    if not isinstance(x, jax.Array):
        return x
    x = x if is_addressable(x) else x.addressable_data(0)
    return jax.device_put(x, x.sharding, may_alias=False)


def check_joint(metric: Metric, name: str) -> None:
    """Raises if this process cannot collect the metric together with the other processes."""
    for leaf in jax.tree.leaves(metric):
        if is_addressable(leaf):
            raise NotAddressableError(
                f"{name}: only this process holds the state of {type(metric).__name__}, so each "
                f"process would get its own result; use per_device, or update the metric under jit "
                f"with global arrays (datarax.distributed.global_batch)"
            )


def emptied(metric: Metric) -> Metric:
    """The empty metric with the same shardings, so that the next step is not recompiled."""

    def like(x: Any, empty: Any) -> Any:
        if not isinstance(x, jax.Array) or isinstance(empty, jax.Array):
            return empty
        if isinstance(x.sharding, SingleDeviceSharding) and not x.committed:
            return jax.device_put(empty)
        empty = np.broadcast_to(np.asarray(empty), x.shape)
        return jax.make_array_from_callback(x.shape, x.sharding, lambda index: empty[index])

    return jax.tree.map(like, metric, metric.reset())


def is_empty(metric: Metric) -> bool:
    """Whether a metric is as it was made: its arrays are the constants of a reset."""
    leaves = zip(jax.tree.leaves(metric), jax.tree.leaves(metric.reset()), strict=True)
    return all(x is empty for x, empty in leaves)


def shapes_of(metric: Metric) -> Metric:
    """The metric with shapes instead of arrays, which are not kept alive."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), metric)


@contextlib.contextmanager
def naming_window(window: str) -> Iterator[None]:
    """Puts the name of the window into every error that is raised in the block."""
    try:
        yield
    except (DataraxError, InvalidValuesWarning, PrecisionWarning) as error:
        error.args = (f"{window}: {error}",)
        raise
    except Exception as error:
        raise WindowError(f"{window} failed: {error}") from error


def is_over_cpus(metric: Metric) -> bool:
    """Whether the state lies on several CPU devices."""
    arrays = [leaf for leaf in jax.tree.leaves(metric) if isinstance(leaf, jax.Array)]
    devices = arrays[0].sharding.device_set if arrays else ()
    return len(devices) > 1 and next(iter(devices)).platform == "cpu"
