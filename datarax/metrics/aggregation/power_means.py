"""Means and norms of powers of whatever a step puts out."""

import jax
import jax.numpy as jnp

from datarax._checks import choice
from datarax.metrics.aggregation.summary import Extremes
from datarax.metrics.base import Metric, check_policy
from datarax.statistics.power_total import PowerTotal


class RootMeanSquare(Metric):
    """The weighted root of the mean square, `sqrt(sum(w * x**2) / sum(w))`.

    `update(values, *, weights=None)`: `values` of any shape and real dtype; `weights` broadcast
    against their leading axes. Squares of large and tiny values neither overflow nor vanish. No
    data gives NaN.

    Args:
        on_invalid: as for `Mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RootMeanSquare
        >>> print(RootMeanSquare().update(jnp.array([1.0, -7.0])).compute())
        5.0
    """

    def __init__(self, *, on_invalid: str = "exclude"):
        self.on_invalid = check_policy(on_invalid)
        self.statistic = PowerTotal(2)

    def compute(self) -> jax.Array:
        return self.statistic.mean()


class Norm(Metric):
    """The norm of all values as one vector: `sum(w * |x|**ord)**(1 / ord)`, or the greatest `|x|`.

    `update(values, *, weights=None)` as for `RootMeanSquare`; weights count as repetitions. It is
    the norm of all that was seen, so a gradient's where each of its arrays is handed in once. As
    `numpy.linalg.norm` of a vector, but no data gives NaN.

    Args:
        ord: 1, 2 or infinity (`float("inf")`, `math.inf`, `jnp.inf`).
        on_invalid: as for `Mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Norm
        >>> values = jnp.array([3.0, -4.0])
        >>> print(*(Norm(ord=ord).update(values).compute() for ord in (1, 2, jnp.inf)))
        7.0 5.0 4.0
    """

    def __init__(self, *, ord: float = 2, on_invalid: str = "exclude"):
        choice(ord, (1, 2, float("inf")), "ord")
        self.ord, self.on_invalid = ord, check_policy(on_invalid)
        self.statistic = PowerTotal(int(ord)) if ord <= 2 else Extremes()

    def compute(self) -> jax.Array:
        if isinstance(self.statistic, PowerTotal):
            return self.statistic.norm()
        top = jnp.maximum(self.statistic.greatest.value, -self.statistic.least.value)
        return jnp.where(jnp.isfinite(top), top, jnp.asarray(jnp.nan, top.dtype))


class GeometricMean(Metric):
    """The weighted geometric mean, `exp(sum(w * log(x)) / sum(w))`, of values not below zero.

    `update(values, *, weights=None)` as for `RootMeanSquare`. One zero makes it zero, as in
    `scipy.stats.gmean`; negative values, for which SciPy gives NaN, cannot be used: they are
    excluded and counted. No data gives NaN.

    Args:
        on_invalid: as for `Mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import GeometricMean
        >>> print(GeometricMean().update(jnp.array([2.0, 8.0])).compute())
        4.0
    """

    def __init__(self, *, on_invalid: str = "exclude"):
        self.on_invalid = check_policy(on_invalid)
        self.statistic = PowerTotal(0)

    def compute(self) -> jax.Array:
        return self.statistic.mean()


class HarmonicMean(Metric):
    """The weighted harmonic mean, `sum(w) / sum(w / x)`, of values not below zero.

    `update(values, *, weights=None)` as for `RootMeanSquare`. One zero makes it zero, its limit, as
    in `scipy.stats.hmean`; negative values, which SciPy refuses, cannot be used: they are excluded
    and counted. No data gives NaN.

    Args:
        on_invalid: as for `Mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import HarmonicMean
        >>> print(HarmonicMean().update(jnp.array([2.0, 6.0])).compute())
        3.0
    """

    def __init__(self, *, on_invalid: str = "exclude"):
        self.on_invalid = check_policy(on_invalid)
        self.statistic = PowerTotal(-1)

    def compute(self) -> jax.Array:
        return self.statistic.mean()
