"""Means, sums, extremes and spreads of whatever a step puts out."""

from typing import Any, Self

import jax
import jax.numpy as jnp

from datarax._checks import as_float, numeric
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.metrics.base import Metric, check_policy
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.moments import Moments
from datarax.statistics.state import State
from datarax.statistics.weighted_total import WeightedTotal


class Mean(Metric):
    """The weighted mean of values of any shape: `sum(w * x) / sum(w)` over all that was seen.

    `update(values, *, weights=None)`: `values` of any shape and real dtype; `weights` broadcast
    against their leading axes. Accumulated in float32 pairs (float64 with x64). No data, or a
    total weight of zero, gives NaN.

    Args:
        on_invalid: what to do with NaN, infinities and negative weights: "exclude" and count
            them, "propagate" (the result is NaN), or "raise" when the result is read on the host.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Mean
        >>> metric = Mean().update(jnp.array([1.0, 2.0]), weights=jnp.array([3.0, 1.0]))
        >>> print(metric.compute(), Mean().compute())
        1.25 nan
    """

    def __init__(self, *, on_invalid: str = "exclude"):
        self.on_invalid = check_policy(on_invalid)
        self.statistic = WeightedTotal()

    def compute(self) -> jax.Array:
        return self.statistic.mean


WeightedMean = Mean


class Sum(Metric):
    """The weighted sum of values of any shape, `sum(w * x)`; 0 where there is no data.

    `update(values, *, weights=None)` as for `Mean`. Integers add up exactly to 2**48: `compute`
    gives the nearest float32 (float64 with x64), `results` and a collector the exact number.

    Args:
        on_invalid: as for `Mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Sum
        >>> print(Sum().update(jnp.array([16777216, 1])).results())
        16777217.0
    """

    def __init__(self, *, on_invalid: str = "exclude"):
        self.on_invalid = check_policy(on_invalid)
        self.statistic = WeightedTotal()

    def compute(self) -> Any:
        return self.statistic.total.exact


class Extremes(State):
    """The least and the greatest value, and how many could not be used."""

    least = MetricAccumulator(float("inf"), MetricReduceOp.min)
    greatest = MetricAccumulator(float("-inf"), MetricReduceOp.max)
    invalid = MetricAccumulator(0)

    def update(self, values: Any, *, weights: Any = None) -> Self:
        """Folds in `values` of any shape; where the weight is zero they do not count."""
        x = as_float(numeric(values, "values"))
        w, invalid = rows_weight(jnp.isfinite(x), weights)
        counts = jnp.broadcast_to(w.astype(jnp.bool_), x.shape)
        return self.replace(
            least=self.least.update(x, where=counts),
            greatest=self.greatest.update(x, where=counts),
            invalid=self.invalid.update(invalid),
        )


class Max(Metric):
    """The greatest value. NaN where there is no data.

    `update(values, *, weights=None)`: values of any shape; those of weight zero do not count.

    Args:
        on_invalid: as for `Mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Max
        >>> print(Max().update(jnp.array([1.0, 4.0])).compute())
        4.0
    """

    def __init__(self, *, on_invalid: str = "exclude"):
        self.on_invalid = check_policy(on_invalid)
        self.statistic = Extremes()

    def compute(self) -> jax.Array:
        return _or_nan(self.statistic.greatest.value)


class Min(Metric):
    """The least value. NaN where there is no data. As `Max` in all else.

    Args:
        on_invalid: as for `Mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Min
        >>> print(Min().update(jnp.array([1.0, 4.0])).compute())
        1.0
    """

    def __init__(self, *, on_invalid: str = "exclude"):
        self.on_invalid = check_policy(on_invalid)
        self.statistic = Extremes()

    def compute(self) -> jax.Array:
        return _or_nan(self.statistic.least.value)


class MinMax(Metric):
    """The least and the greatest value: a dict of "min" and "max". NaN where there is no data.

    `update` as for `Max`.

    Args:
        on_invalid: as for `Mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MinMax
        >>> print(MinMax().update(jnp.array([1.0, 4.0])).results())
        {'max': 4.0, 'min': 1.0}
    """

    def __init__(self, *, on_invalid: str = "exclude"):
        self.on_invalid = check_policy(on_invalid)
        self.statistic = Extremes()

    def compute(self) -> dict[str, jax.Array]:
        return {
            "min": _or_nan(self.statistic.least.value),
            "max": _or_nan(self.statistic.greatest.value),
        }


class Variance(Metric):
    """The weighted variance, `sum(w * (x - mean)**2) / (sum(w) - ddof)`, stable at any offset.

    `update(values, *, weights=None)`: values of any shape, all one population; weights count as
    repetitions. NaN unless the total weight exceeds `ddof`.

    Args:
        ddof: 0 for the population's variance (as `numpy.var`), 1 for the unbiased estimate.
        on_invalid: as for `Mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Variance
        >>> print(Variance().update(jnp.array([10001.0, 10003.0])).compute())
        1.0
    """

    def __init__(self, *, ddof: float = 0, on_invalid: str = "exclude"):
        self.ddof, self.on_invalid = ddof, check_policy(on_invalid)
        self.statistic = Moments()

    def compute(self) -> jax.Array:
        return self.statistic.variance(self.ddof)


class Std(Metric):
    """The weighted standard deviation, the root of `Variance`, in all else the same.

    Args:
        ddof: as for `Variance`.
        on_invalid: as for `Mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Std
        >>> print(Std().update(jnp.array([10001.0, 10003.0])).compute())
        1.0
    """

    def __init__(self, *, ddof: float = 0, on_invalid: str = "exclude"):
        self.ddof, self.on_invalid = ddof, check_policy(on_invalid)
        self.statistic = Moments()

    def compute(self) -> jax.Array:
        return jnp.sqrt(self.statistic.variance(self.ddof))


def _or_nan(x: jax.Array) -> jax.Array:
    # Infinities are never counted, so one here is the identity: no data.
    return jnp.where(jnp.isfinite(x), x, jnp.asarray(jnp.nan, x.dtype))
