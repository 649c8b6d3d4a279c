"""Special functions without cancellation, used by several formulas."""

import jax
import jax.numpy as jnp


def x_minus_log1p(x: jax.Array) -> jax.Array:
    """`x - log(1 + x)` for `x >= 0`, within 4 ulp.

    Near zero, where the two nearly cancel, by the series of the difference.
    """
    coefficients = [(-1) ** k / k for k in range(2, 12)]
    small = jnp.minimum(x, jnp.asarray(0.125, x.dtype))
    series = jnp.polyval(jnp.asarray([*reversed(coefficients), 0.0, 0.0], x.dtype), small)
    return jnp.where(x < 0.125, series, x - jnp.log1p(x))
