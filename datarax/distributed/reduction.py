"""The implementation of the reducers, over global arrays and between devices.

Numbers in two parts, `Exact` and `DoubleFloat`, are reduced as numbers, because each part alone
means nothing: the sum of the low limbs of -1 and 1 is 2**32. Their parts may be NumPy arrays, which
`xp` leaves on the host. Outside a program, NumPy arrays that need 64 bits are reduced in NumPy. All
other leaves become JAX arrays before they are reduced.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from datarax._checks import is_integer
from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax._xp import lax, xp
from datarax.distributed import collectives, inputs
from datarax.distributed.collectives import AxisName
from datarax.distributed.inputs import Axis, NamedWeights, Operations, named_leaves
from datarax.distributed.merge_ops import worst
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import Exact
from datarax.numerics.limbs import sum_limbs

TwoParts = Exact | DoubleFloat


def is_two_parts(leaf: object) -> bool:
    """True if a leaf is a number in two parts."""
    return isinstance(leaf, TwoParts)


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
    chosen = inputs.by_name(weights, names, what=what, caller=caller, default=None)
    for i, op in enumerate(inputs.checked_ops(ops, names, caller)):
        x, two = leaves[i], is_two_parts(leaves[i])
        if op is None or not (two or inputs.is_array(x)) or (is_global and x.ndim == 0):
            continue
        if is_global:
            inputs.check_global(x.high if two else x, f"metric {names[i]!r}", caller)
            inputs.check_global(chosen[i], f"{what} of metric {names[i]!r}", caller)
        if not two and not (is_global and inputs.is_wide_on_host(x, op, chosen[i])):
            x = inputs.numeric(x, names[i], caller, op)
        yield i, op, x, inputs.aligned(chosen[i], x, names[i], caller, what)


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
        axes = inputs.checked_axes(axis, x, names[i], caller)
        leaves[i] = _reduced(op, x, w, axes, f"{caller}: metric {names[i]!r}")
    return treedef.unflatten(leaves)


def _reduced(
    op: str, x: PyTree, w: jax.Array | None, axes: tuple[int, ...], about: str
) -> TwoParts | jax.Array:
    if is_two_parts(x):
        return _two_parts_reduced(op, x, w, axes, about)
    if op in ("max", "min"):
        return _extreme(op, [x], w, axes, about)[0]
    if isinstance(x, np.ndarray):
        return _reduced_on_host(op, x, w, axes, about)
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


def _reduced_on_host(op: str, x: Any, w: Any, axes: tuple[int, ...], about: str) -> Any:
    """A sum or a mean of 64 bits, in NumPy: integers are exact, and all else is in float64."""
    used = x if w is None else np.where(w != 0, x, x.dtype.type(0))
    if op == "sum" and is_integer(x) and (w is None or is_integer(w)):
        return _sum_of_integers(used, w, axes, about)
    w = np.broadcast_to(np.float64(1) if w is None else w.astype(np.float64), x.shape)
    total, weight = np.sum(used * w, axes, np.float64), np.sum(w, axes)
    with np.errstate(divide="ignore", invalid="ignore"):
        return total if op == "sum" else np.where(weight != 0, total / weight, np.nan)[()]


def _sum_of_integers(x: Any, w: Any, axes: tuple[int, ...], about: str) -> Any:
    """The exact sum in an integer dtype of 64 bits; unsigned if `x` is and no weight is signed."""
    signed = x.dtype.kind != "u" or (w is not None and w.dtype.kind == "i")
    dtype = np.dtype(np.int64 if signed else np.uint64)
    if w is not None and w.dtype != np.bool_:
        is_small = _greatest(x) * _greatest(w) < 2**63
        x = np.multiply(*(each.astype(np.int64 if is_small else object) for each in (x, w)))
    if x.dtype.itemsize < 8:
        return np.sum(x, axes, dtype)
    # The halves of 64 bits are added up apart, and joined as Python integers.
    high, low = (np.asarray(np.sum(half, axes)) for half in (x >> 32, x & 0xFFFFFFFF))
    total = np.asarray(high.astype(object) * 2**32 + low.astype(object))
    info = np.iinfo(dtype)
    if any(not info.min <= each <= info.max for each in total.flat):
        raise MetricInputError(
            f"{about}: a sum does not fit {dtype}; convert the array to float64 first"
        )
    return total.astype(dtype)[()]


def _greatest(x: np.ndarray) -> int:
    """The greatest magnitude of integers, 0 of none."""
    return max(abs(int(x.max(initial=0))), abs(int(x.min(initial=0))))


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
    collectives.bound_axis_size(axis_name, caller)
    names, leaves, treedef = named_leaves(metrics, is_two_parts)
    # The arrays for each kind of collective. For each metric: the index of its leaf, the kind, the
    # number of its arrays, and the function that computes the result from the reduced arrays.
    send: dict[str, list[jax.Array]] = {"sum": [], "max": []}
    read: list[tuple[int, str, int, Callable[..., TwoParts | jax.Array]]] = []
    for i, op, x, w in _selected(caller, names, leaves, ops, weights, what, is_global=False):
        about = f"{caller}: metric {names[i]!r}"
        kind, parts, finish = _contribution(op, x, w, axis_name, about)
        send[kind] += parts
        read.append((i, kind, len(parts), finish))
    received = {
        "sum": iter(collectives.psum(send["sum"], axis_name)),
        "max": iter(collectives.pmax(send["max"], axis_name)),
    }
    for i, kind, count, finish in read:
        leaves[i] = finish(*islice(received[kind], count))
    return treedef.unflatten(leaves)


def _contribution(
    op: str, x: PyTree, w: jax.Array | None, axis_name: AxisName, about: str
) -> tuple[str, list[jax.Array], Callable[..., TwoParts | jax.Array]]:
    """The kind of collective for one metric, its inputs, and the function of its outputs."""
    if is_two_parts(x):
        given = [xp.asarray(x.high), xp.asarray(x.low)]
        given += [] if w is None else [xp.broadcast_to(w, given[0].shape)]

        # The sum over devices holds the bits of all of them, which each device then reduces.
        def reduced(rows: jax.Array) -> TwoParts | jax.Array:
            high, low, *weights = collectives.unpack_words(rows, given)
            every = weights[0] if weights else None
            return _two_parts_reduced(op, _like(x, high, low), every, (0,), about)

        return "sum", [collectives.own_row(given, axis_name)], reduced
    if op == "sum":
        summands = _summands(x, w)
        wide = jax.eval_shape(jnp.sum, summands).dtype
        return "sum", [summands.astype(wide)], lambda total: total
    if op == "mean":
        x = _as_float(x)
        if w is None:
            return "sum", [x], lambda total: _ratio(total, lax.axis_size(axis_name))
        w = w.astype(x.dtype)
        return "sum", [_weighted(x, w), w], _ratio
    key = collectives.to_key(x, op)
    # Minima travel as maxima of keys, so the least key changes no result.
    if w is not None:
        key = jnp.where(w.astype(jnp.bool_), key, worst("max", key.dtype))
    return "max", [key], lambda best: collectives.from_key(best, x.dtype, op)


# Arithmetic for both.


def _as_float(x: jax.Array) -> jax.Array:
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.zeros(()).dtype)


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


# Numbers in two parts, and extremes of numbers in one part or two.


def _two_parts_reduced(
    op: str, x: TwoParts, w: jax.Array | None, axes: tuple[int, ...], about: str
) -> TwoParts | jax.Array:
    """The reduction of `x` over `axes`.

    Sums and extremes have the type of `x`; but a sum of integers with weights that are not a mask
    is a double-float, rounded, and so is every mean.

    Args:
        op: "mean", "sum", "max" or "min".
        x: an `Exact` or a `DoubleFloat`.
        w: weights that broadcast against `x`, or None; for an extreme, zero excludes an element.
        axes: the axes, not negative.
        about: the caller and the metric, for errors.
    """
    high, low = xp.asarray(x.high), xp.asarray(x.low)
    w = None if w is None else xp.broadcast_to(w, high.shape)
    if op in ("max", "min"):
        return _like(x, *_extreme(op, (high, low), w, axes, about))
    whole = xp.issubdtype(low.dtype, xp.integer)
    if op == "sum" and whole and (w is None or w.dtype == xp.bool_):
        return Exact(*sum_limbs((high, low), axes, True if w is None else w))
    if w is not None:
        some = w.astype(xp.bool_)
        high, low = (xp.where(some, part, xp.zeros((), part.dtype)) for part in (high, low))
    # Integers in two limbs are rounded here, and double-floats stay as they are.
    double = Exact(high, low).to_double()
    if w is not None and w.dtype != xp.bool_:
        double = double * w.astype(double.dtype)
    total = double.sum(axes)
    if op == "sum":
        return total.to_float() if whole else _like(x, *total)
    if w is None:
        count = DoubleFloat.of(math.prod(x.shape[a] for a in axes), total.dtype)
        return (total / count.broadcast_to(total.shape)).to_float()
    return (total / DoubleFloat.of(w.astype(total.dtype)).sum(axes)).to_float()


def _like(x: TwoParts, high: jax.Array, low: jax.Array) -> TwoParts:
    return DoubleFloat(high, low) if isinstance(x, DoubleFloat) else Exact(high, low)


def _extreme(
    op: str, parts: Sequence[jax.Array], w: jax.Array | None, axes: tuple[int, ...], about: str
) -> list[jax.Array]:
    """The maximum or minimum of numbers in one part or two, over axes, that count by `w`.

    NaN if one of them is NaN, and for floats of which none counts.
    """
    high, whole = parts[0], xp.issubdtype(parts[-1].dtype, xp.integer)
    is_empty = math.prod(high.shape[a] for a in axes) == 0
    if whole and is_empty:
        raise MetricInputError(
            f"{about} of shape {high.shape} has no elements, so it has no {op}, and integers have "
            f"no NaN to return; expected at least one element"
        )
    counts = True if w is None else w.astype(xp.bool_)
    # NaN is detected separately: XLA's maximum between shards drops NaN on some backends.
    is_nan = False
    if not whole:
        none = is_empty if w is None else lax.squeeze(~xp.any(counts, axes, keepdims=True), axes)
        is_nan = xp.any(xp.isnan(high) & counts, axes) | none
    best, found = (xp.max if op == "max" else xp.min), []
    # The best high part; and of the elements that have it, the best low part.
    for part in parts:
        top = best(part, axes, keepdims=True, where=counts, initial=worst(op, part.dtype))
        counts = counts & (part == top)
        top = lax.squeeze(top, axes)
        found.append(top if whole else xp.where(is_nan, xp.asarray(xp.nan, part.dtype), top))
    return found
