"""Means, sums, extremes and variances of values."""

import jax

from datarax._checks import real
from datarax._typing import PyTree
from datarax.metrics.aggregation.value_metric import ValueMetric
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.extremes import Extremes
from datarax.statistics.moments import Moments
from datarax.statistics.weighted_total import ExactTotal, WeightedTotal


class Mean(ValueMetric):
    """The weighted mean of values of any shape.

    `sum(w * x) / sum(w)` over all values that were seen, accumulated in double-floats. No data, or
    a total weight of zero, gives NaN. As `numpy.average`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Mean
        >>> metric = Mean().update(jnp.array([1.0, 2.0]), weights=jnp.array([3.0, 1.0]))
        >>> print(metric.compute(), Mean().compute())
        1.25 nan
    """

    tasks = ("regression",)
    statistic = WeightedTotal()

    def compute(self) -> PyTree:
        return self.statistic.mean

    def as_ratio(self) -> tuple[DoubleFloat, DoubleFloat]:
        return self.statistic.total.double, self.statistic.weight.double


WeightedMean = Mean


class Sum(ValueMetric):
    """The weighted sum of values of any shape.

    `sum(w * x)`. If all values have an integer dtype, and all weights are whole numbers, `results`
    and a collector give an `int`, exact to `2**63`; otherwise a `float`, to which integers up to
    `2**48` are added without rounding. `compute` gives the nearest float32 (float64 with x64). No
    data gives 0. As `numpy.sum`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Sum
        >>> print(Sum().update(jnp.array([16777216, 1])).results())
        16777217
    """

    statistic = ExactTotal()

    def compute(self) -> PyTree:
        return self.statistic.exact


class Max(ValueMetric):
    """The greatest value.

    `results` does not round integers. No data gives NaN. As `numpy.max`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Max
        >>> print(Max().update(jnp.array([1.0, 4.0])).compute())
        4.0
    """

    tasks = ("regression",)
    statistic = Extremes()

    def compute(self) -> PyTree:
        return self.statistic.maximum


class Min(ValueMetric):
    """The least value.

    `results` does not round integers. No data gives NaN. As `numpy.min`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Min
        >>> print(Min().update(jnp.array([1.0, 4.0])).compute())
        1.0
    """

    tasks = ("regression",)
    statistic = Extremes()

    def compute(self) -> PyTree:
        return self.statistic.minimum


class MinMax(ValueMetric):
    """The least and the greatest value: a dict of "min" and "max".

    No data gives NaN for both. As `numpy.min` and `numpy.max`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MinMax
        >>> print(MinMax().update(jnp.array([1.0, 4.0])).results())
        {'max': 4.0, 'min': 1.0}
    """

    statistic = Extremes()

    def compute(self) -> PyTree:
        return {"min": self.statistic.minimum, "max": self.statistic.maximum}


class Variance(ValueMetric):
    """The weighted variance of values of any shape, stable at any offset.

    `sum(w * (x - mean)**2) / (sum(w) - ddof)`. NaN unless the total weight exceeds `ddof`. As
    `numpy.var`. T. F. Chan, G. H. Golub and R. J. LeVeque (1979), Updating formulae and a pairwise
    algorithm for computing sample variances.

    Raises:
        MetricInputError: a `ddof` that is not a number.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Variance
        >>> print(Variance().update(jnp.array([10001.0, 10003.0])).compute())
        1.0
    """

    tasks = ("regression",)
    ddof: float = 0
    """0 for the variance of the population, 1 for the unbiased estimate from a sample."""

    statistic = Moments()

    def __post_init__(self) -> None:
        real(self.ddof, "ddof")

    def compute(self) -> jax.Array:
        return self.statistic.variance(self.ddof)


class Std(Variance):
    """The weighted standard deviation of values of any shape: the root of `Variance`.

    `sqrt(sum(w * (x - mean)**2) / (sum(w) - ddof))`. NaN unless the total weight exceeds `ddof`.
    As `numpy.std`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Std
        >>> print(Std().update(jnp.array([10001.0, 10003.0])).compute())
        1.0
    """

    def compute(self) -> jax.Array:
        return self.statistic.std(self.ddof)
