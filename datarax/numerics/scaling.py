"""Powers of two to scale by, real powers, and what stands for results that are undefined."""

import jax
import jax.numpy as jnp
import numpy as np


def power_of_two_near_reciprocal(x: jax.Array) -> jax.Array:
    """The power of two that, times a float `x > 0`, is from 1/2 to 1; 1 where `x` is zero. Exact.

    Products of values scaled by it neither overflow nor underflow, and scaling rounds nothing. It
    is made of its bits: a compiler may turn a quotient into a product with a rounded reciprocal.
    """
    info = jnp.finfo(x.dtype)
    bits = jnp.dtype(f"int{info.bits}")
    exponent = jnp.frexp(x)[1].astype(bits)
    field = (jnp.asarray(1 - info.minexp, bits) - exponent) << jnp.asarray(info.nmant, bits)
    power = jax.lax.bitcast_convert_type(field, x.dtype)
    return jnp.where(x > 0, power, jnp.ones_like(x))


def real_power(x: jax.Array, exponent: float) -> jax.Array:
    """`x**exponent` for `x >= 0`, within 2 ulp of the float's own power for the exact exponent.

    A float32 exponent next to the one that is meant would err by `log(x)` ulps; the rest of the
    exponent is applied to first order.
    """
    if exponent in (1, 2, 3):
        return jax.lax.integer_pow(x, int(exponent))
    nearest = np.asarray(exponent, x.dtype)
    rest = jnp.asarray(exponent - float(nearest), x.dtype)
    log = jnp.log(jnp.where(x > 0, x, jnp.ones((), x.dtype)))
    return x ** jnp.asarray(nearest) * (1 + rest * log)


def one_where_zero(x: jax.Array) -> jax.Array:
    """`x` as a divisor: 1 where it is zero."""
    return jnp.where(x == 0, jnp.ones((), x.dtype), x)


def nan_where(condition: jax.Array, x: jax.Array) -> jax.Array:
    """NaN where the condition holds, else `x`."""
    return jnp.where(condition, jnp.asarray(jnp.nan, x.dtype), x)


def weighted_mean(x: jax.Array, weights: jax.Array) -> jax.Array:
    """`sum(weights * x) / sum(weights)` over what is not NaN; the plain mean if all weigh zero.

    NaN where there is nothing to average. Within `n + 2` ulp of n values of one sign.
    """
    some = ~jnp.isnan(x)
    zero = jnp.zeros((), x.dtype)
    weights = jnp.where(some, weights, zero)
    weights = jnp.where(jnp.sum(weights) > 0, weights, some.astype(x.dtype))
    return jnp.sum(jnp.where(some, x, zero) * weights) / jnp.sum(weights)
