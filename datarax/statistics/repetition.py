"""What an update of replicas must know: how often each row counts in each of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax

_counts: ContextVar[jax.Array | None] = ContextVar("counts", default=None)
_counting_invalid: ContextVar[bool] = ContextVar("counting_invalid", default=True)


@contextmanager
def repeating(counts: jax.Array) -> Iterator[None]:
    """A block in which each row of a batch counts several times.

    `counts` (rows, replicas) says how often, in each of the replicas of a state.
    """
    token = _counts.set(counts)
    try:
        yield
    finally:
        _counts.reset(token)


def repetitions() -> Any:
    """The counts of `repeating`; None outside."""
    return _counts.get()


@contextmanager
def invalid_uncounted(uncounted: bool = True) -> Iterator[None]:
    """A block in which the rows that cannot be used are left out, and are not counted."""
    token = _counting_invalid.set(not uncounted)
    try:
        yield
    finally:
        _counting_invalid.reset(token)


def counting_invalid() -> bool:
    """Whether rows that cannot be used are counted here."""
    return _counting_invalid.get()
