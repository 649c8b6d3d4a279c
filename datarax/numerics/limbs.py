"""64-bit integers in two 32-bit limbs, for JAX without 64-bit types.

An integer is a tuple `(high, low)` of int32 and uint32 arrays of equal shape, in two's complement:
its value is `high * 2**32 + low`.
"""

import math

import jax
import numpy as np

from datarax._checks import as_float, default_float
from datarax._x64 import elementary_in_x64
from datarax._xp import all_finite, on_host, xp
from datarax.numerics import double_float, pairs
from datarax.numerics.double_float import DoubleFloat, stack

Limbs = tuple[jax.Array, jax.Array]


def add_limbs(a: Limbs, b: Limbs) -> Limbs:
    """The sum of two integers, modulo 2**64."""
    # Not by operators: of scalars, NumPy warns where they wrap.
    low = xp.add(a[1], b[1])
    carry = (low < a[1]).astype(xp.int32)  # the sum of the low limbs wrapped
    return xp.add(xp.add(a[0], b[0]), carry), low


def negate_limbs(a: Limbs) -> Limbs:
    """The negation of an integer: its complement plus one."""
    low = xp.add(~a[1], xp.uint32(1))
    return xp.add(~a[0], (low == 0).astype(xp.int32)), low


def limbs_from_int(x: jax.Array, shift: int = 0) -> Limbs:
    """An integer of up to 32 bits times `2**shift`, for a shift from 0 to 31."""
    if x.dtype == xp.uint32:
        low, high = x, xp.zeros(x.shape, xp.int32)
        return (high, low) if not shift else ((x >> (32 - shift)).astype(xp.int32), x << shift)
    x = x.astype(xp.int32)
    return x >> min(31, 32 - shift), x.astype(xp.uint32) << shift


def sum_integers(x: jax.Array, axes: tuple[int, ...]) -> Limbs:
    """The exact sum of integers or booleans over `axes`, modulo 2**64."""
    with elementary_in_x64(x):
        if x.dtype == xp.bool_ and math.prod(x.shape[a] for a in axes) < 2**31:
            return limbs_from_int(xp.sum(x, axes, dtype=xp.int32))
        return _limbs_of(xp.sum(x, axes, dtype=xp.int64))


def limbs_from_double(a: DoubleFloat) -> Limbs:
    """A double-float that is an integer below 2**48 in magnitude."""
    with elementary_in_x64(a.high):
        return _limbs_of(a.high.astype(xp.int64) + a.low.astype(xp.int64))


def sum_limbs(a: Limbs, axes: tuple[int, ...], chosen: jax.Array | bool) -> Limbs:
    """The sum over `axes` of those integers that are in the mask `chosen`, modulo 2**64."""
    with elementary_in_x64(a, chosen):  # a mask on a device moves the sum there
        whole = (a[0].astype(xp.int64) << 32) | a[1].astype(xp.int64)
        return _limbs_of(xp.sum(xp.where(chosen, whole, 0), axes))


def sum_products(x: jax.Array, w: jax.Array, axes: tuple[int, ...]) -> Limbs:
    """The exact sum of `x * w` over `axes`, modulo 2**64: integers of up to 32 bits."""
    with elementary_in_x64(x, w):
        return _limbs_of(xp.sum(x.astype(xp.int64) * w.astype(xp.int64), axes))


def _limbs_of(x: jax.Array) -> Limbs:
    """The limbs of 64-bit integers, where x64 is enabled."""
    return (x >> 32).astype(xp.int32), x.astype(xp.uint32)


def double_from_int(x: jax.Array, dtype: xp.dtype) -> DoubleFloat:
    """An integer of up to 32 bits (64 for float64 parts) as a double-float, exactly.

    On the host, one of 64 bits is rounded to a float64.
    """
    if x.dtype == xp.bool_ or xp.iinfo(x.dtype).bits < xp.finfo(dtype).nmant:
        return DoubleFloat.of(x.astype(dtype))
    if (on_host(x) or double_float.has_float64()) and x.dtype.itemsize <= 4:
        return DoubleFloat.of(x, dtype)
    if on_host(x) and xp.finfo(dtype).bits < 64:
        return DoubleFloat.of_float64(x.astype("float64"))  # of more than 53 bits, rounded
    half = xp.iinfo(x.dtype).bits // 2
    low = x & xp.asarray((1 << half) - 1, x.dtype)
    # Both halves are exact as floats, and so is their sum.
    return DoubleFloat(*pairs.fast_two_sum((x - low).astype(dtype), low.astype(dtype)))


def is_wide(x: jax.Array) -> bool:
    """True if an array holds integers that the default float dtype may round."""
    if x.dtype == xp.bool_ or not xp.issubdtype(x.dtype, xp.integer):
        return False
    return xp.iinfo(x.dtype).bits > xp.finfo(jax.dtypes.canonicalize_dtype(float)).nmant + 1


def has_many_digits(x: jax.Array) -> bool:
    """True if numbers, as they were given, may have more digits than a float32."""
    return x.dtype != np.float32 and (x.dtype == np.float64 or is_wide(x))


def is_rounded(x: jax.Array) -> bool:
    """True if an array holds numbers that the default float dtype may round.

    These are integers of many bits, and on the host float64 numbers.
    """
    if x.dtype == np.float32:  # mostly
        return False
    return is_wide(x) or (on_host(x) and x.dtype == np.float64 != default_float())


def as_double(x: jax.Array) -> DoubleFloat:
    """Numbers as double-floats of the default float dtype; integers are not rounded.

    On the host, float64 numbers are not rounded before the two parts are asked for.
    """
    dtype = default_float()
    if x.dtype == dtype:
        return DoubleFloat.of(x)
    return double_from_int(x, dtype) if is_wide(x) else DoubleFloat.of(x, dtype)


def columns_of_doubles(*arrays: jax.Array) -> jax.Array | DoubleFloat:
    """Arrays of one size as the columns of an array (N, K) of double-floats: see `as_double`.

    On the host, arrays of floats are the columns of an array of floats. NumPy is fast along columns
    that lie in memory one after the other.
    """
    if not on_host(*arrays):
        return stack([as_double(x).reshape(-1) for x in arrays], -1)
    if all(x.dtype == default_float() for x in arrays):
        return np.stack([x.reshape(-1) for x in arrays]).T  # type: ignore[return-value]
    return stack([as_double(x).reshape(-1) for x in arrays]).map(np.transpose)  # type: ignore


def float_or_double(x: jax.Array) -> jax.Array | DoubleFloat:
    """Numbers in the default float dtype; as double-floats if they are integers it may round."""
    return as_double(x) if is_wide(x) else as_float(x)


def float_parts(x: jax.Array) -> tuple[jax.Array, ...]:
    """One or two float arrays that add up to `x`; two for integers that a float may round."""
    if x.dtype == np.float64:
        return (x,)
    double = as_double(x)
    return tuple(double) if is_wide(x) else (double.high,)


def difference(x: jax.Array, y: jax.Array) -> jax.Array:
    """`x - y` as floats, rounded once, also of integers that a float would round."""
    if exceeds_float64(x, y):
        low = (each & each.dtype.type(2**32 - 1) for each in (x, y))
        high = (each >> each.dtype.type(32) for each in (x, y))
        above, below = (as_float(a) - as_float(b) for a, b in (high, low))
        return above * 2.0**32 + below
    if is_wide(x) or is_wide(y):
        return (as_double(x) - as_double(y)).to_float()
    return float_or_double(x) - float_or_double(y)  # type: ignore[return-value]


def with_difference(
    x: jax.Array, y: jax.Array, *, in_float64: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Two arrays as floats, and `difference` of both; in float64 on the host, or if it is asked."""
    if on_host(x, y):
        a, b = as_float(x), as_float(y)
        return a, b, difference(x, y) if exceeds_float64(x, y) else a - b
    if not in_float64:
        return as_float(x), as_float(y), difference(x, y)
    p, q = as_double(x), as_double(y)
    return p.wide, q.wide, (p - q).wide


def exceeds_float64(*arrays: jax.Array) -> bool:
    """True for integers of 64 bits on the host, which float64 may round."""
    for x in arrays:
        if x.dtype.kind not in "iu" or x.dtype.itemsize != 8:
            return False
    return on_host(*arrays)


def equal_integers(x: jax.Array, y: jax.Array) -> jax.Array:
    """Where integers of any dtypes are equal; none is wrapped."""
    cast = y.astype(x.dtype)
    # Casting back is not enough: a large uint32 wraps to a negative int32, and back to itself.
    return (x == cast) & (cast.astype(y.dtype) == y) & ((cast < 0) == (y < 0))


def difference_in_unit(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`x - y` in units of `2**unit`: 0, or 1 where a difference in the batch would overflow."""
    e = difference(x, y)
    is_float = any(xp.issubdtype(each.dtype, xp.floating) for each in (x, y))
    if not is_float or all_finite(e):
        return e, xp.int32(0)
    a, b = (as_double(each).to_float() for each in (x, y))
    is_far = xp.any(xp.isinf(e) & xp.isfinite(a) & xp.isfinite(b))
    return xp.where(is_far, a * 0.5 - b * 0.5, e), is_far.astype(xp.int32)


def double_from_limbs(a: Limbs) -> DoubleFloat:
    """An integer in limbs as a double-float of float32 parts: exact below 2**48, then rounded."""
    high, low = (double_from_int(limb, xp.dtype(xp.float32)) for limb in a)
    return high * 2**32 + low
