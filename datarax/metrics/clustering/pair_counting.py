"""Clusterings compared with known classes, from the table of how often each met each."""

from typing import Any

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import positive_int
from datarax.metrics.base import Metric, check_policy
from datarax.metrics.clustering.contingency_table import Table, pairs_of, plus
from datarax.numerics.assignment import best_matching
from datarax.numerics.pairs import pair_subtract
from datarax.statistics.contingency import Contingency


class OfTable(Metric):
    """What all metrics of two labellings share: the table, and NaN where it is empty."""

    def _over(self, rows: Any, columns: Any, names: tuple[str, str], on_invalid: str) -> None:
        positive_int(rows, names[0])
        columns = rows if columns is None else columns
        positive_int(columns, names[1])
        self.on_invalid = check_policy(on_invalid)
        self.statistic = Contingency(rows, columns)

    def compute(self) -> jax.Array:
        table = Table.of(self.statistic)
        value = self._read(table)
        return jnp.where(table.size > 0, value, jnp.asarray(jnp.nan, value.dtype))

    def _read(self, table: Table) -> jax.Array:
        raise TypeError(f"{type(self).__name__} does not read a table")


class Clustering(OfTable):
    """A comparison of clusters with classes."""

    def __init__(
        self, *, num_classes: int, num_clusters: int | None = None, on_invalid: str = "exclude"
    ):
        self._over(num_classes, num_clusters, ("num_classes", "num_clusters"), on_invalid)


class Rand(Clustering):
    """The fraction of pairs of examples that both labellings put together, or both put apart.

    `update(preds, target, *, weights=None)`: integer labels of one shape (...); names of labels
    do not matter. Weights count as repetitions. Exact to one rounding; no data gives NaN, a total
    weight of at most 1, which makes no pair, 1.0 as in scikit-learn (`rand_score`).

    W. M. Rand (1971), https://doi.org/10.1080/01621459.1971.10482356.

    Args:
        num_classes: how many labels `target` may hold, from 0.
        num_clusters: how many `preds` may hold; by default as many.
        on_invalid: for labels out of range and negative weights: "exclude" and count them,
            "propagate" (the result is NaN), or "raise" when read on the host.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Rand
        >>> metric = Rand(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.8333
    """

    def _read(self, table: Table) -> jax.Array:
        both, row, column, neither = pairs_of(table)
        value = nx.pair_divide(plus(both, neither), plus(both, neither, row, column))
        return jnp.where(table.size > 1, value, jnp.ones_like(value))


class AdjustedRand(Clustering):
    """The Rand index, adjusted so that labellings drawn at random score 0 on average.

    `2 (s d - a b) / ((s + a) (a + d) + (s + b) (b + d))`, of the pairs that are together in both
    (s), in neither (d), and in one only (a, b). `update` as for `Rand`. Exact to one rounding down
    to values of 1e-6. No data gives NaN, a perfect match 1.0, as in scikit-learn
    (`adjusted_rand_score`).

    L. Hubert and P. Arabie (1985), https://doi.org/10.1007/BF01908075.

    Args:
        num_classes: as for `Rand`.
        num_clusters: as for `Rand`.
        on_invalid: as for `Rand`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import AdjustedRand
        >>> metric = AdjustedRand(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.5714
    """

    def _read(self, table: Table) -> jax.Array:
        both, row, column, neither = pairs_of(table)
        above = pair_subtract(nx.pair_product(both, neither), nx.pair_product(row, column))
        below = plus(
            nx.pair_product(plus(both, row), plus(row, neither)),
            nx.pair_product(plus(both, column), plus(column, neither)),
        )
        value = 2 * nx.pair_divide(above, below)
        agree = ((row[0] == 0) & (column[0] == 0)) | (table.size <= 1)
        return jnp.where(agree, jnp.ones_like(value), value)


class FowlkesMallows(Clustering):
    """The geometric mean of precision and recall over pairs of examples that are together.

    `s / sqrt((s + a) (s + b))`, of the pairs that are together in both (s), and in one only (a,
    b). `update` as for `Rand`. No data gives NaN, no pair together in both 0.0, as in
    scikit-learn (`fowlkes_mallows_score`).

    E. B. Fowlkes and C. L. Mallows (1983), https://doi.org/10.1080/01621459.1983.10478008.

    Args:
        num_classes: as for `Rand`.
        num_clusters: as for `Rand`.
        on_invalid: as for `Rand`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import FowlkesMallows
        >>> metric = FowlkesMallows(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.7071
    """

    def _read(self, table: Table) -> jax.Array:
        both, row, column, _ = pairs_of(table)
        recall, precision = (nx.pair_divide(both, plus(both, one)) for one in (row, column))
        some, zero = both[0] > 0, jnp.zeros((), recall.dtype)
        roots = (jnp.sqrt(jnp.where(some, x, zero)) for x in (recall, precision))
        return next(roots) * next(roots)


class ClusterAccuracy(Clustering):
    """The accuracy, once each cluster is given the class that makes the most of all right.

    No two clusters are given one class: the best one-to-one matching, by the Hungarian algorithm
    (about `min(num_classes, num_clusters)**2 * max(num_classes, num_clusters)` steps when it is
    computed). `update` as for `Rand`. Exact to one rounding while cells are below 2**24, as near
    to the best as they are rounded above. No data gives NaN. scikit-learn has no name for it:
    `scipy.optimize.linear_sum_assignment` of the negated contingency matrix.

    H. W. Kuhn (1955), https://doi.org/10.1002/nav.3800020109.

    Args:
        num_classes: as for `Rand`.
        num_clusters: as for `Rand`.
        on_invalid: as for `Rand`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ClusterAccuracy
        >>> metric = ClusterAccuracy(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(metric.compute())
        0.75
    """

    def _read(self, table: Table) -> jax.Array:
        high, low = table.cells
        matched = best_matching(high)
        chosen = jnp.maximum(matched, 0)[:, None]
        some = matched >= 0
        high, low = (
            jnp.where(some, jnp.take_along_axis(x, chosen, 1)[:, 0], jnp.zeros((), x.dtype))
            for x in (high, low)
        )
        return nx.pair_divide(nx.pair_sum((high, low)), _scalar(table.total))


def _scalar(pair: nx.Pair) -> nx.Pair:
    return pair[0][0, 0], pair[1][0, 0]
