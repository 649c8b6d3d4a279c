"""Arithmetic that does not drift: pairs of floats, and 64-bit integers in two 32-bit words.

A *pair* `(high, low)` is an unevaluated sum of two floats of one dtype, `|low| <= ulp(high) / 2`:
about 48 significant bits from float32. A *wide* integer is `(high: int32, low: uint32)`, two's
complement. Both are plain tuples of arrays of equal shape, so everything here vectorises.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

Pair = tuple[jax.Array, jax.Array]
Wide = tuple[jax.Array, jax.Array]


def two_sum(a: jax.Array, b: jax.Array) -> Pair:
    """`a + b` rounded, and the rounding error, exactly (Knuth); the error of infinities is 0."""
    s = a + b
    v = s - a
    e = (a - (s - v)) + (b - v)
    return s, jnp.where(jnp.isfinite(s), e, jnp.zeros((), e.dtype))


def pair_add(a: Pair, b: Pair) -> Pair:
    """The sum of two pairs, to about one part in 2**46 of their magnitudes; commutative."""
    s, e = two_sum(a[0], b[0])
    t, f = two_sum(a[1], b[1])
    s, e = two_sum(s, e + t)
    return two_sum(s, e + f)


def pair_scale(a: Pair, factor: jax.Array) -> Pair:
    """A pair times a float."""
    p, e = two_product(a[0], factor)
    return two_sum(p, e + a[1] * factor)


def pair_product(a: Pair, b: Pair) -> Pair:
    """The product of two pairs, to about one part in 2**46."""
    p, e = two_product(a[0], b[0])
    return two_sum(p, e + (a[0] * b[1] + a[1] * b[0]))


def two_product(a: jax.Array, b: jax.Array) -> Pair:
    """`a * b` rounded, and the rounding error (Dekker: no fused multiply-add is assumed)."""
    p = a * b
    ah, al = _split(a)
    bh, bl = _split(b)
    e = ((ah * bh - p) + ah * bl + al * bh) + al * bl
    return p, jnp.where(jnp.isfinite(p) & jnp.isfinite(e), e, jnp.zeros((), e.dtype))


def _split(a: jax.Array) -> Pair:
    # The upper half of the significand by masking bits: unlike Veltkamp's product it cannot
    # overflow, and no compiler may simplify it.
    bits = jnp.dtype(f"uint{8 * a.dtype.itemsize}")
    keep = {4: 0xFFFFF000, 8: 0xFFFFFFFFF8000000}[a.dtype.itemsize]
    masked = lax.bitcast_convert_type(a, bits) & jnp.asarray(keep, bits)
    high = lax.bitcast_convert_type(masked, a.dtype)
    return high, a - high


def pair_divide(a: Pair, b: Pair) -> jax.Array:
    """`a / b`, within a whisker of the nearest float; NaN where `b` is zero."""
    a, b = jax.tree.map(jnp.asarray, (a, b))
    some = b[0] != 0
    divisor = jnp.where(some, b[0], jnp.ones((), b[0].dtype))
    q = a[0] / divisor
    p, e = two_product(q, divisor)
    rest = ((a[0] - p) - e) + (a[1] - q * b[1])
    refined = q + rest / divisor
    refined = jnp.where(jnp.isfinite(refined), refined, q)
    return jnp.where(some, refined, jnp.asarray(jnp.nan, q.dtype))


_BLOCKS = 256


def pair_sum(a: Pair, axis: int = -1) -> Pair:
    """The sum of pairs over an axis, the last by default, as one pair."""
    a = jax.tree.map(jnp.asarray, a)
    zero = jnp.zeros((), a[0].dtype)
    return lax.reduce(a, (zero, zero), pair_add, (axis % a[0].ndim,))


def pair_suffix_sums(a: Pair) -> Pair:
    """For each pair along the last axis, the sum of it and all after it."""
    a = jax.tree.map(jnp.asarray, a)
    size = a[0].shape[-1]
    if size <= _BLOCKS:
        return _doubled(a)

    def add_row(total: Pair, row: Pair) -> tuple[Pair, Pair]:
        total = pair_add(total, row)
        return total, total

    # Within each stretch of the axis, all stretches at once; then over the stretches.
    last, rest = _blocks(a, reverse=True)
    totals, within = lax.scan(add_row, last, rest)
    after = jax.tree.map(lambda x: _shifted(x, jnp.int32(1)), _doubled(totals))

    def joined(last: jax.Array, rest: jax.Array) -> jax.Array:
        rows = jnp.concatenate([last[None], rest])[::-1]
        return jnp.moveaxis(rows, 0, -1)

    sums = tuple(map(joined, last, within))
    wide = tuple(jnp.broadcast_to(x[..., None], sums[0].shape) for x in after)
    high, low = (x.reshape(*x.shape[:-2], -1)[..., :size] for x in pair_add(sums, wide))  # type: ignore[arg-type]
    return high, low


def _blocks(a: Pair, *, reverse: bool = False) -> tuple[Pair, Pair]:
    """The last axis cut into stretches: the first of each, and the others along a leading axis."""
    shape = a[0].shape
    stretches = -(-shape[-1] // _BLOCKS)

    def cut(x: jax.Array) -> jax.Array:
        padding = jnp.zeros((*shape[:-1], stretches * _BLOCKS - shape[-1]), x.dtype)
        padded = jnp.concatenate([x, padding], -1)
        rows = jnp.moveaxis(padded.reshape(*shape[:-1], stretches, _BLOCKS), -1, 0)
        return rows[::-1] if reverse else rows

    high, low = cut(a[0]), cut(a[1])
    return (high[0], low[0]), (high[1:], low[1:])


def _shifted(x: jax.Array, step: jax.Array) -> jax.Array:
    padded = jnp.concatenate([x, jnp.zeros_like(x)], -1)
    return lax.dynamic_slice_in_dim(padded, step, x.shape[-1], x.ndim - 1)


def _doubled(a: Pair) -> Pair:
    """The sums of each and all after it, in as many rounds as the size has bits."""

    def double(k: jax.Array, total: Pair) -> Pair:
        # Each holds the sum of 2**k: one more round adds those of the 2**k after them. A loop, so
        # that the compiler does not fuse the rounds, whose code would double with each.
        step = jnp.int32(1) << k
        return pair_add(total, (_shifted(total[0], step), _shifted(total[1], step)))

    rounds = jnp.int32((a[0].shape[-1] - 1).bit_length())
    return lax.fori_loop(jnp.int32(0), rounds, double, a)


def float_sum(x: jax.Array, axes: tuple[int, ...]) -> Pair:
    """The sum of floats over `axes` as a pair, in whatever order they are added.

    A plain sum of a thousand equal floats errs by five units of 2**-24, and by the same in every
    batch. Here the sum of the upper parts is exact, so that only that of the lower parts rounds:
    some `n**2 * 2**-47` of the largest value are lost. Beyond 2**20 values the sum is a plain one.
    """
    count = math.prod(x.shape[a] for a in axes)
    if not 1 < count <= 2**20:
        total = jnp.sum(x, axes)
        return total, jnp.zeros(total.shape, x.dtype)
    upper, lower = cut_for_sum(x, axes)
    return two_sum(jnp.sum(upper, axes), jnp.sum(lower, axes))


def cut_for_sum(x: jax.Array, axes: tuple[int, ...]) -> Pair:
    """Each value as two: any sums of the upper parts over `axes` are exact in any order.

    The cut is ExtractVector of Rump, Ogita and Oishi (2008), https://doi.org/10.1137/050645671.
    Beyond 2**20 values little is left above it.
    """
    count = math.prod(x.shape[a] for a in axes)
    top = lax.stop_gradient(jnp.max(jnp.abs(x), axes, keepdims=True, initial=0))
    # By adding zeros, which take the sharding of an `Explicit` mesh along.
    top = top * jnp.asarray(4 * count, x.dtype) + jnp.zeros_like(x)
    fine = jnp.isfinite(top)
    upper = jnp.where(fine, _round_to_unit_of(top, x), x)
    return upper, jnp.where(fine, x - upper, jnp.zeros((), x.dtype))


def _round_to_unit_of(top: jax.Array, x: jax.Array) -> jax.Array:
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


def pair_from_int(x: jax.Array, dtype: jnp.dtype) -> Pair:
    """An integer of up to 32 bits (64 for float64 pairs), exactly."""
    if x.dtype == jnp.bool_ or jnp.iinfo(x.dtype).bits < jnp.finfo(dtype).nmant:
        return x.astype(dtype), jnp.zeros(x.shape, dtype)
    half = jnp.iinfo(x.dtype).bits // 2
    low = x & jnp.asarray((1 << half) - 1, x.dtype)
    # Both halves are exact, so their two_sum is.
    return two_sum((x - low).astype(dtype), low.astype(dtype))


def wide_add(a: Wide, b: Wide) -> Wide:
    """The sum of two wide integers, modulo 2**64."""
    low = a[1] + b[1]
    carry = (low < a[1]).astype(jnp.int32)
    return a[0] + b[0] + carry, low


def wide_negative(a: Wide) -> Wide:
    """The negation of a wide integer."""
    low = ~a[1] + jnp.uint32(1)
    return ~a[0] + (low == 0).astype(jnp.int32), low


def wide_from_int(x: jax.Array, shift: int = 0) -> Wide:
    """An integer of up to 32 bits times `2**shift`, for a shift from 0 to 31."""
    if x.dtype == jnp.uint32:
        low, high = x, jnp.zeros(x.shape, jnp.int32)
        return (high, low) if not shift else ((x >> (32 - shift)).astype(jnp.int32), x << shift)
    x = x.astype(jnp.int32)
    return x >> min(31, 32 - shift), x.astype(jnp.uint32) << shift


def wide_sum(x: jax.Array, axes: tuple[int, ...]) -> Wide:
    """The exact sum of integers or booleans over `axes`.

    The values are cut into parts of so few bits that the int32 sum of each part cannot overflow:
    no part of the reduction needs more than 32 bits, whatever the values.
    """
    if x.dtype.itemsize == 8:  # x64 was enabled after the accumulator was made
        low = wide_sum((x & jnp.asarray(0xFFFFFFFF, x.dtype)).astype(jnp.uint32), axes)
        high = wide_sum((x >> jnp.asarray(32, x.dtype)).astype(jnp.int32), axes)
        return low[0] + high[1].astype(jnp.int32), low[1]
    count = math.prod(x.shape[a] for a in axes)
    bits = 31 - max(count - 1, 0).bit_length()
    if bits < 1:
        raise OverflowError(f"more than 2**30 integers in one reduction: {count}; fold it in parts")
    if x.dtype == jnp.bool_:
        return wide_from_int(jnp.sum(x, axes, dtype=jnp.int32))
    width = jnp.iinfo(x.dtype).bits
    x = x.astype(jnp.uint32 if jnp.issubdtype(x.dtype, jnp.unsignedinteger) else jnp.int32)
    shape = tuple(n for a, n in enumerate(x.shape) if a not in axes)
    total = jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.uint32)
    for shift in range(0, width, bits):
        part = x >> jnp.asarray(shift, x.dtype)
        if shift + bits < width:  # all but the top part, which carries the sign
            part = part & jnp.asarray((1 << bits) - 1, x.dtype)
        total = wide_add(total, wide_from_int(jnp.sum(part.astype(jnp.int32), axes), shift))
    return total


def wide_to_pair(a: Wide) -> Pair:
    """A wide integer as a pair of float32: to 48 bits, exact below 2**48."""
    high, low = a
    negative = high < 0
    flipped = wide_negative(a)
    high, low = jnp.where(negative, flipped[0], high), jnp.where(negative, flipped[1], low)
    sign = jnp.where(negative, jnp.float32(-1), jnp.float32(1))
    top = pair_from_int(high.astype(jnp.uint32), jnp.dtype(jnp.float32))
    scale = jnp.float32(2.0**32)
    s = pair_add((top[0] * scale, top[1] * scale), pair_from_int(low, jnp.dtype(jnp.float32)))
    return s[0] * sign, s[1] * sign
