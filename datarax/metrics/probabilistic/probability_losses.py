"""Losses of predicted probabilities and scores: log loss, Brier score, hinge loss."""

from typing import Literal

import jax

from datarax._xp import special, xp
from datarax.metrics.probabilistic.mean_score import ProbabilityScore, TaskScore
from datarax.numerics.special import softmax_cross_entropy, softplus
from datarax.statistics.batches import Examples, is_class


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

    def score(self, seen: Examples) -> jax.Array:
        preds, target = seen.preds, seen.target
        if self.num_classes is not None:
            if self.from_logits:
                return softmax_cross_entropy(preds, target)
            return -xp.log(_clip(_score_of_target(preds, target), seen.eps))
        if self.from_logits:
            return softplus(xp.where(target, -preds, preds))
        p = _clip(preds, seen.eps)
        return xp.where(target, -xp.log(p), -xp.log1p(-p))


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
    """Whether to halve the sum over the classes; a binary task has two. "auto" halves it for two
    classes. As in scikit-learn."""

    def score(self, seen: Examples) -> jax.Array:
        preds, target = seen.preds, seen.target
        halve = self.scale_by_half
        if self.num_classes is None:
            square = xp.square(_error_of_two(preds, target, from_logits=self.from_logits))
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

    higher_is_better = False
    squared: bool = False
    """Whether the loss of each example is squared."""

    def score(self, seen: Examples) -> jax.Array:
        preds, target = seen.preds, seen.target
        if self.num_classes is None:
            margin = xp.where(target, preds, -preds)
        else:
            others = xp.where(is_class(target, self.num_classes), -xp.inf, preds)
            margin = _score_of_target(preds, target) - xp.max(others, -1)
        loss = xp.maximum(1 - margin, 0)
        return xp.square(loss) if self.squared else loss


def _score_of_target(scores: jax.Array, target: jax.Array) -> jax.Array:
    return xp.take_along_axis(scores, target[..., None], -1)[..., 0]


def _clip(p: jax.Array, eps: float) -> jax.Array:
    return xp.clip(p, eps, 1 - eps)


def _error_of_two(preds: jax.Array, positive: jax.Array, *, from_logits: bool) -> jax.Array:
    """For two outcomes, the predicted probability of the one that did not happen."""
    if from_logits:
        return special.expit(xp.where(positive, -preds, preds))
    return xp.where(positive, 1 - preds, preds)
