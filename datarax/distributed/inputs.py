"""What the reducers accept: each check raises an error that names the caller and the metric."""

from collections.abc import Collection
from operator import index
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from datarax._errors import (
    MetricInputError,
    MetricTypeError,
    NotAddressableError,
    UnknownReductionError,
)
from datarax.distributed.names import by_name

Axis = int | tuple[int, ...] | None


def is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def is_number(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.number) or dtype == np.bool_


def checked_ops(
    ops: Any, names: list[str], caller: str, table: Collection[str]
) -> list[str | None]:
    chosen = by_name(ops, names, what="reduce_fn", caller=caller, default="mean")
    for name, op in zip(names, chosen, strict=True):
        if op is not None and not (isinstance(op, str) and op in table):
            raise UnknownReductionError(
                f"{caller}: metric {name!r} asks for the reduction {op!r}; "
                f"expected one of {', '.join(map(repr, table))}, or None"
            )
    return chosen


def numeric(
    leaf: Any, name: str, caller: str, *, op: str | None = None, any_dtype: bool = False
) -> jax.Array:
    """The leaf as a JAX array of a dtype that can be reduced: half precision as float32."""
    dtype = leaf.dtype
    if not is_number(dtype) or (
        op in ("max", "min") and jnp.issubdtype(dtype, jnp.complexfloating)
    ):
        raise MetricTypeError(
            f"{caller}: metric {name!r} has dtype {dtype}; expected booleans, integers or floats"
            f"{'' if op in ('max', 'min') else ' (or complex numbers)'}"
        )
    if isinstance(leaf, np.ndarray):
        _refuse_wrap(leaf, f"metric {name!r}", caller)
    x = _as_jax(leaf, f"metric {name!r}", caller)
    if any_dtype:
        return x
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(x.dtype).bits < 32:
        return x.astype(jnp.float32)
    # Booleans are 0/1 integers; integers narrower than a byte have no bits of their own.
    return x.astype(jnp.int32) if x.dtype == jnp.bool_ else x


def _as_jax(array: Any, about: str, caller: str) -> jax.Array:
    try:
        return jnp.asarray(array)
    except TypeError as error:  # numbers that JAX has no dtype for: long double, another byte order
        raise MetricTypeError(
            f"{caller}: {about} has dtype {array.dtype}, which JAX does not have; "
            f"convert it to float32 or int32 first"
        ) from error


def _refuse_wrap(leaf: np.ndarray, about: str, caller: str) -> None:
    narrow = jax.dtypes.canonicalize_dtype(leaf.dtype)
    if narrow == leaf.dtype or leaf.dtype.kind not in "iu" or leaf.size == 0:
        return
    info = jnp.iinfo(narrow)
    if leaf.min() < info.min or leaf.max() > info.max:
        raise MetricInputError(
            f"{caller}: {about} is a NumPy array of {leaf.dtype} with values from "
            f"{leaf.min()} to {leaf.max()}, which {narrow} cannot hold; enable jax_enable_x64, or "
            f"convert it to float32 first"
        )


def refuse_local(leaf: Any, about: str, caller: str) -> None:
    if jax.process_count() == 1 or isinstance(leaf, Tracer):
        return
    if not is_array(leaf) or leaf.ndim == 0:
        return
    # Under a trace a NumPy array is a constant of the program, the same on every process.
    if isinstance(leaf, np.ndarray) and isinstance(jnp.zeros(()), Tracer):
        return
    if isinstance(leaf, np.ndarray) or leaf.is_fully_addressable:
        raise NotAddressableError(
            f"{caller}: {about} is held by this process alone, so each of the "
            f"{jax.process_count()} processes would get its own answer; make it one global array "
            f"with jax.make_array_from_process_local_data first"
        )


def aligned(weights: Any, x: jax.Array, name: str, caller: str, what: str) -> jax.Array | None:
    """The weights with trailing axes of size 1, so that they line up with the leading axes of x."""
    if weights is None:
        return None
    if not is_array(weights):
        weights = np.asarray(weights)
    dtype = weights.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating) or not is_number(dtype):
        raise MetricTypeError(
            f"{caller}: {what} of metric {name!r} has dtype {dtype}; "
            f"expected booleans, integers or floats"
        )
    if isinstance(weights, np.ndarray):
        _refuse_wrap(weights, f"{what} of metric {name!r}", caller)
    w = _as_jax(weights, f"{what} of metric {name!r}", caller)
    fits = w.ndim <= x.ndim and all(n in (1, m) for n, m in zip(w.shape, x.shape, strict=False))
    if not fits:
        raise MetricInputError(
            f"{caller}: {what} of shape {w.shape} does not broadcast against the leading axes of "
            f"metric {name!r} of shape {x.shape}; expected a shape like {x.shape[: w.ndim]}"
        )
    return lax.expand_dims(w, range(w.ndim, x.ndim))


def checked_axes(axis: Axis, x: jax.Array, name: str, caller: str) -> tuple[int, ...]:
    try:
        given = range(x.ndim) if axis is None else [index(a) for a in np.atleast_1d(axis)]
    except TypeError:
        raise MetricInputError(
            f"{caller}: axis={axis!r} for metric {name!r}; expected an integer, a tuple or None"
        ) from None
    if any(not -x.ndim <= a < x.ndim for a in given) or len({a % x.ndim for a in given}) < len(
        given
    ):
        raise MetricInputError(
            f"{caller}: axis={axis} does not fit metric {name!r} of shape {x.shape}; "
            f"expected distinct axes from {-x.ndim} to {x.ndim - 1}"
        )
    return tuple(a % x.ndim for a in given)
