"""Power means and norms of values."""

import math

from datarax._checks import choice
from datarax._typing import PyTree
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.metrics.aggregation.power_total import PowerTotal
from datarax.metrics.aggregation.value_metric import ValueMetric
from datarax.statistics.extremes import Extremes


class RootMeanSquare(ValueMetric):
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

    def compute(self) -> PyTree:
        return self.statistic.mean()


class Norm(ValueMetric):
    """The norm of all values as one vector.

    `sum(w * |x|**ord)**(1 / ord)`, or the greatest `|x|` where `ord` is infinite. To get the norm
    of a gradient, update with each of its arrays once. No data gives NaN. As `numpy.linalg.norm`
    of a vector in all else.

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


class GeometricMean(ValueMetric):
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

    def compute(self) -> PyTree:
        return self.statistic.mean()


class HarmonicMean(ValueMetric):
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

    def compute(self) -> PyTree:
        return self.statistic.mean()
