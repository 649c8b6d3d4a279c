"""The fraction of rows of labels that are right as a whole."""

from typing import ClassVar, Self

import jax

from datarax._checks import numeric, refuse_ignored
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.metric.declared import shareable
from datarax.metrics.classification.count_ratio import TaskMetric
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import check_task, predictions, rows_weight
from datarax.statistics.class_counts import ThresholdCounts
from datarax.statistics.invalid_counts import Invalid
from datarax.statistics.thresholds import HIGHEST_SCORE


class RowMatches(ThresholdCounts):
    """The weight of rows, and of the rows in which every entry is predicted right.

    Rows with an invalid entry are excluded and counted in `invalid`; rows in which all targets are
    ignored are excluded.
    """

    num_classes: int | None = None
    """Sequences of classes: scores (..., S, C) or labels (..., S), and labels (..., S)."""
    num_labels: int | None = None
    """Rows of labels: scores (..., L) and 0/1 targets (..., L). One of the two is required."""

    right = MetricAccumulator(0.0)
    total = MetricAccumulator(0.0)

    def __post_init__(self) -> None:
        check_task(self.num_classes, self.num_labels)
        if self.num_classes is None and self.num_labels is None:
            raise MetricInputError(
                "ExactMatch compares rows: give num_labels= (multilabel), or num_classes= "
                "(sequences of classes); for single examples use Accuracy"
            )
        if self.num_classes is not None:
            refuse_ignored(self, "threshold", HIGHEST_SCORE)
        if self.from_logits and self.num_classes is not None:
            raise MetricInputError(
                "from_logits=True is for num_labels=, with which scores have a threshold; the "
                "highest logit is also the highest probability, so leave it out with num_classes="
            )
        super().__post_init__()

    @property
    def has_threshold(self) -> bool:
        return self.num_classes is None

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in rows; `weights` are those of rows."""
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        if target.ndim == 0:
            raise MetricInputError("target has no axes; expected rows (..., S) of targets")
        # A row is right if each of its entries is right or does not count.
        hit, counts, invalid_entry = self._entries(preds, target, weights)
        w, invalid = rows_weight(invalid_entry.any((-1,)), weights)
        zero = xp.zeros((), w.dtype)
        w = xp.where(xp.any(counts, -1), w, zero)
        return self.with_batch(
            invalid,
            right=self.right.update(xp.where(xp.all(hit | ~counts, -1), w, zero)),
            total=self.total.update(w),
        )

    def _entries(
        self, preds: jax.Array, target: jax.Array, weights: Weights
    ) -> tuple[jax.Array, jax.Array, Invalid]:
        """Returns whether each entry is right, whether it counts, and the invalid entries."""
        if self.num_classes is not None:
            size, index = self.num_classes, self.ignore_index
            # Without weights, which are those of rows. Labels in rows are not taken for one-hot.
            seen = predictions(preds, target, None, size, ignore_index=index, in_rows=True)
            return seen.chosen[..., 0] == seen.target, seen.weight, seen.invalid
        # Rows of weight zero may hold anything.
        batch = self.above_threshold(preds, target, weights, num_labels=self.num_labels)
        return batch.preds == batch.target, batch.weight.astype(xp.bool_), batch.invalid


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

    value_range = (0.0, 1.0)
    higher_is_better = True
    tasks = ("multiclass", "multilabel")
    statistic: RowMatches = state()

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
