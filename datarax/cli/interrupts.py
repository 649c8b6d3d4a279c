"""Ctrl-C that is held while processes start, cannot be lost, and is not kept waiting."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn, TypeVar

from datarax._start import INTERRUPTED as INTERRUPTED

T = TypeVar("T")
_OURS = "datarax-"
"""The names of all threads of this package begin with this."""
_THREAD = f"{_OURS}beside"
_SECONDS_TO_NOTICE = 0.1
_came = threading.Event()
_SECONDS_TO_STOP = 2.0


@contextmanager
def held() -> Iterator[None]:
    """Within the block, Ctrl-C stays pending until `raise_if_any` is called, or the block ends.

    Otherwise `KeyboardInterrupt` could be raised in code that drops it, such as a callback of the
    import system or of a weak reference, or while a process is half started. SIGINT is blocked, not
    ignored. Processes that are started in the block inherit that, so only the parent handles it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def noted() -> Iterator[None]:
    """Within the block, Ctrl-C raises `KeyboardInterrupt` as always, and is noted: see `came`.

    The exception may be lost: a callback that the interpreter calls, such as those of JAX when
    garbage is collected, drops it, and an import may turn it into an `ImportError`. Python prints
    what a callback drops; it does not print this one, which is raised again where `came` is asked.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # within another such block, or it is not for this one to handle
        return

    def note(*_: object) -> NoReturn:
        _came.set()
        raise KeyboardInterrupt

    def print_dropped(dropped: "sys.UnraisableHookArgs") -> None:
        if not (came() and dropped.exc_type is KeyboardInterrupt):
            print_others(dropped)

    print_others, sys.unraisablehook = sys.unraisablehook, print_dropped
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = print_others
        _came.clear()


def came() -> bool:
    """Returns True if Ctrl-C came within the block of `noted` that this is called in."""
    return _came.is_set()


def raise_if_any() -> None:
    """Raises `KeyboardInterrupt` if Ctrl-C was noted, or is pending and not ignored."""
    if came():
        raise KeyboardInterrupt
    if signal.SIGINT in signal.sigpending() and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.sigwait({signal.SIGINT})  # takes it, so that it is not raised again
        raise KeyboardInterrupt


def beside(call: Callable[[Callable[[T], None]], object]) -> Generator[T, None, None]:
    """Runs `call(emit)` on a thread, and yields each item that it emits.

    Python raises `KeyboardInterrupt` between two instructions of the main thread. So code that runs
    long outside Python, such as a compilation or a slow read, would hold Ctrl-C back; here it is
    raised at once. The thread ends where it passes the next item. An error of `call` is raised
    here.
    """
    from datarax.evaluation.partial_state import on_thread  # imports JAX, which is slow

    def masked(give: Callable[[T], None]) -> None:
        # Processes that are started on this thread inherit that the signal is not for them.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        call(give)

    return on_thread(masked, _THREAD, waiting=raise_if_any, every=_SECONDS_TO_NOTICE)


def promptly(call: Callable[[], T]) -> T:
    """Runs `call` on a thread, as `beside` does, and returns its result."""

    def give_result(give: Callable[[T], None]) -> None:
        give(call())

    (result,) = beside(give_result)
    return result


def end(code: int) -> NoReturn:
    """Ends the program at once, also if a thread that reads, folds or waits is still busy."""
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # one more Ctrl-C ends the process
    busy = [thread for thread in threading.enumerate() if thread.name.startswith(_OURS)]
    deadline = time.monotonic() + _SECONDS_TO_STOP
    for thread in busy:
        with suppress(RuntimeError):  # a thread that is about to start cannot be joined
            thread.join(max(0, deadline - time.monotonic()))
    if any(thread.is_alive() or thread.ident is None for thread in busy):
        with suppress(OSError, ValueError):  # closed, or a full disk, which was an error before
            sys.stdout.flush()
            sys.stderr.flush()
        # An ordinary exit may hang while the thread is in native code, or abort if it comes back
        # from there while the interpreter ends.
        os._exit(code)
    sys.exit(code)
