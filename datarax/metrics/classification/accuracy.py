"""Classification: how often all is right."""

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import choice
from datarax.metrics.classification.count_ratio import (
    AVERAGES,
    CountMetric,
    Counts,
    pair_subtract,
    weighted_mean,
)
from datarax.statistics.class_counts import ClassCounts


class Accuracy(CountMetric):
    """The fraction of examples (multilabel: of labels) that were predicted right.

    `update(preds, target, *, weights=None)`: multiclass (`num_classes=`) takes scores (..., C) or
    labels (...) and integer labels (...); multilabel (`num_labels=`) scores and 0/1 targets
    (..., L); binary, neither given, scores and 0/1 targets (...). No data gives NaN.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has.
        threshold: binary and multilabel: a score above it predicts the class.
        top_k: multiclass: right if the target is among the k highest scores.
        average: "micro" counts examples; "macro" averages the accuracy of each class (multiclass:
            the recall, over the classes that occur, as scikit-learn's balanced accuracy; binary:
            over both classes), "weighted" by how often each occurs, `None` gives one per class.
        ignore_index: a target that leaves its example out.
        on_invalid: for NaN or infinite scores, labels out of range and negative weights: "exclude"
            and count them, "propagate" (the result is NaN), or "raise" when read on the host.

    Raises:
        MetricInputError: shapes that do not go together; shows both.

    As `sklearn.metrics.accuracy_score`, "macro" as `balanced_accuracy_score`; of labels, 1 less
    `hamming_loss`. Rows of which every label is right are counted by `ExactMatch`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Accuracy
        >>> scores = jnp.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        >>> metric = Accuracy(num_classes=2).update(scores, jnp.array([0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.6667
    """

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        threshold: float = 0.5,
        top_k: int = 1,
        average: str | None = "micro",
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        choice(average, AVERAGES, "average")
        self.average = average
        self._count(
            num_classes=num_classes,
            num_labels=num_labels,
            threshold=threshold,
            top_k=top_k,
            ignore_index=ignore_index,
            on_invalid=on_invalid,
        )

    def _value(self) -> jax.Array:
        right, of, support = _right_of(self.statistic)
        if self.average == "micro":
            return nx.pair_divide(nx.pair_sum(self._part(right, of)), nx.pair_sum(of))
        ratio = nx.pair_divide(self._part(right, of), of)
        if self.average is None:
            return ratio
        weight = support[0] if self.average == "weighted" else jnp.ones_like(ratio)
        return weighted_mean(ratio, weight)

    def _part(self, right: nx.Pair, of: nx.Pair) -> nx.Pair:
        """Of so many, those that the metric is the fraction of."""
        return right


class HammingDistance(Accuracy):
    """The fraction of examples (multilabel: of labels) that were predicted wrong.

    1 - accuracy, without its rounding.

    `update(preds, target, *, weights=None)`: shapes and dtypes as for `Accuracy`.
    No data gives NaN.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        threshold: binary and multilabel: a score above it predicts the class.
        top_k: multiclass: right if the target is among the k highest scores.
        average: "micro", "macro", "weighted" or `None`, as for `Accuracy`.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: "exclude", "propagate" or "raise", as for `Accuracy`.

    As `sklearn.metrics.hamming_loss`. R. W. Hamming (1950), Error detecting and error correcting
    codes.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import HammingDistance
        >>> preds, target = jnp.array([[0.9, 0.2], [0.1, 0.7]]), jnp.array([[1, 0], [0, 0]])
        >>> print(HammingDistance(num_labels=2).update(preds, target).compute())
        0.25
    """

    def _part(self, right: nx.Pair, of: nx.Pair) -> nx.Pair:
        return pair_subtract(of, right)


def _right_of(statistic: ClassCounts) -> tuple[nx.Pair, nx.Pair, nx.Pair]:
    """By class: how often it was right, of how often, and how often it was the target."""
    counts = Counts.of(statistic)
    if statistic.num_classes is not None:
        return counts.tp, counts.positives, counts.positives
    if statistic.num_labels is not None:
        return nx.pair_add(counts.tp, counts.tn), counts.total, counts.positives
    # Both classes: right are the negatives left alone, and the positives hit.
    right, of = _join(counts.tn, counts.tp), _join(counts.negatives, counts.positives)
    return right, of, of


def _join(a: nx.Pair, b: nx.Pair) -> nx.Pair:
    return jnp.concatenate([a[0], b[0]]), jnp.concatenate([a[1], b[1]])
