"""Processes of this machine that are started anew when one of them dies."""

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any

TRIES = 3
"""How many processes a call may end before it fails."""


class ProcessExecutor(ThreadPoolExecutor):
    """Spawned processes. A call whose process dies runs again in a new one.

    Each thread has a process of its own, so it is known which call a process that dies was at.

    Args:
        workers: how many processes.
        begin: called in each process first, with `environment`, and a connection that closes when
            this executor does, or this process ends.
        environment: for `begin`.
    """

    def __init__(self, workers: int, begin: Callable[..., None], environment: dict[str, str]):
        super().__init__(workers, "datarax-process")
        self.workers = workers
        context = multiprocessing.get_context("spawn")  # JAX has threads: never fork
        alive, self._held = context.Pipe(duplex=False)
        self._new_pool = partial(ProcessPoolExecutor, 1, context, begin, (environment, alive))
        self._own = threading.local()
        self._pools: set[ProcessPoolExecutor] = set()
        self._killed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(self._run, partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the processes, after what they are doing."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            for pool in self._pools:
                pool.shutdown()
            self._held.close()

    def kill(self) -> None:
        """Ends the processes at once, also those that are still starting: `begin` sees to it."""
        self._killed = True
        self._held.close()
        self.shutdown(wait=False, cancel_futures=True)

    def _run(self, call: Callable[[], Any], tries: int = TRIES) -> Any:
        pool = self._own.pool = getattr(self._own, "pool", None) or self._new_pool()
        self._pools.add(pool)
        try:
            return pool.submit(call).result()
        except BrokenProcessPool:
            self._pools.discard(pool)
            self._own.pool = None
            if self._killed or tries == 1:
                raise
        return self._run(call, tries - 1)
