"""Sums of floats that do not depend on the order in which a device adds."""

import math

import jax
import jax.numpy as jnp
from jax import lax

from datarax.numerics.double_float import DoubleFloat, two_sum

_BLOCK = 256


def sum_floats(x: jax.Array, axes: tuple[int, ...]) -> DoubleFloat:
    """The sum of floats over `axes`, the same in whatever order they are added.

    A plain sum of a thousand equal floats errs by five units of 2**-24, and by the same in every
    batch. Here the sum of the upper parts is exact, so that only that of the lower parts rounds:
    some `n**2 * 2**-47` of the largest value are lost. Beyond 2**20 values the sum is a plain one.
    """
    count = math.prod(x.shape[a] for a in axes)
    if not 1 < count <= 2**20:
        return DoubleFloat.of(jnp.sum(x, axes))
    upper, lower = split_for_sum(x, axes)
    return DoubleFloat(*two_sum(jnp.sum(upper, axes), jnp.sum(lower, axes)))


def split_for_sum(x: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Each value as two: any sums of the upper parts over `axes` are exact in any order.

    ExtractVector of Rump, Ogita and Oishi (2008), https://doi.org/10.1137/050645671. Beyond 2**20
    values little is left in the upper parts.
    """
    count = math.prod(x.shape[a] for a in axes)
    top = lax.stop_gradient(jnp.max(jnp.abs(x), axes, keepdims=True, initial=0))
    # Not broadcast to `x` here: on an `Explicit` mesh it would not be sharded as `x` is.
    top = top * jnp.asarray(4 * count, x.dtype)
    fine = jnp.isfinite(top)
    upper = jnp.where(fine, _round_to_ulp_of(top, x), x)
    return upper, jnp.where(fine, x - upper, jnp.zeros((), x.dtype))


def _round_to_ulp_of(top: jax.Array, x: jax.Array) -> jax.Array:
    """`x` to the nearest multiple of the unit in the last place of a greater `top`.

    By its bits, as adding `top` and taking it away is not safe where `x` is a product: the compiler
    may evaluate it twice, rounded in one place and fused into the sum in another, and the two may
    fall on different multiples.
    """
    info = jnp.finfo(x.dtype)
    bits = jnp.dtype(f"uint{info.bits}")
    zero, one, width = (jnp.asarray(n, bits) for n in (0, 1, info.nmant))

    def exponent(v: jax.Array) -> jax.Array:
        return lax.bitcast_convert_type(v, bits) << one >> (width + one)

    below = exponent(top) - jnp.maximum(exponent(x), one)
    # Where nothing is left, one more than half a unit: the difference may also have wrapped.
    below = jnp.minimum(below, width + one + one)
    cut = jnp.minimum(below, width)
    nearest = lax.bitcast_convert_type(x, bits) + ((one << below) >> one)
    nearest = jnp.where(below > width + one, zero, (nearest >> cut) << cut)
    return lax.bitcast_convert_type(nearest, x.dtype)


def suffix_sums(a: DoubleFloat) -> DoubleFloat:
    """For each element along the last axis, the sum of it and all after it."""
    a = jax.tree.map(jnp.asarray, a)
    size = a.shape[-1]
    if size <= _BLOCK:
        return _suffix_sums_by_doubling(a)

    def add_row(total: DoubleFloat, row: DoubleFloat) -> tuple[DoubleFloat, DoubleFloat]:
        total = total + row
        return total, total

    # Within each block, all blocks at once; then over the blocks.
    rows = a.map(_rows_from_the_end)
    last, rest = rows[0], rows[1:]
    totals, within = lax.scan(add_row, last, rest)
    after = _suffix_sums_by_doubling(totals).map(lambda x: _shifted(x, jnp.int32(1)))
    joined = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), last, within)
    sums = joined.map(lambda x: jnp.moveaxis(x[::-1], 0, -1)) + after[..., None]
    return sums.map(lambda x: x.reshape(*x.shape[:-2], -1)[..., :size])


def _rows_from_the_end(x: jax.Array) -> jax.Array:
    """The last axis cut into blocks: the last of each block, then the ones before it."""
    *shape, size = x.shape
    blocks = -(-size // _BLOCK)
    padding = jnp.zeros((*shape, blocks * _BLOCK - size), x.dtype)
    padded = jnp.concatenate([x, padding], -1)
    return jnp.moveaxis(padded.reshape(*shape, blocks, _BLOCK), -1, 0)[::-1]


def _shifted(x: jax.Array, step: jax.Array) -> jax.Array:
    padded = jnp.concatenate([x, jnp.zeros_like(x)], -1)
    return lax.dynamic_slice_in_dim(padded, step, x.shape[-1], x.ndim - 1)


def _suffix_sums_by_doubling(a: DoubleFloat) -> DoubleFloat:
    """Suffix sums in as many rounds as the size has bits."""

    def double(k: jax.Array, total: DoubleFloat) -> DoubleFloat:
        # Each holds the sum of 2**k: one more round adds those of the 2**k after them. A loop, so
        # that the compiler does not fuse the rounds, whose code would double with each.
        step = jnp.int32(1) << k
        return total + total.map(lambda x: _shifted(x, step))

    rounds = jnp.int32((a.shape[-1] - 1).bit_length())
    return lax.fori_loop(jnp.int32(0), rounds, double, a)
