"""Single thresholds: the best rate under a condition on another rate, and the equal error rate."""

from typing import ClassVar

import jax

from datarax._typing import PyTree
from datarax._xp import xp
from datarax.metrics.curves.score_metric import ScoreMetric, fraction
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaling import nan_where
from datarax.statistics.scores import Groups


class OperatingPoint(ScoreMetric):
    """The highest value of one rate, over the thresholds at which another rate is high enough.

    `compute()` gives `{"value": ..., "threshold": ...}`, for predictions `score >= threshold`. If
    several thresholds have the highest value, it gives the one with the highest other rate. The
    threshold gives exactly this value. No other threshold is better if each bin holds one distinct
    score; otherwise a better one may lie within a bin.
    """

    higher_is_better = True
    limit: ClassVar[str]
    """The name of the field with the least value of the other rate, from 0 to 1."""
    allows_infinity: ClassVar[bool] = True
    """True if an infinite threshold, which predicts no positive, is one of the thresholds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        setattr(self, self.limit, fraction(getattr(self, self.limit), self.limit))

    def rates(self, groups: Groups) -> tuple[jax.Array, jax.Array]:
        """The rate that is wanted and the one with a limit, at each threshold: (size, groups).

        They are NaN where a class has no examples.
        """
        raise TypeError(f"{type(self).__name__} does not define rates()")

    def compute(self) -> PyTree:
        groups = self.groups()
        # Not all groups are thresholds: bins may be empty, and so may rows of a buffer.
        is_threshold = groups.occupied
        if self.allows_infinity:
            is_threshold = _padded(is_threshold, True)
            padded = map(_padded, groups[:-1], (0, 0, 0, 0, 1, xp.inf))
            groups = Groups(*padded, scale=groups.scale)
        rate, other = self.rates(groups)
        # The rates are compared as floats, rounded once, so that 9 of 10 reaches 0.9.
        allowed = xp.where(is_threshold & (other >= getattr(self, self.limit)), rate, -1)
        equal = (allowed >= 0) & (allowed == xp.max(allowed, -1, keepdims=True))
        place = xp.argmax(xp.where(equal, other, -1), -1, keepdims=True)
        is_undefined = xp.isnan(rate[:, 0] + other[:, 0])

        def at_place(x: jax.Array) -> jax.Array:
            return nan_where(is_undefined, xp.take_along_axis(x, place, -1)[:, 0])

        return self.by_task({"value": at_place(rate), "threshold": at_place(groups.lowest)})


def _padded(x: PyTree, value: float) -> PyTree:
    """Adds a group above all others, with this value."""
    return jax.tree.map(lambda x: xp.concatenate([x, xp.full_like(x[:, :1], value)], -1), x)


def _recall(groups: Groups) -> jax.Array:
    return (groups.true_positives / groups.total_positives).to_float()


def _specificity(groups: Groups) -> jax.Array:
    negatives = groups.total_negatives
    return ((negatives - groups.false_positives) / negatives).to_float()


def _precision(groups: Groups) -> jax.Array:
    """The precision at each threshold; 1 where nothing is predicted positive."""
    predicted = groups.true_positives + groups.false_positives
    precision = (groups.true_positives / predicted).to_float()
    return xp.where(xp.isnan(precision), 1, precision)


class PrecisionAtFixedRecall(OperatingPoint):
    """The highest precision at a recall of at least `min_recall`, and its threshold.

    max TP / (TP + FP) over the thresholds at which TP / (TP + FN) >= `min_recall`; the infinite
    threshold, which predicts no positive, is not among them. NaN without a positive.

    Raises:
        MetricInputError: `min_recall` is not from 0 to 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PrecisionAtFixedRecall
        >>> metric = PrecisionAtFixedRecall(min_recall=0.9)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> point = metric.compute()
        >>> print(round(float(point["value"]), 3), point["threshold"])
        0.667 0.5
    """

    limit = "min_recall"
    allows_infinity = False
    min_recall: float
    """The recall to reach, from 0 to 1."""

    def rates(self, groups: Groups) -> tuple[jax.Array, jax.Array]:
        return _precision(groups), _recall(groups)


class RecallAtFixedPrecision(OperatingPoint):
    """The highest recall at a precision of at least `min_precision`, and its threshold.

    max TP / (TP + FN) over the thresholds at which TP / (TP + FP) >= `min_precision`. Where no
    threshold reaches that precision, the recall is 0 and the threshold infinite. NaN without a
    positive.

    Raises:
        MetricInputError: `min_precision` is not from 0 to 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RecallAtFixedPrecision
        >>> metric = RecallAtFixedPrecision(min_precision=0.9)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> point = metric.compute()
        >>> print(round(float(point["value"]), 3), point["threshold"])
        0.5 8.0
    """

    limit = "min_precision"
    min_precision: float
    """The precision to reach, from 0 to 1."""

    def rates(self, groups: Groups) -> tuple[jax.Array, jax.Array]:
        return _recall(groups), _precision(groups)


class SensitivityAtSpecificity(OperatingPoint):
    """The highest sensitivity at a specificity of at least `min_specificity`, and its threshold.

    max TP / (TP + FN) over the thresholds at which TN / (TN + FP) >= `min_specificity`. If only an
    infinite threshold reaches that specificity, the sensitivity is 0. NaN without a positive or
    without a negative.

    Raises:
        MetricInputError: `min_specificity` is not from 0 to 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SensitivityAtSpecificity
        >>> metric = SensitivityAtSpecificity(min_specificity=0.9)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> point = metric.compute()
        >>> print(round(float(point["value"]), 3), point["threshold"])
        0.5 8.0
    """

    limit = "min_specificity"
    min_specificity: float
    """The specificity to reach, from 0 to 1."""

    def rates(self, groups: Groups) -> tuple[jax.Array, jax.Array]:
        return _recall(groups), _specificity(groups)


class SpecificityAtSensitivity(OperatingPoint):
    """The highest specificity at a sensitivity of at least `min_sensitivity`, and its threshold.

    max TN / (TN + FP) over the thresholds at which TP / (TP + FN) >= `min_sensitivity`. NaN without
    a positive or without a negative.

    Raises:
        MetricInputError: `min_sensitivity` is not from 0 to 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SpecificityAtSensitivity
        >>> metric = SpecificityAtSensitivity(min_sensitivity=0.9)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> point = metric.compute()
        >>> print(round(float(point["value"]), 3), point["threshold"])
        0.5 0.5
    """

    limit = "min_sensitivity"
    min_sensitivity: float
    """The sensitivity to reach, from 0 to 1."""

    def rates(self, groups: Groups) -> tuple[jax.Array, jax.Array]:
        return _specificity(groups), _recall(groups)


class EqualErrorRate(ScoreMetric):
    """The error rate at which the false positive rate equals the false negative rate.

    `compute()` gives `{"value": ..., "threshold": ...}`: the rate at which the ROC curve, with
    straight lines between its points, crosses FPR = 1 - TPR, and the lower threshold of the line
    that crosses. NaN without a positive or without a negative. Scores in one bin count as a tie.
    Other libraries take the nearer end of that line, or the mean of both rates there, and differ
    where examples are few.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import EqualErrorRate
        >>> metric = EqualErrorRate()
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> point = metric.compute()
        >>> print(point["value"], point["threshold"])
        0.5 3.0
    """

    higher_is_better = False

    def compute(self) -> PyTree:
        groups = self.groups()
        positives, negatives = groups.total_positives, groups.total_negatives

        def difference(tp: DoubleFloat, fp: DoubleFloat) -> DoubleFloat:
            # FPR - (1 - TPR), times the number of pairs; ascends with descending thresholds.
            return fp * positives + tp * negatives - positives * negatives

        before = difference(groups.positives_above, groups.negatives_above)
        after = difference(groups.true_positives, groups.false_positives)
        crosses = groups.occupied & (before.high < 0) & (after.high >= 0)
        place = xp.argmax(crosses, -1, keepdims=True)

        def at_place(x: jax.Array) -> jax.Array:
            return xp.take_along_axis(x, place, -1)

        # The share of the line up to where the difference is zero, and the false positives there.
        before, after = before.map(at_place), after.map(at_place)
        share = -before / (after - before)
        fp = groups.negatives_above.map(at_place) + groups.negatives.map(at_place) * share
        value = (fp / negatives).to_float()
        is_undefined = ~((positives.high > 0) & (negatives.high > 0))
        point = {"value": value, "threshold": at_place(groups.lowest)}
        return self.by_task({name: nan_where(is_undefined, x)[:, 0] for name, x in point.items()})
