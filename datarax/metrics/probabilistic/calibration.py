"""Calibration: whether predictions are right as often as their confidence says."""

from typing import Literal, Self

import jax

from datarax._checks import positive_int, refuse_ignored
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.numerics.double_float import where
from datarax.numerics.scaling import nan_where
from datarax.statistics.calibration_bins import Bins, CalibrationBins


class CalibrationMetric(Metric):
    """A metric that is computed from bins of confidence.

    Bins of equal width exclude their lower edge and include their upper edge, as in
    `sklearn.calibration.calibration_curve`. So 1.0 is in the last bin; a library that gives 1.0 its
    own bin reports another number.

    Bins of equal mass are made by rank, with ties in one bin, as with `strategy="quantile"` of
    `calibration_curve` if `num_bins` divides the number of examples. The ranks are those of narrow
    cells, whose width is 2**-7 of the distance to the nearer of 0 and 1 (more for many classes: see
    `datarax.statistics.CalibrationBins`). The cells at the edges of the bins change an "l1" error
    by at most twice their share of the examples.

    Examples are invalid if their probabilities are outside 0 to 1, if a row of them does not sum to
    one (multiclass: within 3.5e-4, or the root of the eps of a coarser dtype), if a logit is NaN or
    +inf, if all logits of a row are -inf, or if their label is out of range. A logit of -inf is a
    probability of zero.
    """

    tasks = ("binary", "multiclass", "multilabel")
    needs_scores = True
    num_bins: int = 15
    """The number of bins."""
    binning: Literal["width", "mass"] = "width"
    """Bins of equal "width", or of equal "mass": with as many examples in each."""
    num_classes: int | None = None
    """The number of classes of a multiclass task."""
    num_labels: int | None = None
    """The number of labels of a multilabel task. Without both sizes the task is binary."""
    classwise: bool = False
    """Multiclass: whether to judge the probability of every class, each against the rest. If not,
    only the highest probability is judged, the first of equal ones."""
    from_logits: bool = False
    """True if `preds` are logits (of a softmax for multiclass, else of a sigmoid), False for
    probabilities; values are never inspected."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted as invalid. If it is one of the
    classes, `classwise` has no value of that class."""

    statistic: CalibrationBins = state()

    def __post_init__(self) -> None:
        positive_int(self.num_bins, "num_bins")
        # Bins of equal mass are computed from cells, which do not depend on `num_bins`: so metrics
        # with any `num_bins` share the statistic.
        stored = self.num_bins if self.binning == "width" else None
        self.statistic = CalibrationBins.from_fields(self, num_bins=stored)

    @shareable
    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: floats. Multiclass: (..., C), one for each class. Multilabel: (..., L), one for
                each label. Binary: (...), one for the positive class, which is judged.
            target: multiclass: integer labels (...); multilabel: 0/1 (..., L); binary: 0/1 (...).
            weights: broadcast against the leading axes of `target`; zero excludes an example.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: multiclass targets are not integers.
        """
        return self.replace(statistic=self.statistic.update(preds, target, weights=weights))

    def bins(self) -> Bins:
        """The content of the bins, of shape (groups, num_bins)."""
        return self.statistic.bins(self.num_bins)

    @property
    def has_one_group(self) -> bool:
        """True if there is one group of bins, rather than one per class or label."""
        return not self.classwise and self.num_labels is None


class CalibrationError(CalibrationMetric):
    """The difference of confidence and accuracy, over bins of confidence (ECE).

    In each bin, `gap = |accuracy - confidence|` of the means, and `share` is its part of the total
    weight. "l1" is `sum(share * gap)`, the expected calibration error; "l2" is
    `sqrt(sum(share * gap**2))`; "max" is the greatest gap. No data gives NaN.

    Of a bin with n examples, the accuracy varies by chance, so `gap**2` is too large by about
    `accuracy * (1 - accuracy) / (n - 1)`. `debias` subtracts this, where n is above 1, before the
    sum; a sum below 0 gives 0.

    Raises:
        MetricInputError: `debias` with another norm than "l2".

    M. P. Naeini and others (2015), Obtaining well calibrated probabilities using Bayesian binning;
    C. Guo and others (2017), On calibration of modern neural networks. Classwise and of equal
    mass: J. Nixon and others (2019), Measuring calibration in deep learning. Debiased: A. Kumar,
    P. Liang and T. Ma (2019), Verified uncertainty calibration, https://arxiv.org/abs/1909.10155,
    definition 5.1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import CalibrationError
        >>> metric = CalibrationError(num_bins=10)
        >>> metric = metric.update(jnp.array([1.0, 0.95]), jnp.array([0, 1]))
        >>> print(round(float(metric.compute()), 6))
        0.475
    """

    short_name = "ece"
    higher_is_better = False
    norm: Literal["l1", "l2", "max"] = "l1"
    """The norm that makes one number of the gaps of the bins."""
    debias: bool = False
    """With "l2": True to subtract what chance adds to the squares of the gaps."""
    average: Literal["macro"] | None = "macro"
    """Classwise and multilabel: "macro" is the mean over the classes or labels that have data;
    `None` gives one value per class or label."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.debias and self.norm != "l2":
            raise MetricInputError(f'debias=True is for norm="l2"; got norm={self.norm!r}')
        if self.has_one_group:
            refuse_ignored(self, "average", "without classwise=True or num_labels=")

    def compute(self) -> PyTree:
        error = _error(self.bins(), self.norm, debias=self.debias)
        if self.has_one_group:
            return error[0]
        return error if self.average is None else xp.nanmean(error)


class ReliabilityDiagram(CalibrationMetric):
    """The values of a reliability diagram: accuracy against confidence, by bin of confidence.

    `compute` gives a dict of arrays of shape (num_bins,), or (C, num_bins) classwise and
    (L, num_bins) multilabel: `"confidence"`, the mean of the probabilities in each bin;
    `"accuracy"`, the fraction of them that were correct; and `"weight"`, the share of the total
    weight in each bin. For an empty bin the first two are NaN; without data all are.

    It shares its state with `CalibrationError` in a `Collection`. As
    `sklearn.calibration.calibration_curve`, which drops empty bins. A. H. Murphy and R. L.
    Winkler (1977), Reliability of subjective probability forecasts of precipitation and
    temperature.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ReliabilityDiagram
        >>> metric = ReliabilityDiagram(num_bins=2)
        >>> metric = metric.update(jnp.array([0.25, 0.5, 0.75, 1.0]), jnp.array([0, 1, 1, 1]))
        >>> for name, values in metric.compute().items():
        ...     print(name, values)
        accuracy [0.5 1. ]
        confidence [0.375 0.875]
        weight [0.5 0.5]
    """

    def compute(self) -> PyTree:
        bins = self.bins()
        diagram = {
            "confidence": bins.confidence / bins.weight,
            "accuracy": bins.correct / bins.weight,
            "weight": bins.weight / bins.weight.sum()[:, None],
        }
        return {name: x[0] if self.has_one_group else x for name, x in diagram.items()}


def _error(bins: Bins, norm: str, *, debias: bool) -> jax.Array:
    """The error of each group of bins; NaN for a group without data."""
    total = bins.weight.sum()
    gap = bins.correct - bins.confidence  # times the weight of the bin
    gap = where(gap.high < 0, -gap, gap)
    if norm == "l1":
        return (gap.sum() / total).to_float()
    # An empty bin has no gap; its share is zero.
    gap_of_means = xp.where(bins.weight.high > 0, (gap / bins.weight).to_float(), 0)
    if norm == "max":
        return nan_where(~(total.high > 0), xp.max(gap_of_means, -1))
    share = (bins.weight / total[:, None]).to_float()
    squares = xp.square(gap_of_means)
    if not debias:
        return xp.sqrt(xp.sum(share * squares, -1))
    wrong = bins.weight - bins.correct
    by_chance = bins.correct / bins.weight * (wrong / bins.weight) / (bins.weight - 1)
    squares = squares - xp.where(bins.weight > 1, by_chance.to_float(), 0)
    return xp.sqrt(xp.maximum(xp.sum(share * squares, -1), 0))
