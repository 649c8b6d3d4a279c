"""The arguments of the reducers: the named leaves of a pytree, and options that are given by name.

Each error of a check names the calling reducer and the metric.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import singledispatch
from operator import index
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from datarax._checks import at_least_8_bits, is_integer, x64_enabled
from datarax._errors import (
    MetricInputError,
    MetricTypeError,
    NotAddressableError,
    UnknownMetricError,
    UnknownReductionError,
)
from datarax._typing import Array, PyTree, Weights
from datarax._xp import is_in_program, lax

Axis = int | tuple[int, ...] | None
"""The axes to reduce; `None` for all."""

OPERATIONS = ("mean", "sum", "max", "min")
Operations = str | Mapping[str, PyTree] | None
"""The operation on all metrics, or a mapping from the names of metrics to their operations.

None stands for "mean".
"""

NamedWeights = Weights | Mapping[str, PyTree]
"""The weights of all metrics, or a mapping from the names of metrics to their weights."""


def is_array(leaf: object) -> bool:
    """True if a leaf is a JAX or NumPy array; all other leaves pass through a reducer."""
    return isinstance(leaf, jax.Array | np.ndarray)


@singledispatch
def axes_of_whole(leaf: object) -> tuple[int, ...] | None:
    """The sizes of the axes that all arrays of a pytree have before their own; or ().

    For what `collect_from_devices` splits as a whole, into a list of its own kind: the classes that
    are registered, such as `State`. None for others.
    """
    return None


def named_leaves(
    metrics: PyTree, is_leaf: Callable[[PyTree], bool] = lambda x: False
) -> tuple[list[str], list[PyTree], PyTree]:
    """The names ("train/loss") and the leaves of `metrics`, and its structure.

    `None` is a leaf, so that it passes through a reducer, and so is what `is_leaf` chooses.
    """
    pairs, treedef = jax.tree_util.tree_flatten_with_path(
        metrics, is_leaf=lambda x: x is None or is_leaf(x)
    )
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in pairs]
    return names, [leaf for _, leaf in pairs], treedef


def by_name(
    option: PyTree, names: Sequence[str], *, what: str, caller: str, default: PyTree
) -> list[PyTree]:
    """The value of `option` for each name.

    In a mapping, a key is the full name of a metric ("train/loss") or of a group of metrics
    ("train"); the longest key that matches counts. A mapping may be nested like the metrics.
    An `option` that is not a mapping is the value for every name.

    Raises:
        UnknownMetricError: a key is the name of neither a metric nor a group.
    """
    if not isinstance(option, Mapping):
        return [default if option is None else option] * len(names)
    given = dict(_flatten(option))
    # The slash at the end: the key "train/loss" is not the name of a group of "train/loss_scale".
    matches = [[key for key in given if f"{name}/".startswith(f"{key}/")] for name in names]
    for key in given:
        if not any(key in keys for keys in matches):
            raise UnknownMetricError(
                f"{caller}: {what} names {key!r}, which the metrics do not have; "
                f"they have: {', '.join(map(repr, names)) or 'none'}"
            )
    return [given[max(keys, key=len)] if keys else default for keys in matches]


def _flatten(option: Mapping[str, PyTree], prefix: str = "") -> Iterator[tuple[str, PyTree]]:
    for key, value in option.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def checked_ops(ops: Operations, names: list[str], caller: str) -> list[str | None]:
    """The reduction of each metric, "mean" by default; raises unless all are in `OPERATIONS`."""
    chosen = by_name(ops, names, what="reduce_fn", caller=caller, default="mean")
    for name, op in zip(names, chosen, strict=True):
        if op is not None and not (isinstance(op, str) and op in OPERATIONS):
            raise UnknownReductionError(
                f"{caller}: metric {name!r} has the reduction {op!r}; "
                f"expected one of {', '.join(map(repr, OPERATIONS))}, or None"
            )
    return chosen


_WIDE = (np.int64, np.uint64, np.float64)


def is_wide_on_host(leaf: PyTree, op: str, weights: Weights) -> bool:
    """True if a global reduction needs 64 bits that JAX lacks, and NumPy can do it.

    That is outside a program, of NumPy arrays alone: numbers of 64 bits, and a sum of integers.
    """
    if type(leaf) is not np.ndarray or isinstance(weights, jax.Array):
        return False
    given: list[Any] = [leaf, *([] if weights is None else [np.asarray(weights)])]
    sums_integers = op == "sum" and all(map(is_integer, given))  # which would wrap, with x64 too
    is_wide = leaf.dtype in _WIDE and not x64_enabled()
    return (sums_integers or is_wide) and not is_in_program()


def numeric(leaf: Array, name: str, caller: str, op: str) -> jax.Array:
    """The leaf as a JAX array; half precision becomes float32 and booleans become int32."""
    x = as_jax(leaf, f"metric {name!r}", caller, is_real=op in ("max", "min"))
    if jnp.issubdtype(x.dtype, jnp.floating) and jnp.finfo(x.dtype).bits < 32:
        return x.astype(jnp.float32)
    # Sums and maxima of booleans are integers.
    return x.astype(jnp.int32) if x.dtype == jnp.bool_ else x


def checked_dtype(array: Array, about: str, caller: str, *, is_real: bool) -> Array:
    """The array; raises unless it holds numbers, which are not complex if `is_real`."""
    dtype = array.dtype
    is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
    if (is_complex and is_real) or not (jnp.issubdtype(dtype, jnp.number) or dtype == np.bool_):
        raise MetricTypeError(
            f"{caller}: {about} has dtype {dtype}; expected booleans, integers or floats"
            f"{'' if is_real else ' (or complex numbers)'}"
        )
    return array


def as_jax(array: Array, about: str, caller: str, *, is_real: bool = False) -> jax.Array:
    """The array on the devices; raises if JAX has no such numbers, or would truncate an integer."""
    dtype = checked_dtype(array, about, caller, is_real=is_real).dtype
    if isinstance(array, np.ndarray) and array.size and dtype in (np.int64, np.uint64):
        narrow = jax.dtypes.canonicalize_dtype(dtype)
        info, least, greatest = jnp.iinfo(narrow), array.min(), array.max()
        if least < info.min or greatest > info.max:
            raise MetricInputError(
                f"{caller}: {about} is a NumPy array of {dtype} with values from {least} to "
                f"{greatest}, which {narrow} cannot hold; enable jax_enable_x64, or convert it to "
                f"float32 first"
            )
    try:
        return at_least_8_bits(jnp.asarray(array))
    except TypeError as error:  # a dtype that JAX lacks: long double, or another byte order
        raise MetricTypeError(
            f"{caller}: {about} has dtype {dtype}, which JAX does not have; "
            f"convert it to float32 or int32 first"
        ) from error


def check_global(leaf: PyTree, about: str, caller: str) -> None:
    """On several processes, raises if only this process holds the array.

    Each process would otherwise reduce its own rows and report a different result.
    """
    if jax.process_count() == 1 or isinstance(leaf, Tracer) or not is_array(leaf) or not leaf.ndim:
        return
    # In a traced function, a NumPy array is a constant of the program, which JAX takes to be the
    # same on every process.
    if isinstance(leaf, np.ndarray) and is_in_program():
        return
    if isinstance(leaf, np.ndarray) or leaf.is_fully_addressable:
        raise NotAddressableError(
            f"{caller}: only this process holds {about}, so each of the "
            f"{jax.process_count()} processes would get its own result; make it one global array "
            f"with jax.make_array_from_process_local_data first"
        )


def aligned(weights: Weights, x: Array, name: str, caller: str, what: str) -> Any:
    """The weights with axes of size 1 appended, so that they broadcast against x.

    A JAX array, except for an `x` of NumPy.
    """
    if weights is None:
        return None
    if not isinstance(weights, jax.Array | np.ndarray):
        weights = np.asarray(weights)
    about = f"{what} of metric {name!r}"
    if isinstance(x, np.ndarray):
        w = checked_dtype(weights, about, caller, is_real=True)
    else:
        w = as_jax(weights, about, caller, is_real=True)
    fits = w.ndim <= x.ndim and all(n in (1, m) for n, m in zip(w.shape, x.shape, strict=False))
    if not fits:
        raise MetricInputError(
            f"{caller}: {what} of shape {w.shape} does not broadcast against the leading axes of "
            f"metric {name!r} of shape {x.shape}; expected a shape like {x.shape[: w.ndim]}"
        )
    return lax.expand_dims(w, range(w.ndim, x.ndim))


def checked_axes(axis: Axis, x: jax.Array, name: str, caller: str) -> tuple[int, ...]:
    """The axes to reduce, as non-negative integers; raises unless `x` has them all."""
    try:
        given = range(x.ndim) if axis is None else [index(a) for a in np.atleast_1d(axis)]
    except TypeError:
        raise MetricInputError(
            f"{caller}: axis={axis!r} for metric {name!r}; expected an integer, a tuple or None"
        ) from None
    axes = tuple(a % x.ndim for a in given)
    if any(not -x.ndim <= a < x.ndim for a in given) or len(set(axes)) < len(axes):
        raise MetricInputError(
            f"{caller}: axis={axis} does not fit metric {name!r} of shape {x.shape}; "
            f"expected distinct axes from {-x.ndim} to {x.ndim - 1}"
        )
    return axes
