"""Whether predicted probabilities come true as often as they say."""

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import choice, positive_int
from datarax.metrics.base import Metric, check_policy
from datarax.statistics.calibration_bins import Bins, CalibrationBins


class _Calibration(Metric):
    """What reads bins of confidences: the arguments that make the statistic."""

    def _binned(
        self,
        *,
        num_bins: int,
        binning: str,
        on_invalid: str,
        num_classes: int | None,
        num_labels: int | None,
        classwise: bool,
        from_logits: bool,
        ignore_index: int | None,
    ) -> None:
        choice(binning, ("width", "mass"), "binning")
        positive_int(num_bins, "num_bins")
        self.num_bins, self.on_invalid = num_bins, check_policy(on_invalid)
        self.statistic = CalibrationBins(
            num_bins if binning == "width" else None,
            num_classes=num_classes,
            num_labels=num_labels,
            classwise=classwise,
            from_logits=from_logits,
            ignore_index=ignore_index,
        )

    @property
    def _is_one(self) -> bool:
        """Whether there is one group of bins, and not one a class or label."""
        return not self.statistic.classwise and self.statistic.num_labels is None


class CalibrationError(_Calibration):
    """How far confidence is from accuracy, over bins of confidence (expected calibration error).

    With `gap = |accuracy - confidence|` of the means of each bin, and `share` the part of all
    weight in it: "l1" is `sum(share * gap)`, "l2" is `sqrt(sum(share * gap**2))`, "max" is the
    greatest gap.

    `update(preds, target, *, weights=None)`: multiclass (`num_classes=`) takes floats (..., C) and
    integer labels (...), and judges the class of highest probability, of equal ones the first;
    multilabel (`num_labels=`) floats and 0/1 targets (..., L); binary, neither given, floats and
    0/1 targets (...), and judges the probability of the positive class. No data gives NaN.

    Args:
        num_bins: how many bins there are.
        norm: "l1", "l2" or "max".
        binning: bins of equal "width", or of equal "mass": as many examples in each.
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has.
        classwise: multiclass: judges the probability of every class, each against the rest.
        average: "macro", the mean over classes (classwise) or labels, or `None` for one of each.
        from_logits: what `preds` are: logits, of a softmax where multiclass and else of a sigmoid,
            or probabilities. It is never guessed.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: for logits that are not finite, probabilities outside 0 to 1 or that do not sum
            to one, labels out of range and negative weights: "exclude" and count them, "propagate"
            (the result is NaN), or "raise" when read on the host.

    A bin of equal width is above its lower edge and at most its upper, as in
    `sklearn.calibration.calibration_curve`, so that 1.0 lies in the last; libraries that give 1.0
    a bin of its own report another number. Equal masses are told by rank, ties in one bin, as
    `strategy="quantile"` does there where `num_bins` divides the number of examples. Ranks are
    those of cells, 2**-7 of the distance to 0 or 1 wide (wider for many classes, see
    `datarax.statistics.CalibrationBins`), in which the bins meet: this moves "l1" by at most twice
    the share of the examples in those cells.

    M. P. Naeini and others (2015), Obtaining well calibrated probabilities using Bayesian binning;
    C. Guo and others (2017), On calibration of modern neural networks. Classwise and of equal
    mass: J. Nixon and others (2019), Measuring calibration in deep learning.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import CalibrationError
        >>> metric = CalibrationError(num_bins=10)
        >>> metric = metric.update(jnp.array([1.0, 0.95]), jnp.array([0, 1]))
        >>> print(round(float(metric.compute()), 6))
        0.475
    """

    def __init__(
        self,
        *,
        num_bins: int = 15,
        norm: str = "l1",
        binning: str = "width",
        num_classes: int | None = None,
        num_labels: int | None = None,
        classwise: bool = False,
        average: str | None = "macro",
        from_logits: bool = False,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        choice(norm, ("l1", "l2", "max"), "norm")
        choice(average, ("macro", None), "average")
        self.norm, self.average = norm, average
        self._binned(
            num_bins=num_bins,
            binning=binning,
            on_invalid=on_invalid,
            num_classes=num_classes,
            num_labels=num_labels,
            classwise=classwise,
            from_logits=from_logits,
            ignore_index=ignore_index,
        )

    def compute(self) -> jax.Array:
        error = _error(self.statistic.bins(self.num_bins), self.norm)
        if self._is_one:
            return error[0]
        if self.average is None:
            return error
        return jnp.nanmean(error)  # over the labels that have data


class ReliabilityDiagram(_Calibration):
    """What a reliability diagram shows: accuracy against confidence, in bins of confidence.

    `compute` gives a dict of arrays of shape (num_bins,), or (C, num_bins) classwise and
    (L, num_bins) multilabel: `"confidence"`, the mean of the probabilities in each bin;
    `"accuracy"`, how often they came true; and `"weight"`, the share of all weight that lies in it.
    Where a bin is empty the first two are NaN, and with no data all are.

    `update(preds, target, *, weights=None)`: shapes and dtypes as for `CalibrationError`, whose
    state it shares in a `Collection`.

    Args:
        num_bins: how many bins there are.
        binning: bins of equal "width", or of equal "mass", as for `CalibrationError`.
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has.
        classwise: multiclass: judges the probability of every class, each against the rest.
        from_logits: what `preds` are: logits, of a softmax where multiclass and else of a sigmoid,
            or probabilities.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: "exclude", "propagate" or "raise", as for `CalibrationError`.

    As `sklearn.calibration.calibration_curve`, which drops empty bins. A. H. Murphy and R. L.
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

    def __init__(
        self,
        *,
        num_bins: int = 15,
        binning: str = "width",
        num_classes: int | None = None,
        num_labels: int | None = None,
        classwise: bool = False,
        from_logits: bool = False,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        self._binned(
            num_bins=num_bins,
            binning=binning,
            on_invalid=on_invalid,
            num_classes=num_classes,
            num_labels=num_labels,
            classwise=classwise,
            from_logits=from_logits,
            ignore_index=ignore_index,
        )

    def compute(self) -> dict[str, jax.Array]:
        bins = self.statistic.bins(self.num_bins)
        diagram = {
            "confidence": nx.pair_divide(bins.confidence, bins.weight),
            "accuracy": nx.pair_divide(bins.correct, bins.weight),
            "weight": nx.pair_divide(bins.weight, _total(bins)),
        }
        return {name: x[0] if self._is_one else x for name, x in diagram.items()}


def _error(bins: Bins, norm: str) -> jax.Array:
    """The calibration error of each group of bins; NaN where there is no data."""
    total = _total(bins)
    high, low = nx.pair_add(bins.correct, (-bins.confidence[0], -bins.confidence[1]))
    gap = jnp.abs(high), jnp.where(high < 0, -low, low)
    if norm == "l1":
        high, low = nx.pair_sum(gap)
        return nx.pair_divide((high, low), (total[0][:, 0], total[1][:, 0]))
    apart = nx.pair_divide(gap, bins.weight)
    apart = jnp.where(bins.weight[0] > 0, apart, 0)
    if norm == "max":
        return jnp.where(total[0][:, 0] > 0, jnp.max(apart, -1), jnp.nan)
    share = nx.pair_divide(bins.weight, total)
    return jnp.sqrt(jnp.sum(share * jnp.square(apart), -1))


def _total(bins: Bins) -> nx.Pair:
    """The weight of each group, as often as it has bins."""
    high, low = (jnp.broadcast_to(x[:, None], y.shape) for x, y in zip(
        nx.pair_sum(bins.weight), bins.weight, strict=True))  # fmt: skip
    return high, low
