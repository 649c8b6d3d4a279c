"""Real processes for tests: start them, break them, and never leave one behind.

A test hands over a plain function of a module; each child imports that module, joins
`jax.distributed` with one CPU device, calls the function and sends back what it returned:

    def total(x):  # at the top of a module; JAX is touched only inside
        return float(x) * (jax.process_index() + 1)

    assert processes.run(total, 2, 3.0) == [3.0, 6.0]

These processes stay for the next function, so that each imports JAX once.

Faults are made by hand. `mark` in a child says where it is, `Group.await_mark` waits for that:

    with processes.Group(train, 3, timeout=90) as group:
        group.await_mark(1, "window 2")
        group.kill(1)  # or stop(1), and resume(1)
        outcomes = group.outcomes(ranks=(0, 2))

No child outlives its group: the parent kills them, and each child also carries an alarm of the
kernel, which works when the parent is dead and when the interpreter is stuck in native code.
"""

import contextlib
import faulthandler
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
OUTPUT_SHOWN = 6000  # characters of each child's output in a failure
GRACE = 3.0  # seconds the others get to fail by themselves once one child has failed
_MARKS = "DATARAX_TEST_MARKS"
_AGAIN = "again"


class ProcessFailure(AssertionError):
    """A child failed, died or ran out of time; the message holds every child's output."""


@dataclass(frozen=True)
class Outcome:
    """How one child ended.

    `ended` is "returned", "raised", "died" (with the `signal` or exit code in `code`) or "running"
    (the time was up). `value` is what it returned, or the exception it raised, if either pickles.
    """

    rank: int
    ended: str
    value: Any
    code: int | None
    output: str

    def __str__(self) -> str:
        how = self.ended
        if self.ended == "died":
            assert self.code is not None
            how = (
                f"died of {signal.Signals(-self.code).name}"
                if self.code < 0
                else f"exited with {self.code}"
            )
        shown = self.output[-OUTPUT_SHOWN:].strip() or "(no output)"
        return f"---- process {self.rank}: {how}\n{shown}"


class Group:
    """`count` processes, each running `target(*args)`.

    Args:
        target: a function at the top of an importable module.
        count: how many processes.
        *args: its arguments, pickled.
        timeout: seconds the whole group may take; every wait is bounded by what is left of it.
        join: False leaves `jax.distributed` alone, for a function that calls it by itself.
        env: environment variables to set.
        **initialize: passed to `jax.distributed.initialize`, say `heartbeat_timeout_seconds=10`.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        count: int,
        *args: Any,
        timeout: float = 300.0,
        join: bool = True,
        env: dict[str, str] | None = None,
        **initialize: Any,
    ) -> None:
        self.count = count
        self.timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._children: list[subprocess.Popen[bytes]] = []
        with contextlib.ExitStack() as stack:
            stack.callback(self._kill_all)
            folder = tempfile.TemporaryDirectory(prefix="datarax-processes-")
            self._folder = Path(stack.enter_context(folder))
            port = stack.enter_context(_reserved_port())
            for rank in range(count):
                home = self._folder / str(rank)
                home.mkdir()
                joining = {
                    "coordinator_address": f"127.0.0.1:{port}",
                    "num_processes": count,
                    "process_id": rank,
                    "initialization_timeout": max(1, int(timeout)),
                } | initialize
                (home / "spec").write_bytes(pickle.dumps(joining if join else None))
                self._assign(home, target, args)
                self._children.append(self._start(home, env or {}))
            # Closed in the reverse order: the port, the folder, and before both the children.
            self._stack = stack.pop_all()

    def _assign(self, home: Path, target: Callable[..., Any], args: tuple[Any, ...]) -> None:
        # The function goes by its name: pickle refuses one that a child cannot import.
        call = (self.timeout, pickle.dumps((target, args)))
        _write_at_once(home / "call", pickle.dumps(call))

    def again(self, target: Callable[..., Any], *args: Any, timeout: float | None = None) -> None:
        """Runs another function in the same processes, which have all returned."""
        self.timeout = timeout or self.timeout
        self._deadline = time.monotonic() + self.timeout
        for rank in range(self.count):
            home = self._folder / str(rank)
            (home / "result").unlink()
            (home / "marks").unlink(missing_ok=True)
            self._assign(home, target, args)
            self.tell(rank, _AGAIN)

    @property
    def waits(self) -> bool:
        """True if all processes run, those too that have returned."""
        return all(child.poll() is None for child in self._children)

    def _start(self, home: Path, env: dict[str, str]) -> "subprocess.Popen[bytes]":
        flags = os.environ.get("XLA_FLAGS", "").split()
        flags = [flag for flag in flags if "host_platform_device_count" not in flag]
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONUNBUFFERED": "1",
            "XLA_FLAGS": " ".join(flags),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "1",
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            "JAX_NUMPY_DTYPE_PROMOTION": "strict",
            "JAX_NUMPY_RANK_PROMOTION": "raise",
            _MARKS: str(home / "marks"),
        }
        with (home / "output").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.processes", str(home)],
                cwd=ROOT,
                env=environment | env,
                stdin=subprocess.PIPE,  # closing it releases a child that is done
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its own children die with it
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill what still runs and remove every trace."""
        self._kill_all()
        self._stack.close()

    def _kill_all(self) -> None:
        for child in self._children:
            if child.poll() is None:
                # A killed process group takes stopped processes with it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        for child in self._children:
            child.wait()
            if child.stdin is not None:
                child.stdin.close()

    # Faults.

    def kill(self, rank: int) -> None:
        """SIGKILL, and wait until it is gone."""
        os.killpg(self._children[rank].pid, signal.SIGKILL)
        self._children[rank].wait()

    def stop(self, rank: int) -> None:
        """SIGSTOP: the process is there and does not answer."""
        os.killpg(self._children[rank].pid, signal.SIGSTOP)

    def resume(self, rank: int) -> None:
        """SIGCONT."""
        os.killpg(self._children[rank].pid, signal.SIGCONT)

    def tell(self, rank: int, text: str) -> None:
        """Write a line to its standard input: a child reads it with `sys.stdin.readline()`."""
        stdin = self._children[rank].stdin
        assert stdin is not None
        stdin.write(f"{text}\n".encode())
        stdin.flush()

    # Waiting.

    def marks(self, rank: int) -> list[str]:
        """What this child has marked so far."""
        path = self._folder / str(rank) / "marks"
        return path.read_text().splitlines() if path.exists() else []

    def await_mark(self, rank: int, text: str, timeout: float | None = None) -> None:
        """Wait until a child calls `mark(text)`.

        Raises:
            ProcessFailure: if it ends before, or if the time is up.
        """
        deadline = self._bounded(timeout)
        while text not in self.marks(rank):
            if not self._running(rank) and text not in self.marks(rank):
                ended = self._outcome(rank).ended
                raise self._failure(f"process {rank} never marked {text!r}: it {ended}")
            if time.monotonic() > deadline:
                raise self._failure(f"process {rank} did not mark {text!r} in time")
            time.sleep(0.01)

    def outcomes(
        self, ranks: Iterable[int] | None = None, timeout: float | None = None
    ) -> list[Outcome]:
        """Wait for these children (all, if not told) and say how each ended; raises nothing.

        A child that has not ended in time is "running": it prints the Python stack of all its
        threads first, so that its output says where it hangs.
        """
        ranks = range(self.count) if ranks is None else list(ranks)
        deadline = self._bounded(timeout)
        while any(self._running(rank) for rank in ranks):
            if time.monotonic() > deadline:
                self._dump_stacks(ranks)
                break
            time.sleep(0.01)
        return [self._outcome(rank) for rank in ranks]

    def results(self, timeout: float | None = None) -> list[Any]:
        """Wait for all children and give what they returned, in the order of their ranks.

        Raises:
            ProcessFailure: if one raised, died or did not end in time; with every child's output.
        """
        deadline = self._bounded(timeout)
        pending, values = set(range(self.count)), {}
        while pending and time.monotonic() <= deadline:
            for rank in [rank for rank in pending if not self._running(rank)]:
                outcome = self._outcome(rank)
                if outcome.ended != "returned":
                    # The others likely wait for this one in vain.
                    self.outcomes(timeout=min(GRACE, max(0.0, deadline - time.monotonic())))
                    raise self._failure(f"process {rank} {outcome.ended}")
                pending.remove(rank)
                values[rank] = outcome.value
            time.sleep(0.01)
        if pending:
            self._dump_stacks(pending)
            raise self._failure("the time was up")
        return [values[rank] for rank in range(self.count)]

    def _bounded(self, timeout: float | None) -> float:
        if timeout is None:
            return self._deadline
        return min(self._deadline, time.monotonic() + timeout)

    def _dump_stacks(self, ranks: Iterable[int]) -> None:
        # One that is not ready has no handler yet, and the signal would end it.
        hung = [rank for rank in ranks if self._running(rank) and self._has(rank, "ready")]
        for rank in hung:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._children[rank].pid, signal.SIGUSR1)
        if hung:
            time.sleep(0.3)  # faulthandler needs no lock of the interpreter, only a moment

    def _has(self, rank: int, file: str) -> bool:
        return (self._folder / str(rank) / file).exists()

    def _running(self, rank: int) -> bool:
        return self._children[rank].poll() is None and not self._has(rank, "result")

    def _outcome(self, rank: int) -> Outcome:
        # The exit is read before the result: once it has ended, what is not there never will be.
        code = self._children[rank].poll()
        home = self._folder / str(rank)
        output = (home / "output").read_text(errors="replace")
        if self._has(rank, "result"):
            ended, payload = pickle.loads((home / "result").read_bytes())
            return Outcome(rank, ended, pickle.loads(payload), code, output)
        return Outcome(rank, "running" if code is None else "died", None, code, output)

    def _failure(self, what: str) -> ProcessFailure:
        shown = "\n".join(str(self._outcome(rank)) for rank in range(self.count))
        return ProcessFailure(f"{what} (of {self.count}, {self.timeout:g} s allowed)\n{shown}")


_kept: dict[int, Group] = {}


@contextlib.contextmanager
def kept(target: Callable[..., Any], count: int, *args: Any, timeout: float = 300.0):
    """`Group(target, count, *args, timeout=timeout)`, whose processes stay for the next one.

    They import JAX, and what the functions need, only once. Processes of which one has not
    returned are ended, as those of a group are. Others are started if one has ended meanwhile:
    JAX ends processes whose heartbeats were late, as on a machine that stood still.
    """
    group = _kept.pop(count, None)
    if group is not None and not group.waits:
        group.close()
        group = None
    if group is None:
        group = Group(target, count, *args, timeout=timeout)
    else:
        group.again(target, *args, timeout=timeout)
    try:
        yield group
        whole = all(
            each.ended == "returned" and each.code is None for each in group.outcomes(timeout=0)
        )
    except BaseException:
        group.close()
        raise
    if whole:
        _kept[count] = group
    else:
        group.close()


def run(
    target: Callable[..., Any], count: int, *args: Any, timeout: float = 300.0, **options: Any
) -> list[Any]:
    """What each process returned, of `kept(target, count, *args)`, or of a `Group` with options.

    Raises:
        ProcessFailure: if one raised, died or did not end in time; with every child's output.
    """
    if options:
        with Group(target, count, *args, timeout=timeout, **options) as group:
            return group.results()
    with kept(target, count, *args, timeout=timeout) as group:
        return group.results()


def close() -> None:
    """Ends the processes that `kept` and `run` have kept."""
    while _kept:
        _kept.popitem()[1].close()


def mark(text: str) -> None:
    """In a child: say that this point was reached. `Group.await_mark` waits for it."""
    with Path(os.environ[_MARKS]).open("a") as marks:
        marks.write(text + "\n")


def alive(pid: int) -> bool:
    """Whether there is a process of that number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def _reserved_port():
    """A free port, held by a socket that does not listen until the group is closed.

    gRPC binds with SO_REUSEPORT, so that the coordinator can have the port that no other test
    running at the same time is given.
    """
    with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("", 0))
        yield held.getsockname()[1]


# The child.


def _child(home: Path) -> None:
    joining = pickle.loads((home / "spec").read_bytes())
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    (home / "ready").touch()
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "The default axis_types will change", DeprecationWarning)
    while True:
        _call(home, joining)
        joining = None
        # Until the group is closed: a coordinator that leaves early takes the others along. And not
        # through the barrier of jax.distributed, which would wait for killed processes.
        if sys.stdin.readline().strip() != _AGAIN:
            os._exit(0)


def _call(home: Path, joining: dict[str, Any] | None) -> None:
    """Runs the function of this process, and writes what came of it."""
    timeout, payload = pickle.loads((home / "call").read_bytes())
    signal.alarm(int(timeout) + 10)  # nobody catches it: the kernel ends this process
    try:
        if joining is not None:
            import jax

            jax.distributed.initialize(**joining)
        target, args = pickle.loads(payload)
        ended, value = "returned", target(*args)
    except BaseException as error:
        import traceback

        traceback.print_exc()
        ended, value = "raised", error
    try:
        result = pickle.dumps(value)
        pickle.loads(result)
    except Exception as error:  # exceptions with arguments of their own often do not survive
        print(f"what it {ended} does not pickle: {error!r}")
        ended, result = "raised", pickle.dumps(RuntimeError(repr(value)))
    signal.alarm(0)  # it may wait longer for the next call; a parent that ends closes its input
    _write_at_once(home / "result", pickle.dumps((ended, result)))


def _write_at_once(path: Path, data: bytes) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(data)
    part.replace(path)


def _main(arguments: Sequence[str]) -> None:
    _child(Path(arguments[0]))


if __name__ == "__main__":
    _main(sys.argv[1:])
