"""`UpdateContext`: what an update is told besides its arguments, for warnings and checks of values.

A context variable holds it, because no argument can: the author of a metric chooses the signature
of `update`, and it is between a collection, which knows the name of the metric, and the statistic,
which warns.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, NamedTuple

from datarax._typing import PyTree


class ArgumentCheck(NamedTuple):
    """A check of the values of some arguments of an update that is compiled."""

    check: Callable[..., None]
    """Takes the arguments, then `config`."""
    places: tuple[int, ...]
    """The index of each argument in the arguments of the `Recorder`."""
    config: tuple[Hashable, ...]
    metric: str
    """The name of the metric of a collection that makes the check."""


class Recorder(NamedTuple):
    """The checks of an update that is being compiled.

    It sees no values, so the checks are recorded, and made in each call of the program.
    """

    arguments: tuple[PyTree, ...]
    """All arguments, as they are in the traced function, and None."""
    checks: dict[ArgumentCheck, None]


class UpdateContext(NamedTuple):
    """The context of an update, besides its arguments."""

    metric: str = ""
    """The name of the metric of a collection that is being updated."""
    checks: Literal["all", "warnings", "none"] = "all"
    """The checks of values that are made: all, only those that warn, or none.

    In a program, a label that no class has is likely a mistake, and raises. In a file of millions
    it is data that cannot be used, which is counted as elsewhere.
    """
    recorder: Recorder | None = None
    """Given while an update is compiled."""


_ALONE = UpdateContext()
update_context: ContextVar[UpdateContext] = ContextVar("update_context", default=_ALONE)


@contextmanager
def in_update(**changes: str | Recorder) -> Iterator[None]:
    """A block in which the fields of the `UpdateContext` that are given have these values."""
    token = update_context.set(update_context.get()._replace(**changes))
    try:
        yield
    finally:
        update_context.reset(token)


def check_values(
    check: Callable[..., None], arguments: tuple[PyTree, ...], *config: Hashable
) -> None:
    """Calls `check(*arguments, *config)`, which looks at the values of arguments.

    In an update that is being compiled, the check is recorded instead. Then it is made in each
    call, if its arguments are arguments of that update.
    """
    context = update_context.get()
    if context.recorder is not None:
        given = context.recorder.arguments
        # By identity: two arguments may hold equal values.
        places = tuple(i for x in arguments for i, y in enumerate(given) if x is y)
        if len(places) == len(arguments):
            recorded = ArgumentCheck(check, places, config, context.metric)
            context.recorder.checks[recorded] = None
            return
        # Else the update has made the values, and may know them.
    elif context.checks == "none":
        return
    check(*arguments, *config)
