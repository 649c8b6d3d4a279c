"""Rank correlations: how well the order of the predictions agrees with that of the targets."""

import jax

from datarax._checks import refuse_ignored
from datarax._typing import PyTree
from datarax._xp import vmap, xp
from datarax.algebra.memo import computed_once
from datarax.distributed.placement import outside_mesh
from datarax.metrics.base import bounds_of
from datarax.metrics.regression.joint_bins import JointHistogram
from datarax.metrics.regression.per_output import RegressionMetric
from datarax.metrics.regression.ranks import (
    dense_ranks,
    mean_ranks,
    order_agreement_sums,
    rank_correlation_of_bins,
)
from datarax.numerics.normalized_products import correlation_coefficient
from datarax.numerics.scaling import power_of_two_near_reciprocal
from datarax.statistics.buffer import PairBuffer
from datarax.statistics.cross_moments import TwoMoments


class RankCorrelation(RegressionMetric):
    """A metric that is computed from a `PairBuffer`; in a `Collection`, such metrics share one.

    It is exact for the first `capacity` examples, which are kept. `invalid_count()` counts the
    other examples as invalid, and `on_invalid` applies to them.
    """

    higher_is_better = True
    capacity: int = 8192
    """How many examples are kept in all."""

    def __post_init__(self) -> None:
        self.statistic = PairBuffer.from_fields(self)

    def columns(self) -> tuple[jax.Array, jax.Array, jax.Array]:
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
    """If given, pairs are counted in a table of `2**bits` bins of both values, in place of a
    buffer, see `joint_bins`. 10 bits take 13 MB. For a million pairs of normal numbers the bounds
    are 0.014 apart if they are unrelated, and 0.002 at a correlation of 0.99;
    one more bit takes four times the memory, and halves that. Of few distinct values, such as small
    integers, the value is exact. Values of very different sizes share bins: the bounds are wide."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits is not None:
            refuse_ignored(self, "capacity", "with bits=, which keep no examples")
            self.statistic = JointHistogram(bits=self.bits)

    @outside_mesh
    def bounds(self) -> tuple[jax.Array, jax.Array]:
        """Bounds `(lower, upper)` on the exact value: of a buffer that is not full, the value.

        Of a buffer that is full, they are -1 and 1.
        """
        return bounds_of(self)

    def value_and_bounds(self) -> tuple[PyTree, tuple[PyTree, PyTree] | None]:
        value = super().value_and_bounds()[0]
        if self.bits is not None:
            lower, _, upper = self._of_bins()
            return value, (lower, upper)
        is_full = self.statistic.overflow > 0
        return value, (xp.where(is_full, -1, value), xp.where(is_full, 1, value))

    def compute(self) -> PyTree:
        return self._of_pairs() if self.bits is None else self._of_bins()[1]

    @computed_once
    def _of_bins(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        return rank_correlation_of_bins(*self.statistic.table())

    @computed_once
    def _of_pairs(self) -> jax.Array:
        preds, target, w = self.columns()
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

    `compute` compares all pairs of the examples that are kept, in blocks: its time grows with the
    square of their number.

    Raises:
        MetricInputError: `capacity` is not a positive integer.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import KendallTau
        >>> preds, target = jnp.array([1.0, 2.0, 30.0, 4.0]), jnp.array([1.0, 2.0, 3.0, 4.0])
        >>> print(round(float(KendallTau().update(preds, target).compute()), 4))
        0.6667
    """

    def compute(self) -> PyTree:
        preds, target, w = self.columns()
        sums = order_agreement_sums(preds, target, w, self.statistic.filled)
        return correlation_coefficient(*(each.to_float() for each in sums))
