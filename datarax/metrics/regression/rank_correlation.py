"""Rank correlations: how well the order of the predictions agrees with that of the targets."""

import operator
from collections.abc import Callable
from functools import reduce
from typing import Self

import jax
import numpy as np

from datarax._checks import refuse_ignored
from datarax._typing import PyTree
from datarax._xp import at, faster_in_numpy, lax, vmap, xp
from datarax.algebra.memo import computed_once
from datarax.algebra.saving import SavedState, check_is_saved
from datarax.distributed.collectives import replicated
from datarax.distributed.placement import outside_mesh
from datarax.metric.base import bounds_of
from datarax.metric.reading import Bounds
from datarax.metric.sampling import Sampling
from datarax.metric.squared_weights import SquaredTotal
from datarax.metric.unusable import Undefined
from datarax.metrics.regression.correlation import fisher_ends
from datarax.metrics.regression.joint_bins import (
    Ends,
    RankedPairs,
    agreement_of_bins,
    kendall_of_bins,
    rank_correlation_of_bins,
)
from datarax.metrics.regression.per_output import RegressionMetric
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.float_ranges import is_single
from datarax.numerics.products import correlation_coefficient
from datarax.numerics.scaling import nan_where, power_of_two_near_reciprocal
from datarax.numerics.sums import suffix_sums, sum_floats
from datarax.statistics.buffer import Keys, PairBuffer
from datarax.statistics.cross_moments import TwoMoments

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


_LOST_ORDER = (
    "several numbers are beyond the range of float32, 1.2e-38 to 3.4e38, and count as equal. Scale "
    "them into it before the update, or give their logarithms"
)


BITS = 8
"""The bits of the table by default."""
_WIDEST = 0.01
"""`results` warns if bounds are farther apart."""


# Of both, a program computes both.
@faster_in_numpy(lambda is_full, of_bins, of_pairs: (of_bins if is_full else of_pairs)())
def _chosen(
    is_full: jax.Array, of_bins: Callable[[], PyTree], of_pairs: Callable[[], PyTree]
) -> PyTree:
    return jax.tree.map(lambda x, y: xp.where(is_full, x, y), of_bins(), of_pairs())


class RankCorrelation(RegressionMetric):
    """A metric of the order of pairs; in a `Collection`, such metrics share what they keep.

    The first `capacity` examples are kept, and while there are no others, the value is exact. Of
    more examples, all count in a table of bins of both values, in constant memory. Then `compute`
    is an estimate, and `bounds()` are certain to hold the exact value, up to the rounding of a
    float. Reading the result warns (`PrecisionWarning`) if they are more than 0.01 apart.
    """

    higher_is_better = True
    hidden_names = frozenset({"chosen", "estimated", "kept", "of_bins", "of_pairs"})
    exact: bool = False
    """True to keep the first `capacity` examples alone. `invalid_count()` counts the others as
    invalid, and `on_invalid` applies to them: by default the value is then NaN."""
    bits: int | None = None
    """The table has `2**bits` bins of either value, from 6 to 13; `None` gives 8. One more bit
    halves the distance of the bounds, and takes four times the memory: 0.8 MB for 8 bits, 13 MB for
    10. The value is exact if there are few distinct values. Values of very different sizes share
    bins."""
    capacity: int = 8192
    """The number of examples that are kept in all, of 20 bytes each."""

    def __post_init__(self) -> None:
        if self.exact:
            refuse_ignored(self, "bits", "with exact=True, which keeps examples and no table")
            self.statistic = PairBuffer.from_fields(self)
            return
        bits = BITS if self.bits is None else self.bits
        self.statistic = RankedPairs(bits=bits, capacity=self.capacity)

    def loaded(self, saved: SavedState, where: str, *, partial: bool = False) -> Self:
        check_is_saved(saved, where)
        if "exact" not in saved["config"]:  # of an earlier version
            config = {"bits": None} | saved["config"] | {"exact": self.exact}
            saved = saved | {"config": config}
        return super().loaded(saved, where, partial=partial)

    @outside_mesh
    def bounds(self) -> tuple[jax.Array, jax.Array]:
        """Bounds `(lower, upper)` on the exact value; both are the value while all rows are kept.

        They are -1 and 1 where rows were lost, with `exact=True`; and if several numbers are beyond
        the range of float32, whose order is not kept.
        """
        return bounds_of(self)

    def value_and_bounds(self) -> tuple[PyTree, Bounds]:
        value = super().value_and_bounds()[0]
        lower, _, upper = self.estimated()
        is_open = self._loses_order()
        if self.exact:
            is_open |= self.statistic.overflow > 0
        ends = xp.where(is_open, -1, lower), xp.where(is_open, 1, upper)
        if self.exact:
            return value, Bounds(*ends)
        remedy = (
            "exact=True with a capacity= for all examples gives the value, and more bits= narrows "
            "this"
        )
        bounds = Bounds(*ends, _WIDEST, remedy)
        return value, bounds.rounded_where(self._are_apart_by_rounding)

    def _are_apart_by_rounding(self, lower: jax.Array, upper: jax.Array) -> jax.Array:
        return (upper - lower > _WIDEST) & self.statistic.bins.is_within_floats()

    def compute(self) -> PyTree:
        return self.estimated().value

    @computed_once
    def estimated(self) -> Ends:
        """The correlation, and bounds on it while no order is lost."""
        return self.chosen(
            lambda: Ends(*[self.of_pairs()] * 3), lambda: self.of_bins(*self.statistic.table())
        )

    def of_pairs(self) -> jax.Array:
        """The value of the pairs that are kept."""
        raise TypeError(f"{type(self).__name__} does not define of_pairs()")

    def of_bins(self, weights: DoubleFloat, is_tie: jax.Array) -> Ends:
        """The value of all pairs, from their bins: see `JointTable`."""
        raise TypeError(f"{type(self).__name__} does not define of_bins()")

    def chosen(self, of_pairs: Callable[[], PyTree], of_bins: Callable[[], PyTree]) -> PyTree:
        """What follows from the pairs if all of them are kept, else what follows from the bins.

        On the host, only one of both is computed.
        """
        if self.exact:
            return of_pairs()
        return _chosen(self.statistic.overflow > 0, of_bins, of_pairs)

    def _loses_order(self) -> jax.Array:
        """True if several numbers are kept as one, as they are beyond the range of float32."""

        def of_pairs() -> jax.Array:
            *both, _ = self.statistic.columns
            lost = [xp.sum(~is_single(*keys), dtype=xp.int32) > 1 for keys in both]
            return xp.any(xp.stack(lost))

        return self.chosen(of_pairs, lambda: self.statistic.loses_order())

    def undefined_parts(self) -> Undefined | None:
        return Undefined(self._loses_order(), _LOST_ORDER)

    def kept(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Dense ranks of predictions and targets, and weights scaled by a power of two.

        The result does not depend on the scale, and no product of weights overflows or underflows.
        """
        preds, target, w = self.statistic.columns
        return dense_ranks(preds), dense_ranks(target), w * power_of_two_near_reciprocal(xp.max(w))


class SpearmanRanks(RankCorrelation):
    """A metric that is computed from Spearman's correlation."""

    def of_bins(self, weights: DoubleFloat, is_tie: jax.Array) -> Ends:
        return rank_correlation_of_bins(weights, is_tie)

    @computed_once
    def of_pairs(self) -> jax.Array:
        preds, target, w = self.kept()
        # Spearman's rho is Pearson's correlation of the mean ranks.
        ranks = vmap(mean_ranks, (0, None))(xp.stack((preds, target)), w)
        moments = TwoMoments(crossed=True).of_two(ranks[0], ranks[1], w)
        _, _, (squares,) = moments.doubles()
        return correlation_coefficient(
            moments.co_moment.double.to_float(), squares[0].to_float(), squares[1].to_float()
        )


class SpearmanCorrCoef(SpearmanRanks):
    """Spearman's correlation: Pearson's correlation of ranks; equal values share their mean rank.

    All values are one population. It is exact for up to `capacity` examples. Of more examples, it
    is an estimate from a table, and `bounds()` are certain to hold the exact value; with `exact`,
    it is NaN. NaN where either is constant, and so for fewer than two examples. As
    `scipy.stats.spearmanr`. C. Spearman (1904), https://doi.org/10.2307/1412159.

    Raises:
        MetricInputError: `capacity` is not a positive integer, or `bits` is not from 6 to 13.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SpearmanCorrCoef
        >>> preds, target = jnp.array([1.0, 2.0, 30.0, 4.0]), jnp.array([1.0, 2.0, 3.0, 4.0])
        >>> print(round(float(SpearmanCorrCoef().update(preds, target).compute()), 4))
        0.8
    """

    def sampling(self) -> Sampling:
        return SpearmanSampling(self)


class KendallPairs(RankCorrelation):
    """A metric that is computed from Kendall's tau-b."""

    hidden_names = frozenset({"sums"})

    @computed_once
    def sums(self) -> tuple[jax.Array, tuple[jax.Array, ...], tuple[DoubleFloat, ...]]:
        """The weights, the sums of `order_agreement`, and their weighted sums."""
        preds, target, w = self.kept()
        by_row = order_agreement(preds, target, w, self.statistic.filled)
        return w, by_row, tuple(sum_floats(w * x, (0,)) for x in by_row)

    def of_pairs(self) -> jax.Array:
        # tau-b. All three sums count each pair twice, which cancels.
        return correlation_coefficient(*(each.to_float() for each in self.sums()[2]))

    def of_bins(self, weights: DoubleFloat, is_tie: jax.Array) -> Ends:
        return kendall_of_bins(weights, is_tie)


class KendallTau(KendallPairs):
    """Kendall's tau-b: how many more pairs of examples are concordant than discordant.

    (P - Q) / sqrt((pairs with different preds) * (pairs with different targets)), where P pairs
    have the same order in both and Q pairs the opposite order; a tie in only one of them lowers the
    agreement. All values are one population. It is exact for up to `capacity` examples. Of more
    examples, it is an estimate from a table, and `bounds()` are certain to hold the exact value;
    with `exact`, it is NaN. NaN where either is constant, and so for fewer than two examples. As
    `scipy.stats.kendalltau`. M. G. Kendall (1945), https://doi.org/10.1093/biomet/33.3.239.

    Outside `jit`, `compute` sorts the examples that are kept: W. R. Knight (1966),
    https://doi.org/10.1080/01621459.1966.10480879. Inside, it compares all pairs of them, in
    blocks: its time grows with the square of their number.

    Raises:
        MetricInputError: `capacity` is not a positive integer, or `bits` is not from 6 to 13.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import KendallTau
        >>> preds, target = jnp.array([1.0, 2.0, 30.0, 4.0]), jnp.array([1.0, 2.0, 3.0, 4.0])
        >>> print(round(float(KendallTau().update(preds, target).compute()), 4))
        0.6667
    """

    def sampling(self) -> Sampling:
        return KendallSampling(self)


class RankSampling(Sampling):
    """The standard error of a rank correlation. Its interval is that of Fisher.

    It follows from the influence of each row, or of each cell of the table whose values count as
    equal.
    """

    def squares(self) -> SquaredTotal:
        # Of rows that are kept, this checks that they are observations.
        return SquaredTotal()

    def ends(self, value: jax.Array, margin: jax.Array) -> tuple[jax.Array, jax.Array]:
        return fisher_ends(value, margin)

    def variance(self, squares: SquaredTotal) -> jax.Array:
        def of_pairs() -> jax.Array:
            share, influence = self.of_rows()
            n = xp.sum(share > 0).astype(share.dtype)
            summed = xp.sum(xp.where(share > 0, share * influence, 0) ** 2)
            return nan_where(n < 2, summed * n / xp.maximum(n - 1, 1))

        def of_bins() -> jax.Array:
            table = self.metric.statistic.table()
            share, influence = self.of_cells(table.weights)
            n = squares.observations(table.weights.sum((0, 1)))
            return xp.sum(xp.where(share > 0, share * influence**2, 0)) / n

        return self.metric.chosen(of_pairs, of_bins)

    def of_rows(self) -> tuple[jax.Array, jax.Array]:
        """The share and the influence of each row that is kept."""
        raise TypeError(f"{type(self).__name__} does not define of_rows()")

    def of_cells(self, weights: DoubleFloat) -> tuple[jax.Array, jax.Array]:
        """The share and the influence of the rows of each cell of a table (A, B)."""
        raise TypeError(f"{type(self).__name__} does not define of_cells()")


class SpearmanSampling(RankSampling):
    """The standard error of `SpearmanCorrCoef`."""

    def of_rows(self) -> tuple[jax.Array, jax.Array]:
        preds, target, w = self.metric.kept()
        total = xp.sum(w)
        u, v = (mean_ranks(x, w) / total for x in (preds, target))
        share = w / total

        def above(x: jax.Array, values: jax.Array) -> jax.Array:
            below = mean_ranks(x, share * values)
            return xp.sum(share * values) - below

        influence = self._influence(
            share, u, v, above(preds, v), above(target, u), above(preds, u), above(target, v)
        )
        return share, influence

    def of_cells(self, weights: DoubleFloat) -> tuple[jax.Array, jax.Array]:
        shares = (weights / weights.sum((0, 1))[None, None]).to_float()

        def above(own: jax.Array) -> jax.Array:
            return suffix_sums(DoubleFloat.of(own)).to_float() - own / 2

        a, b = xp.sum(shares, 1), xp.sum(shares, 0)
        u, v = 1 - above(a), 1 - above(b)
        of_u, of_v = above(xp.sum(shares * v[None, :], 1)), above(xp.sum(shares * u[:, None], 0))
        by_x = (u, of_u, above(a * u))
        by_y = (v, of_v, above(b * v))
        (u, of_u, square_u), (v, of_v, square_v) = (
            [xp.broadcast_to(x[:, None], shares.shape) for x in by_x],
            [xp.broadcast_to(x[None, :], shares.shape) for x in by_y],
        )
        return shares, self._influence(shares, u, v, of_u, of_v, square_u, square_v)

    def _influence(
        self,
        share: jax.Array,
        u: jax.Array,
        v: jax.Array,
        v_above: jax.Array,
        u_above: jax.Array,
        own_u_above: jax.Array,
        own_v_above: jax.Array,
    ) -> jax.Array:
        """The influence of rows with the ranks `u` and `v`, as shares.

        The other arguments are sums over the rows above each, where ties count half: of `v` and `u`
        over those above in the other value, and of each over those above in itself.
        """
        # The value is a / sqrt(b c), of the central moments of both ranks. A row adds to each its
        # own term, and raises the ranks of all rows above it.
        moments = [xp.sum(share * product) for product in (u * v, u * u, v * v)]
        b, c = moments[1] - 0.25, moments[2] - 0.25
        of_a = u * v + v_above + u_above - 3 * moments[0]
        of_b = u * u + 2 * own_u_above - 3 * moments[1]
        of_c = v * v + 2 * own_v_above - 3 * moments[2]
        value = self.metric.value_and_bounds()[0]
        influence = of_a / xp.sqrt(b * c) - value / 2 * (of_b / b + of_c / c)
        # Where all rows have one order, only rounding is left.
        rounding = 64 * float(xp.finfo(influence.dtype).eps)
        none = xp.max(xp.where(share > 0, xp.abs(influence), 0)) < rounding
        return xp.where(none, 0, influence)


class KendallSampling(RankSampling):
    """The standard error of `KendallTau`."""

    def of_rows(self) -> tuple[jax.Array, jax.Array]:
        w, by_row, _ = self.metric.sums()
        total = xp.sum(w)
        agreeing, *different = (x / total for x in by_row)
        share = w / total
        return share, self._influence(share, agreeing, *different)

    def of_cells(self, weights: DoubleFloat) -> tuple[jax.Array, jax.Array]:
        found = agreement_of_bins(weights)
        shares, agreeing = found.shares.to_float(), found.agreeing.to_float()
        x, y = found.different
        different = (xp.broadcast_to(each, shares.shape) for each in (x[:, None], y[None, :]))
        return shares, self._influence(shares, agreeing, *different)

    def _influence(
        self, share: jax.Array, agreeing: jax.Array, x: jax.Array, y: jax.Array
    ) -> jax.Array:
        s, of_x, of_y = (xp.sum(share * each) for each in (agreeing, x, y))
        value = s / xp.sqrt(of_x * of_y)
        of_pairs = (x - of_x) / of_x + (y - of_y) / of_y
        return 2 * ((agreeing - s) / xp.sqrt(of_x * of_y) - value / 2 * of_pairs)
