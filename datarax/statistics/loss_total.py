"""The total of a loss, and what it is divided by."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax import numerics as nx
from datarax._checks import as_float, choice, numeric
from datarax._errors import MetricInputError
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import pairs
from datarax.statistics.losses import LOSSES
from datarax.statistics.state import State


class LossTotal(State):
    """The sum of `w * loss(preds, target)`, and that of `w`, or of what else divides it.

    Args:
        loss: "squared log", "absolute percentage", "symmetric percentage", "weighted percentage",
            "log cosh", "huber", "quantile", "power", "tweedie", "critical success" or "cosine".
        parameter: of the loss, where it has one.
        shape: of one example; `()` for scalars. For "cosine" an example is a row of any length.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import LossTotal
        >>> seen = LossTotal("huber", 1.0).update(jnp.array([1.0, 5.0]), jnp.array([2.0, 3.0]))
        >>> print(seen.total.value, seen.scale.value, seen.mean)
        2.0 2.0 1.0
    """

    invalid = MetricAccumulator(0)

    def __init__(self, loss: str, parameter: float = 0.0, shape: tuple[int, ...] = ()):
        choice(loss, tuple(LOSSES), "loss")
        self.loss, self.parameter, self.shape = loss, float(parameter), tuple(shape)
        self.total = MetricAccumulator(np.zeros(self.shape))
        self.scale = MetricAccumulator(np.zeros(self.shape))

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """Folds in `preds` and `target` of one shape, (..., *shape).

        Examples that hold a NaN or an infinity, or for which the loss is not defined, are excluded
        and counted.
        """
        row, parameter = LOSSES[self.loss], self.parameter
        shape = self.shape
        if row.of_rows:
            shape = numeric(preds, "preds").shape[-1:]
            if not shape:
                raise MetricInputError("preds of shape (); expected rows, of shape (..., D)")

        def domain(p: jax.Array, t: jax.Array) -> jax.Array | None:
            return row.domain(p, t, parameter) if row.domain else None

        p, t, w, invalid = pairs(preds, target, weights, shape, domain)
        # What is not looked at must not raise a NaN: any value will do for which there is a loss.
        one = jnp.ones((), p.dtype)
        some = jnp.broadcast_to(w.astype(jnp.bool_), p.shape)
        p, t = jnp.where(some, p, one), jnp.where(some, t, one)
        w = w[..., 0] if row.of_rows else jnp.broadcast_to(w, p.shape)
        value = row.value(p, t, parameter)
        scale = row.scale(p, t, parameter) if row.scale else jnp.ones(value.shape, jnp.bool_)
        return self.replace(
            total=self.total.update(_weighted(value, w)),
            scale=self.scale.update(_weighted(scale, w)),
            invalid=self.invalid.update(invalid),
        )

    @property
    def mean(self) -> jax.Array:
        """The total over the scale; NaN where that is zero."""
        return nx.pair_divide(self.total.parts, self.scale.parts)


def _weighted(x: jax.Array, w: jax.Array) -> jax.Array:
    """`w * x`, and 0 where `w` is; counts of booleans stay booleans, and add up exactly."""
    if w.dtype == jnp.bool_:
        return jnp.where(w, x, jnp.zeros((), x.dtype))
    return jnp.where(w.astype(jnp.bool_), as_float(x), jnp.zeros((), w.dtype)) * w
