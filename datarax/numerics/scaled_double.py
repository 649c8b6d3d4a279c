"""Double-floats times powers of two: formulas whose terms may leave the range of floats."""

from dataclasses import dataclass

import jax

from datarax._typing import PyTree
from datarax._xp import lax, xp
from datarax.numerics.double_float import DoubleFloat, Operand
from datarax.numerics.scaling import (
    exponent_of,
    power_of_two,
    real_power,
    significand,
    times_power_of_two,
)

_NONE = -(2**30)  # the exponent of zero in a sum
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
        a, b = (xp.where(x.double.high == 0, _NONE, x.exponent) for x in (self, other))
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

    def __getitem__(self, index: PyTree) -> "ScaledDouble":
        return ScaledDouble(self.double[index], self.exponent[index])

    def normalized(self) -> "ScaledDouble":
        """The same number in the unit of its own power of two, so that it adds to any other."""
        power = exponent_of(self.double.high)
        double = self.double.map(lambda x: times_power_of_two(x, -power))
        return ScaledDouble(double, self.exponent + power)

    def to_double(self) -> DoubleFloat:
        """The number as a double-float; infinite where it overflows, 0 where it underflows."""
        high, low = (times_power_of_two(x, self.exponent) for x in self.double)
        return DoubleFloat(high, xp.where(xp.isfinite(high), low, xp.zeros((), low.dtype)))

    def to_float(self) -> jax.Array:
        """The nearest float."""
        return times_power_of_two(self.double.to_float(), self.exponent)

    def root(self) -> jax.Array:
        """The square root of a number that is not negative, within an ulp."""
        odd = self.exponent & 1
        even = xp.sqrt(times_power_of_two(self.double.to_float(), odd))
        return times_power_of_two(even, (self.exponent - odd) >> 1)


def scaled_by(x: DoubleFloat, exponent: jax.Array) -> DoubleFloat:
    """`x * 2**exponent` for exponents below 128 (1024 for float64); 0 if that is not normal."""
    return x * power_of_two(exponent, x.dtype)


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
