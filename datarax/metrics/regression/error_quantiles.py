"""The greatest and the middle absolute error."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax._checks import as_float, numeric, same_shape
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.metrics.base import Metric, check_policy
from datarax.metrics.regression.per_output import PerOutput, nan_where
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import pairs
from datarax.statistics.value_histogram import ValueHistogram


class MaxError(PerOutput):
    """The greatest absolute error, `max |preds - target|`.

    `update(preds, target, *, weights=None)` as for `MeanSquaredError`; where the weight is zero,
    nothing counts, and all other weights are alike. As `sklearn.metrics.max_error`. No data gives
    NaN.

    Args:
        num_outputs: as for `MeanSquaredError`.
        multioutput: as for `MeanSquaredError`.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MaxError
        >>> print(MaxError().update(jnp.array([1.0, 2.0]), jnp.array([2.0, 5.0])).compute())
        3.0
    """

    invalid = MetricAccumulator(0)

    def __init__(
        self,
        *,
        num_outputs: int | None = None,
        multioutput: str = "uniform_average",
        on_invalid: str = "exclude",
    ):
        self.shape = self._configure(num_outputs, multioutput, on_invalid)
        self.largest = MetricAccumulator(np.full(self.shape, -np.inf), MetricReduceOp.max)

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """A new metric with the batch folded in."""
        p, t, w, invalid = pairs(preds, target, weights, self.shape)
        error = jnp.where(w.astype(jnp.bool_), jnp.abs(p - t), jnp.asarray(-jnp.inf, p.dtype))
        return self.replace(
            largest=self.largest.update(error), invalid=self.invalid.update(invalid)
        )

    def _each(self) -> jax.Array:
        largest = self.largest.value
        return nan_where(largest < 0, largest)


class MedianAbsoluteError(Metric):
    """The median of absolute errors, which a few bad ones do not move.

    `update(preds, target, *, weights=None)`: both of one shape and any real dtype; all values are
    one population; `weights` broadcast against the leading axes, and count as repetitions. From a
    histogram in constant memory: within a part `2**(9 - bits)` of the exact value, which `bounds()`
    is certain to hold; exact where no two different errors near the median share a bin. As
    `sklearn.metrics.median_absolute_error`. No data gives NaN.

    Args:
        bits: from 10 to 22, the resolution: 0.8 % at 16 bits; see
            `datarax.statistics.ValueHistogram`.
        on_invalid: as for `MeanSquaredError`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MedianAbsoluteError
        >>> preds, target = jnp.array([1.0, 2.0, 90.0]), jnp.array([1.0, 4.0, 0.0])
        >>> metric = MedianAbsoluteError().update(preds, target)
        >>> print(metric.compute(), [float(bound) for bound in metric.bounds()])
        2.0 [2.0, 2.0]
    """

    def __init__(self, *, bits: int = 16, on_invalid: str = "exclude"):
        self.on_invalid = check_policy(on_invalid)
        self.statistic = ValueHistogram(bits=bits)

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """A new metric with the batch folded in."""
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        same_shape(preds, target)
        error = jnp.abs(as_float(preds) - as_float(target))
        return self.replace(statistic=self.statistic.update(error, weights=weights))

    def compute(self) -> jax.Array:
        return self.statistic.quantile(0.5, method="averaged_inverted_cdf")

    def bounds(self) -> tuple[jax.Array, jax.Array]:
        """`(lower, upper)`: certain to hold the exact median of the errors as float32."""
        return self.statistic.quantile_bounds(0.5, method="averaged_inverted_cdf")
