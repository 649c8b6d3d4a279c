"""`datarax demo --processes N`: starts real processes on this machine and always ends them."""

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from datarax.cli import interrupts

_INTERRUPT_SECONDS = 0.1  # how long it may take until Ctrl-C is noticed
_spawn = multiprocessing.get_context("spawn")


def run_demo(count: int, epochs: int, folder: Path) -> int:
    """Runs the demo on `count` processes and returns its exit code."""
    with _reserved_port() as port:
        return run(_join, count, count, port, epochs, folder, limit=180 + 20 * epochs)


def _join(rank: int, count: int, port: int, epochs: int, folder: Path) -> int:
    import jax

    # XLA's CPU collectives print messages about their connections to standard output. So the output
    # of native code goes to /dev/null, and only that of Python is kept.
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1, encoding=sys.stdout.encoding)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    address = f"127.0.0.1:{port}"
    jax.distributed.initialize(address, count, rank, coordinator_bind_address=address)
    from datarax.cli import demo

    code = demo.run(count, epochs, folder)
    jax.distributed.shutdown()
    return code


def run(target: Callable[..., int], count: int, *args: Any, limit: float) -> int:
    """Runs `target(rank, *args)` in `count` processes, and ends all of them if one fails.

    Args:
        target: a function at module level that returns an exit code.
        count: the number of processes.
        *args: further arguments of `target`, which are pickled.
        limit: the time in seconds after which all processes are ended.

    Returns:
        0 if `target` returned 0 in every process, else 1. The process that failed is reported on
        stderr.
    """
    children = [_spawn.Process(target=_child, args=(target, rank, *args)) for rank in range(count)]
    with interrupts.held():
        try:
            # The resource tracker must start before the children do. It unblocks SIGINT when it
            # starts, so SIGINT is blocked again.
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            for child in children:
                child.start()
            return _wait(children, limit)
        finally:  # also after an interrupt
            started = [child for child in children if child.pid is not None]
            for child in started:
                child.kill()
            for child in started:
                child.join()


def _wait(children: Sequence[BaseProcess], limit: float) -> int:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        interrupts.raise_if_any()
        codes = [child.exitcode for child in children]
        for rank, code in enumerate(codes):
            if code:
                how = f"exited with {code}"
                if code < 0:
                    how = f"was ended by {signal.Signals(-code).name}"
                print(f"process {rank} of {len(codes)} {how}", file=sys.stderr)
                return 1
        if None not in codes:
            return 0
        # Only of those that run: the sentinel of a process that has ended is always ready.
        running = [child.sentinel for child in children if child.exitcode is None]
        connection.wait(running, _INTERRUPT_SECONDS)
    print(f"stopped: not finished after {limit:g} s", file=sys.stderr)
    return 1


def _child(target: Callable[..., int], rank: int, *args: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        code = target(rank, *args)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # A normal exit would let JAX wait for other processes, which may be gone.
    os._exit(code)


def _end_with_parent() -> None:
    """Waits until the parent process ends, and then ends this one."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


@contextmanager
def _reserved_port() -> Iterator[int]:
    """A free port, held by a socket so that no other program gets it.

    gRPC can listen on it nevertheless, because of SO_REUSEPORT.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
