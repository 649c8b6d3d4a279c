"""Ratios of two sums over rows: the terms of each row, and how far their difference varies."""

from typing import Self

import jax

from datarax._typing import PyTree
from datarax._xp import vmap, xp
from datarax.algebra.fields import state
from datarax.algebra.one_pass import in_one_pass
from datarax.algebra.pytrees import map_leaf_states
from datarax.algebra.row_merge import Target
from datarax.algebra.stack import Stack
from datarax.algebra.state import State
from datarax.metrics.base import Metric
from datarax.metrics.call import Call
from datarax.metrics.row_updates import adds_by_row, by_rows, kept_apart
from datarax.numerics.double_float import DoubleFloat, stack
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.scaling import exponent_of, nan_where, times_power_of_two
from datarax.statistics.cross_moments import TwoMoments
from datarax.wrappers.clusters import ClusterSums

Ratio = tuple[ScaledDouble, ScaledDouble]
"""A numerator and a denominator, each in units of its own power of two."""

# Of the terms of two ratios a / b and c / d, in the order a, b, c, d: the pairs whose co-moments
# make up the variance of the difference.
_FIRST, _SECOND = (0, 2, 0, 0, 1, 1), (1, 3, 2, 3, 2, 3)


class PairedRatios(State, kw_only=False):
    """The variance of the difference of two ratios, whose numerators and denominators add up.

    With rows (a, b) of the first ratio r = sum a / sum b and (c, d) of the second one
    s = sum c / sum d, the difference s - r has the variance
    `sum ((c - s d) / sum d - (a - r b) / sum b)**2`: over rows, or over clusters of their sums.

    Args:
        shape: that of a ratio.
        clusters: the cells of the table of clusters; None if rows are independent.
    """

    shape: tuple[int, ...] = ()
    clusters: int | None = None
    moments: TwoMoments = state()
    """Without clusters: the co-moments of the pairs of terms, on the first axis."""
    sums: ClusterSums = state()
    """With clusters: the sums of the terms, by cluster."""

    def __post_init__(self) -> None:
        self.shape = tuple(self.shape)
        if self.clusters is None:
            self.moments = TwoMoments((len(_FIRST), *self.shape), crossed=True)
        else:
            self.sums = ClusterSums(self.clusters, (2, *self.shape))

    def plus(self, terms: list[DoubleFloat]) -> Self:
        """The same with rows added: a, b, c, d of each row, (N, *shape). Without clusters."""
        x, y = (stack([terms[i] for i in places], 1) for places in (_FIRST, _SECOND))
        counts = xp.stack([each.to_float() != 0 for each in terms]).any(0)
        counts = xp.broadcast_to(counts[:, None], x.shape)
        (moments,) = in_one_pass(self.moments.plus_two(x, y, counts))
        return self.with_parts({"moments": moments})

    def plus_at(self, ids: jax.Array, terms: list[DoubleFloat], target: Target) -> Self:
        """Stacked states with rows added to their clusters: see `ClusterSums.plus_at`."""
        a, b, c, d = terms
        both = stack([stack([a, c]), stack([b, d])])  # (2, 2, N, *shape)
        rows_last = both.map(lambda x: xp.moveaxis(x, 2, -1))
        return self.with_parts({"sums": self.sums.plus_at(ids, rows_last, target)})

    def std_error(self, first: Ratio, second: Ratio) -> jax.Array:
        """The standard error of the second ratio minus the first.

        NaN for fewer than two rows or clusters.
        """
        (_, b), (_, d) = first, second
        squares, n = (self._of_rows if self.clusters is None else self._of_clusters)(first, second)
        squares = ScaledDouble(not_negative(squares.double), squares.exponent)
        defined = (b.double.high != 0) & (d.double.high != 0)
        return nan_where(~defined, corrected((squares / (d * d)).root(), n))

    def _of_rows(self, first: Ratio, second: Ratio) -> tuple[ScaledDouble, jax.Array]:
        """The sum of squares of `(c - s d) - (sum d / sum b) (a - r b)`, and the number of rows."""
        r, s, k = first[0] / first[1], second[0] / second[1], second[1] / first[1]
        count, _, (squares,) = self.moments.scaled()
        aa, bb, cc, dd = squares[0][0], squares[1][0], squares[0][1], squares[1][1]
        co = self.moments.co_moment
        ab, cd, ac, ad, bc, bd = (co[i] for i in range(len(_FIRST)))
        within_first = aa + r * r * bb - r * ab * 2
        within_second = cc + s * s * dd - s * cd * 2
        across = ac - s * ad - r * bc + r * s * bd
        return within_second + k * k * within_first - k * across * 2, count[0][0].to_float()

    def _of_clusters(self, first: Ratio, second: Ratio) -> tuple[ScaledDouble, jax.Array]:
        """The same sum over clusters, and the number of clusters."""
        rates = stack([(a / b).to_double() for a, b in (first, second)])
        left = self.sums.residuals(-rates)
        k = (second[1] / first[1]).to_double()
        seen = xp.sum(xp.any(self.sums.occupied, 1), 0, dtype=xp.int32)
        squares = sum_of_squares(left[:, 1] - left[:, 0] * k[None])
        return squares, seen.astype(left.dtype)


def sum_of_squares(x: DoubleFloat) -> ScaledDouble:
    """The sum of squares along the first axis, in units in which no square overflows."""
    unit = exponent_of(xp.max(xp.abs(x.high), 0))
    scaled = x.map(lambda part: times_power_of_two(part, -unit[None]))
    return ScaledDouble((scaled * scaled).sum((0,)), unit + unit)


def corrected(error: jax.Array, n: jax.Array) -> jax.Array:
    """The standard error times sqrt(n / (n - 1)); NaN for fewer than 2 observations."""
    return nan_where(n < 2, error * xp.sqrt(n / xp.maximum(n - 1, 1)))


def scaled_ratio(metric: Metric) -> Ratio:
    """The ratio of a metric, so scaled that the squares of its parts do not overflow."""

    def scaled(x: DoubleFloat) -> ScaledDouble:
        power = exponent_of(x.high)
        return ScaledDouble(x.map(lambda part: times_power_of_two(part, -power)), power)

    ratio: PyTree = metric.ratio_within()
    numerator, denominator = map(scaled, ratio)
    return numerator, denominator


def not_negative(x: DoubleFloat) -> DoubleFloat:
    """Zero where rounding has made a sum of squares negative."""
    return x.map(lambda part: xp.where(x.high < 0, xp.zeros((), part.dtype), part))


def terms_of_rows(empty: Metric, call: Call, rows: int) -> PyTree:
    """The numerator and the denominator of each row, each with a leading axis of rows.

    Those of a group of rows, such as a query, stand at its first row; the others have zeros.
    """
    if rows and call.grouped:
        stack = Stack.of(empty, rows)
        each = Target(xp.arange(rows, dtype=xp.uint32), rows)
        return stack.holding(stack.states.apply_at(call, each)).map(lambda one: one.ratio_within())
    if rows and adds_by_row(empty, call):
        terms = kept_apart(empty, call, rows)
        terms = map_leaf_states(lambda states: [each.as_state() for each in states], terms)
        ratio: PyTree = terms.ratio_within()
        return [x.map(lambda part: xp.moveaxis(part, -1, 0)) for x in ratio]
    return vmap(lambda call: empty.apply(call).ratio_within())(by_rows(call, rows))
