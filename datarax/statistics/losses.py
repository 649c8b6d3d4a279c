"""Losses of one prediction and its target, elementwise, and where they are defined."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Loss(NamedTuple):
    """One row of the table of losses; each function takes predictions, targets, a parameter."""

    value: Callable[..., jax.Array]
    """What is summed."""
    scale: Callable[..., jax.Array] | None = None
    """What the total is divided by; `None` for the weight, so that it is a mean."""
    domain: Callable[..., jax.Array] | None = None
    """Which finite values can be used; `None` for all."""
    of_rows: bool = False
    """Whether an example is a row of any length, with one value."""


def _squared_log(p: jax.Array, t: jax.Array, _: float) -> jax.Array:
    # log(1 + p) - log(1 + t) without its cancellation: errors are taken first.
    ratio = jnp.abs(p - t) / (1 + jnp.minimum(p, t))
    return jnp.log1p(ratio) ** 2


def _absolute_percentage(p: jax.Array, t: jax.Array, least: float) -> jax.Array:
    return jnp.abs(p - t) / jnp.maximum(jnp.abs(t), jnp.asarray(least, t.dtype))


def _symmetric_percentage(p: jax.Array, t: jax.Array, _: float) -> jax.Array:
    # Halves first, as the sum of two large ones may overflow.
    half = jnp.asarray(0.5, t.dtype)
    middle = jnp.abs(p) * half + jnp.abs(t) * half
    return jnp.abs(p - t) / jnp.where(middle == 0, jnp.ones((), t.dtype), middle)


def _log_cosh(p: jax.Array, t: jax.Array, _: float) -> jax.Array:
    e = jnp.abs(p - t)
    # cosh(e) = 1 + 2 sinh(e / 2)**2, for what is small beside log 2; and e - log 2 + log1p(...).
    # The first in expm1 alone, as 2 sinh(e / 2)**2 = expm1(-e)**2 / (2 exp(-e)).
    near = jnp.minimum(e, jnp.ones((), e.dtype))
    gone = jnp.expm1(-near)
    small = jnp.log1p(gone * gone / (2 * (1 + gone)))
    log_2 = jnp.asarray(0.6931471805599453, e.dtype)
    return jnp.where(e < 1, small, (e - log_2) + jnp.log1p(jnp.exp(-2 * e)))


def _huber(p: jax.Array, t: jax.Array, delta: float) -> jax.Array:
    e, d = jnp.abs(p - t), jnp.asarray(delta, t.dtype)
    inner = jnp.minimum(e, d)
    return inner * (e - inner / 2)


def _quantile(p: jax.Array, t: jax.Array, q: float) -> jax.Array:
    e = t - p
    part = jnp.where(e < 0, jnp.asarray(1 - q, e.dtype), jnp.asarray(q, e.dtype))
    return jnp.abs(e) * part


def _power(p: jax.Array, t: jax.Array, exponent: float) -> jax.Array:
    return power_of(jnp.abs(p - t), exponent)


def power_of(x: jax.Array, exponent: float) -> jax.Array:
    """`x**exponent` of what is not negative, with what the exponent loses as a float made good."""
    if exponent in (1, 2, 3):
        return jax.lax.integer_pow(x, int(exponent))
    nearest = np.asarray(exponent, x.dtype)
    rest = jnp.asarray(exponent - float(nearest), x.dtype)
    log = jnp.log(jnp.where(x > 0, x, jnp.ones((), x.dtype)))
    return x ** jnp.asarray(nearest) * (1 + rest * log)


def _tweedie(p: jax.Array, t: jax.Array, power: float) -> jax.Array:
    """The deviance `2 p**(2 - power) g(t / p)`, where `g(1) = g'(1) = 0` and `g''(1) = 1`."""
    if power == 0:
        return (p - t) ** 2
    a, one = 2 - power, jnp.ones((), t.dtype)
    u = (t - p) / p
    # Near t = p all terms cancel but those of the Taylor series, ((1 + u)**a - 1 - a u) / (a (a -
    # 1)) = u**2 / 2 (1 + (a - 2) / 3 u (1 + (a - 3) / 4 u (...))): to 2**-24, or 2**-53, at 0.5.
    near = jnp.abs(u) < jnp.asarray(0.5, u.dtype)
    v = jnp.where(near, u, jnp.zeros((), u.dtype))
    series = one
    for k in range(24 if t.dtype.itemsize < 8 else 52, 1, -1):
        series = 1 + (a - k) / (k + 1) * v * series
    far = jnp.where(near, one, u)
    r, some = jnp.where(near, one, t / p), near | (t > 0)
    log = jnp.log1p(jnp.where(some, far, one))
    if power == 1:
        whole = jnp.where(some, r * log, jnp.zeros((), r.dtype)) - far
    elif power == 2:
        whole = far - log
    else:
        grown = jnp.where(some, jnp.expm1(a * log), -one)
        whole = (grown - a * far) / (a * (a - 1))
    g = jnp.where(near, v * v / 2 * series, whole)
    return 2 * g * (one if a == 0 else power_of(p, a))


def _tweedie_domain(p: jax.Array, t: jax.Array, power: float) -> jax.Array:
    if power == 0:
        return jnp.ones(t.shape, jnp.bool_)
    if power < 0:
        return p > 0
    return (p > 0) & ((t >= 0) if power < 2 else (t > 0))


def _hit(p: jax.Array, t: jax.Array, threshold: float) -> jax.Array:
    x = jnp.asarray(threshold, t.dtype)
    return (p >= x) & (t >= x)


def _hit_or_missed(p: jax.Array, t: jax.Array, threshold: float) -> jax.Array:
    x = jnp.asarray(threshold, t.dtype)
    return (p >= x) | (t >= x)


def _cosine(p: jax.Array, t: jax.Array, _: float) -> jax.Array:
    (p, a), (t, b) = _scaled(p), _scaled(t)
    value = jnp.sum(p * t, -1) / a / b
    return jnp.clip(value, -1, 1)


def _scaled(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows whose squares neither overflow nor vanish, and their lengths; 1 for that of zeros."""
    one = jnp.ones((), x.dtype)
    largest = jnp.max(jnp.abs(x), -1, initial=jnp.zeros((), x.dtype))
    # Powers of two, so that nothing is rounded; no quotient, as that of 1 and 3e38 may be flushed.
    down, up = (jnp.asarray(2.0**power, x.dtype) for power in (-80, 80))
    factor = jnp.where(largest > 2.0**40, down, jnp.where(largest < 2.0**-40, up, one))
    x = x * jnp.broadcast_to(factor[..., None], x.shape)
    length = jnp.sqrt(jnp.sum(x * x, -1))
    return x, jnp.where(length == 0, one, length)


LOSSES: dict[str, Loss] = {
    "squared log": Loss(_squared_log, domain=lambda p, t, _: (p > -1) & (t > -1)),
    "absolute percentage": Loss(_absolute_percentage),
    "symmetric percentage": Loss(_symmetric_percentage),
    "weighted percentage": Loss(lambda p, t, _: jnp.abs(p - t), lambda p, t, _: jnp.abs(t)),
    "log cosh": Loss(_log_cosh),
    "huber": Loss(_huber),
    "quantile": Loss(_quantile),
    "power": Loss(_power),
    "tweedie": Loss(_tweedie, domain=_tweedie_domain),
    "critical success": Loss(_hit, _hit_or_missed),
    "cosine": Loss(_cosine, of_rows=True),
}
