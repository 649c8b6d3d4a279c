"""`computed_once`: values that several formulas need, and that a reading computes once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import jax

# What was computed in the reading that is under way, by method, structure and arrays.
_memo: ContextVar[dict[Any, Any] | None] = ContextVar("memo", default=None)


@contextmanager
def one_reading() -> Iterator[None]:
    """A block in which methods that are `computed_once` remember what they computed."""
    if _memo.get() is not None:
        yield
        return
    token = _memo.set({})
    try:
        yield
    finally:
        _memo.reset(token)


def computed_once(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method of a pytree: metrics that share a statistic share the value.

    Arguments are by position, and hashable.

    Within a traced function, XLA would drop the repetitions, but only after they are traced. A
    formula calls such a method directly, not within a `lax.scan` of its own.
    """

    @wraps(method)
    def once(self: Any, *args: Any) -> Any:
        memo = _memo.get()
        if memo is None:
            return method(self, *args)
        # Each metric is made anew from its arrays, so these tell whether two states are the same.
        leaves, treedef = jax.tree.flatten(self)
        key = (method, args, treedef, tuple(map(id, leaves)))
        if key not in memo:
            memo[key] = leaves, method(self, *args)  # the arrays are kept, and so are their ids
        return memo[key][1]

    return once
