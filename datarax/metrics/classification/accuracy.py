"""Accuracy, and its complement: how often predictions are right."""

import jax.numpy as jnp

from datarax._typing import Average, PyTree
from datarax.metrics.classification.count_ratio import Counts, TopKCountMetric
from datarax.numerics.double_float import DoubleFloat, concatenate
from datarax.numerics.scaling import weighted_mean


class Accuracy(TopKCountMetric):
    """The fraction of examples (multilabel: of labels) that are predicted right.

    No data gives NaN. As `sklearn.metrics.accuracy_score`, "macro" as `balanced_accuracy_score`;
    for labels, 1 less `hamming_loss`. Rows in which every label is right are counted by
    `ExactMatch`. With `top_k`, right if the target is among the k highest scores.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Accuracy
        >>> scores = jnp.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        >>> metric = Accuracy(num_classes=2).update(scores, jnp.array([0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.6667
    """

    average: Average = "micro"
    """"micro" counts examples; "macro" averages the accuracy of each class (multiclass: the recall,
    over the classes that occur; binary: over both classes); "weighted" weighs each class by how
    often it is the target; `None` gives one value per class."""

    def compute(self) -> PyTree:
        right, total, support = self.right_of()
        part = self.numerator(right, total)
        if self.average == "micro":
            return part.sum() / total.sum()
        ratio = (part / total).to_float()
        if self.average is None:
            return ratio
        weights = support.high if self.average == "weighted" else jnp.ones_like(ratio)
        return weighted_mean(ratio, weights)

    def numerator(self, right: DoubleFloat, total: DoubleFloat) -> DoubleFloat:
        """What is divided by the total: here, the correct predictions."""
        return right

    def right_of(self) -> tuple[DoubleFloat, DoubleFloat, DoubleFloat]:
        """By class: correct predictions, of how many, and how often the class is the target."""
        counts = Counts.of(self.statistic)
        if self.num_classes is not None:
            return counts.tp, counts.positives, counts.positives
        if self.num_labels is not None:
            return counts.tp + counts.tn, counts.total, counts.positives
        # Both classes: true negatives of all negatives, and true positives of all positives.
        right = concatenate([counts.tn, counts.tp])
        total = concatenate([counts.negatives, counts.positives])
        return right, total, total


class HammingDistance(Accuracy):
    """The fraction of examples (multilabel: of labels) that are predicted wrong.

    1 - accuracy, without its rounding. No data gives NaN. As `sklearn.metrics.hamming_loss`.
    R. W. Hamming (1950), Error detecting and error correcting codes.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import HammingDistance
        >>> preds, target = jnp.array([[0.9, 0.2], [0.1, 0.7]]), jnp.array([[1, 0], [0, 0]])
        >>> print(HammingDistance(num_labels=2).update(preds, target).compute())
        0.25
    """

    def numerator(self, right: DoubleFloat, total: DoubleFloat) -> DoubleFloat:
        return total - right
