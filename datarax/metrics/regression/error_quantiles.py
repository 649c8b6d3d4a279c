"""The maximum and the median of absolute errors."""

import math
from typing import Self

import jax

from datarax._checks import default_float, numeric, same_shape
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.distributed.placement import outside_mesh
from datarax.metric.base import bounds_of
from datarax.metric.reading import Bounds
from datarax.metric.squared_weights import QuantileSampling
from datarax.metrics.regression.per_output import PerOutput, RegressionMetric
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import Kept
from datarax.numerics.limbs import difference, is_rounded
from datarax.numerics.scaling import nan_where
from datarax.statistics.batches import pairs
from datarax.statistics.extremes import Greatest
from datarax.statistics.invalid_counts import InvalidCounts, with_batch
from datarax.statistics.value_histogram import ValueHistogram


class MaxError(PerOutput):
    """The greatest absolute error.

    max |preds - target|. Weight zero excludes an example; all other weights have the same effect.
    No data gives NaN. As `sklearn.metrics.max_error`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MaxError
        >>> print(MaxError().update(jnp.array([1.0, 2.0]), jnp.array([2.0, 5.0])).compute())
        3.0
    """

    higher_is_better = False
    largest: Greatest = state()
    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.largest = Greatest(self.example_shape)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        p, t, w, invalid = pairs(preds, target, weights, self.example_shape)
        e = difference(p, t)  # large integers are subtracted before they are rounded
        counts = xp.broadcast_to(w.astype(xp.bool_), e.shape)
        largest = self.largest.plus_rows(DoubleFloat.of(xp.abs(e)), counts, is_float=True)
        return with_batch(self, invalid, largest=largest)

    def by_output(self) -> jax.Array:
        largest = Kept.value_of(self.largest.double)
        # No error is negative: what is left of no data is -inf.
        return nan_where(largest < 0, largest)


class MedianAbsoluteError(RegressionMetric):
    """The median of absolute errors, which a few outliers do not move.

    The errors of all elements are kept in one histogram, in constant memory. The error of the
    median is at most a fraction `2**(8 - bits)` of its value; `bounds()` contain the exact value.
    It is exact if no two different errors near the median share a bin. No data gives NaN. As
    `sklearn.metrics.median_absolute_error`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MedianAbsoluteError
        >>> preds, target = jnp.array([1.0, 2.0, 90.0]), jnp.array([1.0, 4.0, 0.0])
        >>> metric = MedianAbsoluteError().update(preds, target)
        >>> print(metric.compute(), [float(bound) for bound in metric.bounds()])
        2.0 [2.0, 2.0]
    """

    higher_is_better = False
    value_range = (0.0, math.inf)
    bits: int = 16
    """The resolution, from 10 to 22; see `datarax.statistics.ValueHistogram`."""

    statistic: ValueHistogram = state()

    def __post_init__(self) -> None:
        self.statistic = ValueHistogram(bits=self.bits)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        p, t = (
            numeric(x, name, any_range=True) for x, name in ((preds, "preds"), (target, "target"))
        )
        same_shape(p, t)
        error = xp.abs(difference(p, t))
        if not (is_rounded(p) or is_rounded(t)):
            error = error.astype(default_float())
        # An infinite error is no error that could be the median.
        error = xp.where(xp.isinf(error), xp.nan, error)
        return self.replace(statistic=self.statistic.update(error, weights=weights))

    def compute(self) -> PyTree:
        # Of an even number of errors, the mean of the two in the middle.
        return self.statistic.quantile(0.5, method="averaged_inverted_cdf")

    @outside_mesh
    def bounds(self) -> tuple[jax.Array, jax.Array]:
        """Bounds `(lower, upper)` on the exact median of the errors.

        Errors of float32 are rounded to float32 first, those of float64 on the host are not.
        """
        return bounds_of(self)

    def sampling(self) -> QuantileSampling:
        return QuantileSampling(self, 0.5)

    def value_and_bounds(self) -> tuple[PyTree, Bounds]:
        bounds = Bounds(*self.statistic.quantile_bounds(0.5, method="averaged_inverted_cdf"))
        by_rounding = self.statistic.are_apart_by_rounding
        return super().value_and_bounds()[0], bounds.rounded_where(by_rounding)
