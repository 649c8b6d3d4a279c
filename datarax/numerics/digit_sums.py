"""Exact sums of float weights: the weights are cut into digits, and integers are summed."""

from collections.abc import Callable

import jax

from datarax._checks import default_float
from datarax._xp import lax, xp
from datarax.numerics import double_float
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.limbs import double_from_int
from datarax.numerics.scaling import normal_power_of_two


def sum_by_digits(weights: jax.Array, count: Callable[[jax.Array], jax.Array]) -> DoubleFloat:
    """Sums of weights, each within a few units of 2**-47 of itself, in any order of the weights.

    `count` may also subtract sums: a difference is as accurate as a sum, and exactly zero where it
    is zero. Sums of floats have rounding errors relative to the greatest weight, and a
    difference would keep them.

    The weights are cut into digits of equal significance, as long as an integer sum of them cannot
    overflow. Each round takes the highest digit of all weights, counts exactly, and adds the counts
    to a double-float. Weights that are multiples of one number and below 2**20 times that number
    take one round for a thousand examples; most others take two or three.

    Args:
        weights: booleans, or floats of the default dtype that are finite and not negative.
        count: gives integer sums of integer weights of the shape of `weights`. It must be linear,
            and no sum may exceed that of all weights.

    Raises:
        OverflowError: more than 2**30 weights (2**62 with x64).
    """
    if weights.dtype == xp.bool_:
        return double_from_int(count(weights.astype(xp.int32)), default_float())
    info = xp.finfo(weights.dtype)
    whole = xp.dtype(f"int{info.bits}")

    def number(x: int) -> jax.Array:
        return xp.asarray(x, whole)

    # The length of a digit: `size` numbers below 2**length have a sum that fits.
    length = info.bits - 1 - max(weights.size - 1, 0).bit_length()
    if length < 1:
        raise OverflowError(f"more than 2**30 weights in one sum: {weights.size}; fold it in parts")
    # Each weight is an integer below 2**(nmant + 1), its significand, times a power of two.
    bits = lax.bitcast_convert_type(weights, whole)
    field = bits >> number(info.nmant)
    hidden = xp.where(field > 0, number(1 << info.nmant), number(0))
    significand = (bits & number((1 << info.nmant) - 1)) | hidden
    exponent = xp.maximum(field, number(1)) + number(info.minexp - info.nmant - 1)

    def add_digit(carry: tuple[jax.Array, DoubleFloat]) -> tuple[jax.Array, DoubleFloat]:
        rest, total = carry
        top = exponent + number(info.bits) - lax.clz(rest)
        lowest = number(-4 * info.maxexp)
        unit = xp.max(xp.where(rest > 0, top, lowest), initial=lowest) - number(length)
        # The digit is what the rest holds of multiples of 2**unit.
        up = xp.clip(exponent - unit, 0, info.bits - 1)
        down = xp.clip(unit - exponent, 0, info.bits - 1)
        digit = (rest << up) >> down
        rest = rest - ((digit << down) >> up)
        counted = double_from_int(count(digit), weights.dtype)
        # 2**unit may be out of range where the product is not.
        half = unit >> number(1)
        for exponent_part in (half, unit - half):
            counted = counted * normal_power_of_two(exponent_part, weights.dtype)
        return rest, total + counted

    # Zeros of the type, the sharding and the axes over which the counts vary.
    none = count(significand)
    none = (none - none).astype(weights.dtype)
    _, total = lax.while_loop(
        lambda carry: xp.any(carry[0] > 0), add_digit, (significand, DoubleFloat(none, none))
    )
    return total


def sum_doubles(doubles: DoubleFloat, count: Callable[[jax.Array], jax.Array]) -> DoubleFloat:
    """Sums of double-floats that are not negative; exact to 2**48 for whole numbers.

    Args:
        doubles: the summands.
        count: gives sums of numbers of the shape of the double-floats, along further leading axes
            one by one.
    """
    if double_float.has_float64() and doubles.dtype == xp.float32:
        return doubles.map(count)
    # Digits must not be negative: of a negative low part, one unit of the high part is taken.
    whole = xp.dtype(f"int{xp.finfo(doubles.dtype).bits}")
    high, low = doubles
    below = lax.bitcast_convert_type(lax.bitcast_convert_type(high, whole) - 1, high.dtype)
    upper = xp.where(low < 0, below, high)
    parts = sum_by_digits(xp.stack([upper, (high - upper) + low]), count)
    return parts[0] + parts[1]
