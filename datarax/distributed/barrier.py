"""A barrier of processes, through the key-value store of JAX's distributed runtime.

This is the only module that knows the store. It never communicates over the devices, so it waits
for a process that is stopped or gone only as long as the caller says, and names it.
"""

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache

import jax

from datarax._errors import DataraxError, MetricTimeoutError
from datarax._typing import PyTree

_numbers = itertools.count()
# An outcome that starts so is a failure of the round; the rest of it is the reason.
_LATE = "late: "
_GONE_ON = "a process has gone on without it"
# The store has this long to answer, however short the caller's timeout is. A long wait is cut into
# pieces of this length, so that Ctrl-C is handled between them.
_PIECE_SECONDS = 1.0
# After a round has failed, process 0 waits this long for the others to read why, and then gives
# them time to raise the error. The store ends with process 0, and with it JAX ends the others.
_READ_SECONDS, _RAISE_SECONDS = 5.0, 0.5
# What is published is cut into messages of at most this size. The first byte of each says whether
# another one follows.
_CHUNK_BYTES, _MORE, _LAST = 2**20, b"+", b"."


class Barrier:
    """A barrier of all processes, in rounds: a round is passed by all of them or by none.

    Each process posts the round that it has reached, and all can read it. The first process that
    sees all of them arrive, or that gives up, writes the outcome of the round. The store keeps the
    first outcome, and all processes follow it. So a process that arrives after the others have
    given up does not go on alone.

    Barriers are numbered in the order in which a process makes them. Every process must make the
    same ones in the same order, as it must launch the same collectives. `barrier_of` returns one
    that has a name instead.
    """

    def __init__(self, name: str = "") -> None:
        self._client = _client()
        self._folder = f"datarax/{name or next(_numbers)}"
        self.round = 0
        self._given_up = False  # on a round whose outcome is unknown, as the store did not answer
        self._unsent: dict[str, bytes] = {}

    def wait(
        self,
        timeout: float | None,
        about: str,
        note: str = "",
        judge: Callable[[dict[int, str]], str] = lambda notes: "",
        failed: Callable[[str], object] = lambda outcome: False,
    ) -> str:
        """Waits until every process has arrived at this round.

        Args:
            timeout: seconds; `None` for as long as it takes.
            about: what is waited for, for the error.
            note: a short text for `judge`.
            judge: computes the outcome from the notes of all processes.
            failed: whether the caller raises an error about this outcome. Process 0 then returns
                after the others have read it, as they cannot once it has left.

        Returns:
            What `judge` returned, the same on every process.

        Raises:
            MetricTimeoutError: some did not arrive in time; names them. They raise it too when
                they arrive. Or process 0, which holds the store, does not answer.
        """
        try:
            outcome = self._outcome(timeout, note, judge)
            if self._given_up and outcome.startswith(_LATE):  # as the last call reported
                self.round += 1
                outcome = self._outcome(timeout, note, judge)
        except _StoreError as error:
            self._given_up = True
            raise MetricTimeoutError(f"{about}: {error}") from error
        self._given_up = False
        self._unsent.clear()
        self.round += 1
        if failed(outcome) or outcome.startswith(_LATE):
            self._see_off(self.round - 1)
        if outcome.startswith(_LATE):
            raise MetricTimeoutError(f"{about}: {outcome.removeprefix(_LATE)}")
        return outcome

    def _outcome(
        self, timeout: float | None, note: str, judge: Callable[[dict[int, str]], str]
    ) -> str:
        deadline = _deadline(timeout)
        waited = "" if timeout is None else f" after {timeout:g} s"
        gave_up = f"process {jax.process_index()} gave up{waited}"
        try:
            self._send(deadline)
            self._post(note, deadline)
            while True:
                late = time.monotonic() >= deadline
                notes = self._notes("at", deadline)
                missing = _missing(notes, self.round)
                if all(reached == self.round for reached, _ in notes.values()) and not missing:
                    # At least the last process to arrive comes here. All processes have read the
                    # outcome of the round before this one, so that outcome can be deleted.
                    outcome = self._judged(judge, notes, deadline)
                    if self.round:
                        self._call("key_value_delete", f"outcome/{self.round - 1}")
                elif late:
                    who = _named(missing) if missing else _GONE_ON
                    outcome = self._decide(f"{_LATE}{who}; {gave_up}")
                else:
                    outcome = self._get(f"outcome/{self.round}", deadline)
                    if outcome is None and any(at > self.round for at, _ in notes.values()):
                        # It has not waited here: after a wait, there is an outcome.
                        outcome = self._decide(f"{_LATE}{_GONE_ON}")
                if outcome is not None:
                    return outcome
        except _StoreError:
            # Process 0 may read this when it answers again, and then it does not go on alone.
            with contextlib.suppress(_StoreError):
                self._decide(f"{_LATE}process 0 does not answer; {gave_up}")
            raise

    def _judged(
        self,
        judge: Callable[[dict[int, str]], str],
        notes: dict[int, tuple[int, str]],
        deadline: float,
    ) -> str:
        try:
            said = judge({process: note for process, (_, note) in notes.items()})
        except Exception:
            # Where there is an outcome, others have gone on, and withdrawn or changed what they
            # had published.
            outcome = self._get(f"outcome/{self.round}", deadline)
            if outcome is None:
                raise
            return outcome
        return self._decide(said, deadline)

    def abort(self, why: str) -> None:
        """Ends this round for all processes, as this one will not arrive."""
        with contextlib.suppress(_StoreError):
            self._decide(f"{_LATE}process {jax.process_index()} {why}")
        self._see_off(self.round)
        self.round += 1

    @contextlib.contextmanager
    def aborting(self) -> Iterator[None]:
        """A block before this round: if it raises, the round ends for all processes."""
        try:
            yield
        except Exception as error:
            self.abort(f"failed: {str(error) or type(error).__name__}")
            raise

    def _see_off(self, number: int) -> None:
        """Lets all processes that wait at this round raise its error before process 0 leaves."""
        deadline = time.monotonic() + _READ_SECONDS
        with contextlib.suppress(_StoreError):
            if jax.process_index() != 0:
                self._call("key_value_set", f"read/{jax.process_index()}", f"{number} ", True)
                return
            at = self._notes("at")
            waiting = {process for process, (reached, _) in at.items() if reached >= number} - {0}
            while waiting - {i for i, (read, _) in self._notes("read").items() if read >= number}:
                if time.monotonic() > deadline:
                    return
                time.sleep(0.01)
            if waiting:
                time.sleep(_RAISE_SECONDS)

    def arrive(self, timeout: float | None, note: str = "") -> dict[int, str]:
        """Posts that this process has arrived at this round, without waiting for the others.

        Returns:
            The notes of the processes that are at this round, with that of this one.
        """
        self._post(note, _deadline(timeout))
        here = self._notes("at", _deadline(timeout)) if note else {}
        self.round += 1
        return {process: each for process, (at, each) in here.items() if at == self.round - 1}

    def mark_waiting(self, number: int) -> None:
        """Posts that this process waits for the programs launched in that round to finish."""
        with contextlib.suppress(_StoreError):
            self._call("key_value_set", f"waits/{jax.process_index()}", f"{number} ", True)

    def missing(self, number: int) -> str:
        """A sentence: which processes have not arrived at that round, or do not wait for it."""
        try:
            outcome = self._get(f"outcome/{number}", 0.0) or ""
            if outcome.startswith(_LATE):
                return outcome.removeprefix(_LATE)
            if missing := _missing(self._notes("at"), number):
                return _named(missing)
            idle = ", ".join(map(str, _missing(self._notes("waits"), number)))
        except _StoreError as error:
            return str(error)
        reached = "all processes have reached it"
        return f"{reached}, but these processes do not wait for it: {idle}" if idle else reached

    def publish(self, name: str, data: bytes) -> None:
        """Posts data of any size under a name, when this process waits next.

        It replaces what the process published in earlier rounds.
        """
        self._unsent[name] = data

    def published(self, name: str, process: int, number: int) -> bytes:
        """The data that a process published when it arrived at that round."""
        chunks: list[bytes] = []
        while not chunks or chunks[-1][:1] == _MORE:
            key = f"published/{process}/{number}/{name}/{len(chunks)}"
            chunk = self._get(key, method="blocking_key_value_get_bytes")
            if chunk is None:
                raise _StoreError(f"process 0 did not return what process {process} published")
            chunks.append(chunk)
        return b"".join(chunk[1:] for chunk in chunks)

    def withdraw(self) -> None:
        """Deletes what this process has published."""
        self._unsent.clear()
        with contextlib.suppress(_StoreError):
            self._call("key_value_delete", f"published/{jax.process_index()}")

    # Calls to the store.

    def _send(self, deadline: float) -> None:
        """Posts what `publish` was given: under the number of the round, as a call to a store that
        did not answer may still come through in a later one."""
        own = f"published/{jax.process_index()}"
        if self._unsent:
            self._call("key_value_delete", own, deadline=deadline)
        for name, data in self._unsent.items():
            starts = range(0, max(1, len(data)), _CHUNK_BYTES)
            for number, start in enumerate(starts):
                mark = _LAST if number == len(starts) - 1 else _MORE
                key = f"{own}/{self.round}/{name}/{number}"
                chunk = mark + data[start : start + _CHUNK_BYTES]
                self._call("key_value_set_bytes", key, chunk, True, deadline=deadline)

    def _post(self, note: str, deadline: float) -> None:
        key, text = f"at/{jax.process_index()}", f"{self.round} {note}"
        self._call("key_value_set", key, text, True, deadline=deadline)

    def _notes(self, where: str, deadline: float = 0.0) -> dict[int, tuple[int, str]]:
        """The round and the note that each process has posted."""
        notes = {}
        for key, text in self._call("key_value_dir_get", where, deadline=deadline):
            reached, _, note = text.partition(" ")
            notes[int(key.rpartition("/")[2])] = int(reached), note
        return notes

    def _decide(self, outcome: str, deadline: float = 0.0) -> str:
        """Writes the outcome of this round unless there is one already; returns the one kept."""
        key = f"outcome/{self.round}"
        try:
            self._call("key_value_set", key, outcome, deadline=deadline)
        except _StoreError as error:
            decided = self._get(key) if "ALREADY_EXISTS" in str(error) else None
            if decided is None:
                raise
            return decided
        return outcome

    def _get(
        self, key: str, deadline: float = math.inf, method: str = "blocking_key_value_get"
    ) -> PyTree:
        """The value at a key; None if it is not posted within `_PIECE_SECONDS` or the deadline."""
        seconds = min(deadline - time.monotonic(), _PIECE_SECONDS)
        try:
            milliseconds = max(1, round(1000 * seconds))
            return self._call(method, key, milliseconds, deadline=math.inf)
        except _StoreError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            return None

    def _call(self, method: str, key: str, *args: object, deadline: float = 0.0) -> PyTree:
        # The call runs on a thread of its own, because a stopped coordinator never answers, and the
        # client has no timeout for most calls.
        answer: list[PyTree] = []
        error: list[Exception] = []

        def call() -> None:
            try:
                answer.append(getattr(self._client, method)(f"{self._folder}/{key}", *args))
            except Exception as raised:  # the client raises JaxRuntimeError
                error.append(raised)

        thread = threading.Thread(target=call, name=f"datarax-{method}", daemon=True)
        thread.start()
        left = max(deadline - time.monotonic(), _PIECE_SECONDS)
        thread.join(None if left == math.inf else left)
        if answer:
            return answer[0]
        why = str(error[0]) if error else f"no answer for {left:.3g} s"
        raise _StoreError(
            f"process 0, whose coordinator holds the key-value store, cannot be reached: {why}"
        ) from (error[0] if error else None)


class _StoreError(MetricTimeoutError):
    """The store did not answer, or it answered with an error."""


def _deadline(timeout: float | None) -> float:
    return math.inf if timeout is None else time.monotonic() + timeout


def _missing(notes: dict[int, tuple[int, str]], number: int) -> list[int]:
    return [i for i in range(jax.process_count()) if i not in notes or notes[i][0] < number]


def _named(processes: list[int]) -> str:
    """For example "process 1 of 4 has not reached it"."""
    many = "es" if len(processes) > 1 else ""
    listed = ", ".join(map(str, processes))
    have = "have" if many else "has"
    return f"process{many} {listed} of {jax.process_count()} {have} not reached it"


def barrier_of(name: str) -> Barrier:
    """The one barrier of this name: a function that waits for the other processes uses its own.

    Its rounds are the calls of the function, so that each call meets the same call elsewhere.
    """
    return _barrier_of(name, _client())


@cache
def _barrier_of(name: str, client: object) -> Barrier:
    # `jax.distributed.initialize` may be called again, which makes another client and store.
    return Barrier(name)


def _client() -> PyTree:
    try:
        from jax._src.distributed import global_state
    except ImportError as error:
        raise DataraxError(
            "datarax does not find the distributed client in this version of jax, so it cannot "
            "communicate with other processes; please report the version"
        ) from error
    if global_state.client is None:
        raise DataraxError(
            "there are several processes but no distributed client; call "
            "jax.distributed.initialize()"
        )
    return global_state.client
