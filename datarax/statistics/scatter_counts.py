"""Sums by place: `ScatterCounts`, a large table of counts; sums and extremes of one batch."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import jax
import numpy as np

from datarax._checks import default_float
from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax._xp import at, lax, xp
from datarax.algebra.devices import folding
from datarax.algebra.fields import state
from datarax.algebra.leaf_state import LeafState, Travel
from datarax.algebra.pytrees import children_of
from datarax.algebra.rows import Merging, RowTerms, Target
from datarax.distributed.collectives import replicated
from datarax.distributed.merge_ops import MetricReduceOp, identity, zeros
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import Exact, exact
from datarax.numerics.limbs import double_from_int
from datarax.numerics.scaled_double import ScaledDouble, multiplied
from datarax.numerics.scatter import add_at, count_at, greatest_at, scatter_sum
from datarax.statistics.accumulator import MetricAccumulator

_FULL = 2**31 - 1  # the greatest int32
_CHUNK = 2**14  # cells that are flushed at a time

Doubles = tuple[jax.Array, jax.Array]
Added = tuple[tuple[jax.Array, jax.Array], ...]
"""The cells of each row, and their weights, of each call of `add`."""
Table = tuple[jax.Array, Doubles]
"""The recent counts, and the flushed ones as the two parts of double-floats."""


class ScatterCounts(LeafState, kw_only=False):
    """A table of sums of weights. Each example adds its weight to a few cells.

    Boolean weights are counted: a scatter adds them to 32-bit integers in place, so the cost of an
    update depends on the size of the batch, not of the table. Before an integer can overflow, all
    of them are flushed: added to double-floats and set to zero. Double-floats are exact to 2**48
    (2**53 with x64).

    Float weights are summed to a table for the batch, which is added to the double-floats. The cost
    depends on the size of the table.

    Args:
        shape: the shape of the table.
    """

    shape: tuple[int, ...]

    recent: jax.Array = state()
    """Counts since the last flush, int32."""
    pending: jax.Array = state()
    """An upper bound for every cell of `recent`: how many counts were added since the flush."""
    flushed: tuple[jax.Array, jax.Array] = state()
    """The sums up to the last flush, and all float weights: the two parts of a double-float."""

    def __post_init__(self) -> None:
        self.shape = tuple(self.shape)
        # Flat indices are int32, and one more than the last cell drops a row.
        if math.prod(self.shape) >= _FULL:
            raise MetricInputError(
                f"a table of shape {self.shape}; expected fewer than 2**31 cells"
            )
        super().__post_init__()

    def empty(self) -> dict[str, PyTree]:
        return {
            "recent": zeros(self.shape, "int32"),
            "pending": zeros((), "int32"),
            "flushed": identity(MetricReduceOp.sum, self.shape, np.dtype(default_float())),
        }

    @folding
    def add(self, place: jax.Array, weights: jax.Array) -> Self:
        """Adds `weights` at the flat indices `place`.

        Args:
            place: int32 indices into the flattened table. Indices past its end are ignored.
            weights: booleans, or floats of the default dtype that are not negative, of the shape of
                `place`.
        """
        if weights.dtype != xp.bool_:
            # Into a table of the batch first: a scatter into the sums would round each weight at
            # the size of the sum.
            batch = scatter_sum(replicated(place), replicated(weights), self.shape)
            total = DoubleFloat(*self.flushed) + batch
            return self.with_parts({"flushed": (total.high, total.low)})
        recent, pending, flushed = self._with_room(place.size)
        return self._counted(recent, pending, place, weights).with_parts({"flushed": flushed})

    def _with_room(self, count: int) -> tuple[jax.Array, jax.Array, Doubles]:
        """The flat recent counts, `pending` and `flushed`: after a flush, if it is needed.

        So that each cell can get `count` more.
        """
        # By an upper bound of all cells: to look at each would read the whole table in every
        # update.
        full = self.is_full(count)
        table = jax.tree.map(lambda x: x.reshape(-1), replicated((self.recent, self.flushed)))
        recent, flushed = _flush_where(full, table)
        flushed = jax.tree.map(lambda x: x.reshape(self.shape), flushed)
        return recent, xp.where(full, xp.int32(0), self.pending), flushed

    def is_full(self, count: int) -> jax.Array:
        """True if a cell could overflow if it got this many more counts."""
        return xp.asarray(self.pending) > _FULL - count

    def add_below_full(self, place: jax.Array, weights: jax.Array) -> Self:
        """Adds as `add`, but never flushes: the table must not be full."""
        if weights.dtype != xp.bool_:
            return self.add(place, weights)
        recent = xp.asarray(self.recent).reshape(-1)
        return self._counted(recent, xp.asarray(self.pending), place, weights)

    def _counted(
        self, recent: jax.Array, pending: jax.Array, place: jax.Array, weights: jax.Array
    ) -> Self:
        """A copy with boolean weights added to the flat counts `recent`."""
        recent = add_at(recent, replicated(place), replicated(weights)).reshape(self.shape)
        return self.with_parts({"recent": recent, "pending": pending + xp.int32(place.size)})

    def _with_repeated(self, place: jax.Array, weights: jax.Array, counts: jax.Array) -> Self:
        """Adds weights (N, K) at flat indices of the table of each replica, as often as it counts.

        The leading axis is of replicas; `counts` (N, replicas) are below 2**7.
        """
        replicas, cells = counts.shape[1], math.prod(self.shape) // counts.shape[1]

        def table(times: jax.Array) -> jax.Array:
            empty = xp.zeros((cells, replicas), times.dtype)
            return at(empty)[place.astype(xp.uint32)].add(times, mode="drop").T.reshape(self.shape)

        counts = counts[:, None, :]
        if weights.dtype != xp.bool_:
            w = DoubleFloat.of(weights[:, :, None])
            return self.holding(self.double + w.map(lambda w: table(w * counts.astype(w.dtype))))
        # A row counts less than 2**7 times, so this is the most that a cell can gain.
        # Each row adds to one cell, so no cell gains more than all rows together.
        most = (place.size << 7) - 1
        recent, pending, flushed = self._with_room(most)
        recent = recent.reshape(self.shape) + table(xp.where(weights[:, :, None], counts, 0))
        pending = pending + xp.int32(most)
        return self.with_parts({"recent": recent, "pending": pending, "flushed": flushed})

    @property
    def double(self) -> DoubleFloat:
        """The table as double-floats, with all recent counts flushed."""
        return flushed_total(self.recent, self.flushed)

    @property
    def value(self) -> jax.Array:
        """The table, rounded to the default float."""
        return self.double.high

    @property
    def exact(self) -> jax.Array | Exact:
        """The table without rounding: an `Exact` that holds both parts of the double-floats."""
        return exact(self.double)

    def float_sums(self) -> list[jax.Array]:
        return [self.flushed[0]]

    def by_row(self, rows: int) -> "RowCells":
        return RowCells()

    def with_cells(self, added: Added, target: Target) -> Self:
        """Stacked tables, with the cells of rows added."""
        place, counts, size = target.place, target.times, target.size
        cells = math.prod(self.shape)
        # All tables are one table with a further axis. A cell of it has no greater bound than the
        # greatest of theirs.
        whole = ScatterCounts((size, *self.shape)).with_parts(
            children_of(self) | {"pending": xp.max(self.pending)}
        )
        for cell, weights in added:
            cells_of_row = math.prod(cell.shape[1:])
            cell, weights = (x.reshape(place.size, cells_of_row) for x in (cell, weights))
            # The product may overflow for a row that is left out, and for a cell that is ignored.
            used = (place < target.places)[:, None] & (cell < cells)
            flat = place.astype(xp.int32)[:, None] * cells + cell
            flat = xp.where(used, flat, xp.int32(size * cells))
            if counts is None:
                whole = whole.add(flat, weights)
            else:
                whole = whole._with_repeated(flat, weights, counts)
        pending = xp.broadcast_to(whole.pending, (size,))
        return self.with_parts(children_of(whole) | {"pending": pending})

    def canonical(self) -> Self:
        return self.holding(self.double)

    def holding(self, table: DoubleFloat) -> Self:
        """A copy with this table, all of it flushed."""
        # The leading axes of a stacked state, for example one table per device.
        stacked = table.shape[: table.ndim - len(self.shape)]
        return self.with_parts(
            {
                "recent": xp.zeros(table.shape, xp.int32),
                "pending": xp.zeros(stacked, xp.int32),
                "flushed": (table.high, table.low),
            }
        )

    def combine(self, other: Self) -> Self:
        return self.holding(self.double + other.double)

    def weighted_by(self, factor: ScaledDouble) -> Self:
        table = multiplied(self.double, factor)
        # Zeros made of the counts, so that inside `shard_map` they vary over the same axes.
        recent, pending = (xp.asarray(x) & 0 for x in (self.recent, self.pending))
        flushed = table.high, table.low
        return self.with_parts({"recent": recent, "pending": pending, "flushed": flushed})

    def to_mesh(self) -> list[Travel]:
        # Flushed first: recent counts of all devices together may not fit an int32.
        return self._sums.with_value(self.double).to_mesh()

    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        return self.holding(self._sums.from_mesh(arrays).double)

    @property
    def _sums(self) -> MetricAccumulator:
        """An empty accumulator of the table's shape."""
        return MetricAccumulator(np.zeros(self.shape))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RowCells(RowTerms):
    """The few cells of a table to which each row adds, and their weights."""

    row_axis: ClassVar[int] = 0
    added: Added = ()

    def add(self, place: jax.Array, weights: jax.Array) -> "RowCells":
        """Keeps the cells and their weights, with a leading axis of rows."""
        return RowCells((*self.added, (place, weights)))

    def on_other_devices(self) -> "RowCells":
        """The other devices keep no cells of a replicated state."""
        return RowCells()

    @property
    def num_rows(self) -> int | None:
        return self.added[0][0].shape[0] if self.added else None

    def added_to(self, stacked: ScatterCounts, target: Target) -> Merging:
        yield from ()
        return stacked.with_cells(self.added, target)


def flushed_total(recent: jax.Array, flushed: Doubles) -> DoubleFloat:
    """The table `flushed + recent` as double-floats."""
    recent, high, low = map(xp.asarray, (recent, *flushed))
    return DoubleFloat(high, low) + double_from_int(recent, high.dtype)


def _flush_where(full: jax.Array, table: Table) -> Table:
    """Flushes a flat table, the pair of recent and flushed counts, if `full` is true."""
    size = table[0].size
    chunk, once = max(1, min(size, _CHUNK)), full.astype(xp.int32)

    def flush(i: jax.Array, table: Table) -> Table:
        # The last chunk may overlap the one before it, whose recent counts are zero by then.
        start = xp.minimum(i * xp.int32(chunk), xp.int32(size - chunk))
        start = start.astype(xp.uint32)  # JAX looks for negative indices
        part = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, chunk), table)
        # A loop of one round. Without it, the compiler fuses the sum with the write below, and then
        # copies the whole table.
        part = lax.fori_loop(0, once, lambda _, p: (p[0] - p[0], tuple(flushed_total(*p))), part)
        return jax.tree.map(
            lambda x, new: lax.dynamic_update_slice_in_dim(x, new, start, 0), table, part
        )

    # A loop that mostly has no rounds. A `lax.cond` would copy the table in every call. The loop
    # goes by chunks, because a program reserves the memory of the flush even if it does not flush.
    return lax.fori_loop(0, once * xp.int32(-(-size // chunk)), flush, table)


def count_labels(labels: jax.Array, weights: jax.Array, size: int) -> jax.Array:
    """The sums of the integer weights of each label: see `count_at`."""
    return count_at(replicated(labels.astype(xp.int32)), replicated(weights), size)


def extreme_at(
    extreme: MetricAccumulator, place: jax.Array, values: jax.Array
) -> MetricAccumulator:
    """A maximum or minimum updated with `values` at flat indices, in place.

    Indices past its end are ignored.
    """
    (part,) = extreme.parts
    place, values = (x.reshape(-1) for x in replicated((place, values.astype(extreme.dtype))))
    is_least = extreme.reduce_op is MetricReduceOp.min
    folded = greatest_at(xp.asarray(part).reshape(-1), place, values, negated=is_least)
    return extreme.replace(parts=(folded.reshape(extreme.shape),))
