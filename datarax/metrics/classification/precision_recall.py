"""Precision, recall and their kin: a line of formula each, over counts by class.

TP, FP, FN and TN are the true and false positives and negatives of a class against the rest.
"""

import math

import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import real
from datarax._errors import MetricInputError
from datarax.metrics.classification.count_ratio import CountRatio, Counts, pair_subtract


class Precision(CountRatio):
    """The fraction of positive predictions that are right: the positive predictive value.

    TP / (TP + FP).

    `update(preds, target, *, weights=None)`: shapes and dtypes as for `Accuracy`.
    No data gives NaN.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        threshold: binary and multilabel: a score above it predicts the class.
        top_k: multiclass: the classes of the k highest scores are predicted.
        average: "micro" adds up the counts of all classes; "macro" is the mean over the classes
            that occur, "weighted" by how often each is the target; `None` gives one per class.
        zero_division: what 0/0 is; NaN leaves such a class out of an average.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: "exclude", "propagate" or "raise", as for `Accuracy`.

    As `sklearn.metrics.precision_score`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Precision
        >>> metric = Precision().update(jnp.array([0.9, 0.8, 0.3]), jnp.array([1, 0, 1]))
        >>> print(metric.compute())
        0.5
    """

    def _ratio(self, counts: Counts) -> tuple[nx.Pair, nx.Pair]:
        return counts.tp, counts.predicted


class Recall(CountRatio):
    """The fraction of positives that are found: sensitivity, the true positive rate.

    TP / (TP + FN).

    `update(preds, target, *, weights=None)`: shapes and dtypes as for `Accuracy`.
    No data gives NaN.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        threshold: binary and multilabel: a score above it predicts the class.
        top_k: multiclass: the classes of the k highest scores are predicted.
        average: "micro" adds up the counts of all classes; "macro" is the mean over the classes
            that occur, "weighted" by how often each is the target; `None` gives one per class.
        zero_division: what 0/0 is; NaN leaves such a class out of an average.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: "exclude", "propagate" or "raise", as for `Accuracy`.

    As `sklearn.metrics.recall_score`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Recall
        >>> metric = Recall().update(jnp.array([0.9, 0.8, 0.3]), jnp.array([1, 0, 1]))
        >>> print(metric.compute())
        0.5
    """

    def _ratio(self, counts: Counts) -> tuple[nx.Pair, nx.Pair]:
        return counts.tp, counts.positives


class Specificity(CountRatio):
    """The fraction of negatives that are left alone: the true negative rate.

    TN / (TN + FP).

    `update(preds, target, *, weights=None)`: shapes and dtypes as for `Accuracy`.
    No data gives NaN.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        threshold: binary and multilabel: a score above it predicts the class.
        top_k: multiclass: the classes of the k highest scores are predicted.
        average: "micro" adds up the counts of all classes; "macro" is the mean over the classes
            that occur, "weighted" by how often each is the target; `None` gives one per class.
        zero_division: what 0/0 is; NaN leaves such a class out of an average.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: "exclude", "propagate" or "raise", as for `Accuracy`.

    As `sklearn.metrics.recall_score(pos_label=0)` for a binary task. J. Yerushalmy (1947),
    Statistical problems in assessing methods of medical diagnosis.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Specificity
        >>> metric = Specificity().update(jnp.array([0.9, 0.8, 0.3]), jnp.array([1, 0, 0]))
        >>> print(metric.compute())
        0.5
    """

    def _ratio(self, counts: Counts) -> tuple[nx.Pair, nx.Pair]:
        return counts.tn, counts.negatives


class NegativePredictiveValue(CountRatio):
    """The fraction of negative predictions that are right.

    TN / (TN + FN).

    `update(preds, target, *, weights=None)`: shapes and dtypes as for `Accuracy`.
    No data gives NaN.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        threshold: binary and multilabel: a score above it predicts the class.
        top_k: multiclass: the classes of the k highest scores are predicted.
        average: "micro" adds up the counts of all classes; "macro" is the mean over the classes
            that occur, "weighted" by how often each is the target; `None` gives one per class.
        zero_division: what 0/0 is; NaN leaves such a class out of an average.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: "exclude", "propagate" or "raise", as for `Accuracy`.

    As `sklearn.metrics.precision_score(pos_label=0)` for a binary task.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import NegativePredictiveValue
        >>> metric = NegativePredictiveValue()
        >>> metric = metric.update(jnp.array([0.9, 0.2, 0.3]), jnp.array([1, 0, 1]))
        >>> print(metric.compute())
        0.5
    """

    def _ratio(self, counts: Counts) -> tuple[nx.Pair, nx.Pair]:
        return counts.tn, counts.unpredicted


class FBeta(CountRatio):
    """The weighted harmonic mean of precision and recall.

    (1 + beta^2) TP / ((1 + beta^2) TP + beta^2 FN + FP).

    `update(preds, target, *, weights=None)`: shapes and dtypes as for `Accuracy`.
    No data gives NaN.

    Args:
        beta: how many times as much recall counts as precision; 0 is precision alone.
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        threshold: binary and multilabel: a score above it predicts the class.
        top_k: multiclass: the classes of the k highest scores are predicted.
        average: "micro" adds up the counts of all classes; "macro" is the mean over the classes
            that occur, "weighted" by how often each is the target; `None` gives one per class.
        zero_division: what 0/0 is; NaN leaves such a class out of an average.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: "exclude", "propagate" or "raise", as for `Accuracy`.

    Raises:
        MetricInputError: a beta that is negative or not finite.

    As `sklearn.metrics.fbeta_score`. C. J. van Rijsbergen (1979), Information Retrieval, chapter 7.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import FBeta
        >>> metric = FBeta(beta=2.0).update(jnp.array([0.9, 0.8, 0.3]), jnp.array([1, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.7143
    """

    def __init__(
        self,
        *,
        beta: float = 1.0,
        num_classes: int | None = None,
        num_labels: int | None = None,
        threshold: float = 0.5,
        top_k: int = 1,
        average: str | None = "macro",
        zero_division: float = 0.0,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        if not (real(beta, "beta", nan=True) >= 0 and math.isfinite(beta)):
            raise MetricInputError(f"beta={beta!r}; expected a number of at least 0")
        super().__init__(
            num_classes=num_classes,
            num_labels=num_labels,
            threshold=threshold,
            top_k=top_k,
            average=average,
            zero_division=zero_division,
            ignore_index=ignore_index,
            on_invalid=on_invalid,
        )
        self.beta = float(beta)

    def _ratio(self, counts: Counts) -> tuple[nx.Pair, nx.Pair]:
        return _f_beta(counts, self.beta)


class F1(CountRatio):
    """The harmonic mean of precision and recall; of sets, the Dice coefficient.

    2 TP / (2 TP + FP + FN).

    `update(preds, target, *, weights=None)`: shapes and dtypes as for `Accuracy`.
    No data gives NaN.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        threshold: binary and multilabel: a score above it predicts the class.
        top_k: multiclass: the classes of the k highest scores are predicted.
        average: "micro" adds up the counts of all classes; "macro" is the mean over the classes
            that occur, "weighted" by how often each is the target; `None` gives one per class.
        zero_division: what 0/0 is; NaN leaves such a class out of an average.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: "exclude", "propagate" or "raise", as for `Accuracy`.

    As `sklearn.metrics.f1_score`: the macro average is the mean of the F1 of each class.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import F1
        >>> metric = F1().update(jnp.array([0.9, 0.8, 0.3]), jnp.array([1, 0, 1]))
        >>> print(metric.compute())
        0.5
    """

    def _ratio(self, counts: Counts) -> tuple[nx.Pair, nx.Pair]:
        return _f_beta(counts, 1.0)


class JaccardIndex(CountRatio):
    """Intersection over union of the examples predicted and those of the class.

    TP / (TP + FP + FN).

    `update(preds, target, *, weights=None)`: shapes and dtypes as for `Accuracy`.
    No data gives NaN.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        threshold: binary and multilabel: a score above it predicts the class.
        top_k: multiclass: the classes of the k highest scores are predicted.
        average: "micro" adds up the counts of all classes; "macro" is the mean over the classes
            that occur, "weighted" by how often each is the target; `None` gives one per class.
        zero_division: what 0/0 is; NaN leaves such a class out of an average.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: "exclude", "propagate" or "raise", as for `Accuracy`.

    As `sklearn.metrics.jaccard_score`. P. Jaccard (1901).

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import JaccardIndex
        >>> metric = JaccardIndex().update(jnp.array([0.9, 0.8, 0.3]), jnp.array([1, 0, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.3333
    """

    def _ratio(self, counts: Counts) -> tuple[nx.Pair, nx.Pair]:
        return counts.tp, nx.pair_add(counts.positives, counts.fp)


class InformednessYouden(CountRatio):
    """Youden's J: how much better than chance a class is told from the rest.

    TP / (TP + FN) + TN / (TN + FP) - 1; 0 for a guess, 1 at best, -1 at worst.

    Undefined, and `zero_division`, where either rate is: without a positive or without a negative.

    `update(preds, target, *, weights=None)`: shapes and dtypes as for `Accuracy`.
    No data gives NaN.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        threshold: binary and multilabel: a score above it predicts the class.
        top_k: multiclass: the classes of the k highest scores are predicted.
        average: "micro" adds up the counts of all classes; "macro" is the mean over the classes
            that occur, "weighted" by how often each is the target; `None` gives one per class.
        zero_division: what 0/0 is; NaN leaves such a class out of an average.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: "exclude", "propagate" or "raise", as for `Accuracy`.

    For a binary task `sklearn.metrics.balanced_accuracy_score(adjusted=True)`. W. J. Youden (1950),
    Index for rating diagnostic tests.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import InformednessYouden
        >>> metric = InformednessYouden().update(jnp.array([0.9, 0.8, 0.3]), jnp.array([1, 0, 0]))
        >>> print(metric.compute())
        0.5
    """

    def _ratio(self, counts: Counts) -> tuple[nx.Pair, nx.Pair]:
        counts = counts.scaled()
        hit = nx.pair_product(counts.tp, counts.tn)
        missed = nx.pair_product(counts.fp, counts.fn)
        return pair_subtract(hit, missed), nx.pair_product(counts.positives, counts.negatives)


def _f_beta(counts: Counts, beta: float) -> tuple[nx.Pair, nx.Pair]:
    # From 2**80 on it is recall, but for less than a rounding; and no product may overflow.
    counts, by = counts.scaled(), min(beta, 2.0**40) ** 2
    dtype = counts.tp[0].dtype
    square = jnp.asarray(by, dtype), jnp.asarray(by - float(dtype.type(by)), dtype)
    hit = nx.pair_add(counts.tp, nx.pair_product(counts.tp, square))
    missed = nx.pair_add(nx.pair_product(counts.fn, square), counts.fp)
    return hit, nx.pair_add(hit, missed)
