"""The table of losses: the function of each, its divisor, and where it is defined."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax

from datarax._xp import xp
from datarax.numerics.normalized_products import row_cosines
from datarax.numerics.scaled_double import scaled_power
from datarax.numerics.special import log_cosh, tweedie_deviance

LossName = Literal[
    "squared log",
    "absolute percentage",
    "symmetric percentage",
    "weighted percentage",
    "log cosh",
    "huber",
    "quantile",
    "power",
    "tweedie",
    "critical success",
    "cosine",
]

Function = Callable[[jax.Array, jax.Array, float], jax.Array]
Scaled = tuple[jax.Array, jax.Array]
OfError = Callable[[jax.Array, jax.Array, jax.Array, float], jax.Array | Scaled]


class Loss(NamedTuple):
    """One row of the table; its functions take predictions, targets and the parameter."""

    value: OfError
    """The loss, which is summed. It also takes the errors, `preds - target`, after the targets:
    for large integers they are more exact than the difference of both as floats. A loss that may
    leave the range of floats is two arrays: `part * 2**exponent`."""
    scale: Function | None = None
    """The divisor, which is summed too; `None` for the weight, which gives the mean."""
    domain: Function | None = None
    """The mask of the finite values for which the loss is defined; `None` for all."""
    degree: Callable[[float], int] = lambda parameter: 0
    """If it is not 0: the power of the unit of the errors that is the unit of the value. Such
    losses get the errors in a unit in which none of them overflows."""
    of_rows: bool = False
    """Whether an example is a row, of any length, with one loss."""
    compares: bool = False
    """Whether the functions only compare values: then integers that a float would round are given
    as double-floats."""


def _squared_log(p: jax.Array, t: jax.Array, e: jax.Array, _: float) -> jax.Array:
    # The absolute value of log(1 + p) - log(1 + t), as the logarithm of a ratio: nothing cancels.
    ratio = xp.abs(e) / (1 + xp.minimum(p, t))
    return xp.log1p(ratio) ** 2


def _absolute_percentage(p: jax.Array, t: jax.Array, e: jax.Array, least: float) -> jax.Array:
    return xp.abs(e) / xp.maximum(xp.abs(t), least)


def _symmetric_percentage(p: jax.Array, t: jax.Array, e: jax.Array, _: float) -> jax.Array:
    # Each is halved first, because the sum of two large values may overflow.
    middle = xp.abs(p) * 0.5 + xp.abs(t) * 0.5
    return xp.abs(e) / xp.where(middle == 0, 1, middle)


def _huber(p: jax.Array, t: jax.Array, e: jax.Array, delta: float) -> jax.Array:
    # Both branches in one: e * e / 2 up to delta, delta * (e - delta / 2) above.
    e = xp.abs(e)
    inner = xp.minimum(e, delta)
    return inner * (e - inner / 2)


def _quantile(p: jax.Array, t: jax.Array, e: jax.Array, q: float) -> jax.Array:
    return xp.abs(e) * xp.where(e > 0, 1 - q, q).astype(e.dtype)


def _power(p: jax.Array, t: jax.Array, e: jax.Array, power: float) -> Scaled:
    part, exponents = scaled_power(xp.abs(e), power)
    return xp.where(e == 0, 0, part), exponents


def _tweedie_domain(p: jax.Array, t: jax.Array, power: float) -> jax.Array:
    if power == 0:
        return xp.ones(t.shape, xp.bool_)
    if power < 0:
        return p > 0
    return (p > 0) & ((t >= 0) if power < 2 else (t > 0))


LOSSES: dict[LossName, Loss] = {
    "squared log": Loss(_squared_log, domain=lambda p, t, _: (p > -1) & (t > -1)),
    "absolute percentage": Loss(_absolute_percentage),
    "symmetric percentage": Loss(_symmetric_percentage),
    "weighted percentage": Loss(
        lambda p, t, e, _: xp.abs(e), lambda p, t, _: xp.abs(t), degree=lambda _: 1
    ),
    "log cosh": Loss(lambda p, t, e, _: log_cosh(xp.abs(e))),
    "huber": Loss(_huber),
    "quantile": Loss(_quantile, degree=lambda _: 1),
    "power": Loss(_power),
    "tweedie": Loss(
        lambda p, t, e, power: tweedie_deviance(p, t, power, e),
        domain=_tweedie_domain,
        degree=lambda power: 2 if power == 0 else 0,
    ),
    # Events are values of at least the threshold: hits, and hits, misses and false alarms.
    "critical success": Loss(
        lambda p, t, e, threshold: (p >= threshold) & (t >= threshold),
        lambda p, t, threshold: (p >= threshold) | (t >= threshold),
        compares=True,
    ),
    "cosine": Loss(lambda p, t, e, _: row_cosines(p, t), of_rows=True),
}
