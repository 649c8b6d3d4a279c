"""Weighted means of a score of each example: the bases of log loss, divergences and others."""

import math
from typing import ClassVar, Literal, Self

import jax

from datarax._checks import as_float, numeric, same_shape
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import by_blocks, xp
from datarax.metric.base import Metric
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.batches import Examples, check_task, examples, rows_weight
from datarax.statistics.invalid_counts import Invalid, is_nan, not_finite
from datarax.statistics.score_kinds import OfProbabilities, ScoreKind
from datarax.statistics.weighted_total import WeightedTotal


class MeanScore(Metric):
    """The weighted mean of a score of each example; a subclass defines `update`."""

    statistic = WeightedTotal()

    def compute(self) -> PyTree:
        return self.statistic.mean

    def as_ratio(self) -> tuple[DoubleFloat, DoubleFloat] | None:
        return self.statistic.total.double, self.statistic.weight.double


class ElementwiseMean(MeanScore):
    """The weighted mean of a score of each element of `preds` and `target`; for your own metrics.

    A subclass defines `score`, the formula. `update` checks that both arrays have the same shape,
    also where they would broadcast, leaves weights of zero out, and counts NaN and infinities. Such
    a metric has all that the catalogue's have, also in `Interval`, `Sliced` and `Bootstrap`.

    If all scores are 0 or 1, set `is_proportion = True`: then `Interval` uses that of Wilson.

    Example:
        >>> import numpy as np
        >>> import datarax
        >>> class Within(datarax.ElementwiseMean):
        ...     higher_is_better = True
        ...     is_proportion = True
        ...     distance: float = 0.5
        ...
        ...     def score(self, preds, target):
        ...         return abs(preds - target) <= self.distance
        >>> preds, target = np.array([1.0, 2.0, 3.0]), np.array([1.25, 2.0, 4.0])
        >>> print(Within(distance=0.25).update(preds, target).results())
        0.6666666666666666
        >>> try:
        ...     Within().update(preds[:, None], target)
        ... except datarax.MetricInputError as error:
        ...     print(str(error)[:72])
        Within: preds of shape (3, 1) and target of shape (3,): expected the sam
    """

    terms_by_row = True
    element_axes: ClassVar[int] = 0
    """The number of last axes of one element: 1 for rows, such as distributions or signals."""

    def score(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        """The score of each element, of the shape of `preds` without the axes of an element.

        Args:
            preds: floats, float64 on the host; inside `jit`, integers above 2**24 are rounded.
            target: floats of the same shape.
        """
        raise TypeError(f"{type(self).__name__} does not define score()")

    def invalid_elements(self, preds: jax.Array, target: jax.Array, score: jax.Array) -> Invalid:
        """The elements that cannot be used: by default those with NaN or an infinity.

        Args:
            preds: as given.
            target: as given.
            score: from `score`; it is invalid if it is NaN.
        """
        axes = tuple(range(score.ndim, preds.ndim))
        return not_finite(preds, axes) | not_finite(target, axes) | is_nan(score)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: numbers, (...).
            target: numbers of exactly the same shape.
            weights: broadcast against the leading axes; zero excludes an element.

        Raises:
            MetricInputError: shapes that differ, or a score of another shape; shows them.
            MetricTypeError: values that are not numbers.
        """
        p, t = numeric(preds, "preds"), numeric(target, "target")
        name = type(self).__name__
        same_shape(p, t, (f"{name}: preds", "target"))
        axes = self.element_axes
        places = p.ndim - axes
        if places < 0 or 0 in p.shape[places:]:
            raise MetricInputError(
                f"{name}: preds of shape {p.shape}; expected elements of {self.element_axes} last "
                f"axes, none of them empty"
            )

        def checked(p: jax.Array, t: jax.Array) -> jax.Array:
            score = xp.asarray(self.score(as_float(p), as_float(t)))
            if score.shape != (shape := p.shape[: -axes or None]):
                raise MetricInputError(
                    f"{name}.score: it returned the shape {score.shape} for preds of shape "
                    f"{p.shape}; expected {shape}, one score for each element"
                )
            return score

        score = by_blocks(checked, places, p, t)
        invalid = self.invalid_elements(p, t, score)
        return self.replace(statistic=self.statistic.add(score, *rows_weight(invalid, weights)))


class TaskScore(MeanScore, OfProbabilities):
    """The weighted mean of a score of each example of a task; a subclass defines `score`."""

    terms_by_row = True
    tasks = ("binary", "multiclass", "multilabel")
    needs_scores = True
    num_classes: int | None = None
    """The number of classes of a multiclass task."""
    num_labels: int | None = None
    """The number of labels of a multilabel task. Without both sizes the task is binary."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted as invalid."""
    by_label: ClassVar[bool] = False
    """True if `score` asks `Examples.rows` for the scores of the labels."""
    average: Literal["micro"] | None = "micro"
    """Multilabel: "micro" is the mean over all labels of all examples; `None` gives one value per
    label."""

    def __post_init__(self) -> None:
        check_task(self.num_classes, self.num_labels)
        if self.average is None and self.num_labels is None:
            raise MetricInputError("average=None is for multilabel tasks; give num_labels=")
        if self.average is None or self.kind:
            shape = (self.num_labels,) if self.num_labels and self.average is None else ()
            self.statistic = WeightedTotal(shape, self.kind)

    @property
    def takes_probabilities(self) -> bool:
        """True if scores that are no probabilities are invalid."""
        return self.form()[0]

    @property
    def kind(self) -> ScoreKind:
        """The kind of scores expected, where other scores give a warning."""
        if not self.form()[1]:
            return ""
        return "sigmoid" if self.num_classes is None else "softmax"

    def form(self) -> tuple[bool, bool]:
        """Returns whether `preds` are probabilities, and whether they are logits.

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
        return self.with_scores(self.checked(preds, target, weights))

    def checked(self, preds: ArrayLike, target: ArrayLike, weights: Weights = None) -> Examples:
        """The examples of a batch, which `score` takes; the arguments are those of `update`."""
        probabilities, from_logits = self.form()
        return examples(
            preds,
            target,
            weights,
            num_classes=self.num_classes,
            num_labels=self.num_labels,
            probabilities=probabilities,
            from_logits=from_logits,
            kind=self.kind,
            ignore_index=self.ignore_index,
            by_label=self.by_label,
        )

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

    value_range = (0.0, math.inf)
    higher_is_better = False
    from_logits: bool = False
    """True if `preds` are logits (of a softmax for multiclass, else of a sigmoid), False for
    probabilities; values are never inspected."""

    def form(self) -> tuple[bool, bool]:
        return not self.from_logits, self.from_logits
