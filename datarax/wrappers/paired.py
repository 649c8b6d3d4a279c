"""The difference of two models by a formula: what is added up for it, and its test."""

import math
from statistics import NormalDist
from typing import NamedTuple, Self

import jax

from datarax._typing import ArrayLike, PyTree
from datarax._update_context import in_update
from datarax._xp import special, xp
from datarax.algebra.fields import state
from datarax.algebra.fold import in_one_pass
from datarax.algebra.rows import Target
from datarax.algebra.state import State
from datarax.metric.arguments import with_argument
from datarax.metric.base import Metric
from datarax.metric.rows import rows_of
from datarax.metric.unusable import Undefined
from datarax.numerics.double_float import DoubleFloat, stack
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.scaling import nan_where
from datarax.numerics.special import fair_coin_p_value, t_p_value, t_quantile
from datarax.statistics.cross_moments import TwoMoments
from datarax.statistics.row_sample import INDEX
from datarax.wrappers.clusters import ClusterSums, checked_ids
from datarax.wrappers.pairs import MODELS
from datarax.wrappers.ratios import (
    OUT_OF_RANGE,
    ScaledRatio,
    corrected,
    hold_float64,
    is_hidden,
    not_negative,
    scaled_ratio,
    sum_of_squares,
    terms_of_rows,
)

# Of the terms of two ratios a / b and c / d, in the order a, b, c, d: the pairs whose co-moments
# make up the variance of the difference. Then the size |c - a| with 1 for rows in which the models
# differ, and with its root.
_FIRST, _SECOND = (0, 2, 0, 0, 1, 1, 4, 4), (1, 3, 2, 3, 2, 3, 5, 6)
_SIZES, _ROOTS = len(_FIRST) - 2, len(_FIRST) - 1
_ALIKE = 0.96
"""From here on, `Differences.alike` calls sizes alike. It is 1 for one size, 0.96 for sizes that
are uniform above 0, and 0.927 for those of normal differences, for which t is exact."""
_IN_ONE_DIRECTION = 0.95
"""The square of the mean difference as a share of the mean square, from which on all rows differ in
one direction, and by about the same."""
_SAME = 1e-3
"""How far the quotient of two sums of squares that are the same may be from 1 by rounding."""

_EQUAL_ROWS = (
    "the two models do not differ in any row, or in the sum of any cluster, so their difference "
    "has no interval"
)
_EQUAL_AREAS = (
    "the two models order all pairs of a positive and a negative with equal certainty (both alike, "
    "or the classes are separated), so their difference has no interval"
)


class Differences(NamedTuple):
    """What rows, or clusters, say of the difference s - r of two ratios.

    If the models are equal, both have one ratio p, and the difference is the sum over rows of
    `e = (c - p d) / sum d - (a - p b) / sum b`, in which exchanging the models changes the sign.
    """

    n: jax.Array
    """The number of rows or clusters."""
    size: jax.Array
    """How many of equal weight they count as: (sum b)**2 / sum b**2."""
    error: jax.Array
    """The standard error of the difference, whatever the ratios are."""
    root: jax.Array
    """The root of the sum of e**2."""
    changed: jax.Array
    """The number of rows in which the models differ."""
    tosses: jax.Array
    """How many rows of one size they count as: `(sum |e|)**2 / sum e**2`. Where that is not known,
    because the denominators differ, too: `changed`."""
    alike: jax.Array
    """`(sum |e|**1.5)**2 / (sum |e| sum e**2)`: 1 if all rows that differ do so by one size, even
    if others differ by very little. 0 where that is not known."""


class Verdict(NamedTuple):
    """The interval of a difference, and the p-value of none."""

    lower: jax.Array
    upper: jax.Array
    p_value: jax.Array


def verdict_on(
    difference: jax.Array, found: Differences, widest: float, confidence: float
) -> Verdict:
    """Tests a difference, and gives its interval.

    Where counts decide, the p-value is that of the sign test: of as many throws of a fair coin as
    there are rows of one size, the probability of a sum `|difference| / root` from 0. That is the
    exact test of McNemar if all differences have one size, as those of right and wrong predictions;
    it is conservative for others. It is used for bounded metrics, and where sizes are alike: there
    the sums of equal models are on a lattice, or have lighter tails than t expects. It is also used
    where rows hardly vary: two rows that changed alike have the standard error 0. Else the p-value
    is that of Student's t, but not below `2**(1 - changed)`, that of the sign test if all rows
    point in one direction.

    The interval is that of Bonett and Price (2012) where counts decide: two more rows, whose
    differences have the usual size and both signs. Else it is that of Student's t.

    Args:
        difference: s - r.
        found: what the rows say of it.
        widest: the greatest possible size of a difference; infinite if there is none.
        confidence: of the interval.
    """
    root, n, size, tosses = found.root, found.n, found.size, found.tosses
    varies = root > 0
    per_root = xp.abs(difference) / xp.where(varies, root, 1)
    deviation = xp.sqrt(tosses)
    p_value = fair_coin_p_value(tosses, xp.minimum(per_root * deviation, tosses))
    # In units of the usual size of a difference, `size * root / sqrt(tosses)` for each row.
    unit = size * root / xp.maximum(deviation, 1)
    unit = xp.where(varies, unit, widest if math.isfinite(widest) else xp.nan)
    # Two rows are added, one of each sign: their sum is 0, and their squares are 2.
    center = difference / unit * (size / (size + 2))
    squares = xp.where(varies, tosses, xp.zeros((), root.dtype))
    variance = (squares + 2) / (size + 2) - center * center
    quantile = t_quantile(confidence, n - 1)
    half = quantile * xp.sqrt(xp.maximum(variance, 0) / (size + 2)) * unit
    lower, upper = center * unit - half, center * unit + half
    if not math.isfinite(widest):
        error = found.error
        t = xp.abs(difference) / xp.where(error > 0, error, 1)
        least = xp.minimum(xp.exp2(1 - found.changed), 1)
        of_t = xp.maximum(t_p_value(t, n - 1), least)
        in_one_direction = per_root * per_root >= _IN_ONE_DIRECTION * size
        decide = (found.alike >= _ALIKE) | in_one_direction | (found.changed == 0)
        # A t-test needs sums that are nearly normal. Few rows of one size have a lattice of sums,
        # of which the exact test knows.
        p_value = xp.where(decide, p_value, of_t)
        lower = xp.where(decide, lower, difference - quantile * error)
        upper = xp.where(decide, upper, difference + quantile * error)
    # One row says nothing of how rows vary.
    unknown = (n < 2) | xp.isnan(n) | is_out_of_range(difference, found) | xp.isnan(difference)
    lower, upper = xp.maximum(lower, -widest), xp.minimum(upper, widest)
    return Verdict(*(nan_where(unknown, x) for x in (lower, upper, p_value)))


def is_out_of_range(difference: jax.Array, found: Differences) -> jax.Array:
    """True if the squares of rows are too large or too small for the range of a float32."""
    return ~xp.isnan(found.n) & (xp.isnan(found.root) | ((found.root == 0) & (difference != 0)))


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

    def updated(self, metric: Metric, calls: PyTree, clusters: ArrayLike | None) -> Self:
        """The same with the rows of a batch added.

        Args:
            metric: that of both models, without data.
            calls: the calls of each model.
            clusters: the ids of clusters, if there are any.
        """
        if self.clusters is None:
            return self._plus(_terms(metric, calls), many_digits=hold_float64(calls))
        ids = checked_ids(0 if clusters is None else clusters, rows_of(calls))
        one = Target(xp.zeros(ids.shape, xp.uint32), 1)
        return self.updated_at(metric, calls, ids, one)

    def updated_at(self, metric: Metric, calls: PyTree, ids: jax.Array, target: Target) -> Self:
        """Stacked states with rows added to their clusters: see `ClusterSums.plus_at`."""
        a, b, c, d = _terms(metric, calls)
        both = stack([stack([a, c]), stack([b, d])])  # (2, 2, N, *shape)
        rows_last = both.map(lambda x: xp.moveaxis(x, 2, -1))
        return self.with_parts({"sums": self.sums.plus_at(ids, rows_last, target)})

    def _plus(self, terms: list[DoubleFloat], *, many_digits: bool) -> Self:
        """The same with rows added: a, b, c, d of each row, (N, *shape). Without clusters.

        `many_digits`: see `hold_float64`.
        """
        a, b, c, d = terms
        apart = c - a
        size = apart.map(lambda part: part * xp.where(apart.high < 0, -1, 1).astype(part.dtype))
        changed = (apart.to_float() != 0) | ((d - b).to_float() != 0)
        differs = size.high > 0
        root = xp.where(differs, xp.sqrt(xp.where(differs, size.high, 1)), 0)
        every = [*terms, size, *map(DoubleFloat.of, (changed.astype(size.dtype), root))]
        x, y = (stack([every[i] for i in places], 1) for places in (_FIRST, _SECOND))
        # A row that counts for one model only is an observation of the pair.
        counts = xp.stack([each.to_float() != 0 for each in terms]).any(0)
        counts = xp.broadcast_to(counts[:, None], x.shape)
        added = self.moments.plus_two(x, y, counts, many_digits=many_digits)
        (moments,) = in_one_pass(added)
        return self.with_parts({"moments": moments})

    def tested(
        self, a: Metric, b: Metric, difference: jax.Array, confidence: float
    ) -> tuple[Verdict, tuple[Undefined, ...]]:
        """Tests the difference of two metrics; and says where there is no interval, and why."""
        rows = self._differences(scaled_ratio(a), scaled_ratio(b))
        found = verdict_on(difference, rows, _widest(a), confidence)
        out = is_out_of_range(difference, rows)
        equal = (rows.n >= 2) & (rows.changed == 0) & xp.isnan(found.lower) & ~out
        return found, (Undefined(equal, _EQUAL_ROWS), Undefined(out, OUT_OF_RANGE))

    def _differences(self, first: ScaledRatio, second: ScaledRatio) -> Differences:
        """What the rows or clusters say of the second ratio minus the first.

        The standard error is NaN for fewer than two rows or clusters.
        """
        (_, b), (_, d) = first, second
        found = self._of_rows(first, second) if self.clusters is None else None
        found = self._of_clusters(first, second) if found is None else found
        defined = (b.double.high != 0) & (d.double.high != 0)
        return Differences(*(nan_where(~defined, x) for x in found))

    def _of_rows(self, first: ScaledRatio, second: ScaledRatio) -> Differences:
        count, means, (squares,) = self.moments.scaled()
        aa, bb, cc, dd = squares[0][0], squares[1][0], squares[0][1], squares[1][1]
        co = self.moments.co_moment
        ab, cd, ac, ad, bc, bd = (co[i] for i in range(_SIZES))
        (a, b), (c, d), k = first, second, second[1] / first[1]

        def about(r: ScaledDouble, s: ScaledDouble) -> ScaledDouble:
            """The sum of squares of `(c - s d) - (sum d / sum b) (a - r b)`, about its mean."""
            within_first = aa + r * r * bb - r * ab * 2
            within_second = cc + s * s * dd - s * cd * 2
            across = ac - s * ad - r * bc + r * s * bd
            total = within_second + k * k * within_first - k * across * 2
            return ScaledDouble(not_negative(total.double), total.exponent)

        rows = count[0][0]
        n = rows.to_float()
        r, s, common = a / b, c / d, (a + c) / (b + d)
        error = corrected((about(r, s) / (d * d)).root(), n)
        # The mean of e is the difference divided by n.
        some = ScaledDouble.of(xp.maximum(n, 1))
        null = about(common, common) / (d * d) + (s - r) * (s - r) / some
        # With weights, values far from zero make large terms, whose rounding may hide what is left.
        is_lost = is_hidden((s * s * dd + k * k * (r * r) * bb) / (d * d), null)
        error = nan_where(is_lost, error)
        root = xp.where(is_lost, xp.where((s - r).double.high == 0, 0, xp.nan), null.root())
        size = (b * b / (bb + rows * (means[1][0] * means[1][0]))).to_float()
        changed = xp.round((rows * means[1][_SIZES]).to_float())
        total = rows * means[0][_SIZES]
        squared = squares[0][_SIZES] + total * means[0][_SIZES]
        middle = co[_ROOTS] + total * means[1][_ROOTS]
        # The sizes |c - a| are those of e if the denominators are equal: then so are the squares.
        same = xp.abs((null * (d * d) / squared).to_float() - 1) < _SAME
        tosses = xp.where(same, (total * total / squared).to_float(), changed)
        alike = xp.where(same, (middle * middle / (total * squared)).to_float(), 0)
        return Differences(n, size, error, root, changed, tosses, alike)

    def _of_clusters(self, first: ScaledRatio, second: ScaledRatio) -> Differences:
        (a, b), (c, d) = first, second
        k = (d / b).to_double()

        def apart(r: ScaledDouble, s: ScaledDouble) -> DoubleFloat:
            """`(c - s d) - (sum d / sum b) (a - r b)` of the sums of each cluster."""
            left = self.sums.residuals(-stack([r.to_double(), s.to_double()]))
            return left[:, 1] - left[:, 0] * k[None]

        n = xp.sum(xp.any(self.sums.occupied, 1), 0, dtype=xp.int32).astype(k.dtype)
        error = corrected((sum_of_squares(apart(a / b, c / d)) / (d * d)).root(), n)
        # If the models are equal, both ratios estimate this one.
        common = (a + c) / (b + d)
        null = apart(common, common)
        root = (sum_of_squares(null) / (d * d)).root()
        sums = self.sums.table.double
        size = (b * b / sum_of_squares(sums[:, 1, 0])).to_float()
        changed = xp.any((sums[:, :, 1] - sums[:, :, 0]).to_float() != 0, 1)
        changed = xp.sum(changed, 0, dtype=xp.int32).astype(k.dtype)
        # In units of the greatest one, no power of a size over- or underflows.
        unit = xp.maximum(xp.max(xp.abs(null.high), 0), xp.finfo(k.dtype).tiny)
        sizes = xp.abs(null.high) / unit[None]
        total, squared = xp.sum(sizes, 0), xp.maximum(xp.sum(sizes * sizes, 0), 1)
        alike = xp.sum(sizes**1.5, 0) ** 2 / (xp.maximum(total, 1) * squared)
        return Differences(n, size, error, root, changed, total * total / squared, alike)


def with_sampled(sampled: Metric, calls: PyTree, index: ArrayLike | None) -> Metric:
    """A sample of the rows of two models with those of a batch; of each model the calls."""
    with in_update(checks="none"):  # the metrics check the values
        both = with_argument(calls["a"], "preds_b", calls["b"].by_name[1]["preds"])
        return sampled.apply(both if index is None else with_argument(both, INDEX, index))


def tested_sample(
    a: Metric, b: Metric, sampled: Metric, difference: jax.Array, confidence: float
) -> tuple[Verdict, tuple[Undefined, ...]]:
    """Tests the difference of two areas: see `Compare`. And says where there is no interval."""
    variance, size = a.sampling().paired_variance(b, sampled)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    # If the models are equal, the mean over `size` observations is 0: their squares are about 0.
    null = variance + difference * difference / size
    apart = xp.abs(difference) / xp.sqrt(xp.where(null > 0, null, 1))
    half = z * xp.sqrt(variance / xp.maximum(1 - z * z / size, 0))
    half = nan_where(variance == 0, half)
    unknown, widest = xp.isnan(difference) | xp.isnan(variance), _widest(a)
    ends = xp.maximum(difference - half, -widest), xp.minimum(difference + half, widest)
    p_value = special.erfc(apart / 2**0.5)
    found = Verdict(*(nan_where(unknown, x) for x in (*ends, p_value)))
    equal = (variance == 0) & ~xp.isnan(difference)
    return found, (Undefined(equal, _EQUAL_AREAS),)


def _widest(metric: Metric) -> float:
    """The greatest possible size of a difference."""
    least, greatest = metric.value_range
    return greatest - least


def _terms(metric: Metric, calls: PyTree) -> list[DoubleFloat]:
    """The numerator and the denominator of each row, of the first model and of the second."""
    rows = rows_of(calls)
    with in_update(checks="none"):  # the metrics check the values
        return [x for model in MODELS for x in terms_of_rows(metric, calls[model], rows)]
