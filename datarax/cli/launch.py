"""`datarax demo --processes N`: real processes of this machine, none of which is left behind."""

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

_spawn = multiprocessing.get_context("spawn")


def run_demo(count: int, epochs: int, history: Path, picture: Path) -> int:
    """The demo on `count` processes; returns its exit code."""
    with _reserved_port() as port:
        return run(_join, count, port, count, epochs, history, picture, limit=180 + 20 * epochs)


def _join(rank: int, port: int, count: int, epochs: int, history: Path, picture: Path) -> int:
    import jax

    _silence_native_code()
    address = f"127.0.0.1:{port}"
    jax.distributed.initialize(address, count, rank, coordinator_bind_address=address)
    from datarax.cli import demo

    code = demo.run(count, epochs, history, picture)
    jax.distributed.shutdown()
    return code


def run(target: Callable[..., int], count: int, *args: Any, limit: float) -> int:
    """Runs `target(rank, *args)` in `count` processes, and ends them all if one fails.

    Args:
        target: a function at the top of a module; returns an exit code.
        count: how many processes.
        *args: its further arguments, pickled.
        limit: seconds after which all are ended.

    Returns:
        0 if every process has returned 0, else 1; says on stderr which process failed, and how.
    """
    children = [_spawn.Process(target=_child, args=(target, rank, *args)) for rank in range(count)]
    try:
        # Ctrl-C is for the parent to answer. Children inherit that it is held back, and the parent
        # gets what came meanwhile. Their tracker first, which would let it through when it starts.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for child in children:
                child.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return _wait(children, limit)
    finally:  # also when interrupted
        started = [child for child in children if child.pid is not None]
        for child in started:
            child.kill()
        for child in started:
            child.join()


def _wait(children: Sequence[BaseProcess], limit: float) -> int:
    deadline = time.monotonic() + limit
    while True:
        codes = [child.exitcode for child in children]
        for rank, code in enumerate(codes):
            if code:
                print(f"process {rank} of {len(codes)} {_ended(code)}", file=sys.stderr)
                return 1
        if None not in codes:
            return 0
        left = deadline - time.monotonic()
        if left <= 0:
            print(f"stopped: not done after {limit:g} s", file=sys.stderr)
            return 1
        running = zip(children, codes, strict=True)
        connection.wait([child.sentinel for child, code in running if code is None], left)


def _ended(code: int) -> str:
    return f"exited with {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"


def _child(target: Callable[..., int], rank: int, *args: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        code = target(rank, *args)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Not the usual way out, on which JAX would wait for processes that may be gone.
    os._exit(code)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _silence_native_code() -> None:
    """Keeps standard output for Python: XLA's CPU collectives announce their connections there."""
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1, encoding=sys.stdout.encoding)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@contextmanager
def _reserved_port() -> Iterator[int]:
    """A free port, held so that nobody else is given it; gRPC can listen there all the same."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
