"""Errors of real predictions, and the share of the variance of the target that they explain."""

import math
from collections.abc import Sequence
from typing import Literal

import jax

from datarax._checks import positive_int
from datarax._typing import PyTree
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.metric.sampling import Sampling
from datarax.metrics.regression.fourth_moments import FourthMoments, MomentSampling
from datarax.metrics.regression.per_output import PerOutput, SquareOrRoot
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.scaling import exponent_of, nan_where, one_where_zero, times_power_of_two
from datarax.statistics.cross_moments import Residuals


class ResidualMetric(PerOutput):
    """A metric that is computed from `Residuals`; in a `Collection`, such metrics share one."""

    higher_is_better = False
    statistic: Residuals = state()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.statistic = Residuals(self.example_shape)

    @property
    def mean_square(self) -> ScaledDouble:
        """The mean squared error of each output."""
        return self.statistic.squares / self.statistic.count


class NormalizedRootMeanSquaredError(ResidualMetric):
    """The root mean squared error divided by a scale of the target.

    sqrt(sum(w * e^2) / sum(w)) / scale, with e = preds - target; each output has its own scale. NaN
    without data, and if the scale is 0. scikit-learn does not have this metric; other libraries
    differ in the scale.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import NormalizedRootMeanSquaredError
        >>> metric = NormalizedRootMeanSquaredError()
        >>> print(metric.update(jnp.array([1.0, 2.0]), jnp.array([4.0, 5.0])).compute())
        3.0
    """

    normalization: Literal["range", "mean", "std"] = "range"
    """The scale. "range": the greatest minus the least target. "mean": the absolute value of the
    mean of the targets. "std": the standard deviation of the targets, divided by n."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.statistic = Residuals(self.example_shape, extremes=self.normalization == "range")

    def by_output(self) -> jax.Array:
        half = self.half_scale_by_output()
        # Half the error over half the scale.
        return nan_where(half == 0, self.mean_square.root() * 0.5 / one_where_zero(half))

    def half_scale_by_output(self) -> jax.Array:
        """Half the divisor of the error of each output, because a range may overflow."""
        residuals = self.statistic
        if self.normalization == "range":
            return residuals.half_range
        if self.normalization == "mean":
            return xp.abs(residuals.target_mean.to_float()) * 0.5
        return (residuals.target_squares / residuals.count).root() * 0.5


class RelativeSquaredError(SquareOrRoot, ResidualMetric):
    """The squared errors divided by those of a constant prediction, the mean target; or the root.

    sum(w * (preds - target)^2) / sum(w * (target - mean)^2), which is 1 - R2. NaN without data, and
    for a constant target, whose squared distance from its mean is 0. scikit-learn does not have
    this metric.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RelativeSquaredError
        >>> metric = RelativeSquaredError().update(jnp.array([3.0, 2.0]), jnp.array([2.0, 4.0]))
        >>> print(metric.compute())
        2.5
    """

    def square_by_output(self) -> ScaledDouble:
        return self.statistic.squares / self.statistic.target_squares


class ShareSampling(MomentSampling):
    """The standard error of a share of the variance of the target."""

    of_errors = True

    def variance_of_share(
        self, left: ScaledDouble, bias: ScaledDouble | None, squares: FourthMoments
    ) -> jax.Array:
        """The variance of `1 - left / squares`.

        Args:
            left: the argument of `ExplainedMetric.explained`.
            bias: the mean error, if `left` also grows with its square.
            squares: what `squares` gave, with the data.
        """
        seen = self.metric.statistic
        n, target = seen.count, seen.target_squares
        # The influence `left / squares * v**2 - (u + bias)**2`, over the variance of the target.
        minus = n / target * -1
        influence = {(2, 0): minus, (0, 2): n / target * (left / target)}
        if bias is not None:
            influence |= {(1, 0): minus * bias * 2, (0, 0): minus * bias * bias}
        return squares.variance(influence, (seen.error_mean, seen.target_mean), n)


class R2Sampling(ShareSampling):
    """The standard error of `R2Score`."""

    def variance(self, squares: FourthMoments) -> jax.Array:
        seen = self.metric.statistic
        return self.variance_of_share(seen.squares, seen.error_mean, squares)


class ExplainedSampling(ShareSampling):
    """The standard error of `ExplainedVariance`."""

    def variance(self, squares: FourthMoments) -> jax.Array:
        return self.variance_of_share(self.metric.statistic.error_squares, None, squares)


class ExplainedMetric(ResidualMetric):
    """One minus the share of the variance of the target that the predictions do not explain."""

    higher_is_better = True
    value_range = (-math.inf, 1.0)
    multioutput: (  # type: ignore[assignment]
        Literal["uniform_average", "raw_values", "variance_weighted"] | Sequence[float]
    ) = "uniform_average"
    """The average of the values of `num_outputs`: "uniform_average" is their mean, "raw_values"
    gives one value per output, "variance_weighted" weighs each output by the variance of its
    target, and numbers are the weight of each output in the mean."""
    averages = (*PerOutput.averages, "variance_weighted")
    force_finite: bool = True
    """The score of a constant target. True: 1 for perfect predictions, otherwise 0. False: NaN for
    perfect predictions, otherwise minus infinity. As in scikit-learn."""

    def explained(self, left: ScaledDouble) -> jax.Array:
        """`1 - left / squares` for each output.

        Args:
            left: the sum of squares that the predictions leave unexplained. `squares` is the sum of
                squares of the target about its mean.
        """
        squares = self.statistic.target_squares
        # Subtracted before the division is rounded, so a value near 0 keeps its digits.
        value = ((squares - left) / squares).to_float()
        perfect = left.double.high == 0
        if self.force_finite:
            of_constant = perfect.astype(value.dtype)
        else:
            of_constant = nan_where(perfect, xp.full_like(value, -xp.inf))
        value = xp.where(squares.double.high > 0, value, of_constant)
        return nan_where(self.statistic.count.double.high == 0, value)

    def output_weights(self, values: jax.Array) -> jax.Array:
        if self.multioutput != "variance_weighted":
            return super().output_weights(values)
        # As in scikit-learn, all outputs have the same weight if no target varies. The squares are
        # scaled by that of the greatest, so that their sum does not overflow.
        squares = self.statistic.target_squares
        some = squares.double.high > 0
        exponent = squares.exponent + exponent_of(squares.double.high)
        greatest = xp.max(xp.where(some, exponent, -(2**30)))
        relative = times_power_of_two(squares.double.to_float(), squares.exponent - greatest)
        return xp.where(xp.any(some), relative, 1)


class R2Score(ExplainedMetric):
    """The coefficient of determination.

    1 - sum(w * (preds - target)^2) / sum(w * (target - mean)^2), with the mean of the targets. A
    large offset costs no precision. NaN without data, and for a single example. As
    `sklearn.metrics.r2_score`, also for a constant target: see `force_finite`.

    Weights count as repetitions: one example of weight 2 is a constant target of two examples;
    scikit-learn counts it as one example, and gives NaN. Of a weight up to 1, each row is one
    example, so weights may be normalised.

    Raises:
        MetricInputError: `adjusted` is not an integer of at least 0.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import R2Score
        >>> preds, target = jnp.array([2.5, 0.0, 2.0, 8.0]), jnp.array([3.0, -0.5, 2.0, 7.0])
        >>> print(round(float(R2Score().update(preds, target).compute()), 4))
        0.9486
    """

    short_name = "r2"
    adjusted: int = 0
    """The number k of regressors for the adjusted R2, 1 - (1 - R2) (n - 1) / (n - k - 1); n is the
    total weight. NaN if n is at most k + 1. With 0, R2 is not adjusted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int(self.adjusted, "adjusted", least=0)

    def by_output(self) -> jax.Array:
        residuals = self.statistic
        return nan_where(residuals.examples.is_single, self.explained(residuals.squares))

    def sampling(self) -> Sampling:
        return super().sampling() if self.adjusted else R2Sampling(self)

    def compute(self) -> PyTree:
        value = super().compute()
        if not self.adjusted:
            return value
        n = self.statistic.count
        if self.num_outputs is not None:
            n = n[0]  # the same for all outputs
        # Subtracted before they are rounded: of float weights, n may be just above k + 1.
        one = ScaledDouble.of(xp.ones((), n.double.dtype))
        freedom, others = n - one * (self.adjusted + 1), n - one
        is_positive = freedom.double.high > 0
        return nan_where(~is_positive, 1 - (1 - value) * (others / freedom).to_float())


class ExplainedVariance(ExplainedMetric):
    """The fraction of the variance of the target that is explained.

    1 - var(preds - target) / var(target). Unlike `R2Score`, it does not change if a constant is
    added to all predictions. No data gives NaN. As `sklearn.metrics.explained_variance_score`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ExplainedVariance
        >>> metric = ExplainedVariance().update(jnp.array([6.0, 8.0]), jnp.array([1.0, 3.0]))
        >>> print(metric.compute())
        1.0
    """

    def by_output(self) -> jax.Array:
        return self.explained(self.statistic.error_squares)

    def sampling(self) -> ExplainedSampling:
        return ExplainedSampling(self)
