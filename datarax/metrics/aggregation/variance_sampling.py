"""The standard error of a variance and of a standard deviation, from the fourth moment."""

from typing import Any, Self

import jax
import numpy as np

from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.metric.base import Metric
from datarax.metric.sampling import Sampling, Spread
from datarax.metric.squared_weights import check_rows, squared_weights
from datarax.metric.unusable import Undefined
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.scaling import exponent_of, nan_where
from datarax.statistics.moments import Moments

_ROUNDING = 2.0**-40
"""A sum that is less than this part of its terms is what rounding has left of zero."""


class SquaredMoments(Metric):
    """The moments up to the fourth of values, weighted by squared weights."""

    statistic = Moments(order=4)

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in.

        Args:
            values: of shape (N,).
            weights: of the rows.

        Raises:
            MetricInputError: rows hold several values, which may depend on each other.
        """
        check_rows(values, "values", 1)
        return self.replace(
            statistic=self.statistic.update(values, weights=squared_weights(weights))
        )


class VarianceSampling(Sampling):
    """The standard error of a variance, or of a power of one, by the delta method.

    With z the distance of a value from the mean in standard deviations, the derivative of the
    logarithm of the variance by the weight of a row is `(z**2 - 1) / sum(w)`, whatever `ddof` is.
    So its variance is `n / (n - 1) * sum((w (z**2 - 1))**2) / sum(w)**2`, of weighted rows that
    count as `n = sum(w)**2 / sum(w**2)` observations.

    The interval is symmetric on the scale of the logarithm, so that it stays above 0, and that of
    the standard deviation is the root of that of the variance.

    Args:
        metric: a metric whose `statistic` is a `Moments`, with its data.
        power: that of the variance: 0.5 for the standard deviation.
    """

    constant = (
        "the values do not vary, or are all equally far from their mean, so there is no standard "
        "error"
    )

    def __init__(self, metric: Any, power: float):
        super().__init__(metric)
        self.power = power

    def squares(self) -> SquaredMoments:
        return SquaredMoments()

    def spread(self, value: jax.Array, squares: SquaredMoments, z: float) -> Spread:
        relative, is_constant = self._of_logarithm(squares)
        # A variance of 0 is no certainty: see `Sampling.spread`.
        relative = nan_where(is_constant, xp.sqrt(relative)) * self.power
        factor = xp.exp(z * relative)
        unknown = (Undefined(is_constant, self.constant),)
        return Spread(value / factor, value * factor, value * relative, unknown)

    def _of_logarithm(self, squares: SquaredMoments) -> tuple[jax.Array, jax.Array]:
        """The variance of the logarithm of the variance, and whether the data leave it unknown."""
        weight, mean, (square,) = self.metric.statistic.central.scaled()
        count, centre, powers = squares.statistic.central.scaled()
        variance = square / weight
        # In units near the standard deviation, no power overflows.
        unit = exponent_of(variance.root())

        def in_units(x: ScaledDouble, power: int) -> DoubleFloat:
            return ScaledDouble(x.double, x.exponent - unit * power).normalized().to_double()

        # Powers of distances are far below their unit if the mean is far from zero.
        second, third, fourth = (
            in_units(x.normalized() / count, power) for power, x in enumerate(powers, 2)
        )
        # These are about the mean by squared weights, from which that by weights differs by d: the
        # mean of ((u + d)**2 - v)**2, of distances u whose mean is 0.
        d, v = in_units(centre - mean, 1), in_units(variance, 2)
        left = d * d - v
        terms = [fourth, third * d * 4, second * (d * d * 4 + left * 2), left * left]
        total = terms[0] + terms[1] + terms[2] + terms[3]
        size = sum(xp.abs(term.to_float()) for term in terms)
        n = (weight / count * weight).to_float()
        is_constant = (square.double.high == 0) | ~(total.to_float() > size * _ROUNDING)
        is_constant &= n > 1
        relative = (total / (v * v)).to_float()
        return nan_where(~(n > 1), relative / xp.maximum(n - 1, np.float32(_ROUNDING))), is_constant
