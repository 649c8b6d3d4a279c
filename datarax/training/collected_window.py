"""`Window`: one window of a collector, from its dispatch until its results are on the host."""

import contextlib
import functools
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from datarax._errors import (
    DataraxError,
    InvalidValuesWarning,
    MetricTimeoutError,
    NotAddressableError,
    PrecisionWarning,
    WindowError,
)
from datarax.distributed.placement import like_on_one_device, mesh_of, outside_mesh
from datarax.metrics.base import Metric, Reading, read, read_in_place
from datarax.training.agreement import Barrier
from datarax.wrappers.per_device import PerDevice, merge_copies

# Simulated CPU devices deadlock when several programs with a collective are in flight (eight
# programs did, on eight devices). So at most this many windows over several CPU devices are in
# flight in one process, over all its collectors.
MOST_ON_CPU = 2


class Window(NamedTuple):
    name: str
    step: Any
    reading: Reading  # arrays on the devices, on their way to the host
    barrier: Barrier | None
    round: int
    number: int

    def is_ready(self) -> bool:
        return all(array.is_ready() for array in jax.tree.leaves(self.reading))

    def wait(self, timeout: float | None) -> None:
        start, pause = time.monotonic(), 1e-5
        if self.barrier is not None and not self.is_ready():
            self.barrier.mark_waiting(self.round)
        while not self.is_ready():
            if timeout is not None and time.monotonic() - start > timeout:
                late = "the devices of this process are still computing"
                if self.barrier is not None:
                    late = self.barrier.missing(self.round)
                raise MetricTimeoutError(f"{self.name} did not finish within {timeout:g} s: {late}")
            time.sleep(pause)
            pause = min(2 * pause, 2e-3)

    def on_host(self) -> "Window":
        """This window, which is ready, with NumPy arrays: it holds nothing on the devices."""
        try:
            return self._replace(reading=jax.tree.map(np.array, self.reading))
        except Exception:  # of the computation: raised where the window is read
            return self


on_cpu: deque[Window] = deque()
"""The windows over several CPU devices that are in flight, of all collectors."""


def check_joint(metric: Metric, name: str) -> None:
    """Raises if this process cannot collect the metric together with the other processes."""
    for leaf in jax.tree.leaves(metric):
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            raise NotAddressableError(
                f"{name}: only this process holds the state of {type(metric).__name__}, so each "
                f"process would get its own result; use per_device, or update the metric under jit "
                f"with global arrays (datarax.distributed.global_batch)"
            )
    with naming_window(name):
        jax.eval_shape(read, metric)


def emptied(metric: Metric) -> Metric:
    """The empty metric with the same shardings, so that the next step is not recompiled."""
    leaves, treedef = jax.tree.flatten(metric)
    if not all(isinstance(leaf, jax.Array) for leaf in leaves):
        return metric.reset()
    return treedef.unflatten(_resetter(treedef, tuple(leaf.sharding for leaf in leaves))(metric))


def shapes_of(metric: Metric) -> Metric:
    """The metric with shapes instead of arrays, which are not kept alive; with their shardings."""

    def shape_of(x: Any) -> jax.ShapeDtypeStruct:
        sharding = x.sharding if isinstance(x, jax.Array) and x.committed else None
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(shape_of, metric)


@outside_mesh
def compile_ahead(like: Metric) -> None:
    """Compiles the programs that read and empty a metric of these shapes; runs none of them."""
    merged, mesh = like, mesh_of(like)
    if isinstance(like, PerDevice):
        merge_copies.lower(like).compile()
        merged, mesh = jax.eval_shape(merge_copies, like), like.mesh
    read_in_place.lower(merged if mesh is None else like_on_one_device(merged, mesh)).compile()
    leaves, treedef = jax.tree.flatten(like)
    default = jax.device_put(0).sharding  # where a step puts what is on no device yet
    _resetter(treedef, tuple(x.sharding or default for x in leaves)).lower(like).compile()


@functools.lru_cache
def _resetter(treedef: Any, shardings: tuple[Any, ...]) -> Any:
    return jax.jit(lambda metric: jax.tree.leaves(metric.reset()), out_shardings=list(shardings))


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
