"""Processes of this machine that are started anew when one of them dies."""

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, InvalidStateError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

TOGETHER = 2
"""How often a call is tried while others run, before it is tried by itself."""


@dataclass(eq=False)
class _Job:
    call: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)
    attempts: int = 0


class ProcessExecutor(Executor):
    """A pool of spawned processes. If one dies, all calls that were not finished run again.

    A pool breaks as a whole, and does not say which call did it. So a call that met a broken pool
    twice runs by itself; one that still ends its process is the cause, and fails.

    Args:
        workers: how many processes.
        begin: called in each process first, with `environment`, and a connection that closes when
            this executor does, or this process ends.
        environment: for `begin`.
    """

    def __init__(self, workers: int, begin: Callable[..., None], environment: dict[str, str]):
        self._context = multiprocessing.get_context("spawn")  # JAX has threads: never fork
        self._alive, self._held = self._context.Pipe(duplex=False)
        self._max_workers = workers
        self._begin = partial(begin, environment, self._alive)
        self._lock = threading.RLock()
        self._pool: ProcessPoolExecutor | None = None
        self._one = threading.Lock()
        self._closed = False
        self._jobs: set[_Job] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        job = _Job(partial(fn, *args, **kwargs))
        with self._lock:
            if self._closed:
                raise RuntimeError("the executor is shut down")
            self._jobs.add(job)
        job.future.add_done_callback(lambda _: self._jobs.discard(job))
        self._start(job)
        return job.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the processes, after what they are doing."""
        for job in list(self._jobs):
            if cancel_futures:
                job.future.cancel()
            elif wait:
                with suppress(BaseException):
                    job.future.exception()
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait, cancel_futures=cancel_futures)
        self._held.close()

    def kill(self) -> None:
        """Ends the processes at once, also those that are still starting."""
        self._closed = True
        self._held.close()
        pool = self._pool
        # `ProcessPoolExecutor.kill_workers` comes with Python 3.14.
        processes = list((getattr(pool, "_processes", None) or {}).values())
        self.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()

    def _start(self, job: _Job) -> None:
        with self._lock:
            if self._closed:
                job.future.cancel()
                return
            while True:
                pool = self._pool = self._pool or self._new_pool(self._max_workers)
                try:
                    inner = pool.submit(job.call)
                    break
                except BrokenProcessPool:
                    self._pool = None
        inner.add_done_callback(partial(self._finished, job, pool))

    def _finished(self, job: _Job, pool: ProcessPoolExecutor, inner: Future[Any]) -> None:
        if inner.cancelled():
            job.future.cancel()
        elif isinstance(inner.exception(), BrokenProcessPool):
            with self._lock:
                if self._pool is pool:
                    self._pool = None
            job.attempts += 1
            if job.attempts < TOGETHER:
                self._start(job)
            else:
                threading.Thread(target=self._run_alone, args=(job,), daemon=True).start()
        else:
            _hand_over(inner, job.future)

    def _run_alone(self, job: _Job) -> None:
        with self._one, self._new_pool(1) as pool:
            if self._closed or job.future.cancelled():
                return
            inner = pool.submit(job.call)
            inner.exception()
        _hand_over(inner, job.future)

    def _new_pool(self, workers: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(workers, self._context, self._begin)


def _hand_over(done: Future[Any], future: Future[Any]) -> None:
    """Gives a future the outcome of another one, unless it was cancelled meanwhile."""
    with suppress(InvalidStateError):
        if done.exception() is not None:
            future.set_exception(done.exception())
        else:
            future.set_result(done.result())
