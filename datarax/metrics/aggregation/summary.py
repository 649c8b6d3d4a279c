"""Means, ratios, sums, extremes and variances of values, and how many distinct ones there were."""

from typing import Any, Literal, Self

import jax
import numpy as np

from datarax._checks import as_float, is_integer, numeric, real, same_shape
from datarax._typing import ArrayLike, OnInvalid, PyTree, Weights
from datarax._xp import lax, when_known, xp
from datarax.algebra.fields import state
from datarax.algebra.rows import RowTerms
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.metrics.aggregation.variance_sampling import VarianceSampling
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import Exact, WholeOrFloat
from datarax.numerics.limbs import sum_products
from datarax.numerics.scaled_double import ScaledDouble
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import least_weight, rows_weight
from datarax.statistics.distinct import Distinct
from datarax.statistics.extremes import Extremes
from datarax.statistics.invalid_counts import CountsInvalid, not_finite
from datarax.statistics.moments import Moments
from datarax.statistics.scaled_total import ScaledTotal
from datarax.statistics.weighted_total import WeightedTotal


class ValueMetric(Metric):
    """A metric of values, which its `statistic` accumulates; a subclass makes that state."""

    # Any state whose `update` takes values and weights.
    statistic: Any = state()

    @shareable
    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            values: of any shape and real dtype; all are one population.
            weights: broadcast against the leading axes of `values`, and count as repetitions. A
                value of weight zero does not count, even if it is NaN.

        Raises:
            MetricInputError: weights that do not broadcast; shows both shapes.
            MetricTypeError: values or weights that are not numbers.
        """
        return self.replace(statistic=self.statistic.update(values, weights=weights))


class Mean(ValueMetric):
    """The weighted mean of values of any shape.

    `sum(w * x) / sum(w)` over all values that were seen, accumulated in double-floats. No data, or
    a total weight of zero, gives NaN. As `numpy.average`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Mean
        >>> metric = Mean().update(jnp.array([1.0, 2.0]), weights=jnp.array([3.0, 1.0]))
        >>> print(metric.compute(), Mean().compute())
        1.25 nan
    """

    tasks = ("regression", "score")
    statistic = WeightedTotal()

    def compute(self) -> PyTree:
        return self.statistic.mean

    def as_ratio(self) -> tuple[DoubleFloat, DoubleFloat]:
        return self.statistic.total.double, self.statistic.weight.double


WeightedMean = Mean


class RatioTotal(CountsInvalid):
    """The sum of `w * numerator`, and the sum of `w * denominator`.

    Example:
        >>> from datarax.metrics.aggregation.summary import RatioTotal
        >>> seen = RatioTotal().update(6.0, 2).update(0.0, 1)
        >>> print(seen.ratio)
        2.0
    """

    sums = ScaledTotal((2,))

    def update(
        self, numerator: ArrayLike, denominator: ArrayLike, *, weights: Weights = None
    ) -> Self:
        """Folds in pairs of any shape; `weights` broadcast against their leading axes.

        Pairs that hold a NaN or an infinity are excluded and counted.
        """
        given = (
            numeric(numerator, "numerator", any_range=True),
            numeric(denominator, "denominator", any_range=True),
        )
        same_shape(*given, ("numerator", "denominator"))
        above, below = (x if is_integer(x) else as_float(x) for x in given)
        w, invalid = rows_weight(not_finite(above) | not_finite(below), weights)
        w = xp.broadcast_to(w, above.shape)
        return self.with_batch(invalid, sums=self.sums.plus((above, w), (below, w)))

    @property
    def ratio(self) -> jax.Array:
        """The quotient of the sums, rounded once; NaN where that of the denominators is zero."""
        return self.sums.ratio


class Ratio(Metric):
    """The ratio of two totals: that of the numerators to that of the denominators.

    `sum(w * numerator) / sum(w * denominator)`, accumulated in double-floats. Numbers may have any
    sign. No data, or a total of denominators of zero, gives NaN.

    It is for steps that give a sum and what to divide it by, such as the loss summed over the
    tokens of a batch and the number of these tokens. The result is the mean over all tokens; the
    mean of the means of batches is another number. A pair that holds a NaN or an infinity is
    invalid; so give the sum of a batch without tokens as 0, and not its mean, which is NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Ratio
        >>> loss = Ratio().update(6.0, 2).update(jnp.array([1.0, 2.0]), jnp.array([3, 4]))
        >>> print(loss.compute(), Ratio().compute())
        1.0 nan
    """

    statistic = RatioTotal()
    terms_by_row = True

    @shareable
    def update(
        self, numerator: ArrayLike, denominator: ArrayLike, *, weights: Weights = None
    ) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            numerator: of any shape and real dtype.
            denominator: of the same shape, and any real dtype.
            weights: broadcast against the leading axes of both, and count as repetitions of the
                pair. A pair of weight zero does not count, even if it is NaN.

        Raises:
            MetricInputError: the two shapes differ, or weights do not broadcast; shows both shapes.
            MetricTypeError: arguments that are not numbers.
        """
        return self.replace(
            statistic=self.statistic.update(numerator, denominator, weights=weights)
        )

    def compute(self) -> PyTree:
        return self.statistic.ratio

    def as_ratio(self) -> tuple[DoubleFloat, DoubleFloat]:
        return self.statistic.sums[0].double, self.statistic.sums[1].double


class ExactTotal(WeightedTotal):
    """A `WeightedTotal` that also holds the sum of integers exactly, up to 2**63.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.aggregation.summary import ExactTotal
        >>> seen = ExactTotal().update(jnp.array([2**30, 1]), weights=jnp.array([2**30, 1]))
        >>> print(seen.exact)
        1152921504606846977
    """

    whole = MetricAccumulator(0)
    """The sum of `w * x` over the integers whose weights are whole numbers."""
    is_float = MetricAccumulator(0, MetricReduceOp.max)
    """1 if there were values of a float dtype, or weights that are not whole."""

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        x, w = numeric(values, "values"), None if weights is None else numeric(weights, "weights")
        seen, whole, is_float = self.plus_values(x, w), self.whole, xp.bool_(not is_integer(x))
        apart = int(isinstance(whole, RowTerms))  # then products of each row are added up
        if not is_integer(x):
            # The total alone holds floats. That there are some is known from the second batch on.
            if not apart and when_known(_holds_one, *self.is_float.parts):
                return seen
        elif w is None:
            whole = whole.update(x)
        elif w.dtype == xp.bool_:
            w = lax.expand_dims(w, range(w.ndim, x.ndim))
            whole = whole.update(xp.where(w, x, xp.zeros((), x.dtype)))
        else:
            w, is_float = _whole_weights(w)
            w = xp.broadcast_to(lax.expand_dims(w, range(w.ndim, x.ndim)), x.shape)
            # A product of two int32 needs 64 bits.
            whole = whole.update(Exact(*sum_products(x, w, tuple(range(apart, x.ndim)))))
        if apart:
            is_float = lax.expand_dims(is_float, range(is_float.ndim, x.ndim))
            is_float = xp.broadcast_to(is_float, x.shape)
        return seen.replace(whole=whole, is_float=self.is_float.update(is_float))

    def weighted_by(self, factor: ScaledDouble) -> Self:
        # The products with the factor are not whole: from now on, the sum of floats is the total.
        return self.replace(
            sums=self.sums.weighted_by(factor),
            whole=self.whole.emptied(),
            is_float=self.is_float.update(1),
        )

    @property
    def exact(self) -> WholeOrFloat:
        """The total: an integer if values of integer dtype and whole weights make it up."""
        return WholeOrFloat(self.whole.value, self.total.double, self.is_float.value > 0)


def _holds_one(is_float: Any) -> Any:
    return np.all(is_float > 0)


def _whole_weights(w: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weights as integers, 0 where they are negative or not whole; and a mask of the latter."""
    if is_integer(w):
        return xp.maximum(w, xp.zeros((), w.dtype)), xp.zeros((), xp.bool_)
    # A mask of floats, for example, still gives whole numbers.
    w = as_float(w)
    fits = (w >= 0) & (w == xp.round(w)) & (w < 2.0**31)  # as an int32
    # Weights that are invalid, or count as zero, leave the sum exact.
    is_part = ~fits & xp.isfinite(w) & (w >= least_weight())
    return xp.where(fits, w, 0).astype(xp.int32), is_part


class Sum(ValueMetric):
    """The weighted sum of values of any shape.

    `sum(w * x)`. If all values have an integer dtype, and all weights are whole numbers, `results`
    and a collector give an `int`, exact to `2**63`; otherwise, and beyond `2**63`, a `float`, to
    which integers up to `2**48` are added without rounding. `compute` gives the nearest float32
    (float64 with x64). No data gives 0. As `numpy.sum`.

    With `per`, the sum is divided by a number that is known only when results are read:
    `results(elapsed=seconds)` or `results(steps=number)`; NaN for 0. `compute()` has no such
    argument: there it is an error, and within `jit` NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Sum
        >>> print(Sum().update(jnp.array([16777216, 1])).results())
        16777217
        >>> print(Sum(per="elapsed").update(jnp.array([4096, 4096])).results(elapsed=0.5))
        16384.0
    """

    tasks = ("score",)
    per: Literal["elapsed", "steps"] | None = None
    """The argument of `results` by which the sum is divided; None for none."""

    statistic = ExactTotal()

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """The argument of `results` by which the sum is divided."""
        return () if self.per is None else (self.per,)

    def compute(self) -> PyTree:
        if self.per is None:
            return self.statistic.exact
        total = self.statistic.total.number
        return (total / ScaledDouble.of(xp.asarray(self.given_number(self.per)))).to_float()


class Max(ValueMetric):
    """The greatest value.

    `results` does not round integers. No data gives NaN. As `numpy.max`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Max
        >>> print(Max().update(jnp.array([1.0, 4.0])).compute())
        4.0
    """

    tasks = ("regression", "score")
    statistic = Extremes()

    def compute(self) -> PyTree:
        return self.statistic.maximum


class Min(ValueMetric):
    """The least value.

    `results` does not round integers. No data gives NaN. As `numpy.min`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Min
        >>> print(Min().update(jnp.array([1.0, 4.0])).compute())
        1.0
    """

    tasks = ("regression", "score")
    statistic = Extremes()

    def compute(self) -> PyTree:
        return self.statistic.minimum


class MinMax(ValueMetric):
    """The least and the greatest value: a dict of "min" and "max".

    No data gives NaN for both. As `numpy.min` and `numpy.max`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MinMax
        >>> print(MinMax().update(jnp.array([1.0, 4.0])).results())
        {'max': 4.0, 'min': 1.0}
    """

    statistic = Extremes()

    def compute(self) -> PyTree:
        return {"min": self.statistic.minimum, "max": self.statistic.maximum}


class Variance(ValueMetric):
    """The weighted variance of values of any shape, stable at any offset.

    `sum(w * (x - mean)**2) / (sum(w) - ddof)`. NaN unless the total weight exceeds `ddof`. As
    `numpy.var`. T. F. Chan, G. H. Golub and R. J. LeVeque (1979), Updating formulae and a pairwise
    algorithm for computing sample variances.

    Raises:
        MetricInputError: a `ddof` that is not a number.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Variance
        >>> print(Variance().update(jnp.array([10001.0, 10003.0])).compute())
        1.0
    """

    tasks = ("regression", "score")
    ddof: float = 0
    """0 for the variance of the population, 1 for the unbiased estimate from a sample."""

    statistic = Moments()

    def __post_init__(self) -> None:
        real(self.ddof, "ddof")

    def compute(self) -> jax.Array:
        return self.statistic.variance(self.ddof)

    def sampling(self) -> VarianceSampling:
        return VarianceSampling(self, 1.0)


class Std(Variance):
    """The weighted standard deviation of values of any shape: the root of `Variance`.

    `sqrt(sum(w * (x - mean)**2) / (sum(w) - ddof))`. NaN unless the total weight exceeds `ddof`.
    As `numpy.std`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Std
        >>> print(Std().update(jnp.array([10001.0, 10003.0])).compute())
        1.0
    """

    def compute(self) -> jax.Array:
        return self.statistic.std(self.ddof)

    def sampling(self) -> VarianceSampling:
        return VarianceSampling(self, 0.5)


class Cardinality(ValueMetric):
    """An estimate of how many distinct values there were, in constant memory (HyperLogLog).

    Values may be integers or floats, the numbers of users or tokens for example. Whether a weight
    is zero decides if its values count; its size does not matter. Values are compared by value,
    not by dtype: 3, 3 as uint8 and 3.0 are one value, and so are -0.0 and 0.0. The error is close
    to normal, with the standard deviation `standard_error`: 0.8 % at the default precision, and
    less for counts below a few thousand. No data gives 0.

    P. Flajolet, E. Fusy, O. Gandouet, F. Meunier (2007), https://doi.org/10.46298/dmtcs.3545,
    with the estimator of O. Ertl (2017), https://arxiv.org/abs/1702.01284, which needs no
    correction for small counts.

    Raises:
        MetricInputError: a `precision` that is not an integer from 4 to 16.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Cardinality
        >>> metric = Cardinality().update(jnp.arange(3000) % 50)
        >>> print(f"{metric.compute():.0f} +- {metric.standard_error:.2%}")
        50 +- 0.81%
    """

    on_invalid: OnInvalid = "exclude"
    """The policy for data that cannot be used: "exclude" leaves it out, "propagate" makes results
    that are floats NaN, "raise" raises `InvalidValuesError` when the result is read. The default is
    "exclude" because the result is a count."""
    precision: int = 14
    """From 4 to 16: there are `2**precision` registers of one byte, and the standard error is
    `1.04 / sqrt(2**precision)`."""

    statistic: Distinct = state()

    def __post_init__(self) -> None:
        self.statistic = Distinct.from_fields(self)

    @property
    def standard_error(self) -> float:
        """The standard deviation of the estimate, relative to it."""
        return self.statistic.standard_error

    def compute(self) -> PyTree:
        return self.statistic.count()
