"""Checks of the values of arguments, also where a program is compiled from their shapes alone.

An update outside `jit` is compiled, so it sees no values. The checks that it would make of the
values of its arguments are recorded when it is traced, and made in each call.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

from datarax._checks import updated


class ArgumentCheck(NamedTuple):
    """A check of the values of some arguments."""

    check: Callable[..., None]
    """Takes the arguments, then `config`."""
    places: tuple[int | None, ...]
    """The index of each argument among all arguments; None for an argument that is None."""
    config: tuple[Any, ...]
    metric: str
    """The name of the metric of a collection that makes the check."""


class _Recorder(NamedTuple):
    places: dict[int, int]
    checks: dict[ArgumentCheck, None]


_recorder: ContextVar[_Recorder | None] = ContextVar("recorder", default=None)


@contextmanager
def recording(arguments: Sequence[Any], checks: dict[ArgumentCheck, None]) -> Iterator[None]:
    """Adds the checks of these arguments that are asked for in the block to `checks`."""
    token = _recorder.set(_Recorder({id(x): i for i, x in enumerate(arguments)}, checks))
    try:
        yield
    finally:
        _recorder.reset(token)


Kept = Literal["all", "warnings", "none"]
_kept: ContextVar[Kept] = ContextVar("kept", default="all")


@contextmanager
def keeping(checks: Kept) -> Iterator[None]:
    """Makes all checks of values in the block, only those that warn, or none.

    In a program, a label that no class has is likely a mistake, and raises. In a file of millions
    it is data that cannot be used, which is counted as elsewhere.
    """
    token = _kept.set(checks)
    try:
        yield
    finally:
        _kept.reset(token)


def kept() -> Kept:
    """Which checks of values are made."""
    return _kept.get()


def check_values(check: Callable[..., None], arguments: tuple[Any, ...], *config: Any) -> None:
    """Calls `check(*arguments, *config)`, which looks at the values of arguments.

    In an update that is being compiled, the check is recorded instead. Then it is made in each
    call, if its arguments are arguments of that update.
    """
    recorder = _recorder.get()
    if recorder is None and kept() == "none":
        return
    if recorder is None or not all(x is None or id(x) in recorder.places for x in arguments):
        check(*arguments, *config)
        return
    places = tuple(None if x is None else recorder.places[id(x)] for x in arguments)
    recorder.checks[ArgumentCheck(check, places, config, updated.get())] = None
