"""Results without waiting: windows of metrics, collected while the loop runs on."""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax

from datarax._checks import positive_int
from datarax._errors import (
    CollectorStateError,
    DataraxError,
    MetricInputError,
    MetricTimeoutError,
    MetricTypeError,
    NotAddressableError,
    WindowError,
)
from datarax.metrics._metric import Metric, read_results, report
from datarax.statistics._state import check_same
from datarax.training._processes import Board, check_agreement, named
from datarax.training.stateful import StatefulMetric

_log = logging.getLogger("datarax")
# Simulated CPU devices deadlock when many programs that hold a collective are in flight.
_MOST_ON_CPU = 2


class _Window(NamedTuple):
    number: int
    step: Any
    reported: Any  # arrays on the devices, on their way to the host


class AsyncMetricCollector:
    """Syncs and computes windows of a metric without making the training loop wait.

    `schedule_collection` dispatches sync and compute of what has been accumulated, and returns
    the metric reset, for the next window; the results are read later. Every update lands in
    exactly one window, also where the step donates its state. Windows come out oldest first.

    Usable after `bind()` or inside `with`; leaving the block waits for what is in flight. It
    starts no thread, and launches in the order in which it is called: on several processes, all
    must schedule the same windows, in the same order. Before the first they check that they hold
    the same metrics.

    Args:
        metric: what will be collected: a metric of the same configuration (plain, `Collection`,
            `per_device`), or a `StatefulMetric`, which is then collected in place.
        max_in_flight: so many windows may be unfinished; the next `schedule_collection` first
            waits for the oldest. On CPU devices never more than two are.
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
                f"got {type(metric).__name__}"
            )
        positive_int(max_in_flight, "max_in_flight")
        if timeout is not None and not timeout >= 0:
            raise MetricInputError(f"timeout={timeout!r}; expected seconds, or None")
        self._metric, self._timeout, self._limit = metric, timeout, max_in_flight
        self._bound = False
        self._warned = False
        self._windows: deque[_Window] = deque()
        self._finished: deque[_Window] = deque()
        self._count = 0
        self._board: Board | None = None
        self._resets: dict[Any, Callable[[Metric], Metric]] = {}

    # The phases.

    def bind(self) -> Self:
        """Makes the collector ready to schedule.

        Raises:
            RuntimeError: it is bound already.
        """
        if self._bound:
            raise CollectorStateError("bind(): this collector is bound already; unbind() it first")
        self._bound = True
        if jax.default_backend() == "cpu":
            self._limit = min(self._limit, _MOST_ON_CPU)
        return self

    def unbind(self) -> None:
        """Waits for the windows in flight; their results can still be read.

        Raises:
            RuntimeError: it is not bound.
            MetricTimeoutError: a window does not finish within the timeout.
        """
        self._require_bound("unbind()")
        self._bound = False
        while self._windows:
            self._finish_oldest(self._timeout)

    def __enter__(self) -> Self:
        return self.bind()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.unbind()
        else:  # the loop has failed: its error is the one to see, and others may be gone
            self._bound = False

    # The work.

    def schedule_collection(self, metric: Metric | None = None, *, step: Any = None) -> Any:
        """Dispatches sync and compute of a window, and returns the metric reset for the next.

        Does not wait for results. It does wait for the oldest window where `max_in_flight` are
        unfinished, and on several CPU processes for the others to reach the same window: there,
        dispatch itself would block.

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
            MetricTimeoutError: the others did not reach this window in time; names them. The
                metric keeps what it has.
        """
        self._require_bound("schedule_collection()")
        current = self._current(metric)
        if jax.process_count() > 1:
            self._meet(current, step)
        while len(self._windows) >= self._limit:
            if not self._warned and not _is_ready(self._windows[0]):
                self._warned = True
                _log.warning(
                    "AsyncMetricCollector: %d windows in flight, so schedule_collection waits for "
                    "the oldest; collect less often, or raise max_in_flight",
                    len(self._windows),
                )
            self._finish_oldest(self._timeout)
        reported = report(current)
        for array in jax.tree.leaves(reported):
            array.copy_to_host_async()
        self._windows.append(_Window(self._count, step, reported))
        self._count += 1
        empty = self._reset(current)
        if isinstance(self._metric, StatefulMetric):
            self._metric.state.set_value(empty)
            return None
        return empty

    def ready(self) -> list[tuple[Any, Any]]:
        """The windows that are finished and not yet read, as `(step, results)`; never waits.

        Raises:
            WindowError: the oldest window failed; it is dropped, the others are kept.
            InvalidValuesError: data could not be used, and the metric's policy is "raise".
        """
        while self._windows and _is_ready(self._windows[0]):
            self._finished.append(self._windows.popleft())
        pairs: list[tuple[Any, Any]] = []
        while self._finished:
            try:
                results = self._read(self._finished[0])
            except DataraxError:
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
            self._finish_oldest(self._timeout if timeout is None else timeout)
        return self._read(self._finished.popleft())

    # How.

    def _require_bound(self, call: str) -> None:
        if not self._bound:
            raise CollectorStateError(
                f"{call}: this collector is not bound; call bind(), or use it in a with block"
            )

    def _current(self, metric: Metric | None) -> Metric:
        if isinstance(self._metric, StatefulMetric):
            if metric is not None:
                raise MetricInputError(
                    "schedule_collection() takes no metric here: the collector was made for a "
                    "StatefulMetric, which it collects in place"
                )
            return self._metric.metric
        if not isinstance(metric, Metric):
            raise MetricInputError(
                f"schedule_collection(metric): expected the metric that holds this window; "
                f"got {type(metric).__name__}"
            )
        check_same(self._metric, metric, "collect")
        return metric

    def _meet(self, metric: Metric, step: Any) -> None:
        for leaf in jax.tree.leaves(metric):
            if isinstance(leaf, jax.Array) and leaf.is_fully_addressable:
                raise NotAddressableError(
                    f"schedule_collection: the state of {type(metric).__name__} is held by this "
                    f"process alone, so each process would get its own answer; use per_device, or "
                    f"update it under jit with global arrays (datarax.distributed.global_batch)"
                )
        if self._board is None:
            check_agreement(metric, self._timeout)
            self._board = Board()
        number = self._count
        self._board.post(str(number))
        if jax.default_backend() == "cpu":
            about = f"{_called(number, step)}, waiting to schedule"
            self._board.wait(lambda note: int(note) >= number, self._timeout, about)

    def _finish_oldest(self, timeout: float | None) -> None:
        window = self._windows[0]
        start, pause = time.monotonic(), 1e-5
        while not _is_ready(window):
            if timeout is not None and time.monotonic() - start > timeout:
                raise MetricTimeoutError(
                    f"{_called(window.number, window.step)} did not finish within {timeout:g} s; "
                    f"{self._who_is_missing(window.number)}"
                )
            time.sleep(pause)
            pause = min(2 * pause, 2e-3)
        self._finished.append(self._windows.popleft())

    def _who_is_missing(self, number: int) -> str:
        if self._board is None:
            return "there is one process, whose devices are still at work"
        missing = self._board.missing(lambda note: int(note) >= number)
        if not missing:
            return "all processes have reached it"
        return f"{named(missing)} not reached it"

    def _read(self, window: _Window) -> Any:
        metric = self._metric
        metric = metric.metric if isinstance(metric, StatefulMetric) else metric
        try:
            return read_results(metric, window.reported)
        except DataraxError as error:
            error.args = (f"{_called(window.number, window.step)}: {error}",)
            raise
        except Exception as error:
            raise WindowError(f"{_called(window.number, window.step)} failed: {error}") from error

    def _reset(self, metric: Metric) -> Metric:
        """The metric, empty, with each array where it was: the next step compiles nothing anew."""
        leaves, treedef = jax.tree.flatten(metric)
        if not all(isinstance(leaf, jax.Array) for leaf in leaves):
            return metric.reset()
        shardings = tuple(leaf.sharding for leaf in leaves)
        key = treedef, shardings
        if key not in self._resets:
            reset = lambda m: jax.tree.leaves(m.reset())  # noqa: E731
            self._resets[key] = jax.jit(reset, out_shardings=list(shardings))
        return treedef.unflatten(self._resets[key](metric))


def _is_ready(window: _Window) -> bool:
    return all(array.is_ready() for array in jax.tree.leaves(window.reported))


def _called(number: int, step: Any) -> str:
    return f"window {number}" + ("" if step is None else f" (step {step})")
