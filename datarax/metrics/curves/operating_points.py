"""What a classifier reaches at one threshold, chosen from all, or at one place of a curve."""

from typing import Any

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax.metrics.curves.score_metric import ScoredMetric, minus, number_from, spread
from datarax.statistics.scores import Groups


class _OperatingPoint(ScoredMetric):
    """The best of one rate where another is at least so much: which they are, a class says."""

    _argument: str
    _needs_negatives = True
    _may_predict_nothing = True

    def __init__(self, least: float, **scored: Any):
        vars(self)[self._argument] = number_from(least, self._argument)
        super().__init__(**scored)

    def _rates(self, groups: Groups) -> tuple[jax.Array, jax.Array]:
        """What is to be the greatest, and what is asked for, by class and threshold."""
        raise TypeError(type(self).__name__)

    def compute(self) -> Any:
        groups = self._groups()
        positives, negatives = groups.totals
        if self._may_predict_nothing:
            groups = _with_infinity(groups)
        rate, given = self._rates(groups)
        low = jnp.asarray(-1, rate.dtype)
        fits = (given >= getattr(self, self._argument)) & (
            groups.occupied | (groups.lowest == jnp.inf)
        )
        best = jnp.where(fits, rate, low)
        # Of equally good thresholds, that which leaves most of the other.
        equal = fits & (best == jnp.max(best, -1, keepdims=True))
        place = jnp.argmax(jnp.where(equal, given, low), -1, keepdims=True)
        defined = positives[0] > 0
        if self._needs_negatives:
            defined &= negatives[0] > 0

        def at_place(x: jax.Array) -> jax.Array:
            x = jnp.take_along_axis(x, place, -1)[:, 0]
            return jnp.where(defined, x, jnp.asarray(jnp.nan, x.dtype))

        return self._by_task({"value": at_place(rate), "threshold": at_place(groups.lowest)})


def _with_infinity(groups: Groups) -> Groups:
    """With an empty group more, above all, at an infinite threshold."""

    def padded(x: Any, value: float = 0) -> Any:
        return jax.tree.map(lambda x: jnp.concatenate([x, jnp.full_like(x[:, :1], value)], -1), x)

    return Groups(*map(padded, groups, (0, 0, 0, 0, 1, jnp.inf)))


def _recall(groups: Groups) -> jax.Array:
    return nx.pair_divide(groups.true, spread(groups.totals[0], groups.is_tie.shape))


def _specificity(groups: Groups) -> jax.Array:
    negatives = spread(groups.totals[1], groups.is_tie.shape)
    return nx.pair_divide(nx.pair_add(negatives, minus(groups.false)), negatives)


def _precision(groups: Groups) -> jax.Array:
    """Precision; 1 where nothing is predicted."""
    value = nx.pair_divide(groups.true, nx.pair_add(groups.true, groups.false))
    return jnp.where(jnp.isnan(value), jnp.ones((), value.dtype), value)


class PrecisionAtFixedRecall(_OperatingPoint):
    """The highest precision at a recall of at least so much, and the threshold.

    `compute()` gives `{"value": ..., "threshold": ...}`, of predictions `score >= threshold`; of
    thresholds that are equally good, the one with the higher recall.
    `update(preds, target, *, weights=None)` as for `AUROC`.

    The value is reached by that threshold, exactly. The best of all where bins hold one distinct
    score each; else a better one may lie within a bin. Nothing at all is never
    predicted. NaN without a positive.

    Args:
        min_recall: the recall to reach, from 0 to 1.
        num_classes: how many classes a multiclass task has: one value and threshold for each.
        num_labels: how many labels a multilabel task has: one for each. Neither: binary.
        bits: the resolution, see `datarax.statistics.ScoreHistogram`.
        exact: keep the scores themselves, up to `capacity`: every distinct score is a threshold.
        capacity: with `exact`, how many examples to keep; those that do not fit count as invalid.
        ignore_index: a target that leaves its example out.
        on_invalid: as for `Accuracy`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PrecisionAtFixedRecall
        >>> metric = PrecisionAtFixedRecall(min_recall=0.9)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> point = metric.compute()
        >>> print(round(float(point["value"]), 3), point["threshold"])
        0.667 0.5
    """

    _argument = "min_recall"
    _needs_negatives = False
    _may_predict_nothing = False

    def __init__(
        self,
        *,
        min_recall: float,
        num_classes: int | None = None,
        num_labels: int | None = None,
        bits: int | None = None,
        exact: bool = False,
        capacity: int | None = None,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        super().__init__(
            min_recall,
            num_classes=num_classes,
            num_labels=num_labels,
            bits=bits,
            exact=exact,
            capacity=capacity,
            ignore_index=ignore_index,
            on_invalid=on_invalid,
        )

    def _rates(self, groups: Groups) -> tuple[jax.Array, jax.Array]:
        return _precision(groups), _recall(groups)


class RecallAtFixedPrecision(_OperatingPoint):
    """The highest recall at a precision of at least so much, and the threshold.

    `compute()` gives `{"value": ..., "threshold": ...}`, of predictions `score >= threshold`; of
    thresholds that are equally good, the one with the higher precision.
    `update(preds, target, *, weights=None)` as for `AUROC`.

    The value is reached by that threshold, exactly. The best of all where bins hold one distinct
    score each; else a better one may lie within a bin. Where no threshold
    reaches the precision, the recall is 0 and the threshold infinite. NaN without a positive.

    Args:
        min_precision: the precision to reach, from 0 to 1.
        num_classes: how many classes a multiclass task has: one value and threshold for each.
        num_labels: how many labels a multilabel task has: one for each. Neither: binary.
        bits: the resolution, see `datarax.statistics.ScoreHistogram`.
        exact: keep the scores themselves, up to `capacity`: every distinct score is a threshold.
        capacity: with `exact`, how many examples to keep; those that do not fit count as invalid.
        ignore_index: a target that leaves its example out.
        on_invalid: as for `Accuracy`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RecallAtFixedPrecision
        >>> metric = RecallAtFixedPrecision(min_precision=0.9)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> point = metric.compute()
        >>> print(round(float(point["value"]), 3), point["threshold"])
        0.5 8.0
    """

    _argument = "min_precision"
    _needs_negatives = False

    def __init__(
        self,
        *,
        min_precision: float,
        num_classes: int | None = None,
        num_labels: int | None = None,
        bits: int | None = None,
        exact: bool = False,
        capacity: int | None = None,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        super().__init__(
            min_precision,
            num_classes=num_classes,
            num_labels=num_labels,
            bits=bits,
            exact=exact,
            capacity=capacity,
            ignore_index=ignore_index,
            on_invalid=on_invalid,
        )

    def _rates(self, groups: Groups) -> tuple[jax.Array, jax.Array]:
        return _recall(groups), _precision(groups)


class SensitivityAtSpecificity(_OperatingPoint):
    """The highest sensitivity at a specificity of at least so much, and the threshold.

    `compute()` gives `{"value": ..., "threshold": ...}`, of predictions `score >= threshold`; of
    thresholds that are equally good, the one with the higher specificity.
    `update(preds, target, *, weights=None)` as for `AUROC`.

    The value is reached by that threshold, exactly. The best of all where bins hold one distinct
    score each; else a better one may lie within a bin. Where only an
    infinite threshold does, the sensitivity is 0. NaN without both a positive and a negative.

    Args:
        min_specificity: the specificity to reach, from 0 to 1.
        num_classes: how many classes a multiclass task has: one value and threshold for each.
        num_labels: how many labels a multilabel task has: one for each. Neither: binary.
        bits: the resolution, see `datarax.statistics.ScoreHistogram`.
        exact: keep the scores themselves, up to `capacity`: every distinct score is a threshold.
        capacity: with `exact`, how many examples to keep; those that do not fit count as invalid.
        ignore_index: a target that leaves its example out.
        on_invalid: as for `Accuracy`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SensitivityAtSpecificity
        >>> metric = SensitivityAtSpecificity(min_specificity=0.9)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> point = metric.compute()
        >>> print(round(float(point["value"]), 3), point["threshold"])
        0.5 8.0
    """

    _argument = "min_specificity"

    def __init__(
        self,
        *,
        min_specificity: float,
        num_classes: int | None = None,
        num_labels: int | None = None,
        bits: int | None = None,
        exact: bool = False,
        capacity: int | None = None,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        super().__init__(
            min_specificity,
            num_classes=num_classes,
            num_labels=num_labels,
            bits=bits,
            exact=exact,
            capacity=capacity,
            ignore_index=ignore_index,
            on_invalid=on_invalid,
        )

    def _rates(self, groups: Groups) -> tuple[jax.Array, jax.Array]:
        return _recall(groups), _specificity(groups)


class SpecificityAtSensitivity(_OperatingPoint):
    """The highest specificity at a sensitivity of at least so much, and the threshold.

    `compute()` gives `{"value": ..., "threshold": ...}`, of predictions `score >= threshold`; of
    thresholds that are equally good, the one with the higher sensitivity.
    `update(preds, target, *, weights=None)` as for `AUROC`.

    The value is reached by that threshold, exactly. The best of all where bins hold one distinct
    score each; else a better one may lie within a bin. NaN without both
    a positive and a negative.

    Args:
        min_sensitivity: the sensitivity to reach, from 0 to 1.
        num_classes: how many classes a multiclass task has: one value and threshold for each.
        num_labels: how many labels a multilabel task has: one for each. Neither: binary.
        bits: the resolution, see `datarax.statistics.ScoreHistogram`.
        exact: keep the scores themselves, up to `capacity`: every distinct score is a threshold.
        capacity: with `exact`, how many examples to keep; those that do not fit count as invalid.
        ignore_index: a target that leaves its example out.
        on_invalid: as for `Accuracy`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SpecificityAtSensitivity
        >>> metric = SpecificityAtSensitivity(min_sensitivity=0.9)
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> point = metric.compute()
        >>> print(round(float(point["value"]), 3), point["threshold"])
        0.5 0.5
    """

    _argument = "min_sensitivity"

    def __init__(
        self,
        *,
        min_sensitivity: float,
        num_classes: int | None = None,
        num_labels: int | None = None,
        bits: int | None = None,
        exact: bool = False,
        capacity: int | None = None,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        super().__init__(
            min_sensitivity,
            num_classes=num_classes,
            num_labels=num_labels,
            bits=bits,
            exact=exact,
            capacity=capacity,
            ignore_index=ignore_index,
            on_invalid=on_invalid,
        )

    def _rates(self, groups: Groups) -> tuple[jax.Array, jax.Array]:
        return _specificity(groups), _recall(groups)


class EqualErrorRate(ScoredMetric):
    """The error rate at which as many negatives are accepted as positives are refused.

    Where the ROC curve, with straight lines between its points, has a false positive rate equal to
    its false negative rate. `compute()` gives `{"value": ..., "threshold": ...}`: that rate, and
    the end, of lower threshold, of the line that it lies on; where others take the nearer end, or
    the mean of both rates there, few examples give another number. NaN without both a positive and
    a negative. `update(preds, target, *, weights=None)` as for `AUROC`. Scores in one bin count as
    a tie.

    Args:
        num_classes: how many classes a multiclass task has: one value and threshold for each.
        num_labels: how many labels a multilabel task has: one for each. Neither: binary.
        bits: the resolution, see `datarax.statistics.ScoreHistogram`.
        exact: keep the scores themselves, up to `capacity`: every distinct score is a threshold.
        capacity: with `exact`, how many examples to keep; those that do not fit count as invalid.
        ignore_index: a target that leaves its example out.
        on_invalid: as for `Accuracy`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import EqualErrorRate
        >>> metric = EqualErrorRate()
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> point = metric.compute()
        >>> print(point["value"], point["threshold"])
        0.5 3.0
    """

    def compute(self) -> Any:
        groups = self._groups()
        positives, negatives = groups.totals
        wide = spread(positives, groups.is_tie.shape), spread(negatives, groups.is_tie.shape)
        whole = minus(nx.pair_product(*wide))

        def beyond(true: nx.Pair, false: nx.Pair) -> nx.Pair:
            # How far false positives exceed false negatives, times the number of pairs.
            sides = nx.pair_product(false, wide[0]), nx.pair_product(true, wide[1])
            return nx.pair_add(nx.pair_add(*sides), whole)

        before = beyond(groups.positives_above, groups.negatives_above)
        after = beyond(groups.true, groups.false)
        crosses = groups.occupied & (before[0] < 0) & (after[0] >= 0)
        place = jnp.argmax(crosses, -1, keepdims=True)

        def at_place(x: Any) -> Any:
            return jax.tree.map(lambda x: jnp.take_along_axis(x, place, -1)[:, 0], x)

        before, after, false, within, threshold = map(
            at_place, (before, after, groups.negatives_above, groups.negatives, groups.lowest)
        )
        share = nx.pair_divide(minus(before), nx.pair_add(after, minus(before)))
        value = nx.pair_divide(nx.pair_add(false, nx.pair_scale(within, share)), negatives)
        defined = (positives[0] > 0) & (negatives[0] > 0)
        value, threshold = (
            jnp.where(defined, x, jnp.asarray(jnp.nan, x.dtype)) for x in (value, threshold)
        )
        return self._by_task({"value": value, "threshold": threshold})
