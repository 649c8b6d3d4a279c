"""Pairs of values and their weights, kept as they are: what ranks are read from."""

from typing import Any, Self

import jax
import jax.numpy as jnp

from datarax._checks import as_float, default_float, positive_int
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import pairs
from datarax.statistics.buffer import Rows
from datarax.statistics.state import State


class WeightedPairs(Rows):
    """Rows of two values and a weight."""

    def canonical(self) -> Self:
        """Sorted, and equal pairs as one, with their weight in all."""
        x, y, w = jnp.moveaxis(jnp.asarray(self.data), -1, 0)
        used = self.is_filled
        infinity = jnp.asarray(jnp.inf, x.dtype)
        order = jnp.lexsort((jnp.where(used, y, infinity), jnp.where(used, x, infinity)))
        x, y, w = (jnp.where(used, v, jnp.zeros((), v.dtype))[order] for v in (x, y, w))
        used = used[order]
        first = used & ((x != jnp.roll(x, 1)) | (y != jnp.roll(y, 1)) | ~jnp.roll(used, 1))
        first = first.at[0].set(used[0])
        place = jnp.where(used, jnp.cumsum(first.astype(jnp.int32)) - 1, self.capacity)
        zero = jnp.zeros((self.capacity, 3), x.dtype)
        data = zero.at[place, 2].add(w, mode="drop")
        data = data.at[place, 0].set(x, mode="drop").at[place, 1].set(y, mode="drop")
        return self.with_parts({"data": data, "filled": jnp.sum(first, dtype=jnp.int32)})


class PairBuffer(State, kw_only=False):
    """Up to `capacity` pairs of a prediction and a target, each with its weight.

    What does not fit is counted, and left out: that of later batches, and of later devices.

    Args:
        capacity: pairs in all, also after a merge. 12 bytes each (24 with x64).

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import PairBuffer
        >>> seen = PairBuffer(capacity=2).update(jnp.array([1.0, 2.0, 3.0]), jnp.zeros(3))
        >>> print(seen.filled, seen.overflow)
        2 1
    """

    capacity: int

    invalid = MetricAccumulator(0)

    def __post_init__(self) -> None:
        positive_int(self.capacity, "capacity")
        self.rows = WeightedPairs(self.capacity, (3,), default_float().name)

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """Appends `preds` and `target` of one shape, any; pairs of weight zero are left out."""
        p, t, w, invalid = pairs(preds, target, weights, ())
        w = jnp.broadcast_to(w, p.shape)
        data = jnp.stack([p.reshape(-1), t.reshape(-1), as_float(w).reshape(-1)], -1)
        return self.replace(
            rows=self.rows.append(data, w.astype(jnp.bool_).reshape(-1)),
            invalid=self.invalid.update(invalid),
        )

    @property
    def filled(self) -> jax.Array:
        """How many pairs there are."""
        return jnp.asarray(self.rows.filled)

    @property
    def overflow(self) -> Any:
        """How many pairs did not fit."""
        return self.rows.overflow

    @property
    def columns(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Predictions, targets and weights, each (capacity,); where there is none, all are 0."""
        data = jnp.asarray(self.rows.data)
        used = self.rows.is_filled
        data = jnp.where(used[:, None], data, jnp.zeros((), data.dtype))
        return data[:, 0], data[:, 1], data[:, 2]
