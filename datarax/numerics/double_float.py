"""Double-floats: pairs of floats whose sum is the number, with twice the digits of one float.

A double-float of float32 parts has about 48 significant bits. Error bounds here are relative to the
result, in units of `u**2`, with `u = 2**-24` (`2**-53` for float64 parts).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class DoubleFloat:
    """The number `high + low`: two arrays of one float dtype and shape.

    `|low|` is at most half an ulp of `high`, so `high` is the nearest float. Operators take
    double-floats, arrays of the same dtype, and Python numbers; shapes broadcast. A Python number
    is not rounded to a float: `x * 0.1` multiplies by the double-float nearest to 0.1. Round once,
    at the end of a formula, with `to_float`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.numerics import DoubleFloat
        >>> large = DoubleFloat.of(jnp.float32(1e8)) + 1
        >>> print((large - 1e8).to_float(), jnp.float32(1e8) + 1 - jnp.float32(1e8))
        1.0 0.0
    """

    high: jax.Array
    low: jax.Array
    # NumPy arrays defer to this class in mixed arithmetic.
    __array_priority__ = 200
    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def of(cls, x: Any, dtype: Any = None) -> "DoubleFloat":
        """Converts a float array, or a Python number with parts in `dtype`; an array is exact."""
        if isinstance(x, DoubleFloat):
            return x
        if isinstance(x, int | float) and dtype is not None:
            number = float(x)
            high = np.asarray(number, dtype)
            rest = number - float(high) if math.isfinite(number) else 0.0
            return cls(jnp.asarray(high), jnp.asarray(rest, dtype))
        x = jnp.asarray(x)
        return cls(x, jnp.zeros_like(x))

    def to_float(self) -> jax.Array:
        """The nearest float."""
        return self.high

    # Arithmetic.

    def __add__(self, other: Any) -> "DoubleFloat":
        """The sum, within 3 units.

        M. Joldes, J.-M. Muller and V. Popescu (2017), https://doi.org/10.1145/3121432, algorithm 6.
        """
        other = self._operand(other)
        # s + e and t + f are exact. Their sum is rounded to a double-float.
        s, e = _sum_and_error(self.high, other.high)
        t, f = _sum_and_error(self.low, other.low)
        high, e = _fast_two_sum(s, e + t)
        high, low = _fast_two_sum(high, e + f)
        # Errors of infinite sums are NaN.
        fine = jnp.isfinite(high)
        return DoubleFloat(jnp.where(fine, high, s), jnp.where(fine, low, jnp.zeros_like(low)))

    __radd__ = __add__

    def __neg__(self) -> "DoubleFloat":
        return DoubleFloat(-self.high, -self.low)

    def __sub__(self, other: Any) -> "DoubleFloat":
        return self + -self._operand(other)

    def __rsub__(self, other: Any) -> "DoubleFloat":
        return self._operand(other) - self

    def __mul__(self, other: Any) -> "DoubleFloat":
        """The product, within 5 units; a product with a power of two is exact."""
        if isinstance(other, int | float) and _is_power_of_two(other):
            factor = jnp.asarray(other, self.dtype)
            return DoubleFloat(self.high * factor, self.low * factor)
        if not isinstance(other, DoubleFloat | int | float):
            p, e = two_product(self.high, other)
            return _renormalized(p, e + self.low * other)
        other = self._operand(other)
        p, e = two_product(self.high, other.high)
        return _renormalized(p, e + (self.high * other.low + self.low * other.high))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "DoubleFloat":
        """The quotient, within 10 units, its `high` within 0.51 ulp; NaN where the divisor is 0."""
        other = self._operand(other)
        # Divide by 1 where the divisor is zero, and set NaN at the end.
        some = other.high != 0
        divisor = jnp.where(some, other.high, jnp.ones_like(other.high))
        q = self.high / divisor
        # The quotient of the high parts, and the rest of the division, which corrects it.
        p, e = two_product(q, divisor)
        rest = (((self.high - p) - e) + (self.low - q * other.low)) / divisor
        fine = jnp.isfinite(q + rest)
        quotient = _renormalized(q, jnp.where(fine, rest, jnp.zeros((), q.dtype)))
        nan = np.asarray(np.nan, q.dtype)  # made by JAX, it would raise under `jax_debug_nans`
        return quotient.map(lambda x: jnp.where(some, x, nan))

    def __rtruediv__(self, other: Any) -> "DoubleFloat":
        return self._operand(other) / self

    def sum(self, axis: int | tuple[int, ...] = -1) -> "DoubleFloat":
        """The sum over axes, by double-float additions; XLA chooses their order."""
        return sums([self], axis)[0]

    def _operand(self, other: Any) -> "DoubleFloat":
        return DoubleFloat.of(other, self.dtype)

    # Comparisons compare the high parts, and if they are equal the low parts. They are exact.

    def __lt__(self, other: Any) -> jax.Array:
        other = self._operand(other)
        same = self.high == other.high
        return (self.high < other.high) | (same & (self.low < other.low))

    def __gt__(self, other: Any) -> jax.Array:
        return self._operand(other) < self

    def __le__(self, other: Any) -> jax.Array:
        other = self._operand(other)
        same = self.high == other.high
        return (self.high < other.high) | (same & (self.low <= other.low))

    def __ge__(self, other: Any) -> jax.Array:
        return self._operand(other) <= self

    def __eq__(self, other: Any) -> Any:
        other = self._operand(other)
        return (self.high == other.high) & (self.low == other.low)

    def __ne__(self, other: Any) -> Any:
        return ~(self == other)

    # Attributes and methods of an array; both parts have the same shape and dtype.

    @property
    def shape(self) -> tuple[int, ...]:
        return jnp.shape(self.high)

    @property
    def ndim(self) -> int:
        return jnp.ndim(self.high)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.high.dtype)

    def map(self, function: Callable[[jax.Array], jax.Array]) -> "DoubleFloat":
        """Applies `function` to both parts. It may move or select elements, not change them."""
        return DoubleFloat(function(self.high), function(self.low))

    def __getitem__(self, index: Any) -> "DoubleFloat":
        return self.map(lambda x: x[index])

    def __iter__(self) -> Iterator[jax.Array]:
        """Unpacks into `high, low`."""
        return iter((self.high, self.low))

    def reshape(self, *shape: int) -> "DoubleFloat":
        return self.map(lambda x: x.reshape(shape))

    def broadcast_to(self, shape: tuple[int, ...]) -> "DoubleFloat":
        return self.map(lambda x: jnp.broadcast_to(x, shape))


def where(condition: jax.Array, a: DoubleFloat, b: DoubleFloat) -> DoubleFloat:
    """`jnp.where` of double-floats."""
    return DoubleFloat(jnp.where(condition, a.high, b.high), jnp.where(condition, a.low, b.low))


def stack(doubles: Sequence[DoubleFloat], axis: int = 0) -> DoubleFloat:
    """`jnp.stack` of double-floats."""
    return DoubleFloat(
        jnp.stack([x.high for x in doubles], axis), jnp.stack([x.low for x in doubles], axis)
    )


def sums(doubles: Sequence[DoubleFloat], axis: int | tuple[int, ...] = -1) -> list[DoubleFloat]:
    """The sums of double-floats of one shape over axes, in one pass.

    The compiler then computes what they have in common once, and not once for each sum.
    """
    first = doubles[0]
    axes = tuple(a % first.ndim for a in ((axis,) if isinstance(axis, int) else axis))
    parts, structure = jax.tree.flatten(list(doubles))
    zeros = [jnp.zeros((), first.dtype)] * len(parts)

    def add(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        pairs = zip(structure.unflatten(a), structure.unflatten(b), strict=True)
        return jax.tree.leaves([x + y for x, y in pairs])

    return structure.unflatten(lax.reduce(parts, zeros, add, axes))


def concatenate(doubles: Sequence[DoubleFloat], axis: int = 0) -> DoubleFloat:
    """`jnp.concatenate` of double-floats."""
    return DoubleFloat(
        jnp.concatenate([x.high for x in doubles], axis),
        jnp.concatenate([x.low for x in doubles], axis),
    )


def two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`a + b` rounded, and its rounding error, which is exact; 0 if the sum is not finite.

    D. E. Knuth, The Art of Computer Programming, volume 2, section 4.2.2.
    """
    s, e = _sum_and_error(a, b)
    return s, jnp.where(jnp.isfinite(s), e, jnp.zeros((), e.dtype))


def _sum_and_error(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


def _fast_two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`a + b` rounded, and its rounding error, where `|a| >= |b|` or `a` is zero."""
    s = a + b
    return s, b - (s - a)


def _renormalized(a: jax.Array, b: jax.Array) -> DoubleFloat:
    """`a + b`, where `b` is not greater than an ulp or two of `a`."""
    s, e = _fast_two_sum(a, b)
    return DoubleFloat(s, jnp.where(jnp.isfinite(s), e, jnp.zeros((), e.dtype)))


def two_product(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`a * b` rounded, and its rounding error, which is exact unless it is subnormal.

    T. J. Dekker (1971), https://doi.org/10.1007/BF01397083. It does not need a fused multiply-add.
    """
    p = a * b
    ah, al = _split(a)
    bh, bl = _split(b)
    e = ((ah * bh - p) + ah * bl + al * bh) + al * bl
    # It is not finite if the product is not.
    return p, jnp.where(jnp.isfinite(e), e, jnp.zeros((), e.dtype))


def _split(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    # Masking bits gives the upper half of the significand. Veltkamp's product gives it too, but it
    # can overflow, and a compiler may simplify it.
    bits = jnp.dtype(f"uint{8 * a.dtype.itemsize}")
    keep = {4: 0xFFFFF000, 8: 0xFFFFFFFFF8000000}[a.dtype.itemsize]
    masked = lax.bitcast_convert_type(a, bits) & jnp.asarray(keep, bits)
    high = lax.bitcast_convert_type(masked, a.dtype)
    return high, a - high


def _is_power_of_two(x: float) -> bool:
    return x != 0 and math.isfinite(x) and abs(math.frexp(x)[0]) == 0.5
