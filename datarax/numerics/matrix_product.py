"""The product of two matrices, in float64 too where x64 is disabled."""

import jax

from datarax._xp import lax


def matrix_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """`a @ b` of two matrices of one dtype, in the precision of that dtype."""
    # `jnp.matmul` asks for a dtype of the result, and asks again when it is vmapped, where x64 is
    # disabled again: that would give a float32.
    return lax.dot(a, b, precision=lax.Precision.HIGHEST)
