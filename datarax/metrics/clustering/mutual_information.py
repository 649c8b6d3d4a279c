"""Clusterings compared with known classes, by what one says of the other."""

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import choice
from datarax._errors import MetricInputError
from datarax.metrics.clustering.contingency_table import Table, entropy, mutual_information, plus
from datarax.metrics.clustering.expected_information import expected_mutual_information
from datarax.metrics.clustering.pair_counting import Clustering
from datarax.numerics.pairs import pair_subtract
from datarax.statistics.contingency import sum_of_cells

AVERAGE_METHODS = ("min", "geometric", "arithmetic", "max")


class MutualInfo(Clustering):
    """The mutual information of classes and clusters, in nats.

    `sum(p_ij * log(p_ij / (p_i * p_j)))` over the cells of the table of shares. `update` as for
    `Rand`. Within 1e-6 relative even next to independence, where the terms of that sum cancel:
    they are taken as deviations from independence, none of them negative. No data gives NaN.
    scikit-learn: `mutual_info_score`.

    T. M. Cover and J. A. Thomas, Elements of Information Theory, 2nd edition, section 2.3.

    Args:
        num_classes: as for `Rand`.
        num_clusters: as for `Rand`.
        on_invalid: as for `Rand`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MutualInfo
        >>> metric = MutualInfo(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.6931
    """

    def _read(self, table: Table) -> jax.Array:
        return mutual_information(table)


class NormalizedMutualInfo(Clustering):
    """Mutual information over a mean of the two entropies: from 0 to 1, a perfect match.

    `update` as for `Rand`. No data gives NaN; one class and one cluster 1.0, as in scikit-learn
    (`normalized_mutual_info_score`).

    N. X. Vinh, J. Epps and J. Bailey (2010), https://jmlr.org/papers/v11/vinh10a.html.

    Args:
        num_classes: as for `Rand`.
        num_clusters: as for `Rand`.
        average_method: "arithmetic", "geometric", "min" or "max" of the entropies.
        on_invalid: as for `Rand`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import NormalizedMutualInfo
        >>> metric = NormalizedMutualInfo(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.8
    """

    def __init__(
        self,
        *,
        num_classes: int,
        num_clusters: int | None = None,
        average_method: str = "arithmetic",
        on_invalid: str = "exclude",
    ):
        super().__init__(num_classes=num_classes, num_clusters=num_clusters, on_invalid=on_invalid)
        choice(average_method, AVERAGE_METHODS, "average_method")
        self.average_method = average_method

    def _read(self, table: Table) -> jax.Array:
        rows, columns = _entropies(table)
        value = _share(mutual_information(table), self._mean(rows, columns), 0.0)
        return jnp.where((rows == 0) & (columns == 0), jnp.ones_like(value), value)

    def _mean(self, a: jax.Array, b: jax.Array) -> jax.Array:
        if self.average_method == "arithmetic":
            return (a + b) / 2
        if self.average_method == "geometric":
            return jnp.sqrt(a) * jnp.sqrt(b)
        return jnp.minimum(a, b) if self.average_method == "min" else jnp.maximum(a, b)


class AdjustedMutualInfo(NormalizedMutualInfo):
    """Mutual information beyond what is expected of labellings drawn at random.

    `(I - E) / (mean(H) - E)`, E the mean of I over all tables of the same margins: 0 on average
    for random labellings, 1 for a perfect match. `update` as for `Rand`. E costs as much as 128
    tables, however many examples there are, and is within 3e-7 relative of a float64 sum over all
    its terms. No data gives NaN; one class, or one cluster, or as many as examples, 0.0, unless
    both match: 1.0 (scikit-learn, `adjusted_mutual_info_score`, divides rounding errors where
    there are as many clusters as examples). Weights that are no integers have no random tables:
    factorials are then gamma functions.

    N. X. Vinh, J. Epps and J. Bailey (2010), https://jmlr.org/papers/v11/vinh10a.html.

    Args:
        num_classes: as for `Rand`.
        num_clusters: as for `Rand`.
        average_method: as for `NormalizedMutualInfo`.
        on_invalid: as for `Rand`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import AdjustedMutualInfo
        >>> metric = AdjustedMutualInfo(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.5714
    """

    def _read(self, table: Table) -> jax.Array:
        expected = expected_mutual_information(table)
        above = mutual_information(table) - expected
        below = self._mean(*_entropies(table)) - expected
        zero, one = jnp.zeros((), above.dtype), jnp.ones((), above.dtype)
        value = jnp.where(below > 0, above / jnp.where(below > 0, below, one), zero)
        value = jnp.where(_is_constant(table), zero, jnp.minimum(value, one))
        return jnp.where(_is_perfect(table), one, value)


class Homogeneity(Clustering):
    """How far each cluster holds one class only: mutual information over the classes' entropy.

    `update` as for `Rand`. From 0 to 1; one class gives 1.0, no data NaN. scikit-learn:
    `homogeneity_score`.

    A. Rosenberg and J. Hirschberg (2007), https://aclanthology.org/D07-1043.

    Args:
        num_classes: as for `Rand`.
        num_clusters: as for `Rand`.
        on_invalid: as for `Rand`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Homogeneity
        >>> metric = Homogeneity(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        1.0
    """

    def _read(self, table: Table) -> jax.Array:
        return _share(mutual_information(table), entropy(table.rows, table.total), 1.0)


class Completeness(Clustering):
    """How far each class lies in one cluster: mutual information over the clusters' entropy.

    `update` as for `Rand`. From 0 to 1; one cluster gives 1.0, no data NaN. scikit-learn:
    `completeness_score`.

    A. Rosenberg and J. Hirschberg (2007), https://aclanthology.org/D07-1043.

    Args:
        num_classes: as for `Rand`.
        num_clusters: as for `Rand`.
        on_invalid: as for `Rand`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Completeness
        >>> metric = Completeness(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.6667
    """

    def _read(self, table: Table) -> jax.Array:
        return _share(mutual_information(table), entropy(table.columns, table.total), 1.0)


class VMeasure(Clustering):
    """The weighted harmonic mean of homogeneity and completeness.

    `(1 + beta) h c / (beta h + c)`. `update` as for `Rand`. No data gives NaN, h and c both zero
    0.0. scikit-learn: `v_measure_score`. At `beta=1` it equals `NormalizedMutualInfo`.

    A. Rosenberg and J. Hirschberg (2007), https://aclanthology.org/D07-1043.

    Args:
        num_classes: as for `Rand`.
        num_clusters: as for `Rand`.
        beta: above 1 weights completeness more, below it homogeneity.
        on_invalid: as for `Rand`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import VMeasure
        >>> metric = VMeasure(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.8
    """

    def __init__(
        self,
        *,
        num_classes: int,
        num_clusters: int | None = None,
        beta: float = 1.0,
        on_invalid: str = "exclude",
    ):
        super().__init__(num_classes=num_classes, num_clusters=num_clusters, on_invalid=on_invalid)
        if not 0 < beta < float("inf"):
            raise MetricInputError(f"beta={beta!r}; expected a positive number")
        self.beta = float(beta)

    def _read(self, table: Table) -> jax.Array:
        both = mutual_information(table)
        h, c = (_share(both, each, 1.0) for each in _entropies(table))
        return _share((1 + self.beta) * h * c, self.beta * h + c, 0.0)


def _entropies(table: Table) -> tuple[jax.Array, jax.Array]:
    return entropy(table.rows, table.total), entropy(table.columns, table.total)


def _share(part: jax.Array, of: jax.Array, otherwise: float) -> jax.Array:
    """A part of a whole, which rounding must not make greater."""
    some = of > 0
    ratio = jnp.minimum(part / jnp.where(some, of, jnp.ones((), of.dtype)), 1)
    return jnp.where(some, ratio, jnp.asarray(otherwise, ratio.dtype))


def _is_perfect(table: Table) -> jax.Array:
    """Whether each label meets only one of the other side."""
    in_row, in_column = (
        pair_subtract(table.rows, table.cells),
        pair_subtract(table.columns, table.cells),
    )
    beside = nx.pair_product(table.cells, plus(in_row, in_column))
    return sum_of_cells(beside)[0] == 0


def _is_constant(table: Table) -> jax.Array:
    """Whether all tables of these margins hold the same information."""
    sides = [side[0].reshape(-1) for side in (table.rows, table.columns)]
    alone = [(jnp.sum(side > 0) == 1) | jnp.all(side <= 1) for side in sides]
    return alone[0] | alone[1]
