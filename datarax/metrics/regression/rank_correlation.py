"""Rank correlations: how well the order of the predictions agrees with that of the targets."""

import operator
from functools import reduce
from typing import Any, ClassVar, NamedTuple, Self

import jax
import numpy as np

from datarax._checks import large_as_infinite, numeric, refuse_ignored, warn_of_rounded
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import at, faster_in_numpy, lax, vmap, xp
from datarax.algebra.fields import state
from datarax.algebra.fold import Fold
from datarax.algebra.memo import computed_once
from datarax.algebra.state import State
from datarax.distributed.collectives import replicated
from datarax.distributed.placement import outside_mesh
from datarax.metric.base import bounds_of
from datarax.metric.reading import Bounds
from datarax.metric.sampling import Sampling
from datarax.metric.squared_weights import SquaredTotal
from datarax.metric.unusable import Undefined
from datarax.metrics.regression.correlation import fisher_ends
from datarax.metrics.regression.per_output import RegressionMetric
from datarax.numerics.double_float import DoubleFloat, stack
from datarax.numerics.dyadic_grid import DyadicGrid
from datarax.numerics.float_ranges import is_single, is_within_floats
from datarax.numerics.limbs import as_double
from datarax.numerics.products import correlation_coefficient
from datarax.numerics.scaling import nan_where, power_of_two_near_reciprocal
from datarax.numerics.sums import suffix_sums, sum_floats
from datarax.statistics.adaptive_bins import Binned, Places, WideBins
from datarax.statistics.batches import pairs
from datarax.statistics.buffer import Keys, PairBuffer
from datarax.statistics.cross_moments import TwoMoments
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
        >>> from datarax.metrics.regression.rank_correlation import JointHistogram
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
        x, y, w = replicated((as_double(p), as_double(t), xp.broadcast_to(w, p.shape)))
        both = stack([x.reshape(-1), y.reshape(-1)], -1)
        return self.replace(
            bins=self.bins.add(both, w.reshape(-1)), invalid=self.invalid.update(invalid)
        )

    @computed_once
    def table(self) -> JointTable:
        """The weights by the bins of both, in ascending order."""
        return self.bins.table()


# How many values are compared with all others at a time.
_BLOCK = 128


def dense_ranks(keys: Keys) -> jax.Array:
    """Counts the different values that are less than each of (N,) values, as a float."""
    # By both keys, so that large integers that round to one float stay apart.
    order = xp.lexsort(keys[::-1])
    differs = (x[order][1:] != x[order][:-1] for x in keys)
    greater = reduce(operator.or_, differs).astype(xp.int32)
    ranks = xp.cumsum(xp.concatenate([xp.zeros_like(order[:1], xp.int32), greater]))
    return at(xp.zeros_like(keys[0]))[order].set(ranks.astype(keys[0].dtype))


def mean_ranks(x: jax.Array, w: jax.Array) -> jax.Array:
    """The mean rank of each value minus 1/2: the weight below it, plus half the weight of its ties.

    Equal values share their mean rank. The rank of a value of weight zero is unspecified. `x` and
    `w` are (N,). Within 1 ulp of the exact rank.
    """
    order = xp.argsort(xp.where(w > 0, x, xp.inf))
    x, w = x[order], w[order]
    cumulative = suffix_sums(DoubleFloat.of(w[::-1]))[::-1]
    # Where each run of equal values starts and ends; values of weight zero come last.
    same = (w > 0) & (x == xp.roll(x, 1)) & (xp.arange(x.size) > 0)
    index = xp.arange(x.size, dtype=xp.int32)
    start = lax.cummax(xp.where(same, 0, index))
    is_last = xp.append(~same[1:], True)
    end = lax.cummin(xp.where(is_last, index, xp.int32(x.size - 1)), reverse=True)
    # rank = (weight below + weight up to the end of the run) / 2
    below = cumulative[start] - w[start]
    rank = ((below + cumulative[end]) * 0.5).to_float()
    return at(xp.zeros_like(rank))[order].set(rank)


def _order_agreement_by_sorting(
    x: PyTree, y: PyTree, w: PyTree, filled: PyTree
) -> tuple[PyTree, ...]:
    sums = _order_agreement(x[:filled], y[:filled], w[:filled].astype(np.float64))
    return tuple(np.pad(each, (0, x.size - each.size)) for each in sums)


@faster_in_numpy(_order_agreement_by_sorting)  # of 4,000 pairs 8 ms, not 330
def order_agreement(
    x: jax.Array, y: jax.Array, w: jax.Array, filled: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """For each value i, three sums over all j: of `w_j a b`, of `w_j |a|`, and of `w_j |b|`.

    `a` is the sign of `x_i - x_j`, and `b` the sign of `y_i - y_j`. All arrays are (N,), and only
    the first `filled` values have a weight. The sums are exact for up to 2**24 values of weight
    one, otherwise within about `N` units of `2**-24`. In a program all pairs are compared, so the
    time grows with `filled * N`; on the host with `N * log(N)`.
    """
    size = x.size
    block = min(_BLOCK, size)
    # Padding has weight zero, so its pairs add nothing.
    x, y, w = (xp.pad(v, (0, -size % block)) for v in (x, y, w))
    # On an `Explicit` mesh, all parts of the loop must be on it.
    x, y, w, nothing = replicated((x, y, w, xp.zeros_like(w)))

    def add_block(i: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        rows_x, rows_y = (lax.dynamic_slice_in_dim(v, i * block, block) for v in (x, y))
        a, b = _difference_signs(rows_x, x), _difference_signs(rows_y, y)
        # The sum of a row is exact without weights: a whole number of at most 2**24.
        by_row = [xp.sum(part * w[None, :], -1) for part in (a * b, xp.abs(a), xp.abs(b))]
        return tuple(
            lax.dynamic_update_slice_in_dim(all_rows, row, i * block, 0)
            for all_rows, row in zip(sums, by_row, strict=True)
        )

    blocks = (filled + (block - 1)) // block
    sums = lax.fori_loop(xp.int32(0), blocks, add_block, (nothing, nothing, nothing))
    agreeing, x_different, y_different = (each[:size] for each in sums)
    return agreeing, x_different, y_different


def _order_agreement(x: PyTree, y: PyTree, w: PyTree) -> tuple[PyTree, PyTree, PyTree]:
    """`order_agreement` in NumPy, by merge sort. W. R. Knight (1966), see `KendallTau`."""

    def different(values: PyTree) -> PyTree:
        groups = np.unique(values, return_inverse=True)[1]
        return np.sum(w) - np.bincount(groups, w)[groups] if len(w) else w

    # In ascending order of x, a pair is discordant if y descends. Of equal x, y ascends: no pair of
    # these counts. Concordant pairs are the discordant ones of -y.
    concordant, discordant = np.zeros((2, len(w)))
    for z, sums in ((-y, concordant), (y, discordant)):
        order = np.lexsort((z, x))
        sums[order] = _descents(z[order], w[order])
    return concordant - discordant, different(x), different(y)


def _descents(y: PyTree, w: PyTree) -> PyTree:
    """For each i, the sum of `w_j` over the j with which it descends, by merge sort, in NumPy.

    So `y_i > y_j` with i < j, or `y_j > y_i` with j < i.
    """
    size, levels = len(y), max(len(y) - 1, 0).bit_length()
    padding = 0, (1 << levels) - size  # of weight zero
    # The greatest first. Of equal ones in two halves, that of the second half comes first.
    key, w = np.pad(-2 * np.unique(y, return_inverse=True)[1], padding), np.pad(w, padding)
    index, sums = np.arange(len(w)), np.zeros(len(w))
    for level in range(levels):
        parts = [v.reshape(-1, 2 << level) for v in (key, w, sums, index)]
        is_first = np.arange(2 << level) < 1 << level
        order = np.argsort(parts[0] + is_first, -1, kind="stable")
        key, w, sums, index = (np.take_along_axis(v, order, -1) for v in parts)
        is_first = is_first[order]
        greater = np.cumsum(np.where(is_first, w, 0), -1)
        second = np.where(is_first, 0, w)
        less = np.sum(second, -1, keepdims=True) - np.cumsum(second, -1)
        sums = sums + np.where(is_first, less, greater)
    return sums.reshape(-1)[np.argsort(index, None)][:size]


def _difference_signs(rows: jax.Array, columns: jax.Array) -> jax.Array:
    """The sign of `rows[i] - columns[j]`: 1, -1, or 0 where they are equal."""
    rows, columns = rows[:, None], columns[None, :]
    return (rows > columns).astype(rows.dtype) - (rows < columns).astype(rows.dtype)


def rank_correlation_of_bins(
    weights: DoubleFloat, is_tie: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Bounds and an estimate of Spearman's correlation of values that are known by their bins.

    In a bin of weight n, below which there is the weight b, the mean rank is `b + n / 2`, whatever
    the values. The distances d of the ranks from it sum up to zero, and their squares to at most
    `n**3 / 12`, in which all values differ. So the sum of products of both ranks, around their
    mean, is that of the mean ranks of the bins, and three more sums. Two have a distance times a
    mean rank: within a bin such a sum is greatest if the distances are in the order of the mean
    ranks, which is known by the table. The third, of the products of two distances, is bounded by
    their squares (Cauchy and Schwarz).

    Args:
        weights: of pairs, by the bins of both values in ascending order, (A, B).
        is_tie: the masks (A,) and (B,), padded to one array, of the bins that hold one value.

    Returns:
        The lower bound, the estimate and the upper bound, of shape (). The estimate is for values
        that differ, in no order within a bin. NaN if either value is constant.
    """
    total = weights.sum((0, 1))
    shares = weights / total[None, None]
    center, square, spare, slack = [], [], [], []
    for table, tie in ((shares, is_tie[0]), (shares.map(xp.transpose), is_tie[1])):
        own = table.sum(1)
        # The mean rank of each bin, over the total weight, from -1/2 to 1/2. Of one bin it is 0,
        # although the shares of float weights may not add up to 1.
        several = xp.sum(own.high > 0) > 1
        rank = own * 0.5 + 0.5 - suffix_sums(own)
        rank = rank.map(lambda x, several=several: xp.where(several, x, 0))
        center.append(rank)
        square.append((own * rank * rank).sum())
        spare.append((own * own * own).map(lambda x, tie=tie: xp.where(tie, 0, x)).sum() / 12)
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

    def ratio(x: jax.Array, divisor: jax.Array) -> jax.Array:
        quotient = x / xp.where(divisor > 0, divisor, 1)
        return xp.clip(xp.where(divisor > 0, quotient, xp.sign(x)), -1, 1)

    # A bound is farthest from zero by the least divisor.
    low, high = products - gained, products + gained
    lower = ratio(low, xp.where(low < 0, least, most))
    upper = ratio(high, xp.where(high > 0, least, most))
    is_constant = ~(most > 0)
    return (
        nan_where(is_constant, lower),
        nan_where(is_constant, ratio(products, most)),
        nan_where(is_constant, upper),
    )


_LOST_ORDER = (
    "several numbers are beyond the range of float32, 1.2e-38 to 3.4e38, and count as equal. Scale "
    "them into it before the update, or give their logarithms"
)


class RankCorrelation(RegressionMetric):
    """A metric that is computed from a `PairBuffer`; in a `Collection`, such metrics share one.

    It is exact for the first `capacity` examples, which are kept. `invalid_count()` counts the
    other examples as invalid, and `on_invalid` applies to them.
    """

    higher_is_better = True
    capacity: int = 8192
    """The number of examples that are kept in all."""

    def __post_init__(self) -> None:
        self.statistic = PairBuffer.from_fields(self)

    def _loses_order(self) -> jax.Array:
        """True if several numbers are kept as one, as they are beyond the range of float32."""
        *both, _ = self.statistic.columns
        return xp.any(xp.stack([xp.sum(~is_single(*keys), dtype=xp.int32) > 1 for keys in both]))

    def undefined_parts(self) -> Undefined | None:
        if isinstance(self.statistic, PairBuffer):
            return Undefined(self._loses_order(), _LOST_ORDER)
        return None

    def _columns(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Dense ranks of predictions and targets, and weights scaled by a power of two.

        The result does not depend on the scale, and no product of weights overflows or underflows.
        """
        preds, target, w = self.statistic.columns
        return dense_ranks(preds), dense_ranks(target), w * power_of_two_near_reciprocal(xp.max(w))


class SpearmanCorrCoef(RankCorrelation):
    """Spearman's correlation: Pearson's correlation of ranks; equal values share their mean rank.

    All values are one population. Exact for the first `capacity` examples; the others are counted
    in `invalid_count()`. NaN where either is constant, and so for fewer than two examples. As
    `scipy.stats.spearmanr`. C. Spearman (1904), https://doi.org/10.2307/1412159.

    With `bits`, all examples count, in constant memory: `compute` is an estimate, and `bounds()`
    are certain to contain the exact value, up to the rounding of a float.

    Raises:
        MetricInputError: `capacity` is not a positive integer, or `bits` is not from 6 to 13.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SpearmanCorrCoef
        >>> preds, target = jnp.array([1.0, 2.0, 30.0, 4.0]), jnp.array([1.0, 2.0, 3.0, 4.0])
        >>> print(round(float(SpearmanCorrCoef().update(preds, target).compute()), 4))
        0.8
    """

    bits: int | None = None
    """If given, pairs are counted in a table of `2**bits` bins of both values, of 13 MB for 10
    bits, and no examples are kept. Of a million pairs of normal numbers the bounds are 0.014 apart
    if the numbers are unrelated, and 0.002 at a correlation of 0.99; one more bit halves that. The
    value is exact if there are few distinct values. Values of very different sizes share bins."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits is not None:
            refuse_ignored(self, "capacity", "with bits=, which keep no examples")
            self.statistic = JointHistogram(bits=self.bits)

    @outside_mesh
    def bounds(self) -> tuple[jax.Array, jax.Array]:
        """Bounds `(lower, upper)` on the exact value: of a buffer that is not full, the value.

        Of a buffer that is full, they are -1 and 1; and if several numbers are beyond the range of
        float32, whose order it does not keep.
        """
        return bounds_of(self)

    def value_and_bounds(self) -> tuple[PyTree, Bounds]:
        value = super().value_and_bounds()[0]
        if self.bits is not None:
            lower, _, upper = self._of_bins()
            return value, Bounds(lower, upper).rounded_where(self._are_apart_by_rounding)
        is_open = (self.statistic.overflow > 0) | self._loses_order()
        return value, Bounds(xp.where(is_open, -1, value), xp.where(is_open, 1, value))

    def _are_apart_by_rounding(self, lower: jax.Array, upper: jax.Array) -> jax.Array:
        return self.statistic.bins.is_within_floats() & (upper - lower > 0.01)

    def compute(self) -> PyTree:
        return self._of_pairs() if self.bits is None else self._of_bins()[1]

    def sampling(self) -> Sampling:
        return SpearmanSampling(self) if self.bits is None else super().sampling()

    @computed_once
    def _of_bins(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        return rank_correlation_of_bins(*self.statistic.table())

    @computed_once
    def _of_pairs(self) -> jax.Array:
        preds, target, w = self._columns()
        # Spearman's rho is Pearson's correlation of the mean ranks.
        ranks = vmap(mean_ranks, (0, None))(xp.stack((preds, target)), w)
        moments = TwoMoments(crossed=True).of_two(ranks[0], ranks[1], w)
        _, _, (squares,) = moments.doubles()
        return correlation_coefficient(
            moments.co_moment.double.to_float(), squares[0].to_float(), squares[1].to_float()
        )


class KendallTau(RankCorrelation):
    """Kendall's tau-b: how many more pairs of examples are concordant than discordant.

    (P - Q) / sqrt((pairs with different preds) * (pairs with different targets)), where P pairs
    have the same order in both and Q pairs the opposite order; a tie in only one of them lowers the
    agreement. All values are one population. Exact for the first `capacity` examples; the others
    are counted in `invalid_count()`. NaN where either is constant, and so for fewer than two
    examples. As `scipy.stats.kendalltau`. M. G. Kendall (1945),
    https://doi.org/10.1093/biomet/33.3.239.

    Outside `jit`, `compute` sorts the examples that are kept: W. R. Knight (1966),
    https://doi.org/10.1080/01621459.1966.10480879. Inside, it compares all pairs of them, in
    blocks: its time grows with the square of their number.

    Raises:
        MetricInputError: `capacity` is not a positive integer.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import KendallTau
        >>> preds, target = jnp.array([1.0, 2.0, 30.0, 4.0]), jnp.array([1.0, 2.0, 3.0, 4.0])
        >>> print(round(float(KendallTau().update(preds, target).compute()), 4))
        0.6667
    """

    @computed_once
    def _sums(self) -> tuple[jax.Array, tuple[jax.Array, ...], tuple[DoubleFloat, ...]]:
        """The weights, the sums of `order_agreement`, and their weighted sums."""
        preds, target, w = self._columns()
        by_row = order_agreement(preds, target, w, self.statistic.filled)
        return w, by_row, tuple(sum_floats(w * x, (0,)) for x in by_row)

    def compute(self) -> PyTree:
        # tau-b. All three sums count each pair twice, which cancels.
        return correlation_coefficient(*(each.to_float() for each in self._sums()[2]))

    def sampling(self) -> Sampling:
        return KendallSampling(self)


class RankSampling(Sampling):
    """The standard error of a rank correlation. Its interval is that of Fisher."""

    def squares(self) -> SquaredTotal:
        # The variance follows from the rows that are kept; this checks that they are observations.
        return SquaredTotal()

    def ends(self, value: jax.Array, margin: jax.Array) -> tuple[jax.Array, jax.Array]:
        return fisher_ends(value, margin)


class SpearmanSampling(RankSampling):
    """The standard error of `SpearmanCorrCoef`."""

    def variance(self, squares: SquaredTotal) -> jax.Array:
        preds, target, w = self.metric._columns()
        total = xp.sum(w)
        u, v = (mean_ranks(x, w) / total for x in (preds, target))
        share = w / total

        def above(x: jax.Array, values: jax.Array) -> jax.Array:
            """The sum of values over the rows above each, where ties count half."""
            below = mean_ranks(x, share * values)
            return xp.sum(share * values) - below

        # The value is a / sqrt(b c), of the central moments of both ranks. A row adds to each its
        # own term, and raises the ranks of all rows above it.
        moments = [xp.sum(share * product) for product in (u * v, u * u, v * v)]
        b, c = moments[1] - 0.25, moments[2] - 0.25
        of_a = u * v + above(preds, v) + above(target, u) - 3 * moments[0]
        of_b = u * u + 2 * above(preds, u) - 3 * moments[1]
        of_c = v * v + 2 * above(target, v) - 3 * moments[2]
        value = self.metric.value_and_bounds()[0]
        influence = of_a / xp.sqrt(b * c) - value / 2 * (of_b / b + of_c / c)
        # Where all rows have one order, only rounding is left.
        rounding = 64 * float(xp.finfo(influence.dtype).eps)
        none = xp.max(xp.where(share > 0, xp.abs(influence), 0)) < rounding
        return _variance(share, xp.where(none, 0, influence))


class KendallSampling(RankSampling):
    """The standard error of `KendallTau`."""

    def variance(self, squares: SquaredTotal) -> jax.Array:
        w, by_row, sums = self.metric._sums()
        total = xp.sum(w)
        agreeing, *different = (x / total for x in by_row)
        s, x, y = (each.to_float() / total / total for each in sums)
        value = s / xp.sqrt(x * y)
        of_pairs = (different[0] - x) / x + (different[1] - y) / y
        influence = 2 * ((agreeing - s) / xp.sqrt(x * y) - value / 2 * of_pairs)
        return _variance(w / total, influence)


def _variance(share: jax.Array, influence: jax.Array) -> jax.Array:
    """The variance of a value from the influence of each row, of which some have no weight."""
    n = xp.sum(share > 0).astype(share.dtype)
    squares = xp.sum(xp.where(share > 0, share * influence, 0) ** 2)
    return nan_where(n < 2, squares * n / xp.maximum(n - 1, 1))
