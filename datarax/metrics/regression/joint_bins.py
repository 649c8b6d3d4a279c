"""Weights of pairs in bins of both values, and what rank correlations follow from them."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import jax
import numpy as np

from datarax._checks import default_float, large_as_infinite, numeric, warn_of_rounded
from datarax._errors import ConfigurationMismatchError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import at, lax, xp
from datarax.algebra.fields import state
from datarax.algebra.fold import Fold
from datarax.algebra.memo import computed_once
from datarax.algebra.saving import SavedState, check_is_saved
from datarax.algebra.state import State
from datarax.distributed.collectives import replicated
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.dyadic_grid import DyadicGrid
from datarax.numerics.float_ranges import is_within_floats, of_two_keys
from datarax.numerics.limbs import columns_of_doubles
from datarax.numerics.scaled_double import ScaledDouble, multiplied
from datarax.numerics.scaling import nan_where
from datarax.numerics.sums import suffix_sums
from datarax.statistics.adaptive_bins import Binned, Places, WideBins
from datarax.statistics.batches import pairs
from datarax.statistics.buffer import KeepsPairs, WeightedRows
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
    by_class: ClassVar[bool] = False

    def empty(self) -> dict[str, PyTree]:
        return super().empty() | {"counts": ScatterCounts((self.slots, self.slots))}

    def plus_rows(self, x: PyTree, w: jax.Array, row: jax.Array | None = None) -> Fold:
        """This with pairs (N, 2) of finite values added, each with its weight (N,)."""
        x, w, self = replicated((x, w, self))
        counted = xp.broadcast_to(w.astype(xp.bool_)[:, None], x.shape)

        def placed(x: Binned, bins: Self, grid: DyadicGrid) -> Self:
            place, slots = grid.place(x.x), grid.slots
            both = place + xp.arange(2, dtype=xp.int32)[None, :] * slots
            both = xp.where(counted, both, 2 * slots)  # ignored
            place = xp.where(counted[:, 0], place[:, 0] * slots + place[:, 1], slots * slots)
            counts = bins.counts.add_below_full(place, w)
            return bins.with_parts(bins.extremes_with(both, x) | {"counts": counts})

        return self.covering(x, counted, placed)

    def reaching(self, reach: jax.Array, full: jax.Array) -> tuple[Self, DyadicGrid]:
        old, new = self.both_grids(reach)

        def join(carry: PyTree) -> PyTree:
            left, scale, tables = carry
            return ~left, new.scale, self.joined(tables, old.with_scale(*scale), new)

        # A loop of at most one round: see `AdaptiveBins`.
        left = full | xp.any(old.differs_from(new))
        carry = (left, old.scale, self.tables())
        _, scale, tables = lax.while_loop(lambda carry: carry[0], join, carry)
        return self.with_tables(tables, reach, full), new.with_scale(*scale)

    def counts_on(self, counts: jax.Array, place: Places) -> jax.Array:
        first, second = place[1]
        return at(xp.zeros_like(counts))[..., first[:, None], second[None, :]].add(counts)

    def table(self) -> JointTable:
        """The table with the bins in ascending order."""
        first, second = order = self.order(self.grid)
        weights = self.counts.double.map(lambda x: x[first][:, second])
        least, greatest = self._extremes(order)
        return JointTable(weights, least >= greatest)

    def ends(self) -> jax.Array:
        """The least and the greatest value of each bin in ascending order, (2, 2, slots).

        The first axis is that of the two ends. An empty bin has infinity and -infinity.
        """
        return xp.stack([each.high for each in self._extremes(self.order(self.grid))])

    def is_within_floats(self) -> bool:
        """On the host: True if numbers with more digits than float32 share the narrowest bins."""
        least, greatest = self._extremes(self.order(self.grid))
        some: Any = np.isfinite(least.high)
        gap: Any = np.where(some, (greatest - least).to_float(), 0)
        return is_within_floats(gap, np.where(some, least.high, 0))

    def _extremes(self, order: jax.Array) -> tuple[DoubleFloat, DoubleFloat]:
        # Extremes are maxima: of the negated values, and of the values.
        negated, greatest = (
            each.double.map(lambda x: xp.take_along_axis(x, order, -1))
            for each in (self.negated, self.greatest)
        )
        return -negated, greatest


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
        # Of numbers that a float32 does not hold, bins have bounds if they are small.
        p, t = (
            large_as_infinite(numeric(x, name, any_range=True))
            for x, name in ((preds, "preds"), (target, "target"))
        )
        p, t, w, invalid = pairs(p, t, weights, (), any_range=True)
        warn_of_rounded(preds=p, target=t)
        bins = self._with_pairs(p, t, xp.broadcast_to(w, p.shape))
        return self.replace(bins=bins, invalid=self.invalid.update(invalid))

    def _with_pairs(self, p: jax.Array, t: jax.Array, w: jax.Array) -> JointBins:
        return self.bins.add(columns_of_doubles(*replicated((p, t))), replicated(w).reshape(-1))

    @computed_once
    def table(self) -> JointTable:
        """The weights by the bins of both, in ascending order."""
        return self.bins.table()


class PairRows(WeightedRows):
    """Rows beside bins, which have the rows that do not fit, too.

    Once some do not fit, the rows that are kept mean nothing.
    """

    def unusable(self) -> dict[str, PyTree]:
        return {}

    def canonical(self) -> Self:
        # Which rows are kept then depends on their order, and how many do not fit on weights.
        kept, is_full = super().canonical(), self.overflow > 0
        data, filled = xp.asarray(kept.data), xp.asarray(kept.filled)
        high, low = map(xp.asarray, kept.lost)
        return kept.with_parts(
            {
                "data": xp.where(is_full, xp.zeros_like(data), data),
                "filled": xp.where(is_full, xp.zeros_like(filled), filled),
                "lost": (xp.zeros_like(high), is_full.astype(low.dtype)),
            }
        )

    def weighted_by(self, factor: ScaledDouble) -> Self:
        data = xp.asarray(self.data)
        weights = multiplied(DoubleFloat.of(data[..., -1]), factor).to_float()
        return self.with_parts({"data": xp.concatenate([data[..., :-1], weights[..., None]], -1)})


class RankedPairs(KeepsPairs, JointHistogram, kw_only=False):
    """A `JointHistogram` of all pairs that also keeps the first `capacity` of them as they are.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.regression.joint_bins import RankedPairs
        >>> seen = RankedPairs(bits=6, capacity=2).update(jnp.arange(3.0), jnp.arange(3.0))
        >>> print(seen.filled, seen.overflow, seen.table().weights.to_float().sum())
        2 1 3.0
    """

    capacity: int = 8192
    """The number of pairs that are kept."""
    rows: PairRows = state()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rows = PairRows(self.capacity, (5,), default_float().name)  # type: ignore

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `preds` and `target`, both of any one shape."""
        p, t, w, invalid = pairs(preds, target, weights, (), any_range=True)
        warn_of_rounded(preds=p, target=t)
        w = xp.broadcast_to(w, p.shape)
        return self.replace(
            bins=self._with_pairs(_as_in_range(p), _as_in_range(t), w),
            rows=self.rows.append_pairs(p, t, w),
            invalid=self.invalid.update(invalid),
        )

    def loses_order(self) -> jax.Array:
        """True if numbers may be beyond the range of float32, whose order is not known."""
        reach = self.bins.reach.value
        return xp.any(reach <= -float(xp.finfo(reach.dtype).max))

    def loaded(self, saved: SavedState, where: str, *, partial: bool = False) -> Self:
        check_is_saved(saved, where)
        return super().loaded(self._of_earlier(saved), where, partial=partial)

    def _of_earlier(self, saved: SavedState) -> SavedState:
        """What an earlier version saved, as this version saves it; else as it is.

        Raises:
            ConfigurationMismatchError: the saved state lacks what is stored now.
        """
        kind, config, parts = saved["type"].rpartition(".")[2], saved["config"], saved["state"]
        now = type(self)(bits=self.bits, capacity=self.capacity)
        if kind == "JointHistogram" and config.get("bits") == self.bits:
            lead = np.shape(parts["bins"]["state"]["counts"]["state"]["pending"])
            rows = _mapped(lambda x: np.array(np.broadcast_to(x, lead + x.shape)), now.rows.saved())
            # As if one did not fit: so they are read from the bins, which have all pairs.
            rows["state"]["lost"]["1"] += np.uint32(1)
            return now.saved() | {"state": parts | {"rows": rows}}
        if kind == "PairBuffer" and config.get("capacity") == self.capacity:
            rows = parts["rows"]["state"]
            if any(np.any(x) for x in rows["lost"].values()):
                raise ConfigurationMismatchError(
                    f"the saved metric kept {self.capacity} pairs and lost the others, so its "
                    f"value is NaN; load it into a metric with exact=True, as which it was saved"
                )
            found = [
                now.with_rows(rows, index).saved() for index in np.ndindex(rows["filled"].shape)
            ]
            bins = _mapped(
                lambda *x: np.reshape(x, rows["filled"].shape + x[0].shape),
                *(each["state"]["bins"] for each in found),
            )
            kept = now.rows.saved() | {"state": rows}
            return now.saved() | {"state": parts | {"bins": bins, "rows": kept}}
        return saved

    def with_rows(self, saved: PyTree, index: tuple[int, ...]) -> Self:
        """This with the rows of one of several saved states."""
        x, x_low, y, y_low, w = saved["data"][index][: saved["filled"][index]].T
        is_double = x.dtype == np.float64  # with x64, the first key is the number
        p, t = (a if is_double else of_two_keys(a, b) for a, b in ((x, x_low), (y, y_low)))
        return self.update(p, t, weights=w)


def _as_in_range(x: Any) -> Any:
    """`x` with the greatest float32 in place of float64 numbers of NumPy that are beyond it."""
    if large_as_infinite(x) is x:
        return x
    most = float(np.finfo(np.float32).max)
    return np.clip(x, -most, most)


def _mapped(function: Callable[..., Any], *saved: PyTree) -> PyTree:
    """Saved states, with `function` of their arrays in the place of these."""
    if isinstance(saved[0], dict):
        return {key: _mapped(function, *(x[key] for x in saved)) for key in saved[0]}
    return function(*saved) if isinstance(saved[0], np.ndarray) else saved[0]


class Ends(NamedTuple):
    """Bounds on a correlation, and an estimate between them; each of shape ()."""

    lower: jax.Array
    value: jax.Array
    upper: jax.Array


def rank_correlation_of_bins(weights: DoubleFloat, is_tie: jax.Array) -> Ends:
    """Bounds and an estimate of Spearman's correlation of values that are known by their bins.

    In a bin of weight n, below which there is the weight b, the mean rank is `b + n / 2`, whatever
    the values. The distances d of the ranks from it sum up to zero, and their squares to at most
    `n**3 / 12`, in which all values differ. So the sum of products of both ranks, around their
    mean, is that of the mean ranks of the bins, and three more sums. Two have a distance times a
    mean rank: within a bin such a sum is greatest if the distances are in the order of the mean
    ranks, which is known by the table. The third, of the products of two distances, is bounded by
    their squares (Cauchy and Schwarz).

    For the estimate, the values of a bin differ, and the other rank rises within it as it does from
    bin to bin around it.

    Args:
        weights: of pairs, by the bins of both values in ascending order, (A, B).
        is_tie: the masks (A,) and (B,), padded to one array, of the bins that hold one value.

    Returns:
        NaN if either value is constant.
    """
    total = weights.sum((0, 1))
    shares = weights / total[None, None]
    center, square, spare, slack, rises = [], [], [], [], []
    for table, tie in ((shares, is_tie[0]), (shares.map(xp.transpose), is_tie[1])):
        own = table.sum(1)
        # The mean rank of each bin, over the total weight, from -1/2 to 1/2. Of one bin it is 0,
        # although the shares of float weights may not add up to 1.
        several = xp.sum(own.high > 0) > 1
        rank = own * 0.5 + 0.5 - suffix_sums(own)
        rank = rank.map(lambda x, several=several: xp.where(several, x, 0))
        center.append(rank)
        square.append((own * rank * rank).sum())
        within = (own * own * own).map(lambda x, tie=tie: xp.where(tie, 0, x)) / 12
        spare.append(within.sum())
        rises.append((own.to_float(), rank.to_float(), within.to_float()))
    for table, tie, rank in (
        (shares, is_tie[0], center[1]),
        (shares.map(xp.transpose), is_tie[1], center[0]),
    ):
        distance = (table.sum(1)[:, None] + table) * 0.5 - suffix_sums(table)
        free = table.map(lambda x, tie=tie: xp.where(tie[:, None], 0, x))
        slack.append((free * distance * rank[None, :]).sum((0, 1)))
    products = (shares * center[0][:, None] * center[1][None, :]).sum((0, 1)).to_float()
    gained = (slack[0] + slack[1]).to_float() + xp.sqrt((spare[0] * spare[1]).to_float())
    least = xp.sqrt((square[0] * square[1]).to_float())
    most = xp.sqrt(((square[0] + spare[0]) * (square[1] + spare[1])).to_float())

    # A bound is farthest from zero by the least divisor.
    low, high = products - gained, products + gained
    lower = _ratio(low, xp.where(low < 0, least, most))
    upper = _ratio(high, xp.where(high > 0, least, most))
    rise = _rise(shares.to_float(), *rises[0], other=rises[1][1])
    rise += _rise(xp.transpose(shares.to_float()), *rises[1], other=rises[0][1])
    value = xp.clip(_ratio(products + rise, most), lower, upper)
    is_constant = ~(most > 0)
    return Ends(*(nan_where(is_constant, x) for x in (lower, value, upper)))


def _ratio(x: jax.Array, divisor: jax.Array) -> jax.Array:
    """A correlation from a sum of products; its sign if the divisor is 0."""
    quotient = x / xp.where(divisor > 0, divisor, 1)
    return xp.clip(xp.where(divisor > 0, quotient, xp.sign(x)), -1, 1)


def _rise(
    table: jax.Array, own: jax.Array, rank: jax.Array, within: jax.Array, other: jax.Array
) -> jax.Array:
    """What the products of ranks gain where the other rank rises within bins as it does around.

    Args:
        table: the share of each bin of both, (A, B).
        own: the share of each bin, (A,).
        rank: the mean rank of each bin, (A,).
        within: how much the ranks in each bin vary, times its share, (A,).
        other: the mean rank of each bin of the other value, (B,).
    """
    mean = xp.sum(table * other[None, :], 1) / xp.where(own > 0, own, 1)
    along = across = xp.zeros_like(own)
    for step in (-2, -1, 1, 2):  # the line through the bin that is nearest to its neighbours
        inside = (np.arange(own.size) - step >= 0) & (np.arange(own.size) - step < own.size)
        w = xp.where(inside, xp.roll(own, step), 0)
        apart = xp.roll(rank, step) - rank
        along = along + w * apart * apart
        across = across + w * apart * (xp.roll(mean, step) - mean)
    return xp.sum(xp.where(along > 0, within * across / xp.where(along > 0, along, 1), 0))


class Agreement(NamedTuple):
    """How far two orders agree, of values that are known by their bins; shares of all pairs."""

    agreeing: DoubleFloat
    """For each cell, the share of what is in other bins of both and in the same order, less that in
    the opposite order, (A, B)."""
    different: tuple[jax.Array, jax.Array]
    """For each bin of either value, the share of what is in other bins, (A,) and (B,)."""
    shares: DoubleFloat
    """The share of each cell, (A, B)."""


def agreement_of_bins(weights: DoubleFloat) -> Agreement:
    """The agreement of the orders of two values, from the weights of their bins, (A, B)."""
    shares = weights / weights.sum((0, 1))[None, None]
    # What is in higher bins of the first value less what is in lower ones; and then of the second.
    first = shares.map(xp.transpose)
    first = suffix_sums(first) * 2 - first - first.sum(1)[:, None]
    second = first.map(xp.transpose)
    agreeing = suffix_sums(second) * 2 - second - second.sum(1)[:, None]

    def other(own: DoubleFloat) -> jax.Array:
        several = xp.sum(own.high > 0) > 1  # the shares of one bin may not add up to 1
        return xp.where(several, (1 - own).to_float(), 0)

    return Agreement(agreeing, (other(shares.sum(1)), other(shares.sum(0))), shares)


def _local_agreement(shares: DoubleFloat) -> jax.Array:
    """How far the order of the second value agrees with that within each bin of the first, (A,).

    Two values of a bin are on average a third as far apart as two of neighbouring bins, of which
    the agreement is known. So theirs is a third of it; and all of it, if that is complete.
    """
    table = shares.to_float()
    own = xp.sum(table, 1)
    above = suffix_sums(shares).to_float() * 2 - table - own[:, None]
    inner = slice(None, -1)
    agreeing = xp.append(xp.sum(table[inner] * above[1:], 1), xp.zeros_like(own[:1]))
    same = xp.append(xp.sum(table[inner] * table[1:], 1), xp.zeros_like(own[:1]))
    several = xp.append(own[inner] * own[1:], xp.zeros_like(own[:1])) - same
    # With the next lower bin and with the next higher one.
    agreeing, several = (x + xp.roll(x, 1) for x in (agreeing, several))
    share = xp.where(several > 0, agreeing / xp.where(several > 0, several, 1), 0)
    return (share + 2 * share**15) / 3


def kendall_of_bins(weights: DoubleFloat, is_tie: jax.Array) -> Ends:
    """Bounds and an estimate of Kendall's tau-b of values that are known by their bins.

    The order of two values in different bins is known. So only pairs within a bin of either value
    may agree more or less; those within a bin that holds one value are ties. For the estimate, the
    other values of a bin differ, and agree as much as follows from the next bins.

    Args:
        weights: of pairs, by the bins of both values in ascending order, (A, B).
        is_tie: the masks (A,) and (B,), padded to one array, of the bins that hold one value.

    Returns:
        NaN if either value is constant.
    """
    found = agreement_of_bins(weights)
    shares = found.shares
    known = (shares * found.agreeing).sum((0, 1)).to_float()
    squares = (shares * shares).to_float()
    unknown = expected = xp.zeros_like(known)
    least, most, locally = [], [], []
    for axis, tie in ((0, is_tie[0]), (1, is_tie[1])):
        own = shares.sum(1 - axis).to_float()
        squared = xp.where(tie, 0, own * own)
        same = squared - xp.where(tie, 0, xp.sum(squares, 1 - axis))
        locally.append(_local_agreement(shares if axis == 0 else shares.map(xp.transpose)))
        unknown, expected = unknown + xp.sum(same), expected + xp.sum(same * locally[axis])
        least.append(xp.sum(own * found.different[axis]))
        most.append(least[-1] + xp.sum(squared))
    free = xp.where(~is_tie[0][:, None] & ~is_tie[1][None, :], squares, 0)
    unknown = unknown + xp.sum(free)
    expected = expected + xp.sum(free * (locally[0][:, None] + locally[1][None, :])) / 2
    low, high = known - unknown, known + unknown
    fewest, all_ = (xp.sqrt(x[0] * x[1]) for x in (least, most))
    lower = _ratio(low, xp.where(low < 0, fewest, all_))
    upper = _ratio(high, xp.where(high > 0, fewest, all_))
    value = xp.clip(_ratio(known + expected, all_), lower, upper)
    is_constant = ~(all_ > 0)
    return Ends(*(nan_where(is_constant, x) for x in (lower, value, upper)))
