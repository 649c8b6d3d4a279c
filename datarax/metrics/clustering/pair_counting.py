"""Clusterings compared with known classes by pairs of examples, and by a matching of labels."""

import jax

from datarax._typing import OnInvalid, PyTree
from datarax._xp import xp
from datarax.metrics.clustering.contingency_table import Clustering, ContingencyTable
from datarax.numerics.assignment import best_matching
from datarax.numerics.double_float import stack
from datarax.numerics.exact import whole_or_float
from datarax.numerics.scaling import power_of_two_near_reciprocal


class Rand(Clustering):
    """The fraction of pairs of examples that both labellings put together, or both put apart.

    `(s + d) / (s + a + b + d)`, with the pairs that are together in both labellings (s), in one
    only (a, b), and in neither (d). Exact to one rounding. No data gives NaN; a total weight of at
    most 1, which makes no pair, gives 1.0. As `sklearn.metrics.rand_score`. W. M. Rand (1971),
    https://doi.org/10.1080/01621459.1971.10482356.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Rand
        >>> metric = Rand(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.8333
    """

    def of_table(self, table: ContingencyTable) -> jax.Array:
        both, row, column, neither = table.pairs()
        value = ((both + neither) / (both + neither + row + column)).to_float()
        return xp.where(table.size > 1, value, 1)


class AdjustedRand(Clustering):
    """The Rand index, adjusted for chance: random labellings score 0 on average.

    `2 (s d - a b) / ((s + a) (a + d) + (s + b) (b + d))`, with the pairs that are together in both
    labellings (s), in one only (a, b), and in neither (d). Exact to one rounding down to values of
    1e-6. No data gives NaN, a perfect match 1.0. As `sklearn.metrics.adjusted_rand_score`.
    L. Hubert and P. Arabie (1985), https://doi.org/10.1007/BF01908075.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import AdjustedRand
        >>> metric = AdjustedRand(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.5714
    """

    def of_table(self, table: ContingencyTable) -> jax.Array:
        both, row, column, neither = table.pairs()
        # In the formula above, these are s, a, b and d.
        numerator = both * neither - row * column
        denominator = (both + row) * (row + neither) + (both + column) * (column + neither)
        value = 2 * (numerator / denominator).to_float()
        is_perfect = (row.high == 0) & (column.high == 0)
        return xp.where(is_perfect | (table.size <= 1), 1, value)


class FowlkesMallows(Clustering):
    """The geometric mean of precision and recall over pairs of examples that are together.

    `s / sqrt((s + a) (s + b))`, with the pairs that are together in both labellings (s), and in
    one only (a, b). Within 4 units of 2**-24. No data gives NaN, no pair that is together in both
    0.0. As `sklearn.metrics.fowlkes_mallows_score`. E. B. Fowlkes and C. L. Mallows (1983),
    https://doi.org/10.1080/01621459.1983.10478008.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import FowlkesMallows
        >>> metric = FowlkesMallows(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.7071
    """

    def of_table(self, table: ContingencyTable) -> jax.Array:
        both, row, column, _ = table.pairs()
        # The pairs together in both, among those of one class (recall) and of one cluster.
        recall, precision = ((both / (both + only)).to_float() for only in (row, column))
        return xp.where(both.high > 0, xp.sqrt(recall) * xp.sqrt(precision), 0)


class ClusterAccuracy(Clustering):
    """The accuracy under the best one-to-one matching of clusters and classes.

    `max(sum(n_ij for each matched pair i, j)) / n` over the cells `n_ij` of the contingency table;
    the Hungarian algorithm finds the matching when the metric is computed, in about
    `min(num_classes, num_clusters)**2 * max(num_classes, num_clusters)` steps. Exact to one
    rounding while cells are below 2**24; above, the matching is the best for the cells as float32.
    No data gives NaN. As `scipy.optimize.linear_sum_assignment` of the negated table. H. W. Kuhn
    (1955), https://doi.org/10.1002/nav.3800020109.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ClusterAccuracy
        >>> metric = ClusterAccuracy(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(metric.compute())
        0.75
    """

    def of_table(self, table: ContingencyTable) -> jax.Array:
        # `matched[i]` is the cluster of class i, or -1 if there are more classes than clusters.
        cells = table.cells.high
        matched = best_matching(xp.where(xp.isfinite(cells), cells, 0))  # a sum may overflow
        column = xp.maximum(matched, 0)[:, None]
        right = table.cells.map(
            lambda x: xp.where(matched >= 0, xp.take_along_axis(x, column, 1)[:, 0], 0)
        )
        return (right.sum() / table.total[0, 0]).to_float()


class PairConfusionMatrix(Clustering):
    """Counts the pairs of examples that two labellings put together or apart: (2, 2).

    Rows: the two have different classes, or one class. Columns: they are in different clusters, or
    in one. Pairs are ordered, so that each counts twice. `compute` gives the nearest floats;
    `results` and a collector give counts that are exact up to 2**48: integers, or floats if one is
    greater or weights make one a fraction. No data gives zeros. As
    `sklearn.metrics.cluster.pair_confusion_matrix`. L. Hubert and P. Arabie (1985),
    https://doi.org/10.1007/BF01908075.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PairConfusionMatrix
        >>> metric = PairConfusionMatrix(num_classes=3)
        >>> print(metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1])).compute())
        [[8. 0.]
         [2. 2.]]
    """

    higher_is_better = None
    on_invalid: OnInvalid = "exclude"
    """The policy for data that cannot be used: "exclude" leaves it out, "propagate" makes results
    that are floats NaN, "raise" raises `InvalidValuesError` when the result is read. The default is
    "exclude" because the results are counts."""

    def compute(self) -> PyTree:
        table = ContingencyTable.of(self.statistic)
        both, row, column, neither = table.pairs()
        unit = 1 / power_of_two_near_reciprocal(table.size)
        pairs = stack([neither, column, row, both]).reshape(2, 2)
        return whole_or_float(pairs * unit * unit)
