"""Formulas of many steps in float64, where devices have it."""

from collections.abc import Callable
from typing import Any

import jax

from datarax._checks import as_float, default_float
from datarax._xp import xp
from datarax.numerics.double_float import has_float64


def in_float64(function: Callable[..., Any], *arrays: jax.Array) -> Any:
    """`function(*arrays)` in float64, although x64 is disabled; its floats rounded at the end.

    On devices without float64, such as TPUs, in float32. `function` returns a pytree of arrays.
    """
    dtype = default_float()
    if not has_float64():
        return function(*map(as_float, arrays))
    with jax.enable_x64(True):
        value = function(*(x.astype(xp.float64) for x in arrays))
        return jax.tree.map(lambda x: x.astype(dtype) if x.dtype == xp.float64 else x, value)
