"""`UpdateContext`: what an update is told besides its arguments, for warnings and checks of values.

A context variable holds it, because no argument can: the author of a metric chooses the signature
of `update`, and it is between a collection, which knows the name of the metric, and the statistic,
which warns.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, NamedTuple

from datarax._xp import on_host


class UpdateContext(NamedTuple):
    """The context of an update, besides its arguments."""

    metric: str = ""
    """The name of the metric of a collection that is being updated."""
    checks: Literal["all", "warnings", "none"] = "all"
    """The checks of values that are made: all, only those that warn, or none.

    In a program, a label that no class has is likely a mistake, and raises. In a file of millions
    it is data that cannot be used, which is counted as elsewhere.
    """


_ALONE = UpdateContext()
update_context: ContextVar[UpdateContext] = ContextVar("update_context", default=_ALONE)


@contextmanager
def in_update(**changes: str) -> Iterator[None]:
    """A block in which the fields of the `UpdateContext` that are given have these values."""
    token = update_context.set(update_context.get()._replace(**changes))
    try:
        yield
    finally:
        update_context.reset(token)


def raises_for(*values: object) -> bool:
    """True if an update raises for wrong values: they are on the host, and are to be checked.

    To look at arrays of an accelerator would wait for it, and a program has no values. What is
    wrong in these is counted in the state, and said when it is read.
    """
    return update_context.get().checks == "all" and on_host(*values)


def warns_of(*values: object) -> bool:
    """True if an update warns of doubtful values: see `raises_for`."""
    return update_context.get().checks != "none" and on_host(*values)
