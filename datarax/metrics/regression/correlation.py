"""How predictions and targets vary together, from their moments."""

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax.metrics.base import Metric, check_policy
from datarax.metrics.regression.per_output import PerOutput, nan_where, or_one
from datarax.statistics.cross_moments import CrossMoments
from datarax.statistics.loss_total import LossTotal


class _Correlation(PerOutput):
    """A metric that is read from `CrossMoments`: all of them share one in a `Collection`."""

    statistic: CrossMoments

    def __init__(
        self,
        *,
        num_outputs: int | None = None,
        multioutput: str = "uniform_average",
        on_invalid: str = "exclude",
    ):
        self.statistic = CrossMoments(self._configure(num_outputs, multioutput, on_invalid))


class PearsonCorrCoef(_Correlation):
    """Pearson's correlation, `cov(preds, target) / (std(preds) * std(target))`.

    `update(preds, target, *, weights=None)`: both of one shape and any real dtype, (...), or
    (..., num_outputs); `weights` broadcast against the leading axes, and count as repetitions. As
    `scipy.stats.pearsonr`, stable at any offset. NaN where either is constant, as by SciPy, and so
    for fewer than two examples.

    Args:
        num_outputs: how many values an example has, on the last axis, each with its own
            correlation. `None`: all values are one population.
        multioutput: with `num_outputs`: "uniform_average", or "raw_values" for one an output.
        on_invalid: for NaN, infinities and negative weights: "exclude" the example and count it,
            "propagate" (the result is NaN), or "raise" when the result is read on the host.

    Raises:
        MetricInputError: shapes that differ, even if they broadcast; shows both.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PearsonCorrCoef
        >>> preds, target = jnp.array([1e6, 1e6 + 1, 1e6 + 2]), jnp.array([1.0, 3.0, 2.0])
        >>> print(round(float(PearsonCorrCoef().update(preds, target).compute()), 4))
        0.5
    """

    def _each(self) -> jax.Array:
        seen = self.statistic
        return correlation_of(seen.co_moment[0], seen.preds_squares[0], seen.target_squares[0])


def correlation_of(co: jax.Array, p: jax.Array, t: jax.Array) -> jax.Array:
    """A co-moment over the roots of both sums of squares; NaN where either is 0."""
    none = (p == 0) | (t == 0)
    p, t = or_one(p), or_one(t)
    # The product of the squares may overflow. Their ratio is exact where they are equal, and so is
    # a perfect correlation; where it is extreme, one root at a time.
    ratio = p / t
    fine = (ratio > 1e-12) & (ratio < 1e12)
    root = jnp.sqrt(jnp.where(fine, ratio, jnp.ones((), p.dtype)))
    value = jnp.where(fine, co / t / root, co / jnp.sqrt(p) / jnp.sqrt(t))
    return nan_where(none, jnp.clip(value, -1, 1))


class ConcordanceCorrCoef(_Correlation):
    """Lin's concordance: the correlation, less for a difference in location or scale.

    `2 * cov / (var(preds) + var(target) + (mean(preds) - mean(target))**2)`, with the moments of
    the population (divided by n), as Lin has it; libraries that divide variances by n - 1 are off
    by as much. `update(preds, target, *, weights=None)` as for `PearsonCorrCoef`. NaN without
    data, and where both are one constant.

    Lin (1989), https://doi.org/10.2307/2532051.

    Args:
        num_outputs: as for `PearsonCorrCoef`.
        multioutput: as for `PearsonCorrCoef`.
        on_invalid: as for `PearsonCorrCoef`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ConcordanceCorrCoef
        >>> metric = ConcordanceCorrCoef().update(jnp.array([2.0, 4.0]), jnp.array([1.0, 3.0]))
        >>> print(round(float(metric.compute()), 4))
        0.6667
    """

    def _each(self) -> jax.Array:
        seen = self.statistic
        mean = seen.target_mean
        apart = nx.pair_add(seen.preds_mean, (-mean[0], -mean[1]))
        squares = nx.pair_add(seen.preds_squares, seen.target_squares)
        between = nx.pair_product(seen.count, nx.pair_product(apart, apart))
        co = seen.co_moment
        return nx.pair_divide((2 * co[0], 2 * co[1]), nx.pair_add(squares, between))


class CosineSimilarity(Metric):
    """The mean over rows of the cosine of the angle between prediction and target.

    `update(preds, target, *, weights=None)`: both (..., D), of any real dtype; `weights` broadcast
    against the leading axes, one a row. A row of zeros has similarity 0, as for
    `sklearn.metrics.pairwise.cosine_similarity`. No data gives NaN.

    Args:
        on_invalid: as for `PearsonCorrCoef`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import CosineSimilarity
        >>> preds, target = jnp.array([[3.0, 4.0], [1.0, 0.0]]), jnp.array([[6.0, 8.0], [0.0, 2.0]])
        >>> print(round(float(CosineSimilarity().update(preds, target).compute()), 4))
        0.5
    """

    def __init__(self, *, on_invalid: str = "exclude"):
        self.on_invalid = check_policy(on_invalid)
        self.statistic = LossTotal("cosine")

    def compute(self) -> jax.Array:
        return self.statistic.mean
