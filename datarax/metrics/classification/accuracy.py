"""Accuracy, the fraction of correct predictions, and its complement."""

from typing import Literal

from datarax._typing import PyTree
from datarax._xp import xp
from datarax.metric.finer import ReadsFiner
from datarax.metrics.classification.count_ratio import Counts, TopKCountMetric, row_ratios
from datarax.metrics.classification.row_ratios import RowRatios
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaling import weighted_mean
from datarax.statistics.class_counts import ClassCounts, MatchCounts


class Accuracy(TopKCountMetric, ReadsFiner):
    """The fraction of examples (multilabel: of labels) that are predicted correctly.

    With `top_k`, a prediction is correct if the target is among the k highest scores. `ExactMatch`
    counts the rows in which every label is correct. No data gives NaN. As
    `sklearn.metrics.accuracy_score`, "macro" as `balanced_accuracy_score`; for labels, as
    1 - `hamming_loss`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Accuracy
        >>> scores = jnp.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        >>> metric = Accuracy(num_classes=2).update(scores, jnp.array([0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.6667
    """

    value_range = (0.0, 1.0)
    higher_is_better = True
    # Counts by class also tell how many predictions are right: in a collection, "micro" reads them
    # and needs no counters of its own.
    finer_statistics = (ClassCounts,)
    average: Literal["micro", "macro", "weighted", "samples"] | None = "micro"
    """"micro" counts examples, and needs only two counters; "macro" is the mean accuracy of the
    classes (multiclass: the recall of the classes that occur; binary: of both classes); "weighted"
    is that mean weighted by support; "samples", for labels, is the mean over rows, with weights of
    rows; `None` gives one value per class."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.average == "micro":
            self.statistic = MatchCounts.from_fields(self)
        if self.average == "samples":
            self.statistic = row_ratios(self, self.ratio_of_labels)

    def compute(self) -> PyTree:
        if isinstance(self.statistic, RowRatios):
            return self.statistic.mean
        terms = self.as_ratio()
        if terms is not None:
            ratio = terms[0] / terms[1]
            return ratio if self.average == "micro" else ratio.to_float()
        correct, wrong, support = self.by_class()
        # A class without examples is 0 / 0, which the mean leaves out.
        ratio = (self.numerator(correct, wrong) / (correct + wrong)).to_float()
        weights = support.to_float() if self.average == "weighted" else xp.ones_like(ratio)
        return weighted_mean(ratio, weights)

    @property
    def is_proportion(self) -> bool:  # type: ignore[override]
        return self.average != "samples"  # of rows, whose ratios are not 0 or 1

    def as_ratio(self) -> tuple[DoubleFloat, DoubleFloat] | None:
        if isinstance(self.statistic, RowRatios):
            return self.statistic.as_ratio()
        if self.average in ("macro", "weighted"):
            return None
        if isinstance(self.statistic, MatchCounts):
            cells = self.statistic.cells.double
            return self.numerator(cells[0], cells[1]), cells.sum(0)
        correct, wrong, _ = self.by_class()
        numerator, total = self.numerator(correct, wrong), correct + wrong
        return (numerator, total) if self.average is None else (numerator.sum(0), total.sum(0))

    def numerator(self, correct: DoubleFloat, wrong: DoubleFloat) -> DoubleFloat:
        """The numerator of the ratio: here, the correct predictions."""
        return correct

    def ratio_of_labels(self, c: Counts) -> tuple[DoubleFloat, DoubleFloat]:
        """The ratio from counts of labels."""
        return self.numerator(c.tp + c.tn, c.fp + c.fn), c.total

    def by_class(self) -> tuple[DoubleFloat, DoubleFloat, DoubleFloat]:
        """Correct predictions, wrong predictions and support of each class."""
        counts = Counts.of(self.statistic)
        # Multilabel: true negatives are correct predictions, too.
        if self.num_labels is not None:
            return counts.tp + counts.tn, counts.fp + counts.fn, counts.positives
        if self.is_binary:
            counts = counts.of_both_classes()
        return counts.tp, counts.fn, counts.positives


class HammingDistance(Accuracy):
    """The fraction of examples (multilabel: of labels) that are predicted wrongly.

    1 - accuracy, computed from the wrong predictions, so that a small value keeps its digits. No
    data gives NaN. As `sklearn.metrics.hamming_loss`. R. W. Hamming (1950), Error detecting and
    error correcting codes.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import HammingDistance
        >>> preds, target = jnp.array([[0.9, 0.2], [0.1, 0.7]]), jnp.array([[1, 0], [0, 0]])
        >>> print(HammingDistance(num_labels=2).update(preds, target).compute())
        0.25
    """

    higher_is_better = False

    def numerator(self, correct: DoubleFloat, wrong: DoubleFloat) -> DoubleFloat:
        return wrong
