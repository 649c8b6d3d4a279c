"""Double-floats times powers of two: formulas whose terms may leave the range of floats."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import jax
import numpy as np

from datarax._typing import PyTree
from datarax._xp import lax, xp
from datarax.numerics import pairs
from datarax.numerics.double_float import DoubleFloat, Operand
from datarax.numerics.scaling import (
    exponent_of,
    normal_powers_of_two,
    power_of_two,
    real_power,
    scaled_to_one,
    significand,
    times_power_of_two,
)
from datarax.numerics.sums import sum_doubles

NOTHING = -(2**27)  # the exponent of zero; of a product of zeros it is less, and does not wrap
_NEGLIGIBLE = 2.0**-100
_FAR = 100  # a power up to which that of 1/2 is far from overflow and underflow


@dataclass(frozen=True, eq=False)
class ScaledDouble:
    """The number `double * 2**exponent`, with an int32 exponent of the shape of the double-float.

    Operators take numbers of this class, and Python numbers in products. The double-floats should
    be far from overflow and underflow: no result is normalised. Round once, at the end of a
    formula, with `to_float` or `root`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.numerics import DoubleFloat
        >>> from datarax.numerics.scaled_double import ScaledDouble
        >>> x = ScaledDouble(DoubleFloat.of(jnp.float32(3)), jnp.int32(100))
        >>> print((x * x).to_float(), (x * x).root() == x.to_float(), (x * x / (x * x)).to_float())
        inf True 1.0
    """

    double: DoubleFloat
    exponent: jax.Array

    @classmethod
    def of(cls, x: jax.Array) -> "ScaledDouble":
        """Converts a float array, without rounding."""
        return cls(DoubleFloat.of(x), xp.zeros(x.shape, xp.int32))

    def __add__(self, other: "ScaledDouble") -> "ScaledDouble":
        a, b = (xp.where(x.double.high == 0, NOTHING, x.exponent) for x in (self, other))
        # The power underflows to zero where the lower number is negligible.
        x, y = (scaled_by(x.double, xp.minimum(d, 0)) for x, d in ((self, a - b), (other, b - a)))
        return ScaledDouble(x + y, xp.maximum(a, b))

    def __neg__(self) -> "ScaledDouble":
        return ScaledDouble(-self.double, self.exponent)

    def __sub__(self, other: "ScaledDouble") -> "ScaledDouble":
        return self + -other

    def __mul__(self, other: "ScaledDouble | Operand") -> "ScaledDouble":
        if not isinstance(other, ScaledDouble):
            return ScaledDouble(self.double * other, self.exponent)
        return ScaledDouble(self.double * other.double, self.exponent + other.exponent)

    def __truediv__(self, other: "ScaledDouble") -> "ScaledDouble":
        """The quotient; NaN where the divisor is zero."""
        return ScaledDouble(self.double / other.double, self.exponent - other.exponent)

    def __gt__(self, zero: Literal[0]) -> jax.Array:
        return self.double.high > zero

    def __abs__(self) -> "ScaledDouble":
        is_negative = self.double < 0
        return ScaledDouble(self.double.map(lambda x: xp.where(is_negative, -x, x)), self.exponent)

    def __pow__(self, power: int) -> "ScaledDouble":
        """A positive power of double-floats that are 0, or from 2**-32 to about 1.

        The double-floats may be far below 1 then, which costs a sum of them no digit of a float.
        """
        number = self.normalized() if power > 3 else self
        double = number.double
        if double.is_one:
            return ScaledDouble(reduce(operator.mul, [double] * power), number.exponent * power)
        parts = reduce(pairs.product, [(double.high, double.low)] * power)
        return ScaledDouble(DoubleFloat(*parts), number.exponent * power)

    @property
    def finite(self) -> "ScaledDouble":
        """The same number, whose double-float is known to be finite."""
        return ScaledDouble(self.double.finite, self.exponent)

    @property
    def ndim(self) -> int:
        return self.double.ndim

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the parts."""
        return self.double.dtype

    def __getitem__(self, index: PyTree) -> "ScaledDouble":
        return ScaledDouble(self.double[index], self.exponent[index])

    def map(self, function: Callable[[jax.Array], jax.Array]) -> "ScaledDouble":
        """The same numbers with each array moved, or with some of their elements chosen."""
        return ScaledDouble(self.double.map(function), function(self.exponent))

    def where(self, mask: jax.Array) -> "ScaledDouble":
        """The numbers, but 0 where a mask does not hold."""
        double = self.double.map(lambda part: xp.where(mask, part, xp.zeros((), part.dtype)))
        return ScaledDouble(double, xp.where(mask, self.exponent, xp.int32(NOTHING)))

    def normalized(self) -> "ScaledDouble":
        """The same number in the unit of its own power of two, so that it adds to any other."""
        _, unit, power = scaled_to_one(self.double.high)
        return ScaledDouble(self.double.times_power(power), self.exponent + unit)

    def sum(self, axes: tuple[int, ...]) -> "ScaledDouble":
        """The sum over axes, in the unit of the greatest summand: by two passes, see `add_scaled`.

        Of double-floats of about 1, as of `unit_product`.
        """
        top = xp.max(self.exponent, axes, initial=NOTHING, keepdims=True)
        scaled = scaled_by(self.double, self.exponent - top)
        return ScaledDouble(sum_doubles(scaled, axes), xp.max(top, axes))

    def to_double(self) -> DoubleFloat:
        """The number as a double-float; infinite where it overflows, 0 where it underflows."""
        high, low = (times_power_of_two(x, self.exponent) for x in self.double)
        return DoubleFloat(high, xp.where(xp.isfinite(high), low, xp.zeros((), low.dtype)))

    def to_float(self) -> jax.Array:
        """The nearest float."""
        return times_power_of_two(self.double.to_float(), self.exponent)

    def root(self) -> jax.Array:
        """The square root of a number that is not negative, within an ulp."""
        return self.sqrt().to_float()

    def sqrt(self) -> "ScaledDouble":
        """The square root as a float times a power of two, of numbers that are not negative."""
        odd = self.exponent & 1
        even = xp.sqrt(times_power_of_two(self.double.to_float(), odd))
        return ScaledDouble(DoubleFloat.of(even), (self.exponent - odd) >> 1)


Scaled = tuple[jax.Array, jax.Array, jax.Array]
"""High part, low part and exponent of a `ScaledDouble`."""


def unit_product(x: jax.Array | DoubleFloat, w: jax.Array | None = None) -> ScaledDouble:
    """`x`, or `w * x`, as double-floats of about 1 times powers of two.

    The product of floats is exact. Numbers that are zero have the exponent `NOTHING`.
    """
    x, low = x if isinstance(x, DoubleFloat) else (x, None)
    high, exponent, power = scaled_to_one(x)
    low = xp.zeros_like(x) if low is None else low * power
    if w is not None:
        factor, other, _ = scaled_to_one(w)
        exponent = exponent + other
        high, rest = pairs.two_product(high, factor)
        low = rest + low * factor
    exponent = xp.where(high != 0, exponent, xp.int32(NOTHING))
    return ScaledDouble(DoubleFloat(high, low), exponent)


def unit_difference(x: jax.Array | DoubleFloat, y: jax.Array | DoubleFloat) -> ScaledDouble:
    """`x - y` without rounding, as double-floats of up to about 1 times powers of two.

    No difference overflows. Differences that are zero have the exponent `NOTHING`.
    """
    a, b = (each.high if isinstance(each, DoubleFloat) else each for each in (x, y))
    _, unit, power = scaled_to_one(xp.maximum(xp.abs(a), xp.abs(b)))
    if isinstance(x, DoubleFloat) or isinstance(y, DoubleFloat):
        double = DoubleFloat.of(x).times_power(power) - DoubleFloat.of(y).times_power(power)
    else:
        double = DoubleFloat(*pairs.two_difference(a * power, b * power))
    exponent = xp.where(double.high != 0, unit, xp.int32(NOTHING))
    return ScaledDouble(double, exponent)


def add_scaled(a: Scaled, b: Scaled, add: Callable[..., pairs.Pair] = pairs.add) -> Scaled:
    """The sum of two numbers of about 1 times powers of two, in the greater of both units.

    Each of many additions may be off by `2**-46` of the sum of the magnitudes (`2**-104` of
    float64 parts). What is less than `2**-126` of the other is added as if it were that.
    `add` adds pairs.
    """
    top = xp.maximum(a[2], b[2])
    powers = normal_powers_of_two(a[2], b[2], less=top, dtype=a[0].dtype)
    x, y = (
        (high * power, low * power) for (high, low, _), power in zip((a, b), powers, strict=True)
    )
    return *add(x, y), top


def scaled_by(x: DoubleFloat, exponent: jax.Array) -> DoubleFloat:
    """`x * 2**exponent` for exponents below 128 (1024 for float64); 0 if that is not normal."""
    return x.times_power(power_of_two(exponent, x.dtype))


def scaled_power(x: jax.Array, power: float) -> tuple[jax.Array, jax.Array]:
    """`x**power` for `x > 0` and any power: `part * 2**exponent`, with int32 exponents.

    The parts are far from overflow and underflow. Where `x` is not positive, they mean nothing.
    """
    if abs(power) <= _FAR and float(power).is_integer():
        n = int(power)
        part = xp.where(x > 0, significand(x), 1)
        return lax.integer_pow(part, n), exponent_of(x) * xp.int32(n)
    whole = DoubleFloat.of(exponent_of(x).astype(x.dtype)) * float(power)
    exponents = xp.floor(whole.to_float())
    factor = (whole - exponents).evaluated(xp.exp2)
    part = xp.where(x > 0, significand(x), 1)
    if abs(power) <= _FAR:
        part = real_power(part, power)
    else:
        log = xp.log2(part) * xp.asarray(power, x.dtype)
        part, exponents = xp.exp2(log - xp.floor(log)), exponents + xp.floor(log)
    return part * factor, exponents.astype(xp.int32)


def multiplied(x: DoubleFloat, factor: ScaledDouble) -> DoubleFloat:
    """`x * factor`, or 0 where that is below `2**-100`; `x` itself where the factor is 1.

    Below that, the low part of a double-float would underflow before its high part.
    """
    number = factor.to_double()
    product = x * number
    kept = (xp.abs(product.high) >= _NEGLIGIBLE) | (number.high == 1)
    return product.map(lambda part: xp.where(kept, part, xp.zeros((), part.dtype)))
