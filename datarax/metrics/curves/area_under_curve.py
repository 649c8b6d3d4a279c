"""Areas under curves of scores, with bounds on the exact value."""

import math
from dataclasses import replace
from typing import Literal, NamedTuple

import jax
import numpy as np

from datarax._checks import as_float, resolve_average
from datarax._errors import MetricInputError
from datarax._typing import PyTree, TaskAverage
from datarax._xp import xp
from datarax.algebra.fields import field, state
from datarax.algebra.memo import computed_once
from datarax.distributed.placement import outside_mesh
from datarax.metric.base import bounds_of
from datarax.metric.reading import Bounds
from datarax.metric.sampling import Sampling
from datarax.metric.unusable import Undefined
from datarax.metrics.curves.area_variance import AreaSampling, Influences
from datarax.metrics.curves.score_metric import (
    MOST_UNORDERED,
    ScoreMetric,
    fraction,
    share_among_highest,
)
from datarax.numerics.double_float import DoubleFloat, stack, where
from datarax.numerics.float_grid import default_bits
from datarax.numerics.scaling import nan_where, power_of_two_near_reciprocal, weighted_mean
from datarax.numerics.special import x_minus_log1p
from datarax.statistics.adaptive_bins import AdaptiveBins
from datarax.statistics.scores import LOG_ODDS_OCTAVES, Groups, ScoreBuffer, Scores, sums_above


class OrderedPairs(NamedTuple):
    """Pairs of an example of a class c (column) and one of a class t (row), each of shape (C, C).

    All weights are scaled by one power of two.
    """

    ordered: DoubleFloat
    """The weight of the pairs in which the score for c of the example of c is in a higher bin."""
    tied: DoubleFloat
    """The weight of the pairs whose scores for c are known to be equal."""
    unknown: DoubleFloat
    """The weight of the pairs whose scores for c are in one bin, and may differ."""
    totals: DoubleFloat
    """The weight of the examples of each class, (C,)."""


class ScoreTable(Scores):
    """For each pair of classes, the scores for one of them of the examples of the other.

    As `ScoreHistogram`, with a histogram for each target class in place of those of positives and
    negatives. So it has `num_classes**2 * 2**bits` cells of 12 bytes.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.curves.area_under_curve import ScoreTable
        >>> seen = ScoreTable(num_classes=2).update(jnp.eye(2), jnp.array([0, 1]))
        >>> print(seen.pairs().ordered.to_float() / seen.pairs().ordered.to_float().max())
        [[0. 1.]
         [1. 0.]]
    """

    bits: int | None = None
    """There are `2**bits` bins for each pair of classes, from 10 to 22 bits. `None` gives 14 bits
    for up to 4 classes, 12 for up to 16, otherwise 10."""

    bins: AdaptiveBins = state()
    """The weights of the scores for each class, with a row for each target."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits is None:
            self.bits = default_bits(self.size * self.size)
        octaves, mirrored = (LOG_ODDS_OCTAVES, 0) if self.from_logits else (20, 20)
        self.bins = AdaptiveBins(
            size=self.size,
            rows=self.size,
            bits=self.bits,
            octaves=octaves,
            mirrored=mirrored,
            keeps_digits=True,
        )

    def plus_rows(self, scores: jax.Array, positive: jax.Array, w: jax.Array) -> dict[str, PyTree]:
        w = w if w.dtype == xp.bool_ else as_float(w)
        target = xp.argmax(positive, -1).astype(xp.int32)[:, None]
        return {"bins": self.bins.plus_rows(scores, w, target)}

    @computed_once
    def pairs(self) -> OrderedPairs:
        """The pairs of examples, by how their scores are ordered."""
        seen = self.bins.contents()
        # Before they are summed, so that no sum overflows.
        others = seen.weights * power_of_two_near_reciprocal(xp.max(seen.weights.high))
        totals = others[:, 0].sum(-1)
        index = xp.arange(self.size, dtype=xp.uint32)
        own = others.map(lambda x: x[index, index])[None]
        tied, unknown = (
            own.map(lambda x, mask=mask: xp.where(mask[None], x, 0))
            for mask in (seen.is_tie, ~seen.is_tie)
        )
        above, tied, unknown = (
            (others * each).sum(-1) for each in (sums_above(own), tied, unknown)
        )
        return OrderedPairs(above, tied, unknown, totals)

    def groups(self) -> Groups:
        raise TypeError("a ScoreTable has no positives; see `pairs`")


class AreaMetric(ScoreMetric):
    """An area under a curve of scores, averaged over classes. A subclass defines `areas`.

    A histogram does not keep the order of the scores within a bin. `compute` gives an estimate for
    this order. `bounds` gives the values of the worst and of the best order.
    """

    hidden_names = frozenset({"area_by_class", "areas", "is_pooled", "support"})
    higher_is_better = True
    average: TaskAverage = field(default="auto", means="macro")
    """"macro": the mean over the classes. "weighted": the mean weighted by the positives of each
    class. `None`: one value per class. Classes whose value is NaN are left out of an average.
    "micro": the value of one binary task, in which each class of an example is an example. "auto"
    is "macro". A binary task has one value, of the positive class, and an average is an error."""

    value_range = (0.0, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.average = self._resolved_average()

    def _resolved_average(self) -> TaskAverage:
        return resolve_average(self, self.is_binary, "in a binary task, which has one value")

    def areas(self, groups: Groups) -> DoubleFloat:
        """The lower bound, the estimate and the upper bound by class, of shape (3, size)."""
        raise TypeError(f"{type(self).__name__} does not define areas()")

    def area_by_class(self) -> DoubleFloat:
        """The estimate of each area, of shape (size,)."""
        return self._areas()[1]

    def compute(self) -> PyTree:
        return self._averaged(self.area_by_class())

    @outside_mesh
    def bounds(self) -> tuple[jax.Array, jax.Array]:
        """Bounds `(lower, upper)` on the exact value, up to the rounding of a float.

        The exact value is that of the scores as they were given: on the host also of float64.
        Both are equal if each bin holds one distinct score, and with `exact=True`. If some examples
        did not fit into the buffer of `exact=True`, the bounds are those of `value_range`. The
        shapes are those of `compute`, and so is the effect of `on_invalid`.
        """
        return bounds_of(self)

    def value_and_bounds(self) -> tuple[PyTree, Bounds]:
        value = super().value_and_bounds()[0]
        lower, upper = (self._averaged(self._areas()[i]) for i in (0, 2))
        # Bounds of a full buffer are the extremes, and there is a warning of its own.
        remedy = "more bits= narrows this, and exact=True with capacity= keeps the scores"
        bounds = Bounds(lower, upper, None if self.exact else MOST_UNORDERED, remedy)
        if not isinstance(self.statistic, ScoreBuffer):
            return value, bounds
        # Numbers beyond the range of float32 are not told apart.
        bounds = bounds.rounded_where(np.less)
        is_incomplete, (least, greatest) = self.statistic.overflow > 0, self.value_range
        return value, replace(
            bounds,
            lower=xp.where(is_incomplete, least, lower),
            upper=xp.where(is_incomplete, greatest, upper),
        )

    def undefined_parts(self) -> Undefined | None:
        return None  # bounds say more

    @property
    def is_pooled(self) -> bool:
        return self.average == "micro" and not self.is_binary

    def support(self) -> jax.Array:
        """The weight of each value in the average that is "weighted"."""
        return self.groups().total_positives.to_float()[:, 0]

    @computed_once
    def _areas(self) -> DoubleFloat:
        return self.areas(self.groups())

    def _averaged(self, area: DoubleFloat) -> jax.Array:
        # A rounding error must not put a perfect value above 1.
        value = xp.clip(area.to_float(), *self.value_range)
        if self.is_binary or self.is_pooled:
            return value[0]
        if self.average is None:
            return value
        weights = xp.ones_like(value) if self.average == "macro" else self.support()
        return weighted_mean(value, weights)


def _ordered_pairs(groups: Groups, max_fpr: float = 1.0) -> DoubleFloat:
    """The weight of the pairs in which the positive has the higher score, of shape (3, size).

    Pairs are of a positive and a negative; a tie counts half. The first axis has the least value,
    the estimate and the greatest value: none, half or all of the pairs within a bin are ordered.
    With `max_fpr`, only this fraction of the negatives counts: those with the highest scores.
    """
    negatives, share = groups.negatives, None
    if max_fpr < 1:
        share = share_among_highest(negatives, groups.negatives_above, max_fpr)
        negatives = negatives * share
    with_lower_bins = groups.positives_above * negatives
    within_bin, tie = groups.positives * negatives, groups.is_tie
    # If `max_fpr` cuts a bin, the curve is a straight line within the bin: up to the cut, the
    # positives that are found rise from 0 to `share` of the bin, and are half of that on average.
    half = within_bin * 0.5 if share is None else within_bin * share * 0.5
    # The three cases are one array, because that is less to compile.
    cases = [half.map(lambda x: xp.where(tie, x, 0)), half, where(tie, half, within_bin)]
    return (stack(cases) + with_lower_bins[None]).sum()


def _total_pairs(groups: Groups) -> DoubleFloat:
    """The weight of pairs of a positive and a negative, of shape (1, size)."""
    return (groups.total_positives * groups.total_negatives).reshape(1, -1)


class DelongSampling(AreaSampling):
    """The standard error of `AUROC`, which is that of DeLong."""

    method = "delong"
    constant = (
        "all pairs of a positive and a negative are ordered alike (the classes are separated, or "
        "all scores are equal), so there is no standard error"
    )

    def influences(self) -> Influences:
        """What each example adds.

        With V(x) the share of the negatives below a positive, and of the positives above a
        negative, where ties count half, the variance is `var(V of positives) / m +
        var(V of negatives) / n`, of m positives and n negatives. E. R. DeLong et al. (1988),
        https://doi.org/10.2307/2531595.
        """
        groups = self.metric.groups()
        p, n = groups.positives, groups.negatives
        all_p, all_n = groups.total_positives, groups.total_negatives
        below = all_n - groups.negatives_above - n
        area = _ordered_pairs(groups)[1].reshape(-1, 1) / (all_p * all_n)
        of_positives = (below + n * 0.5) / all_n - area
        of_negatives = (groups.positives_above + p * 0.5) / all_p - area
        return Influences(of_positives, of_negatives)


class GiniSampling(DelongSampling):
    """The standard error of `Gini`, which is twice that of `AUROC`."""

    def influences(self) -> Influences:
        return super().influences() * 2


class PrecisionSampling(AreaSampling):
    """The standard error of `AveragePrecision`."""

    def influences(self) -> Influences:
        """What each example adds.

        With T and F the positives and negatives that score at least as high as a positive i, its
        precision is T / (T + F). Another positive j adds its own precision, and raises that of each
        positive i that does not score higher by F / (T + F)**2; a negative lowers it by
        T / (T + F)**2.
        """
        groups = self.metric.groups()
        p, all_p, all_n = groups.positives, groups.total_positives, groups.total_negatives
        found, false = groups.true_positives, groups.false_positives
        all_found = found + false
        safe = where(all_found.high > 0, all_found, DoubleFloat.of(1, all_found.dtype))
        precision = found / safe

        def up_to(terms: DoubleFloat) -> DoubleFloat:
            """The sum over this group and all lower ones."""
            total = terms.sum((-1,)).reshape(-1, 1)
            return total - sums_above(terms)

        area = self.metric.area_by_class().reshape(-1, 1)
        of_positives = precision + up_to(p * false / safe / safe) - area
        of_negatives = up_to(p * found / safe / safe) * -1
        # Per share of the weight of the negatives.
        of_negatives = of_negatives * all_n / all_p
        return Influences(of_positives, of_negatives)


class AUROC(AreaMetric):
    """The area under the ROC curve: the probability that a positive scores above a negative.

    P(score of a positive > score of a negative); ties count half. NaN without a positive or without
    a negative. As `sklearn.metrics.roc_auc_score`; but an average leaves out classes whose value is
    NaN, where scikit-learn gives NaN or raises. J. A. Hanley and B. J. McNeil (1982),
    https://doi.org/10.1148/radiology.143.1.7063747.

    `compute` estimates that half of the pairs within a bin are ordered. `bounds()` are certain.

    With `multi_class="ovo"`, the mean over all pairs of classes: of their examples alone, the mean
    of the two areas with either class as the positive one. D. J. Hand and R. J. Till (2001),
    https://doi.org/10.1023/A:1010920819831.

    Raises:
        MetricInputError: `max_fpr` is not above 0 and at most 1; or "ovo" for another task than a
            multiclass one, another average than "macro" and "weighted", with `max_fpr` or `exact`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import AUROC
        >>> metric = AUROC().update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(metric.compute())
        0.75
        >>> print([float(bound) for bound in metric.bounds()])
        [0.75, 0.75]
    """

    max_fpr: float | None = None
    """If given, the area up to this false positive rate, standardised: 0.5 for random scores, and 1
    at best. D. K. McClish (1989), https://doi.org/10.1177/0272989X8900900307. As in scikit-learn,
    but for each class too."""
    multi_class: Literal["ovr", "ovo"] = "ovr"
    """Multiclass: each class against the rest ("ovr"), or against each other class ("ovo"). The
    state of "ovo" grows with the square of the number of classes: `ScoreTable` says how. Its
    "weighted" average is by the weight of both classes."""

    def __post_init__(self) -> None:
        if self.multi_class == "ovo":
            self.average = self._resolved_average()
            self._check_pairs()
            self.statistic = ScoreTable.from_fields(self)
            return
        super().__post_init__()
        if self.max_fpr is not None:
            self.max_fpr = fraction(self.max_fpr, "max_fpr", above=0)

    def _check_pairs(self) -> None:
        wanted = {"exact": False, "capacity": None, "max_fpr": None}
        if self.num_classes is None or self.average not in ("macro", "weighted"):
            raise MetricInputError(
                f'multi_class="ovo" with num_classes={self.num_classes!r} and '
                f'average={self.average!r}; expected num_classes=, and "macro" or "weighted"'
            )
        for name, value in wanted.items():
            if getattr(self, name) != value:
                raise MetricInputError(
                    f'multi_class="ovo" with {name}={getattr(self, name)!r}; leave {name}= out'
                )

    @computed_once
    def _areas(self) -> DoubleFloat:
        if not isinstance(self.statistic, ScoreTable):
            return self.areas(self.groups())
        pairs = self.statistic.pairs()
        least = pairs.ordered + pairs.tied * 0.5
        # Lower bound, estimate and upper bound: pairs in one bin count as 0, 1/2 and 1.
        ordered = stack([least, least + pairs.unknown * 0.5, least + pairs.unknown])
        area = ordered / (pairs.totals[:, None] * pairs.totals[None, :])[None]
        both = (area + area.map(lambda x: xp.swapaxes(x, -1, -2))) * 0.5
        first, second = self._class_pairs
        return both.map(lambda x: x[:, first, second])

    @property
    def _class_pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """The first and the second class of all pairs."""
        return np.triu_indices(self.statistic.size, 1)

    def support(self) -> jax.Array:
        if not isinstance(self.statistic, ScoreTable):
            return super().support()
        totals, (first, second) = self.statistic.pairs().totals.to_float(), self._class_pairs
        return totals[first] + totals[second]

    def areas(self, groups: Groups) -> DoubleFloat:
        max_fpr = 1.0 if self.max_fpr is None else self.max_fpr
        area = _ordered_pairs(groups, max_fpr) / _total_pairs(groups)
        if max_fpr == 1:
            return area
        # The area of random scores, a triangle. The area runs from `chance` to `max_fpr`.
        chance = max_fpr * max_fpr / 2
        return ((area - chance) / (max_fpr - chance) + 1) * 0.5

    def sampling(self) -> Sampling:
        has_formula = self.max_fpr in (None, 1) and not isinstance(self.statistic, ScoreTable)
        return DelongSampling(self) if has_formula else super().sampling()


class Gini(AreaMetric):
    """The Gini coefficient of a classifier (Somers' D): twice the AUROC, minus one.

    1 if all positives score above all negatives, 0 for random scores, -1 if all positives score
    below. NaN without a positive or without a negative. As `2 * sklearn.metrics.roc_auc_score - 1`.
    R. H. Somers (1962), https://doi.org/10.2307/2090408.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Gini
        >>> metric = Gini().update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(metric.compute())
        0.5
    """

    value_range = (-1.0, 1.0)

    def areas(self, groups: Groups) -> DoubleFloat:
        pairs = _total_pairs(groups)
        # One quotient, which is rounded once: near 0, `2 * auroc - 1` would lose digits.
        return (_ordered_pairs(groups) * 2 - pairs) / pairs

    def sampling(self) -> Sampling:
        return GiniSampling(self)


class AveragePrecision(AreaMetric):
    """Average precision: the mean over the positives of the precision at their score.

    There is no interpolation, and tied scores share one threshold. NaN without a positive, where
    scikit-learn gives 0; such classes are left out of an average. As
    `sklearn.metrics.average_precision_score`.

    `compute` estimates that positives and negatives mix evenly within a bin. `bounds()` are
    certain.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import AveragePrecision
        >>> metric = AveragePrecision()
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.8333
    """

    def sampling(self) -> Sampling:
        return PrecisionSampling(self)

    def areas(self, groups: Groups) -> DoubleFloat:
        p, n = groups.positives.to_float(), groups.negatives.to_float()
        tp, fp = groups.positives_above.to_float(), groups.negatives_above.to_float()

        def at_one_threshold(fp: jax.Array) -> jax.Array:
            # The sum over the positives of the bin of their precision: (tp + p) / (tp + p + fp).
            found = tp + p
            return p * (found / xp.where(found + fp > 0, found + fp, 1))

        def in_turn(fp: jax.Array, pace: jax.Array, start: jax.Array | float) -> jax.Array:
            # The same sum if the positives of the bin come one after the other, as an integral:
            # that of (b + x) / (b + fp + pace x) over x from 0 to p, with b = tp + start. Among the
            # first x positives there are (pace - 1) x negatives of the bin.
            right = tp + start
            some = right + fp > 0
            base = xp.where(some, right + fp, 1)
            z = pace * p / base
            area = right / pace * xp.log1p(z) + base / (pace * pace) * x_minus_log1p(z)
            return xp.where(some, area, p)

        tied, most = at_one_threshold(fp + n), at_one_threshold(fp)
        # The worst order: all negatives of the bin come first, and its positives are many, each of
        # small weight. The best order: all positives come first, with one score.
        least = in_turn(fp + n, xp.ones_like(p), 0.0)
        # The estimate: both mix evenly, and each positive has the weight `step`, the least weight
        # of positives in a bin. The precision at a positive counts the positive itself, so by the
        # midpoint rule the sum over the positives is an integral that starts half a step later.
        step = xp.min(xp.where(p > 0, p, xp.inf), -1, keepdims=True)
        step = xp.where(p > 0, step, 1)
        pace = 1 + n / (p + step)
        estimate = in_turn(fp + pace * step / 2 - step / 2, pace, step / 2)
        estimate = xp.clip(estimate, least, most)
        cases = [xp.where(groups.is_tie, tied, x) for x in (least, estimate, most)]
        return DoubleFloat.of(xp.stack(cases)).sum() / groups.total_positives.reshape(1, -1)


class LogAUC(AreaMetric):
    """The area under the ROC curve over the logarithm of the false positive rate.

    (integral of TPR d log FPR from low to high) / log(high / low): each decade of the FPR has the
    same weight, so the positives with the highest scores matter most. NaN without a positive or
    without a negative. Between two thresholds the ROC curve is a straight line, and the integral is
    exact: M. M. Mysinger and B. K. Shoichet (2010), https://doi.org/10.1021/ci100214a. Other
    libraries, such as torchmetrics, draw straight lines over log FPR. They give another value if
    there are few negatives.

    Raises:
        MetricInputError: `fpr_range` is not two ascending numbers above 0 and at most 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import LogAUC
        >>> metric = LogAUC(fpr_range=(0.1, 1.0))
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.6505
    """

    fpr_range: tuple[float, float] = (0.001, 0.1)
    """`(low, high)`: the false positive rates between which to integrate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.fpr_range, tuple | list) or len(self.fpr_range) != 2:
            raise MetricInputError(f"fpr_range={self.fpr_range!r}; expected (low, high)")
        high = fraction(self.fpr_range[1], "the end of fpr_range", above=0)
        low = fraction(self.fpr_range[0], "the start of fpr_range", above=0, below=high)
        self.fpr_range = low, high

    def areas(self, groups: Groups) -> DoubleFloat:
        p, n = groups.positives.to_float(), groups.negatives.to_float()
        tp, tie = groups.positives_above.to_float(), groups.is_tie
        low, high = (groups.total_negatives * rate for rate in self.fpr_range)
        # The false positives x of each group run from `before` to `after`. The part within the
        # range runs from `start` to `start + within`.
        before, after = groups.negatives_above, groups.false_positives
        start, end = where(before >= low, before, low), where(after <= high, after, high)
        within = xp.maximum((end - start).to_float(), 0)
        some, first = within > 0, start.to_float()
        z = xp.where(some, within / xp.where(some, first, 1), 0)
        log = xp.log1p(z)  # log(end / start), the length of the part in log FPR
        # The integral of (tp + slope (x - before)) / x over x from `start` to `end`.
        slope = p / xp.where(n > 0, n, 1)
        skipped = xp.maximum((start - before).to_float(), 0)
        least = tp * log
        straight = least + slope * (skipped * log + first * x_minus_log1p(z))
        # The worst curve within a bin is flat at `tp`: all negatives come first. The best is flat
        # at `tp + p`: all positives come first. The curve of a tie is a straight line.
        cases = [
            xp.where(tie, straight, least),
            straight,
            xp.where(tie, straight, least + p * log),
        ]
        span = math.log(self.fpr_range[1] / self.fpr_range[0])
        scale = (groups.total_positives * span).reshape(1, -1)
        area = DoubleFloat.of(xp.stack(cases)).sum() / scale
        no_negatives = (groups.total_negatives.high == 0).reshape(1, -1)
        return area.map(lambda x: nan_where(no_negatives, x))
