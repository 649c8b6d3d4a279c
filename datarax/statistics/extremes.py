"""The least and the greatest value."""

from typing import Self

import jax
import jax.numpy as jnp

from datarax._checks import as_float, numeric
from datarax._typing import ArrayLike, Weights
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.numerics.scaling import nan_where
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.state import State


class Extremes(State):
    """The least and the greatest value; NaN and infinities are excluded and counted.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics.extremes import Extremes
        >>> seen = Extremes().update(jnp.array([2.0, -3.0, jnp.nan]))
        >>> print(seen.minimum, seen.maximum, seen.invalid.value)
        -3.0 2.0 1
    """

    least = MetricAccumulator(float("inf"), MetricReduceOp.min)
    greatest = MetricAccumulator(float("-inf"), MetricReduceOp.max)
    invalid = MetricAccumulator(0)

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `values` of any shape; a value of weight zero does not count."""
        x = as_float(numeric(values, "values"))
        w, invalid = rows_weight(jnp.isfinite(x), weights)
        counts = jnp.broadcast_to(w.astype(jnp.bool_), x.shape)
        return self.replace(
            least=self.least.update(x, where=counts),
            greatest=self.greatest.update(x, where=counts),
            invalid=self.invalid.update(invalid),
        )

    @property
    def minimum(self) -> jax.Array:
        """The least value; NaN where there is no data."""
        return _nan_if_infinite(self.least.value)

    @property
    def maximum(self) -> jax.Array:
        """The greatest value; NaN where there is no data."""
        return _nan_if_infinite(self.greatest.value)


def _nan_if_infinite(x: jax.Array) -> jax.Array:
    # Infinite values are excluded, so an infinity here is the identity: no data.
    return nan_where(~jnp.isfinite(x), x)
