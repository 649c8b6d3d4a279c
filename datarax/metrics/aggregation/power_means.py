"""Power means and norms of values."""

import math
from typing import Literal, Self

import jax
import numpy as np

from datarax._checks import as_float, choice, numeric
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import lax, xp
from datarax.algebra.fields import state
from datarax.algebra.fold import Fold, Term
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.metrics.aggregation.summary import ValueMetric
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.scaled_sums import power_in_range
from datarax.numerics.scaling import nan_where, times_power_of_two
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.extremes import Extremes
from datarax.statistics.invalid_counts import CountsInvalid, not_finite, out_of_range
from datarax.statistics.scaled_total import ScaledTotal


class PowerTotal(CountsInvalid, kw_only=False):
    """The sum of `w * |x|**power`, or of `w * log(x)` for a power of 0; and the sum of `w`.

    Each sum is scaled by powers of two, so that no power and no product overflows or underflows.
    Logarithms have two sums: of the exponents and of the logarithms of the significands. So the
    mean of large logarithms loses no digits.
    """

    terms_by_row = False

    power: Literal[2, 1, 0, -1]
    """The power. For 0 and -1, negative values cannot be used, and zeros are counted separately: a
    single zero makes the mean zero."""

    zeros = MetricAccumulator(0, MetricReduceOp.max)
    """1 if there were zeros."""

    def __post_init__(self) -> None:
        # The sum of powers, or of exponents and of logarithms of significands; and that of weights.
        self.sums = ScaledTotal((2 if self.power else 3,))

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `values` of any shape; `weights` broadcast against their leading axes.

        Values that cannot be used are excluded and counted, unless their weight is zero.
        """
        x = as_float(numeric(values, "values", any_range=True))
        unusable = not_finite(x)
        if self.power <= 0:
            unusable |= out_of_range(x < 0, x)
        w, invalid = rows_weight(unusable, weights)
        w = xp.broadcast_to(w, x.shape)
        some = w.astype(xp.bool_)
        # Zeros, and values that do not count, become 1 with weight 0: its powers are finite.
        size = xp.where(some & (x != 0), xp.abs(x), 1)
        factor = xp.where(x != 0, w, xp.zeros((), w.dtype))
        parts = (power_in_range(size, self.power),) if self.power else _logarithms(size)
        sums = self.sums.plus(*((part, factor) for part in parts), (w, None))
        zeros = Term(some & (x == 0), tuple(range(x.ndim)))
        return self.with_batch(
            invalid, sums=sums, zeros=Fold([zeros], lambda n: self.zeros.update(n > 0))
        )

    @property
    def _weight(self) -> ScaledDouble:
        return self.sums[-1].number

    def mean(self) -> jax.Array:
        """The power mean, `mean(|x|**power)**(1 / power)`; NaN where the weight is zero."""
        if self.power:
            value = self._root(self.sums[0].number / self._weight)
        else:
            value = self._geometric_mean()
        if self.power <= 0:
            # The limit: log(x) and 1 / x are infinite at a zero.
            value = xp.where(self.zeros.value > 0, 0, value)
        return nan_where(self._weight.double.high == 0, value)

    def norm(self) -> jax.Array:
        """`sum(|x|**power)**(1 / power)`; NaN where the weight is zero."""
        return nan_where(self._weight.double.high == 0, self._root(self.sums[0].number))

    def _root(self, x: ScaledDouble) -> jax.Array:
        """`x**(1 / power)`; 0 where there are no values but zeros."""
        if self.power == 2:
            return x.root()
        if self.power == 1:
            return x.to_float()
        # The harmonic mean is the reciprocal of the mean of 1 / x.
        some = x.double.high > 0
        inverse = ScaledDouble.of(xp.ones_like(x.double.high)) / x
        return xp.where(some, inverse.to_float(), 0)

    def _geometric_mean(self) -> jax.Array:
        """Two to the power of the mean logarithm; its whole part is applied exactly."""
        exponents, significands, weight = self.sums[0].number, self.sums[1].number, self._weight
        # 2**mean is 2**whole * 2**rest: only `rest`, which is small, is rounded.
        whole = xp.round(_zero_where_nan((exponents / weight).to_float()))
        rest = exponents - weight * whole + significands
        part = xp.exp2(_zero_where_nan((rest / weight).to_float()))
        return times_power_of_two(part, whole.astype(xp.int32))


def _logarithms(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The exponent and the binary logarithm of the significand of positive values.

    Significands are from the root of 1/2 on, so that the logarithm of values near 1 is near 0.
    """
    info = xp.finfo(x.dtype)
    bits = xp.dtype(f"int{info.bits}")
    digits, root = (xp.asarray(n, bits) for n in (info.nmant, _bits_of_root(x.dtype)))
    is_subnormal = x < info.smallest_normal
    raised = xp.where(is_subnormal, xp.asarray(info.nmant + 1, x.dtype), xp.zeros((), x.dtype))
    normal = x * xp.where(is_subnormal, xp.asarray(2.0 ** (info.nmant + 1), x.dtype), 1)
    raw = lax.bitcast_convert_type(normal, bits)
    exponent = (raw - root) >> digits
    part = lax.bitcast_convert_type(raw - (exponent << digits), x.dtype)
    return exponent.astype(x.dtype) - raised, xp.log2(part)


def _bits_of_root(dtype: np.dtype) -> int:
    return int(np.asarray(0.5**0.5, dtype).view(f"int{8 * dtype.itemsize}"))


def _zero_where_nan(x: jax.Array) -> jax.Array:
    return xp.where(xp.isnan(x), 0, x)


class PowerMean(ValueMetric):
    """A power mean of values. A subclass says which one by the `PowerTotal` in `statistic`."""

    tasks = ("score",)

    def compute(self) -> PyTree:
        return self.statistic.mean()


class RootMeanSquare(PowerMean):
    """The weighted root mean square.

    `sqrt(sum(w * x**2) / sum(w))`. Squares of large and tiny values neither overflow nor underflow.
    No data gives NaN. As `scipy.stats.pmean(p=2)` of absolute values.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RootMeanSquare
        >>> print(RootMeanSquare().update(jnp.array([1.0, -7.0])).compute())
        5.0
    """

    statistic = PowerTotal(2)


class Norm(ValueMetric):
    """The norm of all values as one vector.

    `sum(w * |x|**ord)**(1 / ord)`, or the greatest `|x|` where `ord` is infinite. To get the norm
    of a gradient, update with each of its arrays once. No data gives NaN. Otherwise as
    `numpy.linalg.norm` of a vector.

    Raises:
        MetricInputError: an `ord` other than 1, 2 and infinity.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Norm
        >>> values = jnp.array([3.0, -4.0])
        >>> print(*(Norm(ord=ord).update(values).compute() for ord in (1, 2, jnp.inf)))
        7.0 5.0 4.0
    """

    ord: float = 2
    """The order: 1, 2 or infinity (`float("inf")`, `math.inf`, `jnp.inf`)."""

    statistic: PowerTotal | Extremes = state()

    def __post_init__(self) -> None:
        choice(self.ord, (1, 2, math.inf), "ord")
        if self.ord == math.inf:
            self.statistic = Extremes()
        else:
            self.statistic = PowerTotal(1 if self.ord == 1 else 2)

    def compute(self) -> PyTree:
        if isinstance(self.statistic, PowerTotal):
            return self.statistic.norm()
        # Rounding keeps the order, so the greater of both is rounded once.
        greatest, least = (xp.asarray(x) for x in (self.statistic.maximum, self.statistic.minimum))
        return xp.maximum(greatest, -least)


class GeometricMean(PowerMean):
    """The weighted geometric mean of values that are not negative.

    `exp(sum(w * log(x)) / sum(w))`. One zero makes it zero, as in `scipy.stats.gmean`. Negative
    values, for which SciPy gives NaN, are invalid. No data gives NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import GeometricMean
        >>> print(GeometricMean().update(jnp.array([2.0, 8.0])).compute())
        4.0
    """

    statistic = PowerTotal(0)


class HarmonicMean(PowerMean):
    """The weighted harmonic mean of values that are not negative.

    `sum(w) / sum(w / x)`. One zero makes it zero, the limit, as in `scipy.stats.hmean`. Negative
    values, which SciPy refuses, are invalid. No data gives NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import HarmonicMean
        >>> print(HarmonicMean().update(jnp.array([2.0, 6.0])).compute())
        3.0
    """

    statistic = PowerTotal(-1)
