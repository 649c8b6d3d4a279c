"""Clusterings compared with known classes by entropies and mutual information."""

from typing import Literal

import jax

from datarax._checks import real
from datarax._errors import MetricInputError
from datarax._xp import lax, xp
from datarax.metrics.clustering.contingency_table import Clustering, ContingencyTable
from datarax.numerics.double_float import DoubleFloat, where
from datarax.numerics.scaling import power_of_two_near_reciprocal
from datarax.numerics.special import relative_deviance, stirling_ratio
from datarax.numerics.sums import sum_floats


class MutualInfo(Clustering):
    """The mutual information of classes and clusters, in nats.

    `sum(p_ij * log(p_ij / (p_i * p_j)))` over the cells of the table of shares. No digits cancel:
    it is within 1e-6 relative even if both are nearly independent. No data gives NaN. As
    `sklearn.metrics.mutual_info_score`. T. M. Cover and J. A. Thomas (2006), Elements of
    Information Theory, 2nd edition, section 2.3.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MutualInfo
        >>> metric = MutualInfo(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.6931
    """

    def of_table(self, table: ContingencyTable) -> jax.Array:
        return table.mutual_information()


class MeanEntropyMetric(Clustering):
    """A comparison of mutual information with a mean of the entropies of classes and clusters."""

    average_method: Literal["min", "geometric", "arithmetic", "max"] = "arithmetic"
    """The mean of the two entropies that is used; it may be their minimum or maximum."""

    def mean_entropy(self, table: ContingencyTable) -> jax.Array:
        """The mean of the entropies of classes and clusters."""
        a, b = table.row_entropy, table.column_entropy
        if self.average_method == "arithmetic":
            return (a + b) / 2
        if self.average_method == "geometric":
            return xp.sqrt(a) * xp.sqrt(b)
        return xp.minimum(a, b) if self.average_method == "min" else xp.maximum(a, b)


class NormalizedMutualInfo(MeanEntropyMetric):
    """Mutual information over a mean of the two entropies: from 0 to 1, for a perfect match.

    `I / mean(H_classes, H_clusters)`. No data gives NaN, one class and one cluster 1.0. As
    `sklearn.metrics.normalized_mutual_info_score`. N. X. Vinh, J. Epps and J. Bailey (2010),
    https://jmlr.org/papers/v11/vinh10a.html.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import NormalizedMutualInfo
        >>> metric = NormalizedMutualInfo(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.8
    """

    def of_table(self, table: ContingencyTable) -> jax.Array:
        value = _fraction(table.mutual_information(), self.mean_entropy(table), 0)
        nothing_to_tell = (table.row_entropy == 0) & (table.column_entropy == 0)
        return xp.where(nothing_to_tell, 1, value)


class AdjustedMutualInfo(MeanEntropyMetric):
    """Mutual information, adjusted for chance: random labellings score 0 on average.

    `(I - E) / (mean(H_classes, H_clusters) - E)`, with E the mean of I over all tables with the
    same row and column sums; 1 for a perfect match. E takes as much time as 128 tables, however
    many examples there are, and is within 3e-7 relative of a float64 sum over all its terms. No
    data gives NaN. One class, one cluster, or as many of either as examples gives 0.0, a perfect
    match always 1.0. Weights that are not integers have gamma functions as factorials. As
    `sklearn.metrics.adjusted_mutual_info_score`; but if there are as many clusters as examples,
    that divides two rounding errors. N. X. Vinh, J. Epps and J. Bailey (2010),
    https://jmlr.org/papers/v11/vinh10a.html.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import AdjustedMutualInfo
        >>> metric = AdjustedMutualInfo(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.5714
    """

    def of_table(self, table: ContingencyTable) -> jax.Array:
        expected = _expected_mutual_information(table)
        numerator = table.mutual_information() - expected
        denominator = self.mean_entropy(table) - expected
        value = _fraction(numerator, denominator, 0)
        # If all such tables have the same information, both differences are rounding errors.
        value = xp.where(_is_one_or_singletons(table.rows.high), 0, value)
        value = xp.where(_is_one_or_singletons(table.columns.high), 0, value)
        # Perfect: each class that occurs meets one cluster only, and each cluster one class only.
        beside = (table.rows - table.cells) + (table.columns - table.cells)
        is_perfect = xp.all((table.cells.high == 0) | (beside.high == 0))
        return xp.where(is_perfect, 1, value)


class Homogeneity(Clustering):
    """The degree to which each cluster holds examples of one class only, from 0 to 1.

    `I / H_classes`: mutual information over the entropy of the classes. No data gives NaN, one
    class 1.0. As `sklearn.metrics.homogeneity_score`. A. Rosenberg and J. Hirschberg (2007),
    https://aclanthology.org/D07-1043.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Homogeneity
        >>> metric = Homogeneity(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        1.0
    """

    def of_table(self, table: ContingencyTable) -> jax.Array:
        return _fraction(table.mutual_information(), table.row_entropy, 1)


class Completeness(Clustering):
    """The degree to which the examples of each class lie in one cluster only, from 0 to 1.

    `I / H_clusters`: mutual information over the entropy of the clusters. No data gives NaN, one
    cluster 1.0. As `sklearn.metrics.completeness_score`. A. Rosenberg and J. Hirschberg (2007),
    https://aclanthology.org/D07-1043.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Completeness
        >>> metric = Completeness(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.6667
    """

    def of_table(self, table: ContingencyTable) -> jax.Array:
        return _fraction(table.mutual_information(), table.column_entropy, 1)


class VMeasure(Clustering):
    """The weighted harmonic mean of homogeneity h and completeness c.

    `(1 + beta) h c / (beta h + c)`; with `beta=1` it equals `NormalizedMutualInfo`. No data gives
    NaN, h and c both zero 0.0. As `sklearn.metrics.v_measure_score`. A. Rosenberg and
    J. Hirschberg (2007), https://aclanthology.org/D07-1043.

    Raises:
        MetricInputError: `beta` is not a positive number.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import VMeasure
        >>> metric = VMeasure(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.8
    """

    beta: float = 1.0
    """Above 1, completeness counts more; below 1, homogeneity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.beta = real(self.beta, "beta")
        if not 0 < self.beta < float("inf"):
            raise MetricInputError(f"beta={self.beta!r}; expected a positive number")

    def of_table(self, table: ContingencyTable) -> jax.Array:
        information = table.mutual_information()
        h = _fraction(information, table.row_entropy, 1)
        c = _fraction(information, table.column_entropy, 1)
        return _fraction((1 + self.beta) * h * c, self.beta * h + c, 0)


def _fraction(part: jax.Array, whole: jax.Array, of_nothing: float) -> jax.Array:
    """`part / whole`, but at most 1, as rounding may exceed it; `of_nothing` for a zero `whole`."""
    some = whole > 0
    return xp.where(some, xp.minimum(part / xp.where(some, whole, 1), 1), of_nothing)


def _is_one_or_singletons(sizes: jax.Array) -> jax.Array:
    """True if there is one class (or cluster) only, or each holds at most one example."""
    return (xp.sum(sizes > 0) == 1) | xp.all(sizes <= 1)


_POINTS = 64  # how many points are summed on either side of the mode


def _expected_mutual_information(table: ContingencyTable) -> jax.Array:
    """The mean mutual information, in nats, of all tables with the row and column sums of `table`.

    It is the expectation of Vinh, Epps and Bailey (2010), in a form in which no digits cancel:

        sum over all cells of E[e D((x - e) / e)] / n,

    with n the total, D the relative deviance, and x the value of the cell, which has a
    hypergeometric distribution with mean e. The probability of x is computed as by C. Loader
    (2000), Fast and accurate computation of binomial probabilities, from four cells: the cell, the
    rest of its row, the rest of its column, and all others:

        p(x) is proportional to the product over the four cells of exp(-e D(t)) / S(cell),

    with `t = (cell - e) / e`, and S the ratio of a factorial to the leading term of Stirling's
    formula. Weights that are not integers have gamma functions as factorials.

    The expectation is a sum over up to 128 values of x around the mode. If the standard deviation
    is 8 or more, it is a sum over every m-th value, with at least four values in each standard
    deviation. Such a sum over a smooth bell curve is exact far beyond the dtype. So the cost is
    that of 128 tables, whatever the counts are.
    """
    a, b, n = table.rows, table.columns, table.total
    not_a, not_b = n - a, n - b
    # Counts are scaled by the total before they are multiplied: large products would overflow.
    scale = power_of_two_near_reciprocal(n.high)

    def product(x: DoubleFloat, y: DoubleFloat) -> DoubleFloat:
        return (x * scale) * (y * scale)

    def over_total(scaled_product: DoubleFloat) -> jax.Array:
        return (scaled_product / (n * scale)).to_float() / scale

    # The expected values of the four cells; in a 2 x 2 table, (cell, row), (column, others).
    expected = [over_total(product(x, y)) for x in (a, not_a) for y in (b, not_b)]
    mean = expected[0]
    # The possible values of the cell: `least`, `least + 1`, ..., `least + size`.
    least = where(a > not_b, a - not_b, DoubleFloat.of(0, a.dtype))
    size = xp.floor(xp.minimum((a - least).to_float(), (b - least).to_float()))
    mode = xp.clip(xp.round(mean - least.to_float()), 0, xp.maximum(size, 0))
    x = least + mode
    at_mode = [each.to_float() for each in (x, a - x, b - x, not_b - a + x)]
    signs = (1, -1, -1, 1)  # how the four cells change as x grows
    off_mean = over_total(product(x, n) - product(a, b))
    # The variance of the hypergeometric is a b (n - a) (n - b) / (n^2 (n - 1)); here with n^3.
    deviation = xp.sqrt(mean * (expected[3] / n.to_float()))
    step = xp.maximum(xp.floor(deviation / 4), 1)
    at_mode_ratios = [stirling_ratio(cell) for cell in at_mode]

    def relative_deviance_of(difference: jax.Array, e: jax.Array) -> jax.Array:
        t = xp.where(e > 0, difference / xp.where(e > 0, e, 1), 0)
        return relative_deviance(xp.maximum(t, -1))

    def add_point(i: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        # The point `mode + k`. Its probability is relative to S at the mode: a common factor
        # cancels in the quotient of the two sums.
        k = (i - _POINTS).astype(mean.dtype) * step
        difference = off_mean + k
        exponent, probability = xp.zeros_like(mean), xp.ones_like(mean)
        for sign, cell, ratio, e in zip(signs, at_mode, at_mode_ratios, expected, strict=True):
            exponent = exponent - e * relative_deviance_of(sign * difference, e)
            probability = probability * (ratio / stirling_ratio(xp.maximum(cell + sign * k, 0)))
        inside = (mode + k >= 0) & (mode + k <= size)
        probability = xp.where(inside, probability * xp.exp(exponent), 0)
        information = relative_deviance_of(difference, mean)
        return sums[0] + probability * information, sums[1] + probability

    # Zeros that are computed from `mean`, so that inside `shard_map` they vary over the same axes.
    start = xp.zeros_like(mean) * mean
    total, weight = lax.fori_loop(xp.int32(0), xp.int32(2 * _POINTS), add_point, (start, start))
    information = xp.where(weight > 0, total / xp.where(weight > 0, weight, 1), 0)
    terms = xp.where(mean > 0, mean * information, 0)
    return sum_floats(terms, (0, 1)).to_float() / table.size
