"""Sums of the squares of arrays, which neither overflow nor underflow."""

from collections.abc import Sequence

import jax
import numpy as np

from datarax._xp import xp
from datarax.numerics import double_float
from datarax.numerics.double_float import DoubleFloat, has_float64
from datarax.numerics.scaling import exponent_of, power_of_two, times_power_of_two
from datarax.numerics.sums import sum_floats


def sums_of_squares(arrays: Sequence[jax.Array]) -> tuple[DoubleFloat, jax.Array, jax.Array]:
    """The sum of the squares of each of n arrays, and its greatest absolute value.

    Args:
        arrays: of any shapes, all float32 or all float64.

    Returns:
        Sums (n,) as `total * 2**exponent`, with a total of at least 1/4 unless it is 0; and the
        greatest values (n,). If an array holds a NaN, its total and greatest value are NaN; if it
        holds an infinity instead, both are infinite.
    """
    greatest = xp.stack([xp.max(xp.abs(x), initial=0) for x in arrays])
    # Up to an exponent whose reciprocal is a normal float.
    top = xp.minimum(exponent_of(greatest), xp.int32(-xp.finfo(greatest.dtype).minexp))
    if greatest.dtype == np.float32 and has_float64():
        # Squares of float32 are exact in float64, and any sum of them is in its range. The sums do
        # not wait for the maxima, so devices exchange both at once.
        wide = [DoubleFloat.of(x) for x in arrays]
        sums = double_float.stack([(x * x).sum(tuple(range(x.ndim))) for x in wide])
        total = sums.map(lambda s: times_power_of_two(s, -2 * top))
    else:
        powers = xp.unstack(power_of_two(-top, greatest.dtype))
        scaled = [x * power for x, power in zip(arrays, powers, strict=True)]
        total = double_float.stack([sum_floats(x * x, tuple(range(x.ndim))) for x in scaled])
    # A maximum between devices may drop a NaN; a sum does not.
    return total, 2 * top, xp.where(xp.isnan(total.high), total.high, greatest)
