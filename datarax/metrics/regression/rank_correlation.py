"""How far predictions order the examples as their targets do: exact, from a buffer."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from datarax import numerics as nx
from datarax._checks import positive_int
from datarax.metrics.base import Metric, check_policy
from datarax.metrics.regression.correlation import correlation_of
from datarax.numerics.pairs import power_of
from datarax.statistics.cross_moments import TwoMoments
from datarax.statistics.pair_buffer import PairBuffer

# Pairs are compared in blocks of so many rows, against all.
_BLOCK = 128


class _RankMetric(Metric):
    """A metric that is read from a `PairBuffer`; what did not fit counts as not usable."""

    statistic: PairBuffer

    def __init__(self, *, capacity: int = 8192, on_invalid: str = "exclude"):
        positive_int(capacity, "capacity")
        self.on_invalid = check_policy(on_invalid)
        self.statistic = PairBuffer(capacity)

    def _columns(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Predictions, targets, and weights over the power of two next to the greatest.

        A result is the same for any, and so no product of weights overflows or is lost.
        """
        preds, target, w = self.statistic.columns
        return preds, target, w * power_of(jnp.max(w))


class SpearmanCorrCoef(_RankMetric):
    """Spearman's correlation: Pearson's, of ranks; equal values share their mean rank.

    `update(preds, target, *, weights=None)`: both of one shape and any real dtype; all values are
    one population; `weights` broadcast against the leading axes, and count as repetitions. As
    `scipy.stats.spearmanr`. NaN where either is constant, and so for fewer than two examples.

    Exact for the examples that were kept, which are the first `capacity`. The rest is reported:
    `invalid_count()` counts it with the examples that could not be used, and `on_invalid` applies
    to it. Nothing is approximated, and nothing bounded, beyond the capacity.

    Args:
        capacity: how many examples are kept, in all. `SpearmanCorrCoef` and `KendallTau` of one
            capacity share a statistic in a `Collection`.
        on_invalid: for examples that do not fit, NaN, infinities and negative weights: "exclude"
            and count them, "propagate" (the result is NaN), or "raise" when the result is read.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SpearmanCorrCoef
        >>> preds, target = jnp.array([1.0, 2.0, 30.0, 4.0]), jnp.array([1.0, 2.0, 3.0, 4.0])
        >>> print(round(float(SpearmanCorrCoef().update(preds, target).compute()), 4))
        0.8
    """

    def compute(self) -> jax.Array:
        preds, target, w = self._columns()
        ranks = jax.vmap(_ranks, (0, None))(jnp.stack((preds, target)), w)
        seen = TwoMoments(crossed=True).of_two(*ranks, w)
        p, t = seen.powers[0][0]
        return correlation_of(seen.co[0], p, t)


def _ranks(x: jax.Array, w: jax.Array) -> jax.Array:
    """The mean rank of each value, but for a constant: the weight below it, and half of its own."""
    order = jnp.argsort(jnp.where(w > 0, x, jnp.asarray(jnp.inf, x.dtype)))
    x, w = x[order], w[order]
    upto = nx.pair_suffix_sums((w[::-1], jnp.zeros_like(w)))
    upto = upto[0][::-1], upto[1][::-1]
    # The weight up to the first and to the last of equal values; that of none lies at the end.
    same = (w > 0) & (x == jnp.roll(x, 1)) & (jnp.arange(x.size) > 0)
    index = jnp.arange(x.size, dtype=jnp.int32)
    start = lax.cummax(jnp.where(same, jnp.int32(0), index))
    next_new = jnp.append(~same[1:], True)
    end = lax.cummin(jnp.where(next_new, index, jnp.int32(x.size - 1)), reverse=True)
    below = upto[0][start], upto[1][start]
    below = nx.pair_add(below, (-w[start], jnp.zeros_like(w)))
    twice = nx.pair_add(below, (upto[0][end], upto[1][end]))
    half = jnp.asarray(0.5, x.dtype)
    return jnp.zeros_like(x).at[order].set(twice[0] * half)


class KendallTau(_RankMetric):
    """Kendall's tau-b: pairs of examples in the same order less those in opposite, of all.

    `(P - Q) / sqrt((pairs with different preds) * (pairs with different targets))`, so that ties
    in one count against agreement. `update(preds, target, *, weights=None)` as for
    `SpearmanCorrCoef`. As `scipy.stats.kendalltau`. NaN where either is constant, and so for fewer
    than two examples. Kendall (1945), https://doi.org/10.1093/biomet/33.3.239.

    Exact for the examples that were kept, as `SpearmanCorrCoef`; `compute` compares all pairs of
    them, in blocks, so that its time grows with the square of their number.

    Args:
        capacity: as for `SpearmanCorrCoef`.
        on_invalid: as for `SpearmanCorrCoef`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import KendallTau
        >>> preds, target = jnp.array([1.0, 2.0, 30.0, 4.0]), jnp.array([1.0, 2.0, 3.0, 4.0])
        >>> print(round(float(KendallTau().update(preds, target).compute()), 4))
        0.6667
    """

    def compute(self) -> jax.Array:
        columns = self._columns()
        size = columns[0].size
        block = min(_BLOCK, size)
        padded = [jnp.pad(x, (0, -size % block)) for x in columns]
        dtype = padded[0].dtype

        def compare(i: jax.Array, sums: Any) -> Any:
            x, y, w = (lax.dynamic_slice_in_dim(v, i * block, block) for v in padded)
            # The orders of each of the block against all: 1, 0 or -1.
            a, b = (_order(mine, all_) for mine, all_ in ((x, padded[0]), (y, padded[1])))
            other = padded[2][None, :]
            parts = (a * b, jnp.abs(a), jnp.abs(b))
            # Whole numbers below 2**24 in each row, exact without weights; rows add up as pairs.
            each = [jnp.sum(part * other, -1) for part in parts]
            return tuple(
                nx.pair_add(total, nx.float_sum(w * row, (0,)))
                for total, row in zip(sums, each, strict=True)
            )

        zero = jnp.zeros((), dtype), jnp.zeros((), dtype)
        blocks = (self.statistic.filled + (block - 1)) // block
        agree, differ_x, differ_y = lax.fori_loop(jnp.int32(0), blocks, compare, (zero, zero, zero))
        return correlation_of(agree[0], differ_x[0], differ_y[0])


def _order(x: jax.Array, y: jax.Array) -> jax.Array:
    """1 where a value of `x` (rows) is above one of `y` (columns), -1 below, 0 where equal."""
    x, y = x[:, None], y[None, :]
    return (x > y).astype(x.dtype) - (x < y).astype(x.dtype)
