"""How many distinct values there were, from a few thousand small registers."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from datarax._checks import default_float, is_integer, numeric, positive_int
from datarax._errors import MetricInputError
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.numerics.hashing import hashed
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.scatter_counts import extreme_at
from datarax.statistics.state import State


class Distinct(State):
    """HyperLogLog: an estimate of how many distinct values there were.

    Each value has 64 bits that look random. The first `precision` of them name a register, which
    keeps the greatest number of zeros (and one) that lead the rest: merging is a maximum, and how
    often a value comes is of no matter. P. Flajolet et al. (2007),
    https://doi.org/10.46298/dmtcs.3545. The estimate is that of O. Ertl (2017),
    https://arxiv.org/abs/1702.01284, whose one formula is unbiased from none to 2**60.

    Args:
        precision: from 4 to 16; there are `2**precision` registers of a byte.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import Distinct
        >>> seen = Distinct().update(jnp.arange(1000) % 40)
        >>> print(round(float(seen.count())), f"{seen.standard_error:.2%}")
        40 0.81%
    """

    invalid = MetricAccumulator(0)

    def __init__(self, precision: int = 14):
        positive_int(precision, "precision", least=4)
        if precision > 16:
            raise MetricInputError(f"precision={precision}; expected an integer from 4 to 16")
        self.precision = precision
        self.registers = MetricAccumulator(np.zeros(1 << precision, np.uint8), MetricReduceOp.max)

    @property
    def standard_error(self) -> float:
        """The standard deviation of the estimate, as a part of it."""
        return 1.04 / 2 ** (self.precision / 2)

    def update(self, values: Any, *, weights: Any = None) -> Self:
        """Folds in `values` of any shape; those of weight zero do not count.

        NaN and infinities are excluded and counted, unless their weight is zero.
        """
        x = numeric(values, "values")
        finite = jnp.ones(x.shape, jnp.bool_) if is_integer(x) else jnp.isfinite(x)
        w, invalid = rows_weight(finite, weights)
        high, low = hashed(x)
        size = 1 << self.precision
        place = (high >> (32 - self.precision)).astype(jnp.int32)
        rest = high << self.precision
        beyond = jnp.uint32(32 - self.precision) + lax.clz(low)
        zeros = jnp.where(rest == 0, beyond, lax.clz(rest))
        place = jnp.where(w.astype(jnp.bool_), place, jnp.int32(size))
        rank = (zeros + jnp.uint32(1)).astype(jnp.uint8)
        return self.replace(
            registers=extreme_at(self.registers, place, rank),
            invalid=self.invalid.update(invalid),
        )

    def count(self) -> jax.Array:
        """The estimate, a float; 0 where there were none."""
        registers, dtype = self.registers.value, default_float()
        size = registers.size
        empty = jnp.sum(registers == 0, dtype=jnp.int32).astype(dtype)
        filled = jnp.where(registers > 0, jnp.exp2(-registers.astype(dtype)), jnp.zeros((), dtype))
        weight = jnp.sum(filled) + size * _sigma(empty, size)
        return jnp.where(empty == size, jnp.zeros((), dtype), size**2 / (2 * np.log(2)) / weight)


def _sigma(empty: jax.Array, size: int) -> jax.Array:
    """The weight of the empty ones: `x + sum(2**(k - 1) * x**(2**k) for k = 1, 2, ...)`.

    With x the part of them, by its logarithm: squaring again and again would lose all digits.
    """
    k = jnp.arange(1, 2 * size.bit_length(), dtype=empty.dtype)
    log = jnp.log1p(-(size - empty) / size)
    terms = jnp.exp2(k - 1) * jnp.exp(jnp.where(log < 0, jnp.exp2(k) * log, jnp.zeros_like(k)))
    return jnp.where(empty > 0, empty / size + jnp.sum(terms), jnp.zeros((), empty.dtype))
