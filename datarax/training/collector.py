"""Results without waiting: windows of metrics, collected while the loop runs on."""

import contextlib
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import jax

from datarax._checks import kind, positive_int
from datarax._errors import (
    CollectorStateError,
    DataraxError,
    InvalidValuesWarning,
    MetricInputError,
    MetricTimeoutError,
    MetricTypeError,
    NotAddressableError,
    WindowError,
)
from datarax.metrics.base import Metric, Reading, read
from datarax.statistics.state_dicts import check_same
from datarax.training.agreement import Barrier, agree
from datarax.training.stateful import StatefulMetric

_log = logging.getLogger("datarax")
# Simulated CPU devices deadlock when several programs that hold a collective are in flight (with
# eight devices, eight did): of those, there are no more in the whole process, in all collectors.
_MOST_ON_CPU = 2
_on_cpu: deque["_Window"] = deque()


class _Window(NamedTuple):
    name: str
    step: Any
    reading: Reading  # arrays on the devices, on their way to the host
    barrier: Barrier | None
    round: int

    def is_ready(self) -> bool:
        return all(array.is_ready() for array in jax.tree.leaves(self.reading))

    def wait(self, timeout: float | None) -> None:
        start, pause = time.monotonic(), 1e-5
        if self.barrier is not None and not self.is_ready():
            self.barrier.mark_waiting(self.round)
        while not self.is_ready():
            if timeout is not None and time.monotonic() - start > timeout:
                late = "there is one process, whose devices are still at work"
                if self.barrier is not None:
                    late = self.barrier.missing(self.round)
                raise MetricTimeoutError(f"{self.name} did not finish within {timeout:g} s: {late}")
            time.sleep(pause)
            pause = min(2 * pause, 2e-3)


class AsyncMetricCollector:
    """Syncs and computes windows of a metric without making the training loop wait.

    `schedule_collection` dispatches sync and compute of what has been accumulated, and returns
    the metric reset, for the next window; the results are read later. Every update lands in
    exactly one window, also where the step donates its state. Windows come out oldest first.

    Usable after `bind()` or inside `with`; leaving the block waits for what is in flight. No thread
    runs in the background, so devices see launches in the order of calls: on several processes, all
    must schedule the same windows, in the same order. Before the first they check that they hold
    the same metrics; and one that fails, or leaves its block, is an error on all that wait for it.

    Args:
        metric: what will be collected: a metric of the same configuration (plain, `Collection`,
            `per_device`), or a `StatefulMetric`, which is then collected in place.
        max_in_flight: so many windows may be unfinished; the next `schedule_collection` first
            waits for the oldest. Of windows over several CPU devices, which could deadlock, never
            more than two are, in all collectors together.
        timeout: seconds that any wait on other processes may take; `None` for no limit.

    Raises:
        MetricTypeError: something that is not a metric.
        MetricInputError: `max_in_flight` below one, or a negative timeout.

    Example:
        >>> import jax.numpy as jnp
        >>> import datarax
        >>> loss = datarax.metrics.Mean()
        >>> with datarax.AsyncMetricCollector(loss) as collector:
        ...     for step in range(4):
        ...         loss = loss.update(jnp.float32(step))
        ...         if step % 2:
        ...             loss = collector.schedule_collection(loss, step=step)
        ...     print(collector.collect_results(), collector.collect_results())
        0.5 2.5
    """

    def __init__(
        self,
        metric: Metric | StatefulMetric,
        *,
        max_in_flight: int = 2,
        timeout: float | None = None,
    ):
        if not isinstance(metric, Metric | StatefulMetric):
            raise MetricTypeError(
                f"AsyncMetricCollector expects a datarax.Metric or a StatefulMetric; "
                f"got {kind(metric)}"
            )
        positive_int(max_in_flight, "max_in_flight")
        if timeout is not None and not timeout >= 0:
            raise MetricInputError(f"timeout={timeout!r}; expected seconds, or None")
        self._stateful = metric if isinstance(metric, StatefulMetric) else None
        # Without its arrays: the first step may donate them, and a large state is not kept alive.
        self._like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype),
            metric.metric if isinstance(metric, StatefulMetric) else metric,
        )
        self._structure = jax.tree.structure(self._like)
        self._timeout, self._limit = timeout, max_in_flight
        self._bound = self._was_bound = self._warned = self._agreed = False
        self._windows: deque[_Window] = deque()
        self._finished: deque[_Window] = deque()
        self._count = 0
        self._barrier: Barrier | None = None

    # The phases.

    def bind(self) -> Self:
        """Makes the collector ready to schedule.

        Raises:
            RuntimeError: it is bound already.
        """
        if self._bound:
            raise CollectorStateError("bind(): this collector is bound already; unbind() it first")
        self._bound = self._was_bound = True
        if jax.process_count() > 1:
            self._barrier = Barrier()
        return self

    def unbind(self) -> None:
        """Waits for the windows in flight; their results, and errors, can still be read.

        Raises:
            RuntimeError: it is not bound.
            MetricTimeoutError: a window does not finish within the timeout.
        """
        self._require_bound("unbind()")
        self._leave("has left the collector's block")
        while self._windows:
            self._windows[0].wait(self._timeout)
            self._finished.append(self._windows.popleft())

    def __enter__(self) -> Self:
        return self.bind()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.unbind()
        else:  # that error is the one to see, and other processes may be gone: wait for nothing
            self._leave(f"failed: {kind.__name__}: {error}")

    # The work.

    def schedule_collection(self, metric: Metric | None = None, *, step: Any = None) -> Any:
        """Dispatches sync and compute of a window, and returns the metric reset for the next.

        Does not wait for results. It does wait for the oldest window where `max_in_flight` are
        unfinished, and on several CPU processes for the others to reach the same window, and for
        the window: there, dispatch itself would block.

        Args:
            metric: what has been accumulated in this window; none for a `StatefulMetric`, which
                is reset in place.
            step: anything that tells the window, given back with its results.

        Returns:
            The metric, empty, in the same layout; `None` for a `StatefulMetric`.

        Raises:
            RuntimeError: not bound.
            ConfigurationMismatchError: another metric than the collector was made for; or other
                processes hold other metrics. Names the field.
            NotAddressableError: on several processes, state that only this process holds.
            MetricTimeoutError: others did not reach this window in time, or failed before it;
                names them. Then no process schedules it: all raise this, as they come to it.
            WindowError: `compute` raised; the cause is chained.

        After an error the metric, or the `StatefulMetric`, is as it was and can be used on: what
        it holds is in the next window. What fails later, on the devices, raises where it is read.
        """
        self._require_bound("schedule_collection()")
        name = f"window {self._count}" + ("" if step is None else f" (step {step})")
        try:
            current = self._current(metric)
            over_cpus = _over_cpus(current)
            self._make_room(over_cpus)
            if self._barrier is not None:
                _check_joint(current, name)
        except Exception as error:
            if self._barrier is not None:  # before the others count on this process
                self._barrier.abort(f"failed: {error}")
            raise
        if self._barrier is not None:
            self._meet(self._barrier, current, name, over_cpus)
        with _naming(name):
            reading = read(current)
            for array in jax.tree.leaves(reading):
                array.copy_to_host_async()
            empty = _reset(current)
        reached = 0 if self._barrier is None else self._barrier.round - 1
        window = _Window(name, step, reading, self._barrier, reached)
        self._windows.append(window)
        self._count += 1
        if over_cpus:
            _on_cpu.append(window)
        if over_cpus and self._barrier is not None:
            # All have come, so it takes no time; and a process that dies later dies after it.
            with contextlib.suppress(MetricTimeoutError):
                window.wait(self._timeout)
        if self._stateful is None:
            return empty
        self._stateful.state.set_value(empty)
        return None

    def ready(self) -> list[tuple[Any, Any]]:
        """The windows that are finished and not yet read, as `(step, results)`; never waits.

        Raises:
            WindowError: the oldest window failed; it is dropped, the others are kept.
            InvalidValuesError: data could not be used, and the metric's policy is "raise".
        """
        if not self._was_bound:
            self._require_bound("ready()")
        while self._windows and self._windows[0].is_ready():
            self._finished.append(self._windows.popleft())
        pairs: list[tuple[Any, Any]] = []
        while self._finished:
            try:
                results = self._read(self._finished[0])
            except Exception:
                if not pairs:  # else it surfaces on the next call, and these are not lost
                    self._finished.popleft()
                    raise
                return pairs
            pairs.append((self._finished.popleft().step, results))
        return pairs

    def collect_results(self, timeout: float | None = None) -> Any:
        """Waits for the oldest window, and returns its results.

        Args:
            timeout: seconds; by default the collector's.

        Returns:
            What the metric computes, with Python numbers for scalars and NumPy arrays for arrays;
            sums and counts are exact. In a dict, "<name>/invalid" counts what could not be used.

        Raises:
            RuntimeError: nothing is scheduled.
            MetricTimeoutError: it does not finish in time; names the window and the processes
                that have not reached it. It stays, to be waited for again.
            WindowError: its computation failed.
            InvalidValuesError: data could not be used, and the metric's policy is "raise".
        """
        if not self._finished:
            if not self._windows:
                self._require_bound("collect_results()")
                raise CollectorStateError(
                    "collect_results(): no window is scheduled; call schedule_collection() first"
                )
            self._windows[0].wait(self._timeout if timeout is None else timeout)
            self._finished.append(self._windows.popleft())
        return self._read(self._finished.popleft())

    # How.

    def _leave(self, why: str) -> None:
        self._bound = False
        if self._barrier is not None:
            self._barrier.abort(why)

    def _require_bound(self, call: str) -> None:
        if not self._bound:
            raise CollectorStateError(
                f"{call}: this collector is not bound; call bind(), or use it in a with block"
            )

    def _current(self, metric: Metric | None) -> Metric:
        if self._stateful is not None:
            if metric is not None:
                raise MetricInputError(
                    "schedule_collection() takes no metric here: the collector was made for a "
                    "StatefulMetric, which it collects in place"
                )
            metric = self._stateful.metric
        if not isinstance(metric, Metric):
            raise MetricInputError(
                f"schedule_collection(metric): expected the metric that holds this window; "
                f"got {kind(metric)}"
            )
        if jax.tree.structure(metric) != self._structure:
            check_same(self._like, metric, "collect")
        return metric

    def _make_room(self, over_cpus: bool) -> None:
        while len(self._windows) >= self._limit:
            self._wait_to_schedule(self._windows[0])
            self._finished.append(self._windows.popleft())
        while over_cpus and len(_on_cpu) >= _MOST_ON_CPU:
            self._wait_to_schedule(_on_cpu[0])
            _on_cpu.popleft()

    def _wait_to_schedule(self, window: _Window) -> None:
        if not self._warned and not window.is_ready():
            self._warned = True
            _log.warning(
                "AsyncMetricCollector: schedule_collection waits, as %s is still in flight; "
                "collect less often, or raise max_in_flight (now %d)",
                window.name,
                self._limit,
            )
        window.wait(self._timeout)

    def _meet(self, barrier: Barrier, metric: Metric, name: str, over_cpus: bool) -> None:
        about = f"{name}, waiting to schedule"
        if not self._agreed:
            agree(barrier, metric, self._timeout, about)
            self._agreed = True
        if over_cpus:  # where dispatch itself would wait for the others, without a timeout
            barrier.wait(self._timeout, about)
        else:
            barrier.arrive(self._timeout)

    def _read(self, window: _Window) -> Any:
        with _naming(window.name):
            return window.reading.on_host(type(self._like).__name__)


def _check_joint(metric: Metric, name: str) -> None:
    """Refuses what this process cannot collect together with the others."""
    for leaf in jax.tree.leaves(metric):
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            raise NotAddressableError(
                f"{name}: the state of {type(metric).__name__} is held by this process alone, so "
                f"each process would get its own answer; use per_device, or update it under jit "
                f"with global arrays (datarax.distributed.global_batch)"
            )
    with _naming(name):
        jax.eval_shape(read, metric)


def _reset(metric: Metric) -> Metric:
    """The metric, empty, with each array where it was: the next step compiles nothing anew."""
    leaves, treedef = jax.tree.flatten(metric)
    if not all(isinstance(leaf, jax.Array) for leaf in leaves):
        return metric.reset()
    return treedef.unflatten(_resetter(treedef, tuple(leaf.sharding for leaf in leaves))(metric))


@functools.lru_cache
def _resetter(treedef: Any, shardings: tuple[Any, ...]) -> Callable[[Metric], list[jax.Array]]:
    return jax.jit(lambda metric: jax.tree.leaves(metric.reset()), out_shardings=list(shardings))


@contextlib.contextmanager
def _naming(window: str) -> Iterator[None]:
    """Whatever fails within names the window."""
    try:
        yield
    except (DataraxError, InvalidValuesWarning) as error:
        error.args = (f"{window}: {error}",)
        raise
    except Exception as error:
        raise WindowError(f"{window} failed: {error}") from error


def _over_cpus(metric: Metric) -> bool:
    arrays = [leaf for leaf in jax.tree.leaves(metric) if isinstance(leaf, jax.Array)]
    devices = arrays[0].sharding.device_set if arrays else ()
    return len(devices) > 1 and next(iter(devices)).platform == "cpu"
