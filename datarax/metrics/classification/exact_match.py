"""The fraction of rows of labels that are right as a whole."""

from typing import ClassVar, Self

from datarax._typing import ArrayLike, PyTree, Weights
from datarax.algebra.fields import state
from datarax.metrics.base import shareable
from datarax.metrics.classification.count_ratio import TaskMetric
from datarax.metrics.classification.row_matches import RowMatches
from datarax.numerics.double_float import DoubleFloat


class ExactMatch(TaskMetric):
    """The fraction of rows in which every label, or every class of a sequence, is right.

    The subset accuracy: `sum(w * all(right)) / sum(w)`. `num_labels` (rows of labels) or
    `num_classes` (sequences of classes) is required. An entry whose target is `ignore_index` is
    excluded, and the rest of its row is compared; a row of only such entries is excluded. A row
    with an invalid entry is invalid as a whole. No data gives NaN. As
    `sklearn.metrics.accuracy_score` of multilabel targets.

    Raises:
        MetricInputError: neither or both of the sizes.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ExactMatch
        >>> preds, target = jnp.array([[0.9, 0.2], [0.1, 0.7]]), jnp.array([[1, 0], [0, 0]])
        >>> print(ExactMatch(num_labels=2).update(preds, target).compute())
        0.5
    """

    higher_is_better = True
    tasks = ("multiclass", "multilabel")
    statistic: RowMatches = state()
    terms_by_row = True

    def __post_init__(self) -> None:
        self.statistic = RowMatches.from_fields(self)
        self.threshold = self.statistic.threshold

    @shareable
    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: multilabel: scores (..., L); multiclass: scores (..., S, C) or labels (..., S).
            target: multilabel: 0/1 (..., L); multiclass: integer labels (..., S).
            weights: of the rows; broadcast against their shape (...); zero excludes a row.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: the labels are not integers.
        """
        return self.replace(statistic=self.statistic.update(preds, target, weights=weights))

    is_proportion: ClassVar[bool] = True

    def compute(self) -> PyTree:
        return self.statistic.right.double / self.statistic.total.double

    def as_ratio(self) -> tuple[DoubleFloat, DoubleFloat]:
        return self.statistic.right.double, self.statistic.total.double
