"""Arithmetic of pairs of floats whose sum is the number; see `double_float`."""

import jax
import numpy as np

from datarax._xp import lax, xp

Pair = tuple[jax.Array, jax.Array]


def add(a: Pair, b: Pair) -> Pair:
    """The sum, within 2 units of `|a| + |b|`."""
    s, e = two_sum(a[0], b[0])
    high, low = fast_two_sum(s, e + (a[1] + b[1]))
    # Errors of infinite sums are NaN.
    fine = xp.isfinite(s)
    return xp.where(fine, high, s), xp.where(fine, low, xp.zeros((), low.dtype))


def subtract(a: Pair, b: Pair) -> Pair:
    """The difference, within 2 units of `|a| + |b|`."""
    return add(a, (-b[0], -b[1]))


def multiply(a: Pair, b: Pair) -> Pair:
    """The product, within 5 units; a product with a power of two is exact."""
    p, e = two_product(a[0], b[0])
    # Of an infinite number, a product with the low part of the other, 0, is NaN.
    rest = e + (a[0] * b[1] + a[1] * b[0])
    return _renormalized(p, xp.where(xp.isfinite(rest), rest, xp.zeros((), rest.dtype)))


def scale(a: Pair, b: jax.Array) -> Pair:
    """The product of pairs and floats, within 3 units."""
    p, e = two_product(a[0], b)
    return _renormalized(p, e + a[1] * b)


def divide(a: Pair, b: Pair) -> Pair:
    """The quotient, within 10 units, its upper part within 0.51 ulp; NaN where `b` is 0."""
    # Divide by 1 where the divisor is zero, and set NaN at the end.
    some = b[0] != 0
    divisor = xp.where(some, b[0], xp.ones_like(b[0]))
    q = a[0] / divisor
    # The quotient of the high parts, and the rest of the division, which corrects it.
    p, e = two_product(q, divisor)
    rest = (((a[0] - p) - e) + (a[1] - q * b[1])) / divisor
    fine = xp.isfinite(q + rest)
    high, low = _renormalized(q, xp.where(fine, rest, xp.zeros((), q.dtype)))
    nan = np.asarray(np.nan, q.dtype)  # made by JAX, it would raise under `jax_debug_nans`
    return xp.where(some, high, nan), xp.where(some, low, nan)


# Comparisons are exact. They hold for the limbs of integers too: the high part decides, and where
# both are equal, the low part.


def less(a: Pair, b: Pair) -> jax.Array:
    return (a[0] < b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))


def less_or_equal(a: Pair, b: Pair) -> jax.Array:
    return (a[0] < b[0]) | ((a[0] == b[0]) & (a[1] <= b[1]))


def equal(a: Pair, b: Pair) -> jax.Array:
    return (a[0] == b[0]) & (a[1] == b[1])


def two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`a + b` rounded, and its rounding error, which is exact; NaN if the sum is not finite.

    D. E. Knuth, The Art of Computer Programming, volume 2, section 4.2.2.
    """
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


def fast_two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`a + b` rounded, and its rounding error, where `|a| >= |b|` or `a` is zero."""
    s = a + b
    return s, b - (s - a)


def _renormalized(a: jax.Array, b: jax.Array) -> Pair:
    """`a + b`, where `b` is not greater than an ulp or two of `a`."""
    s, e = fast_two_sum(a, b)
    return s, xp.where(xp.isfinite(s), e, xp.zeros((), e.dtype))


def two_product(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`a * b` rounded, and its rounding error, which is exact unless it is subnormal.

    T. J. Dekker (1971), https://doi.org/10.1007/BF01397083. It does not need a fused multiply-add.
    """
    p = a * b
    ah, al = _split(a)
    bh, bl = _split(b)
    e = ((ah * bh - p) + ah * bl + al * bh) + al * bl
    # It is not finite if the product is not.
    return p, xp.where(xp.isfinite(e), e, xp.zeros((), e.dtype))


def _split(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    # Masking bits gives the upper half of the significand. Veltkamp's product gives it too, but it
    # can overflow, and a compiler may simplify it.
    bits = xp.dtype(f"uint{8 * a.dtype.itemsize}")
    keep = {4: 0xFFFFF000, 8: 0xFFFFFFFFF8000000}[a.dtype.itemsize]
    masked = lax.bitcast_convert_type(a, bits) & xp.asarray(keep, bits)
    high = lax.bitcast_convert_type(masked, a.dtype)
    return high, a - high
