"""`computed_once`: values that several formulas need, and that a reading computes once."""

from collections.abc import Callable, Hashable
from contextvars import ContextVar
from functools import wraps
from typing import TypeVar

import jax

from datarax._typing import PyTree

Value = TypeVar("Value")

_Memo = dict[tuple[Hashable, ...], tuple[list[jax.Array], PyTree]]
"""By method, its arguments, and the structure and the identity of the arrays of a state: the
arrays, which keep their identity as long as they are held, and the value."""

# What was computed in the reading that is under way. A context variable holds it, because no
# argument can: a formula, the `compute` of a metric, takes none.
_memo: ContextVar[_Memo | None] = ContextVar("memo", default=None)


def one_reading(read: Callable[..., Value]) -> Callable[..., Value]:
    """Wraps a reading: methods that are `computed_once` remember what they computed in it."""

    @wraps(read)
    def remembering(*args: PyTree) -> Value:
        if _memo.get() is not None:
            return read(*args)
        token = _memo.set({})
        try:
            return read(*args)
        finally:
            _memo.reset(token)

    return remembering


def computed_once(method: Callable[..., Value]) -> Callable[..., Value]:
    """Wraps a method of a pytree: metrics that share a statistic share the value.

    Arguments are by position, and hashable.

    Within a traced function, XLA would drop the repetitions, but only after they are traced. A
    formula calls such a method directly, not within a `lax.scan` of its own.
    """

    @wraps(method)
    def once(self: PyTree, *args: Hashable) -> Value:
        memo = _memo.get()
        if memo is None:
            return method(self, *args)
        arrays, structure = jax.tree.flatten(self)
        # Each metric is made anew from its arrays, so two states are the same if these are.
        key = method, args, structure, tuple(map(id, arrays))
        if key not in memo:
            memo[key] = arrays, method(self, *args)
        return memo[key][1]

    return once
