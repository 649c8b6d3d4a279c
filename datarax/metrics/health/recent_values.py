"""`RecentValues`: the values of the newest steps."""

from typing import Any, Self

import jax
import numpy as np

from datarax._checks import default_float
from datarax._xp import lax, xp
from datarax.algebra.fields import state
from datarax.algebra.leaf_state import ElementwiseState
from datarax.distributed.merge_ops import MetricReduceOp, identity

NO_STEP = -(2**31)
"""The step of a place that holds no value."""


class RecentValues(ElementwiseState, kw_only=False):
    """The `size` values of the greatest steps; of equal steps, the greatest values.

    They are sorted by step and then by value, so the order of updates and merges does not matter.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.health.recent_values import RecentValues
        >>> values, steps = jnp.array([0.5, 2.0, 1.0]), jnp.array([7, 9, 8])
        >>> print(RecentValues(2).with_values(values, steps).value)
        [1. 2.]
    """

    size: int

    step: jax.Array = state()
    value: jax.Array = state()

    def empty(self) -> dict[str, Any]:
        def none(dtype: Any) -> Any:
            return identity(MetricReduceOp.max, (self.size,), np.dtype(dtype))[0]

        return {"step": none("int32"), "value": none(default_float())}

    def with_values(self, values: jax.Array, steps: jax.Array) -> Self:
        """The state with finite values (n,) of int32 steps added."""
        # -0.0 becomes 0.0, because a sort puts it before 0.0.
        values = xp.where(values == 0, 0, values).astype(self.value.dtype)
        step = xp.concatenate([xp.asarray(self.step), steps])
        value = xp.concatenate([xp.asarray(self.value), values])
        step, value = lax.sort((step, value), num_keys=2)
        return self.with_parts({"step": step[-self.size :], "value": value[-self.size :]})

    def combine(self, other: Any) -> Self:
        return self.with_values(xp.asarray(other.value), xp.asarray(other.step))

    def before(self, step: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The values of lesser steps, sorted, and filled up with infinities; and their number."""
        older = (xp.asarray(self.step) < step) & (xp.asarray(self.step) > NO_STEP)
        values = lax.sort(xp.where(older, xp.asarray(self.value), xp.inf))
        return values, xp.sum(older, dtype=xp.int32)
