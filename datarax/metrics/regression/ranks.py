"""Ranks of weighted values, and sums over all pairs of them."""

import jax

from datarax._xp import at, lax, xp
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaling import nan_where
from datarax.numerics.sums import suffix_sums, sum_floats

# How many values are compared with all others at a time.
_BLOCK = 128


def dense_ranks(x: DoubleFloat) -> jax.Array:
    """How many different values are less than each of (N,) values, as a float."""
    order = xp.lexsort((x.low, x.high))
    ordered = x[order]
    greater = (ordered[1:] != ordered[:-1]).astype(xp.int32)
    ranks = xp.cumsum(xp.concatenate([xp.zeros_like(order[:1], xp.int32), greater]))
    return at(xp.zeros_like(x.high))[order].set(ranks.astype(x.dtype))


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
    return at(xp.zeros_like(x))[order].set(rank)


def order_agreement_sums(
    x: jax.Array, y: jax.Array, w: jax.Array, filled: jax.Array
) -> tuple[DoubleFloat, DoubleFloat, DoubleFloat]:
    """Three sums over all pairs (i, j): of `w_i w_j a b`, of `w_i w_j |a|`, and of `w_i w_j |b|`.

    `a` is the sign of `x_i - x_j`, and `b` the sign of `y_i - y_j`. All arrays are (N,), and only
    the first `filled` values have a weight. The sums are exact for up to 2**24 values of weight
    one, otherwise within about `N` units of `2**-24`. The time grows with `filled * N`.
    """
    size = x.size
    block = min(_BLOCK, size)
    x, y, w = (xp.pad(v, (0, -size % block)) for v in (x, y, w))

    def add_block(i: jax.Array, sums: tuple[DoubleFloat, ...]) -> tuple[DoubleFloat, ...]:
        rows_x, rows_y, rows_w = (lax.dynamic_slice_in_dim(v, i * block, block) for v in (x, y, w))
        a, b = _difference_signs(rows_x, x), _difference_signs(rows_y, y)
        # The sum of a row is exact without weights: a whole number of at most 2**24.
        by_row = [xp.sum(part * w[None, :], -1) for part in (a * b, xp.abs(a), xp.abs(b))]
        return tuple(
            total + sum_floats(rows_w * row, (0,)) for total, row in zip(sums, by_row, strict=True)
        )

    zero = DoubleFloat.of(xp.zeros((), x.dtype))
    blocks = (filled + (block - 1)) // block
    agreeing, x_different, y_different = lax.fori_loop(
        xp.int32(0), blocks, add_block, (zero, zero, zero)
    )
    return agreeing, x_different, y_different


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
