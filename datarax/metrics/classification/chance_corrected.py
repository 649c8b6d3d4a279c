"""Agreement of predictions and targets beyond chance, from counts by class."""

import math
from typing import Literal

import jax

from datarax._checks import real
from datarax._typing import PyTree
from datarax._xp import xp
from datarax.metrics.classification.count_ratio import CountMetric, Counts, quotient
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaling import nan_where, power_of_two_near_reciprocal
from datarax.statistics.class_counts import ConfusionCounts


class ChanceCorrected(CountMetric):
    """Agreement beyond that of chance. A subclass defines `agreement`.

    For n examples, with class k predicted p_k times, the target t_k times and right r_k times, the
    excess over chance is `n * sum(r) - sum(p * t)`. It is computed as `sum(TP * TN - FP * FN)`,
    which is equal, and in which fewer products cancel.
    """

    higher_is_better = True
    value_range = (-1.0, 1.0)
    zero_division: float = 0.0
    """The value of 0/0: if all predictions, or all targets, are of one class. For `CohenKappa`: if
    both are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.zero_division = real(self.zero_division, "zero_division", nan=True)

    def agreement(self, c: Counts) -> jax.Array:
        """The value, from scaled counts: of shape (L,) for labels, else ()."""
        raise TypeError(f"{type(self).__name__} does not define agreement()")

    def over_classes(self, x: DoubleFloat) -> DoubleFloat:
        """The sum over classes; labels stay apart, as each is a binary task."""
        return x if self.num_labels is not None else x.sum()

    def beyond_chance(self, c: Counts) -> DoubleFloat:
        """The excess of correct predictions over chance, times n."""
        return self.over_classes(c.tp * c.tn) - self.over_classes(c.fp * c.fn)

    def compute(self) -> PyTree:
        counts = Counts.of(self.statistic)
        value, total = self.agreement(counts.scaled()), counts.total.high
        return nan_where(~((total if self.num_labels is not None else total[0]) > 0), value)


class MatthewsCorrCoef(ChanceCorrected):
    """The Matthews correlation coefficient: the correlation of predictions and targets.

    Binary: (TP TN - FP FN) / sqrt((TP + FP) (TP + FN) (TN + FP) (TN + FN)). Multiclass: R_K,
    (n sum(r) - sum(p t)) / sqrt((n^2 - sum(p^2)) (n^2 - sum(t^2))), for n examples, with each class
    predicted p times, the target t times and right r times. Multilabel: one value per label. 1 for
    perfect predictions, 0 for random ones, -1 only for the opposite of a binary target. No data
    gives NaN. As `sklearn.metrics.matthews_corrcoef`. J. Gorodkin (2004), Comparing two K-category
    assignments by a K-category correlation coefficient,
    https://doi.org/10.1016/j.compbiolchem.2004.09.006.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MatthewsCorrCoef
        >>> metric = MatthewsCorrCoef(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 1, 2, 2]), jnp.array([0, 1, 2, 1]))
        >>> print(metric.compute())
        0.7
    """

    short_name = "mcc"

    def agreement(self, c: Counts) -> jax.Array:
        # n^2 - sum(p^2) = sum(p (n - p)), in which no terms cancel.
        predicted = self.over_classes(c.predicted_positives * c.predicted_negatives)
        actual = self.over_classes(c.positives * c.negatives)
        # Two quotients, so that the value is exactly 1 where all three sums are equal.
        value = (self.beyond_chance(c) / actual).to_float()
        value = value * xp.sqrt((actual / predicted).to_float())
        return xp.where((predicted.high > 0) & (actual.high > 0), value, self.zero_division)


class CohenKappa(ChanceCorrected):
    """Cohen's kappa: the agreement of predictions and targets beyond chance.

    (right - chance) / (1 - chance), with chance = sum(p t) / n^2, for n examples, with each class
    predicted p times and the target t times. With `weights`, 1 - (disagreement) / (disagreement by
    chance), both sum(d_ij m_ij) over a confusion matrix m. Multilabel: one value per label. 1 for
    perfect predictions, 0 for random ones. No data gives NaN, and so do, as in scikit-learn,
    predictions and targets that are all of one class, unless `zero_division` is given.

    As `sklearn.metrics.cohen_kappa_score`. J. Cohen (1960), A coefficient of agreement for nominal
    scales, https://doi.org/10.1177/001316446002000104; with weights J. Cohen (1968), Weighted
    kappa, https://doi.org/10.1037/h0026256.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import CohenKappa
        >>> metric = CohenKappa().update(jnp.array([1, 1, 0, 0]), jnp.array([1, 0, 0, 0]))
        >>> print(metric.compute())
        0.5
    """

    weights: Literal["linear", "quadratic"] | None = None
    """Multiclass, with ordered classes: the cost d_ij of predicting j for i. "linear" is |i - j|,
    "quadratic" (i - j)^2; with `None` all mistakes cost the same."""

    zero_division = math.nan

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes is None:
            self.weights = None  # of two classes, all mistakes cost the same
        if self.weights is not None:
            self.statistic = ConfusionCounts.from_fields(self)

    def agreement(self, c: Counts) -> jax.Array:
        # n^2 - sum(p t), twice: the two ways to disagree by chance.
        chance = self.over_classes(c.predicted_positives * c.negatives) + self.over_classes(
            c.predicted_negatives * c.positives
        )
        return quotient(self.beyond_chance(c) * 2, chance, self.zero_division)

    def compute(self) -> PyTree:
        if not isinstance(self.statistic, ConfusionCounts):
            return super().compute()
        matrix = self.statistic.matrix.double
        matrix = matrix * power_of_two_near_reciprocal(xp.max(matrix.high))
        actual, predicted = matrix.sum(), matrix.sum(0)
        total = actual.sum()
        label = xp.arange(self.statistic.num_classes, dtype=matrix.dtype)
        distance = xp.abs(label[:, None] - label[None, :])
        if self.weights == "quadratic":
            distance = distance * distance
        # 1 - (apart / n) / (chance / n^2) = (chance - apart n) / chance, one quotient.
        chance = (actual * (predicted[None] * distance).sum()).sum()
        apart = (matrix * distance).sum().sum()
        value = quotient(chance - apart * total, chance, self.zero_division)
        return nan_where(~(total.high > 0), value)
