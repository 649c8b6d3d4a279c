"""Errors that say that a compiled step donated the arrays of a state, which is used again."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import jax
from jax.core import Tracer

from datarax._errors import DonatedStateError
from datarax._typing import PyTree
from datarax._xp import on_host

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def refuse_donated(state: PyTree) -> None:
    """Raises if an array of a state is deleted.

    Raises:
        DonatedStateError: the step that the state was passed to donated it; names its class.
    """
    for x in () if on_host(state) else jax.tree.leaves(state):
        if isinstance(x, jax.Array) and not isinstance(x, Tracer) and x.is_deleted():
            raise DonatedStateError(
                f"{type(state).__name__}: the arrays of this metric are deleted, because a "
                f"compiled step that it was passed to donates them (donate_argnums). Go on with "
                f"the metric that the step returned"
            )


def unless_donated(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wraps a function of states: it raises if an array of one of them was donated.

    Before the call, because a compiled program of several devices may crash on deleted arrays.
    """

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        for each in args:
            refuse_donated(each)
        return function(*args, **kwargs)

    return call
