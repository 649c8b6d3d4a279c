"""A total and a weight: what every mean is made of."""

from typing import Any, Self

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import as_float, is_integer, numeric
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.state import State


class WeightedTotal(State):
    """The sum of `w * x`, the sum of `w`, and how many values could not be used.

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

    def update(self, values: Any, *, weights: Any = None) -> Self:
        """Folds in `values` of any shape; `weights` broadcast against their leading axes.

        NaN and infinities are excluded and counted, unless their weight is zero.
        """
        x = numeric(values, "values")
        if not is_integer(x):
            # First to the dtype of the total, so that the check sees what is accumulated.
            x = as_float(x)
        return self.add(x, *rows_weight(jnp.isfinite(x), weights))

    def add(self, x: jax.Array, w: jax.Array, invalid: jax.Array) -> Self:
        """Folds in values that have been checked, infinities among them.

        `w` and `invalid` are as from `rows_weight`; where `w` is zero, `x` is not looked at.
        """
        if w.dtype == jnp.bool_:
            # Integers stay integers, and add up exactly.
            summands = jnp.where(w, x, jnp.zeros((), x.dtype))
        else:
            x = as_float(x)
            summands = jnp.where(w != 0, x, jnp.zeros((), x.dtype)) * w
        return self.replace(
            total=self.total.update(summands),
            weight=self.weight.update(jnp.broadcast_to(w, x.shape)),
            invalid=self.invalid.update(invalid),
        )

    @property
    def mean(self) -> jax.Array:
        """The weighted mean; NaN where the weight is zero."""
        return nx.pair_divide(self.total.parts, self.weight.parts)
