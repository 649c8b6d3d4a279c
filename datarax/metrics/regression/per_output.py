"""What metrics of real predictions share: one value an output, and how they are combined."""

from typing import Any

import jax
import jax.numpy as jnp

from datarax._checks import choice, positive_int
from datarax.metrics.base import Metric, check_policy

MULTIOUTPUT = ("uniform_average", "raw_values")


class PerOutput(Metric):
    """A metric with a value for each of `num_outputs`, which are averaged."""

    num_outputs: int | None
    multioutput: str

    def _configure(
        self,
        num_outputs: int | None,
        multioutput: str,
        on_invalid: str,
        allowed: tuple[str, ...] = MULTIOUTPUT,
    ) -> tuple[int, ...]:
        """Checks and keeps the arguments that all have; gives the shape of one example."""
        if num_outputs is not None:
            positive_int(num_outputs, "num_outputs")
        choice(multioutput, allowed, "multioutput")
        self.num_outputs, self.multioutput = num_outputs, multioutput
        self.on_invalid = check_policy(on_invalid)
        return () if num_outputs is None else (num_outputs,)

    def compute(self) -> jax.Array:
        return self._combined(self._each())

    def _each(self) -> jax.Array:
        """The value of each output; a scalar where there is one."""
        raise TypeError(type(self).__name__)

    def _spread(self) -> jax.Array:
        """What each output counts by "variance_weighted"."""
        raise TypeError(type(self).__name__)

    def _combined(self, values: jax.Array) -> jax.Array:
        if self.num_outputs is None or self.multioutput == "raw_values":
            return values
        weights = jnp.ones_like(values)
        if self.multioutput == "variance_weighted":
            # As scikit-learn: alike, where no output varies.
            spread = self._spread()
            weights = jnp.where(jnp.any(spread > 0), spread / or_one(jnp.max(spread)), weights)
        return jnp.sum(values * weights) / jnp.sum(weights)


def or_one(x: jax.Array) -> jax.Array:
    """`x` as a divisor: 1 where it is zero."""
    return jnp.where(x == 0, jnp.ones((), x.dtype), x)


def nan_where(condition: jax.Array, value: jax.Array) -> jax.Array:
    """NaN where the condition holds, else the value."""
    return jnp.where(condition, jnp.asarray(jnp.nan, value.dtype), value)


def float_of(pair: Any) -> jax.Array:
    """The nearest float to a pair."""
    return jnp.asarray(pair[0])
