"""Errors of forecasts, divided by those of a naive forecast."""

from typing import Self

import jax

from datarax._checks import numeric, same_shape
from datarax._typing import ArrayLike, Weights
from datarax._xp import lax
from datarax.algebra.fields import state
from datarax.metric.declared import shareable
from datarax.metric.sampling import Sampling
from datarax.metrics.regression.loss_means import LossMetric, RootSampling
from datarax.statistics.batches import pairs, rows_weight
from datarax.statistics.invalid_counts import not_finite
from datarax.statistics.loss_total import LossTotal


class ForecastErrors(LossTotal, kw_only=False):
    """The sum of `w * loss(preds, target)`, and that of `w * loss(naive, target)`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.regression.scaled_errors import ForecastErrors
        >>> preds, target, naive = jnp.array([[1.0, 2.0], [2.0, 4.0], [0.0, 1.0]])
        >>> seen = ForecastErrors("absolute").update(preds, target, naive)
        >>> print(seen.total.value, seen.scale.value, seen.mean)
        3.0 5.0 0.6
    """

    def update(  # pyright: ignore[reportIncompatibleMethodOverride]  # one more array
        self, preds: ArrayLike, target: ArrayLike, naive: ArrayLike, *, weights: Weights = None
    ) -> Self:
        """Folds in arrays of one shape, (..., *shape).

        Examples that hold a NaN or an infinity are excluded and counted.
        """
        naive = numeric(naive, "naive", any_range=True)
        p, t, _, _ = pairs(preds, target, None, self.shape, any_range=True)
        same_shape(t, naive, ("target", "naive"))
        axes = tuple(range(t.ndim - len(self.shape), t.ndim))
        w, invalid = rows_weight(not_finite(p, axes, t) | not_finite(naive, axes), weights)
        w = lax.expand_dims(w, range(w.ndim, t.ndim))
        errors = (self.terms(forecast, t, w)[0] for forecast in (p, naive))
        return self.with_batch(invalid, sums=self.sums.plus(*errors))


class ScaledError(LossMetric):
    """The total loss of forecasts, divided by that of naive forecasts; a subclass has a formula."""

    tasks = ()  # `naive` is no argument of a task
    statistic: ForecastErrors = state()

    def __post_init__(self) -> None:
        super().__post_init__()
        errors = ForecastErrors(self.loss, self.parameter, self.example_shape)
        self.statistic = errors  # pyright: ignore[reportIncompatibleVariableOverride]

    @shareable
    def update(  # pyright: ignore[reportIncompatibleMethodOverride]  # one more array
        self, preds: ArrayLike, target: ArrayLike, naive: ArrayLike, *, weights: Weights = None
    ) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: forecasts of any real dtype, (...); with `num_outputs`, (..., num_outputs).
            target: what happened, of exactly the shape of `preds`.
            naive: the naive forecasts, of the same shape: the last known value, for example, or
                that of a season before.
            weights: broadcast against the leading axes; count as repetitions, zero excludes.

        Raises:
            MetricInputError: the shapes differ, even if they would broadcast; shows both.
            MetricTypeError: the values are not real numbers.
        """
        return self.replace(statistic=self.statistic.update(preds, target, naive, weights=weights))


class MeanAbsoluteScaledError(ScaledError):
    """The absolute error of forecasts, divided by that of naive forecasts: MASE.

    sum(w * |preds - target|) / sum(w * |naive - target|). Below 1, the forecasts are better than
    the naive ones. The naive forecasts are an argument of `update`, so that they can be those of
    the training data, of a season before, or of another model. For the mean over several series of
    the value of each, give one series per column and `num_outputs=`, or a series number to
    `Sliced`. NaN without data, and if every naive forecast is right.

    R. J. Hyndman and A. B. Koehler (2006), https://doi.org/10.1016/j.ijforecast.2006.03.001.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MeanAbsoluteScaledError
        >>> series = jnp.array([1.0, 3.0, 2.0, 6.0])
        >>> target, naive = series[1:], series[:-1]  # the value before
        >>> metric = MeanAbsoluteScaledError().update(jnp.array([2.0, 2.5, 4.0]), target, naive)
        >>> print(metric.compute())
        0.5
    """

    short_name = "mase"
    loss = "absolute"


class RootMeanSquaredScaledError(ScaledError):
    """The root of the squared error of forecasts, divided by that of naive forecasts: RMSSE.

    sqrt(sum(w * (preds - target)^2) / sum(w * (naive - target)^2)). Below 1, the forecasts are
    better than the naive ones. With several outputs, one series per column, the roots are averaged.
    NaN without data, and if every naive forecast is right.

    As the measure of the M5 competition: S. Makridakis, E. Spiliotis and V. Assimakopoulos (2022),
    https://doi.org/10.1016/j.ijforecast.2021.07.007.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RootMeanSquaredScaledError
        >>> series = jnp.array([1.0, 3.0, 2.0, 6.0])
        >>> target, naive = series[1:], series[:-1]  # the value before
        >>> metric = RootMeanSquaredScaledError().update(jnp.array([2.0, 2.5, 4.0]), target, naive)
        >>> print(metric.compute())
        0.5
    """

    short_name = "rmsse"
    loss = "squared"

    def sampling(self) -> Sampling:
        return RootSampling(self)

    def by_output(self) -> jax.Array:
        return self.mean_loss.root()
