"""Weights of values in bins that adapt to their range; `WideBins`: also of 32-bit integers."""

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple, Self

import jax
import numpy as np

from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax._xp import (
    at,
    blocks_of_rows,
    faster_in_numpy,
    lax,
    none_true,
    replaced,
    taken_from_rows,
    when_known,
    xp,
)
from datarax.algebra.devices import Asking, NeedsMaxima, folding
from datarax.algebra.fields import state
from datarax.algebra.fold import Fold, Term, in_one_pass
from datarax.algebra.leaf_state import LeafState, Travel
from datarax.algebra.pytrees import children_of
from datarax.distributed.collectives import replicated
from datarax.distributed.merge_ops import MetricReduceOp, Parts
from datarax.numerics.digit_sums import sum_doubles
from datarax.numerics.double_float import DoubleFloat, stack
from datarax.numerics.dyadic_grid import SPECIAL, DyadicGrid, WideGrid, least_step_to_one
from datarax.numerics.float_ranges import (
    is_single,
    next_float,
    outward,
    outward_doubles,
    two_keys,
)
from datarax.numerics.limbs import is_rounded
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.scatter import as_compared, greatest_double_at
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.extremes import Greatest
from datarax.statistics.scatter_counts import ScatterCounts, extreme_at, flushed_total

_BLOCK = 1 << 17
"""The number of values added at a time on the host, so that temporary arrays fit the cache."""

Tables = dict[str, PyTree]
"""The arrays of a state that are laid out by its bins, by name."""
Places = tuple[jax.Array, jax.Array]
"""The class, and the place on another grid, of each place of a grid: both (size, slots)."""


class Contents(NamedTuple):
    """The bins of each class in ascending order; arrays of shape (size, slots)."""

    weights: DoubleFloat
    """The weight of each bin, (rows, size, slots)."""
    lowest: jax.Array
    """At most the least value of the bin, and above all values of lower bins. It means nothing for
    an empty bin."""
    is_tie: jax.Array
    """The mask of the bins that are known to hold at most one distinct value."""
    least: jax.Array | None
    """The least value of each bin, or infinity if it is empty; None if extremes are not kept."""
    greatest: jax.Array | None
    """The greatest value of each bin, or -infinity."""
    beyond: tuple[jax.Array, jax.Array] | None = None
    """True for the classes whose least, and greatest, finite value was rounded, (size,). It is
    within a float of what the bin says."""
    ends: DoubleFloat | None = None
    """The least and the greatest values without rounding, (2, size, slots), where floats would be
    rounded."""


class Binned(NamedTuple):
    """Values (N, size) as they are binned; they mean nothing where they do not count."""

    x: Any
    """What places a value: floats, or the double-floats of `WideBins`."""
    least: Any
    """A lower bound of each value, in the form of `x`: the value, unless it was rounded."""
    greatest: Any
    """An upper bound of each value."""
    ends: tuple[Any, Any]
    """A lower and an upper bound of each value as floats, which are finite if the value is."""
    rest: Any = None
    """1 minus each value from 1/2 to 1, where this has more digits than 1 minus `x`."""
    code: Any = None
    """The digits that the greatest and the least float within a value lack, see `two_keys`; 0 if
    the value is a float. None if all are floats, or the bins do not keep them."""


class AdaptiveBins(NeedsMaxima, LeafState):
    """For each class, the weights of its values in bins over their range.

    The bins of a class are those of a `DyadicGrid`: a function of its least and greatest value, and
    of nothing else. If the range grows, bins are joined. So the counts do not depend on the order
    of updates and merges. The infinities have bins of their own.
    """

    bits_allowed: ClassVar[tuple[int, int]] = 10, 22
    by_class: ClassVar[bool] = True
    """True if each class has tables of its own, whose bins are joined without those of others."""

    size: int = 1
    """The number of classes."""
    rows: int = 1
    """The number of tables that share the bins of a class."""
    bits: int = 16
    """A class has `2**bits` bins; from 10 to 22."""
    octaves: int = 124
    """The number of powers of two below the greatest value with bins of equal relative width."""
    mirrored: int = 0
    """The number of powers of two of `1 - x` with narrow bins, for values from 1/2 to 1."""
    keeps_extremes: bool = True
    """True if each bin keeps its least and greatest value."""
    keeps_digits: bool = False
    """True if each bin also keeps what these floats lack of float64 numbers: so it is known whether
    they are equal. Only with `keeps_extremes`."""

    counts: ScatterCounts = state()
    """The weights, of shape (rows, size, slots), in the places of the grid."""
    reach: MetricAccumulator = state()
    """The minima of x and of -x over the finite values of each class, (2, size)."""
    negated: MetricAccumulator = state()
    """The maximum of -x in each bin, (size, slots); only with `keeps_extremes`."""
    greatest: MetricAccumulator = state()
    """The maximum of x in each bin, (size, slots); only with `keeps_extremes`.

    With `keeps_digits`, numbers that are no floats are rounded inward: the least up, the greatest
    down. So these cross if all numbers of a bin are between the same two floats."""
    codes: MetricAccumulator = state()
    """The maxima of the negated codes of the numbers in each bin that are no floats, and of their
    codes, (2, size, slots); -infinity if there is none. Only with `keeps_digits`."""

    def __post_init__(self) -> None:
        bits = self.bits
        least, most = self.bits_allowed
        if isinstance(bits, bool) or not isinstance(bits, int) or not least <= bits <= most:
            raise MetricInputError(f"bits={bits!r}; expected an integer from {least} to {most}")
        super().__post_init__()

    def empty(self) -> dict[str, PyTree]:
        # Both ends are minima, so that one reduction merges them.
        nothing = np.full((2, self.size), np.inf)
        slots = self.slots
        empty: dict[str, PyTree] = {
            "counts": ScatterCounts((self.rows, self.size, slots)),
            "reach": MetricAccumulator(nothing, MetricReduceOp.min),
        }
        if self.keeps_extremes:
            # An array for each, so that a scatter into one need not wait for that into the other.
            nothing = np.broadcast_to(-np.inf, (self.size, slots))
            greatest = MetricAccumulator(nothing, MetricReduceOp.max)
            empty |= {"negated": greatest, "greatest": greatest}
            if self.keeps_digits:
                both = np.broadcast_to(nothing, (2, *nothing.shape))
                empty["codes"] = MetricAccumulator(both, MetricReduceOp.max)
        return empty

    @property
    def slots(self) -> int:
        """The length of the table of a class."""
        return (1 << self.bits) + SPECIAL

    @property
    def grid(self) -> DyadicGrid:
        """The bins of the values so far."""
        return self.grid_of(self.reach.value)

    def grid_of(self, reach: jax.Array) -> DyadicGrid:
        """The bins of values of this reach."""
        return DyadicGrid.of_reach(reach, self.bits, self.octaves, self.mirrored)

    @folding
    def add(self, x: PyTree, w: jax.Array, row: jax.Array | None = None) -> Self:
        """Adds values: see `plus_rows`."""
        return in_one_pass(self.plus_rows(x, w, row))[0]

    def plus_rows(self, x: PyTree, w: jax.Array, row: jax.Array | None = None) -> Fold | Self:
        """This with values added, each with its weight. It waits for their range.

        Args:
            x: of shape (N, size), in the default float dtype; any value where the weight is zero,
                elsewhere not NaN. On the host also of float64: see `as_binned`.
            w: the weights, as floats or booleans, of shape (N, size) or (N, 1).
            row: the row of each value, as integers or booleans; the first row if there is none.
        """
        if x.shape[0] * self.size > _BLOCK:
            blocks = [*blocks_of_rows(x, w, row, elements=_BLOCK)]
            # On the host only: the temporary arrays of a block stay in the cache.
            if len(blocks) > 1:
                for block in blocks:
                    self = self.add(*block)
                return self
        # All arrays get one type, on an `Explicit` mesh that of the batch.
        x, w, row, self = replicated((x, w, row, self))
        counted = xp.broadcast_to(w.astype(xp.bool_), x.shape)

        # The grid depends on the range of the values, so their places are only known after the
        # reduction.
        def placed(x: Binned, bins: Self, grid: DyadicGrid) -> Self:
            slots = grid.slots
            place = grid.place(x.x, x.rest) + xp.arange(self.size, dtype=xp.int32)[None, :] * slots
            end = xp.int32(self.size * slots * self.rows)
            place = replaced(counted, place, end)  # those that do not count are dropped
            changes = bins.extremes_with(place, x) if self.keeps_extremes else {}
            if row is not None:
                place = place + row.astype(xp.int32) * (self.size * slots)
            weights = counted if w.dtype == xp.bool_ else xp.broadcast_to(w, counted.shape)
            return bins.with_parts(changes | {"counts": bins.counts.add_below_full(place, weights)})

        return self.covering(x, counted, placed)

    def extremes_with(self, place: jax.Array, x: Binned) -> dict[str, PyTree]:
        """The extremes, updated with values (N, size) at these places of the flattened tables."""
        changes: dict[str, PyTree] = {
            "negated": extreme_at(self.negated, place, -x.least),
            "greatest": extreme_at(self.greatest, place, x.greatest),
        }
        if x.code is not None:
            # Codes are of the host alone, and 0 for numbers that are floats: only the others are
            # scattered.
            some, slots = np.flatnonzero(x.code), self.size * self.slots
            index, code = (np.take(each, some) for each in (place, x.code))
            index, code = index[index < slots], code[index < slots]  # of those that count
            both: Any = np.concatenate([index, index + slots]), np.concatenate([-code, code])
            changes["codes"] = extreme_at(self.codes, *both)
        return changes

    def covering(self, x: Any, counted: jax.Array, placed: Callable[..., Self]) -> Fold:
        """The state that `placed` returns. It waits for the range of the values.

        It is given the values as they are binned, the state with a range that includes them, and
        its grid. Only those values matter that are `counted`; both are (N, size). The tables have
        room to count each of them.
        """
        binned = self.as_binned(x, counted)
        below, above = binned.ends
        finite = counted & xp.isfinite(below)
        reach = self.reach.parts[0]
        nothing = xp.asarray(-xp.inf, reach.dtype)
        ends = [replaced(finite, end, nothing) for end in (-below, above)]
        if self.size == 1:
            ends = [x[:, 0] for x in ends]  # the shape of the rows, to be reduced with others

        def reached(*greatest: jax.Array) -> Self:
            ends = xp.minimum(reach, -xp.stack(greatest).reshape(reach.shape))
            ends = xp.where(ends == 0, xp.zeros((), ends.dtype), ends)  # -0.0 becomes 0.0
            return placed(binned, *self.reaching(ends, self.counts.is_full(counted.size)))

        if self.size > 1:  # by columns, each is vectorised
            return Fold([], lambda: reached(*(xp.max(x, 0, initial=nothing) for x in ends)))
        return Fold([Term(x, (0,), "max") for x in ends], reached)

    def as_binned(self, x: Any, counted: Any) -> Binned:
        """Values as they are binned.

        Float64 numbers of the host are rounded to the default float only here: down for their
        place, and outward for the extremes of their bin. So all that the state says of them is
        true of the numbers as they were given.
        """
        dtype = self.reach.dtype
        if is_rounded(x):
            return self._rounded(np.where(counted, x, 0))
        x = x if x.dtype == dtype else x.astype(dtype)  # NumPy would copy
        # -0.0 equals 0.0, and some devices flush subnormal numbers to zero. All of them become 0.0,
        # so that every device gives the same result.
        some = counted & (xp.abs(x) >= float(xp.finfo(x.dtype).tiny))
        x = replaced(some, x, xp.zeros((), x.dtype))
        return Binned(x, x, x, (x, x))

    def _rounded(self, x: np.ndarray) -> Binned:
        """Float64 numbers of the host, of which none is NaN."""
        # The two floats between which the number lies; both are the number if it is a float.
        least, greatest = outward(x)
        most = np.finfo(np.float32).max
        is_infinite = np.isinf(x)
        below = np.where(is_infinite, least, np.maximum(least, -most))
        above = np.where(is_infinite, greatest, np.minimum(greatest, most))
        place, rest = below, None
        is_small = (x != 0) & (np.abs(x) < np.finfo(np.float32).tiny)
        place = np.where(is_small, np.float32(0), place)
        if self.mirrored:
            # From 1/2 to 1 the key is that of 1 - x, which float64 holds without rounding. What is
            # nearer to 1 than the steps of the widest grid is in the bin of 1.
            rest = (1 - x).astype(np.float32)
            near = (x < 1) & (rest < least_step_to_one(self.bits, self.octaves, self.mirrored))
            place = np.where(near, np.float32(1), place)
        is_rounded = least != greatest
        if not self.keeps_extremes:
            below, above = self._wide_reach(is_rounded, below, above)
        elif not self.mirrored:
            # A range that ends beyond the extremes of all bins says that its end was rounded.
            below = np.where(is_rounded, np.maximum(next_float(below, -np.inf), -most), below)
            above = np.where(is_rounded, np.minimum(next_float(above, np.inf), most), above)
        if not self.keeps_digits or not is_rounded.any():
            return Binned(place, least, greatest, (below, above), rest)
        # Inward: so the extremes of a bin cross if all its numbers are between the same two floats.
        return Binned(place, greatest, least, (below, above), rest, two_keys(x)[1])

    def _wide_reach(self, is_rounded: np.ndarray, below: Any, above: Any) -> tuple[Any, Any]:
        """The ends of a range in which no bin holds one float, if some values were rounded.

        Without extremes, a bin that holds one float counts as a tie. The widest bins are those of a
        range of both signs; above 1, those of a range with enough keys.
        """
        more = np.float32(1 + 2.0 ** (self.bits - 24))
        above = np.where(is_rounded & (above >= 1), np.maximum(above, more), above)
        return np.where(is_rounded, -np.abs(above), below), np.where(
            is_rounded, np.maximum(above, np.abs(below)), above
        )

    def reaching(self, reach: jax.Array, full: jax.Array) -> tuple[Self, DyadicGrid]:
        """The state with the bins of a range that includes the present one, and the new grid.

        Where the counts are `full`, all of them are flushed, as they are wherever bins are joined.
        """
        if when_known(_stays, full, reach, *self.reach.parts):
            return self, self.grid
        old, new = self.both_grids(reach)

        def join_one(carry: PyTree) -> PyTree:
            # The scale of each class is a part of the carry: the compiler would compute what does
            # not change in a loop before the loop, even if there are no rounds.
            left, scale, tables = carry
            # The index is unsigned, because JAX looks for negative ones.
            i = xp.argmax(left).astype(xp.uint32)

            def cut(tree: PyTree, axis: int) -> PyTree:
                return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, i, 1, axis), tree)

            def paste(tree: PyTree, part: PyTree, axis: int) -> PyTree:
                return jax.tree.map(
                    lambda x, y: lax.dynamic_update_slice_in_dim(x, y, i, axis),
                    *replicated((tree, part)),
                )

            # Only the scale of the new grid is used.
            before = old.with_scale(*scale).map(lambda x: cut(x, 0))
            after = before.with_scale(*cut(new.scale, 0))
            joined = self.joined(cut(tables, -2), before, after)
            done = xp.zeros((1,), xp.bool_)
            left, scale = paste((left, scale), (done, after.scale), 0)
            return left, scale, paste(tables, joined, -2)

        # A loop that mostly has no rounds. A `lax.cond` would copy the tables in every call.
        left = full | old.differs_from(new)
        carry = (left, old.scale, self.tables())
        _, scale, tables = lax.while_loop(lambda carry: xp.any(carry[0]), join_one, carry)
        # The scale as the loop returns it. That from before the loop, the compiler would compute
        # again for each value that is binned.
        return self.with_tables(tables, reach, full), new.with_scale(*scale)

    def both_grids(self, reach: jax.Array) -> tuple[DyadicGrid, DyadicGrid]:
        """The present grid, and the grid of a range that includes the present one.

        A class without values has no bins to join: its present scale is that of the other grid.
        """
        # Both at once, in half the operations.
        ends = xp.concatenate(replicated([xp.asarray(self.reach.value), reach]), 1)
        both, size = self.grid_of(ends), reach.shape[1]
        old, scale = both.map(itemgetter(slice(size))), [x[size:] for x in both.scale]
        present = old.with_scale(*map(partial(xp.where, old.has_values), old.scale, scale))
        return present, old.with_scale(*scale)  # of the other range, only the scale counts

    def tables(self) -> Tables:
        """The arrays that are laid out by the bins."""
        tables = {"recent": self.counts.recent, "flushed": self.counts.flushed}
        return tables | {name: getattr(self, name).parts for name in self._kept}

    def with_tables(self, tables: Tables, reach: jax.Array, flushed: jax.Array | bool) -> Self:
        """A copy with these tables in the bins of this reach; `flushed` if no count is pending."""
        counts = {n: tables[n] for n in ("recent", "flushed")}
        counts["pending"] = xp.where(flushed, 0, self.counts.pending)
        changes: dict[str, PyTree] = {
            "counts": self.counts.with_parts(counts),
            "reach": self.reach.with_parts({"parts": (reach,)}),
        }
        for name in self._kept:
            changes[name] = getattr(self, name).with_parts({"parts": tables[name]})
        return self.with_parts(changes)

    @property
    def _kept(self) -> tuple[str, ...]:
        """The names of the extremes."""
        digits = ("codes",) if self.keeps_digits else ()
        return ("negated", "greatest", *digits) if self.keeps_extremes else ()

    def joined(self, tables: Tables, old: DyadicGrid, new: DyadicGrid) -> Tables:
        """The tables of an old grid on a new one, whose bins are unions of the old ones."""
        place = _places_of(old, new)
        total = flushed_total(tables["recent"], tables["flushed"])
        flushed = sum_doubles(total, lambda counts: self.counts_on(counts, place))
        joined = {"recent": xp.zeros_like(tables["recent"]), "flushed": tuple(flushed)}
        return joined | {name: self.extremes_on(tables[name], place) for name in self._kept}

    def counts_on(self, counts: jax.Array, place: Places) -> jax.Array:
        """The sums of integers that get the same place."""
        return at(xp.zeros_like(counts))[..., *place].add(counts)

    def extremes_on(self, greatest: Parts, place: Places) -> Parts:
        """The maxima of the extremes that get the same place."""
        return tuple(_greatest_at(x, *place) for x in greatest)

    def _aligned_by_class(self, end: MetricAccumulator) -> Self:
        """As `aligned`; only the classes that get other bins are changed, mostly few."""
        if not self.by_class:
            return self._aligned(end)
        (reach,) = end.parts
        if _are_equal(reach, *self.reach.parts):
            return self
        old, new = self.both_grids(reach)
        some = np.flatnonzero(old.differs_from(new))
        tables = self.tables()
        if some.size:
            cut = jax.tree.map(lambda x: np.take(x, some, -2), tables)
            joined = self.joined(cut, old.map(itemgetter(some)), new.map(itemgetter(some)))

            def pasted(x: Any, part: Any) -> Any:
                x = np.array(x)
                x[..., some, :] = part
                return x

            tables = jax.tree.map(pasted, tables, joined)
        return self.with_tables(tables, reach, False)

    # Of 2 in 100 classes 0.7 ms, not 20. Each update changes the counts, so they are where the
    # other tables are.
    @faster_in_numpy(_aligned_by_class, looks_at=lambda self, end: (self.counts.recent, *end.parts))
    def aligned(self, end: MetricAccumulator) -> Self:
        """The same weights in the bins of a range that includes the present one."""
        return self._aligned(end)

    def _aligned(self, end: MetricAccumulator) -> Self:
        tables, reach = replicated((self.tables(), end.parts[0]))
        joined = self.joined(tables, self.grid, self.grid_of(reach))
        return self.with_tables(joined, end.parts[0], True)

    def combine(self, other: Self) -> Self:
        reach = self.reach.combine(other.reach)
        a, b = self.aligned(reach), other.aligned(reach)
        return a.with_parts({n: part.combine(getattr(b, n)) for n, part in children_of(a).items()})

    def canonical(self) -> Self:
        return self.with_parts({"counts": self.counts.canonical()})

    def weighted_by(self, factor: ScaledDouble) -> Self:
        return self.with_parts({"counts": self.counts.weighted_by(factor)})

    # Over devices: all devices first bring their bins to the common range.

    def ask_maxima(self, index: jax.Array, size: int) -> Asking[Self]:
        greatest = yield self.reach.to_mesh()[0].arrays
        return self.aligned(self.reach.from_mesh(greatest))

    def to_mesh(self) -> list[Travel]:
        extremes = (getattr(self, name).to_mesh() for name in self._kept)
        return sum(extremes, self.counts.to_mesh())

    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        changes: dict[str, PyTree] = {"counts": self.counts.from_mesh(arrays[:2])}
        count = (len(arrays) - 2) // max(1, len(self._kept))
        for i, name in enumerate(self._kept):
            part = arrays[2 + i * count : 2 + (i + 1) * count]
            changes[name] = getattr(self, name).from_mesh(part)
        return self.with_parts(changes)

    def order(self, grid: DyadicGrid) -> jax.Array:
        """The places of the bins in ascending order, (size, slots)."""
        ring = 1 << self.bits
        first = xp.argmin(grid.ranks(), -1).astype(xp.int32)[:, None]
        rank = xp.broadcast_to(xp.arange(ring, dtype=xp.int32), (self.size, ring))
        return _with_ends((first + rank) & (ring - 1), ring, ring + 1)

    def contents(self) -> Contents:
        """The bins in ascending order; on the host without those that are empty in all classes."""
        grid, ring = self.grid, 1 << self.bits
        weights, order, used = _weights_in_order(self.counts, self.order(grid))
        if not self.keeps_extremes:
            rank = xp.broadcast_to(xp.arange(ring, dtype=xp.int32), (self.size, ring))
            lowest = _with_ends(grid.lowest(rank), -xp.inf, xp.inf)[:, used]
            is_tie = xp.isinf(lowest) | grid.holds_one(lowest)
            return Contents(weights, lowest, is_tie, None, None)
        # An empty bin has the least value infinity and the greatest -infinity: a tie, too. The
        # least value is a better threshold than the edge of the bin: it occurs in the data.
        least = -taken_from_rows(self.negated.value, order)
        greatest = taken_from_rows(self.greatest.value, order)
        if self.keeps_digits:
            negated, code = taken_from_rows(self.codes.value, order)
            some = xp.isfinite(code)
            nearer = xp.minimum(xp.abs(least), xp.abs(greatest))
            is_one = (least > greatest) & (negated == -code) & is_single(nearer, code)
            is_tie = xp.where(some, is_one, least >= greatest)
            least = xp.where(some, next_float(least, -np.inf), least)
            greatest = xp.where(some, next_float(greatest, np.inf), greatest)
            return Contents(weights, least, is_tie, least, greatest)
        # The bins of the infinities, which are the first and the last, are not looked at.
        reach = self.reach.value
        beyond = (
            reach[0] != xp.min(least[:, 1:-1], -1, initial=xp.inf),
            -reach[1] != xp.max(greatest[:, 1:-1], -1, initial=-xp.inf),
        )
        return Contents(weights, least, least >= greatest, least, greatest, beyond)


def _weights_of_used(counts: Any, order: Any) -> tuple[DoubleFloat, Any, Any]:
    """As `_weights_in_order`, without the bins that are empty in all classes."""
    tables = counts.recent, counts.flushed
    some = np.logical_or.reduce((tables[0] != 0) | (tables[1][0] != 0), 0)
    used = np.logical_or.reduce(taken_from_rows(some, order), 0)
    used[[0, -1]] = True
    order = order[:, used]
    weights = flushed_total(*jax.tree.map(lambda x: taken_from_rows(x, order), tables))
    return weights, order, used


@faster_in_numpy(_weights_of_used)  # of 10 classes 6 ms, not 14
def _weights_in_order(counts: Any, order: jax.Array) -> tuple[DoubleFloat, jax.Array, Any]:
    """The weights of bins in order, the places of these bins, and their index in the order."""
    return counts.double.map(lambda x: taken_from_rows(x, order)), order, slice(None)


def _are_equal(x: Any, y: Any) -> Any:
    return (x == y).all()


def _stays(full: Any, reach: Any, present: Any) -> Any:
    return not np.count_nonzero(full) and _are_equal(reach, present)


def _with_ends(x: jax.Array, low: float, high: float) -> jax.Array:
    return xp.concatenate([xp.full_like(x[:, :1], low), x, xp.full_like(x[:, :1], high)], -1)


def _greatest_at(greatest: jax.Array, *place: jax.Array) -> jax.Array:
    """The maxima of the extremes (..., size, slots) that get the same place."""
    return at(xp.full_like(greatest, -xp.inf))[..., *place].max(greatest)


def _places_of(old: DyadicGrid, new: DyadicGrid) -> Places:
    """The class, and the place on a new grid, of each place of an old one, both (size, slots)."""
    ring, size = 1 << old.bits, old.least.shape[0]
    special = xp.broadcast_to(xp.arange(ring, old.slots, dtype=xp.int32), (size, old.slots - ring))
    place = old.places_on(new)
    # Unsigned, because JAX looks for negative indices.
    place = xp.concatenate([place, special], -1).astype(xp.uint32)
    return lax.broadcasted_iota(xp.uint32, place.shape, 0), place


class WideBins(AdaptiveBins):
    """`AdaptiveBins` of double-floats: integers of 32 bits that differ by one have bins of their
    own, if their range has as many.

    Each bin keeps its least and greatest value as double-floats. On devices without float64, and
    with x64, values are rounded to the default float.
    """

    negated: Greatest = state()  # type: ignore[reportIncompatibleVariableOverride]
    """The maximum of -x in each bin, (size, slots)."""
    greatest: Greatest = state()  # type: ignore[reportIncompatibleVariableOverride]
    """The maximum of x in each bin, (size, slots)."""

    def empty(self) -> dict[str, PyTree]:
        greatest = Greatest((self.size, self.slots))
        return super().empty() | {"negated": greatest, "greatest": greatest}

    def grid_of(self, reach: jax.Array) -> DyadicGrid:
        return WideGrid.of_reach(reach, self.bits, self.octaves, self.mirrored)

    def as_binned(self, x: Any, counted: Any) -> Binned:
        if not isinstance(x, DoubleFloat):  # floats of the host
            return super().as_binned(x, counted)
        given = x = as_compared(x)
        some = counted & (xp.abs(x.high) >= float(xp.finfo(x.dtype).tiny))
        x = x.map(lambda part: xp.where(some, part, 0))
        least, greatest = outward_doubles(x, given, counted)
        (high, low), (other, up) = least, greatest
        if least is greatest and none_true(low):  # mostly, all are floats
            return Binned(x, x, x, (high, high))
        infinity = xp.asarray(xp.inf, x.dtype)
        below = xp.where(low < 0, xp.nextafter(high, -infinity), high)
        above = xp.where(up > 0, xp.nextafter(other, infinity), other)
        return Binned(least, least, greatest, (below, above))

    def extremes_with(self, place: jax.Array, x: Binned) -> dict[str, PyTree]:
        def updated(extreme: Greatest, values: Any) -> Greatest:
            found = greatest_double_at(*replicated((extreme.double, place, values)))
            return extreme.with_parts({"parts": tuple(found)})

        return {
            "negated": updated(self.negated, -x.least),
            "greatest": updated(self.greatest, x.greatest),
        }

    def extremes_on(self, greatest: Parts, place: Places) -> Parts:
        high, low = DoubleFloat(*greatest).apply(_greatest_at, *place)
        return high, xp.where(xp.isfinite(high), low, xp.zeros((), low.dtype))

    def contents(self) -> Contents:
        order = self.order(self.grid)
        weights, negated, greatest = (
            x.map(lambda part: taken_from_rows(part, order))
            for x in (self.counts.double, self.negated.double, self.greatest.double)
        )
        least = -negated
        ends = stack([least, greatest])
        return Contents(
            weights, least.high, least >= greatest, least.high, greatest.high, ends=ends
        )
