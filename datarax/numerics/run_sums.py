"""Sums and maxima over runs of consecutive elements."""

from typing import Any

import jax
import numpy as np

from datarax._xp import lax, on_host, xp
from datarax.numerics.double_float import DoubleFloat, is_one
from datarax.numerics.sums import Add, suffix_scan


def run_sums(x: jax.Array | DoubleFloat, first: jax.Array, last: jax.Array) -> DoubleFloat:
    """The sum of each run along the last axis: at its first element, with zero at the others.

    It adds double-floats pairwise. The error is at most 2 units (see `DoubleFloat`) for each
    doubling of the length of the run.

    Args:
        x: floats, or double-floats.
        first: which elements begin a run, of the shape of `x`.
        last: which elements end a run.
    """
    if on_host(x, first, last) and is_one(x):
        return DoubleFloat.of(x).map(lambda number: _on_host(number, first, last))
    axis, size = x.ndim - 1, x.shape[-1]
    place = lax.broadcasted_iota(xp.int32, x.shape, axis)
    # The place of the last element of the run that each element is in.
    end = lax.cummin(xp.where(last, place, size), axis=axis, reverse=True)
    is_run = end >= 0

    def double(k: jax.Array, total: DoubleFloat) -> DoubleFloat:
        # Before round k, each element holds the sum of 2**k elements, at most up to the end of its
        # run. The round adds the sum of the next 2**k.
        step = xp.int32(1) << k
        is_inside = place + step <= end

        def shifted(part: jax.Array) -> jax.Array:
            padded = xp.concatenate([part, xp.zeros_like(part)], -1)
            moved = lax.dynamic_slice_in_dim(padded, step, size, axis)
            return xp.where(is_inside, moved, 0)

        return total + total.map(shifted)

    rounds = xp.int32((size - 1).bit_length())
    # The values get the type of the runs, which may vary over more axes of `shard_map`.
    start = DoubleFloat.of(x).map(lambda part: xp.where(is_run, part, 0))
    total = lax.fori_loop(xp.int32(0), rounds, double, start)
    return total.map(lambda part: xp.where(first, part, 0))


def _on_host(x: Any, first: Any, last: Any) -> Any:
    """`run_sums` in NumPy, of float64."""
    size = x.shape[-1]
    line = np.arange(size)
    ends = np.where(last, line, size - 1)  # without a last element, a run ends with the line
    ends = np.minimum.accumulate(ends[..., ::-1], -1)[..., ::-1]
    sums = np.zeros(x.shape)
    begins = np.flatnonzero(first)
    # The bounds of each run, one after the other: every other sum is that of a run.
    stops = begins + (ends - line).reshape(-1)[begins] + 1
    bounds = np.stack([begins, stops], -1).reshape(-1)
    if bounds.size:
        sums.reshape(-1)[begins] = np.add.reduceat(np.append(x, 0.0), bounds)[::2]
    return sums


def run_suffix_sums(x: DoubleFloat, last: jax.Array) -> DoubleFloat:
    """For each element, the sum of the element and all after it in its run, along the last axis.

    Args:
        x: the summands.
        last: which elements end a run, of the shape of `x`.
    """
    return x.computed(lambda number, add: suffix_scan((number, last), _within_runs(add))[0])


def run_prefix_maxima(x: jax.Array, first: jax.Array) -> jax.Array:
    """For each element, the maximum of the element and all before it in its run.

    Args:
        x: numbers that are not negative.
        first: which elements begin a run, of the shape of `x`.
    """
    backwards = x[..., ::-1], first[..., ::-1]
    return suffix_scan(backwards, _within_runs(xp.maximum))[0][..., ::-1]


def _within_runs(add: Add) -> Add:
    """Joins elements, each with the mark of the last of its run, up to the first mark."""

    def joined(one: Any, later: Any) -> Any:
        (x, ends), (y, later_ends) = one, later
        both = add(x, y)
        return jax.tree.map(lambda x, xy: xp.where(ends, x, xy), x, both), ends | later_ends

    return joined
