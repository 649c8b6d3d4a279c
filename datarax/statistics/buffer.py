"""A buffer of fixed capacity that counts what does not fit instead of losing it silently."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax import numerics as nx
from datarax._checks import numeric, positive_int, rows_weight
from datarax._errors import MetricInputError, MetricTypeError
from datarax.distributed.collectives import replicated
from datarax.distributed.merge_ops import zeros
from datarax.numerics.exact import Exact
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.state import State


class Rows(State):
    """The first `capacity` rows, and how many of them there are."""

    data: jax.Array
    filled: jax.Array
    lost: tuple[jax.Array, jax.Array]

    def __init__(self, capacity: int, shape: tuple[int, ...], dtype: str):
        self.capacity, self.shape, self.dtype = capacity, shape, dtype
        self.data = zeros((capacity, *shape), dtype)
        self.filled = zeros((), "int32")
        self.lost = zeros((), "int32"), zeros((), "uint32")

    def append(self, rows: jax.Array, keep: jax.Array, lost: Any = None) -> Self:
        """Appends the rows marked in `keep`, in order; what does not fit is counted."""
        rows, keep = replicated(rows), replicated(keep)
        place = self.filled + jnp.cumsum(keep.astype(jnp.int32)) - 1
        fits = keep & (place < self.capacity)
        # Out-of-range positions are dropped by the scatter.
        place = jnp.where(fits, place, jnp.int32(self.capacity))
        data = jnp.asarray(self.data).at[place].set(rows, mode="drop")
        dropped = nx.wide_sum(keep & ~fits, (0,))
        total = nx.wide_add(self.lost, dropped)
        return self.replace(
            data=data,
            filled=self.filled + jnp.sum(fits, dtype=jnp.int32),
            lost=total if lost is None else nx.wide_add(total, lost),
        )

    def _merge(self, other: Any) -> Self:
        keep = jnp.arange(self.capacity, dtype=jnp.int32) < other.filled
        return self.append(jnp.asarray(other.data), keep, other.lost)

    def _reset(self) -> Self:
        return jax.tree.map(lambda leaf: np.zeros(jnp.shape(leaf), leaf.dtype), self)


class Buffer(State):
    """Keeps up to `capacity` rows of each stream of data.

    Args:
        capacity: rows in all, on one device; a merge keeps the first `capacity` of both.
        shape: of one row.
        dtype: of the data kept.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import Buffer
        >>> kept = Buffer(capacity=3).update(jnp.array([1.0, 2.0])).update(jnp.array([3.0, 4.0]))
        >>> print(kept.data, kept.filled, kept.overflow)
        [1. 2. 3.] 3 1
    """

    def __init__(self, capacity: int, shape: tuple[int, ...] = (), dtype: str = "float32"):
        positive_int(capacity, "capacity")
        self.rows = Rows(capacity, tuple(shape), np.dtype(dtype).name)

    invalid = MetricAccumulator(0)

    def update(self, values: Any, *, weights: Any = None) -> Self:
        """Appends rows of shape (N, *shape); rows of weight zero are left out."""
        x = numeric(values, "values")
        if x.ndim != 1 + len(self.rows.shape) or x.shape[1:] != self.rows.shape:
            raise MetricInputError(f"values of shape {x.shape}; expected (N, *{self.rows.shape})")
        kept = jnp.dtype(self.rows.dtype)
        if not (jnp.issubdtype(kept, jnp.floating) or np.can_cast(x.dtype, kept)):
            raise MetricTypeError(f"values of dtype {x.dtype} do not fit a Buffer of {kept}")
        finite = jnp.all(jnp.isfinite(x), tuple(range(1, x.ndim)))
        keep, invalid = rows_weight(finite, weights)
        keep = keep.astype(jnp.bool_)
        return self.replace(
            rows=self.rows.append(x.astype(kept), keep),
            invalid=self.invalid.update(invalid),
        )

    @property
    def data(self) -> jax.Array:
        """The rows, of shape (capacity, *shape); only the first `filled` are data."""
        return jnp.asarray(self.rows.data)

    @property
    def filled(self) -> jax.Array:
        """How many rows there are."""
        return jnp.asarray(self.rows.filled)

    @property
    def overflow(self) -> Any:
        """How many rows did not fit."""
        return Exact(*map(jnp.asarray, self.rows.lost))
