"""An interval of a mean that is valid at every look, whenever one stops."""

import math
from typing import Self

import jax

from datarax._checks import as_float, checked_confidence, finite_number, numeric
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import field, state
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.numerics.scaled_double import ScaledDouble
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import CountsInvalid, not_finite, out_of_range
from datarax.statistics.scaled_total import ScaledTotal, quotient
from datarax.statistics.thresholds import rounded_to

_TIGHTEST_AT = 1000
"""The number of rows of weight 1 at which the interval is tightest, relative to the best one."""


class SquaredWeights(CountsInvalid):
    """The total weight, the total of values, and the sum of squared weights.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.estimation.anytime_interval import SquaredWeights
        >>> values, weights = jnp.array([0.0, 1.0, 7.0]), jnp.array([1.0, 2.0, 1.0])
        >>> seen = SquaredWeights(0.0, 1.0).update(values, weights=weights)
        >>> print(seen.sums.value, seen.invalid.value)
        [3. 2. 5.] 1
    """

    low: float = field(kw_only=False)
    """The least value that counts."""
    high: float = field(kw_only=False)
    """The greatest value that counts."""

    sums = ScaledTotal((3,))

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in values of any shape; those out of the range are excluded and counted."""
        given = numeric(values, "values")
        low, high = (rounded_to(given.dtype, end) for end in (self.low, self.high))
        x = as_float(given)
        unusable = not_finite(x) | out_of_range((x < low) | (x > high), x)
        w, invalid = rows_weight(unusable, weights)
        w = xp.broadcast_to(w, x.shape)
        sums = self.sums.plus((xp.ones_like(x), w), (x, w), (w.astype(x.dtype), w))
        return self.with_batch(invalid, sums=sums)


class AnytimeInterval(Metric):
    """The mean of bounded values, and an interval that is valid at every look at once.

    A dict: "value", the weighted mean, and "lower" and "upper". With the probability `confidence`,
    the true mean is within all intervals of a growing stream. So one may look after each batch, and
    stop at any time, such as when the interval is narrow enough or leaves out another model. The
    intervals of `Interval` are valid at one look that is planned in advance.

    With W, S and Q the sums of the weights, of `w * x` and of `w**2`, the interval is
    `S / W ± (high - low) / 2 * sqrt((Q + r) * log((Q + r) / (r * alpha**2))) / W`, cut to
    [low, high], with `alpha = 1 - confidence`. The constant r makes it tightest near 1000 rows of
    weight 1. There it is 1.55 times as wide as `Interval` of values with the greatest variance, and
    wider for others, as the variance is not used. This is the normal mixture of sub-Gaussian
    processes: H. Robbins (1970), Statistical methods related to the law of the iterated logarithm;
    S. R. Howard et al. (2021), Time-uniform, nonparametric, nonasymptotic confidence sequences,
    https://doi.org/10.1214/20-AOS1991, equation 14, with the lemma of W. Hoeffding (1963).

    It holds if the expectation of each value, given all before, is the true mean; if it drifts, it
    holds of the weighted mean of these expectations. A weight must not depend on the value of its
    row, and weights far from 1 make the interval wider. A row of weight 2 is one observation. As
    the state is three sums, it is merged in any order; a look at a merged metric is one at the
    merged stream.

    A value out of [low, high] is invalid. No data gives NaN.

    Raises:
        MetricInputError: `low` and `high` are not finite numbers in ascending order, or
            `confidence` is not between 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import AnytimeInterval
        >>> right = jnp.tile(jnp.array([1.0, 1.0, 1.0, 0.0]), 250)
        >>> metric = AnytimeInterval(0, 1).update(right)
        >>> print({name: round(x, 3) for name, x in metric.results().items()})
        {'lower': 0.702, 'upper': 0.798, 'value': 0.75}
    """

    low: float = field(kw_only=False)
    """The least possible value."""
    high: float = field(kw_only=False)
    """The greatest possible value."""
    confidence: float = 0.95
    """The probability with which all intervals cover the true mean."""
    weights_repeat = False

    statistic: SquaredWeights = state()

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            given = getattr(self, name)
            setattr(self, name, finite_number(given, name, "a finite number", math.isfinite))
        if not self.low < self.high:
            raise MetricInputError(f"low={self.low}, high={self.high}; expected low below high")
        self.confidence = checked_confidence(self.confidence, "AnytimeInterval")
        self.statistic = SquaredWeights(self.low, self.high)

    @shareable
    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            values: of any shape and real dtype, from `low` to `high`; each is an observation.
            weights: broadcast against the leading axes of `values`. A value of weight zero does not
                count, even if it is NaN.

        Raises:
            MetricInputError: weights that do not broadcast; shows both shapes.
            MetricTypeError: values or weights that are not numbers.
        """
        return self.replace(statistic=self.statistic.update(values, weights=weights))

    def compute(self) -> dict[str, PyTree]:
        weight, total, squares = (self.statistic.sums[i] for i in range(3))
        value = quotient(total, weight)
        # log(1 / alpha**2), and Q + r, which is Q / r + 1 in units of r.
        level = -2 * math.log(1 - self.confidence)
        r = _TIGHTEST_AT / (level + math.log1p(level))
        units = squares.number * (1 / r)
        ratio = units + ScaledDouble.of(xp.ones_like(value))
        share = ratio * r / (weight.number * weight.number)
        half = share.root() * xp.sqrt(_log(ratio) + level) * ((self.high - self.low) / 2)
        return {
            "value": value,
            "lower": xp.maximum(value - half, self.low),
            "upper": xp.minimum(value + half, self.high),
        }


def _log(x: ScaledDouble) -> jax.Array:
    """The logarithm of a number of at least 1, which may be beyond the range of floats."""
    # The sum of 1 and a small number has the exponent of 1, and its double-float is not far from 1.
    return xp.log(x.double.to_float()) + x.exponent.astype(x.double.to_float().dtype) * math.log(2)
