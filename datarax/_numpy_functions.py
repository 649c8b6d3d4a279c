"""Functions of NumPy that stand for those of `jax.numpy` and `jax.lax` where the two differ.

These are loops, sorts by several keys, bit casts, and what is slow in NumPy. `_xp` dispatches to
them.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import TypeVar

import jax
import numpy as np
from jax.typing import DTypeLike

from datarax._typing import ArrayLike, PyTree

R = TypeVar("R")
Host = np.ndarray
"""An array on the host; a number of NumPy stands for one of shape ()."""
Parts = tuple[Host, ...]
Axes = int | tuple[int, ...] | None
_MANY = 2**12
"""From so many elements on, the work on the elements takes longer than a call."""


def zeros_of_one(arrays: Iterable[Host]) -> list[Host]:
    """Zeros of the shapes of arrays without rows, but with one row."""
    return [np.zeros((1, *np.shape(x)[1:]), np.asarray(x).dtype) for x in arrays]


def _without(function: Callable[..., R], *names: str) -> Callable[..., R]:
    """A function of NumPy that ignores arguments which say how a device computes."""

    def call(*args: object, **kwargs: object) -> R:
        return function(*args, **{k: v for k, v in kwargs.items() if k not in names})

    return call


def _nanmean(x: Host, axis: Axes = None, **kwargs: PyTree) -> Host:
    """NaN of no numbers, without a warning."""
    some = ~np.isnan(x)
    total = np.sum(np.where(some, x, 0), axis, **kwargs)
    return total / np.sum(some, axis, keepdims=kwargs.get("keepdims", False))


def _mean(x: Host, axis: Axes = None, **kwargs: PyTree) -> Host:
    total = np.sum(x, axis, **kwargs)
    return total / (np.size(x) / max(np.size(total), 1) if np.size(total) else 1)


def _reduction(ufunc: np.ufunc) -> Callable[..., Host]:
    """`np.sum` and its like, without the wrapper of NumPy, which takes longer than few numbers."""

    def call(x: Host, axis: Axes = None, dtype: DTypeLike | None = None, **kwargs: PyTree) -> Host:
        return ufunc.reduce(x, axis, dtype, **kwargs)

    return call


def _extreme(ufunc: np.ufunc) -> Callable[..., Host]:
    reduce = _reduction(ufunc)

    def call(x: Host, axis: Axes = None, **kwargs: PyTree) -> Host:
        where = kwargs.get("where")
        if where is not None and np.count_nonzero(where) == np.size(where):
            kwargs.pop("where")  # a mask takes much longer than to look
        if axis == -1 and np.ndim(x) == 2 and not kwargs and 0 < x.shape[1] < 64:
            # Along short rows NumPy takes five times as long as over them.
            return ufunc.reduce(np.ascontiguousarray(x.T), 0)
        return reduce(x, axis, **kwargs)

    return call


def _where(condition: Host, *values: PyTree) -> PyTree:
    """`np.where`, which takes thirty times as long if the condition cannot be predicted."""
    is_long = isinstance(condition, np.ndarray) and condition.size > _MANY
    if not is_long or condition.dtype != np.bool_:
        return np.where(condition, *values)
    x, y = values
    dtype = np.result_type(x, y)
    held = np.count_nonzero(condition)
    if held in (0, condition.size):  # mostly, all rows can be used
        shape, chosen = np.broadcast(condition, x, y).shape, x if held else y
        if isinstance(chosen, np.ndarray) and chosen.shape == shape and chosen.dtype == dtype:
            return chosen.copy()
    if dtype.kind not in "biuf":
        return np.where(condition, x, y)
    whole = np.dtype(f"int{8 * dtype.itemsize}")
    a, b = np.asarray(x, dtype).view(whole), np.asarray(y, dtype).view(whole)
    mask = np.negative(condition.view(np.int8)).astype(whole)  # all bits, or none
    return (((a ^ b) & mask) ^ b).view(dtype)


def _sum(x: Host, axis: Axes = None, dtype: DTypeLike | None = None, **kwargs: PyTree) -> Host:
    if np.size(x) > _MANY // 2 and dtype is None and not kwargs and x.dtype.kind == "f":
        last = x.ndim - 1
        if axis in (-1, last, (last,)) and x.shape[last] < 64:
            return np.einsum("...i->...", x)  # along short rows, `add` takes four times as long
    if type(x) is np.ndarray and x.dtype == np.bool_:
        x = x.view(np.int8)  # in half the time
    return np.add.reduce(x, axis, dtype, **kwargs)


def _stack(arrays: Sequence[Host], axis: int = 0) -> Host:
    return np.array(arrays) if axis == 0 else np.stack(arrays, axis)


def _broadcast_to(x: ArrayLike, shape: int | Sequence[int]) -> Host:
    x, shape = np.asarray(x), (shape,) if isinstance(shape, int) else tuple(shape)
    return x if x.shape == shape else np.broadcast_to(x, shape)


def _unstack(x: Host, *, axis: int = 0) -> tuple[Host, ...]:
    return tuple(np.moveaxis(x, axis, 0))


def _stable(function: Callable[..., Host]) -> Callable[..., Host]:
    """A sort of NumPy that keeps the order of equal elements, as those of JAX do."""
    return lambda x, axis=-1, *, stable=True: function(x, axis, stable=stable)


# The functions of `jax.lax` that formulas use.


def _scan(
    f: Callable[..., tuple[PyTree, PyTree]],
    init: PyTree,
    xs: PyTree,
) -> tuple[PyTree, PyTree]:
    leaves, structure = jax.tree.flatten(xs)
    if not len(leaves[0]):  # the output of a row of zeros says which arrays there are
        one = structure.unflatten(x[0] for x in zeros_of_one(leaves))
        return init, jax.tree.map(lambda y: np.asarray(y)[None][:0], f(init, one)[1])
    carry, outputs = init, []
    for row in zip(*leaves, strict=True):
        carry, y = f(carry, structure.unflatten(row))
        outputs.append(y)
    return carry, jax.tree.map(lambda *y: _stack(y), *outputs)


def _map(f: Callable[[PyTree], PyTree], xs: PyTree) -> PyTree:
    return _scan(lambda _, x: (None, f(x)), None, xs)[1]


def _fori_loop(lower: Host, upper: Host, body: Callable[..., R], init: R) -> R:
    for i in range(int(lower), int(upper)):
        init = body(np.int32(i), init)
    return init


def _while_loop(condition: Callable[[R], Host], body: Callable[[R], R], init: R) -> R:
    while condition(init):
        init = body(init)
    return init


def _cond(predicate: Host, true: Callable[..., R], false: Callable[..., R], *operands: object) -> R:
    return true(*operands) if predicate else false(*operands)


def _sort(
    operand: PyTree, dimension: int = -1, num_keys: int = 1, is_stable: bool = True
) -> PyTree:
    if not isinstance(operand, tuple | list):
        return np.sort(operand, dimension, kind="stable")
    # The key that counts most is the last one.
    order = np.lexsort([np.asarray(x) for x in operand[:num_keys]][::-1], axis=dimension)
    if dimension in (-1, order.ndim - 1) and order.size:
        # `take_along_axis` would make these places for each of them.
        starts = np.arange(0, order.size, order.shape[-1])
        place = order + starts.reshape(*order.shape[:-1], 1)
        return type(operand)([np.take(np.asarray(x), place) for x in operand])
    return type(operand)([np.take_along_axis(np.asarray(x), order, dimension) for x in operand])


def _cumulative(function: np.ufunc) -> Callable[..., Host]:
    def call(x: Host, axis: int = 0, reverse: bool = False) -> Host:
        x = np.asarray(x)
        if reverse:
            return np.flip(call(np.flip(x, axis), axis), axis)
        if axis == x.ndim - 1 and 0 < x.shape[axis] <= 32 and x.size > _MANY:
            # Along short rows `accumulate` takes many times as long as over columns.
            out = np.empty(x.shape, x.dtype)
            out[..., 0] = x[..., 0]
            for i in range(1, x.shape[axis]):
                function(out[..., i - 1], x[..., i], out=out[..., i])
            return out
        return function.accumulate(x, axis, x.dtype)

    return call


def _reduce(
    operands: Parts, initial: Parts, function: Callable[[Parts, Parts], Parts], axes: Sequence[int]
) -> Parts:
    """`lax.reduce`, in pairs."""
    axes = tuple(axes)
    front = [np.moveaxis(x, axes, range(len(axes))) for x in operands]
    parts = tuple(x.reshape(-1, *x.shape[len(axes) :]) for x in front)
    while len(parts[0]) > 1:
        half = len(parts[0]) // 2
        rest = tuple(x[2 * half :] for x in parts)
        parts = function(tuple(x[:half] for x in parts), tuple(x[half : 2 * half] for x in parts))
        parts = tuple(np.concatenate(each) for each in zip(parts, rest, strict=True))
    if not len(parts[0]):
        return tuple(np.broadcast_to(e, x.shape[1:]) for e, x in zip(initial, parts, strict=True))
    return tuple(x[0] for x in parts)


def _associative_scan(function: Callable[[Host, Host], Host], x: Host) -> Host:
    return np.stack(list(accumulate(x, function))) if len(x) else x


def _clz(x: Host) -> Host:
    """The leading zeros of unsigned integers of up to 32 bits."""
    x = np.asarray(x)
    return (8 * x.itemsize - np.frexp(x.astype(np.float64))[1]).astype(x.dtype)


def _bitcast_convert_type(x: Host, dtype: DTypeLike) -> Host:
    x, dtype = np.asarray(x), np.dtype(dtype)
    if x.itemsize == dtype.itemsize:
        return x.view(dtype)
    if x.itemsize > dtype.itemsize:
        return np.ascontiguousarray(x[..., None]).view(dtype)
    return np.ascontiguousarray(x).view(dtype)[..., 0]


def _reduce_precision(x: Host, exponent_bits: int, mantissa_bits: int) -> Host:
    # The fraction is from 0.5 to 1. Its highest bit is not one of those that a float stores.
    fraction, exponent = np.frexp(x)
    rounded = np.rint(np.ldexp(fraction, mantissa_bits + 1))  # to even
    return np.ldexp(rounded, exponent - (mantissa_bits + 1))


def _top_k(x: Host, k: int) -> tuple[Host, Host]:
    # The negation of the least integer, and of unsigned integers, wraps; booleans have none.
    descending = ~x if x.dtype.kind in "biu" else -x
    order = np.argsort(descending, -1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, -1), order.astype(np.int32)


def _dynamic_slice_in_dim(x: Host, start: Host, size: int, axis: int = 0) -> Host:
    first = int(np.clip(start, 0, x.shape[axis] - size))
    return x[(slice(None),) * (axis % x.ndim) + (slice(first, first + size),)]


def _dynamic_update_slice_in_dim(x: Host, update: Host, start: Host, axis: int) -> Host:
    out, size = np.array(x), np.shape(update)[axis]
    first = int(np.clip(start, 0, x.shape[axis] - size))
    out[(slice(None),) * (axis % out.ndim) + (slice(first, first + size),)] = update
    return out


def _dynamic_update_index_in_dim(x: Host, update: Host, index: Host, axis: int) -> Host:
    return _dynamic_update_slice_in_dim(x, np.expand_dims(update, axis), index, axis)


def _slice_in_dim(x: Host, start: int, limit: int | None, stride: int = 1, axis: int = 0) -> Host:
    return x[(slice(None),) * (axis % x.ndim) + (slice(start, limit, stride),)]


def _broadcasted_iota(dtype: DTypeLike, shape: tuple[int, ...], dimension: int) -> Host:
    return np.broadcast_to(np.indices(shape, sparse=True)[dimension].astype(dtype), shape)


def _integer_pow(x: Host, power: int) -> Host:
    """Products of squares, in a tenth of the time of a power of NumPy."""
    if power < 2:
        return x**power
    half = _integer_pow(x, power // 2)
    return half * half * x if power % 2 else half * half


def _expand_dims(x: Host, axes: Iterable[int]) -> Host:
    """`np.expand_dims`, without its checks, which take longer than the call."""
    axes, x = tuple(axes), np.asarray(x)
    shape, ndim = list(x.shape), x.ndim + len(axes)
    for axis in sorted([each % ndim for each in axes]):
        shape.insert(axis, 1)
    return x.reshape(shape)


def _of_first(x: R) -> R:
    return x


LAX = {
    "scan": _scan,
    "map": _map,
    "fori_loop": _fori_loop,
    "while_loop": _while_loop,
    "cond": _cond,
    "sort": _sort,
    "cummax": _cumulative(np.maximum),
    "cummin": _cumulative(np.minimum),
    "cumsum": _cumulative(np.add),
    "associative_scan": _associative_scan,
    "reduce": _reduce,
    "clz": _clz,
    "bitcast_convert_type": _bitcast_convert_type,
    "reduce_precision": _reduce_precision,
    "top_k": _top_k,
    "dynamic_slice_in_dim": _dynamic_slice_in_dim,
    "dynamic_update_slice_in_dim": _dynamic_update_slice_in_dim,
    "dynamic_update_index_in_dim": _dynamic_update_index_in_dim,
    "slice_in_dim": _slice_in_dim,
    "broadcasted_iota": _broadcasted_iota,
    "expand_dims": _expand_dims,
    "squeeze": lambda x, axes: np.squeeze(x, tuple(axes)),
    "integer_pow": _integer_pow,
    "dot": _without(np.dot, "precision", "preferred_element_type"),
    "stop_gradient": _of_first,
    "optimization_barrier": _of_first,
}

NUMPY = {
    "argsort": _stable(np.argsort),
    "sort": _stable(np.sort),
    "einsum": _without(np.einsum, "precision", "preferred_element_type"),
    "vecdot": partial(np.einsum, "...i,...i"),  # faster along short rows
    "matmul": _without(np.matmul, "precision", "preferred_element_type"),
    "searchsorted": _without(np.searchsorted, "method"),
    "broadcast_to": _broadcast_to,
    "stack": _stack,
    "unstack": _unstack,
    "max": _extreme(np.maximum),
    "min": _extreme(np.minimum),
    "sum": _sum,
    "where": _where,
    "any": _reduction(np.logical_or),
    "all": _reduction(np.logical_and),
    "nanmean": _nanmean,
    "mean": _mean,
}
