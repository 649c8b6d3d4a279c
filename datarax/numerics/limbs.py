"""64-bit integers in two 32-bit limbs, for JAX without 64-bit types.

An integer is a tuple `(high, low)` of int32 and uint32 arrays of equal shape, in two's complement:
its value is `high * 2**32 + low`.
"""

import math

import jax
import jax.numpy as jnp

from datarax.numerics.double_float import DoubleFloat, two_sum

Limbs = tuple[jax.Array, jax.Array]


def add_limbs(a: Limbs, b: Limbs) -> Limbs:
    """The sum of two integers, modulo 2**64."""
    low = a[1] + b[1]
    carry = (low < a[1]).astype(jnp.int32)  # the sum of the low limbs wrapped
    return a[0] + b[0] + carry, low


def negate_limbs(a: Limbs) -> Limbs:
    """The negation of an integer: its complement plus one."""
    low = ~a[1] + jnp.uint32(1)
    return ~a[0] + (low == 0).astype(jnp.int32), low


def limbs_from_int(x: jax.Array, shift: int = 0) -> Limbs:
    """An integer of up to 32 bits times `2**shift`, for a shift from 0 to 31."""
    if x.dtype == jnp.uint32:
        low, high = x, jnp.zeros(x.shape, jnp.int32)
        return (high, low) if not shift else ((x >> (32 - shift)).astype(jnp.int32), x << shift)
    x = x.astype(jnp.int32)
    return x >> min(31, 32 - shift), x.astype(jnp.uint32) << shift


def sum_integers(x: jax.Array, axes: tuple[int, ...]) -> Limbs:
    """The exact sum of integers or booleans over `axes`.

    Each value is cut into parts of a few bits. The parts are so short that their int32 sums cannot
    overflow. The sums are shifted back, and added as limbs.
    """
    if x.dtype.itemsize == 8:  # x64 was enabled after the accumulator was made
        low = sum_integers((x & jnp.asarray(0xFFFFFFFF, x.dtype)).astype(jnp.uint32), axes)
        high = sum_integers((x >> jnp.asarray(32, x.dtype)).astype(jnp.int32), axes)
        return low[0] + high[1].astype(jnp.int32), low[1]
    count = math.prod(x.shape[a] for a in axes)
    # The length of a part: `count` values below 2**bits have a sum of at most 2**31 - 1.
    bits = 31 - max(count - 1, 0).bit_length()
    if bits < 1:
        raise OverflowError(f"more than 2**30 integers in one reduction: {count}; fold it in parts")
    if x.dtype == jnp.bool_:
        return limbs_from_int(jnp.sum(x, axes, dtype=jnp.int32))
    width = jnp.iinfo(x.dtype).bits
    x = x.astype(jnp.uint32 if jnp.issubdtype(x.dtype, jnp.unsignedinteger) else jnp.int32)
    shape = tuple(n for a, n in enumerate(x.shape) if a not in axes)
    total = jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.uint32)
    for shift in range(0, width, bits):
        part = x >> jnp.asarray(shift, x.dtype)
        if shift + bits < width:  # all but the top part, which carries the sign
            part = part & jnp.asarray((1 << bits) - 1, x.dtype)
        total = add_limbs(total, limbs_from_int(jnp.sum(part.astype(jnp.int32), axes), shift))
    return total


def sum_products(x: jax.Array, w: jax.Array, axes: tuple[int, ...]) -> Limbs:
    """The exact sum of `x * w` over `axes`: integers of up to 32 bits, `w` not negative.

    Both are cut into halves of 16 bits, whose products fit 32 bits.
    """
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    x, w = x.astype(jnp.int32 if signed else jnp.uint32), w.astype(jnp.uint32)
    x_low = x.astype(jnp.uint32) & jnp.uint32(0xFFFF)
    x_high = x >> jnp.asarray(16, x.dtype)  # signed where `x` is
    w_low, w_high = w & jnp.uint32(0xFFFF), w >> jnp.uint32(16)
    total = sum_integers(x_low * w_low, axes)
    for product in (x_low * w_high, x_high * w_low.astype(x.dtype)):
        high, low = sum_integers(product, axes)
        shifted = (high << 16) | (low >> 16).astype(jnp.int32), low << 16
        total = add_limbs(total, shifted)
    top = sum_integers(x_high * w_high.astype(x.dtype), axes)[1].astype(jnp.int32)
    return total[0] + top, total[1]


def double_from_int(x: jax.Array, dtype: jnp.dtype) -> DoubleFloat:
    """An integer of up to 32 bits (64 for float64 parts) as a double-float, exactly."""
    if x.dtype == jnp.bool_ or jnp.iinfo(x.dtype).bits < jnp.finfo(dtype).nmant:
        return DoubleFloat.of(x.astype(dtype))
    half = jnp.iinfo(x.dtype).bits // 2
    low = x & jnp.asarray((1 << half) - 1, x.dtype)
    # Both halves are exact as floats, so the result of two_sum is exact.
    return DoubleFloat(*two_sum((x - low).astype(dtype), low.astype(dtype)))


def is_wide(x: jax.Array) -> bool:
    """Whether an array holds integers that the default float dtype may round."""
    if x.dtype == jnp.bool_ or not jnp.issubdtype(x.dtype, jnp.integer):
        return False
    return jnp.iinfo(x.dtype).bits > jnp.finfo(jax.dtypes.canonicalize_dtype(float)).nmant + 1


def as_double(x: jax.Array) -> DoubleFloat:
    """Numbers as double-floats of the default float dtype; integers are not rounded."""
    dtype = jax.dtypes.canonicalize_dtype(float)
    return double_from_int(x, dtype) if is_wide(x) else DoubleFloat.of(x.astype(dtype))


def float_or_double(x: jax.Array) -> jax.Array | DoubleFloat:
    """Numbers in the default float dtype; as double-floats if they are integers it may round."""
    double = as_double(x)
    return double if is_wide(x) else double.high


def float_parts(x: jax.Array) -> tuple[jax.Array, ...]:
    """One or two float arrays that add up to `x`; two for integers that a float may round."""
    double = as_double(x)
    return tuple(double) if is_wide(x) else (double.high,)


def difference(x: jax.Array, y: jax.Array) -> jax.Array:
    """`x - y` as floats, rounded once, also of integers that a float would round."""
    a, b = as_double(x), as_double(y)
    return (a - b).to_float() if is_wide(x) or is_wide(y) else a.high - b.high


def double_from_limbs(a: Limbs) -> DoubleFloat:
    """An integer in limbs as a double-float of float32 parts: exact below 2**48, then rounded."""
    high, low = a
    # Convert the absolute value, whose limbs are both unsigned, and then apply the sign.
    negative = high < 0
    flipped = negate_limbs(a)
    high, low = jnp.where(negative, flipped[0], high), jnp.where(negative, flipped[1], low)
    float32 = jnp.dtype(jnp.float32)
    s = double_from_int(high.astype(jnp.uint32), float32) * 2**32 + double_from_int(low, float32)
    return s * jnp.where(negative, jnp.float32(-1), jnp.float32(1))
