"""`PairBuffer`: keeps pairs of values and their weights, the statistic of rank correlations."""

from typing import Self

import jax
import jax.numpy as jnp

from datarax._checks import as_float, default_float, positive_int
from datarax._typing import ArrayLike, Weights
from datarax.numerics.exact import Exact
from datarax.statistics.batches import pairs
from datarax.statistics.buffer import Rows
from datarax.statistics.invalid_counts import InvalidCounts
from datarax.statistics.state import State


class WeightedPairs(Rows):
    """Rows of two values and a weight."""

    def canonical(self) -> Self:
        """The rows sorted; equal pairs become one row with their total weight."""
        x, y, w = jnp.moveaxis(jnp.asarray(self.data), -1, 0)
        used = self.is_filled
        order = jnp.lexsort((jnp.where(used, y, jnp.inf), jnp.where(used, x, jnp.inf)))
        x, y, w = (jnp.where(used, v, 0)[order] for v in (x, y, w))
        used = used[order]
        first = used & ((x != jnp.roll(x, 1)) | (y != jnp.roll(y, 1)) | ~jnp.roll(used, 1))
        first = first.at[0].set(used[0])  # the roll compared it with the last row
        # The position `capacity` is out of range: the scatters ignore it.
        place = jnp.where(used, jnp.cumsum(first.astype(jnp.int32)) - 1, self.capacity)
        data = jnp.zeros((self.capacity, 3), x.dtype).at[place, 2].add(w, mode="drop")
        data = data.at[place, 0].set(x, mode="drop").at[place, 1].set(y, mode="drop")
        return self.with_parts({"data": data, "filled": jnp.sum(first, dtype=jnp.int32)})


class PairBuffer(State, kw_only=False):
    """Up to `capacity` pairs of a prediction and a target, each with its weight.

    Pairs that do not fit are dropped and counted: those of later batches, and of later devices.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import PairBuffer
        >>> seen = PairBuffer(capacity=2).update(jnp.array([1.0, 2.0, 3.0]), jnp.zeros(3))
        >>> print(seen.filled, seen.overflow)
        2 1
    """

    capacity: int
    """How many pairs are kept, also after a merge. A pair takes 12 bytes (24 with x64)."""

    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        positive_int(self.capacity, "capacity")
        self.rows = WeightedPairs(self.capacity, (3,), default_float().name)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Appends `preds` and `target`, both of any one shape; pairs of weight zero are skipped."""
        p, t, w, invalid = pairs(preds, target, weights, ())
        w = jnp.broadcast_to(w, p.shape)
        data = jnp.stack([p.reshape(-1), t.reshape(-1), as_float(w).reshape(-1)], -1)
        return self.replace(
            rows=self.rows.append(data, w.astype(jnp.bool_).reshape(-1)),
            invalid=self.invalid.update(invalid),
        )

    @property
    def filled(self) -> jax.Array:
        """How many pairs are kept."""
        return jnp.asarray(self.rows.filled)

    @property
    def overflow(self) -> Exact:
        """How many pairs did not fit."""
        return self.rows.overflow

    @property
    def columns(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Predictions, targets and weights, each (capacity,); 0 from `filled` on."""
        data = jnp.asarray(self.rows.data)
        data = jnp.where(self.rows.is_filled[:, None], data, 0)
        return data[:, 0], data[:, 1], data[:, 2]
