"""Sums over runs of consecutive elements, in double-floats."""

import jax
import jax.numpy as jnp
from jax import lax

from datarax.numerics.double_float import DoubleFloat


def run_sums(x: jax.Array | DoubleFloat, first: jax.Array, last: jax.Array) -> DoubleFloat:
    """The sum of each run along the last axis: at its first element, with zero at the others.

    It adds double-floats pairwise. The error is at most 2 units (see `DoubleFloat`) for each
    doubling of the length of the run.

    Args:
        x: floats, or double-floats.
        first: which elements begin a run, of the shape of `x`.
        last: which elements end a run.
    """
    axis, size = x.ndim - 1, x.shape[-1]
    place = lax.broadcasted_iota(jnp.int32, x.shape, axis)
    # The place of the last element of the run that each element is in.
    end = lax.cummin(jnp.where(last, place, size), axis=axis, reverse=True)
    is_run = end >= 0

    def double(k: jax.Array, total: DoubleFloat) -> DoubleFloat:
        # Before round k, each element holds the sum of 2**k elements, at most up to the end of its
        # run. The round adds the sum of the next 2**k.
        step = jnp.int32(1) << k
        is_inside = place + step <= end

        def shifted(part: jax.Array) -> jax.Array:
            padded = jnp.concatenate([part, jnp.zeros_like(part)], -1)
            moved = lax.dynamic_slice_in_dim(padded, step, size, axis)
            return jnp.where(is_inside, moved, 0)

        return total + total.map(shifted)

    rounds = jnp.int32((size - 1).bit_length())
    # The values get the type of the runs, which may vary over more axes of `shard_map`.
    start = DoubleFloat.of(x).map(lambda part: jnp.where(is_run, part, 0))
    total = lax.fori_loop(jnp.int32(0), rounds, double, start)
    return total.map(lambda part: jnp.where(first, part, 0))
