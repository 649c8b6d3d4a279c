"""Errors of real predictions, and how much of the target's variance they leave."""

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import choice, positive_int
from datarax.metrics.regression.per_output import (
    MULTIOUTPUT,
    PerOutput,
    float_of,
    nan_where,
    or_one,
)
from datarax.statistics.cross_moments import Residuals


class _ResidualMetric(PerOutput):
    """A metric that is read from `Residuals`: all of them share one in a `Collection`."""

    statistic: Residuals

    def __init__(
        self,
        *,
        num_outputs: int | None = None,
        multioutput: str = "uniform_average",
        on_invalid: str = "exclude",
    ):
        self.statistic = Residuals(self._configure(num_outputs, multioutput, on_invalid))

    def _mean_square(self) -> jax.Array:
        return nx.pair_divide(self.statistic.squares, self.statistic.count)


class MeanSquaredError(_ResidualMetric):
    """The mean squared error, `sum(w * (preds - target)**2) / sum(w)`, or its root.

    `update(preds, target, *, weights=None)`: both of one shape and any real dtype, (...), or
    (..., num_outputs); `weights` broadcast against the leading axes. As
    `sklearn.metrics.mean_squared_error`. Errors are taken first, so an offset of both costs
    nothing. No data gives NaN.

    Args:
        squared: False for the root, of each output, as `RootMeanSquaredError`.
        num_outputs: how many values an example has, on the last axis, each with its own error.
            `None`: all values are one population.
        multioutput: with `num_outputs`: "uniform_average", or "raw_values" for one an output.
        on_invalid: for NaN, infinities and negative weights: "exclude" the example and count it,
            "propagate" (the result is NaN), or "raise" when the result is read on the host.

    Raises:
        MetricInputError: shapes that differ, even if they broadcast; shows both.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MeanSquaredError
        >>> metric = MeanSquaredError().update(jnp.array([1.0, 2.0]), jnp.array([2.0, 5.0]))
        >>> print(metric.compute())
        5.0
    """

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
        value = self._mean_square()
        return value if self.squared else jnp.sqrt(value)


class RootMeanSquaredError(MeanSquaredError):
    """The root of the mean squared error, in the unit of the target.

    `update(preds, target, *, weights=None)` as for `MeanSquaredError`. With several outputs, the
    roots are averaged, as by `sklearn.metrics.root_mean_squared_error`. No data gives NaN.

    Args:
        num_outputs: as for `MeanSquaredError`.
        multioutput: as for `MeanSquaredError`.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RootMeanSquaredError
        >>> metric = RootMeanSquaredError().update(jnp.array([1.0, 2.0]), jnp.array([4.0, 5.0]))
        >>> print(metric.compute())
        3.0
    """

    def __init__(
        self,
        *,
        num_outputs: int | None = None,
        multioutput: str = "uniform_average",
        on_invalid: str = "exclude",
    ):
        super().__init__(
            squared=False, num_outputs=num_outputs, multioutput=multioutput, on_invalid=on_invalid
        )


class NormalizedRootMeanSquaredError(_ResidualMetric):
    """The root mean squared error, divided by a scale of the target.

    `update(preds, target, *, weights=None)` as for `MeanSquaredError`. scikit-learn has none, and
    others disagree on the scale, so it is an argument. NaN without data, and where the scale is 0.

    Args:
        normalization: "range" (greatest less least target), "mean" (its absolute value) or "std"
            (of the population) of the target.
        num_outputs: as for `MeanSquaredError`; each output has its own scale.
        multioutput: as for `MeanSquaredError`.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import NormalizedRootMeanSquaredError
        >>> metric = NormalizedRootMeanSquaredError()
        >>> print(metric.update(jnp.array([1.0, 2.0]), jnp.array([4.0, 5.0])).compute())
        3.0
    """

    def __init__(
        self,
        *,
        normalization: str = "range",
        num_outputs: int | None = None,
        multioutput: str = "uniform_average",
        on_invalid: str = "exclude",
    ):
        choice(normalization, ("range", "mean", "std"), "normalization")
        self.normalization = normalization
        shape = self._configure(num_outputs, multioutput, on_invalid)
        self.statistic = Residuals(shape, extremes=normalization == "range")

    def _each(self) -> jax.Array:
        seen = self.statistic
        if self.normalization == "range":
            scale = seen.greatest.value - seen.least.value
        elif self.normalization == "mean":
            scale = jnp.abs(float_of(seen.target_mean))
        else:
            scale = jnp.sqrt(nx.pair_divide(seen.target_squares, seen.count))
        return nan_where(scale == 0, jnp.sqrt(self._mean_square()) / or_one(scale))


class MeanAbsoluteError(_ResidualMetric):
    """The mean absolute error, `sum(w * |preds - target|) / sum(w)`.

    `update(preds, target, *, weights=None)` as for `MeanSquaredError`. As
    `sklearn.metrics.mean_absolute_error`. No data gives NaN.

    Args:
        num_outputs: as for `MeanSquaredError`.
        multioutput: as for `MeanSquaredError`.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MeanAbsoluteError
        >>> metric = MeanAbsoluteError().update(jnp.array([1.0, 2.0]), jnp.array([2.0, 5.0]))
        >>> print(metric.compute())
        2.0
    """

    def _each(self) -> jax.Array:
        return nx.pair_divide(self.statistic.absolute.parts, self.statistic.count)


class RelativeSquaredError(_ResidualMetric):
    """The squared errors, beside those of the target's own mean: `1 - R2`, or its root.

    `sum(w * (preds - target)**2) / sum(w * (target - mean)**2)`. `update(preds, target, *,
    weights=None)` as for `MeanSquaredError`. scikit-learn has none. NaN without data, and where
    the target is constant, as then its mean has no error to compare with.

    Args:
        squared: False for the root, of each output.
        num_outputs: as for `MeanSquaredError`.
        multioutput: as for `MeanSquaredError`.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RelativeSquaredError
        >>> metric = RelativeSquaredError().update(jnp.array([3.0, 2.0]), jnp.array([2.0, 4.0]))
        >>> print(metric.compute())
        2.5
    """

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
        value = nx.pair_divide(self.statistic.squares, self.statistic.target_squares)
        return value if self.squared else jnp.sqrt(value)


class _Explained(_ResidualMetric):
    """One less the share of the target's variance that is left; how constant targets score."""

    def __init__(
        self,
        *,
        num_outputs: int | None = None,
        multioutput: str = "uniform_average",
        force_finite: bool = True,
        on_invalid: str = "exclude",
    ):
        allowed = (*MULTIOUTPUT, "variance_weighted")
        shape = self._configure(num_outputs, multioutput, on_invalid, allowed)
        self.force_finite = bool(force_finite)
        self.statistic = Residuals(shape)

    def _score(self, left: nx.Pair) -> jax.Array:
        squares = self.statistic.target_squares
        explained = nx.pair_divide(nx.pair_add(squares, (-left[0], -left[1])), squares)
        perfect = left[0] == 0
        if self.force_finite:
            constant = perfect.astype(explained.dtype)
        else:
            constant = nan_where(perfect, jnp.full_like(explained, -jnp.inf))
        value = jnp.where(squares[0] > 0, explained, constant)
        return nan_where(self.statistic.count[0] == 0, value)

    def _spread(self) -> jax.Array:
        return float_of(self.statistic.target_squares)


class R2Score(_Explained):
    """The coefficient of determination, `1 - sum(w * e**2) / sum(w * (target - mean)**2)`.

    `update(preds, target, *, weights=None)` as for `MeanSquaredError`; `e` is `preds - target`,
    and the mean is that of the targets. As `sklearn.metrics.r2_score`, a constant target included;
    stable at any offset. NaN without data, and for a single example.

    Weights count as repetitions: one example of weight 2 is two equal ones, a constant target,
    where scikit-learn counts rows and gives NaN; and constant targets of a total weight of at most
    1 are one example.

    Args:
        adjusted: the number of regressors k: `1 - (1 - R2) * (n - 1) / (n - k - 1)`, with n the
            total weight; NaN unless n exceeds k + 1. 0 leaves R2 as it is.
        num_outputs: as for `MeanSquaredError`.
        multioutput: with `num_outputs`: "uniform_average", "raw_values" for one an output, or
            "variance_weighted", by the variance of each output's target.
        force_finite: a constant target gives 1 where each prediction is right, and else 0; False:
            NaN and minus infinity.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import R2Score
        >>> preds, target = jnp.array([2.5, 0.0, 2.0, 8.0]), jnp.array([3.0, -0.5, 2.0, 7.0])
        >>> print(round(float(R2Score().update(preds, target).compute()), 4))
        0.9486
    """

    def __init__(
        self,
        *,
        adjusted: int = 0,
        num_outputs: int | None = None,
        multioutput: str = "uniform_average",
        force_finite: bool = True,
        on_invalid: str = "exclude",
    ):
        super().__init__(
            num_outputs=num_outputs,
            multioutput=multioutput,
            force_finite=force_finite,
            on_invalid=on_invalid,
        )
        positive_int(adjusted, "adjusted", least=0)
        self.adjusted = adjusted

    def _each(self) -> jax.Array:
        n = self.statistic.count[0]
        alone = (n <= 1) & (self.statistic.target_squares[0] == 0)
        return nan_where(alone, self._score(self.statistic.squares))

    def compute(self) -> jax.Array:
        value = super().compute()
        if not self.adjusted:
            return value
        n = jnp.max(self.statistic.count[0])  # one for all outputs
        free = n - (self.adjusted + 1)
        return nan_where(free <= 0, 1 - (1 - value) * ((n - 1) / or_one(free)))


class ExplainedVariance(_Explained):
    """The share of the target's variance explained, `1 - var(preds - target) / var(target)`.

    `update(preds, target, *, weights=None)` as for `MeanSquaredError`. Unlike `R2Score`, a constant
    bias of the predictions costs nothing. As `sklearn.metrics.explained_variance_score`. NaN
    without data.

    Args:
        num_outputs: as for `MeanSquaredError`.
        multioutput: as for `R2Score`.
        force_finite: a constant target gives 1 where the error is constant, and else 0; False: NaN
            and minus infinity.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ExplainedVariance
        >>> metric = ExplainedVariance().update(jnp.array([6.0, 8.0]), jnp.array([1.0, 3.0]))
        >>> print(metric.compute())
        1.0
    """

    def _each(self) -> jax.Array:
        return self._score(self.statistic.error_squares)
