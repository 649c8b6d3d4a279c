"""Products of matrices, and correlations."""

import jax

from datarax._xp import lax, xp
from datarax.numerics.double_float import DoubleFloat, has_wide, stack
from datarax.numerics.scaling import nan_where, one_where_zero


def matrix_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """`a @ b` of two matrices of one dtype, in its precision: float64 too where x64 is disabled."""
    # `jnp.matmul` asks for a dtype of the result, and asks again when it is vmapped, where x64 is
    # disabled again: that would give a float32.
    return lax.dot(a, b, precision=lax.Precision.HIGHEST)


def sum_of_outer(d: jax.Array, w: jax.Array) -> DoubleFloat:
    """The sum over rows of `w * outer(d, d)`, (F, F).

    In float64 where there is one: a float32 would give a matrix whose rank is not that of the
    rows, and the square root of a matrix magnifies what is left of zero.
    """
    if not has_wide(d.dtype):
        return DoubleFloat.of(matrix_product(d.T, w * d))
    both = stack([DoubleFloat.of(d), DoubleFloat.of(d) * w])
    return both.map(lambda x: matrix_product(x[0].T, x[1]))


def correlation_coefficient(
    co_moment: jax.Array, x_squares: jax.Array, y_squares: jax.Array
) -> jax.Array:
    """`co_moment / sqrt(x_squares * y_squares)`, from -1 to 1; NaN where a sum of squares is 0.

    Within 3 ulp, and exact where both sums of squares are equal. Nothing overflows.
    """
    undefined = (x_squares == 0) | (y_squares == 0)
    x, y = one_where_zero(x_squares), one_where_zero(y_squares)
    # The product of the squares may overflow, so their ratio is used: co / y / sqrt(x / y). It is
    # exactly 1 if both are equal, so a perfect correlation is exactly 1. If the ratio is extreme,
    # co is divided by each root in turn.
    ratio = x / y
    moderate = (ratio > 1e-12) & (ratio < 1e12)
    root = xp.sqrt(xp.where(moderate, ratio, 1))
    value = xp.where(moderate, co_moment / y / root, co_moment / xp.sqrt(x) / xp.sqrt(y))
    return nan_where(undefined, xp.clip(value, -1, 1))
