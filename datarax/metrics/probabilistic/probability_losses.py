"""Losses of predicted probabilities and scores, and the share of a loss that is explained (D2)."""

import math
from typing import ClassVar, Literal, Self

import jax
import numpy as np

from datarax._typing import PyTree
from datarax._xp import special, xp
from datarax.algebra.fields import state
from datarax.metrics.probabilistic.mean_score import ProbabilityScore, TaskScore
from datarax.numerics.digit_sums import sum_by_digits
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaling import nan_where, power_of_two_near_reciprocal
from datarax.numerics.special import entropy, softplus
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import Examples, is_class
from datarax.statistics.scatter_counts import count_labels


class LogLoss(ProbabilityScore):
    """The mean of `-log(p)`, where p is the predicted probability of the target, in nats.

    Also known as cross-entropy or negative log likelihood. No data gives NaN.

    As `sklearn.metrics.log_loss`, which takes probabilities. Probabilities are clipped to
    `[eps, 1 - eps]` with the eps of their dtype (half precision: that of float32, 2**-23), so
    that an example of weight 1 adds at most 15.95. Logits are not clipped: where that of the target
    is -inf, the loss is infinite, and so is the mean. Rows that do not sum to
    one are invalid; scikit-learn warns and uses them. I. J. Good (1952), Rational
    decisions.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import LogLoss
        >>> preds = jnp.array([[0.1, 0.9], [0.9, 0.1], [0.8, 0.2], [0.35, 0.65]])
        >>> metric = LogLoss(num_classes=2).update(preds, jnp.array([1, 0, 0, 1]))
        >>> print(round(float(metric.compute()), 5))
        0.21616
    """

    by_label = True

    def score(self, seen: Examples) -> jax.Array:
        preds, target = seen.preds, seen.target
        if self.num_classes is not None:
            if self.from_logits:
                return seen.rows.cross_entropy()
            return -xp.log(_clip(seen.rows.own, seen.eps))
        return log_loss_of_two(preds, target, None if self.from_logits else seen.eps)


class BrierScore(ProbabilityScore):
    """The mean squared distance of the predicted probabilities from the target.

    Multiclass: `sum over c of (p[c] - [target = c])**2`, from 0 to 2. Binary and multilabel:
    `(p - target)**2`, from 0 to 1, which is half of the sum over both classes. No data gives NaN.

    As `sklearn.metrics.brier_score_loss`. G. W. Brier (1950), Verification of forecasts expressed
    in terms of probability, who sums over the classes.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import BrierScore
        >>> preds, target = jnp.array([0.1, 0.9, 0.8, 0.3]), jnp.array([0, 1, 1, 0])
        >>> print(round(float(BrierScore().update(preds, target).compute()), 4))
        0.0375
    """

    scale_by_half: Literal["auto"] | bool = "auto"
    """True to halve the sum over the classes; a binary task has two. "auto" halves it for two
    classes. As in scikit-learn."""

    def score(self, seen: Examples) -> jax.Array:
        preds, target = seen.preds, seen.target
        halve = self.scale_by_half
        if self.num_classes is None:
            square = xp.square(error_of_two(preds, target, from_logits=self.from_logits))
            return square if halve else square * 2
        is_target = is_class(target, self.num_classes)
        if self.from_logits:
            # 1 - p of the target is the sum of the other classes, which does not cancel near p = 1.
            weight = xp.exp(preds - xp.max(preds, -1, keepdims=True))
            others = xp.where(is_target, 0, weight)
            squares = xp.sum(xp.square(others), -1) + xp.square(xp.sum(others, -1))
            score = squares / xp.square(xp.sum(weight, -1))
        else:
            score = xp.sum(xp.square(xp.where(is_target, 1 - preds, preds)), -1)
        if halve == "auto":
            halve = self.num_classes == 2
        return score / 2 if halve else score


class HingeLoss(TaskScore):
    """The mean of `max(0, 1 - margin)`.

    Binary and multilabel: the margin is the score, negated if the target is 0. Multiclass: the
    score of the target minus the highest score of the other classes (Crammer and Singer). Scores
    are any finite numbers, such as those of a support vector machine, or -inf for a class that is
    ruled out. No data gives NaN.

    As `sklearn.metrics.hinge_loss`, which has no `squared`. K. Crammer and Y. Singer (2001), On the
    algorithmic implementation of multiclass kernel-based vector machines.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import HingeLoss
        >>> preds, target = jnp.array([-2.0, 0.5, 3.0]), jnp.array([0, 0, 1])
        >>> print(HingeLoss().update(preds, target).compute())
        0.5
    """

    value_range = (0.0, math.inf)
    higher_is_better = False
    squared: bool = False
    """True if the loss of each example is squared."""

    def score(self, seen: Examples) -> jax.Array:
        preds, target = seen.preds, seen.target
        if self.num_classes is None:
            margin = xp.where(target, preds, -preds)
        else:
            others = xp.where(is_class(target, self.num_classes), -xp.inf, preds)
            margin = _score_of_target(preds, target) - xp.max(others, -1)
        loss = xp.maximum(1 - margin, 0)
        return xp.square(loss) if self.squared else loss


class ExplainedScore(ProbabilityScore):
    """One minus the score, divided by that of the class frequencies as the prediction of all.

    1 at best, 0 for the class frequencies. NaN without data, and if all targets are of one class,
    whose frequency leaves nothing to explain; there scikit-learn gives minus infinity.
    """

    value_range = (-math.inf, 1.0)
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


def _score_of_target(scores: jax.Array, target: jax.Array) -> jax.Array:
    return xp.take_along_axis(scores, target[..., None], -1)[..., 0]


def _clip(p: jax.Array, eps: float) -> jax.Array:
    return xp.clip(p, eps, 1 - eps)


def log_loss_of_two(preds: jax.Array, positive: jax.Array, eps: float | None) -> jax.Array:
    """For two outcomes, the log loss of probabilities clipped by `eps`; of logits if it is None."""
    if eps is None:
        return softplus(xp.where(positive, -preds, preds))
    p = _clip(preds, eps)
    return xp.where(positive, -xp.log(p), -xp.log1p(-p))


def error_of_two(preds: jax.Array, positive: jax.Array, *, from_logits: bool) -> jax.Array:
    """For two outcomes, the predicted probability of the one that did not happen."""
    if from_logits:
        return special.expit(xp.where(positive, -preds, preds))
    return xp.where(positive, 1 - preds, preds)
