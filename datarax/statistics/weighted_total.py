"""`WeightedTotal`: a weighted sum and the total weight, the statistic of means."""

from typing import Self

import jax
import jax.numpy as jnp

from datarax._checks import as_float, is_integer, numeric
from datarax._typing import ArrayLike, Weights
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.state import State


class WeightedTotal(State):
    """The sum of `w * x`, the sum of `w`, and the number of values that could not be used.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import WeightedTotal
        >>> seen = WeightedTotal().update(jnp.array([1.0, 3.0, jnp.nan]))
        >>> print(seen.mean, seen.invalid.value)
        2.0 1
    """

    total = MetricAccumulator(0.0)
    weight = MetricAccumulator(0.0)
    invalid = MetricAccumulator(0)

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `values` of any shape; `weights` broadcast against their leading axes.

        NaN and infinities are excluded, and counted in `invalid` unless their weight is zero.
        """
        x = numeric(values, "values")
        if not is_integer(x):
            # Cast first: a finite float64 may be infinite in the dtype of the total.
            x = as_float(x)
        return self.add(x, *rows_weight(jnp.isfinite(x), weights))

    def add(self, x: jax.Array, w: jax.Array, invalid: jax.Array) -> Self:
        """Folds in values that have been checked; they may be infinite.

        Args:
            x: the values; a value of weight zero is ignored, even NaN.
            w: their weights, as from `rows_weight`.
            invalid: the mask of the values that could not be used, as from `rows_weight`.
        """
        if w.dtype == jnp.bool_:
            # There is no product, so integers stay integers, and their sum is exact.
            summands = jnp.where(w, x, jnp.zeros((), x.dtype))
        else:
            x = as_float(x)
            summands = jnp.where(w != 0, x, 0) * w
        return self.replace(
            total=self.total.update(summands),
            weight=self.weight.update(jnp.broadcast_to(w, x.shape)),
            invalid=self.invalid.update(invalid),
        )

    @property
    def mean(self) -> jax.Array:
        """The weighted mean, rounded once; NaN where the weight is zero."""
        return (self.total.double / self.weight.double).to_float()
