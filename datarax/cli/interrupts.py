"""Ctrl-C that is held while processes start, and cannot be lost."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


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


def raise_if_any() -> None:
    """Raises `KeyboardInterrupt` if Ctrl-C is pending, unless this program ignores it."""
    if signal.SIGINT in signal.sigpending() and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.sigwait({signal.SIGINT})  # takes it, so that it is not raised again
        raise KeyboardInterrupt
