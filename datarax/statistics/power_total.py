"""Sums of powers of values, from which norms and power means are computed."""

from typing import Literal, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax._checks import as_float, numeric
from datarax._typing import ArrayLike, Weights
from datarax.numerics.double_float import DoubleFloat, where
from datarax.numerics.scaling import nan_where
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import InvalidCounts, not_finite, out_of_range
from datarax.statistics.state import State

# By the bytes of the float: a value above 2**near or below 2**-near is scaled by 2**-shift or
# 2**shift before its power is taken, so that no power and no sum of powers over- or underflows.
_NEAR = {4: 40, 8: 340}
_SHIFT = {4: 90, 8: 700}


class PowerTotal(State, kw_only=False):
    """The sum of `w * |x|**power`, or of `w * log(x)` for a power of 0; and the sum of `w`.

    There are three sums of powers: of values far below 1, of values far above 1, and of all others.
    Each is scaled, so squares neither overflow nor underflow (J. L. Blue, 1978,
    https://doi.org/10.1145/355769.355771). Logarithms have two sums: of the exponents and of the
    logarithms of the significands. So the mean of large logarithms loses no digits.
    """

    power: Literal[2, 1, 0, -1]
    """The power. For 0 and -1, negative values cannot be used, and zeros are counted separately: a
    single zero makes the mean zero."""

    weight = MetricAccumulator(0.0)
    zeros = MetricAccumulator(0.0)
    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        # Powers: of small, other and large values. Logarithms: of exponents and significands.
        self.sums = MetricAccumulator(np.zeros(3 if self.power else 2))

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `values` of any shape; `weights` broadcast against their leading axes.

        Values that cannot be used are excluded and counted, unless their weight is zero.
        """
        x = as_float(numeric(values, "values"))
        unusable = not_finite(x)
        if self.power <= 0:
            unusable |= out_of_range(x < 0, x)
        w, invalid = rows_weight(unusable, weights)
        w = jnp.broadcast_to(w, x.shape)
        some = w.astype(jnp.bool_) & (x != 0)
        size = jnp.where(some, jnp.abs(x), 1)
        terms = _powers(size, self.power) if self.power else _logarithms(size)
        factor = jnp.where(some, as_float(w), 0)
        return self.replace(
            sums=self.sums.update(terms * factor[..., None]),
            weight=self.weight.update(w),
            zeros=self.zeros.update(w & (x == 0) if w.dtype == jnp.bool_ else w - factor),
            invalid=self.invalid.update(invalid),
        )

    def mean(self) -> jax.Array:
        """The power mean, `mean(|x|**power)**(1 / power)`; NaN where the weight is zero."""
        value = self._root(self.weight.double) if self.power else self._geometric_mean()
        if self.power <= 0:
            value = jnp.where(self.zeros.value > 0, 0, value)
        return nan_where(~(self.weight.value > 0), value)

    def norm(self) -> jax.Array:
        """`sum(|x|**power)**(1 / power)`; NaN where the weight is zero."""
        one = DoubleFloat.of(jnp.ones((), self.sums.dtype))
        return nan_where(~(self.weight.value > 0), self._root(one))

    def _root(self, divisor: DoubleFloat) -> jax.Array:
        """`(sum(|x|**power) / divisor)**(1 / power)`; 0 where there are no values but zeros."""
        sums = self.sums.double
        if self.power < 0:  # large values have small powers
            sums = sums[::-1]
        shift = _SHIFT[sums.dtype.itemsize]
        # Scale by `ldexp`: the square of the scale would underflow as a float.
        unit = jnp.int32(-shift * abs(self.power))
        # The total, in units of the scale of the highest sum that is not zero. A lower sum is
        # scaled to these units before it is added.
        total = sums[0]
        for each in (sums[1], sums[2]):
            below = total.map(lambda x: jnp.ldexp(x, unit))
            total = where(each.high > 0, each + below, total)
        top = jnp.max(jnp.where(sums.high > 0, jnp.arange(3, dtype=jnp.int32), 0))
        mean = (total / divisor).to_float()
        if self.power == 2:
            mean = jnp.sqrt(mean)
        if self.power < 0:
            mean = jnp.where(mean > 0, 1 / jnp.where(mean > 0, mean, 1), mean)
            top = 2 - top
        return jnp.ldexp(mean, (top - 1) * shift)

    def _geometric_mean(self) -> jax.Array:
        """Two to the power of the mean logarithm; its whole part is applied exactly."""
        sums, weight = self.sums.double, self.weight.double
        exponents, significands = sums[0], sums[1]
        whole = jnp.round(_zero_where_nan((exponents / weight).to_float()))
        rest = exponents + weight * -whole + significands
        part = jnp.exp2(_zero_where_nan((rest / weight).to_float()))
        return jnp.ldexp(part, whole.astype(jnp.int32))


def _powers(x: jax.Array, power: int) -> jax.Array:
    """Powers of positive values in three columns (..., 3): of small, other and large values."""
    near, scale = (2.0 ** table[x.dtype.itemsize] for table in (_NEAR, _SHIFT))
    large, small = x >= near, x < 1 / near
    scaled = jnp.where(large, x * (1 / scale), jnp.where(small, x * scale, x))
    found = {2: scaled * scaled, 1: scaled, -1: 1 / scaled}[power]
    columns = small, ~(small | large), large
    return jnp.stack([jnp.where(column, found, 0) for column in columns], -1)


def _logarithms(x: jax.Array) -> jax.Array:
    """The exponent and the binary logarithm of the significand of positive values, (..., 2)."""
    part, exponent = jnp.frexp(x)
    below = part < 2**-0.5  # so that the logarithm of values near one is near zero
    part = jnp.where(below, part * 2, part)
    exponent = exponent - below.astype(exponent.dtype)
    return jnp.stack([exponent.astype(x.dtype), jnp.log2(part)], -1)


def _zero_where_nan(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isnan(x), 0, x)
