"""Ratios of counts by class, averaged over classes: what most classification metrics are."""

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp

from datarax._checks import real
from datarax._typing import ArrayLike, Average, PyTree, Weights
from datarax.metrics.base import Metric, shareable
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaling import nan_where, power_of_two_near_reciprocal, weighted_mean
from datarax.statistics.class_counts import ClassCounts
from datarax.statistics.fields import state


class Counts(NamedTuple):
    """True and false positives and negatives by class, of shape (C,)."""

    tp: DoubleFloat
    fp: DoubleFloat
    fn: DoubleFloat
    tn: DoubleFloat

    @classmethod
    def of(cls, statistic: ClassCounts) -> "Counts":
        """From the statistic."""
        shape = (statistic.size,)
        tp, predicted, actual, total = (
            each.double.broadcast_to(shape)
            for each in (statistic.right, statistic.predicted, statistic.actual, statistic.total)
        )
        fp = predicted - tp
        return cls(tp, fp, actual - tp, total - actual - fp)

    @property
    def predicted_positives(self) -> DoubleFloat:
        """How often each class was predicted."""
        return self.tp + self.fp

    @property
    def predicted_negatives(self) -> DoubleFloat:
        """How often each class was not predicted."""
        return self.tn + self.fn

    @property
    def positives(self) -> DoubleFloat:
        """How often each class was the target: its support."""
        return self.tp + self.fn

    @property
    def negatives(self) -> DoubleFloat:
        """How often each class was not the target."""
        return self.tn + self.fp

    @property
    def total(self) -> DoubleFloat:
        """How many examples each class could be predicted for: all, but for ignored labels."""
        return self.positives + self.negatives

    def summed(self) -> "Counts":
        """Over all classes, as one."""
        return Counts(*(each.sum()[None] for each in self))

    def scaled(self) -> "Counts":
        """All times one power of two, so that products of three neither overflow nor underflow."""
        scale = power_of_two_near_reciprocal(jnp.max(self.total.high))
        return Counts(*(each * scale for each in self))


class CountMetric(Metric):
    """A metric that is computed from counts by class; the fields state the task."""

    num_classes: int | None = None
    """How many classes a multiclass task has."""
    num_labels: int | None = None
    """How many labels a multilabel task has. With neither size the task is binary."""
    threshold: float = 0.5
    """Binary and multilabel: a score above it predicts the class."""
    ignore_index: int | None = None
    """A target that leaves its example out, uncounted."""

    statistic: ClassCounts = state()

    def __post_init__(self) -> None:
        self.statistic = ClassCounts.from_fields(self)

    def _count(self, **given) -> None:  # temporary
        vars(self).update(given)
        self.statistic = ClassCounts(**{n: v for n, v in given.items() if n != "on_invalid"})

    @shareable
    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: multiclass: scores (..., C) or predicted labels (...); multilabel: scores
                (..., L); binary: scores, or 0/1 predictions, (...).
            target: multiclass: integer labels (...); multilabel: 0/1 (..., L); binary: 0/1 (...).
            weights: broadcast against the leading axes of `target`; zero leaves an example out.

        Raises:
            MetricInputError: shapes that do not go together; shows both.
            MetricTypeError: labels that are not integers.
        """
        return self.replace(statistic=self.statistic.update(preds, target, weights=weights))

    @property
    def is_binary(self) -> bool:
        """Whether the task is neither multiclass nor multilabel."""
        return self.num_classes is None and self.num_labels is None


class TopKCountMetric(CountMetric):
    """A metric of counts by class, in which several classes may be predicted for an example."""

    top_k: int = 1
    """Multiclass: the classes of the k highest scores are predicted."""


class AveragedRatio(Metric):
    """A ratio of counts for each class, averaged; a subclass defines `ratio` and `counts`."""

    average: Average = "macro"
    """"micro" adds up the counts of all classes; "macro" is the mean over the classes that occur,
    among the targets or the predictions; "weighted" weighs them by how often each is the target;
    `None` gives one value per class. As in scikit-learn."""

    zero_division: float = 0.0
    """What 0/0 is; NaN leaves such a class out of an average."""

    def ratio(self, c: Counts) -> tuple[DoubleFloat, DoubleFloat]:
        """The numerator and the denominator, by class."""
        raise TypeError(f"{type(self).__name__} does not define ratio()")

    def counts(self) -> Counts:
        """The counts of the classes that are averaged."""
        raise TypeError(f"{type(self).__name__} does not define counts()")

    @property
    def is_multiclass(self) -> bool:
        """Whether a class that is neither predicted nor a target is left out of an average."""
        return True

    def compute(self) -> PyTree:
        counts = self.counts()
        if self.average == "micro":
            counts = counts.summed()
        numerator, denominator = self.ratio(counts)
        value = quotient(numerator, denominator, self.zero_division)
        value = nan_where(counts.total.high <= 0, value)
        if self.average == "micro":
            return value[0]
        if self.average is None:
            return value
        support = counts.positives.high
        if self.is_multiclass:
            value = nan_where(support + counts.fp.high <= 0, value)
        weights = support if self.average == "weighted" else jnp.ones_like(support)
        return weighted_mean(value, weights)


class CountRatio(AveragedRatio, TopKCountMetric):
    """A ratio of counts for each class of a task; a subclass defines `ratio`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.zero_division = real(self.zero_division, "zero_division", nan=True)

    def counts(self) -> Counts:
        return Counts.of(self.statistic)

    @property
    def is_multiclass(self) -> bool:
        return self.num_classes is not None

    def compute(self) -> PyTree:
        if not self.is_binary:
            return super().compute()
        counts = self.counts()
        value = quotient(*self.ratio(counts), self.zero_division)
        return nan_where(counts.total.high <= 0, value)[0]


def quotient(part: DoubleFloat, of: DoubleFloat, zero_division: float) -> jax.Array:
    """The quotient, rounded once, with a stated value where the denominator is zero."""
    ratio = (part / of).to_float()
    return jnp.where(of.high == 0, jnp.asarray(zero_division, ratio.dtype), ratio)
