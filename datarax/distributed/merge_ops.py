"""The closed table of merge operations: how accumulated state is made, folded, merged, synced.

A state is a tuple of arrays, its *parts*: a value, the parts of a double-float, or the limbs of an
integer. There is one record for each operation, and no other code knows what the parts mean. There
is deliberately no mean: a mean is a total and a weight.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from datarax._checks import x64_enabled
from datarax.distributed.collectives import from_key, to_key
from datarax.numerics.double_float import DoubleFloat, two_sum
from datarax.numerics.limbs import (
    add_limbs,
    double_from_int,
    double_from_limbs,
    limbs_from_int,
    sum_integers,
)
from datarax.numerics.sums import sum_floats

Parts = tuple[Any, ...]


class MetricReduceOp(StrEnum):
    """What an accumulator does with a new value, another accumulator, and other devices."""

    sum = "sum"
    max = "max"
    min = "min"


class MergeOp(NamedTuple):
    """One row of the table; `parts` are of the accumulator's shape."""

    identity: Callable[[tuple[int, ...], np.dtype], Parts]
    """The parts of no data."""
    pairwise: Callable[[Parts, Parts], Parts]
    """Two states as one."""
    over_axis: Callable[[jax.Array, tuple[int, ...], np.dtype], Parts]
    """The parts of values, reduced over axes of an array."""
    to_mesh: Callable[[Parts], tuple[str, list[jax.Array]]]
    """What to hand to which elementwise collective: "sum", "max" or "min" ..."""
    from_mesh: Callable[[list[jax.Array], np.dtype], Parts]
    """... and the parts from what comes back."""


def merge_op(op: MetricReduceOp, dtype: np.dtype) -> MergeOp:
    """The row for an operation on values of `dtype`, one of `state_dtype`'s."""
    if op is not MetricReduceOp.sum:
        return _TABLE[op.value]
    if jnp.issubdtype(dtype, jnp.floating):
        return _TABLE["sum of floats"]
    return _TABLE["sum of integers" if dtype.itemsize < 8 else "sum of 64-bit integers"]


def state_dtype(op: MetricReduceOp, dtype: Any) -> np.dtype:
    """The dtype in which values of `dtype` are kept: never one that stalls or wraps.

    Floats are kept in float32 at least, integer sums in the widest integer there is (int64, or
    int32 parts that stand for 64 bits), integer extrema in their own dtype, booleans in int32.
    """
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        sums_wide = op is MetricReduceOp.sum and x64_enabled()
        return np.dtype("float64") if sums_wide or dtype.itemsize == 8 else np.dtype("float32")
    if op is MetricReduceOp.sum:
        return np.dtype("int64" if x64_enabled() else "int32")
    return np.dtype("int32") if dtype == np.bool_ else np.dtype(dtype)


@lru_cache(maxsize=4096)
def identity(op: MetricReduceOp, shape: tuple[int, ...], dtype: np.dtype) -> Parts:
    """The parts of no data: the same read-only arrays each time, so that `is` tells fresh state."""
    parts = merge_op(op, dtype).identity(shape, dtype)
    for part in parts:
        part.flags.writeable = False
    return parts


@lru_cache(maxsize=4096)
def zeros(shape: tuple[int, ...], dtype: str) -> Any:
    """Read-only zeros, the same array each time, as `identity`."""
    array = np.zeros(shape, dtype)
    array.flags.writeable = False
    return array


def _parts(x: DoubleFloat) -> Parts:
    return x.high, x.low


def _extreme(op: str) -> MergeOp:
    def worst(dtype: np.dtype) -> Any:
        if jnp.issubdtype(dtype, jnp.floating):
            return -np.inf if op == "max" else np.inf
        return np.iinfo(dtype).min if op == "max" else np.iinfo(dtype).max

    pairwise = jnp.maximum if op == "max" else jnp.minimum
    reduce = jnp.max if op == "max" else jnp.min
    nan_is = "highest" if op == "max" else "lowest"
    return MergeOp(
        identity=lambda shape, dtype: (np.full(shape, worst(dtype), dtype),),
        pairwise=lambda a, b: (pairwise(a[0], b[0]),),
        over_axis=lambda x, axes, dtype: (
            reduce(x.astype(dtype), axes, initial=jnp.asarray(worst(dtype), dtype)),
        ),
        to_mesh=lambda parts: (op, [to_key(parts[0], nan_is)]),
        from_mesh=lambda arrays, dtype: (from_key(arrays[0], dtype),),
    )


def _float_over_axis(x: jax.Array, axes: tuple[int, ...], dtype: np.dtype) -> Parts:
    if jnp.issubdtype(x.dtype, jnp.floating):
        return _parts(sum_floats(x.astype(dtype), axes))
    if not axes and x.dtype.itemsize <= dtype.itemsize:
        return _parts(double_from_int(x, dtype))
    if dtype.itemsize == 8:
        return _parts(double_from_int(jnp.sum(x, axes, dtype=jnp.int64), dtype))
    return _parts(double_from_limbs(sum_integers(x, axes)))


_LOW16 = 0xFFFF


def _limbs_to_mesh(parts: Parts) -> tuple[str, list[jax.Array]]:
    # Sums of 16-bit halves over up to 2**15 devices cannot overflow.
    high, low = parts
    halves = (low & jnp.uint32(_LOW16), low >> jnp.uint32(16))
    return "sum", [high, *(half.astype(jnp.int32) for half in halves)]


def _limbs_from_mesh(arrays: list[jax.Array], dtype: np.dtype) -> Parts:
    high, low, middle = arrays
    carried = add_limbs(limbs_from_int(low), limbs_from_int(middle, 16))
    return carried[0] + high, carried[1]


_CUT = 2.0**16


def _double_to_mesh(parts: Parts) -> tuple[str, list[jax.Array]]:
    # Cut at a place of its own, so that sums of whole numbers do not round on the way: of the upper
    # part to 2**40, of the rest, which is less than 2**16, over hundreds of devices.
    high, low = parts
    cut = jnp.asarray(_CUT, high.dtype)
    upper = jnp.where(jnp.isfinite(high), jnp.round(high / cut) * cut, jnp.zeros_like(high))
    return "sum", [upper, high - upper, low]


def _double_from_mesh(arrays: list[jax.Array], dtype: np.dtype) -> Parts:
    upper, rest, low = arrays
    return _parts(DoubleFloat(*two_sum(upper, rest)) + low)


_TABLE: dict[str, MergeOp] = {
    "sum of integers": MergeOp(
        identity=lambda shape, dtype: (np.zeros(shape, np.int32), np.zeros(shape, np.uint32)),
        pairwise=add_limbs,
        over_axis=lambda x, axes, dtype: sum_integers(x, axes),
        to_mesh=_limbs_to_mesh,
        from_mesh=_limbs_from_mesh,
    ),
    "sum of 64-bit integers": MergeOp(
        identity=lambda shape, dtype: (np.zeros(shape, dtype),),
        pairwise=lambda a, b: (a[0] + b[0],),
        over_axis=lambda x, axes, dtype: (jnp.sum(x, axes, dtype=dtype),),
        to_mesh=lambda parts: ("sum", list(parts)),
        from_mesh=lambda arrays, dtype: tuple(arrays),
    ),
    "sum of floats": MergeOp(
        identity=lambda shape, dtype: (np.zeros(shape, dtype), np.zeros(shape, dtype)),
        pairwise=lambda a, b: _parts(DoubleFloat(*a) + DoubleFloat(*b)),
        over_axis=_float_over_axis,
        to_mesh=_double_to_mesh,
        from_mesh=_double_from_mesh,
    ),
    "max": _extreme("max"),
    "min": _extreme("min"),
}
