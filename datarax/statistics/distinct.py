"""`Distinct`: estimates the number of distinct values, in constant memory."""

from typing import Self

import jax
import numpy as np

from datarax._checks import float_dtype, numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import lax, xp
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.numerics.hashing import hashed
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import CountsInvalid, not_finite
from datarax.statistics.scatter_counts import extreme_at


class Distinct(CountsInvalid, kw_only=False):
    """HyperLogLog: an estimate of how many distinct values there were.

    Each value is hashed to 64 bits. The first `precision` bits select a register, which keeps the
    greatest number of leading zeros (plus one) among the remaining bits. Merging is a maximum, and
    repeated values change nothing. P. Flajolet et al. (2007), https://doi.org/10.46298/dmtcs.3545.
    The estimate is that of O. Ertl (2017), https://arxiv.org/abs/1702.01284: one formula, unbiased
    from none to 2**60.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import Distinct
        >>> seen = Distinct().update(jnp.arange(1000) % 40)
        >>> print(round(float(seen.count())), f"{seen.standard_error:.2%}")
        40 0.81%
    """

    terms_by_row = False

    precision: int = 14
    """From 4 to 16: there are `2**precision` registers of one byte."""

    def __post_init__(self) -> None:
        positive_int(self.precision, "precision", least=4)
        if self.precision > 16:
            raise MetricInputError(f"precision={self.precision}; expected an integer from 4 to 16")
        # Merged by maximum, so it does not matter how often a value is seen, or on how many
        # devices.
        empty = np.zeros(1 << self.precision, np.uint8)
        self.registers = MetricAccumulator(empty, MetricReduceOp.max)

    @property
    def standard_error(self) -> float:
        """The standard deviation of the estimate, as a part of it."""
        return 1.04 / 2 ** (self.precision / 2)

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `values` of any shape; a value of weight zero does not count.

        NaN and infinities are excluded and counted, unless their weight is zero.
        """
        x = numeric(values, "values")
        w, invalid = rows_weight(not_finite(x), weights)
        seen = self.add(*hashed(x), w.astype(xp.bool_))
        return seen.with_batch(invalid)

    def add(self, high: jax.Array, low: jax.Array, used: jax.Array) -> Self:
        """Folds in values by their hashes: the upper and the lower 32 bits of each, as uint32."""
        size = 1 << self.precision
        place = (high >> (32 - self.precision)).astype(xp.int32)
        # The zeros that lead the remaining bits. If the upper word has none left, count on in the
        # lower word.
        rest = high << self.precision
        beyond = (32 - self.precision) + lax.clz(low)
        zeros = xp.where(rest == 0, beyond, lax.clz(rest))
        # Past the end, where a scatter drops it.
        place = xp.where(used, place, size)
        # A register of 0 is empty, so ranks begin at 1. They are at most 61, which fits a byte.
        rank = (zeros + 1).astype(xp.uint8)
        return self.replace(registers=extreme_at(self.registers, place, rank))

    def count(self) -> jax.Array:
        """The estimate, a float; 0 where there is no data."""
        registers, dtype = self.registers.value, float_dtype(self.registers.value)
        size = registers.size
        empty = xp.sum(registers == 0, dtype=xp.int32).astype(dtype)
        filled = xp.where(registers > 0, xp.exp2(-registers.astype(dtype)), 0)
        # m**2 / (2 log(2)) over the sum of 2**-register; empty registers count by Ertl's sigma.
        weight = xp.sum(filled) + size * _weight_of_empty(empty, size)
        return xp.where(empty == size, 0, size**2 / (2 * np.log(2)) / weight)


def _weight_of_empty(empty: jax.Array, size: int) -> jax.Array:
    """Ertl's sigma of the share `x` of empty registers: `x + sum(2**(k - 1) * x**(2**k))`, k >= 1.

    The powers are computed from the logarithm of `x`: repeated squaring would lose all digits.
    """
    k = xp.arange(1, 2 * size.bit_length(), dtype=empty.dtype)
    log = xp.log1p(-(size - empty) / size)
    # Where all are empty the logarithm is 0; where none is, the sum is not used.
    terms = xp.exp2(k - 1) * xp.exp(xp.where(log < 0, xp.exp2(k) * log, 0))
    return xp.where(empty > 0, empty / size + xp.sum(terms), 0)
