"""The confusion matrix, and the counts of each class."""

from typing import Literal

from datarax._checks import refuse_ignored
from datarax._typing import OnInvalid, PyTree
from datarax._xp import xp
from datarax.metrics.classification.count_ratio import (
    ONE_CLASS,
    CountMetric,
    Counts,
    TopKCountMetric,
)
from datarax.numerics.double_float import DoubleFloat, stack
from datarax.numerics.exact import whole_or_float
from datarax.numerics.scaling import nan_where
from datarax.statistics.class_counts import ConfusionCounts

# The axes over which the matrix is summed to get its divisors.
_AXES = {"true": (-1,), "pred": (-2,), "all": (-1, -2)}


class ConfusionMatrix(CountMetric):
    """Counts each pair of a target and a predicted class: targets in rows, predictions in columns.

    Multiclass: (C, C). Binary: (2, 2), [[TN, FP], [FN, TP]]. Multilabel: one matrix per label,
    (L, 2, 2). `compute` gives the nearest floats; `results` and a collector give exact counts:
    integers, or floats if weights make any of them a fraction. No data gives zeros; NaN where they
    are normalized. As `sklearn.metrics.confusion_matrix` and
    `multilabel_confusion_matrix`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ConfusionMatrix
        >>> metric = ConfusionMatrix(num_classes=3)
        >>> print(metric.update(jnp.array([0, 2, 1, 1]), jnp.array([0, 0, 1, 2])).compute())
        [[1. 0. 1.]
         [0. 1. 0.]
         [0. 1. 0.]]
    """

    on_invalid: OnInvalid = "exclude"
    """The policy for data that cannot be used: "exclude" leaves it out, "propagate" makes results
    that are floats NaN, "raise" raises `InvalidValuesError` when the result is read. The default is
    "exclude" because the results are counts."""
    normalize: Literal["true", "pred", "all"] | None = None
    """"true" divides each row by its sum, "pred" each column by its sum, "all" the matrix by its
    sum; a row or column of zeros stays zero. `None` gives counts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes is not None:
            self.statistic = ConfusionCounts.from_fields(self)

    def table(self) -> DoubleFloat:
        """The counts."""
        if isinstance(self.statistic, ConfusionCounts):
            return self.statistic.matrix.double
        c = Counts.of(self.statistic)
        # Rows are the targets 0 and 1, columns the predictions 0 and 1.
        cells = stack([c.tn, c.fp, c.fn, c.tp], -1).reshape(-1, 2, 2)
        return cells if self.num_labels is not None else cells[0]

    def compute(self) -> PyTree:
        table = self.table()
        if self.normalize is None:
            return whole_or_float(table)
        # The divisor of each cell; a zero divisor gives NaN, which becomes 0.
        total = table
        for axis in _AXES[self.normalize]:
            total = total.sum(axis).map(lambda x, axis=axis: xp.expand_dims(x, axis))
        share = (table / total).to_float()
        share = xp.where(xp.isnan(share), 0, share)
        return nan_where(~(xp.sum(table.high, (-2, -1), keepdims=True) > 0), share)


class StatScores(TopKCountMetric):
    """The counts that ratios are made of: true and false positives and negatives, and the support.

    Multiclass and multilabel: (C, 5), for each class or label against the rest; binary: (5,). In
    order: true positives, false positives, true negatives, false negatives, and the support, which
    is how often the class is the target. `compute` gives the nearest floats; `results` and a
    collector give exact counts: integers, or floats if weights make any of them a fraction. No data
    gives zeros. As `StatScores` of torchmetrics, and the
    entries of `sklearn.metrics.multilabel_confusion_matrix`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import StatScores
        >>> metric = StatScores().update(jnp.array([0.9, 0.8, 0.2, 0.6]), jnp.array([1, 0, 1, 1]))
        >>> print(metric.compute())
        [2. 1. 0. 1. 3.]
    """

    on_invalid: OnInvalid = "exclude"
    """The policy for data that cannot be used: "exclude" leaves it out, "propagate" makes results
    that are floats NaN, "raise" raises `InvalidValuesError` when the result is read. The default is
    "exclude" because the results are counts."""
    average: Literal["micro"] | None = None
    """"micro" adds up the counts of all classes, (5,)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_binary:
            refuse_ignored(self, "average", ONE_CLASS)

    def compute(self) -> PyTree:
        c = Counts.of(self.statistic)
        if self.average == "micro":
            c = c.summed()
        scores = stack([c.tp, c.fp, c.tn, c.fn, c.positives], -1)
        return whole_or_float(scores[0] if self.is_binary or self.average == "micro" else scores)
