"""Sums and extremes by place: each value goes to an index of a table; other indices are dropped.

On an `Explicit` mesh, all arrays must be replicated. In NumPy, `bincount` and the methods `at` of
functions are many times as fast as what devices need; in programs without float64, sums are split
into parts of which the upper ones are exact.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from datarax._xp import at, lax, on_host, xp
from datarax.numerics.double_float import DoubleFloat, concatenate, has_wide
from datarax.numerics.pairs import two_sum
from datarax.numerics.sums import split_for_sum

_INTO_FLAT = lax.ScatterDimensionNumbers((), (0,), (0,))
_FEW_LABELS = 64
"""Up to this many labels, comparing each with all of them is faster than a scatter."""


def add_at(table: jax.Array, place: jax.Array, weights: jax.Array) -> jax.Array:
    """A table (size,) with `weights` added at the indices `place`."""
    if not on_host(table, place, weights):
        return _add_at(table, place, weights)
    used = ((weights != 0) & (place >= 0) & (place < table.size)).reshape(-1)
    place, weights = place.reshape(-1), weights.reshape(-1)
    if np.count_nonzero(used) < used.size:
        place, weights = place[used], weights[used]
    added: Any = np.array(table)
    np.add.at(added, place, weights.astype(table.dtype))
    return added


@partial(jax.jit, inline=True)
def _add_at(table: jax.Array, place: jax.Array, weights: jax.Array) -> jax.Array:
    ones = xp.ones((), table.dtype) if weights.dtype == xp.bool_ else weights
    place = _beyond_if_zero(place, weights, table.size)
    ones = xp.broadcast_to(ones.reshape(-1) if ones.ndim else ones, place.shape)
    # Unlike `table.at[place]`, it does not look for negative indices.
    return lax.scatter_add(table, place[:, None], ones, _INTO_FLAT, mode="drop")


def scatter_sum(place: jax.Array, weights: jax.Array, shape: tuple[int, ...]) -> DoubleFloat:
    """A table of the sums of float weights: see `scatter_sums`."""
    place = _beyond_if_zero(place, weights, math.prod(shape))
    return scatter_sums(place, [weights.reshape(-1)], shape)[0]


def scatter_sums(
    place: jax.Array,
    columns: Sequence[jax.Array],
    shape: tuple[int, ...],
    tops: Sequence[Any] | None = None,
) -> list[DoubleFloat]:
    """For each of several columns of floats, a table of their sums at flat indices.

    Args:
        place: the indices, (N,); in programs none is negative.
        columns: the values, each (N,).
        shape: the shape of the table.
        tops: the greatest magnitude of each column, if it is known: only programs without float64
            need it, and save a pass.
    """
    size = math.prod(shape)
    if on_host(place, *columns):
        inside = (place >= 0) & (place < size)
        if np.count_nonzero(inside) < inside.size:
            place, *columns = (x[inside] for x in (place, *columns))
        # Without any index, NumPy counts in integers, whatever the weights are.
        sums = [np.bincount(place, x, size).astype(np.float64) for x in columns]
        return [DoubleFloat.of(x).reshape(*shape) for x in sums]
    if not has_wide(columns[0].dtype):
        top = None
        if tops is not None:
            top = xp.stack([xp.asarray(x, columns[0].dtype) for x in tops])[:, None]
        if len(columns) == 1:
            return [_sums_of_parts(place, columns[0][None], size, top).reshape(*shape)]
        found = _sums_of_parts(place, xp.stack(columns), size, top).reshape(len(columns), *shape)
        return [found[i] for i in range(len(columns))]
    rows = _rows(place, size)
    row = xp.arange(place.size, dtype=xp.int32) % rows

    def scattered(x: jax.Array) -> jax.Array:
        # Several rows are summed apart, and then added.
        table = xp.zeros((rows, size, *x.shape[1:]), x.dtype)
        return xp.sum(at(table)[row, place].add(x, mode="drop"), 0)

    if len(columns) == 1:
        return [DoubleFloat.of(columns[0]).map(scattered).reshape(*shape)]
    found = DoubleFloat.of(xp.stack(columns, -1)).map(scattered)
    return [found[:, i].reshape(*shape) for i in range(len(columns))]


def _sums_of_parts(
    place: jax.Array, columns: jax.Array, size: int, top: jax.Array | None
) -> DoubleFloat:
    """In a program without float64, the sum of columns (K, N) at each of `size` indices: (K, size).

    `top` is the greatest magnitude of each column, (K, 1), if it is known.
    """
    # A scatter adds one value at a time, so a large sum would absorb small values. Two remedies:
    # several rows are summed apart, which keeps the sums short; and each value is split into two
    # parts, of which the upper parts add up exactly.
    upper, lower = split_for_sum(columns, (1,), top)
    # One flat scatter, in which each part has tables of its own: on TPUs, updates that are rows of
    # a few numbers are padded to 128 of them.
    parts, rows = xp.concatenate([upper, lower]), _rows(place, size)
    width = rows * size
    table = xp.zeros((parts.shape[0] * width,), parts.dtype)
    first = xp.arange(parts.shape[0], dtype=xp.uint32)[:, None] * width
    row = xp.arange(place.size, dtype=xp.uint32) % rows
    index = first + (row * size + place.astype(xp.uint32))[None]
    index = xp.where((place < size)[None], index, table.size)
    table = lax.scatter_add(table, index.reshape(-1, 1), parts.reshape(-1), _INTO_FLAT, mode="drop")
    sums = xp.sum(table.reshape(2, -1, rows, size), 2)
    return DoubleFloat(*two_sum(sums[0], sums[1]))


def _rows(place: jax.Array, size: int) -> int:
    """In how many tables of `size` numbers the values at these indices are summed apart."""
    return max(1, min(place.size // 64, place.size // max(size, 1)))


def _beyond_if_zero(place: jax.Array, weights: jax.Array, size: int) -> jax.Array:
    """The flat indices; `size`, which is past the end of the table, where the weight is zero."""
    return xp.where(weights.astype(xp.bool_), place, xp.int32(size)).reshape(-1)


def count_at(labels: jax.Array, weights: jax.Array, size: int) -> jax.Array:
    """The sum of the integer weights of each int32 label: (size,).

    A label out of range must have weight zero. If the weights have one axis more than the labels,
    there are several for each label, and as many sums: (size, replicas).
    """
    if weights.ndim > labels.ndim:
        table = xp.zeros((size, weights.shape[-1]), weights.dtype)
        weights = weights.reshape(-1, weights.shape[-1])
        return at(table)[labels.reshape(-1).astype(xp.uint32)].add(weights, mode="drop")
    if on_host(labels, weights):
        labels, weights = labels.reshape(-1), weights.reshape(-1)
        if np.count_nonzero(weights) < weights.size:
            counts = weights != 0
            labels, weights = labels[counts], weights[counts]
        if weights.dtype.itemsize < 8:
            return xp.asarray(np.bincount(labels, weights, size)[:size], weights.dtype)
        total, inside = np.zeros(size, weights.dtype), labels < size
        # `bincount` adds floats, of 53 bits.
        np.add.at(total, labels[inside], weights[inside])
        return xp.asarray(total)
    if size <= _FEW_LABELS:
        same = labels.reshape(-1, 1) == xp.arange(size, dtype=xp.int32)[None, :]
        counted = xp.where(same, weights.reshape(-1, 1), 0)
        return xp.sum(counted, 0, dtype=weights.dtype)
    return add_at(xp.zeros((size,), weights.dtype), labels, weights)


def greatest_at(
    table: jax.Array, place: jax.Array, values: jax.Array, *, negated: bool = False
) -> jax.Array:
    """A table (size,) of maxima, with those of `values` (N,) at the indices `place`.

    With `negated`, of minima.
    """
    if not on_host(table, place, values):
        scatter = lax.scatter_min if negated else lax.scatter_max
        return scatter(table, place[:, None], values, _INTO_FLAT, mode="drop")
    used = (place >= 0) & (place < table.size)
    if np.count_nonzero(used) < used.size:
        place, values = place[used], values[used]
    folded: Any = np.array(table)
    (np.minimum if negated else np.maximum).at(folded, place, values)
    return folded


def as_compared(x: DoubleFloat) -> DoubleFloat:
    """The numbers as `greatest_double_at` takes them: floats where a double-float is two arrays."""
    return x if has_wide(x.dtype) else DoubleFloat.of(x.high)


def _greatest_on_host_at(table: DoubleFloat, place: Any, values: Any) -> DoubleFloat:
    """`greatest_double_at` in NumPy."""
    held, values = map(_number, (table, values))
    folded: Any = np.array(held).reshape(-1)
    place, values = place.T.reshape(-1), values.T.reshape(-1)
    inside = place < folded.size
    if np.count_nonzero(inside) < inside.size:
        place, values = place[inside], values[inside]
    # Of many values, few are greater than all before them.
    some = np.flatnonzero(values > folded[place])
    np.maximum.at(folded, place[some], values[some])
    folded = folded.reshape(table.shape)
    if has_wide(table.dtype):
        return DoubleFloat.of_float64(folded)
    return DoubleFloat(folded, np.where(folded > held, np.zeros((), held.dtype), table.low))


def _number(x: Any) -> Any:
    """Numbers as they are compared: see `as_compared`."""
    if not isinstance(x, DoubleFloat):
        return x
    return x.wide if has_wide(x.dtype) else x.high


def greatest_double_at(table: DoubleFloat, place: jax.Array, values: DoubleFloat) -> DoubleFloat:
    """A table of maxima, with those of double-floats (N, K) at as many flat indices `place`.

    None of these is negative. All numbers are `as_compared`; on the host, `values` may be floats.
    """
    if on_host(table, place, values):
        return _greatest_on_host_at(table, place, values)
    place = place.astype(xp.uint32).reshape(-1)
    if not has_wide(values.dtype):
        before = table.high
        high = at(before.reshape(-1))[place].max(values.high.reshape(-1), mode="drop")
        high = high.reshape(before.shape)
        return DoubleFloat(high, xp.where(high > before, xp.zeros((), high.dtype), table.low))
    # Table and values are one double-float, so that the maximum compares whole numbers and not
    # their parts.
    size = math.prod(table.shape)
    both = concatenate([table.reshape(size), values.reshape(place.size)])

    def folded(number: jax.Array, place: jax.Array) -> jax.Array:
        return at(number[:size])[place].max(number[size:], mode="drop")

    return both.apply(folded, place).reshape(*table.shape)
