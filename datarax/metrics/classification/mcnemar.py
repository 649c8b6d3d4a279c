"""McNemar's test: whether two models are right equally often on the same examples."""

from typing import Self

import jax
import numpy as np

from datarax._checks import numeric
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import special, xp
from datarax.algebra.fields import state
from datarax.algebra.rows import RowTerms, rows_last
from datarax.metric.declared import shareable
from datarax.metrics.classification.count_ratio import TaskMetric
from datarax.numerics.double_float import stack, where
from datarax.numerics.exact import whole_or_float
from datarax.numerics.scaling import nan_where
from datarax.numerics.special import fair_coin_p_value
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import predictions
from datarax.statistics.class_counts import TaskCounts
from datarax.statistics.invalid_counts import Invalid


class PairedMatches(TaskCounts):
    """Counts which of two models is right: both, only the first, only the second, or neither, (4,).

    See `TaskCounts`. In a multilabel task, each label is a prediction. An example that cannot be
    used of either model is excluded, and counted once in `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.classification.mcnemar import PairedMatches
        >>> a, b, target = jnp.array([0, 1, 2]), jnp.array([0, 2, 1]), jnp.array([0, 1, 2])
        >>> print(PairedMatches(num_classes=3).update(a, b, target).cells.value)
        [1. 2. 0. 0.]
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cells = MetricAccumulator(np.zeros(4))

    def update(
        self,
        preds_a: ArrayLike,
        preds_b: ArrayLike,
        target: ArrayLike,
        *,
        weights: Weights = None,
    ) -> Self:
        """Folds in the predictions of both models.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: the labels are not integers.
        """
        a, w, invalid_a = self._matches(preds_a, target, weights, "preds_a")
        b, _, invalid_b = self._matches(preds_b, target, weights, "preds_b")
        # The weight is zero already where the first prediction is invalid.
        w = xp.where(invalid_b.mask, xp.zeros((), w.dtype), w)
        apart = isinstance(self.cells, RowTerms)
        if apart:
            a, b, w = map(rows_last, (a, b, w))
        parts, axes = (a & b, a & ~b, ~a & b, ~(a | b)), tuple(range(w.ndim - apart))

        def count(w: jax.Array) -> jax.Array:
            return xp.stack([xp.sum(xp.where(part, w, 0), axes, w.dtype) for part in parts])

        return self.counted(w, count, invalid_a | invalid_b)

    def _matches(
        self, preds: ArrayLike, target: ArrayLike, weights: Weights, name: str
    ) -> tuple[jax.Array, jax.Array, Invalid]:
        """Returns which predictions are right, the weight of each, and the invalid ones."""
        if self.num_classes is not None:
            preds, target = numeric(preds, name), numeric(target, "target")
            chosen, target, w, invalid = predictions(
                preds, target, weights, self.size, self.top_k, self.ignore_index, name
            )
            return xp.any(chosen == target[..., None], -1), w, invalid
        chosen, positive, w, invalid, *_ = self.above_threshold(
            preds, target, weights, num_labels=self.num_labels, name=name
        )
        return chosen == positive, w, invalid


class McNemar(TaskMetric):
    """McNemar's test of two models that predict the same examples.

    A dict: "only_a" and "only_b", how many examples only the first or only the second model has
    right, in `results` integers, or floats if weights make them fractions; and "statistic" and
    "p_value" of the hypothesis that both are right equally often. Only examples on which the two
    differ count. With `exact=True`, the two counts are compared with throws of a fair coin: the
    statistic is the lesser of them, and `min(1, 2 P(X <= statistic))` with X binomial,
    n = only_a + only_b and p = 1/2, is the p-value. With `exact=False`, the statistic is
    `max(|only_a - only_b| - 1, 0)**2 / (only_a + only_b)`, with the continuity correction, and the
    p-value that of a chi-square with one degree of freedom; for n below 25 use the exact test.
    Float weights count as repetitions, for which a p-value means little.

    If the models never differ, the p-value is 1 and the statistic 0. No data gives NaN. A p-value
    is rounded once, where the devices have float64; on others it is within `12 (1 - log(p))` ulp.
    As `statsmodels.stats.contingency_tables.mcnemar` (which corrects a difference of 0 to 1), and
    as `scipy.stats.binomtest`. Q. McNemar (1947), Note on the sampling error of the difference
    between correlated proportions or percentages; A. L. Edwards (1948), Note on the "correction
    for continuity" in testing the significance of the difference between correlated proportions.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import McNemar
        >>> target = jnp.array([0, 1, 2, 2, 1])
        >>> a, b = jnp.array([0, 1, 2, 2, 0]), jnp.array([1, 2, 1, 0, 1])
        >>> print(McNemar(num_classes=3).update(a, b, target).results())
        {'only_a': 4, 'only_b': 1, 'p_value': 0.375, 'statistic': 1.0}
    """

    tasks = ()  # it takes the predictions of two models
    top_k: int = 1
    """Multiclass: a prediction is right if the target is among the k highest scores."""
    exact: bool = True
    """True for the p-value of the exact test, False for that of a chi-square."""

    statistic: PairedMatches = state()

    def __post_init__(self) -> None:
        self.statistic = PairedMatches.from_fields(self)
        self.threshold = self.statistic.threshold

    @shareable
    def update(
        self,
        preds_a: ArrayLike,
        preds_b: ArrayLike,
        target: ArrayLike,
        *,
        weights: Weights = None,
    ) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds_a: of the first model: multiclass scores (..., C) or predicted labels (...);
                multilabel scores (..., L); binary scores, or 0/1 predictions, (...).
            preds_b: of the second model, likewise.
            target: multiclass: integer labels (...); multilabel: 0/1 (..., L); binary: 0/1 (...).
            weights: broadcast against the leading axes of `target`; zero excludes an example.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: the labels are not integers.
        """
        seen = self.statistic.update(preds_a, preds_b, target, weights=weights)
        return self.replace(statistic=seen)

    def compute(self) -> PyTree:
        # Right of both models, only of the first, only of the second, of neither.
        cells = self.statistic.cells.double
        a, b, nothing = cells[1], cells[2], ~(cells.sum() > 0)
        # Differences of large counts are exact here; what is made of them need not be.
        difference, both = where(a < b, b - a, a - b), a + b
        pair = stack([both, difference])
        if self.exact:
            value = where(a < b, a, b).to_float()
            p_value = pair.evaluated(lambda x: fair_coin_p_value(x[0], x[1]))
        else:
            value = pair.evaluated(lambda x: _chi_square(x[0], x[1]))
            # The survival function of a chi-square x with one degree of freedom: erfc(sqrt(x / 2)).
            p_value = pair.evaluated(lambda x: special.erfc(xp.sqrt(_chi_square(x[0], x[1]) / 2)))
        return {
            "only_a": whole_or_float(a.map(lambda x: nan_where(nothing, x))),
            "only_b": whole_or_float(b.map(lambda x: nan_where(nothing, x))),
            "statistic": nan_where(nothing, value),
            "p_value": nan_where(nothing, p_value),
        }


def _chi_square(n: jax.Array, difference: jax.Array) -> jax.Array:
    """The statistic with the continuity correction; 0 if `n` is zero."""
    return xp.square(xp.maximum(difference - 1, 0)) / xp.where(n > 0, n, 1)
