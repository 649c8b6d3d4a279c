"""Sums of runs of consecutive elements, in double-floats."""

import jax
import jax.numpy as jnp
from jax import lax

from datarax.numerics.double_float import DoubleFloat


def run_sums(x: jax.Array, first: jax.Array, last: jax.Array) -> DoubleFloat:
    """The sum of each run along the last axis at its first element, and zero at the others.

    Within 2 units for each doubling of the longest run: it adds double-floats pairwise.

    Args:
        x: floats.
        first: which elements begin a run, of the shape of `x`.
        last: which elements end a run.
    """
    axis, size = x.ndim - 1, x.shape[-1]
    place = lax.broadcasted_iota(jnp.int32, x.shape, axis)
    end = lax.cummin(jnp.where(last, place, size), axis=axis, reverse=True)

    def double(k: jax.Array, total: DoubleFloat) -> DoubleFloat:
        # Each element holds the sum of 2**k, up to the end of its run; a round adds the next 2**k.
        step = jnp.int32(1) << k
        is_inside = place + step <= end

        def shifted(part: jax.Array) -> jax.Array:
            padded = jnp.concatenate([part, jnp.zeros_like(part)], -1)
            moved = lax.dynamic_slice_in_dim(padded, step, size, axis)
            return jnp.where(is_inside, moved, 0)

        return total + total.map(shifted)

    rounds = jnp.int32((size - 1).bit_length())
    total = lax.fori_loop(jnp.int32(0), rounds, double, DoubleFloat.of(x))
    return total.map(lambda part: jnp.where(first, part, 0))
