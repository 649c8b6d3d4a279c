"""Means of losses: squared, absolute, relative, logarithmic, robust, deviances."""

import math
from collections.abc import Callable
from typing import ClassVar

import jax

from datarax._checks import finite_number
from datarax.algebra.fields import field, state
from datarax.metric.sampling import Ratio, Sampling
from datarax.metrics.regression.per_output import PerOutput, SquareOrRoot
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.scaling import nan_where
from datarax.statistics.loss_total import LossName, LossTotal


class LossMetric(PerOutput):
    """A metric that is computed from the total of a loss. It is the mean, unless overridden."""

    value_range = (0.0, math.inf)
    higher_is_better = False
    loss: ClassVar[LossName]
    """The name of the loss in `datarax.statistics.loss_total`."""
    checked: ClassVar[tuple[str, str, Callable[[float], bool]] | None] = None
    """The field with the parameter of the loss, what it should be, and the check of that."""
    parameter: float = field(default=0.0, init=False)
    """The parameter of the loss, if it has one."""

    statistic: LossTotal = state()

    def __post_init__(self) -> None:
        if self.checked:
            name, expected, fits = self.checked
            self.parameter = finite_number(getattr(self, name), name, expected, fits)
            setattr(self, name, self.parameter)
        super().__post_init__()
        self.statistic = LossTotal(self.loss, self.parameter, self.example_shape)

    @property
    def mean_loss(self) -> ScaledDouble:
        """The mean loss of each output, also beyond the range of floats."""
        return self.statistic.total.number / self.statistic.scale.number

    def by_output(self) -> jax.Array:
        return self.statistic.mean

    def sums(self) -> Ratio | None:
        """The total of the loss and its divisor, if outputs are not averaged."""
        sums = self.statistic.total.double, self.statistic.scale.double
        return sums if self.is_by_output else None

    def as_ratio(self) -> Ratio | None:
        # A subclass with a formula of its own, such as a root, is no ratio of the two sums.
        return self.sums() if type(self).by_output is LossMetric.by_output else None


class RootSampling(Sampling):
    """The standard error of the root of a mean loss."""

    def ratio(self) -> Ratio | None:
        return self.metric.sums()

    def slope(self) -> jax.Array:
        return 0.5 / self.metric.mean_loss.root()


class MeanSquaredError(SquareOrRoot, LossMetric):
    """The mean squared error, or its root.

    sum(w * e^2) / sum(w), with e = preds - target. Errors are subtracted before they are summed, so
    a common offset of predictions and targets costs no precision. No data gives NaN. As
    `sklearn.metrics.mean_squared_error`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MeanSquaredError
        >>> metric = MeanSquaredError().update(jnp.array([1.0, 2.0]), jnp.array([2.0, 5.0]))
        >>> print(metric.compute())
        5.0
    """

    short_name = "mse"
    loss = "squared"

    def square_by_output(self) -> ScaledDouble:
        return self.mean_loss

    def as_ratio(self) -> Ratio | None:
        return self.sums() if self.squared else None

    def sampling(self) -> Sampling:
        return super().sampling() if self.squared else RootSampling(self)


class RootMeanSquaredError(LossMetric):
    """The root of the mean squared error, in the unit of the target.

    sqrt(sum(w * e^2) / sum(w)), with e = preds - target. With several outputs, the roots are
    averaged. No data gives NaN. As `sklearn.metrics.root_mean_squared_error`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RootMeanSquaredError
        >>> metric = RootMeanSquaredError().update(jnp.array([1.0, 2.0]), jnp.array([4.0, 5.0]))
        >>> print(metric.compute())
        3.0
    """

    short_name = "rmse"
    loss = "squared"

    def sampling(self) -> Sampling:
        return RootSampling(self)

    def by_output(self) -> jax.Array:
        return self.mean_loss.root()


class MeanAbsoluteError(LossMetric):
    """The mean absolute error.

    sum(w * |preds - target|) / sum(w). No data gives NaN. As `sklearn.metrics.mean_absolute_error`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MeanAbsoluteError
        >>> metric = MeanAbsoluteError().update(jnp.array([1.0, 2.0]), jnp.array([2.0, 5.0]))
        >>> print(metric.compute())
        2.0
    """

    short_name = "mae"
    loss = "absolute"


class MeanSquaredLogError(SquareOrRoot, LossMetric):
    """The mean squared difference of logarithms, or its root: it measures the error as a ratio.

    The mean of (log(1 + preds) - log(1 + target))^2. The difference is computed as the logarithm of
    a quotient, so no digits cancel. Examples with a value of at most -1 are invalid. No data gives
    NaN. As `sklearn.metrics.mean_squared_log_error`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MeanSquaredLogError
        >>> metric = MeanSquaredLogError().update(jnp.array([1.0, 3.0]), jnp.array([0.0, 3.0]))
        >>> print(round(float(metric.compute()), 4))
        0.2402
    """

    loss = "squared log"

    def square_by_output(self) -> ScaledDouble:
        return self.mean_loss


class MeanAbsolutePercentageError(LossMetric):
    """The mean absolute error relative to the target; 0.1 is 10 percent.

    The mean of |preds - target| / max(|target|, 2^-52). A target of 0 gives a huge value. No data
    gives NaN. As `sklearn.metrics.mean_absolute_percentage_error`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MeanAbsolutePercentageError
        >>> metric = MeanAbsolutePercentageError()
        >>> print(metric.update(jnp.array([1.0, 3.0]), jnp.array([2.0, 4.0])).compute())
        0.375
    """

    short_name = "mape"
    loss = "absolute percentage"
    parameter = 2.0**-52  # the least divisor, as in scikit-learn


class SymmetricMeanAbsolutePercentageError(LossMetric):
    """The mean absolute error relative to the mean size of prediction and target.

    The mean of 2 |preds - target| / (|preds| + |target|), from 0 to 2; 0 where both are 0.
    Definitions without the factor 2 have half of this value, from 0 to 1. No data gives NaN.
    scikit-learn does not have this metric.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SymmetricMeanAbsolutePercentageError
        >>> metric = SymmetricMeanAbsolutePercentageError()
        >>> print(metric.update(jnp.array([1.0, 3.0]), jnp.array([3.0, 5.0])).compute())
        0.75
    """

    loss = "symmetric percentage"


class WeightedMeanAbsolutePercentageError(LossMetric):
    """The sum of absolute errors divided by the sum of absolute targets.

    sum(w * |preds - target|) / sum(w * |target|). NaN without data, and if every target is 0.
    scikit-learn does not have this metric.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import WeightedMeanAbsolutePercentageError
        >>> metric = WeightedMeanAbsolutePercentageError()
        >>> print(metric.update(jnp.array([1.0, 3.0]), jnp.array([3.0, 5.0])).compute())
        0.5
    """

    loss = "weighted percentage"


class LogCoshError(LossMetric):
    """The mean of the logarithm of the hyperbolic cosine of the error.

    The mean of log(cosh(e)), with e = preds - target: about e^2 / 2 for small errors, and about
    |e| - log 2 for large ones. Large errors do not overflow, and small ones lose no digits. No data
    gives NaN. scikit-learn does not have this metric.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import LogCoshError
        >>> metric = LogCoshError().update(jnp.array([1.0, 1000.0]), jnp.array([0.0, 0.0]))
        >>> print(round(float(metric.compute()), 3))
        499.87
    """

    loss = "log cosh"


class HuberLoss(LossMetric):
    """The mean of a loss that is quadratic for small errors and linear for large ones.

    The mean of e^2 / 2 where |e| <= delta, and of delta (|e| - delta / 2) beyond, with
    e = preds - target. No data gives NaN. P. J. Huber (1964),
    https://doi.org/10.1214/aoms/1177703732.

    Raises:
        MetricInputError: `delta` is not positive and finite.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import HuberLoss
        >>> print(HuberLoss().update(jnp.array([1.0, 5.0]), jnp.array([2.0, 3.0])).compute())
        1.0
    """

    loss = "huber"
    checked = "delta", "a number above 0", lambda x: x > 0
    delta: float = field(default=1.0, kw_only=False)
    """The absolute error above which the loss is linear; a number above 0."""


class QuantileLoss(LossMetric):
    """The pinball loss: it is least if the predictions are the quantile `q` of the target.

    The mean of q (target - preds) where the prediction is too low, and of (1 - q) (preds - target)
    where it is too high. No data gives NaN. As `sklearn.metrics.mean_pinball_loss`. R. Koenker and
    G. Bassett (1978), https://doi.org/10.2307/1913643.

    Raises:
        MetricInputError: `q` is not from 0 to 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import QuantileLoss
        >>> metric = QuantileLoss(0.75).update(jnp.array([1.0, 5.0]), jnp.array([3.0, 3.0]))
        >>> print(metric.compute())
        1.0
    """

    loss = "quantile"
    checked = "q", "a number from 0 to 1", lambda x: 0 <= x <= 1
    q: float = field(default=0.5, kw_only=False)
    """The quantile, from 0 to 1; 0.5 gives half of the mean absolute error."""


class MinkowskiDistance(LossMetric):
    """The Minkowski distance between the vectors of all predictions and of all targets.

    sum(w * |preds - target|^p)^(1 / p). It is a sum, not a mean, so it grows with the number of
    examples. No data gives NaN. As `scipy.spatial.distance.minkowski`.

    Raises:
        MetricInputError: `p` is not finite and at least 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MinkowskiDistance
        >>> metric = MinkowskiDistance(2).update(jnp.array([3.0, 0.0]), jnp.array([0.0, 4.0]))
        >>> print(metric.compute())
        5.0
    """

    loss = "power"
    checked = "p", "a number of at least 1", lambda x: x >= 1
    p: float = field(default=2.0, kw_only=False)
    """The power, at least 1: 1 gives the sum of absolute errors, 2 the Euclidean distance."""

    def by_output(self) -> jax.Array:
        # `scale` is the total weight here: 0 for no data.
        return nan_where(self.statistic.scale.value == 0, self.statistic.total.root(self.p))


class TweedieDeviance(LossMetric):
    """The mean deviance of a Tweedie distribution, whose variance is a power of its mean.

    The mean of 2 (target^(2 - k) / ((1 - k) (2 - k)) - target preds^(1 - k) / (1 - k)
    + preds^(2 - k) / (2 - k)) with k the power; for k of 1 and 2, the limit. No digits cancel if
    predictions are near the target. No data gives NaN. As `sklearn.metrics.mean_tweedie_deviance`.

    Predictions must be positive, unless the power is 0. Targets must not be negative if the power
    is at least 1, and must be positive if it is at least 2. Other examples are invalid.

    B. Jørgensen (1987), https://doi.org/10.1111/j.2517-6161.1987.tb01685.x.

    Raises:
        MetricInputError: `power` is between 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import TweedieDeviance
        >>> metric = TweedieDeviance(2).update(jnp.array([1.0, 2.0]), jnp.array([2.0, 2.0]))
        >>> print(round(float(metric.compute()), 4))
        0.3069
    """

    loss = "tweedie"
    checked = "power", "a number that is not between 0 and 1", lambda x: x <= 0 or x >= 1
    power: float = field(default=0.0, kw_only=False)
    """The power: any finite number that is not between 0 and 1. 0 is the normal distribution (the
    squared error), 1 Poisson, 2 gamma, 3 inverse Gaussian."""


class CriticalSuccessIndex(LossMetric):
    """Of the events that are predicted or observed, the share that is both: the threat score.

    hits / (hits + misses + false alarms). An event is a value of at least `threshold`: predicted in
    `preds`, observed in `target`. NaN without data, and if no event is predicted or
    observed. As `sklearn.metrics.jaccard_score` of the events. J. T. Schaefer (1990),
    https://doi.org/10.1175/1520-0434(1990)005<0570:TCSIAA>2.0.CO;2.

    Raises:
        MetricInputError: `threshold` is not a finite number.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import CriticalSuccessIndex
        >>> metric = CriticalSuccessIndex(0.5)
        >>> print(metric.update(jnp.array([0.9, 0.2, 0.5]), jnp.array([1.0, 0.7, 0.0])).compute())
        0.33333334
    """

    value_range = (0.0, 1.0)
    higher_is_better = True
    loss = "critical success"
    checked = "threshold", "a number", lambda x: True
    threshold: float = field(kw_only=False)
    """The least value that is an event."""
