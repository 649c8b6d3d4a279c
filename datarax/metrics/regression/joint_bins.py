"""`JointHistogram`: pairs of values in the bins of both, the statistic of correlations of ranks."""

from typing import ClassVar, NamedTuple, Self

import jax

from datarax._checks import numeric
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import at, lax, xp
from datarax.algebra.fields import state
from datarax.algebra.memo import computed_once
from datarax.algebra.replication import folding
from datarax.algebra.state import State
from datarax.distributed.collectives import replicated
from datarax.numerics.double_float import DoubleFloat, stack
from datarax.numerics.dyadic_grid import DyadicGrid
from datarax.numerics.limbs import as_double
from datarax.statistics.adaptive_bins import (
    Tables,
    WideBins,
    joined_counts,
    joined_doubles,
    places_of,
)
from datarax.statistics.batches import pairs
from datarax.statistics.invalid_counts import InvalidCounts
from datarax.statistics.scatter_counts import ScatterCounts


class JointTable(NamedTuple):
    """The weight of pairs by the bins of both values, in ascending order."""

    weights: DoubleFloat
    """(slots, slots), by the bin of the first value and that of the second."""
    is_tie: jax.Array
    """The mask of the bins that hold at most one distinct value, (2, slots)."""


class JointBins(WideBins):
    """The weight of pairs of values, by the bins of both.

    The two values are the two classes of `WideBins`, with one table over the bins of both.
    """

    bits_allowed: ClassVar[tuple[int, int]] = 6, 13

    def empty(self) -> dict[str, PyTree]:
        return super().empty() | {"counts": ScatterCounts((self.slots, self.slots))}

    @folding
    def add(self, x: DoubleFloat, w: jax.Array, row: None = None) -> Self:
        """Adds pairs (N, 2) of finite values, each with its weight (N,)."""
        x, w, self = replicated((x, w, self))
        counted = xp.broadcast_to(w.astype(xp.bool_)[:, None], x.shape)
        x, bins, grid = self.covering(x, counted)
        place, slots = grid.place(x), grid.slots
        both = place + xp.arange(2, dtype=xp.int32)[None, :] * slots
        both = xp.where(counted, both, 4 * slots)  # ignored
        place = xp.where(counted[:, 0], place[:, 0] * slots + place[:, 1], slots * slots)
        extremes = bins.extremes_with(both, x)
        return bins.with_parts(
            {"extremes": extremes, "counts": bins.counts.add_below_full(place, w)}
        )

    def reaching(self, reach: jax.Array, full: jax.Array) -> tuple[Self, DyadicGrid]:
        old, new = self.both_grids(reach)

        def join(carry: PyTree) -> PyTree:
            left, scale, tables = carry
            return ~left, new.scale, self.joined(tables, old.with_scale(*scale), new)

        # A loop of at most one round: see `AdaptiveBins`.
        left = full | xp.any((old.bottom != new.bottom) | (old.shift != new.shift))
        carry = (left, old.scale, self.tables())
        _, scale, tables = lax.while_loop(lambda carry: carry[0], join, carry)
        return self.with_tables(tables, reach, full), new.with_scale(*scale)

    def joined(self, tables: Tables, old: DyadicGrid, new: DyadicGrid) -> Tables:
        place = places_of(old, new)

        def count(x: jax.Array) -> jax.Array:
            first, second = place[1]
            return at(xp.zeros_like(x))[..., first[:, None], second[None, :]].add(x)

        return joined_counts(tables, count) | joined_doubles(tables, place)

    def table(self) -> JointTable:
        """The table with the bins in ascending order."""
        first, second = order = self.order(self.grid)
        weights = self.counts.double.map(lambda x: x[first][:, second])
        negated, greatest = (
            self.extremes.double[i].map(lambda x: xp.take_along_axis(x, order, -1))
            for i in range(2)
        )
        return JointTable(weights, -negated >= greatest)


class JointHistogram(State):
    """The weight of pairs of a prediction and a target, by the bins of both.

    The bins of each adapt to its range, as those of `ValueHistogram`, so memory is constant:
    `4**bits` cells of 12 bytes. Integers of 32 bits are not rounded. Pairs with NaN or infinite
    values are excluded, and counted in `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.regression.joint_bins import JointHistogram
        >>> seen = JointHistogram(bits=8).update(jnp.arange(3.0), jnp.array([5.0, 4.0, 4.0]))
        >>> print(seen.table().weights.to_float().sum())
        3.0
    """

    bits: int = 10
    """Each value has `2**bits` bins, from 6 to 13. One more bit takes four times the memory."""

    bins: JointBins = state()
    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        self.bins = JointBins(size=2, bits=self.bits, octaves=15)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `preds` and `target`, both of any one shape."""
        p, _, w, invalid = pairs(preds, target, weights, ())
        x, y = (as_double(numeric(each, "preds")) for each in (preds, target))
        x, y, w = replicated((x, y, xp.broadcast_to(w, p.shape)))
        both = stack([x.reshape(-1), y.reshape(-1)], -1)
        return self.replace(
            bins=self.bins.add(both, w.reshape(-1)), invalid=self.invalid.update(invalid)
        )

    @computed_once
    def table(self) -> JointTable:
        """The weights by the bins of both, in ascending order."""
        return self.bins.table()
