"""Errors of a state that holds no arrays: a compiled step donated them, or it is abstract."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import jax
from jax.core import Tracer

from datarax._errors import DonatedStateError, MetricInputError
from datarax._typing import PyTree
from datarax._xp import on_host

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def require_arrays(state: PyTree) -> None:
    """Raises if an array of a state is deleted, or if the state has shapes in place of arrays.

    Raises:
        DonatedStateError: the step that the state was passed to donated it; names its class.
        MetricInputError: it is abstract, as out of `jax.eval_shape`; names its class.
    """
    for x in () if on_host(state) else jax.tree.leaves(state):
        if isinstance(x, jax.ShapeDtypeStruct):
            raise MetricInputError(
                f"{type(state).__name__}: this metric is abstract: it has shapes in place of "
                f"arrays, as out of jax.eval_shape, and so no data. Use the metric itself; an "
                f"abstract one only says what is restored: datarax.io.restore(path, like=metric), "
                f"metric.load_state_dict(saved)"
            )
        if isinstance(x, jax.Array) and not isinstance(x, Tracer) and x.is_deleted():
            raise DonatedStateError(
                f"{type(state).__name__}: the arrays of this metric are deleted, because a "
                f"compiled step that it was passed to donates them (donate_argnums). Go on with "
                f"the metric that the step returned"
            )


def requiring_arrays(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wraps a function of states: it raises if one of them holds no arrays.

    Before the call, because a compiled program of several devices may crash on deleted arrays.
    """

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        for each in args:
            require_arrays(each)
        return function(*args, **kwargs)

    return call
