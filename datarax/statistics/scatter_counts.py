"""Tables of counts too large to add up in every update: a batch changes a few cells in place."""

import math
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from datarax._checks import default_float
from datarax._errors import MetricInputError
from datarax.distributed.collectives import replicated
from datarax.distributed.merge_ops import MetricReduceOp, identity, merge_op, zeros
from datarax.numerics.double_float import DoubleFloat, two_sum
from datarax.numerics.exact import Exact
from datarax.numerics.limbs import double_from_int
from datarax.numerics.sums import split_for_sum
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.fields import state
from datarax.statistics.state import LeafState

_FULL = 2**31 - 1
_CHUNK = 2**14


class ScatterCounts(LeafState, kw_only=False):
    """A table of sums of weights, to which each example adds in a few cells.

    Where weights are booleans, a scatter adds to 32-bit integers in place; before any of them
    could overflow, all are flushed to double-floats, exact to 2**48 (2**53 with x64). So an update
    costs what the batch holds, and not what the table holds. Weights that are floats add a whole
    table of double-floats.

    Args:
        shape: of the table.
    """

    shape: tuple[int, ...]

    recent: jax.Array = state()
    """Counts since the last flush, int32."""
    pending: jax.Array = state()
    """At most how many were added since then to any cell."""
    flushed: tuple[jax.Array, jax.Array] = state()
    """All before, as the parts of a double-float."""

    def __post_init__(self) -> None:
        self.shape = tuple(self.shape)
        if math.prod(self.shape) >= _FULL:
            raise MetricInputError(
                f"a table of shape {self.shape}; expected fewer than 2**31 cells"
            )
        super().__post_init__()

    def empty(self) -> dict[str, Any]:
        return {
            "recent": zeros(self.shape, "int32"),
            "pending": zeros((), "int32"),
            "flushed": identity(MetricReduceOp.sum, self.shape, np.dtype(default_float())),
        }

    def add(self, place: jax.Array, weights: jax.Array) -> Self:
        """Adds `weights` at the flat indices `place` (int32); what lies beyond the table is lost.

        `weights` has the shape of `place`: booleans, or floats of the default dtype, not negative.
        """
        if weights.dtype != jnp.bool_:
            batch = scatter_sum(place, weights, math.prod(self.shape)).reshape(*self.shape)
            total = DoubleFloat(*self.flushed) + batch
            return self.with_parts({"flushed": (total.high, total.low)})
        full = jnp.asarray(self.pending) > _FULL - place.size
        table = jax.tree.map(lambda x: x.reshape(-1), replicated((self.recent, self.flushed)))
        recent, flushed = _flush_where(full, table)
        recent, flushed = jax.tree.map(
            lambda x: x.reshape(self.shape), (add_at(recent, place, weights), flushed)
        )
        return self.with_parts(
            {
                "recent": recent,
                "pending": jnp.where(full, jnp.int32(0), self.pending) + jnp.int32(place.size),
                "flushed": flushed,
            }
        )

    @property
    def double(self) -> DoubleFloat:
        """The table as double-floats."""
        return DoubleFloat(*_flush(self.recent, self.flushed))

    @property
    def value(self) -> jax.Array:
        """The table, rounded to the default float."""
        return self.double.high

    @property
    def exact(self) -> Any:
        """The table with the part that `value` rounds away."""
        double = self.double
        return Exact(double.high, double.low) if double.dtype.itemsize == 4 else double.high

    def canonical(self) -> Self:
        return self._holding(self.double)

    def _holding(self, table: DoubleFloat) -> Self:
        stacked = table.shape[: table.ndim - len(self.shape)]
        return self.with_parts(
            {
                "recent": jnp.zeros(table.shape, jnp.int32),
                "pending": jnp.zeros(stacked, jnp.int32),
                "flushed": (table.high, table.low),
            }
        )

    def combine(self, other: Any) -> Self:
        return self._holding(self.double + other.double)

    def to_mesh(self) -> tuple[str, list[jax.Array]]:
        double = self.double
        row = merge_op(MetricReduceOp.sum, np.dtype(default_float()))
        return row.to_mesh((double.high, double.low))

    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        row = merge_op(MetricReduceOp.sum, np.dtype(default_float()))
        return self._holding(DoubleFloat(*row.from_mesh(arrays, np.dtype(default_float()))))


def _flush(recent: Any, flushed: Any) -> tuple[jax.Array, jax.Array]:
    recent, flushed = jax.tree.map(jnp.asarray, (recent, flushed))
    total = DoubleFloat(*flushed) + double_from_int(recent, flushed[0].dtype)
    return total.high, total.low


def _flush_where(full: jax.Array, table: Any) -> Any:
    """A flat table of recent and flushed counts, with all of them flushed if it is full."""
    size = table[0].size
    chunk, once = max(1, min(size, _CHUNK)), full.astype(jnp.int32)

    def flush(i: jax.Array, table: Any) -> Any:
        # The last chunk may overlap the one before it, whose recent counts are zero by then.
        start = jnp.minimum(i * jnp.int32(chunk), jnp.int32(size - chunk))
        part = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, chunk), table)
        # A loop again, or the compiler would fuse this with the writing, and copy all for it.
        part = lax.fori_loop(0, once, lambda _, p: (p[0] - p[0], _flush(*p)), part)
        return jax.tree.map(
            lambda x, new: lax.dynamic_update_slice_in_dim(x, new, start, 0), table, part
        )

    # A loop of no rounds, mostly: unlike a conditional, it leaves the table where it is. By chunks,
    # as a program sets aside memory for what it may need, in every call.
    return lax.fori_loop(0, once * jnp.int32(-(-size // chunk)), flush, table)


@partial(jax.jit, inline=True)
def add_at(table: jax.Array, place: jax.Array, weights: jax.Array) -> jax.Array:
    """A table (size,) with `weights` added at flat indices; what lies beyond it is lost."""
    ones = jnp.ones((), table.dtype) if weights.dtype == jnp.bool_ else replicated(weights)
    place = _beyond_if_zero(place, weights, table.size)
    return table.at[place].add(ones.reshape(-1) if ones.ndim else ones, mode="drop")


def scatter_sum(place: jax.Array, weights: jax.Array, size: int) -> DoubleFloat:
    """The total of `weights` (floats) at each of `size` flat indices."""
    place, weights = _beyond_if_zero(place, weights, size), replicated(weights).reshape(-1)
    # A scatter adds one by one, and would stall: into several rows, then their sum; and what it
    # adds is split, so that most of it adds up exactly.
    rows = max(1, min(place.size // 64, place.size // max(size, 1)))
    row = jnp.arange(place.size, dtype=jnp.int32) % rows
    empty = jnp.zeros((rows, size), weights.dtype)
    upper, lower = (
        jnp.sum(empty.at[row, place].add(part, mode="drop"), 0)
        for part in split_for_sum(weights, (0,))
    )
    return DoubleFloat(*two_sum(upper, lower))


def _beyond_if_zero(place: jax.Array, weights: jax.Array, size: int) -> jax.Array:
    """The flat indices, with those of weight zero beyond the table."""
    counts = replicated(weights).astype(jnp.bool_)
    return jnp.where(counts, replicated(place), jnp.int32(size)).reshape(-1)


def extreme_at(
    extreme: MetricAccumulator, place: jax.Array, values: jax.Array
) -> MetricAccumulator:
    """A maximum or minimum with `values` folded in at flat indices, in place, as `add_at`."""
    (part,) = extreme.parts
    flat = jnp.asarray(part).reshape(-1).at[replicated(place).reshape(-1)]
    fold = flat.max if extreme.reduce_op is MetricReduceOp.max else flat.min
    folded = fold(replicated(values).reshape(-1).astype(extreme.dtype), mode="drop")
    return extreme.replace(parts=(folded.reshape(extreme.shape),))
