"""`PairBuffer`: keeps pairs of values and their weights, the statistic of rank correlations."""

from typing import Self

import jax
import jax.numpy as jnp

from datarax._checks import as_float, default_float, numeric, positive_int
from datarax._typing import ArrayLike, Weights
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import Exact
from datarax.numerics.limbs import as_double
from datarax.statistics.batches import pairs
from datarax.statistics.buffer import Rows
from datarax.statistics.invalid_counts import InvalidCounts
from datarax.statistics.state import State


class WeightedPairs(Rows):
    """Rows of two double-floats and a weight."""

    def canonical(self) -> Self:
        """The rows sorted; equal pairs become one row with their total weight."""
        used, data = self.is_filled, jnp.asarray(self.data)
        order = jnp.lexsort((*data[:, 3::-1].T, ~used))
        data, used = jnp.where(used[:, None], data, 0)[order], used[order]
        pairs, w = data[:, :4], data[:, 4]
        first = used & (jnp.any(pairs != jnp.roll(pairs, 1, 0), 1) | ~jnp.roll(used, 1))
        first = first.at[0].set(used[0])  # the roll compared it with the last row
        # The position `capacity` is out of range: the scatters ignore it.
        place = jnp.where(used, jnp.cumsum(first.astype(jnp.int32)) - 1, self.capacity)
        data = jnp.zeros_like(data).at[place, 4].add(w, mode="drop")
        data = data.at[place, :4].set(pairs, mode="drop")
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
    """How many pairs are kept, also after a merge. A pair takes 20 bytes (40 with x64)."""

    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        positive_int(self.capacity, "capacity")
        self.rows = WeightedPairs(self.capacity, (5,), default_float().name)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Appends `preds` and `target`, both of any one shape; pairs of weight zero are skipped.

        Integers are not rounded.
        """
        p, _, w, invalid = pairs(preds, target, weights, ())
        w = jnp.broadcast_to(w, p.shape)
        x, y = (as_double(numeric(each, "preds")) for each in (preds, target))
        data = jnp.stack([part.reshape(-1) for part in (*x, *y, as_float(w))], -1)
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
    def columns(self) -> tuple[DoubleFloat, DoubleFloat, jax.Array]:
        """Predictions, targets and weights, each (capacity,); 0 from `filled` on."""
        data = jnp.asarray(self.rows.data)
        data = jnp.where(self.rows.is_filled[:, None], data, 0)
        x, x_low, y, y_low, w = data.T
        return DoubleFloat(x, x_low), DoubleFloat(y, y_low), w
