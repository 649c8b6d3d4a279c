"""The closed table of merge operations: how accumulated state is made, folded, merged and synced.

A state is a tuple of arrays, its *parts*: one value, the high and low part of a double-float, or
the two limbs of an integer. The table has one record for each operation, and only the record knows
what the parts mean. There is no mean in the table, because means cannot be merged: a mean is stored
as a total and a weight.
"""

from collections.abc import Callable, Hashable
from enum import StrEnum
from functools import lru_cache, wraps
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

import jax
import numpy as np
from jax.typing import DTypeLike

from datarax._checks import x64_enabled
from datarax._typing import PyTree
from datarax._xp import xp
from datarax.distributed.collectives import from_key, to_key
from datarax.numerics.double_float import DoubleFloat, is_one
from datarax.numerics.limbs import (
    Limbs,
    add_limbs,
    double_from_int,
    double_from_limbs,
    limbs_from_int,
    sum_integers,
)
from datarax.numerics.sums import sum_floats

F = TypeVar("F", bound=Callable[..., PyTree])
Parts = tuple[PyTree, ...]


class MetricReduceOp(StrEnum):
    """Says how an accumulator combines values: with new data, when merging, and between devices.

    Example:
        >>> import jax.numpy as jnp
        >>> import datarax
        >>> highest = datarax.MetricAccumulator(-jnp.inf, datarax.MetricReduceOp.max)
        >>> print(highest.update(jnp.array([1.0, 3.0])).value)
        3.0
    """

    sum = "sum"
    max = "max"
    min = "min"


class MergeOp(NamedTuple):
    """One record of the table. Every part has the shape of the accumulator."""

    identity: Callable[[tuple[int, ...], np.dtype], Parts]
    """The parts of the empty state, from a shape and a dtype."""
    pairwise: Callable[[Parts, Parts], Parts]
    """The parts of two states merged."""
    over_axis: Callable[[jax.Array, tuple[int, ...], np.dtype], Parts]
    """The parts of an array reduced over some of its axes."""
    to_mesh: Callable[[Parts], tuple[str, list[jax.Array]]] | None
    """The elementwise collective ("sum" or "max") of integers that merges devices, and its inputs.
    `None` for sums of floats: the order of an all-reduce is not ours to choose."""
    from_mesh: Callable[[list[jax.Array], np.dtype], Parts] | None
    """The merged parts, from the outputs of that collective."""


def merge_op(op: MetricReduceOp, dtype: np.dtype) -> MergeOp:
    """The record for an operation on values of `dtype`, which is a dtype from `state_dtype`."""
    if op is not MetricReduceOp.sum:
        return _TABLE[op]
    if xp.issubdtype(dtype, xp.floating):
        return _TABLE["sum of floats"]
    return _TABLE["sum of integers" if dtype.itemsize < 8 else "sum of 64-bit integers"]


def state_dtype(op: MetricReduceOp, dtype: DTypeLike) -> np.dtype:
    """The dtype in which values of `dtype` are accumulated without stalling or overflowing.

    Floats: float32, or float64 if x64 is enabled and `op` is a sum, or if they are float64 already.
    Sums of integers: int64 if x64 is enabled; else int32, for a 64-bit integer in two limbs.
    Maxima and minima of integers: their own dtype. Booleans: int32.
    """
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    if xp.issubdtype(dtype, xp.floating):
        sums_wide = op is MetricReduceOp.sum and x64_enabled()
        return np.dtype("float64") if sums_wide or dtype.itemsize == 8 else np.dtype("float32")
    if op is MetricReduceOp.sum:
        return np.dtype("int64" if x64_enabled() else "int32")
    return np.dtype("int32") if dtype == np.bool_ else np.dtype(dtype)


def shared(function: F) -> F:
    """A function of hashable arguments whose arrays are the same each time, while any is in use.

    So code can test with `is` whether a state is fresh, however many other ones were made.
    """
    in_use: WeakValueDictionary[Hashable, np.ndarray] = WeakValueDictionary()

    @lru_cache(maxsize=4096)  # saves time; what it drops may still be in use
    def made(*key: Hashable) -> PyTree:
        arrays, structure = jax.tree.flatten(function(*key))
        return structure.unflatten(
            [in_use.setdefault((key, i), array) for i, array in enumerate(arrays)]
        )

    return wraps(function)(made)  # type: ignore[return-value]


@shared
def identity(op: MetricReduceOp, shape: tuple[int, ...], dtype: np.dtype) -> Parts:
    """The parts of the empty state, as read-only NumPy arrays; the same ones each time."""
    parts = merge_op(op, dtype).identity(shape, dtype)
    for part in parts:
        part.flags.writeable = False
    return parts


@shared
def filled(shape: tuple[int, ...], dtype: str, value: float) -> np.ndarray:
    """A read-only array of one value; the same array each time, as with `identity`."""
    array = np.full(shape, value, dtype)
    array.flags.writeable = False
    return array


def zeros(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Read-only zeros; the same array each time."""
    return filled(shape, dtype, 0)


def worst(op: str, dtype: np.dtype) -> np.ndarray:
    """The identity of a maximum or minimum: the lowest or the highest value of the dtype."""
    if xp.issubdtype(dtype, xp.floating):
        return np.asarray(-np.inf if op == "max" else np.inf, dtype)
    return np.asarray(np.iinfo(dtype).min if op == "max" else np.iinfo(dtype).max, dtype)


def _extreme(op: str) -> MergeOp:
    pairwise = xp.maximum if op == "max" else xp.minimum
    reduce = xp.max if op == "max" else xp.min
    return MergeOp(
        identity=lambda shape, dtype: (np.full(shape, worst(op, dtype)),),
        pairwise=lambda a, b: (pairwise(a[0], b[0]),),
        # With `initial`, an array without elements has an extreme: the identity.
        over_axis=lambda x, axes, dtype: (
            reduce(x.astype(dtype), axes, initial=worst(op, dtype)) if axes else x.astype(dtype),
        ),
        to_mesh=lambda parts: ("max", [to_key(parts[0], op)]),
        from_mesh=lambda arrays, dtype: (from_key(arrays[0], dtype, op),),
    )


def _float_over_axis(x: jax.Array, axes: tuple[int, ...], dtype: np.dtype) -> Parts:
    if xp.issubdtype(x.dtype, xp.floating):
        return tuple(sum_floats(x if is_one(x) else x.astype(dtype), axes))
    # Integers are added up as integers, which is exact. Only the result is rounded.
    if not axes and x.dtype.itemsize <= dtype.itemsize:
        return tuple(double_from_int(x, dtype))
    if x.dtype.itemsize == 8:  # the halves, whose sums fit
        mask = xp.asarray(2**32 - 1, x.dtype)
        high, low = (xp.sum(half, axes, dtype=xp.int64) for half in (x >> 32, x & mask))
        return tuple(double_from_int(high, dtype) * 2**32 + double_from_int(low, dtype))
    if dtype.itemsize == 8:
        return tuple(double_from_int(xp.sum(x, axes, dtype=xp.int64), dtype))
    return tuple(double_from_limbs(sum_integers(x, axes)))


def limbs_to_add(limbs: Limbs) -> list[jax.Array]:
    """A 64-bit integer as three of 32 bits, whose sums over up to 2**16 devices do not overflow."""
    high, low = limbs
    # The halves of the low limb are below 2**16. The high limb may wrap, as a 64-bit sum does.
    return [xp.asarray(high), low & xp.uint32(0xFFFF), low >> xp.uint32(16)]


def added_limbs(sums: list[jax.Array]) -> Limbs:
    """The sum of 64-bit integers, from the sums of what `limbs_to_add` gives."""
    high, low, middle = sums
    # 64 bits hold the two halves together, so what the low limb cannot hold goes to the high limb.
    carried = add_limbs(limbs_from_int(low), limbs_from_int(middle, 16))
    return carried[0] + high, carried[1]


_TABLE: dict[str, MergeOp] = {
    # Without x64: the high limb is signed, the low limb unsigned.
    "sum of integers": MergeOp(
        identity=lambda shape, dtype: (np.zeros(shape, np.int32), np.zeros(shape, np.uint32)),
        pairwise=add_limbs,
        over_axis=lambda x, axes, dtype: sum_integers(x, axes),
        to_mesh=lambda parts: ("sum", limbs_to_add(parts)),
        from_mesh=lambda arrays, dtype: added_limbs(arrays),
    ),
    "sum of 64-bit integers": MergeOp(
        identity=lambda shape, dtype: (np.zeros(shape, dtype),),
        pairwise=lambda a, b: (a[0] + b[0],),
        over_axis=lambda x, axes, dtype: (xp.sum(x, axes, dtype=dtype),),
        to_mesh=lambda parts: ("sum", list(parts)),
        from_mesh=lambda arrays, dtype: tuple(arrays),
    ),
    "sum of floats": MergeOp(
        identity=lambda shape, dtype: (np.zeros(shape, dtype), np.zeros(shape, dtype)),
        pairwise=lambda a, b: tuple(DoubleFloat(*a) + DoubleFloat(*b)),
        over_axis=_float_over_axis,
        to_mesh=None,
        from_mesh=None,
    ),
    "max": _extreme("max"),
    "min": _extreme("min"),
}
