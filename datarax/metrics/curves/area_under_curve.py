"""Areas under curves, from a histogram of scores: no thresholds to choose, and bounds."""

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import choice
from datarax._errors import MetricInputError
from datarax.metrics.curves.score_metric import (
    ScoredMetric,
    among_highest,
    excess,
    minus,
    number_from,
    spread,
)
from datarax.statistics.score_buffer import ScoreBuffer
from datarax.statistics.scores import Groups

_AVERAGES = ("macro", "weighted", None)


class _Area(ScoredMetric):
    """What areas share: averages, and bounds."""

    _range = (0.0, 1.0)

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        average: str | None = "macro",
        bits: int | None = None,
        exact: bool = False,
        capacity: int | None = None,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        choice(average, _AVERAGES, "average")
        self.average = average
        super().__init__(
            num_classes=num_classes,
            num_labels=num_labels,
            bits=bits,
            exact=exact,
            capacity=capacity,
            ignore_index=ignore_index,
            on_invalid=on_invalid,
        )

    def compute(self) -> jax.Array:
        groups = self._groups()
        return self._averaged(self._areas(groups)[1], groups)

    def bounds(self) -> tuple[jax.Array, jax.Array]:
        """`(lower, upper)`: certain to hold the exact value, to the rounding of a float.

        All that the histogram does not know is the order of scores within a bin; the bounds are
        the values of the worst and the best order. With `exact=True` they are the value twice,
        or, once examples did not fit, the least and the greatest value that there is. Shapes as
        from `compute`.
        """
        return _bounds(self)

    def _areas(self, groups: Groups) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The least, the estimated and the greatest value, by class."""
        raise TypeError(type(self).__name__)

    def _averaged(self, area: jax.Array, groups: Groups) -> jax.Array:
        if self.average is None or area.shape == (1,):
            return self._by_task(area)
        support = groups.totals[0][0]
        weight = support if self.average == "weighted" else jnp.ones_like(area)
        some, zero = ~jnp.isnan(area), jnp.zeros((), area.dtype)
        weight = jnp.where(some, weight, zero)
        total = jnp.sum(weight)
        mean = jnp.sum(jnp.where(some, area, zero) * weight) / jnp.where(total > 0, total, 1)
        return jnp.where(total > 0, mean, jnp.asarray(jnp.nan, area.dtype))


@jax.jit
def _bounds(metric: _Area) -> tuple[jax.Array, jax.Array]:
    groups = metric._groups()
    areas = metric._areas(groups)
    lower, upper = (metric._averaged(areas[i], groups) for i in (0, 2))
    if isinstance(metric.statistic, ScoreBuffer):
        lost = metric.statistic.overflow > 0
        least, greatest = (jnp.asarray(x, lower.dtype) for x in metric._range)
        return jnp.where(lost, least, lower), jnp.where(lost, greatest, upper)
    return lower, upper


def _pairs_won(groups: Groups, max_fpr: float = 1.0) -> tuple[nx.Pair, nx.Pair, nx.Pair]:
    """Pairs in which the positive has the higher score, at least, about and at most.

    Ties count half. Counted are the negatives of the highest scores, a fraction `max_fpr`.
    """
    pos, neg, above = groups.positives, groups.negatives, groups.positives_above
    part, share = neg, jnp.ones_like(neg[0])
    if max_fpr < 1:
        part, share = among_highest(neg, groups.negatives_above, groups.totals[1], max_fpr)
    # Against negatives of lower bins; and within the bin, where ties win half.
    won, shared = nx.pair_product(above, part), nx.pair_product(pos, part)
    half = nx.pair_scale(shared, share / 2)
    tie, zero = groups.is_tie, jnp.zeros((), pos[0].dtype)
    cases = (
        jnp.stack([jnp.where(tie, x, zero), x, jnp.where(tie, x, y)])
        for x, y in zip(half, shared, strict=True)
    )
    # All three at once, which is less to compile.
    high, low = nx.pair_sum(nx.pair_add(_thrice(won), tuple(cases)))  # type: ignore[arg-type]
    return (high[0], low[0]), (high[1], low[1]), (high[2], low[2])


def _thrice(a: nx.Pair) -> nx.Pair:
    """The same for the least, the estimate and the greatest."""
    shape = (3, *a[0].shape)
    return jnp.broadcast_to(a[0][None], shape), jnp.broadcast_to(a[1][None], shape)


def _ratios(sums: jax.Array, total: nx.Pair) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Three sums over the groups of floats, each over the total."""
    least, about, most = nx.pair_divide(nx.pair_sum((sums, jnp.zeros_like(sums))), _thrice(total))
    return least, about, most


class AUROC(_Area):
    """The area under the receiver operating characteristic: P(score of a positive > a negative's).

    `update(preds, target, *, weights=None)`: scores are any floats, logits or probabilities;
    binary scores (...) and 0/1 targets (...); multiclass scores (..., C) and labels (...), one
    against the rest; multilabel (..., L) and (..., L). Ties count half. NaN without both a
    positive and a negative; classes without are left out of an average, where
    `sklearn.metrics.roc_auc_score` gives NaN or refuses.

    Memory is constant, and no range or thresholds are asked for. The estimate credits half of the
    pairs within a bin; `bounds()` is certain.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        average: "macro", "weighted" by positives, or `None` for one per class.
        max_fpr: the area up to this false positive rate only, standardised so that chance is 0.5
            and the best is 1, after McClish, https://doi.org/10.1177/0272989X8900900307; as
            scikit-learn, but by class too.
        bits: the resolution, see `datarax.statistics.ScoreHistogram`; memory is constant.
        exact: keep the scores themselves, up to `capacity`, and give the exact value by sorting.
        capacity: with `exact`, how many examples to keep; those that do not fit count as invalid.
        ignore_index: a target that leaves its example out.
        on_invalid: as for `Accuracy`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import AUROC
        >>> metric = AUROC().update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(metric.compute())
        0.75
        >>> print([float(bound) for bound in metric.bounds()])
        [0.75, 0.75]
    """

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        average: str | None = "macro",
        max_fpr: float | None = None,
        bits: int | None = None,
        exact: bool = False,
        capacity: int | None = None,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        self.max_fpr = None if max_fpr is None else number_from(max_fpr, "max_fpr", above=0)
        super().__init__(
            num_classes=num_classes,
            num_labels=num_labels,
            average=average,
            bits=bits,
            exact=exact,
            capacity=capacity,
            ignore_index=ignore_index,
            on_invalid=on_invalid,
        )

    def _areas(self, groups: Groups) -> tuple[jax.Array, jax.Array, jax.Array]:
        pairs = nx.pair_product(*groups.totals)
        part = 1.0 if self.max_fpr is None else self.max_fpr
        won = _pairs_won(groups, part)
        least, about, most = (nx.pair_divide(x, pairs) for x in won)
        if part == 1:
            return least, about, most
        chance = part * part / 2
        return tuple(  # type: ignore[return-value]
            0.5 * (1 + (x - chance) / (part - chance)) for x in (least, about, most)
        )


class Gini(_Area):
    """The Gini coefficient of a classifier (Somers' D): twice the AUROC, less one.

    `update(preds, target, *, weights=None)` as for `AUROC`. 1 where all positives have higher
    scores than all negatives, 0 for chance, -1 the other way round. NaN without both a positive
    and a negative.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        average: "macro", "weighted" by positives, or `None` for one per class.
        bits: the resolution, see `datarax.statistics.ScoreHistogram`.
        exact: keep the scores themselves, up to `capacity`.
        capacity: with `exact`, how many examples to keep.
        ignore_index: a target that leaves its example out.
        on_invalid: as for `Accuracy`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Gini
        >>> metric = Gini().update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(metric.compute())
        0.5
    """

    _range = (-1.0, 1.0)

    def _areas(self, groups: Groups) -> tuple[jax.Array, jax.Array, jax.Array]:
        pairs = nx.pair_product(*groups.totals)

        def less_lost(won: nx.Pair) -> jax.Array:
            twice = nx.pair_add((2 * won[0], 2 * won[1]), minus(pairs))
            return nx.pair_divide(twice, pairs)

        return tuple(map(less_lost, _pairs_won(groups)))  # type: ignore[return-value]


class AveragePrecision(_Area):
    """Average precision: the mean over positives of the precision at their score.

    `update(preds, target, *, weights=None)` as for `AUROC`. As
    `sklearn.metrics.average_precision_score`: no interpolation, ties at one threshold. NaN
    without a positive, where scikit-learn gives 0; such classes are left out of an average.

    The estimate has positives and negatives evenly mixed within a bin; `bounds()` is certain.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        average: "macro", "weighted" by positives, or `None` for one per class.
        bits: the resolution, see `datarax.statistics.ScoreHistogram`.
        exact: keep the scores themselves, up to `capacity`, and give the exact value by sorting.
        capacity: with `exact`, how many examples to keep; those that do not fit count as invalid.
        ignore_index: a target that leaves its example out.
        on_invalid: as for `Accuracy`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import AveragePrecision
        >>> metric = AveragePrecision()
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.8333
    """

    def _areas(self, groups: Groups) -> tuple[jax.Array, jax.Array, jax.Array]:
        p, n = groups.positives[0], groups.negatives[0]
        before, wrong, tie = groups.positives_above[0], groups.negatives_above[0], groups.is_tie
        zero, one, infinity = (jnp.asarray(x, p.dtype) for x in (0, 1, jnp.inf))

        def together(wrong: jax.Array) -> jax.Array:
            # All positives of the bin at one threshold, with so many negatives.
            found = before + p
            return p * (found / jnp.where(found + wrong > 0, found + wrong, one))

        def in_turn(wrong: jax.Array, pace: jax.Array, start: jax.Array) -> jax.Array:
            # The integral over x from 0 to p of (b + x) / (b + wrong + pace x), b = before + start.
            right = before + start
            base = jnp.where(right + wrong > 0, right + wrong, one)
            z = pace * p / base
            area = right / pace * jnp.log1p(z) + base / (pace * pace) * excess(z)
            return jnp.where(right + wrong > 0, area, p)

        exact, most = together(wrong + n), together(wrong)
        # At worst all negatives come first, and the weights of the positives are many and small.
        least = in_turn(wrong + n, one, zero)
        # About: both mix evenly, and each positive has the least weight seen, which it counts
        # itself: the midpoint rule makes the sum over them an integral.
        step = jnp.min(jnp.where(p > 0, p, infinity), -1, keepdims=True)
        step = jnp.where(p > 0, step, one)
        pace = one + n / (p + step)
        about = in_turn(wrong + pace * step / 2 - step / 2, pace, step / 2)
        about = jnp.clip(about, least, most)
        cases = jnp.stack([jnp.where(tie, exact, x) for x in (least, about, most)])
        return _ratios(cases, groups.totals[0])


class LogAUC(_Area):
    """The area under the ROC curve over the logarithm of the false positive rate.

    `(integral of TPR d log FPR from low to high) / log(high / low)`, so that early retrieval
    counts: each decade of the rate weighs the same. `update(preds, target, *, weights=None)` as
    for `AUROC`. Between two thresholds the curve is straight in the rates themselves, and the
    integral is exact (Mysinger and Shoichet 2010, https://doi.org/10.1021/ci100214a); where others
    draw straight lines over the logarithm, as torchmetrics, few negatives give another number.
    NaN without both a positive and a negative.

    Args:
        fpr_range: `(low, high)`, the false positive rates between which to integrate.
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        average: "macro", "weighted" by positives, or `None` for one per class.
        bits: the resolution, see `datarax.statistics.ScoreHistogram`.
        exact: keep the scores themselves, up to `capacity`.
        capacity: with `exact`, how many examples to keep.
        ignore_index: a target that leaves its example out.
        on_invalid: as for `Accuracy`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import LogAUC
        >>> metric = LogAUC(fpr_range=(0.1, 1.0))
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.6505
    """

    def __init__(
        self,
        *,
        fpr_range: tuple[float, float] = (0.001, 0.1),
        num_classes: int | None = None,
        num_labels: int | None = None,
        average: str | None = "macro",
        bits: int | None = None,
        exact: bool = False,
        capacity: int | None = None,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        if not isinstance(fpr_range, tuple | list) or len(fpr_range) != 2:
            raise MetricInputError(f"fpr_range={fpr_range!r}; expected (low, high)")
        high = number_from(fpr_range[1], "the end of fpr_range", above=0)
        low = number_from(fpr_range[0], "the start of fpr_range", above=0, below=high)
        self.fpr_range = low, high
        super().__init__(
            num_classes=num_classes,
            num_labels=num_labels,
            average=average,
            bits=bits,
            exact=exact,
            capacity=capacity,
            ignore_index=ignore_index,
            on_invalid=on_invalid,
        )

    def _areas(self, groups: Groups) -> tuple[jax.Array, jax.Array, jax.Array]:
        pos, neg, tie = groups.positives[0], groups.negatives, groups.is_tie
        before, false, (positives, negatives) = (
            groups.positives_above[0], groups.negatives_above, groups.totals
        )  # fmt: skip
        low, high = (
            spread(nx.pair_scale(negatives, jnp.full_like(negatives[0], rate)), pos.shape)
            for rate in self.fpr_range
        )
        # The negatives of the group that lie in the range, from `start` over a width of `part`.
        start = _larger(false, low)
        end = minus(_larger(minus(groups.false), minus(high)))
        zero = jnp.zeros((), pos.dtype)
        part = jnp.maximum(nx.pair_add(end, minus(start))[0], zero)
        inside = part > 0
        z = jnp.where(inside, part / jnp.where(inside, start[0], jnp.ones_like(pos)), zero)
        log = jnp.log1p(z)
        slope = pos / jnp.where(neg[0] > 0, neg[0], jnp.ones_like(pos))
        skipped = jnp.maximum(nx.pair_add(start, minus(false))[0], zero)
        least = before * log
        straight = least + slope * (skipped * log + start[0] * excess(z))
        most = jnp.where(tie, straight, least + pos * log)
        span = jnp.log(jnp.asarray(self.fpr_range[1] / self.fpr_range[0], pos.dtype))
        scale = nx.pair_scale(positives, jnp.broadcast_to(span, positives[0].shape))
        none = negatives[0] == 0

        cases = jnp.stack([jnp.where(tie, straight, least), straight, most])
        return tuple(  # type: ignore[return-value]
            jnp.where(none, jnp.asarray(jnp.nan, x.dtype), x) for x in _ratios(cases, scale)
        )


def _larger(a: nx.Pair, b: nx.Pair) -> nx.Pair:
    first = nx.pair_add(a, minus(b))[0] >= 0
    return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])
