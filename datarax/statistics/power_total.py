"""Sums of powers of values: what norms and power means are read from."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax import numerics as nx
from datarax._checks import as_float, choice, default_float, numeric
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.state import State

# By the bits of the float: beyond 2**near or below 2**-near, a value is scaled by 2**shift before
# its power is taken, so that no power and no sum of them leaves the range of floats.
_NEAR = {4: 40, 8: 340}
_SHIFT = {4: 90, 8: 700}


class PowerTotal(State):
    """The sum of `w * |x|**power`, or of logarithms for a power of 0; and the sum of `w`.

    Args:
        power: 2, 1, 0 or -1. For 0 and -1 negative values cannot be used, and zeros are counted
            apart, as the mean is then zero.

    Sums of values far below one, of others, and of values far above one are kept apart and scaled,
    so that squares neither overflow nor vanish (J. L. Blue, 1978,
    https://doi.org/10.1145/355769.355771). A logarithm is kept in two parts, of exponent and of
    significand, so that the mean of large ones loses nothing.
    """

    weight = MetricAccumulator(0.0)
    zeros = MetricAccumulator(0.0)
    invalid = MetricAccumulator(0)

    def __init__(self, power: int):
        choice(power, (2, 1, 0, -1), "power")
        self.power = power
        self.parts = MetricAccumulator(np.zeros(3 if power else 2))

    def update(self, values: Any, *, weights: Any = None) -> Self:
        """Folds in `values` of any shape; `weights` broadcast against their leading axes.

        What cannot be used is excluded and counted, unless its weight is zero.
        """
        x = as_float(numeric(values, "values"))
        valid = jnp.isfinite(x)
        if self.power <= 0:
            valid &= x >= 0
        w, invalid = rows_weight(valid, weights)
        w = jnp.broadcast_to(w, x.shape)
        some = w.astype(jnp.bool_) & (x != 0)
        one = jnp.ones((), x.dtype)
        terms = _logarithms if self.power == 0 else _powers
        found = terms(jnp.where(some, jnp.abs(x), one), self.power)
        factor = jnp.where(some, as_float(w), jnp.zeros((), x.dtype))
        return self.replace(
            parts=self.parts.update(found * factor[..., None]),
            weight=self.weight.update(w),
            zeros=self.zeros.update(w & (x == 0) if w.dtype == jnp.bool_ else w - factor),
            invalid=self.invalid.update(invalid),
        )

    def mean(self) -> jax.Array:
        """The power mean, `mean(|x|**power)**(1 / power)`; NaN where the weight is zero."""
        if self.power == 0:
            value = self._geometric()
        else:
            value = self._rooted(tuple(map(jnp.asarray, self.weight.parts)))  # type: ignore[arg-type]
        if self.power <= 0:
            value = jnp.where(self.zeros.value > 0, jnp.zeros((), value.dtype), value)
        return self._or_nan(value)

    def norm(self) -> jax.Array:
        """`sum(|x|**power)**(1 / power)`; NaN where the weight is zero."""
        one = jnp.ones((), default_float())
        return self._or_nan(self._rooted((one, jnp.zeros_like(one))))

    def _or_nan(self, value: jax.Array) -> jax.Array:
        return jnp.where(self.weight.value > 0, value, jnp.asarray(jnp.nan, value.dtype))

    def _rooted(self, divisor: nx.Pair) -> jax.Array:
        """The root of the sum over the divisor; 0 where there is nothing to sum."""
        high, low = map(jnp.asarray, self.parts.parts)
        if self.power < 0:  # from the parts of the greatest powers down
            high, low = high[::-1], low[::-1]
        shift = _SHIFT[high.dtype.itemsize]
        # By exponents: a product with the square of the scale would underflow.
        unit = jnp.int32(-shift * abs(self.power))
        sums = [(high[i], low[i]) for i in range(3)]
        # In units of the top part that is not empty, so much of the one below as it still counts.
        total = sums[0]
        for part in sums[1:]:
            below = jnp.ldexp(total[0], unit), jnp.ldexp(total[1], unit)
            joined = nx.pair_add(part, below)
            total = jax.tree.map(lambda a, b, p=part: jnp.where(p[0] > 0, a, b), joined, total)
        top = jnp.max(jnp.where(high > 0, jnp.arange(3, dtype=jnp.int32), 0))
        mean = nx.pair_divide(total, divisor)
        if self.power == 2:
            mean = jnp.sqrt(mean)
        if self.power < 0:
            mean = jnp.where(mean > 0, 1 / jnp.where(mean > 0, mean, 1), mean)
            top = 2 - top
        return jnp.ldexp(mean, (top - 1) * shift)

    def _geometric(self) -> jax.Array:
        """Two to the mean exponent, its whole part apart: that is exact."""
        high, low = map(jnp.asarray, self.parts.parts)
        weight: Any = tuple(map(jnp.asarray, self.weight.parts))
        whole = jnp.round(_or_zero(nx.pair_divide((high[0], low[0]), weight)))
        back = nx.pair_scale(weight, -whole)
        rest = nx.pair_add(nx.pair_add((high[0], low[0]), back), (high[1], low[1]))
        part = jnp.exp2(_or_zero(nx.pair_divide(rest, weight)))
        return jnp.ldexp(part, whole.astype(jnp.int32))


def _powers(x: jax.Array, power: int) -> jax.Array:
    """Powers of positive values as three parts (..., 3), of those far below one, others, above."""
    near, scale = (2.0 ** table[x.dtype.itemsize] for table in (_NEAR, _SHIFT))
    large, small = x >= near, x < 1 / near
    scaled = jnp.where(large, x * (1 / scale), jnp.where(small, x * scale, x))
    found = {2: scaled * scaled, 1: scaled, -1: 1 / scaled}[power]
    parts = small, ~(small | large), large
    return jnp.stack([jnp.where(part, found, jnp.zeros((), x.dtype)) for part in parts], -1)


def _logarithms(x: jax.Array, power: int) -> jax.Array:
    """The exponent and the binary logarithm of the significand of positive values, (..., 2)."""
    part, exponent = jnp.frexp(x)
    below = part < 2**-0.5  # so that the logarithm of values near one is near zero
    part = jnp.where(below, part * 2, part)
    return jnp.stack(
        [(exponent - below.astype(exponent.dtype)).astype(x.dtype), jnp.log2(part)], -1
    )


def _or_zero(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isnan(x), jnp.zeros((), x.dtype), x)
