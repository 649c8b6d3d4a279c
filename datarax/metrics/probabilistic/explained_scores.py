"""D2: which share of a score of the class frequencies the predicted probabilities explain."""

from typing import ClassVar, Self

import jax
import numpy as np

from datarax._typing import PyTree
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.metrics.probabilistic.mean_score import ProbabilityScore
from datarax.metrics.probabilistic.probability_losses import BrierScore, LogLoss
from datarax.numerics.digit_sums import sum_by_digits
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaling import nan_where, power_of_two_near_reciprocal
from datarax.numerics.special import entropy
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import Examples
from datarax.statistics.scatter_counts import count_labels


class ExplainedScore(ProbabilityScore):
    """One minus the score, divided by that of the class frequencies as the prediction of all.

    1 at best, 0 for the class frequencies. NaN without data, and if all targets are of one class,
    whose frequency leaves nothing to explain; there scikit-learn gives minus infinity.
    """

    higher_is_better = True
    terms_by_row = False  # the frequencies of the classes are counted over all rows
    num_labels: ClassVar[None] = None  # type: ignore[reportIncompatibleVariableOverride]
    average: ClassVar[str] = "micro"  # type: ignore[reportIncompatibleVariableOverride]

    frequencies: MetricAccumulator = state()
    """The weight of each class, (C,); of a binary task, of 0 and of 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.frequencies = MetricAccumulator(np.zeros(self.num_classes or 2))

    def with_scores(self, seen: Examples) -> Self:
        target, size = seen.target.astype(xp.int32), self.num_classes or 2
        # A label of weight zero may be out of range, which `count_labels` does not allow.
        target = xp.where(seen.weight.astype(xp.bool_), target, 0)
        added = sum_by_digits(seen.weight, lambda w: count_labels(target, w, size))
        counts = self.frequencies.plus(added)
        return super().with_scores(seen).replace(frequencies=counts)

    def null_score(self, counts: DoubleFloat, total: DoubleFloat) -> jax.Array:
        """The mean score of the class frequencies."""
        raise TypeError(f"{type(self).__name__} does not define null_score()")

    def compute(self) -> PyTree:
        counts = self.frequencies.double
        counts = counts * power_of_two_near_reciprocal(xp.max(counts.high))
        null = self.null_score(counts, counts.sum())
        return 1 - self.statistic.mean / nan_where(~(null > 0), null)

    def as_ratio(self) -> None:
        return None


class D2LogLoss(ExplainedScore, LogLoss):  # type: ignore[reportIncompatibleVariableOverride]
    """The share of the log loss that is explained.

    1 - `LogLoss` / H, with H the entropy of the class frequencies, in nats: the log loss if they
    are the prediction of all examples. 1 at best, 0 for these frequencies. NaN without data, and if
    all targets are of one class. As `sklearn.metrics.d2_log_loss_score`. T. Hastie, R. Tibshirani
    and M. Wainwright (2015), Statistical learning with sparsity, equation 3.11.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import D2LogLoss
        >>> preds, target = jnp.array([0.1, 0.9, 0.8, 0.3]), jnp.array([0, 1, 1, 0])
        >>> print(round(float(D2LogLoss().update(preds, target).compute()), 4))
        0.7149
    """

    def null_score(self, counts: DoubleFloat, total: DoubleFloat) -> jax.Array:
        return entropy(counts, total)


class D2Brier(ExplainedScore, BrierScore):  # type: ignore[reportIncompatibleVariableOverride]
    """The share of the Brier score that is explained: the Brier skill score.

    1 - B / sum(f * (1 - f)), with B the sum of squares of `BrierScore` over the classes, and f the
    class frequencies, which have this score as the prediction of all examples. 1 at best, 0 for
    these frequencies. NaN without data, and if all targets are of one class. As
    `sklearn.metrics.d2_brier_score`. A. H. Murphy (1973), Hedging and skill scores for probability
    forecasts.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import D2Brier
        >>> preds, target = jnp.array([0.1, 0.9, 0.8, 0.3]), jnp.array([0, 1, 1, 0])
        >>> print(round(float(D2Brier().update(preds, target).compute()), 4))
        0.85
    """

    scale_by_half: ClassVar[bool] = False  # type: ignore[reportIncompatibleVariableOverride]

    def null_score(self, counts: DoubleFloat, total: DoubleFloat) -> jax.Array:
        return ((counts * (total - counts)).sum() / (total * total)).to_float()
