"""The implementation of the reducers, over global arrays and between devices."""

import math
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from datarax._typing import PyTree
from datarax.distributed import collectives
from datarax.distributed.collectives import AxisName
from datarax.distributed.inputs import (
    Axis,
    NamedWeights,
    Operations,
    aligned,
    check_global,
    checked_axes,
    checked_ops,
    is_array,
    numeric,
)
from datarax.distributed.merge_ops import worst
from datarax.distributed.names import by_name, named_leaves
from datarax.distributed.two_parts import (
    TwoParts,
    extreme,
    gathered_two_parts,
    is_two_parts,
    reduce_two_parts,
)

OPERATIONS = ("mean", "sum", "max", "min")


def _selected(
    caller: str,
    names: list[str],
    leaves: list[PyTree],
    ops: Operations,
    weights: NamedWeights,
    what: str,
    *,
    is_global: bool,
) -> Iterator[tuple[int, str, PyTree, jax.Array | None]]:
    """For each leaf that is reduced: its index, the operation, its numbers, and their weights.

    `caller` and `what` (the name of the argument for the weights) are for error messages.
    """
    chosen = by_name(weights, names, what=what, caller=caller, default=None)
    for i, op in enumerate(checked_ops(ops, names, caller, OPERATIONS)):
        x, two = leaves[i], is_two_parts(leaves[i])
        if op is None or not (two or is_array(x)) or (is_global and x.ndim == 0):
            continue
        if is_global:
            check_global(x.high if two else x, f"metric {names[i]!r}", caller)
            check_global(chosen[i], f"{what} of metric {names[i]!r}", caller)
        x = x if two else numeric(x, names[i], caller, op)
        yield i, op, x, aligned(chosen[i], x, names[i], caller, what)


# Global arrays.


def reduce(
    caller: str,
    metrics: PyTree,
    ops: Operations,
    weights: NamedWeights,
    axis: Axis,
    *,
    what: str = "weights",
) -> PyTree:
    """Reduces every array of `metrics` over its axes; all other leaves pass through."""
    names, leaves, treedef = named_leaves(metrics, is_two_parts)
    for i, op, x, w in _selected(caller, names, leaves, ops, weights, what, is_global=True):
        axes, about = checked_axes(axis, x, names[i], caller), f"{caller}: metric {names[i]!r}"
        leaves[i] = _reduced(op, x, w, axes, about)
    return treedef.unflatten(leaves)


def _reduced(
    op: str, x: PyTree, w: jax.Array | None, axes: tuple[int, ...], about: str
) -> TwoParts | jax.Array:
    if is_two_parts(x):
        return reduce_two_parts(op, x, w, axes, about)
    if op in ("max", "min"):
        return extreme(op, [x], w, axes, about)[0]
    if op == "sum":
        return jnp.sum(_summands(x, w), axes)
    x = _as_float(x)
    if w is None:
        return _ratio(jnp.sum(x, axes), math.prod(x.shape[a] for a in axes))
    w = w.astype(x.dtype)
    # The total weight, as if the weights were broadcast to the shape of x before summing.
    repeats = math.prod(x.shape[a] for a in axes if w.shape[a] == 1)
    total = jnp.sum(w, axes, keepdims=True) * jnp.asarray(repeats, w.dtype)
    return _ratio(jnp.sum(_weighted(x, w), axes), lax.squeeze(total, axes))


# The arrays of each device, inside `shard_map` or `pmap`.


def collect(
    caller: str,
    metrics: PyTree,
    ops: Operations,
    axis_name: AxisName,
    weights: NamedWeights,
    *,
    what: str = "weights",
) -> PyTree:
    """Reduces every array of `metrics` elementwise over devices; all other leaves pass through.

    There is one collective for each kind, however many metrics there are.
    """
    size = collectives.bound_axis_size(axis_name, caller)
    names, leaves, treedef = named_leaves(metrics, is_two_parts)
    # The arrays for each kind of collective; and for each metric the index of its leaf, the kind,
    # its slice of the arrays, and the function that computes the result from the reduced slice.
    send: dict[str, list[jax.Array]] = {"sum": [], "max": []}
    read: list[tuple[int, str, slice, Callable[..., TwoParts | jax.Array]]] = []
    for i, op, x, w in _selected(caller, names, leaves, ops, weights, what, is_global=False):
        if is_two_parts(x):
            about = f"{caller}: metric {names[i]!r}"
            kind, parts, finish = gathered_two_parts(op, x, w, axis_name, about)
        else:
            kind, parts, finish = _contribution(op, x, w, size)
        start = len(send[kind])
        send[kind] += parts
        read.append((i, kind, slice(start, start + len(parts)), finish))
    received = {
        "sum": collectives.psum(send["sum"], axis_name),
        "max": collectives.pmax(send["max"], axis_name),
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
    key = collectives.to_key(x, op)
    if w is not None:
        key = jnp.where(w.astype(jnp.bool_), key, worst("max", key.dtype))
    return "max", [key], lambda best: collectives.from_key(best, x.dtype, op)


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


def _product_dtype(x: np.dtype, w: np.dtype) -> np.dtype | None:
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
