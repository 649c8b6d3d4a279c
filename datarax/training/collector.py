"""Collecting windows of metrics while the training loop runs, without waiting for results."""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar, overload

import jax

from datarax._checks import kind, positive_int, timeout_seconds
from datarax._errors import (
    CollectorStateError,
    DataraxError,
    MetricInputError,
    MetricTimeoutError,
    MetricTypeError,
    NotAddressableError,
    WindowError,
    all_of,
)
from datarax._typing import PyTree
from datarax._xp import is_addressable
from datarax.algebra.lineage import Source, find_mark, set_mark
from datarax.algebra.saving import check_configuration, require_arrays
from datarax.algebra.state import is_untouched
from datarax.distributed.barrier import Barrier
from datarax.distributed.placement import outside_mesh
from datarax.metric.arguments import GivenNumbers, checked_given
from datarax.metric.base import Metric, Reading, read, without_copies
from datarax.training.agreement import agree, different_steps, step_note
from datarax.training.stateful import StatefulMetric
from datarax.wrappers.per_device import PerDevice

_log = logging.getLogger("datarax")

_KEPT = 100
"""The number of written windows that are kept for a loop that reads them too."""
_MANY_UNREAD, _MOST_UNREAD = 100, 10_000
"""Without a writer: how many windows that nobody has read give a warning, and an error."""


M = TypeVar("M", bound=Metric)


class ResultsWriter(Protocol):
    """The writer of results, such as those of `datarax.io`."""

    def write(self, step: Any, results: PyTree) -> None:
        """Writes the results of one step."""

    def flush(self) -> None:
        """Waits until all results are written."""


class _Written(NamedTuple):
    """A window that a writer has got."""

    step: Any
    results: PyTree


class _Window(NamedTuple):
    """A window that was scheduled, until its results are on the host."""

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
            self.reading.exception(timeout)  # waits; an error of the window is raised when read
        except TimeoutError:
            late = "the devices of this process are still computing"
            if self.barrier is not None:
                late = self.barrier.missing(self.round)
            raise MetricTimeoutError(
                f"{self.name} did not finish within {timeout:g} s: {late}"
            ) from None


class AsyncMetricCollector:
    """Syncs and reads windows of a metric without making the training loop wait.

    A window is what a metric accumulates between two calls of `schedule_collection`. Each call
    copies the state of the current window on the devices, and returns the metric reset for the next
    window. The results are read later, the oldest window first. Every update counts in exactly one
    window, also if the step donates its state.

    Call `bind()` before use, or use the collector in a `with` block; leaving the block waits for
    the windows in flight. A thread reads the windows on the host; it runs no programs, so the
    devices get them in the order of the calls. On several processes, all must schedule the same
    windows in the same order. Before the first window, they check that they hold the same metrics.
    If a process fails or leaves its block, all processes that wait for it raise an error.

    A metric may move to another mesh by `per_device`, between windows or within one; on several
    processes, on all of them. They then compare their metrics again.

    One thread schedules windows. Any threads may read them, also while another one leaves the
    block: each window goes to one of them. A process that was forked from this one has no copy of
    the thread: there the collector raises an error, and you make another one.

    Args:
        metric: a metric of the class and configuration to collect (plain, `Collection` or
            `per_device`), or the `StatefulMetric` to collect, which is then reset in place.
        max_in_flight: the largest number of unfinished windows. If there are so many,
            `schedule_collection` first waits for the oldest.
        timeout: the longest time in seconds to wait for other processes; `None` for no limit.
        bounds: whether the results hold the bounds of each metric that has them, under
            "<name>/lower" and "<name>/upper". The results of a single metric are then a dict, with
            the value under "value".
        writer: gets the results of each window once, in order, with its step, or its number if no
            step was given: one of `datarax.io`, or any object with `write(step, results)` and
            `flush()`. Finished windows are written when a method of the collector is called, and
            when the block ends, so the loop needs not read them. It can: the newest 100 are kept.
            The writer is not closed. Without a writer, read the windows on each process: finished
            windows wait on the host until then. 100 of them give a warning in the log, once. With
            10,000, no more can be scheduled.

    Raises:
        MetricTypeError: `metric` is not a metric, or `writer` has no method `write`.
        MetricInputError: `max_in_flight` is below one, or `timeout` is negative.

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
        bounds: bool = False,
        writer: ResultsWriter | None = None,
    ):
        if not isinstance(metric, Metric | StatefulMetric):
            raise MetricTypeError(
                f"AsyncMetricCollector expects a datarax.Metric or a StatefulMetric; "
                f"got {kind(metric)}"
            )
        positive_int(max_in_flight, "max_in_flight")
        if writer is not None and not callable(getattr(writer, "write", None)):
            raise MetricTypeError(
                f"AsyncMetricCollector: writer= expects an object with write(step, results), such "
                f"as datarax.io.JSONLWriter; got {kind(writer)}"
            )
        self._writer = writer
        self._stateful = metric if isinstance(metric, StatefulMetric) else None
        like = metric.metric if isinstance(metric, StatefulMetric) else metric
        # Shapes and dtypes only: the first step may donate the arrays, and this does not keep a
        # large state alive.
        self._like = _shapes(like)
        self._structure = jax.tree.structure(self._like)
        self._timeout, self._limit, self._bounds = timeout_seconds(timeout), max_in_flight, bounds
        self._bound = self._was_bound = self._agreed = False
        self._process = os.getpid()
        # Held while windows are moved and read, and not while one is waited for.
        self._lock = threading.RLock()
        self._warned_of_waiting = self._warned_of_unread = False
        self._windows: deque[_Window] = deque()
        self._finished: deque[_Window | _Written] = deque()
        self._count = 0
        # Marks the metrics of the windows, which must not be updated and scheduled again.
        self._source = Source()
        self._barrier: Barrier | None = None

    # Binding and unbinding.

    def bind(self) -> Self:
        """Makes the collector ready to schedule.

        Raises:
            CollectorStateError: it is bound already.
        """
        if not self._was_bound:
            self._process = os.getpid()  # which may be a fork of the one that made it
        self._require_here("bind()")
        if self._bound:
            raise CollectorStateError(
                "bind(): this collector is bound already; call unbind() first"
            )
        self._bound = self._was_bound = True
        if jax.process_count() > 1:
            self._barrier = Barrier()
        self._thread = ThreadPoolExecutor(1, "datarax-read")
        return self

    def unbind(self) -> None:
        """Waits for the windows in flight. Their results and errors can still be read afterwards.

        Raises:
            CollectorStateError: it is not bound.
            MetricTimeoutError: a window did not finish within the timeout.
        """
        with self._lock_here("unbind()"):
            self._require_bound("unbind()")
            self._bound = False
        self._leave("has left the collector's block")
        while (oldest := self._oldest()) is not None:
            oldest.wait(self._timeout)
        self._thread.shutdown()
        try:
            with self._lock:
                self._write_finished()
        finally:
            if self._writer is not None:
                self._writer.flush()

    def __enter__(self) -> Self:
        return self.bind()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.unbind()
        elif self._process == os.getpid():
            # Waiting could take long, as other processes may be gone, and would hide the error.
            self._leave(f"failed: {kind.__name__}: {error}")
            with contextlib.suppress(Exception), self._lock:
                self._write_finished()

    # Scheduling and reading.

    @overload
    def schedule_collection(self, metric: M, *, step: Any = None, **given: float) -> M: ...

    @overload
    def schedule_collection(
        self, metric: None = None, *, step: Any = None, **given: float
    ) -> None: ...

    @outside_mesh
    def schedule_collection(
        self, metric: Metric | None = None, *, step: Any = None, **given: float
    ) -> Metric | None:
        """Ends a window and returns the empty metric for the next one, which the loop must take.

        Write `metric = collector.schedule_collection(metric)`. If the loop goes on with the metric
        that was passed, each window holds those before it.

        The call copies the state, and does not wait for results, except in two cases. If
        `max_in_flight` windows are unfinished, it waits for the oldest. On several CPU processes,
        it waits for the other processes to reach the same window and for the window to finish,
        because dispatching a program blocks there anyway.

        After an error, the metric (or the `StatefulMetric`) is unchanged and can still be used: its
        data goes into the next window. Errors that happen later, on the devices or in `compute`,
        are raised when the window is read.

        Args:
            metric: the metric that holds this window. Leave it out for a `StatefulMetric`, which is
                reset in place.
            step: any value that identifies the window; it is returned with the results.
            **given: what some metrics divide by, as in `results`: `elapsed=` seconds of this
                window, its number of `steps=`. On several processes, each reads its own.

        Returns:
            The empty metric in the same layout; `None` for a `StatefulMetric`.

        Raises:
            MetricInputError: the metric still holds the data of an earlier window, because the loop
                did not take the metric that this method returned. Or an argument that a metric
                reads is not given, or one is given that none reads.
            DonatedStateError: a step donated the arrays of the metric.
            CollectorStateError: the collector is not bound; or there is no writer, and 10,000
                finished windows wait to be read; or processes schedule windows of different steps,
                if these are integers, because one has skipped a window.
            ConfigurationMismatchError: the collector was made for a metric of another class or
                configuration, or other processes hold other metrics. The error names the field.
            NotAddressableError: there are several processes, and only this process holds the state.
            MetricTimeoutError: other processes did not reach this window in time, or failed before
                it; the error names them. No process schedules the window then: each raises this
                error when it arrives.
        """
        with self._lock_here("schedule_collection()"):
            self._require_bound("schedule_collection()")
        name = f"window {self._count}" + ("" if step is None else f" (step {step})")
        try:
            with self._lock:
                self._write_finished()
                self._limit_unread()
            current = self._current(metric)
            known = checked_given(current.readers(), tuple(given.items()), name)
            over_cpus = _is_over_cpus(current)
            self._make_room()
            if self._barrier is not None:
                _check_joint(current, name)
        except Exception as error:
            if self._barrier is not None:  # so that the other processes do not wait for this one
                self._barrier.abort(f"failed: {str(error) or type(error).__name__}")
            raise
        if self._barrier is not None:
            self._meet(self._barrier, current, name, step_note(step), over_cpus)
        with _naming_window(name):
            reading = _reading_of(current, known, self._thread)
            empty = current.reset()
        # `_meet` has passed the round of this window.
        reached = 0 if self._barrier is None else self._barrier.round - 1
        window = _Window(name, step, reading, self._barrier, reached, self._count)
        with self._lock:
            self._windows.append(window)
        self._count += 1
        if over_cpus and self._barrier is not None:
            # All processes have arrived, so the window finishes soon. Waiting for it here means
            # that a process that dies later cannot leave the others inside this collective.
            with contextlib.suppress(MetricTimeoutError):
                window.wait(self._timeout)
        if self._stateful is None:
            if not is_untouched(current):
                set_mark(current, self._source, name)
            return empty
        self._stateful.state.set_value(empty)
        return None

    def ready(self) -> list[tuple[Any, PyTree]]:
        """The finished windows that were not read before, as `(step, results)`. It never waits.

        Raises:
            WindowError: the oldest window failed, on the devices or in `compute`; the error is
                chained as the cause. The window is dropped, the other windows are kept.
            InvalidValuesError: some data could not be used, and `on_invalid` is "raise".
        """
        with self._lock_here("ready()"):
            if not self._was_bound:
                self._require_bound("ready()")
            self._write_finished()
            pairs: list[tuple[Any, PyTree]] = []
            while self._finished:
                try:
                    results = self._read(self._finished[0])
                except Exception:
                    if not pairs:  # otherwise the next call raises it, and `pairs` is not lost
                        self._finished.popleft()
                        raise
                    return pairs
                pairs.append((self._finished.popleft().step, results))
            return pairs

    def collect_results(self, timeout: float | None = None) -> PyTree:
        """Waits for the oldest window and returns its results.

        Args:
            timeout: the longest time to wait in seconds; by default the collector's timeout.

        Returns:
            The value of the metric, with Python numbers for scalars and NumPy arrays for arrays.
            Sums and counts are exact. A dict of results has the number of values that could not be
            used under "<name>/invalid".

        Raises:
            CollectorStateError: no window is scheduled.
            MetricTimeoutError: the window did not finish in time. The error names the window and
                the processes that have not reached it. You can wait for the window again.
            WindowError: the computation of the window failed.
            InvalidValuesError: some data could not be used, and `on_invalid` is "raise".
        """
        timeout = self._timeout if timeout is None else timeout
        while True:
            with self._lock_here("collect_results()"):
                self._write_finished()
                if self._finished:
                    return self._read(self._finished.popleft())
                if not self._windows:
                    self._require_bound("collect_results()")
                    raise CollectorStateError(
                        "collect_results(): no window is scheduled; call schedule_collection() "
                        "first"
                    )
                oldest = self._windows[0]
            # Another thread may take it when it is ready.
            oldest.wait(timeout)

    # Helpers.

    def _write_finished(self) -> None:
        """Moves the windows that have finished, and gives the new ones to the writer.

        Raises the first error, with notes of the others. A window that cannot be read is dropped,
        as by `ready`; one that cannot be written can still be read.
        """
        self._oldest()
        if self._writer is None:
            return
        errors: list[Exception] = []
        finished, self._finished = self._finished, deque(maxlen=_KEPT)
        for window in finished:
            if isinstance(window, _Window):
                try:
                    results = self._read(window)
                    self._finished.append(_Written(window.step, results))
                    step = window.number if window.step is None else window.step
                    self._writer.write(step, results)
                except Exception as error:  # those after it are written all the same
                    errors.append(error)
            else:
                self._finished.append(window)
        if errors:
            raise all_of(errors)

    def _oldest(self) -> _Window | None:
        """Moves the windows that have finished; the oldest of the others, if there is one."""
        with self._lock:
            while self._windows and self._windows[0].is_ready():
                self._finished.append(self._windows.popleft())
            return self._windows[0] if self._windows else None

    def _limit_unread(self) -> None:
        unread = 0 if self._writer is not None else len(self._finished)
        if unread < _MANY_UNREAD or (unread < _MOST_UNREAD and self._warned_of_unread):
            return
        text = (
            f"{unread} finished windows wait to be read; read them with ready() or "
            f"collect_results(), or give the collector a writer="
        )
        if unread >= _MOST_UNREAD:
            raise CollectorStateError(f"schedule_collection(): {text}")
        self._warned_of_unread = True
        _log.warning("AsyncMetricCollector: %s", text)

    def _leave(self, why: str) -> None:
        self._bound = False
        self._thread.shutdown(wait=False)
        if self._barrier is not None:
            self._barrier.abort(why)

    def _require_here(self, call: str) -> None:
        if self._process != os.getpid():
            raise CollectorStateError(
                f"{call}: this process is a fork of process {self._process}, which has bound the "
                f"collector; the thread that reads windows is there only: make another collector "
                f"in this process, or start it with the method spawn"
            )

    def _lock_here(self, call: str) -> threading.RLock:
        """The lock, in the process that has bound the collector; another one may wait for ever."""
        self._require_here(call)
        return self._lock

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
        require_arrays(metric)
        # Comparing structures is fast; `check_configuration` then finds the field that differs. A
        # metric may have moved to another mesh; then the processes compare it again.
        if jax.tree.structure(metric) != self._structure:
            like = _shapes(metric)
            check_configuration(_without_devices(self._like), _without_devices(like), "collect")
            self._like, self._structure = like, jax.tree.structure(like)
            self._agreed = False
        if mark := find_mark(metric, self._source):
            raise MetricInputError(
                f"schedule_collection(metric): this metric still holds the data of {mark.name}, "
                f"which would count twice; go on with the metric that is returned: "
                f"metric = collector.schedule_collection(metric)"
            )
        return metric

    def _make_room(self) -> None:
        while (oldest := self._oldest()) is not None and len(self._windows) >= self._limit:
            if not self._warned_of_waiting and not oldest.is_ready():
                self._warned_of_waiting = True
                _log.warning(
                    "AsyncMetricCollector: schedule_collection waits because %s is still in "
                    "flight; collect less often, or increase max_in_flight (now %d)",
                    oldest.name,
                    self._limit,
                )
            oldest.wait(self._timeout)

    def _meet(
        self, barrier: Barrier, metric: Metric, name: str, step: str, over_cpus: bool
    ) -> None:
        # On CPU, the dispatch of the sync waits for the other processes without a timeout. So this
        # process first waits for them here, where there is one; always with what it holds, because
        # a metric may have moved on some processes only.
        if over_cpus or not self._agreed:
            agree(barrier, metric, self._timeout, f"{name}, waiting to schedule", step)
            self._agreed = True
        elif differ := different_steps(barrier.arrive(self._timeout, step)):
            barrier.abort(f"failed: {differ}")
            raise CollectorStateError(f"{name}: {differ}")

    def _read(self, window: _Window | _Written) -> PyTree:
        if isinstance(window, _Written):
            return window.results
        with _naming_window(window.name):
            name = type(self._like).__name__
            # A dict of results says how many values could not be used; for a single one, warn.
            reading = window.reading.result()
            is_single = not isinstance(reading.value, dict)
            reading = reading.checked(name, warns=is_single).warned(name)
            return reading.on_host(bounds=self._bounds)


def _reading_of(metric: Metric, given: GivenNumbers, thread: Executor) -> "Future[Reading]":
    """The reading of a metric, which a thread makes on the host as soon as its arrays are ready.

    On several processes, the copies of a `per_device` metric are merged by a program, which this
    call dispatches.
    """
    if not all(map(is_addressable, jax.tree.leaves(metric))):
        metric = without_copies(metric)
    metric = jax.tree.map(_copied, metric)
    arrays: list[PyTree] = [x for x in jax.tree.leaves(metric) if isinstance(x, jax.Array)]
    # It is meant: JAX 0.12 counts it among the transfers that a guard against others disallows.
    with jax.transfer_guard_device_to_host("allow"):
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
        return read(metric, given)

    return thread.submit(when_ready)


def _copied(x: object) -> object:
    """A copy on the devices, as a later step may donate the array; nothing is compiled."""
    if not isinstance(x, jax.Array):
        return x
    x = x if is_addressable(x) else x.addressable_data(0)
    return jax.device_put(x, x.sharding, may_alias=False)


def _check_joint(metric: Metric, name: str) -> None:
    """Raises if this process cannot collect the metric together with the other processes."""
    for leaf in jax.tree.leaves(metric):
        if is_addressable(leaf):
            raise NotAddressableError(
                f"{name}: only this process holds the state of {type(metric).__name__}, so each "
                f"process would get its own result; use per_device, or update the metric under jit "
                f"with global arrays (datarax.distributed.global_batch)"
            )


@contextlib.contextmanager
def _naming_window(window: str) -> Iterator[None]:
    """Puts the name of the window into every error that is raised in the block."""
    try:
        yield
    except (DataraxError, Warning) as error:
        error.args = (f"{window}: {error}",)
        raise
    except Exception as error:
        raise WindowError(f"{window} failed: {str(error) or type(error).__name__}") from error


def _shapes(metric: M) -> M:
    """The metric with the shapes and dtypes of its arrays in place of them."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), metric)


def _without_devices(shapes: Metric) -> Metric:
    """Of a `per_device` metric, given as shapes, the one that each device holds; else itself."""
    if not isinstance(shapes, PerDevice):
        return shapes
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), shapes.copies)


def _is_over_cpus(metric: Metric) -> bool:
    """True if the state lies on several CPU devices."""
    arrays = [leaf for leaf in jax.tree.leaves(metric) if isinstance(leaf, jax.Array)]
    devices = arrays[0].sharding.device_set if arrays else ()
    return len(devices) > 1 and next(iter(devices)).platform == "cpu"
