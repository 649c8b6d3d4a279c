"""The sum of the squares of an array, which neither overflows nor underflows."""

import jax
import jax.numpy as jnp
import numpy as np

from datarax.numerics.double_float import DoubleFloat, has_float64
from datarax.numerics.scaling import exponent_of, power_of_two, times_power_of_two
from datarax.numerics.sums import sum_floats


def sum_of_squares(x: jax.Array) -> tuple[DoubleFloat, jax.Array, jax.Array]:
    """The sum of squares, as `total * 2**exponent`, and the greatest absolute value.

    Args:
        x: float32 or float64, of any shape.

    Returns:
        The total, at least 1/4 unless it is 0, and the int32 exponent. If `x` holds a NaN, the
        total and the greatest value are NaN; if it holds an infinity instead, both are infinite.
    """
    axes, info = tuple(range(x.ndim)), jnp.finfo(x.dtype)
    greatest = jnp.max(jnp.abs(x), axes, initial=0)
    # Up to an exponent whose reciprocal is a normal float.
    top = jnp.minimum(exponent_of(greatest), jnp.int32(-info.minexp))
    if x.dtype == np.float32 and has_float64():
        # Squares of float32 are exact in float64, and any sum of them is in its range. The sum does
        # not wait for the maximum, so the devices exchange both at once.
        wide = DoubleFloat.of(x)
        total = (wide * wide).sum(axes).map(lambda s: times_power_of_two(s, -2 * top))
    else:
        scaled = x * power_of_two(-top, x.dtype)
        total = sum_floats(scaled * scaled, axes)
    # A maximum between devices may drop a NaN; a sum does not.
    greatest = jnp.where(jnp.isnan(total.high), total.high, greatest)
    return total, 2 * top, greatest
