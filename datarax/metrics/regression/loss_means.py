"""Errors by other measures than their square: relative, logarithmic, robust, extreme."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from datarax._errors import MetricInputError
from datarax.metrics.regression.per_output import PerOutput, nan_where
from datarax.statistics.loss_total import LossTotal
from datarax.statistics.losses import power_of

# As scikit-learn's: the least target that a percentage is taken of.
_LEAST_TARGET = float(np.finfo(np.float64).eps)


class LossMetric(PerOutput):
    """The mean of a loss, or what else is read from its total."""

    statistic: LossTotal
    _loss = ""
    _parameter = 0.0

    def __init__(
        self,
        *,
        num_outputs: int | None = None,
        multioutput: str = "uniform_average",
        on_invalid: str = "exclude",
    ):
        self._measure(self._parameter, num_outputs, multioutput, on_invalid)

    def _measure(
        self, parameter: float, num_outputs: int | None, multioutput: str, on_invalid: str
    ) -> None:
        shape = self._configure(num_outputs, multioutput, on_invalid)
        self.statistic = LossTotal(self._loss, parameter, shape)

    def _each(self) -> jax.Array:
        return self.statistic.mean


class MeanSquaredLogError(LossMetric):
    """The mean of `(log(1 + preds) - log(1 + target))**2`, or its root: an error of ratios.

    `update(preds, target, *, weights=None)` as for `MeanSquaredError`; values of at most -1 cannot
    be used. As `sklearn.metrics.mean_squared_log_error`. The difference of the logarithms is taken
    as one of a quotient, so nothing cancels. No data gives NaN.

    Args:
        squared: False for the root, of each output.
        num_outputs: as for `MeanSquaredError`.
        multioutput: as for `MeanSquaredError`.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MeanSquaredLogError
        >>> metric = MeanSquaredLogError().update(jnp.array([1.0, 3.0]), jnp.array([0.0, 3.0]))
        >>> print(round(float(metric.compute()), 4))
        0.2402
    """

    _loss = "squared log"

    def __init__(
        self,
        *,
        squared: bool = True,
        num_outputs: int | None = None,
        multioutput: str = "uniform_average",
        on_invalid: str = "exclude",
    ):
        super().__init__(num_outputs=num_outputs, multioutput=multioutput, on_invalid=on_invalid)
        self.squared = bool(squared)

    def _each(self) -> jax.Array:
        return self.statistic.mean if self.squared else jnp.sqrt(self.statistic.mean)


class MeanAbsolutePercentageError(LossMetric):
    """The mean of `|preds - target| / max(|target|, 2.2e-16)`: 0.1 is 10 percent.

    `update(preds, target, *, weights=None)` as for `MeanSquaredError`. As
    `sklearn.metrics.mean_absolute_percentage_error`: a target of 0 gives a huge value, which a
    larger bound elsewhere makes a smaller one. No data gives NaN.

    Args:
        num_outputs: as for `MeanSquaredError`.
        multioutput: as for `MeanSquaredError`.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MeanAbsolutePercentageError
        >>> metric = MeanAbsolutePercentageError()
        >>> print(metric.update(jnp.array([1.0, 3.0]), jnp.array([2.0, 4.0])).compute())
        0.375
    """

    _loss = "absolute percentage"
    _parameter = _LEAST_TARGET


class SymmetricMeanAbsolutePercentageError(LossMetric):
    """The mean of `2 |preds - target| / (|preds| + |target|)`, from 0 to 2; 0 where both are 0.

    `update(preds, target, *, weights=None)` as for `MeanSquaredError`. scikit-learn has none;
    definitions without the 2, from 0 to 1, are half of this one. No data gives NaN.

    Args:
        num_outputs: as for `MeanSquaredError`.
        multioutput: as for `MeanSquaredError`.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SymmetricMeanAbsolutePercentageError
        >>> metric = SymmetricMeanAbsolutePercentageError()
        >>> print(metric.update(jnp.array([1.0, 3.0]), jnp.array([3.0, 5.0])).compute())
        0.75
    """

    _loss = "symmetric percentage"


class WeightedMeanAbsolutePercentageError(LossMetric):
    """The sum of absolute errors over that of absolute targets, `sum |e| / sum |target|`.

    `update(preds, target, *, weights=None)` as for `MeanSquaredError`; an example's weight counts
    in both sums. scikit-learn has none. NaN without data, and where each target is 0.

    Args:
        num_outputs: as for `MeanSquaredError`.
        multioutput: as for `MeanSquaredError`.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import WeightedMeanAbsolutePercentageError
        >>> metric = WeightedMeanAbsolutePercentageError()
        >>> print(metric.update(jnp.array([1.0, 3.0]), jnp.array([3.0, 5.0])).compute())
        0.5
    """

    _loss = "weighted percentage"


class LogCoshError(LossMetric):
    """The mean of `log(cosh(preds - target))`: `e**2 / 2` near zero, and `|e| - log 2` far off.

    `update(preds, target, *, weights=None)` as for `MeanSquaredError`. Neither overflows where e is
    large, nor cancels where it is small. scikit-learn has none. No data gives NaN.

    Args:
        num_outputs: as for `MeanSquaredError`.
        multioutput: as for `MeanSquaredError`.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import LogCoshError
        >>> metric = LogCoshError().update(jnp.array([1.0, 1000.0]), jnp.array([0.0, 0.0]))
        >>> print(round(float(metric.compute()), 3))
        499.87
    """

    _loss = "log cosh"


class HuberLoss(LossMetric):
    """The mean of `e**2 / 2` up to `|e| = delta`, and of `delta (|e| - delta / 2)` beyond.

    `update(preds, target, *, weights=None)` as for `MeanSquaredError`. No data gives NaN. Huber
    (1964), https://doi.org/10.1214/aoms/1177703732.

    Args:
        delta: where the square turns into a line; above 0.
        num_outputs: as for `MeanSquaredError`.
        multioutput: as for `MeanSquaredError`.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import HuberLoss
        >>> print(HuberLoss().update(jnp.array([1.0, 5.0]), jnp.array([2.0, 3.0])).compute())
        1.0
    """

    _loss = "huber"

    def __init__(
        self,
        *,
        delta: float = 1.0,
        num_outputs: int | None = None,
        multioutput: str = "uniform_average",
        on_invalid: str = "exclude",
    ):
        parameter = checked(delta, "delta", "a number above 0", lambda x: x > 0)
        self._measure(parameter, num_outputs, multioutput, on_invalid)


class QuantileLoss(LossMetric):
    """The pinball loss, least for predictions of the target's quantile `q`.

    The mean of `q * (target - preds)` where the prediction is below, else of
    `(1 - q) * (preds - target)`. `update(preds, target, *, weights=None)` as for
    `MeanSquaredError`. As `sklearn.metrics.mean_pinball_loss`. No data gives NaN.

    Args:
        q: the quantile, from 0 to 1.
        num_outputs: as for `MeanSquaredError`.
        multioutput: as for `MeanSquaredError`.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import QuantileLoss
        >>> metric = QuantileLoss(q=0.75).update(jnp.array([1.0, 5.0]), jnp.array([3.0, 3.0]))
        >>> print(metric.compute())
        1.0
    """

    _loss = "quantile"

    def __init__(
        self,
        *,
        q: float = 0.5,
        num_outputs: int | None = None,
        multioutput: str = "uniform_average",
        on_invalid: str = "exclude",
    ):
        parameter = checked(q, "q", "a number from 0 to 1", lambda x: 0 <= x <= 1)
        self._measure(parameter, num_outputs, multioutput, on_invalid)


class MinkowskiDistance(LossMetric):
    """`sum(w * |preds - target|**p)**(1 / p)`: over all data, so that it grows with them.

    `update(preds, target, *, weights=None)` as for `MeanSquaredError`. As
    `scipy.spatial.distance.minkowski`. No data gives NaN.

    Args:
        p: the power, at least 1: 1 for the sum of absolute errors, 2 for Euclid's distance.
        num_outputs: as for `MeanSquaredError`.
        multioutput: as for `MeanSquaredError`.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MinkowskiDistance
        >>> metric = MinkowskiDistance(p=2).update(jnp.array([3.0, 0.0]), jnp.array([0.0, 4.0]))
        >>> print(metric.compute())
        5.0
    """

    _loss = "power"

    def __init__(
        self,
        *,
        p: float = 2.0,
        num_outputs: int | None = None,
        multioutput: str = "uniform_average",
        on_invalid: str = "exclude",
    ):
        parameter = checked(p, "p", "a number of at least 1", lambda x: x >= 1)
        self._measure(parameter, num_outputs, multioutput, on_invalid)

    def _each(self) -> jax.Array:
        total, p = self.statistic.total.value, self.statistic.parameter
        root = jnp.sqrt(total) if p == 2 else power_of(total, 1 / p)
        return nan_where(self.statistic.scale.value == 0, root)


class TweedieDeviance(LossMetric):
    """The mean deviance of a Tweedie distribution whose variance is the mean to a power.

    0 is the normal (the squared error), 1 Poisson, 2 gamma, 3 inverse Gaussian:
    `2 (target**(2 - k) / ((1 - k) (2 - k)) - target * preds**(1 - k) / (1 - k)
    + preds**(2 - k) / (2 - k))` with k the power, and its limits at 1 and 2. `update(preds, target,
    *, weights=None)` as for `MeanSquaredError`. As `sklearn.metrics.mean_tweedie_deviance`, where
    predictions near the target do not cancel. No data gives NaN.

    What the distribution cannot give cannot be used: predictions must be positive, save for power
    0; targets not negative from power 1 on, and positive from 2 on.

    Jørgensen (1987), https://doi.org/10.1111/j.2517-6161.1987.tb01685.x.

    Args:
        power: any number but those between 0 and 1.
        num_outputs: as for `MeanSquaredError`.
        multioutput: as for `MeanSquaredError`.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import TweedieDeviance
        >>> metric = TweedieDeviance(power=2).update(jnp.array([1.0, 2.0]), jnp.array([2.0, 2.0]))
        >>> print(round(float(metric.compute()), 4))
        0.3069
    """

    _loss = "tweedie"

    def __init__(
        self,
        *,
        power: float = 0.0,
        num_outputs: int | None = None,
        multioutput: str = "uniform_average",
        on_invalid: str = "exclude",
    ):
        outside = "a number that is not between 0 and 1"
        parameter = checked(power, "power", outside, lambda x: x <= 0 or x >= 1)
        self._measure(parameter, num_outputs, multioutput, on_invalid)


class CriticalSuccessIndex(LossMetric):
    """Hits over hits, misses and false alarms, of values that reach a threshold: the threat score.

    `update(preds, target, *, weights=None)` as for `MeanSquaredError`: an event is a value of at
    least `threshold`, predicted by `preds`, observed in `target`. scikit-learn's `jaccard_score` of
    the events is the same. NaN without data, and where nothing was predicted or observed.

    Schaefer (1990), https://doi.org/10.1175/1520-0434(1990)005<0570:TCSIAA>2.0.CO;2.

    Args:
        threshold: from which on a value is an event.
        num_outputs: as for `MeanSquaredError`.
        multioutput: as for `MeanSquaredError`.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import CriticalSuccessIndex
        >>> metric = CriticalSuccessIndex(threshold=0.5)
        >>> print(metric.update(jnp.array([0.9, 0.2, 0.5]), jnp.array([1.0, 0.7, 0.0])).compute())
        0.33333334
    """

    _loss = "critical success"

    def __init__(
        self,
        *,
        threshold: float,
        num_outputs: int | None = None,
        multioutput: str = "uniform_average",
        on_invalid: str = "exclude",
    ):
        parameter = checked(threshold, "threshold", "a number", lambda x: True)
        self._measure(parameter, num_outputs, multioutput, on_invalid)


def checked(value: Any, name: str, expected: str, fits: Any) -> float:
    """A number of the configuration, as a Python float."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not (number and np.isfinite(value) and fits(value)):
        raise MetricInputError(f"{name}={value!r}; expected {expected}")
    return float(value)
