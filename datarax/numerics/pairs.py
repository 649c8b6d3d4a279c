"""Arithmetic of pairs of floats whose sum is the number; see `double_float`."""

from collections.abc import Callable
from functools import partial

import jax
import numpy as np

from datarax._xp import lax, xp

Pair = tuple[jax.Array, jax.Array]
Finish = Callable[[jax.Array, jax.Array], Pair]
"""Makes a pair of a rounded result and of what corrects it."""


def two_sum(a: jax.Array, b: jax.Array) -> Pair:
    """`a + b` rounded, and its rounding error, which is exact; NaN if the sum is not finite.

    D. E. Knuth, The Art of Computer Programming, volume 2, section 4.2.2.
    """
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


def two_difference(a: jax.Array, b: jax.Array) -> Pair:
    """`a - b` rounded, and its rounding error, as `two_sum` of `a` and `-b`."""
    s = a - b
    v = s - a
    return s, (a - (s - v)) - (b + v)


def fast_two_sum(a: jax.Array, b: jax.Array) -> Pair:
    """`a + b` rounded, and its rounding error, where `|a| >= |b|` or `a` is zero."""
    s = a + b
    return s, b - (s - a)


def _corrected(a: jax.Array, b: jax.Array) -> Pair:
    """`a + b`, where `b` is at most a few ulp of `a`, or its errors are NaN: then `a` alone."""
    high, low = fast_two_sum(a, b)
    fine = xp.isfinite(high)
    return xp.where(fine, high, a), xp.where(fine, low, xp.zeros((), low.dtype))


def add(a: Pair, b: Pair, finish: Finish = _corrected) -> Pair:
    """The sum, within 2 units of `|a| + |b|`."""
    s, e = two_sum(a[0], b[0])
    return finish(s, e + (a[1] + b[1]))


def add_float(a: Pair, b: jax.Array, finish: Finish = _corrected) -> Pair:
    """As `add`, of pairs and floats."""
    s, e = two_sum(a[0], b)
    return finish(s, e + a[1])


def subtract(a: Pair, b: Pair, finish: Finish = _corrected) -> Pair:
    """The difference, within 2 units of `|a| + |b|`."""
    s, e = two_difference(a[0], b[0])
    return finish(s, e + (a[1] - b[1]))


def subtract_float(a: Pair, b: jax.Array, finish: Finish = _corrected) -> Pair:
    """As `subtract`, of pairs and floats."""
    s, e = two_difference(a[0], b)
    return finish(s, e + a[1])


def multiply(a: Pair, b: Pair) -> Pair:
    """The product, within 5 units; a product with a power of two is exact."""
    return _corrected(*product(a, b))


def product(a: Pair, b: Pair) -> Pair:
    """As `multiply`, of numbers far from overflow: the low part may be up to 3 ulp of the high.

    It can be added up, and be multiplied again.
    """
    p, e = exact_product(a[0], b[0])
    return p, e + (a[0] * b[1] + a[1] * b[0])


def scale(a: Pair, b: jax.Array) -> Pair:
    """The product of pairs and floats, within 3 units."""
    p, e = exact_product(a[0], b)
    return _corrected(p, e + a[1] * b)


def divide(a: Pair, b: Pair) -> Pair:
    """The quotient, within 10 units, its upper part within 0.51 ulp; NaN where `b` is 0."""
    # Divide by 1 where the divisor is zero, and set NaN at the end.
    some = b[0] != 0
    high, low = quotient(a, (xp.where(some, b[0], xp.ones_like(b[0])), b[1]))
    # NaN made by JAX would raise under `jax_debug_nans`.
    return xp.where(some, high, np.asarray(np.nan, high.dtype)), low


def quotient(a: Pair, b: Pair) -> Pair:
    """As `divide`, by numbers that are not 0."""
    return _corrected(*_with_rest(a[0] / b[0], a, b))


def _with_rest(q: jax.Array, a: Pair, b: Pair) -> Pair:
    """The quotient of the high parts, and the rest of the division, which corrects it."""
    p, e = exact_product(q, b[0])
    return q, (((a[0] - p) - e) + (a[1] - q * b[1])) / b[0]


# Of numbers that are finite, as their results are. The low part of a product is up to three ulps of
# the high part: a sum brings it back to half an ulp.

add_finite = partial(add, finish=fast_two_sum)
add_float_finite = partial(add_float, finish=fast_two_sum)
subtract_finite = partial(subtract, finish=fast_two_sum)
subtract_float_finite = partial(subtract_float, finish=fast_two_sum)


def scale_finite(a: Pair, b: jax.Array) -> Pair:
    """As `product`, of pairs and floats."""
    p, e = exact_product(a[0], b)
    return p, e + a[1] * b


def divide_finite(a: Pair, b: Pair) -> Pair:
    """As `divide`, of finite numbers, by others than 0."""
    info = xp.finfo(a[0].dtype)
    # With one bit less, no compiler can fuse an unrounded quotient, which it may make of a product
    # with a reciprocal, into the sum with its rest.
    q = lax.reduce_precision(a[0] / b[0], info.nexp, info.nmant - 1)
    return fast_two_sum(*_with_rest(q, a, b))


# Comparisons are exact. They hold for the limbs of integers too: the high part decides, and where
# both are equal, the low part.


def less(a: Pair, b: Pair) -> jax.Array:
    return (a[0] < b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))


def less_or_equal(a: Pair, b: Pair) -> jax.Array:
    return (a[0] < b[0]) | ((a[0] == b[0]) & (a[1] <= b[1]))


def equal(a: Pair, b: Pair) -> jax.Array:
    return (a[0] == b[0]) & (a[1] == b[1])


def two_product(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`a * b` rounded, and its rounding error, which is exact unless it is subnormal.

    T. J. Dekker (1971), https://doi.org/10.1007/BF01397083. It does not need a fused multiply-add.
    """
    p, e = exact_product(a, b)
    # It is not finite if the product is not.
    return p, xp.where(xp.isfinite(e), e, xp.zeros((), e.dtype))


def exact_product(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`two_product`, whose error is NaN if the product is not finite."""
    p = a * b
    ah, al = _split(a)
    bh, bl = (ah, al) if b is a else _split(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def _split(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    # Masking bits gives the upper half of the significand. Veltkamp's product gives it too, but it
    # can overflow, and a compiler may simplify it.
    bits = xp.dtype(f"uint{8 * a.dtype.itemsize}")
    keep = {4: 0xFFFFF000, 8: 0xFFFFFFFFF8000000}[a.dtype.itemsize]
    masked = lax.bitcast_convert_type(a, bits) & xp.asarray(keep, bits)
    high = lax.bitcast_convert_type(masked, a.dtype)
    return high, a - high
