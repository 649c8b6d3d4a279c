"""Correlations of predictions and targets, computed from their moments."""

import jax

from datarax._typing import PyTree
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.metrics.regression.fourth_moments import FourthMoments, MomentSampling
from datarax.metrics.regression.per_output import PerOutput, RegressionMetric
from datarax.numerics.products import correlation_coefficient
from datarax.numerics.scaling import nan_where
from datarax.numerics.special import t_p_value
from datarax.statistics.cross_moments import CrossMoments
from datarax.statistics.loss_total import LossTotal


def fisher_ends(value: jax.Array, margin: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The ends of an interval about a correlation, within -1 and 1.

    It is symmetric on the scale of Fisher's transform, the inverse of tanh.
    """
    inside = xp.abs(value) < 1
    x = xp.where(inside, value, 0)
    middle, half = xp.arctanh(x), margin / (1 - x * x)
    outside = nan_where(xp.isnan(margin), value)
    lower, upper = xp.tanh(middle - half), xp.tanh(middle + half)
    return xp.where(inside, lower, outside), xp.where(inside, upper, outside)


class CorrelationSampling(MomentSampling):
    """The standard error of a correlation. Its interval is that of Fisher."""

    def ends(self, value: jax.Array, margin: jax.Array) -> tuple[jax.Array, jax.Array]:
        return fisher_ends(value, margin)


class PearsonSampling(CorrelationSampling):
    """The standard error of `PearsonCorrCoef`."""

    def variance(self, squares: FourthMoments) -> jax.Array:
        seen = self.metric.statistic
        p, t, co = seen.preds_squares, seen.target_squares, seen.co_moment
        # The influence `z_p z_t - r (z_p**2 + z_t**2) / 2`, times the quotient of both deviations.
        n = seen.count
        one = n / p
        influence = {(1, 1): one, (2, 0): co / p * one * -0.5, (0, 2): co / t * one * -0.5}
        variance = squares.variance(influence, (seen.preds_mean, seen.target_mean), n)
        return variance * (p / t).to_float()


class ConcordanceSampling(CorrelationSampling):
    """The standard error of `ConcordanceCorrCoef`."""

    def variance(self, squares: FourthMoments) -> jax.Array:
        seen = self.metric.statistic
        n, means = seen.count, (seen.preds_mean, seen.target_mean)
        d = seen.moments.difference_of_means
        divisor = (seen.preds_squares + seen.target_squares) / n + d * d
        value = seen.co_moment * 2 / n / divisor
        of_squares = -(value / divisor)
        influence = {
            (1, 1): n / n / divisor * 2,
            (2, 0): of_squares,
            (0, 2): of_squares,
            (1, 0): of_squares * d * 2,
            (0, 1): of_squares * d * -2,
            (0, 0): of_squares * d * d,
        }
        return squares.variance(influence, means, n)


class CorrelationMetric(PerOutput):
    """A metric that is computed from `CrossMoments`; in a `Collection`, such metrics share one."""

    higher_is_better = True
    statistic: CrossMoments = state()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.statistic = CrossMoments(self.example_shape)


def _pearson(moments: CrossMoments) -> jax.Array:
    return correlation_coefficient(
        # The units cancel.
        moments.co_moment.double.to_float(),
        moments.preds_squares.double.to_float(),
        moments.target_squares.double.to_float(),
    )


class PearsonCorrCoef(CorrelationMetric):
    """Pearson's correlation coefficient.

    cov(preds, target) / (std(preds) * std(target)); stable at any offset. NaN where either is
    constant, and so for fewer than two examples. As `scipy.stats.pearsonr`. K. Pearson (1895),
    https://doi.org/10.1098/rspl.1895.0041.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PearsonCorrCoef
        >>> preds, target = jnp.array([1e6, 1e6 + 1, 1e6 + 2]), jnp.array([1.0, 3.0, 2.0])
        >>> print(round(float(PearsonCorrCoef().update(preds, target).compute()), 4))
        0.5
    """

    def by_output(self) -> jax.Array:
        return _pearson(self.statistic)

    def sampling(self) -> PearsonSampling:
        return PearsonSampling(self)


def p_value_by_t(value: jax.Array, n: jax.Array) -> jax.Array:
    """The p-value of a correlation of `n` examples, by Student's t: see `PearsonTest`."""
    left = (1 - value) * (1 + value)
    t = xp.abs(value) * xp.sqrt(xp.maximum(n - 2, 0) / xp.where(left > 0, left, 1))
    return of_three(value, n, xp.where(left > 0, t_p_value(t, n - 2), 0))


def of_three(value: jax.Array, n: jax.Array, p_value: jax.Array) -> jax.Array:
    """The p-value of at least three examples: 1 for two, and NaN where the correlation is NaN."""
    p_value = xp.where(n == 2, 1, nan_where(n < 3, p_value))
    return nan_where(xp.isnan(value), p_value)


class PearsonTest(RegressionMetric):
    """The test that predictions and targets are not correlated, by Pearson's correlation.

    A dict: "correlation", r, and "p_value", the probability that Student's t of n - 2 degrees of
    freedom is beyond `r * sqrt((n - 2) / (1 - r**2))` in size, for n examples (the total weight).
    It is exact if one of both is normal and they are independent. For n = 2 it is 1. NaN where
    either is constant, and for any other n below 3. Float weights count as repetitions, for which a
    p-value means little. All values are one population. Inside `jit`, with more than 66 examples,
    the relative error is below 1e-3 for p-values above 1e-6.

    As `scipy.stats.pearsonr`. `PearsonCorrCoef` shares its statistic in a `Collection`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PearsonTest
        >>> preds, target = jnp.array([1.0, 2.0, 3.0, 4.0]), jnp.array([1.0, 3.0, 2.0, 4.0])
        >>> for name, value in PearsonTest().update(preds, target).results().items():
        ...     print(name, round(value, 4))
        correlation 0.8
        p_value 0.2
    """

    statistic = CrossMoments(())

    def compute(self) -> PyTree:
        value, n = _pearson(self.statistic), self.statistic.count.to_float()
        return {"correlation": value, "p_value": p_value_by_t(value, n)}


class ConcordanceCorrCoef(CorrelationMetric):
    """Lin's concordance: the correlation, reduced by a difference in location or scale.

    2 cov / (var(preds) + var(target) + (mean(preds) - mean(target))^2). The moments are those of
    the population (divided by n), as in Lin's paper; libraries that divide the variances by n - 1
    give another value. NaN without data, and where both are the same constant. L. I. Lin (1989),
    https://doi.org/10.2307/2532051.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ConcordanceCorrCoef
        >>> metric = ConcordanceCorrCoef().update(jnp.array([2.0, 4.0]), jnp.array([1.0, 3.0]))
        >>> print(round(float(metric.compute()), 4))
        0.6667
    """

    def by_output(self) -> jax.Array:
        moments = self.statistic
        difference = moments.moments.difference_of_means
        squares = moments.preds_squares + moments.target_squares
        # All terms are multiplied by n: they are sums of squares, not variances.
        between = moments.count * (difference * difference)
        return (moments.co_moment * 2 / (squares + between)).to_float()

    def sampling(self) -> ConcordanceSampling:
        return ConcordanceSampling(self)


class CosineSimilarity(RegressionMetric):
    """The mean over rows of the cosine of the angle between prediction and target.

    `preds` and `target` are (..., D), and `weights` broadcast against the leading axes, one per
    row. A row of zeros has similarity 0. No data gives NaN. As
    `sklearn.metrics.pairwise.cosine_similarity`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import CosineSimilarity
        >>> preds, target = jnp.array([[3.0, 4.0], [1.0, 0.0]]), jnp.array([[6.0, 8.0], [0.0, 2.0]])
        >>> print(round(float(CosineSimilarity().update(preds, target).compute()), 4))
        0.5
    """

    higher_is_better = True
    statistic = LossTotal("cosine")

    def compute(self) -> PyTree:
        return self.statistic.mean
