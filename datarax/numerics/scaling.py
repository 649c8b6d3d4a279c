"""Scaling by powers of two, real powers, and results that may be undefined."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def power_of_two_near_reciprocal(x: jax.Array) -> jax.Array:
    """The power of two that scales `x > 0` to a value from 1/2 to 1; 1 where `x` is zero.

    It is a normal float, so the greatest `x` are scaled to values below 4, and subnormal ones to
    values below 1/2. Use it to scale values before they are multiplied, so that products neither
    overflow nor underflow. Scaling by a power of two does not round.
    """
    # The power is made of its bits. A compiler may turn a quotient into a product with a reciprocal
    # that is rounded.
    info = jnp.finfo(x.dtype)
    bits = jnp.dtype(f"int{info.bits}")
    exponent = jnp.clip(jnp.frexp(x)[1], info.minexp - 1, -info.minexp).astype(bits)
    field = (jnp.asarray(1 - info.minexp, bits) - exponent) << jnp.asarray(info.nmant, bits)
    power = jax.lax.bitcast_convert_type(field, x.dtype)
    return jnp.where(x > 0, power, jnp.ones_like(x))


def exponent_of(x: jax.Array) -> jax.Array:
    """The int32 `e` with `2**(e - 1) <= |x| < 2**e`; the least one for zeros and subnormals."""
    info = jnp.finfo(x.dtype)
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{info.bits}"))
    one, width = (jnp.asarray(n, bits.dtype) for n in (1, info.nmant + 1))
    return ((bits << one) >> width).astype(jnp.int32) + jnp.int32(info.minexp)


def significand(x: jax.Array) -> jax.Array:
    """`x / 2**exponent_of(x)`, from 1/2 to 1 in magnitude; 0 for zeros and subnormals.

    NaN and infinities stay.
    """
    info = jnp.finfo(x.dtype)
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{info.bits}"))
    width = jnp.asarray(info.nmant, bits.dtype)
    half = jnp.asarray(-info.minexp, bits.dtype)  # the biased exponent of 1/2
    # The exponent is exchanged for that of 1/2, and sign and fraction stay.
    keep = ~(jnp.asarray(2 * (1 - info.minexp) + 1, bits.dtype) << width)
    found = jax.lax.bitcast_convert_type((bits & keep) | (half << width), x.dtype)
    found = jnp.where(jnp.abs(x) >= info.smallest_normal, found, jnp.zeros((), x.dtype))
    return jnp.where(jnp.isfinite(x), found, x)


def power_of_two(exponent: jax.Array, dtype: Any) -> jax.Array:
    """`2**exponent` for int32 exponents below 128 (1024 for float64); 0 if it is not normal."""
    info = jnp.finfo(dtype)
    bits = jnp.dtype(f"int{info.bits}")
    exponent = jnp.maximum(exponent, jnp.int32(info.minexp - 1)).astype(bits)
    field = (exponent + jnp.asarray(1 - info.minexp, bits)) << jnp.asarray(info.nmant, bits)
    return jax.lax.bitcast_convert_type(field, jnp.dtype(dtype))


def times_power_of_two(x: jax.Array, exponent: jax.Array) -> jax.Array:
    """`x * 2**exponent`, also where the power itself is not a float."""
    least = 2 * (jnp.finfo(x.dtype).minexp - 1)
    exponent = jnp.clip(exponent, least, -least)
    half = exponent >> 1
    return x * power_of_two(half, x.dtype) * power_of_two(exponent - half, x.dtype)


def real_power(x: jax.Array, exponent: float) -> jax.Array:
    """`x**exponent` for `x >= 0`, for the exact exponent.

    A float32 exponent is rounded, which alone would give an error of up to about `log(x)` ulp. So
    the rest of the exponent is applied too, to first order: `x**rest` is about `1 + rest * log(x)`.
    This adds an error of at most 2 ulp to that of `x ** y` itself.
    """
    if exponent in (1, 2, 3):
        return jax.lax.integer_pow(x, int(exponent))
    nearest = np.asarray(exponent, x.dtype)
    rest = jnp.asarray(exponent - float(nearest), x.dtype)
    log = jnp.log(jnp.where(x > 0, x, jnp.ones((), x.dtype)))
    return x ** jnp.asarray(nearest) * (1 + rest * log)


def one_where_zero(x: jax.Array) -> jax.Array:
    """`x`, but 1 where it is zero, so that it can be a divisor."""
    return jnp.where(x == 0, jnp.ones((), x.dtype), x)


def nan_where(condition: jax.Array, x: jax.Array) -> jax.Array:
    """NaN where the condition holds, else `x`."""
    return jnp.where(condition, np.asarray(np.nan, x.dtype), x)


def weighted_mean(x: jax.Array, weights: jax.Array) -> jax.Array:
    """`sum(weights * x) / sum(weights)` over the values that are not NaN.

    If all weights are zero, the plain mean. NaN if all values are NaN. Within `n + 2` ulp for n
    values of one sign.
    """
    some = ~jnp.isnan(x)
    zero = jnp.zeros((), x.dtype)
    weights = jnp.where(some, weights, zero)
    weights = jnp.where(jnp.sum(weights) > 0, weights, some.astype(x.dtype))
    return jnp.sum(jnp.where(some, x, zero) * weights) / jnp.sum(weights)
