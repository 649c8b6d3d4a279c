"""Weighted means of a score of each example: the base of log loss, Brier score and others."""

from typing import Literal, Self

import jax

from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax.metrics.base import Metric
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.batches import Examples, check_task, examples
from datarax.statistics.weighted_total import WeightedTotal


class MeanScore(Metric):
    """The weighted mean of a score of each example; a subclass defines `update`."""

    statistic = WeightedTotal()
    terms_by_row = True

    def compute(self) -> PyTree:
        return self.statistic.mean

    def as_ratio(self) -> tuple[DoubleFloat, DoubleFloat] | None:
        return self.statistic.total.double, self.statistic.weight.double


class TaskScore(MeanScore):
    """The weighted mean of a score of each example of a task; a subclass defines `score`."""

    terms_by_row = True
    tasks = ("binary", "multiclass", "multilabel")
    needs_scores = True
    num_classes: int | None = None
    """How many classes a multiclass task has."""
    num_labels: int | None = None
    """How many labels a multilabel task has. Without both sizes the task is binary."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted as invalid."""
    average: Literal["micro"] | None = "micro"
    """Multilabel: "micro" is the mean over all labels of all examples; `None` gives one value per
    label."""

    def __post_init__(self) -> None:
        check_task(self.num_classes, self.num_labels)
        if self.average is None:
            if self.num_labels is None:
                raise MetricInputError("average=None is for multilabel tasks; give num_labels=")
            self.statistic = WeightedTotal((self.num_labels,))

    def form(self) -> tuple[bool, bool]:
        """Whether `preds` are probabilities, and whether they are logits.

        If neither, they are finite scores or -inf.
        """
        return False, False

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: floats. Multiclass: (..., C), one for each class. Multilabel: (..., L), one for
                each label. Binary: (...), one for the positive class.
            target: multiclass: integer labels (...); multilabel: 0/1 (..., L), where each label
                is an example; binary: 0/1 (...).
            weights: broadcast against the leading axes of `target`; zero excludes an example.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: multiclass targets are not integers.
        """
        probabilities, from_logits = self.form()
        seen = examples(
            preds,
            target,
            weights,
            num_classes=self.num_classes,
            num_labels=self.num_labels,
            probabilities=probabilities,
            from_logits=from_logits,
            ignore_index=self.ignore_index,
        )
        return self.with_scores(seen)

    def with_scores(self, seen: Examples) -> Self:
        """A new metric with the scores of a checked batch folded in."""
        score = self.score(seen)
        return self.replace(statistic=self.statistic.add(score, seen.weight, seen.invalid))

    def score(self, seen: Examples) -> jax.Array:
        """The score of each example, of the shape of the target."""
        raise TypeError(f"{type(self).__name__} does not define score()")


class ProbabilityScore(TaskScore):
    """The weighted mean of a score of predicted probabilities; a subclass defines `score`.

    Examples are invalid if their probabilities are outside 0 to 1, if a row of them does not sum to
    one (multiclass: within 3.5e-4, or the root of the eps of a coarser dtype), if a logit is NaN or
    +inf, if all logits of a row are -inf, or if their label is out of range. A logit of -inf is a
    probability of zero. Valid rows are not divided by their sums.
    """

    higher_is_better = False
    from_logits: bool = False
    """Whether `preds` are logits (of a softmax for multiclass, else of a sigmoid) or
    probabilities; values are never inspected."""

    def form(self) -> tuple[bool, bool]:
        return not self.from_logits, self.from_logits
