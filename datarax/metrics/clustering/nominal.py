"""Association of two categorical variables, and agreement of raters."""

from typing import Literal, Self

import jax

from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.metrics.clustering.contingency_table import ContingencyTable, TableMetric
from datarax.numerics.scaling import nan_where, power_of_two_near_reciprocal
from datarax.numerics.sums import suffix_sums
from datarax.statistics.contingency import Ratings


class Association(TableMetric):
    """A measure of how much two nominal variables, `preds` and `target`, depend on each other."""

    preds_size = "num_preds"
    num_preds: int | None = None
    """The number of categories of `preds`: 0 to `num_preds - 1`; by default `num_classes`."""


class ChiSquaredAssociation(Association):
    """A metric of chi-squared and the degrees of freedom of the categories that occur."""

    bias_correction: bool = False
    """True to subtract the average value for independent variables, as by Bergsma (2013). Then
    the result is also NaN if there are no more examples than categories."""

    def degrees(self, table: ContingencyTable) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Chi-squared over n, and the degrees of freedom of rows and columns; NaN for none.

        The degrees of r categories are `r - 1`, corrected for bias `(r - 1) (n - r) / (n - 1)`.
        """
        square, total = table.mean_square_contingency(), table.total[0, 0]
        r, k = (xp.sum(side.high > 0).astype(square.dtype) for side in (table.rows, table.columns))
        rows, columns = r - 1, k - 1
        if self.bias_correction:
            # For independent labels, chi-squared over n is rows * columns / (n - 1) on average.
            square = xp.maximum(square - rows * columns / (total - 1).to_float(), 0)
            rows, columns = (
                xp.where(total > 1, (x - 1) * ((total - x) / (total - 1)).to_float(), 0)
                for x in (r, k)
            )
        none = (rows <= 0) | (columns <= 0)
        return square, nan_where(none, rows), nan_where(none, columns)


class CramersV(ChiSquaredAssociation):
    """Cramér's V: the root of chi-squared over its greatest value, from 0 to 1.

    `sqrt(chi2 / n / min(r - 1, k - 1))`, with r and k the numbers of categories that occur. Both
    variables are treated alike. No data, or a variable with one category, gives NaN. As
    `scipy.stats.contingency.association(method="cramer")`, which has no correction of bias.
    H. Cramér (1946), Mathematical Methods of Statistics, section 21.9; W. Bergsma (2013),
    https://doi.org/10.1016/j.jkss.2012.10.002.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import CramersV
        >>> metric = CramersV(num_classes=2)
        >>> metric = metric.update(jnp.array([0, 0, 1, 1]), jnp.array([0, 1, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.5774
    """

    def of_table(self, table: ContingencyTable) -> jax.Array:
        square, rows, columns = self.degrees(table)
        # Rounding may exceed 1, here and below.
        return xp.minimum(xp.sqrt(square / xp.minimum(rows, columns)), 1)


class TschuprowsT(ChiSquaredAssociation):
    """Tschuprow's T: as Cramér's V, over the geometric mean of the degrees of freedom.

    `sqrt(chi2 / n / sqrt((r - 1) (k - 1)))`, with r and k the numbers of categories that occur; 1
    only if `r = k`. No data, or a variable with one category, gives NaN. As
    `scipy.stats.contingency.association(method="tschuprow")`. A. A. Tschuprow (1939), Principles
    of the Mathematical Theory of Correlation.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import TschuprowsT
        >>> metric = TschuprowsT(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.8409
    """

    def of_table(self, table: ContingencyTable) -> jax.Array:
        square, rows, columns = self.degrees(table)
        return xp.minimum(xp.sqrt(square / (xp.sqrt(rows) * xp.sqrt(columns))), 1)


class PearsonsContingency(Association):
    """Pearson's contingency coefficient, from 0 to less than 1.

    `sqrt(chi2 / (n + chi2))`. No data gives NaN, a variable with one category 0. As
    `scipy.stats.contingency.association(method="pearson")`. K. Pearson (1904), On the Theory of
    Contingency.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PearsonsContingency
        >>> metric = PearsonsContingency(num_classes=2)
        >>> metric = metric.update(jnp.array([0, 0, 1, 1]), jnp.array([0, 1, 1, 1]))
        >>> print(metric.compute())
        0.5
    """

    def of_table(self, table: ContingencyTable) -> jax.Array:
        square = table.mean_square_contingency()
        return xp.sqrt(square / (1 + square))


class TheilsU(Association):
    """Theil's U, the uncertainty coefficient: the share of an entropy that is explained.

    `U(target | preds) = I(target, preds) / H(target)`: how well `preds` predicts `target`. No data,
    or an explained variable with one category, gives NaN. Otherwise U equals `Homogeneity`, and
    with `given="target"` it equals `Completeness`; they are 1 for one category. H. Theil (1970),
    https://doi.org/10.1086/224909.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import TheilsU
        >>> metric = TheilsU(num_classes=2)
        >>> metric = metric.update(jnp.array([0, 0, 1, 1]), jnp.array([0, 1, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.3837
    """

    given: Literal["preds", "target"] = "preds"
    """The variable that is known; the entropy of the other is explained."""

    def of_table(self, table: ContingencyTable) -> jax.Array:
        explained = table.row_entropy if self.given == "preds" else table.column_entropy
        # 0/0 is NaN: there is no entropy to explain.
        return xp.minimum(table.mutual_information() / explained, 1)


class SomersD(Association):
    """Somers' D: how well one ordinal variable tells the order of another, from -1 to 1.

    `D(target | preds) = (C - D) / (C + D + T)`, over the pairs of examples that differ in `preds`:
    C are in the same order in both variables, D in the opposite order, and T have equal targets.
    Categories are in the order of their numbers, and the value is of shape (). No data, or `preds`
    of one category, gives NaN. As `scipy.stats.somersd(preds, target)`. For a binary target,
    `given="target"` gives 2 AUROC - 1. R. H. Somers (1962), A new asymmetric measure of association
    for ordinal variables, https://doi.org/10.2307/2090408.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SomersD
        >>> metric = SomersD(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 1, 2, 2]), jnp.array([0, 2, 1, 2]))
        >>> print(metric.compute())
        0.4
    """

    higher_is_better = True
    given: Literal["preds", "target"] = "preds"
    """The variable that is known; pairs that differ in it count."""

    def of_table(self, table: ContingencyTable) -> jax.Array:
        cells, rows, columns, total = table.scaled()
        # For each cell, the weight to its right in its row, minus that to its left.
        balance = suffix_sums(cells) * 2 - cells - rows
        below = suffix_sums(balance.map(xp.transpose)).map(xp.transpose) - balance
        known = columns if self.given == "preds" else rows
        # Pairs are ordered: each cell and those below it make two of each pair.
        ordered, apart = (cells * below).sum((0, 1)) * 2, (known * (total - known)).sum((0, 1))
        return xp.clip((ordered / apart).to_float(), -1, 1)


class FleissKappa(Metric):
    """Fleiss' kappa: how much more often raters agree than by chance.

    `(P - Q) / (1 - Q)`, with P the share of pairs of ratings of one subject that agree, and Q the
    sum of the squared shares of the categories. Exact while each subject has fewer than 4096
    ratings. No data, no subject with two ratings, or all ratings in one category gives NaN.

    J. L. Fleiss (1971), https://doi.org/10.1037/h0031619, has equally many raters for each
    subject. If their numbers differ, every pair of ratings counts the same here, so a subject with
    more ratings counts more.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import FleissKappa
        >>> metric = FleissKappa(num_categories=2).update(jnp.array([[3, 0], [0, 3], [2, 1]]))
        >>> print(round(float(metric.compute()), 4))
        0.55
    """

    higher_is_better = True
    num_categories: int
    """The number of categories."""

    statistic: Ratings = state()

    def __post_init__(self) -> None:
        self.statistic = Ratings.from_fields(self)

    @shareable
    def update(self, ratings: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            ratings: integer counts (..., K): how many raters put each subject into each of the
                `num_categories`. A subject with a negative count is invalid.
            weights: broadcast against the axes of subjects; zero leaves a subject out.

        Raises:
            MetricInputError: the shape does not end in `num_categories`.
            MetricTypeError: the counts are not integers.
        """
        return self.replace(statistic=self.statistic.update(ratings, weights=weights))

    def compute(self) -> PyTree:
        seen = self.statistic
        ratings, agreeing, pairs = seen.ratings.double, seen.agreeing.double, seen.pairs.double
        # Scaled, so that products of three neither overflow nor underflow.
        ratings = ratings * power_of_two_near_reciprocal(xp.sum(ratings.high))
        scale = power_of_two_near_reciprocal(pairs.high)
        agreeing, pairs = agreeing * scale, pairs * scale
        total = ratings.sum()
        by_chance = (ratings * ratings).sum()  # Q times the square of the total
        beyond_chance = (ratings * (total - ratings)).sum()  # 1 - Q, without cancellation
        numerator = agreeing * (total * total) - pairs * by_chance
        return xp.minimum((numerator / (pairs * beyond_chance)).to_float(), 1)
