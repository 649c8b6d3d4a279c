"""Differences in how a model treats groups of examples."""

from typing import Self

import jax
import numpy as np

from datarax._checks import is_integer, numeric, positive_int, same_shape
from datarax._errors import MetricTypeError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import beside, xp
from datarax.algebra.fields import state
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.metrics.classification.count_ratio import Counts
from datarax.numerics.digit_sums import sum_by_digits
from datarax.numerics.double_float import DoubleFloat, stack
from datarax.numerics.scaling import power_of_two_near_reciprocal
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import in_range
from datarax.statistics.class_counts import ThresholdCounts
from datarax.statistics.invalid_counts import out_of_range
from datarax.statistics.scatter_counts import count_labels


class GroupCounts(ThresholdCounts):
    """For each group: true positives, false positives, false negatives and true negatives.

    Examples with NaN or infinite scores (logits may be -inf), with a target other than 0 and 1, or
    with a group out of range, are excluded and counted in `invalid`.
    """

    terms_by_row = False

    num_groups: int
    """The number of groups, which are numbered from 0."""

    def __post_init__(self) -> None:
        positive_int(self.num_groups, "num_groups")
        super().__post_init__()
        self.counts = MetricAccumulator(np.zeros((4, self.num_groups)))

    @property
    def by_group(self) -> Counts:
        """The counts of each group, of shape (num_groups,)."""
        cells = self.counts.double
        return Counts(*(cells[i] for i in range(4)))

    def update(
        self, preds: ArrayLike, target: ArrayLike, groups: ArrayLike, *, weights: Weights = None
    ) -> Self:
        """Folds in scores, 0/1 targets and group numbers, all of one shape."""
        groups = numeric(groups, "groups")
        batch = self.above_threshold(preds, target, weights)
        same_shape(batch.preds, groups, ("preds", "groups"))
        if not is_integer(groups):
            raise MetricTypeError(
                f"groups has dtype {groups.dtype}; expected integers below {self.num_groups}"
            )
        known, zero = in_range(groups, self.num_groups), xp.zeros((), batch.weight.dtype)
        unknown = out_of_range(~known & batch.weight.astype(xp.bool_), groups)
        # A group out of range gets weight zero, as `count_labels` requires.
        w = xp.where(known, batch.weight, zero)
        a, b = batch.preds, batch.target
        parts = (a & b, a & ~b, ~a & b, ~(a | b))  # TP, FP, FN, TN

        def count(w: jax.Array) -> jax.Array:
            return xp.stack(
                [count_labels(groups, xp.where(part, w, 0), self.num_groups) for part in parts]
            )

        counts = self.counts.plus(sum_by_digits(w, count))
        return self.with_batch(batch.invalid | unknown, counts=counts)


class GroupMetric(Metric):
    """A metric of a binary task that is computed from the counts of each group."""

    num_groups: int
    """The number of groups, which are numbered from 0."""
    threshold: float = 0.5
    """A score above it predicts the positive class."""
    from_logits: bool = False
    """True if scores are logits; then the threshold is of their sigmoid."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted as invalid."""

    statistic: GroupCounts = state()

    def __post_init__(self) -> None:
        self.statistic = GroupCounts.from_fields(self)
        self.threshold = self.statistic.threshold

    @shareable
    def update(
        self, preds: ArrayLike, target: ArrayLike, groups: ArrayLike, *, weights: Weights = None
    ) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: scores (...).
            target: 0/1 (...).
            groups: the group of each example, integers (...); one out of range is invalid.
            weights: broadcast against the leading axes of `target`; zero excludes an example.

        Raises:
            MetricInputError: the shapes differ; shows both.
            MetricTypeError: the groups are not integers.
        """
        return self.replace(statistic=self.statistic.update(preds, target, groups, weights=weights))


class GroupFairness(GroupMetric):
    """The differences of groups in selection rate, true positive rate and false positive rate.

    A dict of eight numbers. `demographic_parity_...` compares the selection rates of the groups,
    positive predictions / examples; `equal_opportunity_...` compares their true positive rates,
    TP / (TP + FN); `false_positive_rate_...` compares FP / (FP + TN). "..._difference" is the
    greatest rate minus the least, 0 at best; "..._ratio" is the least divided by the greatest, 1
    at best. `equalized_odds_difference` is the greater of the differences in true and in false
    positive rate, `equalized_odds_ratio` the lesser of their ratios.

    A group without data (for the true positive rate, without positives; for the false positive
    rate, without negatives) is excluded. A value is NaN where no group is left; a ratio of 0 to 0
    is NaN; and equalized odds are NaN where one of the two rates has no value. If no group has a
    false positive, `equalized_odds_ratio` is the ratio of the true positive rates, because the
    false positive rates are equal. `Bootstrap` gives intervals of all eight.

    As the functions of these names in Fairlearn, with the worst case of both rates for equalized
    odds. M. Hardt, E. Price and N. Srebro (2016), Equality of opportunity in supervised learning,
    https://arxiv.org/abs/1610.02413.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import GroupFairness
        >>> preds = jnp.array([0.9, 0.8, 0.4, 0.7, 0.2, 0.6, 0.1, 0.3])
        >>> target = jnp.array([1, 0, 0, 1, 1, 0, 0, 0])
        >>> groups = jnp.array([0, 0, 0, 1, 1, 1, 1, 1])
        >>> fairness = GroupFairness(num_groups=2).update(preds, target, groups)
        >>> for name, value in fairness.results().items():
        ...     print(name, round(value, 3))
        demographic_parity_difference 0.267
        demographic_parity_ratio 0.6
        equal_opportunity_difference 0.5
        equal_opportunity_ratio 0.5
        equalized_odds_difference 0.5
        equalized_odds_ratio 0.5
        false_positive_rate_difference 0.167
        false_positive_rate_ratio 0.667
    """

    def compute(self) -> PyTree:
        c = self.statistic.by_group
        selection = _extremes(c.predicted_positives, c.total)
        found, alarms = _extremes(c.tp, c.positives), _extremes(c.fp, c.negatives)
        # Where one of the two is NaN, both `argmax` and `argmin` give its position.
        gaps, quotients = (stack(pair) for pair in zip(found, alarms, strict=True))
        least = quotients.to_float()
        # Rates of 0 in all groups are equal, but have no ratio.
        without = xp.isnan(least) & ~xp.isnan(gaps.to_float()) & beside(least, _OF_ALARMS)
        least = xp.where(without, xp.inf, least)
        odds = gaps[xp.argmax(gaps.to_float())], quotients[xp.argmin(least)]
        compared = {
            "demographic_parity": selection,
            "equal_opportunity": found,
            "equalized_odds": odds,
            "false_positive_rate": alarms,
        }
        return {
            f"{name}_{kind}": value
            for name, values in compared.items()
            for kind, value in zip(("difference", "ratio"), values, strict=True)
        }


class GroupRates(GroupMetric):
    """The share of each kind of prediction in each group.

    A dict with an array of four numbers for each group, "group_0" and on: true positives, false
    positives, true negatives and false negatives, each divided by the examples of the group. A
    group without data has NaN. `GroupFairness` shares its statistic. As `BinaryGroupStatRates` of
    torchmetrics.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import GroupRates
        >>> preds, target = jnp.array([0.9, 0.8, 0.7, 0.2]), jnp.array([1, 0, 1, 1])
        >>> rates = GroupRates(num_groups=2).update(preds, target, jnp.array([0, 0, 1, 1]))
        >>> for name, value in rates.compute().items():
        ...     print(name, value)
        group_0 [0.5 0.5 0.  0. ]
        group_1 [0.5 0.  0.  0.5]
    """

    def compute(self) -> PyTree:
        c = self.statistic.by_group
        rates = stack([c.tp, c.fp, c.tn, c.fn]) / c.total[None]
        return {f"group_{i}": rates[:, i] for i in range(self.num_groups)}


_OF_ALARMS = np.array([False, True])
"""True for the false positive rate, of the two rates of equalized odds."""


def _extremes(part: DoubleFloat, whole: DoubleFloat) -> tuple[DoubleFloat, DoubleFloat]:
    """The difference and the ratio of the greatest and the least rate."""
    # The rate of a group without data is NaN, which is neither the greatest nor the least.
    rate = (part / whole).to_float()
    most = xp.argmax(xp.where(xp.isnan(rate), -xp.inf, rate))
    least = xp.argmin(xp.where(xp.isnan(rate), xp.inf, rate))
    # Products of two counts must not overflow.
    scale = power_of_two_near_reciprocal(xp.max(whole.high))
    part, whole = part * scale, whole * scale
    # a / n - b / m and (b / m) / (a / n), each as one quotient.
    greatest, lowest = part[most] * whole[least], part[least] * whole[most]
    return (greatest - lowest) / (whole[most] * whole[least]), lowest / greatest
