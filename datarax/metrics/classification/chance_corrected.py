"""How far predictions and targets agree beyond chance, from counts by class."""

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import choice
from datarax.metrics.classification.count_ratio import CountMetric, Counts
from datarax.numerics.pairs import (
    divide,
    or_nan,
    pair_broadcast,
    pair_subtract,
    power_of,
    undefined,
)
from datarax.statistics.confusion import ConfusionCounts


class _BeyondChance(CountMetric):
    """What `MatthewsCorrCoef` and `CohenKappa` share.

    Both compare how often predictions are right with how often they would be, were they dealt out
    at random. For classes k of n examples, each predicted p and the target t times, that is
    `n * sum(right) - sum(p * t)`, which equals `sum(TP * TN - FP * FN)`: fewer products cancel.
    """

    def __init__(
        self,
        *,
        num_classes: int | None,
        num_labels: int | None,
        threshold: float,
        zero_division: float,
        ignore_index: int | None,
        on_invalid: str,
    ):
        self.zero_division = undefined(zero_division)
        self._count(
            num_classes=num_classes,
            num_labels=num_labels,
            threshold=threshold,
            top_k=1,
            ignore_index=ignore_index,
            on_invalid=on_invalid,
        )

    def _of(self, counts: Counts) -> jax.Array:
        raise TypeError(type(self).__name__)

    def compute(self) -> jax.Array:
        counts = Counts.of(self.statistic)
        value = self._of(counts.scaled())
        if self.statistic.num_labels is not None:
            return or_nan(value, counts.total[0])
        return or_nan(value, counts.total[0][0])

    def _over_classes(self, a: nx.Pair, b: nx.Pair) -> nx.Pair:
        """The product, summed over classes unless they are labels, a task each."""
        product = nx.pair_product(a, b)
        return product if self.statistic.num_labels is not None else nx.pair_sum(product)

    def _beyond_chance(self, counts: Counts) -> nx.Pair:
        return pair_subtract(
            self._over_classes(counts.tp, counts.tn), self._over_classes(counts.fp, counts.fn)
        )


class MatthewsCorrCoef(_BeyondChance):
    """The Matthews correlation coefficient: the correlation of predictions and targets.

    Binary: (TP TN - FP FN) / sqrt((TP + FP) (TP + FN) (TN + FP) (TN + FN)). Multiclass: R_K,
    (n sum(right) - sum(p t)) / sqrt((n^2 - sum(p^2)) (n^2 - sum(t^2))), where each class is
    predicted p and the target t times, of n examples. Multilabel: that of each label. 1 at best,
    0 for a guess; -1 only where predictions are the opposite of a binary target.

    `update(preds, target, *, weights=None)`: shapes and dtypes as for `Accuracy`.
    No data gives NaN.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        threshold: binary and multilabel: a score above it predicts the class.
        zero_division: what 0/0 is, where all predictions or all targets are one class.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: "exclude", "propagate" or "raise", as for `Accuracy`.

    As `sklearn.metrics.matthews_corrcoef`. J. Gorodkin (2004), Comparing two K-category
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

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        threshold: float = 0.5,
        zero_division: float = 0.0,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        super().__init__(
            num_classes=num_classes,
            num_labels=num_labels,
            threshold=threshold,
            zero_division=zero_division,
            ignore_index=ignore_index,
            on_invalid=on_invalid,
        )

    def _of(self, counts: Counts) -> jax.Array:
        above = self._beyond_chance(counts)
        # n^2 - sum(p^2) = sum(p (n - p)), of which no term cancels.
        predicted = self._over_classes(counts.predicted_positives, counts.predicted_negatives)
        actual = self._over_classes(counts.positives, counts.negatives)
        # Two quotients, so that where the three are equal the value is 1, without rounding.
        value = nx.pair_divide(above, actual) * jnp.sqrt(nx.pair_divide(actual, predicted))
        some = (predicted[0] > 0) & (actual[0] > 0)
        return jnp.where(some, value, jnp.asarray(float(self.zero_division), value.dtype))


class CohenKappa(_BeyondChance):
    """Cohen's kappa: the agreement of predictions and targets beyond what chance would give.

    (right - chance) / (1 - chance), where chance is sum(p t) / n^2, each class being predicted p
    and the target t times, of n examples. With `weights`, 1 - (disagreement) / (that by chance),
    each sum(d_ij m_ij) of a confusion matrix m. Multilabel: that of each label. 1 at best, 0 for a
    guess.

    `update(preds, target, *, weights=None)`: shapes and dtypes as for `Accuracy`.
    No data gives NaN.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        threshold: binary and multilabel: a score above it predicts the class.
        weights: multiclass, of ordered classes: how much it counts that i was predicted for j:
            "linear", |i - j|, or "quadratic", (i - j)^2; `None` counts every mistake alike.
        zero_division: what 0/0 is, where all predictions and all targets are one class: NaN, as in
            scikit-learn, unless said.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: "exclude", "propagate" or "raise", as for `Accuracy`.

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

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        threshold: float = 0.5,
        weights: str | None = None,
        zero_division: float = float("nan"),
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        choice(weights, ("linear", "quadratic", None), "weights")
        super().__init__(
            num_classes=num_classes,
            num_labels=num_labels,
            threshold=threshold,
            zero_division=zero_division,
            ignore_index=ignore_index,
            on_invalid=on_invalid,
        )
        self.weights = None
        if num_classes is not None and weights is not None:
            # Of two classes, as of a label, every mistake counts alike.
            self.weights = weights
            self.statistic = ConfusionCounts(num_classes=num_classes, ignore_index=ignore_index)

    def compute(self) -> jax.Array:
        if not isinstance(self.statistic, ConfusionCounts):
            return super().compute()
        words = self.statistic.matrix.parts
        scale = power_of(jnp.max(words[0]))
        matrix = words[0] * scale, words[1] * scale
        actual, predicted = nx.pair_sum(matrix), nx.pair_sum(matrix, 0)
        total = nx.pair_sum(actual)
        label = jnp.arange(self.statistic.num_classes, dtype=scale.dtype)
        distance = jnp.abs(label[:, None] - label[None, :])
        if self.weights == "quadratic":
            distance = distance * distance
        far = nx.pair_sum(nx.pair_scale(pair_broadcast(predicted, distance.shape), distance))
        chance = nx.pair_sum(nx.pair_product(actual, far))
        apart = nx.pair_sum(nx.pair_sum(nx.pair_scale(matrix, distance)))
        beyond = pair_subtract(chance, nx.pair_product(apart, total))
        return or_nan(divide(beyond, chance, self.zero_division), total[0])

    def _of(self, counts: Counts) -> jax.Array:
        high, low = self._beyond_chance(counts)
        # n^2 - sum(p t), twice: both ways to disagree by chance.
        chance = nx.pair_add(
            self._over_classes(counts.predicted_positives, counts.negatives),
            self._over_classes(counts.predicted_negatives, counts.positives),
        )
        return divide((high * 2, low * 2), chance, self.zero_division)
