"""`PairBuffer`: keeps pairs of values and their weights, the statistic of rank correlations."""

from typing import Self

import jax

from datarax._checks import as_float, default_float, numeric, positive_int
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.algebra.state import State
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import Exact
from datarax.numerics.limbs import as_double
from datarax.statistics.batches import pairs
from datarax.statistics.buffer import WeightedRows
from datarax.statistics.invalid_counts import InvalidCounts


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
        self.rows = WeightedRows(self.capacity, (5,), default_float().name)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Appends `preds` and `target`, both of any one shape; pairs of weight zero are skipped.

        Integers are not rounded.
        """
        p, _, w, invalid = pairs(preds, target, weights, ())
        w = xp.broadcast_to(w, p.shape)
        x, y = (as_double(numeric(each, "preds")) for each in (preds, target))
        data = xp.stack([part.reshape(-1) for part in (*x, *y, as_float(w))], -1)
        return self.replace(
            rows=self.rows.append(data, w.astype(xp.bool_).reshape(-1)),
            invalid=self.invalid.update(invalid),
        )

    @property
    def filled(self) -> jax.Array:
        """How many pairs are kept."""
        return xp.asarray(self.rows.filled)

    @property
    def overflow(self) -> Exact:
        """How many pairs did not fit."""
        return self.rows.overflow

    @property
    def columns(self) -> tuple[DoubleFloat, DoubleFloat, jax.Array]:
        """Predictions, targets and weights, each (capacity,); 0 from `filled` on."""
        data = xp.asarray(self.rows.data)
        data = xp.where(self.rows.is_filled[:, None], data, 0)
        x, x_low, y, y_low, w = data.T
        return DoubleFloat(x, x_low), DoubleFloat(y, y_low), w
