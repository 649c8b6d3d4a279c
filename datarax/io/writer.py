"""`Writer`: what all writers do. Results are written on a thread, in order, by process 0."""

import atexit
import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

import jax
import numpy as np

from datarax._checks import warn
from datarax._errors import MetricInputError, MetricTypeError, WriterError, WriterWarning
from datarax._typing import ArrayLike

Step = ArrayLike | str
"""The key of results: the number of the step."""

Items = dict[str, Any]
"""Results by name: numbers, strings, None, NumPy arrays, lists, and named tuples of arrays."""

OnError = Literal["warn", "raise"]
"""The behaviour of the next call, if writing fails."""

_Task = tuple[Step, Items] | threading.Event | None
"""What the thread does: it writes the results of a step, or makes sure that all before is written
and sets an event, or ends."""

_THREAD = "datarax-write"
WAITING = 1_000
"""The number of results that may wait to be written. Then `write` waits too, for a while."""
SECONDS_TO_WAIT = 5.0
"""The time after which `write` drops its results, if a thread that stands still has a full queue.
After that, it drops them at once, until the thread goes on."""


class Writer(ABC):
    """The base of writers: `write`, `flush`, `close`, and use in a `with` block.

    A subclass defines `put`, and where it needs to `open`, `sync` and `end`. They run on the thread
    of the writer, one at a time, in the order of the calls. On several processes, only process 0
    writes.

    Args:
        on_error: what happens if writing fails, at the next call: "warn" gives a `WriterWarning`,
            "raise" raises a `WriterError`.

    Raises:
        MetricInputError: `on_error` is something else.

    Example:
        >>> from datarax.io import Writer
        >>> class Printing(Writer):
        ...     def put(self, step, items):
        ...         print(step, items)
        >>> with Printing() as writer:
        ...     writer.write(1, {"loss": 0.5, "accuracy": {"de": 1.0}})
        1 {'loss': 0.5, 'accuracy/de': 1.0}
    """

    def __init__(self, *, on_error: OnError = "warn"):
        if on_error not in ("warn", "raise"):
            raise MetricInputError(f'on_error={on_error!r}; expected "warn" or "raise"')
        self.on_error = on_error
        self._closed = False
        self._failed: tuple[str, Exception, int] | None = None
        self._queue: queue.Queue[_Task] = queue.Queue(WAITING)
        self._done = 0
        """The number of tasks that the thread has finished."""
        self._stalled = -1
        """The number of them when the thread did not go on for long, and a result was dropped."""
        self._thread: threading.Thread | None = None
        self._process = 0
        """The process whose thread writes."""

    def open(self) -> None:  # noqa: B027, a subclass may leave it out
        """Makes what is written to; called before the first `put`."""

    @abstractmethod
    def put(self, step: Step, items: Items) -> None:
        """Writes the results of one step."""

    def sync(self) -> None:  # noqa: B027, a subclass may leave it out
        """Makes sure that what was written can be read by others."""

    def end(self) -> None:  # noqa: B027, a subclass may leave it out
        """Closes what is written to; not called if nothing was opened."""

    def write(self, step: Step, results: object) -> None:
        """Writes results later, on the thread of the writer.

        Args:
            step: what identifies the results: the number of the step.
            results: what `results()` or a collector gives. A single value is called "value". The
                values are copied.

        Raises:
            WriterError: the writer is closed, or was used before this process was forked; or an
                earlier call failed, and `on_error` is "raise"; these results are written all the
                same. It has failed too if so many results wait that this one was dropped.
            MetricInputError: a result is called "step".
            MetricTypeError: the results hold an object that no writer can write.
        """
        if self._closed:
            raise WriterError(f"{type(self).__name__}.write: the writer is closed")
        # Checked and copied on each process, so that a wrong name is an error on all of them.
        items = named_items(results)
        if jax.process_index() == 0:
            self._require_here("write")
            if self._thread is None:
                self._process = os.getpid()
                # A daemon: Python waits for other threads before it calls what `atexit` has.
                self._thread = threading.Thread(target=self._work, name=_THREAD, daemon=True)
                self._thread.start()
                atexit.register(self.close)
            self._enqueue(step, items)
        self._report()

    def _enqueue(self, step: Step, items: Items) -> None:
        """Passes results to the thread, or drops them if it stands still."""
        try:
            # Waits while the queue is full, so that slow storage does not fill the memory.
            stands_still = self._stalled == self._done
            self._queue.put((step, items), timeout=0 if stands_still else SECONDS_TO_WAIT)
        except queue.Full:
            self._stalled = self._done
            self._fail(f"step {step}", TimeoutError(f"{WAITING:,} results wait to be written"))

    def flush(self) -> None:
        """Waits until all results are written.

        Raises:
            WriterError: writing failed, and `on_error` is "raise".
        """
        self._require_here("flush")
        if self._thread is not None and not self._closed:
            written = threading.Event()
            self._queue.put(written)
            written.wait()
        self._report()

    def close(self) -> None:
        """Writes what is left, and closes. A second call does nothing.

        In a process that was forked since, there is nothing left, and the files stay open for the
        process that writes.

        Raises:
            WriterError: writing failed, and `on_error` is "raise".
        """
        if not self._closed:
            self._closed = True
            if self._thread is not None and self._process == os.getpid():
                self._queue.put(None)
                self._thread.join()
                atexit.unregister(self.close)  # which would keep the writer until the end
        self._report()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _require_here(self, call: str) -> None:
        if self._thread is not None and self._process != os.getpid():
            raise WriterError(
                f"{type(self).__name__}.{call}: this process is a fork of process {self._process}, "
                f"whose thread writes; make another writer in this process, or start it with the "
                f"method spawn"
            )

    def _work(self) -> None:
        opened = False
        while True:
            task = self._queue.get()
            what = f"step {task[0]}" if isinstance(task, tuple) else "what was left"
            try:
                if isinstance(task, tuple):
                    if not opened:
                        self.open()
                        opened = True
                    self.put(*task)
                elif opened:
                    try:
                        self.sync()
                    finally:
                        if task is None:
                            self.end()
            except Exception as error:
                self._fail(what, error)
            self._done += 1
            if isinstance(task, threading.Event):
                task.set()
            if task is None:
                return

    def _fail(self, what: str, error: Exception) -> None:
        # The first error is the cause; those after it are counted.
        what, error, count = self._failed or (what, error, 0)
        self._failed = what, error, count + 1

    def _report(self) -> None:
        """Says once that writing failed since the last call."""
        failed, self._failed = self._failed, None
        if failed is None:
            return
        what, error, count = failed
        more = "" if count == 1 else f" and {count - 1} more"
        reason = str(error).strip().splitlines()
        text = (
            f"{type(self).__name__} could not write {what}{more}: "
            f"{type(error).__name__}: {reason[0] if reason else ''}"
        )
        if self.on_error == "raise":
            raise WriterError(text) from error
        warn(text, WriterWarning)


def named_items(results: object) -> Items:
    """Results by name, copied: names of nested dicts are joined, as in "outer/inner".

    Raises:
        MetricInputError: a name is "step", or two names are equal.
        MetricTypeError: a value is of a type that results do not have.
    """
    given = results if isinstance(results, Mapping) else {"value": results}
    items: Items = {}
    for name, value in _flat(given, ""):
        if name in items or name == "step":
            raise MetricInputError(f"results: two values are called {name!r}; rename one")
        items[name] = value
    return items


def _flat(results: Mapping[object, object], start: str) -> Iterator[tuple[str, object]]:
    for name, value in results.items():
        full = f"{start}{name}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{full}/")
        else:
            yield full, _copied(value, full)


def _copied(value: Any, name: str) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "_fields"):  # a named tuple, such as the points of a curve
        return type(value)(*(_copied(x, name) for x in value))
    if isinstance(value, list | tuple):
        return [_copied(x, name) for x in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.array(value)
        if array.dtype.kind not in "biufSU" and array.dtype.name not in ("bfloat16",):
            raise MetricTypeError(f"results: {name!r} is an array of {array.dtype}")
        return array.item() if array.ndim == 0 else array
    raise MetricTypeError(
        f"results: {name!r} is a {type(value).__name__}; expected what results() gives: numbers, "
        f"arrays, strings, and dicts of them"
    )
