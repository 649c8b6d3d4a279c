"""Which states were made of one that a collector has read, so that its data does not count twice.

A state that is read gets a mark. Each state that is made of it has the mark too, until `reset`: a
changed copy takes over the attributes, and of a compiled step, which takes and gives only arrays,
the state that is flattened last before the result is unflattened is the one that it is made of.

Nothing in a state could carry the mark through such a step: its static parts come out as they were
when the step was traced, and another array would be in every state, for this alone.
"""

import threading
from collections.abc import Hashable
from typing import NamedTuple

import jax

from datarax._typing import Structure


class Source:
    """An object that reads states, such as a collector."""

    is_reset_by_user = False
    """True if a state was reset after it was read, without using what the reader returned."""


class Mark(NamedTuple):
    """The mark of a state that was read, and of those that are made of it."""

    source: Source
    name: str
    """The name of what was read, for an error."""


class Marked:
    """The base of what may have a mark."""

    _mark: Mark | None = None


# By thread, because another thread may flatten a state while a step of this one runs.
class _Flattened(threading.local):
    """The marks of the states that this thread has flattened last, by their static parts."""

    def __init__(self) -> None:
        self.marks: dict[Hashable, Mark] = {}


last_flattened = _Flattened()
_reset_in_programs: set[Structure] = set()
"""The structures of states that some program resets itself: its calls cannot be seen."""


def set_mark(state: Marked, source: Source, name: str) -> None:
    """Marks a state as read."""
    vars(state)["_mark"] = Mark(source, name)
    last_flattened.marks.clear()


def has_mark(state: Marked) -> bool:
    """True if a state was read, or made of one that was."""
    return state._mark is not None


def find_mark(state: Marked, source: Source) -> Mark | None:
    """The mark by which a state was made of one that `source` has read, and not reset since."""
    mark = state._mark
    if mark is None or mark.source is not source or source.is_reset_by_user:
        return None
    return None if jax.tree.structure(state) in _reset_in_programs else mark


def note_reset(state: Marked, is_traced: bool) -> None:
    """Notes that a state is reset, which then is not used with the data that it holds."""
    mark = state._mark
    if mark is not None:
        mark.source.is_reset_by_user = True
    if is_traced:
        _reset_in_programs.add(jax.tree.structure(state))


def without_mark(state: Marked) -> None:
    """Removes the mark of a state that has other data."""
    vars(state)["_mark"] = None


def note_flattened(state: Marked, form: Hashable) -> None:
    """Notes that a state is flattened, whose static part is `form`."""
    mark, marks = state._mark, last_flattened.marks
    if mark is not None:
        marks[form] = mark
    elif marks:
        marks.pop(form, None)


def note_unflattened(state: Marked, form: Hashable) -> None:
    """Marks a state that is unflattened after one of its form that has a mark."""
    if (marks := last_flattened.marks) and (mark := marks.get(form)) is not None:
        vars(state)["_mark"] = mark
