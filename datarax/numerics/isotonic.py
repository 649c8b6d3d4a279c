"""Isotonic regression of the shares of positives in ordered groups."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.custom_batching import sequential_vmap

from datarax._xp import at, lax, on_host, xp
from datarax.numerics.double_float import DoubleFloat, stack, where


class Blocks(NamedTuple):
    """Runs of groups that share one fitted value, in ascending order; arrays of shape (n,).

    There are at most as many blocks as groups. What is after the last block is empty.
    """

    positives: DoubleFloat
    """The weight of the positives of each block."""
    negatives: DoubleFloat
    """The weight of the negatives of each block."""
    first: jax.Array
    """The index of the first group of each block, int32; n after the last block."""


def isotonic_blocks(positives: DoubleFloat, negatives: DoubleFloat) -> Blocks:
    """Pools adjacent groups until the share of positives strictly rises from block to block.

    The shares are then the non-decreasing function of the group with the least mean squared error,
    and with the least log loss. Groups without weight belong to no block. The steps are linear in
    the number of groups that have weight.

    M. Ayer and others (1955), An empirical distribution function for sampling with incomplete
    information, https://doi.org/10.1214/aoms/1177728423.

    Args:
        positives: the weight of the positives of each group, of shape (n,).
        negatives: that of the negatives.

    Example:
        >>> import numpy as np
        >>> from datarax.numerics.double_float import DoubleFloat
        >>> from datarax.numerics.isotonic import isotonic_blocks
        >>> positives, negatives = (DoubleFloat.of(np.float32(x)) for x in ([0, 2, 1], [1, 1, 1]))
        >>> blocks = isotonic_blocks(positives, negatives)
        >>> print(blocks.positives.to_float(), blocks.negatives.to_float(), blocks.first)
        [0. 3. 0.] [1. 2. 0.] [0 1 3]
    """
    if on_host(positives, negatives):
        return _pooled_on_host(*(np.asarray(x.to_float()) for x in (positives, negatives)))
    p, low_p, n, low_n, first = _pooled(*positives, *negatives)
    return Blocks(DoubleFloat(p, low_p), DoubleFloat(n, low_n), first)


def _pooled_on_host(positives: np.ndarray, negatives: np.ndarray) -> Blocks:
    """The blocks by a stack of lists, whose steps take a tenth of those of arrays."""
    size = len(positives)
    used = np.flatnonzero((positives > 0) | (negatives > 0))
    p: list[float] = []
    n: list[float] = []
    first: list[int] = []
    groups = (x.tolist() for x in (positives[used], negatives[used], used))
    for a, b, start in zip(*groups, strict=True):
        # The share of the last block is not below that of this one.
        while p and p[-1] * b >= a * n[-1]:
            a, b, start = a + p.pop(), b + n.pop(), first.pop()
        p.append(a)
        n.append(b)
        first.append(start)
    filled = (0, size - len(p))
    a, b = (DoubleFloat.of(np.pad(np.asarray(x, positives.dtype), filled)) for x in (p, n))
    return Blocks(a, b, xp.pad(np.asarray(first, np.int32), filled, constant_values=size))


@sequential_vmap
def _pooled(
    p: jax.Array, low_p: jax.Array, n: jax.Array, low_n: jax.Array
) -> tuple[jax.Array, ...]:
    """The same in a loop of a program. The stack is in the arrays of the groups that it has read.

    Only single elements are joined to double-floats, so that no step touches a whole array. Several
    regressions are computed one after the other: in one loop, a step would copy all arrays, because
    some may have come to their end.

    Args:
        p: the high parts of the positives.
        low_p: their low parts.
        n: the high parts of the negatives.
        low_n: their low parts.

    Returns:
        The parts of the positives and of the negatives of each block, and its first group.
    """
    size = p.shape[0]
    used = (p > 0) | (n > 0)
    place = xp.where(used, xp.cumsum(used, dtype=xp.int32) - 1, size).astype(xp.uint32)
    number = xp.sum(used, dtype=xp.int32)

    def to_front(x: jax.Array) -> jax.Array:
        return at(xp.zeros_like(x))[place].set(x)

    both = tuple(map(to_front, (p, low_p, n, low_n)))
    index = to_front(xp.arange(size, dtype=xp.int32) + number * 0)

    def read(table: Sequence[jax.Array], i: jax.Array) -> DoubleFloat:
        """Positives and negatives of a place, (2,); an index below 0 gives any."""
        i = xp.maximum(i, 0).astype(xp.uint32)
        p, low_p, n, low_n = (x[i] for x in table)
        return stack([DoubleFloat(p, low_p), DoubleFloat(n, low_n)])

    def step(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        i, top, pools, first, *table = carry
        last, before = read(table, top - 1), read(table, top - 2)
        block = where(pools, before + last, read(table, i))
        to = xp.where(pools, top - 2, top)
        write, begin = to.astype(xp.uint32), xp.minimum(i, size - 1).astype(xp.uint32)
        first = at(first)[write].set(xp.where(pools, first[write], index[begin]))
        (p, n), (low_p, low_n) = block
        table = [at(x)[write].set(y) for x, y in zip(table, (p, low_p, n, low_n), strict=True)]
        below = read(table, to - 1)
        pools_now = (to > 0) & (below[0] * block[1] >= block[0] * below[1])
        return xp.where(pools, i, i + 1), to + 1, pools_now, first, *table

    # Zeros are computed from the data, so that inside `shard_map` they vary over the same axes.
    zero = number * 0
    start = (zero, zero, zero > 0, index, *both)
    _, top, _, first, *table = lax.while_loop(
        lambda carry: (carry[0] < number) | carry[2], step, start
    )
    is_block = xp.arange(size, dtype=xp.int32) < top
    parts = (xp.where(is_block, x, 0) for x in table)
    return *parts, xp.where(is_block, first, xp.int32(size))
