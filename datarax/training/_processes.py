"""Agreement between processes, through the key-value store of JAX's distributed runtime.

The only module that knows the store. It never communicates over the devices, so a process that
is stopped or gone is waited for only as long as the caller says, and is named.
"""

import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import jax

from datarax._errors import ConfigurationMismatchError, DataraxError, MetricTimeoutError
from datarax.statistics._state import states_in
from datarax.wrappers.per_device import PerDevice

_POLL_SECONDS = 0.002
_numbers = itertools.count()


class Board:
    """A place where each process posts its newest note, and all can read.

    Boards are numbered in the order in which a process makes them, so every process must make the
    same ones in the same order, as it must launch the same collectives.
    """

    def __init__(self) -> None:
        self._client = _client()
        self._folder = f"datarax/{next(_numbers)}"

    def post(self, note: str) -> None:
        """Puts this process's note up, in place of its last."""
        self._call("key_value_set", f"{self._folder}/{jax.process_index()}", note, True)

    def notes(self) -> dict[int, str]:
        """What each process has up; those that have nothing are left out."""
        found = self._call("key_value_dir_get", self._folder)
        return {int(key.rsplit("/", 1)[1]): note for key, note in found}

    def wait(self, reached: Callable[[str], bool], timeout: float | None, about: str) -> None:
        """Waits until every process has posted a note of which `reached` is true.

        Raises:
            MetricTimeoutError: after `timeout` seconds; names the processes that have not.
        """
        start = time.monotonic()
        while True:
            missing = self.missing(reached)
            if not missing:
                return
            if timeout is not None and time.monotonic() - start > timeout:
                raise MetricTimeoutError(
                    f"{about}: {named(missing)} not got there within {timeout:g} s"
                )
            time.sleep(_POLL_SECONDS)

    def missing(self, reached: Callable[[str], bool]) -> list[int]:
        """The processes without a note of which `reached` is true."""
        notes = self.notes()
        return [i for i in range(jax.process_count()) if i not in notes or not reached(notes[i])]

    def _call(self, method: str, *args: Any) -> Any:
        try:
            return getattr(self._client, method)(*args)
        except RuntimeError as error:  # the client raises XlaRuntimeError
            raise MetricTimeoutError(
                f"the distributed runtime's coordinator, process 0, cannot be reached: {error}"
            ) from error


def named(processes: list[int]) -> str:
    """ "process 1 has" or "processes 1, 2 have", of how many."""
    many = "es" if len(processes) > 1 else ""
    listed = ", ".join(map(str, processes))
    return f"process{many} {listed} of {jax.process_count()} {'have' if many else 'has'}"


def check_agreement(metric: Any, timeout: float | None = None) -> None:
    """Raises on every process unless all hold the same metrics in the same configuration.

    Each process posts a description of its metric and reads those of the others; nothing is sent
    over the devices. Does nothing on a single process.

    Args:
        metric: a datarax metric.
        timeout: seconds to wait for the others; `None` for as long as it takes.

    Raises:
        ConfigurationMismatchError: names the metric, the field, and what the processes hold.
        MetricTimeoutError: names the processes that did not post theirs.

    Example:
        >>> import datarax
        >>> from datarax.training import check_agreement
        >>> check_agreement(datarax.metrics.Mean())
    """
    if jax.process_count() == 1:
        return
    board = Board()
    board.post(json.dumps(describe(metric)))
    board.wait(lambda note: True, timeout, "comparing the metrics of all processes")
    notes = {i: json.loads(note) for i, note in sorted(board.notes().items())}
    for process, theirs in notes.items():
        for field in sorted(notes[0].keys() | theirs.keys()):
            here, there = (d.get(field, "not there") for d in (notes[0], theirs))
            if here != there:
                raise ConfigurationMismatchError(
                    f"the processes hold different metrics: {field} is {here} on process 0 and "
                    f"{there} on process {process}; make the same metrics, with the same "
                    f"configuration, on every process"
                )


def describe(metric: Any, path: str = "") -> dict[str, str]:
    """Every class and configuration value in a metric, by path."""
    if isinstance(metric, PerDevice):
        axes = {f"{path}[per_device axes]": f"{dict(metric.mesh.shape)} over {metric.axis_names}"}
        return axes | describe(metric.copies, path)
    described = {path or "metric": type(metric).__name__}
    config, parts = metric._described()
    for name, value in config.items():
        described[f"{path or 'metric'}.{name}"] = repr(value)
    for name, part in parts.items():
        for i, state in enumerate(states_in(part)):
            described |= describe(state, f"{path}.{name}{i or ''}".lstrip("."))
    return described


def _client() -> Any:
    try:
        from jax._src.distributed import global_state
    except ImportError as error:
        raise DataraxError(
            "this version of jax keeps its distributed client elsewhere, so datarax cannot check "
            "on other processes; please report the version"
        ) from error
    if global_state.client is None:
        raise DataraxError(
            "several processes, but no distributed client: call jax.distributed.initialize()"
        )
    return global_state.client
