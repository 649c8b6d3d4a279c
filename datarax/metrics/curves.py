"""Curves and the areas under them, from a histogram of scores: no thresholds to choose."""

from typing import Any

import jax
import jax.numpy as jnp

from datarax import _numerics as nx
from datarax._checks import choice
from datarax.metrics._metric import Metric, check_policy
from datarax.statistics.score_histogram import ScoreHistogram

_AVERAGES = ("macro", "weighted", None)


class _Area(Metric):
    """What `AUROC` and `AveragePrecision` share: arguments, averaging, bounds."""

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        average: str | None = "macro",
        bits: int | None = None,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        choice(average, _AVERAGES, "average")
        self.average, self.on_invalid = average, check_policy(on_invalid)
        self.statistic = ScoreHistogram(
            num_classes=num_classes, num_labels=num_labels, bits=bits, ignore_index=ignore_index
        )

    def _value(self) -> jax.Array:
        return self._averaged(self._areas()[1])

    def bounds(self) -> tuple[jax.Array, jax.Array]:
        """`(lower, upper)`: certain to hold the exact value, to the rounding of a float.

        All that the histogram does not know is the order of scores within a bin; the bounds are
        the values of the worst and the best order. Shapes as from `compute`.
        """
        return _bounds(self)

    def _areas(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        raise TypeError(type(self).__name__)

    def _averaged(self, area: jax.Array) -> jax.Array:
        if self.statistic.size == 1 and self.statistic.num_labels is None:
            return area[0]
        if self.average is None:
            return area
        support = nx.pair_sum(self.statistic.positives)[0]
        weight = support if self.average == "weighted" else jnp.ones_like(area)
        some = ~jnp.isnan(area)
        zero = jnp.zeros((), area.dtype)
        weight = jnp.where(some, weight, zero)
        total = jnp.sum(weight)
        mean = jnp.sum(jnp.where(some, area, zero) * weight) / jnp.where(total > 0, total, 1)
        return jnp.where(total > 0, mean, jnp.asarray(jnp.nan, area.dtype))


@jax.jit
def _bounds(metric: _Area) -> tuple[jax.Array, jax.Array]:
    lower, _, upper = metric._areas()
    return metric._averaged(lower), metric._averaged(upper)


class AUROC(_Area):
    """The area under the receiver operating characteristic: P(score of a positive > a negative's).

    `update(preds, target, *, weights=None)`: scores are any floats, logits or probabilities;
    binary scores (...) and 0/1 targets (...); multiclass scores (..., C) and labels (...), one
    against the rest; multilabel (..., L) and (..., L). Ties count half. NaN without both a
    positive and a negative; classes without are left out of an average.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        average: "macro", "weighted" by positives, or `None` for one per class.
        bits: the resolution, see `datarax.statistics.ScoreHistogram`; memory is constant.
        ignore_index: a target that leaves its example out.
        on_invalid: as for `Accuracy`.

    The estimate credits half of the pairs within a bin; `bounds()` is certain.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import AUROC
        >>> metric = AUROC().update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(metric.compute())
        0.75
        >>> print([float(bound) for bound in metric.bounds()])
        [0.75, 0.75]
    """

    def _areas(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        pos, neg, pos_above, _ = self.statistic.cumulative()
        tie = self.statistic.is_tie
        pairs = nx.pair_product(_total(pos), _total(neg))
        # Pairs in which the positive is in a higher bin; and those that share a bin.
        won = nx.pair_sum(nx.pair_product(pos_above, neg))
        shared = nx.pair_product(pos, neg)
        zero = jnp.zeros((), pos[0].dtype)
        tied = nx.pair_sum(tuple(jnp.where(tie, x, zero) for x in shared))  # type: ignore[arg-type]
        open_ = nx.pair_sum(tuple(jnp.where(tie, zero, x) for x in shared))  # type: ignore[arg-type]
        half = jnp.asarray(0.5, zero.dtype)
        lower = nx.pair_add(won, (tied[0] * half, tied[1] * half))
        middle = nx.pair_add(lower, (open_[0] * half, open_[1] * half))
        upper = nx.pair_add(lower, open_)
        return tuple(nx.pair_divide(x, pairs) for x in (lower, middle, upper))  # type: ignore[return-value]


class AveragePrecision(_Area):
    """Average precision: the mean over positives of the precision at their score.

    As `sklearn.metrics.average_precision_score`: no interpolation, ties at one threshold.
    Arguments as for `AUROC`. NaN without a positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import AveragePrecision
        >>> metric = AveragePrecision()
        >>> metric = metric.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.8333
    """

    def _areas(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        pos, neg, pos_above, neg_above = self.statistic.cumulative()
        tie = self.statistic.is_tie
        p, n, before, false = pos[0], neg[0], pos_above[0], neg_above[0]
        after = false + n

        def precision(true: jax.Array, wrong: jax.Array) -> jax.Array:
            return true / jnp.where(true + wrong > 0, true + wrong, jnp.ones((), true.dtype))

        def spread(wrong: jax.Array) -> jax.Array:
            # The positives of the bin one by one, with so many negatives before them all: the
            # sum of (before + i) / (before + i + wrong), as an integral from below.
            base = jnp.where(before + wrong > 0, before + wrong, jnp.ones((), p.dtype))
            return p - jnp.where(before + wrong > 0, wrong * jnp.log1p(p / base), 0)

        exact = p * precision(before + p, after)
        lower = jnp.where(tie, exact, spread(after))
        upper = jnp.where(tie, exact, p * precision(before + p, false))
        middle = jnp.where(tie, exact, (spread(after) + spread(false)) / 2)
        total = _total(pos)
        zero = jnp.zeros_like(p)
        sums = (nx.pair_sum((x, zero)) for x in (lower, middle, upper))
        return tuple(nx.pair_divide(s, total) for s in sums)  # type: ignore[return-value]


def _total(counts: Any) -> nx.Pair:
    return nx.pair_sum(counts)
