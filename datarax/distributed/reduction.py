"""The implementation of the reducers, over global arrays and between devices."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax.distributed import collectives
from datarax.distributed.collectives import AxisName
from datarax.distributed.inputs import (
    Axis,
    NamedWeights,
    aligned,
    check_global,
    checked_axes,
    checked_ops,
    is_array,
    numeric,
)
from datarax.distributed.names import by_name, named_leaves
from datarax.distributed.two_parts import gathered_two_parts, is_two_parts, reduce_two_parts

# Global arrays.


def reduce(
    caller: str,
    metrics: PyTree,
    ops: str | Mapping[str, Any],
    weights: NamedWeights,
    axis: Axis,
    *,
    what: str = "weights",
) -> PyTree:
    """Reduces every array of `metrics` over its axes; all other leaves pass through.

    `ops` is one operation, or a mapping from names to operations. `caller` and `what` (the name of
    the argument for the weights) are for error messages.
    """
    names, leaves, treedef = named_leaves(metrics, is_two_parts)
    chosen = by_name(weights, names, what=what, caller=caller, default=None)
    for i, op in enumerate(checked_ops(ops, names, caller, REDUCTIONS)):
        leaf = leaves[i]
        two = is_two_parts(leaf)
        if op is None or not (two or is_array(leaf)) or leaf.ndim == 0:
            continue
        about = f"{caller}: metric {names[i]!r}"
        check_global(leaf.high if two else leaf, f"metric {names[i]!r}", caller)
        check_global(chosen[i], f"{what} of metric {names[i]!r}", caller)
        x = leaf if two else numeric(leaf, names[i], caller, op=op)
        w = aligned(chosen[i], x, names[i], caller, what)
        axes = checked_axes(axis, x, names[i], caller)
        if two:
            leaves[i] = reduce_two_parts(op, x, w, axes, about)
        else:
            leaves[i] = REDUCTIONS[op](x, w, axes, about)
    return treedef.unflatten(leaves)


def _global_mean(x: jax.Array, w: jax.Array | None, axes: tuple[int, ...], _: str) -> jax.Array:
    x = _as_float(x)
    if w is None:
        return _ratio(jnp.sum(x, axes), math.prod(x.shape[a] for a in axes))
    w = w.astype(x.dtype)
    # The total weight, as if the weights were broadcast to the shape of x before summing.
    repeats = math.prod(x.shape[a] for a in axes if w.shape[a] == 1)
    total = jnp.sum(w, axes, keepdims=True) * jnp.asarray(repeats, w.dtype)
    return _ratio(jnp.sum(_weighted(x, w), axes), lax.squeeze(total, axes))


def _global_sum(x: jax.Array, w: jax.Array | None, axes: tuple[int, ...], _: str) -> jax.Array:
    return jnp.sum(_summands(x, w), axes)


def _global_extreme(
    x: jax.Array, w: jax.Array | None, axes: tuple[int, ...], about: str, *, op: str
) -> jax.Array:
    floating = jnp.issubdtype(x.dtype, jnp.floating)
    if math.prod(x.shape[a] for a in axes) == 0:
        if not floating:
            raise MetricInputError(
                f"{about} of shape {x.shape} and dtype {x.dtype} has no elements, so it has no "
                f"{op}, and integers have no NaN to return; expected at least one element"
            )
        return jnp.full([n for a, n in enumerate(x.shape) if a not in axes], jnp.nan, x.dtype)
    counts = jnp.ones((1,) * x.ndim, jnp.bool_) if w is None else w.astype(jnp.bool_)
    best = jnp.max if op == "max" else jnp.min
    out = best(x, axes, where=counts, initial=_worst(x.dtype, op))
    if not floating:
        return out
    # NaN is detected separately: XLA's maximum between shards drops NaN on some backends.
    no_data = lax.squeeze(~jnp.any(counts, axes, keepdims=True), axes)
    is_nan = no_data | jnp.any(jnp.isnan(x) & counts, axes)
    return jnp.where(is_nan, jnp.asarray(jnp.nan, x.dtype), out)


# Each takes an array, weights that broadcast against it or None, axes, and a name for errors.
REDUCTIONS: dict[str, Callable[..., jax.Array]] = {
    "mean": _global_mean,
    "sum": _global_sum,
    "max": lambda *args: _global_extreme(*args, op="max"),
    "min": lambda *args: _global_extreme(*args, op="min"),
}


# The arrays of each device, inside `shard_map` or `pmap`.


def collect(
    caller: str,
    metrics: PyTree,
    ops: str | Mapping[str, Any],
    axis_name: AxisName,
    weights: NamedWeights,
    *,
    what: str = "weights",
) -> PyTree:
    """Reduces every array of `metrics` elementwise over devices; all other leaves pass through.

    Arguments as in `reduce`. There is one collective for each kind, however many metrics there are.
    """
    size = collectives.bound_axis_size(axis_name, caller)
    names, leaves, treedef = named_leaves(metrics, is_two_parts)
    chosen = by_name(weights, names, what=what, caller=caller, default=None)
    # The arrays for each kind of collective; and for each metric the index of its leaf, the kind,
    # its slice of the arrays, and the function that computes the result from the reduced slice.
    send: dict[str, list[jax.Array]] = {"sum": [], "max": [], "min": []}
    read: list[tuple[int, str, slice, Callable[..., jax.Array]]] = []
    for i, op in enumerate(checked_ops(ops, names, caller, REDUCTIONS)):
        two = is_two_parts(leaves[i])
        if op is None or not (two or is_array(leaves[i])):
            continue
        x = leaves[i] if two else numeric(leaves[i], names[i], caller, op=op)
        w = aligned(chosen[i], x, names[i], caller, what)
        if two:
            index, kind = lax.axis_index(axis_name), "sum"
            about = f"{caller}: metric {names[i]!r}"
            parts, finish = gathered_two_parts(op, x, w, index, size, about)
        else:
            kind, parts, finish = _contribution(op, x, w, size)
        start = len(send[kind])
        send[kind] += parts
        read.append((i, kind, slice(start, start + len(parts)), finish))
    received = {
        "sum": collectives.psum(send["sum"], axis_name),
        "max": collectives.pmax(send["max"], axis_name),
        "min": collectives.pmin(send["min"], axis_name),
    }
    for i, kind, where, finish in read:
        leaves[i] = finish(*received[kind][where])
    return treedef.unflatten(leaves)


def _contribution(
    op: str, x: jax.Array, w: jax.Array | None, size: int
) -> tuple[str, list[jax.Array], Callable[..., jax.Array]]:
    """The kind of collective for one metric, its inputs, and the function of its outputs."""
    if op == "sum":
        summands = _summands(x, w)
        wide = jax.eval_shape(jnp.sum, summands).dtype
        return "sum", [summands.astype(wide)], lambda total: total
    if op == "mean":
        x = _as_float(x)
        if w is None:
            return "sum", [x], lambda total: _ratio(total, size)
        w = w.astype(x.dtype)
        return "sum", [_weighted(x, w), w], _ratio
    nan_is = "highest" if op == "max" else "lowest"
    key = collectives.to_key(x, nan_is)
    if w is not None:
        key = jnp.where(w.astype(jnp.bool_), key, _worst(key.dtype, op))
    return op, [key], lambda best: collectives.from_key(best, x.dtype)


# Arithmetic for both.


def _as_float(x: jax.Array) -> jax.Array:
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    return x.astype(jnp.zeros(()).dtype)


def _weighted(x: jax.Array, w: jax.Array) -> jax.Array:
    # Where the weight is zero, the value is replaced by zero before the product. Otherwise 0 * NaN
    # would be NaN. A mask after the product is not enough either: its gradient would be NaN.
    return jnp.where(w != 0, x, jnp.zeros((), x.dtype)) * w


def _summands(x: jax.Array, w: jax.Array | None) -> jax.Array:
    if w is None:
        return x
    if w.dtype == jnp.bool_:
        return jnp.where(w, x, jnp.zeros((), x.dtype))
    dtype = _product_dtype(x.dtype, w.dtype)
    x = _as_float(x) if dtype is None else x.astype(dtype)
    return _weighted(x, w.astype(x.dtype))


def _product_dtype(x: Any, w: Any) -> Any:
    """The dtype of a sum of products of integers; None if the values or the weights are floats.

    None also for uint32 and a signed dtype without x64, because no integer dtype holds both.
    """
    if not (jnp.issubdtype(x, jnp.integer) and jnp.issubdtype(w, jnp.integer)):
        return None
    both = np.promote_types(x, w)
    if both.kind == "f" or jax.dtypes.canonicalize_dtype(both) != both:
        return None
    return jax.eval_shape(jnp.sum, jax.ShapeDtypeStruct((), both)).dtype


def _ratio(total: jax.Array, weight: jax.Array | int) -> jax.Array:
    weight = jnp.asarray(weight, total.dtype)
    some = weight != 0
    safe = jnp.where(some, weight, jnp.ones((), weight.dtype))
    # XLA replaces a division by a constant, or by a broadcast scalar, by a product with the rounded
    # reciprocal. The mean of 41 ones would be 0.99999994. The barrier hides the constant.
    safe = lax.optimization_barrier(jnp.broadcast_to(safe, total.shape))
    return jnp.where(some, total / safe, jnp.asarray(jnp.nan, total.dtype))


def _worst(dtype: jnp.dtype, op: str) -> jax.Array:
    """The identity of a maximum or minimum: the lowest or the highest value of the dtype."""
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(-jnp.inf if op == "max" else jnp.inf, dtype)
    info = jnp.iinfo(dtype)
    return jnp.asarray(info.min if op == "max" else info.max, dtype)
