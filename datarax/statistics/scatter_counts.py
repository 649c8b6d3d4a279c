"""Tables of counts too large to add up in every update: what a batch touches changes in place."""

import math
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from datarax import numerics as nx
from datarax._checks import default_float
from datarax._errors import MetricInputError
from datarax.distributed.collectives import replicated
from datarax.distributed.merge_ops import MetricReduceOp, identity, merge_op, zeros
from datarax.numerics.exact import Exact
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.state import State

_FULL = 2**31 - 1
_PIECE = 2**14


class Tally(State):
    """A table of sums of weights, which each example adds to in a few places.

    Where weights are booleans, a scatter adds to 32-bit integers in place; before any of them
    could overflow, all move on to pairs of floats, exact to 2**48 (2**53 with x64). So an update
    costs what the batch holds, and not what the table does. Weights that are floats add a whole
    table of pairs.
    """

    recent: jax.Array
    pending: jax.Array
    settled: nx.Pair

    def __init__(self, shape: tuple[int, ...]):
        self.shape = tuple(shape)
        if math.prod(shape) >= _FULL:
            raise MetricInputError(
                f"a table of shape {self.shape}; expected fewer than 2**31 cells"
            )
        self.recent, self.pending, self.settled = self._empty()

    def _empty(self) -> tuple[Any, Any, Any]:
        pair = identity(MetricReduceOp.sum, self.shape, np.dtype(default_float()))
        return zeros(self.shape, "int32"), zeros((), "int32"), pair

    def add(self, place: jax.Array, weights: jax.Array) -> Self:
        """Adds `weights` at the flat indices `place` (int32); what lies beyond the table is lost.

        `weights` has the shape of `place`: booleans, or floats of the default dtype, not negative.
        """
        if weights.dtype != jnp.bool_:
            batch = scatter_sum(place, weights, math.prod(self.shape))
            batch = jax.tree.map(lambda x: x.reshape(self.shape), batch)
            return self.replace(settled=nx.pair_add(self.settled, batch))
        full = jnp.asarray(self.pending) > _FULL - place.size
        table = jax.tree.map(lambda x: replicated(x).reshape(-1), (self.recent, self.settled))
        recent, settled = _settle_where(full, table)
        recent, settled = jax.tree.map(
            lambda x: x.reshape(self.shape), (add_at(recent, place, weights), settled)
        )
        return self.replace(
            recent=recent,
            pending=jnp.where(full, jnp.int32(0), self.pending) + jnp.int32(place.size),
            settled=settled,
        )

    @property
    def words(self) -> nx.Pair:
        """The table as a pair of floats."""
        return _settle(self.recent, self.settled)

    @property
    def value(self) -> jax.Array:
        """The table, rounded to the default float."""
        return self.words[0]

    @property
    def exact(self) -> Any:
        """The table with the part that `value` rounds away."""
        words = self.words
        return Exact(*words) if words[0].dtype.itemsize == 4 else words[0]

    def _canonical(self) -> Self:
        return self._with(self.words)

    def _with(self, words: Any) -> Self:
        shape = jnp.shape(words[0])
        stacked = shape[: len(shape) - len(self.shape)]
        return self.replace(
            recent=jnp.zeros(shape, jnp.int32),
            pending=jnp.zeros(stacked, jnp.int32),
            settled=tuple(words),
        )

    def _merge(self, other: Any) -> Self:
        return self._with(nx.pair_add(self.words, other.words))

    def _reset(self) -> Self:
        if jnp.shape(self.recent) != self.shape:  # stacked, one copy a device, say
            return jax.tree.map(lambda leaf: np.zeros(jnp.shape(leaf), leaf.dtype), self)
        recent, pending, settled = self._empty()
        return self.replace(recent=recent, pending=pending, settled=settled)

    def _over_mesh(self) -> tuple[str, list[jax.Array]]:
        return merge_op(MetricReduceOp.sum, np.dtype(default_float())).over_mesh(self.words)

    def _from_mesh(self, arrays: list[jax.Array]) -> Self:
        row = merge_op(MetricReduceOp.sum, np.dtype(default_float()))
        return self._with(row.from_mesh(arrays, np.dtype(default_float())))


def _settle(recent: Any, settled: Any) -> nx.Pair:
    recent, settled = jax.tree.map(jnp.asarray, (recent, settled))
    return nx.pair_add(settled, nx.pair_from_int(recent, settled[0].dtype))


def _settle_where(full: jax.Array, table: Any) -> Any:
    """A flat table of recent counts and pairs, with all counts in the pairs if it is full."""
    size = table[0].size
    piece, once = max(1, min(size, _PIECE)), full.astype(jnp.int32)

    def settle(i: jax.Array, table: Any) -> Any:
        # The last piece may overlap the one before it, whose counts are zero by then.
        start = jnp.minimum(i * jnp.int32(piece), jnp.int32(size - piece))
        part = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, piece), table)
        # A loop again, or the compiler would fuse this with the writing, and copy all for it.
        part = lax.fori_loop(0, once, lambda _, p: (p[0] - p[0], _settle(*p)), part)
        return jax.tree.map(
            lambda x, new: lax.dynamic_update_slice_in_dim(x, new, start, 0), table, part
        )

    # A loop of no rounds, mostly: unlike a conditional, it leaves the table where it is. By pieces,
    # as a program sets aside memory for what it may need, in every call.
    return lax.fori_loop(0, once * jnp.int32(-(-size // piece)), settle, table)


def add_at(table: jax.Array, place: jax.Array, weights: jax.Array) -> jax.Array:
    """A table (size,) with `weights` added at flat indices; what lies beyond it is lost."""
    ones = jnp.ones((), table.dtype) if weights.dtype == jnp.bool_ else replicated(weights)
    place = _beyond(place, weights, table.size)
    return table.at[place].add(ones.reshape(-1) if ones.ndim else ones, mode="drop")


def scatter_sum(place: jax.Array, weights: jax.Array, size: int) -> nx.Pair:
    """The total of `weights` (floats) at each of `size` flat indices, as a pair."""
    place, weights = _beyond(place, weights, size), replicated(weights).reshape(-1)
    # A scatter adds one by one, and would stall: into several rows, then their sum; and what it
    # adds is cut, so that most of it adds up exactly.
    rows = max(1, min(place.size // 64, place.size // max(size, 1)))
    row = jnp.arange(place.size, dtype=jnp.int32) % rows
    empty = jnp.zeros((rows, size), weights.dtype)
    upper, lower = (
        jnp.sum(empty.at[row, place].add(part, mode="drop"), 0)
        for part in nx.cut_for_sum(weights, (0,))
    )
    return nx.two_sum(upper, lower)


def _beyond(place: jax.Array, weights: jax.Array, size: int) -> jax.Array:
    """The flat indices, with those of no weight beyond the table."""
    counts = replicated(weights).astype(jnp.bool_)
    return jnp.where(counts, replicated(place), jnp.int32(size)).reshape(-1)


def extreme_at(
    extreme: MetricAccumulator, place: jax.Array, values: jax.Array
) -> MetricAccumulator:
    """A maximum or minimum with `values` folded in at flat indices, in place; see `Tally.add`."""
    (word,) = extreme.words
    flat = jnp.asarray(word).reshape(-1).at[replicated(place).reshape(-1)]
    fold = flat.max if extreme.op is MetricReduceOp.max else flat.min
    folded = fold(replicated(values).reshape(-1).astype(extreme.dtype), mode="drop")
    return extreme.replace(words=(folded.reshape(extreme.shape),))
