"""Scaling by powers of two, real powers, and results that may be undefined."""

from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike

from datarax._xp import lax, on_host, replaced, xp


def power_of_two_near_reciprocal(x: jax.Array) -> jax.Array:
    """The power of two that scales `x > 0` to a value from 1/2 to 1; 1 where `x` is zero.

    It is a normal float, so the greatest `x` are scaled to values below 4, and subnormal ones to
    values below 1/2. Use it to scale values before they are multiplied, so that products neither
    overflow nor underflow. Scaling by a power of two does not round.
    """
    # The power is made of its bits. A compiler may turn a quotient into a product with a reciprocal
    # that is rounded.
    info = xp.finfo(x.dtype)
    bits = xp.dtype(f"int{info.bits}")
    exponent = xp.minimum(exponent_of(x), xp.int32(-info.minexp)).astype(bits)
    field = (xp.asarray(1 - info.minexp, bits) - exponent) << xp.asarray(info.nmant, bits)
    power = lax.bitcast_convert_type(field, x.dtype)
    return xp.where((x > 0) & (x < xp.inf), power, xp.ones((), x.dtype))


def near_power(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`exponent_of(x)`, but at most that of which the reciprocal is normal; and the reciprocal.

    Both powers are normal floats.
    """
    whole, _, _, least = _fields(x.dtype)
    most: Any = np.array(-2 * least, whole)
    field = xp.minimum(_field(x), most)
    power = _of_field(most + most.dtype.type(1) - field, x.dtype)
    return field.astype(xp.int32) + least, power


def scaled_to_one(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Floats in units of powers of two in which they are about 1: the exponents of the units, and
    the reciprocals of these."""
    unit, power = near_power(x)
    return x * power, unit, power


def exponent_of(x: jax.Array) -> jax.Array:
    """The int32 `e` with `2**(e - 1) <= |x| < 2**e`; the least one for zeros and subnormals."""
    return _field(x).astype(xp.int32) + _fields(x.dtype)[3]


def _field(x: jax.Array) -> jax.Array:
    """The biased exponents of floats."""
    whole, one, width, _ = _fields(x.dtype)
    return (lax.bitcast_convert_type(x, whole) << one) >> width  # type: ignore[operator]


@lru_cache(maxsize=64)
def _fields(dtype: np.dtype) -> tuple[np.dtype, np.generic, np.generic, np.int32]:
    """For a float dtype: that of its bits, 1, the bits below the exponent, the least exponent."""
    info = xp.finfo(dtype)
    whole = np.dtype(f"uint{info.bits}")
    return whole, whole.type(1), whole.type(info.nmant + 1), np.int32(info.minexp)


def significand(x: jax.Array) -> jax.Array:
    """`x / 2**exponent_of(x)`, from 1/2 to 1 in magnitude; 0 for zeros and subnormals.

    NaN and infinities stay.
    """
    info = xp.finfo(x.dtype)
    bits = lax.bitcast_convert_type(x, xp.dtype(f"uint{info.bits}"))
    width = xp.asarray(info.nmant, bits.dtype)
    half = xp.asarray(-info.minexp, bits.dtype)  # the biased exponent of 1/2
    # The exponent is exchanged for that of 1/2, and sign and fraction stay.
    keep = ~(xp.asarray(2 * (1 - info.minexp) + 1, bits.dtype) << width)
    found = lax.bitcast_convert_type((bits & keep) | (half << width), x.dtype)
    found = xp.where(xp.abs(x) >= info.smallest_normal, found, xp.zeros((), x.dtype))
    return xp.where(xp.isfinite(x), found, x)


def power_of_two(exponent: jax.Array, dtype: DTypeLike) -> jax.Array:
    """`2**exponent` for int32 exponents below 128 (1024 for float64); 0 if it is not normal."""
    info = xp.finfo(dtype)
    if on_host(exponent):
        return xp.where(exponent < info.minexp, 0, xp.ldexp(np.dtype(dtype).type(1), exponent))
    return normal_power_of_two(xp.maximum(exponent, xp.int32(info.minexp - 1)), dtype)


def normal_power_of_two(exponent: jax.Array, dtype: DTypeLike) -> jax.Array:
    """`2**exponent` for exponents of normal floats, and 0 for the one below them.

    The bits of a power of two hold its exponent and zeros, so they are exact on every device.
    """
    info = xp.finfo(dtype)
    bits = xp.dtype(f"int{info.bits}")
    field = (exponent.astype(bits) + xp.asarray(1 - info.minexp, bits)) << xp.asarray(
        info.nmant, bits
    )
    return lax.bitcast_convert_type(field, xp.dtype(dtype))


def normal_powers_of_two(
    *exponents: jax.Array, less: jax.Array, dtype: DTypeLike
) -> list[jax.Array]:
    """`2**(exponent - less)` for exponents up to `less`; the least normal float if that is more."""
    info = xp.finfo(dtype)
    bits = xp.dtype(f"int{info.bits}")
    bias = less - xp.int32(1 - info.minexp)
    return [_of_field(xp.maximum(x - bias, xp.int32(1)).astype(bits), dtype) for x in exponents]


def _of_field(field: jax.Array, dtype: DTypeLike) -> jax.Array:
    """The powers of two of biased exponents."""
    width = np.array(xp.finfo(dtype).nmant, field.dtype)
    return lax.bitcast_convert_type(field << width, xp.dtype(dtype))


def times_power_of_two(x: jax.Array, exponent: jax.Array) -> jax.Array:
    """`x * 2**exponent`, also where the power itself is not a float."""
    if on_host(x, exponent):
        return np.ldexp(x, exponent)  # type: ignore[return-value]
    least = 2 * (xp.finfo(x.dtype).minexp - 1)
    exponent = xp.clip(exponent, least, -least)
    half = exponent >> 1
    return x * power_of_two(half, x.dtype) * power_of_two(exponent - half, x.dtype)


def real_power(x: jax.Array, exponent: float) -> jax.Array:
    """`x**exponent` for `x >= 0`, for the exact exponent.

    A float32 exponent is rounded, which alone would give an error of up to about `log(x)` ulp. So
    the rest of the exponent is applied too, to first order: `x**rest` is about `1 + rest * log(x)`.
    This adds an error of at most 2 ulp to that of `x ** y` itself.
    """
    if exponent in (1, 2, 3):
        return lax.integer_pow(x, int(exponent))
    nearest = np.asarray(exponent, x.dtype)
    rest = xp.asarray(exponent - float(nearest), x.dtype)
    log = xp.log(xp.where(x > 0, x, xp.ones((), x.dtype)))
    return x ** xp.asarray(nearest) * (1 + rest * log)


def one_where_zero(x: jax.Array) -> jax.Array:
    """`x`, but 1 where it is zero, so that it can be a divisor."""
    return replaced(x != 0, x, xp.ones((), x.dtype))


def nan_where(condition: jax.Array, x: jax.Array) -> jax.Array:
    """NaN where the condition holds, else `x`."""
    return xp.where(condition, np.asarray(np.nan, x.dtype), x)


def weighted_mean(x: jax.Array, weights: jax.Array) -> jax.Array:
    """`sum(weights * x) / sum(weights)` over the values that are not NaN.

    If all weights are zero, the plain mean. NaN if all values are NaN. Within `n + 2` ulp for n
    values of one sign.
    """
    some = ~xp.isnan(x)
    zero = xp.zeros((), x.dtype)
    weights = xp.where(some, weights, zero)
    weights = xp.where(xp.sum(weights) > 0, weights, some.astype(x.dtype))
    return xp.sum(xp.where(some, x, zero) * weights) / xp.sum(weights)
