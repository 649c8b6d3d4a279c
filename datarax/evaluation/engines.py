"""`engine`: an executor by its name, on this machine or on a cluster."""

import asyncio
import logging
import os
import queue
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, TypeVar

import jax

from datarax._errors import MetricInputError
from datarax._optional import optional

T = TypeVar("T")
TRIES = 3
"""The number of processes that a call may end before it fails."""


class Workers(SpawnContext):
    """Starts processes, and ends all of them at once, also those that are still starting."""

    def __init__(self):
        self._lock = threading.Lock()
        self._started: list[SpawnProcess] = []
        self.killed = False

    def Process(self, *args: Any, **kwargs: Any) -> "Worker":  # pyright: ignore
        return Worker(self, *args, **kwargs)

    def start(self, start: Callable[[], None], process: SpawnProcess) -> None:
        with self._lock:
            if self.killed:
                raise BrokenProcessPool("the executor was killed")
            _block_interrupts()
            start()
            self._started.append(process)

    def kill(self) -> None:
        with self._lock:
            self.killed = True
            for process in self._started:
                process.kill()


class Worker(SpawnProcess):
    """A process that its `Workers` know of."""

    def __init__(self, workers: Workers, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._workers: Workers | None = workers

    def start(self) -> None:
        workers, self._workers = self._workers, None  # the process itself gets a copy of this
        assert workers is not None
        workers.start(super().start, self)


class ProcessExecutor(ThreadPoolExecutor):
    """Spawned processes. A call whose process dies runs again in a new one.

    Each process is a pool of its own, so it is known which call a process that dies was at.

    Args:
        workers: how many processes.
        environment: of each process.
    """

    def __init__(self, workers: int, environment: dict[str, str]):
        super().__init__(workers, "datarax-process")
        self.in_flight = 2 * workers + 2  # how many calls it should hold at a time
        self._workers = Workers()  # JAX has threads: never fork
        # `_held` closes when this process ends, also if it is killed; workers end with it.
        alive, self._held = self._workers.Pipe(duplex=False)
        begin = partial(begin_worker, environment, alive)
        self._new_pool = partial(ProcessPoolExecutor, 1, self._workers, begin)
        # The pool that was used last comes first, so that few calls start few processes.
        self._idle = queue.LifoQueue[ProcessPoolExecutor]()
        for _ in range(workers):
            self._idle.put(self._new_pool())

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return super().submit(self._run, partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the processes, after what they are doing."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            while not self._idle.empty():
                self._idle.get().shutdown()
            self._held.close()

    def kill(self) -> None:
        """Ends the processes at once, also those that are still starting."""
        self._workers.kill()
        self._held.close()
        self.shutdown(wait=False, cancel_futures=True)

    def _run(self, call: Callable[[], T]) -> T:
        pool, tries = self._idle.get(), TRIES
        try:
            while True:
                try:
                    return pool.submit(call).result()
                except BrokenProcessPool:
                    pool, tries = self._new_pool(), tries - 1
                    if self._workers.killed or not tries:
                        raise
        finally:
            self._idle.put(pool)


class RayExecutor(Executor):
    """Runs each call as a task of Ray, again on another worker if its worker dies."""

    def __init__(self, ray: Any):
        self._cancel = ray.cancel
        # Ray retries if a worker dies. An error of the call itself comes back at once.
        self._call = ray.remote(max_retries=TRIES)(_call)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        ref = self._call.remote(fn, args, kwargs)
        future: Future[T] = ref.future()
        # Ray does not look at the future: the task would go on.
        future.add_done_callback(lambda done: done.cancelled() and self._cancel(ref))
        return future


def _call(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    return fn(*args, **kwargs)


_SECONDS_TO_CLOSE = 2.0
_DEVICES = r"--xla_force_host_platform_device_count=\S*"


def available_cpus() -> int:
    """Counts the cores of the CPU that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def engine(name: str, address: str | None = None, workers: int | None = None) -> Iterator[Executor]:
    """An executor whose workers evaluate parts of files, for `evaluate(..., executor=)`.

    The workers use the CPU, and share its cores. They end with the block; a cluster at `address`
    keeps running.

    If a worker dies, its parts are evaluated again by another one: "dask" and "ray" see to it, and
    "processes" starts new workers. A part that has ended several workers raises an error.

    Args:
        name: "processes", of this machine; "dask" (the extra `dask`) or "ray" (the extra `ray`).
        address: of the scheduler of Dask, or of the cluster of Ray; the workers need datarax and
            must see the files under the same paths. Without it, one is started on this machine.
        workers: how many workers to start; by default one for each core.

    Raises:
        MetricInputError: no engine has the name, or processes of this machine have an address.
        MissingExtraError: Dask or Ray is not installed.

    Example:
        >>> from datarax.evaluation import engine
        >>> with engine("processes", workers=1) as workers:
        ...     print(workers.submit(pow, 2, 5).result())
        32
    """
    engines = {"processes": _processes, "dask": _dask, "ray": _ray}
    if name not in engines:
        raise MetricInputError(f"engine={name!r}; expected one of {', '.join(map(repr, engines))}")
    if name == "processes" and address is not None:
        raise MetricInputError("engine: processes of this machine have no address")
    number = workers or available_cpus()
    # Each worker has its share of the cores: with all, they would take them from each other.
    environment = _environment(max(1, available_cpus() // number))
    with engines[name](address, number, environment) as executor:
        yield executor


def begin_worker(environment: dict[str, str], alive: Any) -> None:
    """Prepares a process of `engine("processes")`: on the CPU, and it ends with its parent."""
    os.environ.update(environment)
    # Ctrl-C reaches all processes of a terminal. The parent ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jax.config.update("jax_platforms", "cpu")  # JAX has read the environment already
    threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()


def _end_with_parent(alive: Any) -> None:
    try:
        alive.recv()
    except (EOFError, OSError):
        os._exit(1)


def _environment(threads: int) -> dict[str, str]:
    """The environment of a worker: JAX on one CPU device, with some of the cores."""
    flags = re.sub(_DEVICES, "", os.environ.get("XLA_FLAGS", "")).strip()
    return {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "NPROC": str(threads),  # the threads of XLA
        "OMP_NUM_THREADS": str(threads),  # and of Arrow
    }


@contextmanager
def _processes(_: str | None, workers: int, environment: dict[str, str]) -> Iterator[Executor]:
    executor = ProcessExecutor(workers, environment)
    try:
        yield executor
    except BaseException:
        executor.kill()
        raise
    executor.shutdown()


@contextmanager
def _dask(address: str | None, workers: int, environment: dict[str, str]) -> Iterator[Executor]:
    distributed = optional("distributed", "dask", 'engine("dask")')

    def start() -> Any:
        return distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None, env=environment
        )

    with ExitStack() as stack:
        cluster: Any = address
        if address is None:
            cluster = _start_masked(start, lambda started: _end_workers(started, started.close))
            stack.enter_context(cluster)
        client = stack.enter_context(distributed.Client(cluster))
        try:
            yield client.get_executor(pure=False)
        except (KeyboardInterrupt, GeneratorExit):
            close = stack.pop_all().close
            _try_soon(close if address is not None else partial(_end_workers, cluster, close))
            raise


def _block_interrupts() -> None:
    """From here on, processes that this thread starts do not get Ctrl-C."""
    resource_tracker.ensure_running()  # unblocks SIGINT on the thread that starts it
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _start_masked(start: Callable[[], T], close: Callable[[T], object]) -> T:
    """Runs `start` on a thread, so that processes that it starts do not get Ctrl-C.

    If Ctrl-C comes to this thread meanwhile, `close` is called once all is started.
    """
    started: Future[T] = Future()

    def run() -> None:
        _block_interrupts()
        try:
            started.set_result(start())
        except BaseException as error:
            started.set_exception(error)

    threading.Thread(target=run, name="datarax-start", daemon=True).start()
    try:
        return started.result()
    except KeyboardInterrupt:
        started.add_done_callback(lambda done: done.exception() or close(done.result()))
        raise


def _end_workers(cluster: Any, close: Callable[[], object]) -> None:
    """Ends the workers of a cluster of Dask, whatever they compute, and then closes the cluster.

    Otherwise Dask waits for what they compute, and says what it lost.
    """

    async def end() -> None:
        for each in cluster.workers.values():
            if each.pid is not None:
                os.kill(each.pid, signal.SIGKILL)
        # In the same step of the loop, so that Dask starts no other workers in their place.
        await asyncio.gather(*(each.close() for each in cluster.workers.values()))

    # At a lower level, Dask says later which connections were closed.
    logging.getLogger("distributed").setLevel(logging.WARNING)
    with _no_logs_of_dask():
        cluster.sync(end)
        close()


@contextmanager
def _no_logs_of_dask() -> Iterator[None]:
    # A filter, because Dask sets the levels of its handlers where a cluster starts and closes.
    handlers = logging.getLogger("distributed").handlers[:]
    for handler in handlers:
        handler.addFilter(_nothing)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_nothing)


def _nothing(_: logging.LogRecord) -> bool:
    return False


def _try_soon(close: Callable[[], object]) -> None:
    """Calls it on a thread, and waits for that for a moment only; its errors are dropped.

    What is left then ends with this process.
    """

    def run() -> None:
        with suppress(Exception):
            close()

    closing = threading.Thread(target=run, name="datarax-close", daemon=True)
    closing.start()
    closing.join(_SECONDS_TO_CLOSE)


@contextmanager
def _ray(address: str | None, workers: int, environment: dict[str, str]) -> Iterator[Executor]:
    ray = optional("ray", "ray", 'engine("ray")')
    ours = not ray.is_initialized()
    if ours:
        local = {"num_cpus": workers, "include_dashboard": False}
        with warnings.catch_warnings():
            # JAX warns of forks: this one becomes another program at once.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            warnings.filterwarnings("ignore", "Tip: In future versions of Ray", FutureWarning)
            ray.init(
                address=address or "local",
                runtime_env={"env_vars": environment},
                log_to_driver=False,
                **({} if address else local),
            )
    try:
        yield RayExecutor(ray)
    except (KeyboardInterrupt, GeneratorExit):
        if ours:
            _try_soon(ray.shutdown)
        raise
    except BaseException:
        if ours:
            ray.shutdown()
        raise
    if ours:
        ray.shutdown()
