"""Sums of floats that do not depend on the order of the additions; sums and maxima over runs.

A run is a range of consecutive elements along the last axis.
"""

import math
from collections.abc import Callable

import jax
import numpy as np

from datarax._typing import PyTree
from datarax._xp import lax, on_host, xp
from datarax.numerics.double_float import DoubleFloat, is_one, split

Add = Callable[[PyTree, PyTree], PyTree]
_BLOCK = 256


def sum_floats(x: jax.Array, axes: tuple[int, ...]) -> DoubleFloat:
    """The sum of floats over `axes`: of float32 values in float64, or as double-floats.

    The error of a plain sum of a thousand equal floats is about five units of 2**-24. It is the
    same in every batch, so it does not average out.

    Values of float64, of which sums of double-floats are slow on CPUs, are split into an upper and
    a lower part: see `split_for_sum`. The sum of the upper parts is exact. Only the sum of the
    lower parts is rounded.
    """
    if is_one(x) or x.dtype == np.float32:
        return DoubleFloat.of(x).sum(axes)
    count = math.prod(x.shape[a] for a in axes)
    if not 1 < count <= 2**20:
        return DoubleFloat.of(xp.sum(x, axes))
    upper, lower = split_for_sum(x, axes)
    return DoubleFloat.of(xp.sum(upper, axes)) + xp.sum(lower, axes)


def sum_doubles(x: DoubleFloat, axes: tuple[int, ...]) -> DoubleFloat:
    """The sum of double-floats over `axes`, as `sum_floats`."""
    if x.is_one or x.dtype == np.float32:
        return x.sum(axes)
    return sum_floats(x.high, axes) + xp.sum(x.low, axes)


def sum_with_rest(x: DoubleFloat, y: jax.Array) -> tuple[DoubleFloat, jax.Array]:
    """`x + y`, and what the two parts of the sum leave out: 0 in a program, whose sum is rounded
    to them."""
    if x.exceeds_parts and on_host(y):
        return in_three_parts(x.wide, y, np.float32(0))
    return x + y, xp.zeros(x.shape, x.dtype)


def in_three_parts(x: PyTree, y: PyTree, z: PyTree) -> tuple[DoubleFloat, PyTree]:
    """The sum of three numbers in float64 as a double-float, and what that leaves out."""
    total = x + y
    # What the sum rounds away: TwoSum of Knuth (1969).
    part = total - x
    error = (x - (total - part)) + (y - part)
    kept = np.add(*split(total), dtype=np.float64)
    rest = np.asarray(total - kept + error + z, np.float32)
    return DoubleFloat.of_float64(np.asarray(kept)), rest  # type: ignore[arg-type]


def split_for_sum(
    x: jax.Array, axes: tuple[int, ...], top: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Splits each value into an upper and a lower part, which add up to it exactly.

    The upper parts are multiples of one unit, and few enough bits long that any sum of them over
    `axes` is exact. So it does not depend on the order. The more values there are, the shorter the
    upper parts: for more than 2**20 values they hold almost nothing.

    `top` is the greatest magnitude over `axes`, kept as axes of length one, if it is known.

    ExtractVector of Rump, Ogita and Oishi (2008), https://doi.org/10.1137/050645671.
    """
    count = math.prod(x.shape[a] for a in axes)
    if top is None:
        top = xp.max(xp.abs(x), axes, keepdims=True, initial=0)
    top = lax.stop_gradient(top)
    # `top` is not broadcast to the shape of `x` here: on a mesh with `Explicit` axes, the result
    # would not have the sharding of `x`.
    top = top * xp.asarray(4 * count, x.dtype)
    fine = xp.isfinite(top)
    upper = xp.where(fine, _round_to_ulp_of(top, x), x)
    return upper, xp.where(fine, x - upper, xp.zeros((), x.dtype))


def _round_to_ulp_of(top: jax.Array, x: jax.Array) -> jax.Array:
    """Rounds `x` to the nearest multiple of the unit in the last place of `top`, which is greater.

    It rounds the bits of `x`. The textbook `(x + top) - top` is not safe if `x` is a product: the
    compiler may compute `x` twice, once rounded and once fused into the sum, and then the two may
    round to different multiples.
    """
    info = xp.finfo(x.dtype)
    bits = xp.dtype(f"uint{info.bits}")
    zero, one, width = (xp.asarray(n, bits) for n in (0, 1, info.nmant))

    def exponent(v: jax.Array) -> jax.Array:
        return lax.bitcast_convert_type(v, bits) << one >> (width + one)

    # How many of the lowest bits of `x` are below the unit. A subnormal has the exponent 1.
    below = exponent(top) - xp.maximum(exponent(x), one)
    # More than `width + 1` bits: `x` is less than half a unit, and rounds to zero. The minimum also
    # covers a difference of unsigned integers that wrapped.
    below = xp.minimum(below, width + one + one)
    cut = xp.minimum(below, width)
    # Add half a unit, then clear the bits below the unit. A carry moves into the exponent.
    nearest = lax.bitcast_convert_type(x, bits) + ((one << below) >> one)
    nearest = xp.where(below > width + one, zero, (nearest >> cut) << cut)
    return lax.bitcast_convert_type(nearest, x.dtype)


def suffix_sums(a: DoubleFloat) -> DoubleFloat:
    """For each element along the last axis, the sum of the element and all after it."""

    def summed(add: Add, x: PyTree) -> PyTree:
        return _suffix_sums_on_host(x) if isinstance(x, np.ndarray) else suffix_scan(x, add)

    return a.computed(summed)


def _suffix_sums_on_host(x: np.ndarray) -> np.ndarray:
    """`suffix_scan` of float64 in NumPy; in the same order of additions."""
    *shape, size = x.shape
    if size <= _BLOCK:
        return _suffix_sums_by_doubling(x)
    blocks = np.zeros((*shape, -(-size // _BLOCK), _BLOCK))
    blocks.reshape(*shape, -1)[..., :size] = x
    sums = np.add.accumulate(blocks[..., ::-1], -1)[..., ::-1]
    sums[..., :-1, :] += _suffix_sums_by_doubling(sums[..., 0])[..., 1:, None]
    return sums.reshape(*shape, -1)[..., :size]


def _suffix_sums_by_doubling(x: np.ndarray) -> np.ndarray:
    sums, step = x.copy(), 1
    while step < x.shape[-1]:
        sums[..., :-step] += sums[..., step:]
        step *= 2
    return sums


def suffix_scan(a: PyTree, add: Add) -> PyTree:
    """For each element along the last axis, the element and all after it, joined by `add`.

    Args:
        a: an array, or a pytree of arrays of one shape.
        add: joins an element and a later one, of arrays of any shape. It must be associative, and
            zeros must be its identity.
    """
    size = jax.tree.leaves(a)[0].shape[-1]
    if size <= _BLOCK:
        return _suffix_scan_by_doubling(a, add)

    def add_row(total: PyTree, row: PyTree) -> tuple[PyTree, PyTree]:
        total = add(row, total)
        return total, total

    # First the suffix sums within each block, for all blocks at once: `rows[i]` holds one element
    # of each block, the last ones first. Then the sum of all later blocks is added.
    rows = jax.tree.map(_rows_from_the_end, a)
    last, rest = (jax.tree.map(lambda x, i=i: x[i], rows) for i in (0, slice(1, None)))
    totals, within = lax.scan(add_row, last, rest)
    after = jax.tree.map(
        lambda x: shifted(x, xp.int32(1))[..., None], _suffix_scan_by_doubling(totals, add)
    )
    joined = jax.tree.map(lambda x, xs: xp.concatenate([x[None], xs]), last, within)
    sums = add(jax.tree.map(lambda x: xp.moveaxis(x[::-1], 0, -1), joined), after)
    return jax.tree.map(lambda x: x.reshape(*x.shape[:-2], -1)[..., :size], sums)


def _rows_from_the_end(x: jax.Array) -> jax.Array:
    """Cuts the last axis into blocks: row i holds the element of each block at i from its end."""
    *shape, size = x.shape
    blocks = -(-size // _BLOCK)
    padding = xp.zeros((*shape, blocks * _BLOCK - size), x.dtype)
    padded = xp.concatenate([x, padding], -1)
    return xp.moveaxis(padded.reshape(*shape, blocks, _BLOCK), -1, 0)[::-1]


def shifted(x: jax.Array, step: jax.Array) -> jax.Array:
    """The elements `step` places later along the last axis; zeros past the end."""
    padded = xp.concatenate([x, xp.zeros_like(x)], -1)
    # Unsigned, because JAX looks for negative indices.
    return lax.dynamic_slice_in_dim(padded, step.astype(xp.uint32), x.shape[-1], x.ndim - 1)


def _suffix_scan_by_doubling(a: PyTree, add: Add) -> PyTree:
    """A suffix scan of a short axis, in about log2(size) rounds."""

    def double(k: jax.Array, total: PyTree) -> PyTree:
        # Before round k, each element holds the sum of 2**k elements. The round adds the sum of the
        # next 2**k. It is a loop, because the compiler would fuse unrolled rounds, and the code
        # would double with each round.
        step = xp.int32(1) << k
        return add(total, jax.tree.map(lambda x: shifted(x, step), total))

    rounds = xp.int32((jax.tree.leaves(a)[0].shape[-1] - 1).bit_length())
    return lax.fori_loop(xp.int32(0), rounds, double, a)


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
        return DoubleFloat.of(x).map(lambda number: _run_sums_on_host(number, first, last))
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

        return total + total.map(lambda part: xp.where(is_inside, shifted(part, step), 0))

    rounds = xp.int32((size - 1).bit_length())
    # The values get the type of the runs, which may vary over more axes of `shard_map`.
    start = DoubleFloat.of(x).map(lambda part: xp.where(is_run, part, 0))
    total = lax.fori_loop(xp.int32(0), rounds, double, start)
    return total.map(lambda part: xp.where(first, part, 0))


def are_lines(first: PyTree) -> bool:
    """True if the places that begin a run are those that begin a line, in NumPy."""
    begins = np.count_nonzero(first)
    some = 0 < begins * first.shape[-1] == first.size
    return some and bool(first[..., 0].all())


def _run_sums_on_host(x: jax.Array, first: jax.Array, last: jax.Array) -> PyTree:
    """`run_sums` in NumPy, of float64. Several elements may begin a run that ends at one place."""
    size = x.shape[-1]
    if are_lines(first) and are_lines(last[..., ::-1]):
        of_lines = np.zeros(x.shape)
        of_lines[..., 0] = xp.sum(x, -1)
        return of_lines
    line = np.arange(size)
    # Without a last element, a run ends with the line.
    ends: PyTree = np.where(last, line, size - 1)
    ends = lax.cummin(ends, ends.ndim - 1, reverse=True)
    sums = np.zeros(x.shape)
    begins = np.flatnonzero(first)
    if not begins.size:
        return sums
    stops = begins + (ends - line).reshape(-1)[begins] + 1
    # Each piece is from one beginning to the next, or to the end of the run. What lies between two
    # runs is every other sum of `reduceat`.
    bounds = np.stack([begins, np.minimum(stops, np.append(begins[1:], stops[-1]))], -1)
    pieces = np.add.reduceat(np.append(x, 0.0), bounds.reshape(-1))[::2]
    # A run is its piece and all later ones up to the same end. They are added in pairs, as on
    # devices. Mostly a run is one piece, and the loop has no rounds.
    left = np.searchsorted(stops, stops, side="right") - np.arange(stops.size)
    for k in range(int(left.max() - 1).bit_length()):
        step = 1 << k
        pieces = pieces + np.where(left > step, np.append(pieces[step:], np.zeros(step)), 0)
    sums.reshape(-1)[begins] = pieces
    return sums


def run_suffix_sums(x: DoubleFloat, last: jax.Array) -> DoubleFloat:
    """For each element, the sum of the element and all after it in its run, along the last axis.

    Args:
        x: the summands.
        last: which elements end a run, of the shape of `x`.
    """
    return x.computed(lambda add, *number: suffix_scan(number, _within_runs(add))[0], last)


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

    def joined(one: PyTree, later: PyTree) -> PyTree:
        (x, ends), (y, later_ends) = one, later
        both = add(x, y)
        return jax.tree.map(lambda x, xy: xp.where(ends, x, xy), x, both), ends | later_ends

    return joined
