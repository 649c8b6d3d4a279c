"""Base classes of metrics that are computed from counts by class, as most of this family are."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import jax
import numpy as np

from datarax._checks import real, refuse_ignored, resolve_average
from datarax._errors import MetricInputError, UndefinedMetricWarning
from datarax._typing import ArrayLike, LabelAverage, PyTree, Weights, ZeroDivision
from datarax._xp import xp
from datarax.algebra.fields import Ungiven, field, state
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.metric.sampling import Sampling
from datarax.metric.unusable import Undefined
from datarax.metrics.classification.count_sampling import CountSampling
from datarax.metrics.classification.row_ratios import RowRatios
from datarax.numerics.double_float import DoubleFloat, concatenate
from datarax.numerics.scaling import nan_where, power_of_two_near_reciprocal, weighted_mean
from datarax.statistics.batches import class_of
from datarax.statistics.class_counts import ClassCounts

ONE_CLASS = "in a binary task, whose value is of the positive class (num_classes=2 averages both)"
"""Why an average has no effect."""


class Counts(NamedTuple):
    """The confusion counts of each class against the rest, each of shape (C,).

    True positives, false positives, false negatives and true negatives. A binary task has one
    class, the positive class; a multilabel task has one per label.
    """

    tp: DoubleFloat
    fp: DoubleFloat
    fn: DoubleFloat
    tn: DoubleFloat

    @classmethod
    def of(cls, statistic: ClassCounts) -> "Counts":
        """The counts from a statistic."""
        cells = statistic.cells.double
        return cls(*(cells[i] for i in range(4)))

    @classmethod
    def by_class(cls, statistic: ClassCounts) -> "Counts":
        """The same for values by class and their averages: an ignored class has no counts."""
        counts, ignored = cls.of(statistic), statistic.ignored_class
        if ignored is None:
            return counts
        is_ignored = np.arange(statistic.size) == ignored

        def others(x: jax.Array) -> jax.Array:
            return xp.where(is_ignored.reshape(-1, *(1,) * (x.ndim - 1)), 0, x)

        return cls(*(each.map(others) for each in counts))

    @property
    def predicted_positives(self) -> DoubleFloat:
        """The number of predictions of each class."""
        return self.tp + self.fp

    @property
    def predicted_negatives(self) -> DoubleFloat:
        """The number of examples that were not predicted as each class."""
        return self.tn + self.fn

    @property
    def positives(self) -> DoubleFloat:
        """The support: the number of examples of each class."""
        return self.tp + self.fn

    @property
    def negatives(self) -> DoubleFloat:
        """The number of examples that are not of each class."""
        return self.tn + self.fp

    @property
    def total(self) -> DoubleFloat:
        """The number of examples; it differs between labels where some targets are ignored."""
        return self.positives + self.negatives

    def of_both_classes(self) -> "Counts":
        """The counts of a binary task for each of its classes: the negative one, then the positive.

        What is a true positive of one class is a true negative of the other.
        """
        tp, fp, fn, tn = self
        pairs = ((tn, tp), (fn, fp), (fp, fn), (tp, tn))
        return Counts(*map(concatenate, pairs))

    def of_labels(self, labels: Sequence[int] | None) -> "Counts":
        """The counts of these classes, in this order; of all if it is `None`."""
        if labels is None:
            return self
        index = np.asarray(labels)
        return Counts(*(each.map(lambda x: x[index]) for each in self))

    def summed(self) -> "Counts":
        """The counts of all classes added up, of shape (1,)."""
        return Counts(*(each.sum(0)[None] for each in self))

    def scaled(self) -> "Counts":
        """The counts times one power of two, so that products of three cannot over- or underflow.

        The greatest total becomes about 1. Scaling by a power of two does not round.
        """
        scale = power_of_two_near_reciprocal(xp.max(self.total.high))
        return Counts(*(each * scale for each in self))


class TaskMetric(Metric):
    """A metric of predictions and targets.

    The task is multiclass with `num_classes`, multilabel with `num_labels`, otherwise binary.
    """

    tasks = ("binary", "multiclass", "multilabel")
    num_classes: int | None = None
    """The number of classes of a multiclass task."""
    num_labels: int | None = None
    """The number of labels of a multilabel task."""
    threshold: float = 0.5
    """Binary and multilabel: a score above the threshold predicts the class. The threshold is
    rounded to the dtype of the scores, so a float32 score of 0.3 is not above 0.3."""
    from_logits: bool = False
    """Binary and multilabel: whether scores are logits; then the threshold is of their sigmoid. If
    not, and the threshold is between 0 and 1, scores outside 0 to 1 give a `ScoresWarning`.
    Multiclass: an error, as the highest logit needs no threshold."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted as invalid. If it is one of several
    classes, the class is in no average, and NaN where there is one value per class."""

    @property
    def is_binary(self) -> bool:
        """True if the task is neither multiclass nor multilabel."""
        return self.num_classes is None and self.num_labels is None


class CountMetric(TaskMetric):
    """A metric that is computed from counts by class."""

    # A `ClassCounts`; a `ConfusionCounts` where the formula needs the whole matrix, and a
    # `MatchCounts` where it needs two totals.
    statistic: Any = state()

    def __post_init__(self) -> None:
        # It checks the fields, and may convert the threshold to a float.
        self.statistic = ClassCounts.from_fields(self)
        self.threshold = self.statistic.threshold

    @shareable
    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: multiclass: scores (..., C), of floats or integers, or predicted labels (...);
                multilabel: scores (..., L); binary: scores, or 0/1 predictions, (...).
            target: multiclass: integer labels (...); multilabel: 0/1 (..., L); binary: 0/1 (...).
            weights: broadcast against the leading axes of `target`; zero excludes an example.

        Raises:
            MetricInputError: the shapes do not fit together; shows both. Or labels may be one-hot.
            MetricTypeError: the labels are not integers.
        """
        return self.replace(statistic=self.statistic.update(preds, target, weights=weights))

    def sampling(self) -> Sampling:
        return CountSampling(self)


class TopKCountMetric(CountMetric):
    """A metric of counts by class, with the option that an example has several predictions."""

    top_k: int = 1
    """Multiclass: the classes of the k highest scores are predicted; of equal scores, the first
    classes. (scikit-learn's `top_k_accuracy_score` takes the last.)"""


class CountRatio(TopKCountMetric):
    """A ratio of counts for each class, averaged over the classes. A subclass defines `ratio`."""

    value_range = (0.0, 1.0)
    average: LabelAverage = field(default="auto", means="macro")
    """The average over the classes, as in scikit-learn. "micro": the ratio of the
    counts of all classes added up. "macro": the mean over the classes that occur among the targets
    or the predictions; with `top_k` above 1, among the targets. "weighted": the mean weighted by
    support. "samples", for labels: the mean over rows of the ratio of the counts of a row; weights
    are of rows. `None`: one value per class. "auto" is "macro". In a binary task the value is of
    the positive class, and an average is an error; `num_classes=2` averages both classes."""

    labels: Sequence[int] | None = None
    """The classes, or labels, that are averaged, in the order of their values; `None` for all. As
    in scikit-learn, a class that is given here counts in an average if it does not occur, too."""
    zero_division: ZeroDivision = Ungiven(0.0)
    """The value where the ratio is 0/0. NaN excludes such a class from the average. If it is not
    given, or is "warn", reading the value outside `jit` gives an `UndefinedMetricWarning`."""
    scales: ClassVar[bool] = False
    """True if `compute` scales the counts, because products of them may over- or underflow."""
    is_ratio_of_sums: ClassVar[bool] = False
    """True if both terms of `ratio` are sums over examples, and not products of sums."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.average = resolve_average(self, self.is_binary, ONE_CLASS)
        self.zero_division = checked_zero_division(self.zero_division)
        if self.labels is not None:
            if self.is_binary:
                refuse_ignored(self, "labels", ONE_CLASS)
            self.labels = checked_labels(self, self.labels)
        if self.average == "samples":
            self.statistic = row_ratios(self, self.ratio, self.is_ratio_of_sums)

    def ratio(self, c: Counts) -> tuple[DoubleFloat, DoubleFloat]:
        """The numerator and the denominator, by class."""
        raise TypeError(f"{type(self).__name__} does not define ratio()")

    def as_ratio(self) -> tuple[DoubleFloat, DoubleFloat] | None:
        if isinstance(self.statistic, RowRatios):
            return self.statistic.as_ratio()
        counts = self.counts_by_class()
        together = self.is_binary or self.average == "micro"
        if not self.is_ratio_of_sums or not (together or self.average is None):
            return None
        sums = self.ratio(counts.summed() if self.average == "micro" else counts)
        return (sums[0][0], sums[1][0]) if together else sums

    def counts_by_class(self) -> Counts:
        """The counts of the classes that are averaged."""
        return Counts.by_class(self.statistic).of_labels(self.labels)

    def _terms(self) -> tuple[Counts, DoubleFloat, DoubleFloat]:
        """The counts, not scaled, and the numerator and the denominator of each ratio."""
        counts = self.counts_by_class()
        if self.average == "micro":
            counts = counts.summed()
        # Scaling changes no ratio. Averages need the counts that are not scaled.
        scaled = counts.scaled() if self.scales else counts
        numerator, denominator = self.ratio(scaled)
        return counts, numerator, denominator

    @property
    def _leaves_out(self) -> bool:
        """True if classes that do not occur are in no average; every label counts."""
        return self.num_classes is not None and self.labels is None

    def _is_absent(self, counts: Counts, support: jax.Array) -> jax.Array:
        """The mask of the classes that do not occur."""
        # A class that is one of several guesses for an example need not occur.
        return (support if self.top_k > 1 else support + counts.fp.to_float()) <= 0

    def undefined_parts(self) -> Undefined | None:
        if not isinstance(self.zero_division, Ungiven):
            return None
        if isinstance(self.statistic, RowRatios):
            some = xp.asarray(self.statistic.undefined.value > 0)
            return undefined_ratio(some, None)
        counts, _, denominator = self._terms()
        is_undefined = (denominator.high == 0) & (counts.total.high > 0)
        if self.average in ("macro", "weighted") and self._leaves_out:
            is_undefined &= ~self._is_absent(counts, counts.positives.to_float())
        several = not self.is_binary and self.average != "micro"
        of_labels = self.num_labels is not None if several else None
        return undefined_ratio(is_undefined, of_labels, self.labels)

    def compute(self) -> PyTree:
        if isinstance(self.statistic, RowRatios):
            return self.statistic.mean
        counts, numerator, denominator = self._terms()
        value = quotient(numerator, denominator, self.zero_division)
        value = nan_where(counts.total.high <= 0, value)
        if self.average == "micro" or self.is_binary:
            return value[0]  # one value: of all classes, or of the positive class
        if self.average is None:
            return value
        support = counts.positives.to_float()
        if self._leaves_out:
            value = nan_where(self._is_absent(counts, support), value)
        weights = support if self.average == "weighted" else xp.ones_like(support)
        return weighted_mean(value, weights)


class CountProportion(CountRatio):
    """A ratio of counts whose numerator is a part of its denominator."""

    higher_is_better = True
    is_ratio_of_sums = True

    @property
    def is_proportion(self) -> bool:  # type: ignore[override]
        return self.average != "samples"  # of rows, whose ratios are not 0 or 1


def checked_labels(metric: TaskMetric, given: Sequence[int]) -> tuple[int, ...]:
    """The `labels` of a metric, as Python integers; a binary task has the classes 0 and 1.

    Raises:
        MetricInputError: they are not different classes or labels of the task.
    """
    size, ignored = metric.num_labels or 2, None
    if metric.num_classes is not None:
        size, ignored = metric.num_classes, class_of(metric.ignore_index, metric.num_classes)
    try:
        labels = tuple(map(operator.index, given))
    except TypeError:
        labels = ()
    known = {*range(size)} - {ignored}
    if not labels or len(set(labels)) < len(labels) or not set(labels) <= known:
        without = "" if ignored is None else f" without {ignored}, which is ignore_index"
        raise MetricInputError(
            f"labels={given!r}; expected different integers from 0 to {size - 1}{without}"
        )
    return labels


def row_ratios(
    metric: "TaskMetric",
    ratio: Callable[[Counts], tuple[DoubleFloat, DoubleFloat]],
    is_ratio_of_sums: bool = True,
) -> RowRatios:
    """The statistic of the mean of a ratio over rows of labels.

    Raises:
        MetricInputError: the task has no labels, or the ratio is none of sums of counts.
    """
    name = type(metric).__name__
    if metric.num_labels is None or not is_ratio_of_sums:
        expected = "another average" if metric.num_labels is not None else "num_labels="
        raise MetricInputError(f'{name}: average="samples" is for rows of labels; give {expected}')
    if vars(metric).get("labels") is not None:
        raise MetricInputError(f'{name}: labels= has no effect with average="samples"')
    # What each count adds to the two terms, which are sums of counts.
    one = Counts(*(DoubleFloat.of(x) for x in np.eye(4)))
    part, whole = (tuple(each.to_float().tolist()) for each in ratio(one))
    return RowRatios.from_fields(metric, part=part, whole=whole)


def checked_zero_division(value: ZeroDivision) -> float:
    """A `zero_division` as a float; "warn" as one that is not given.

    Raises:
        MetricInputError: it is no number.
    """
    if isinstance(value, Ungiven) or (isinstance(value, str) and value == "warn"):
        return Ungiven(0.0)
    return real(value, "zero_division", nan=True)


def quotient(
    numerator: DoubleFloat, denominator: DoubleFloat, zero_division: ZeroDivision
) -> jax.Array:
    """The quotient, rounded once to a float; `zero_division` where the denominator is zero."""
    ratio = (numerator / denominator).to_float()
    return xp.where(denominator.high == 0, float(zero_division), ratio)


def undefined_ratio(
    where: jax.Array, of_labels: bool | None, labels: Sequence[int] | None = None
) -> Undefined:
    """Marks ratios that are 0/0, of labels or of classes; `None` if there is one ratio.

    They are of the classes or labels in `labels`, if it is given.
    """
    sets = "zero_division= sets the value"
    if of_labels is None:
        return Undefined(where, f"0/0 counts as 0; {sets}", UndefinedMetricWarning)
    of = "labels" if of_labels else "classes"
    reason = f"0/0 counts as 0 for {of} {{}}; {sets}, and NaN leaves them out of averages"
    return Undefined(where, reason, UndefinedMetricWarning, labels)
