"""What the formulas of one reading share: values computed once, and the numbers that are given."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import NamedTuple, TypeVar

import jax

from datarax._typing import PyTree

Value = TypeVar("Value")
Numbers = tuple[tuple[str, float], ...]

_Memo = dict[tuple[Hashable, ...], tuple[list[jax.Array], PyTree]]
"""By method, its arguments, and the structure and the identity of the arrays of a state: the
arrays, which keep their identity as long as they are held, and the value."""


class _ReadingContext(NamedTuple):
    memo: _Memo
    numbers: Numbers
    """The numbers that are given, by name."""


# Of the reading that is under way. A context variable holds it, because no argument can: a formula,
# the `compute` of a metric, takes none.
_reading: ContextVar[_ReadingContext | None] = ContextVar("reading", default=None)


@contextmanager
def one_reading(numbers: Numbers) -> Iterator[None]:
    """A block in which methods that are `computed_once` remember what they computed.

    `numbers` are those that `given_number` returns in it.
    """
    outer = _reading.get()
    # A reading within a reading, as of a wrapper, shares what is known, unless other numbers are
    # given.
    known = outer is not None and outer.numbers == numbers
    token = _reading.set(outer if known else _ReadingContext({}, numbers))
    try:
        yield
    finally:
        _reading.reset(token)


def given_number(name: str) -> float | None:
    """A number that is given for the reading; None without one."""
    context = _reading.get()
    return None if context is None else dict(context.numbers).get(name)


def computed_once(method: Callable[..., Value]) -> Callable[..., Value]:
    """Wraps a method of a pytree: metrics that share a statistic share the value.

    Arguments are by position, and hashable.

    Within a traced function, XLA would drop the repetitions, but only after they are traced. A
    formula calls such a method directly, not within a `lax.scan` of its own.
    """

    @wraps(method)
    def once(self: PyTree, *args: Hashable) -> Value:
        context = _reading.get()
        if context is None:
            return method(self, *args)
        memo = context.memo
        arrays, structure = jax.tree.flatten(self)
        # Each metric is made anew from its arrays, so two states are the same if these are.
        key = method, args, structure, tuple(map(id, arrays))
        if key not in memo:
            memo[key] = arrays, method(self, *args)
        return memo[key][1]

    return once
