"""How good predicted probabilities are: log loss, Brier score, hinge loss, perplexity."""

from typing import Any, Self

import jax
import jax.numpy as jnp

from datarax._checks import choice, numeric
from datarax._errors import MetricInputError
from datarax.metrics.probabilistic.mean_score import MeanScore, TaskScore
from datarax.statistics.batches import Examples, examples
from datarax.statistics.labels import is_class


class LogLoss(TaskScore):
    """The mean of `-log(p)`, p being the probability that was given to what happened.

    Also known as cross-entropy, or the negative log likelihood; in nats.

    `update(preds, target, *, weights=None)`: multiclass (`num_classes=`) takes floats (..., C) and
    integer labels (...); multilabel (`num_labels=`) floats and 0/1 targets (..., L), each label an
    example of its own; binary, neither given, the positive class's floats and 0/1 targets (...).
    No data gives NaN.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has.
        from_logits: what `preds` are: logits, of a softmax where multiclass and else of a sigmoid,
            or probabilities. It is never guessed.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: for logits that are not finite, probabilities outside 0 to 1 or that do not sum
            to one, labels out of range and negative weights: "exclude" and count them, "propagate"
            (the result is NaN), or "raise" when read on the host.

    As `sklearn.metrics.log_loss`, which takes probabilities: they are clipped to
    `[eps, 1 - eps]`, where eps is that of their dtype (of float32 for half precision: 2**-23), so
    one example of weight 1 adds at most 15.95. Logits are not clipped. Rows that sum to one within
    3.5e-4 (the root of the dtype's eps where that is coarser) are used as they are, as in
    scikit-learn; others, which it warns of and uses, are no distribution and are left out. I. J.
    Good (1952), Rational decisions.

    Raises:
        MetricInputError: shapes that do not go together; shows both.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import LogLoss
        >>> preds = jnp.array([[0.1, 0.9], [0.9, 0.1], [0.8, 0.2], [0.35, 0.65]])
        >>> metric = LogLoss(num_classes=2).update(preds, jnp.array([1, 0, 0, 1]))
        >>> print(round(float(metric.compute()), 5))
        0.21616
    """

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        from_logits: bool = False,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        choice(from_logits, (False, True), "from_logits")
        self.from_logits, self.ignore_index = from_logits, ignore_index
        self._task(num_classes, num_labels, on_invalid)

    def _score(self, seen: Examples) -> jax.Array:
        preds, target = seen.preds, seen.target
        if self.num_classes is not None:
            if self.from_logits:
                return surprise(preds, target)
            return -jnp.log(_clipped(_of_label(preds, target), seen.eps))
        if self.from_logits:
            against = jnp.where(target, -preds, preds)
            return jnp.maximum(against, 0) + jnp.log1p(jnp.exp(-jnp.abs(preds)))
        p = _clipped(preds, seen.eps)
        return jnp.where(target, -jnp.log(p), -jnp.log1p(-p))


class BrierScore(TaskScore):
    """The mean squared distance of predicted probabilities from what happened.

    Multiclass: `sum over c of (p[c] - [target = c])**2`, from 0 to 2. Binary and multilabel:
    `(p - target)**2`, from 0 to 1, which is half of that.

    `update(preds, target, *, weights=None)`: shapes and dtypes as for `LogLoss`. No data gives
    NaN.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        from_logits: what `preds` are: logits, of a softmax where multiclass and else of a sigmoid,
            or probabilities.
        scale_by_half: whether the sum over the classes, of which a binary task has two, is halved;
            "auto": where there are two of them.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: "exclude", "propagate" or "raise", as for `LogLoss`.

    As `sklearn.metrics.brier_score_loss`, `scale_by_half` too. What is no distribution is left
    out, as for `LogLoss`. G. W. Brier (1950), Verification of forecasts expressed in terms of
    probability, whose sum is over the classes.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import BrierScore
        >>> preds, target = jnp.array([0.1, 0.9, 0.8, 0.3]), jnp.array([0, 1, 1, 0])
        >>> print(round(float(BrierScore().update(preds, target).compute()), 4))
        0.0375
    """

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        from_logits: bool = False,
        scale_by_half: bool | str = "auto",
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        choice(from_logits, (False, True), "from_logits")
        choice(scale_by_half, ("auto", True, False), "scale_by_half")
        self.from_logits, self.ignore_index = from_logits, ignore_index
        self.scale_by_half = scale_by_half
        self._task(num_classes, num_labels, on_invalid)

    def _score(self, seen: Examples) -> jax.Array:
        preds, target = seen.preds, seen.target
        halved = self.scale_by_half
        if self.num_classes is None:
            score = jnp.square(_wrong(preds, target, from_logits=bool(self.from_logits)))
            return score if halved else score * 2
        halved = self.num_classes == 2 if halved == "auto" else halved
        if self.from_logits:
            # From what the other classes weigh beside all: a p near 1 would leave no digits.
            weight = jnp.exp(preds - jnp.max(preds, -1, keepdims=True))
            rest = jnp.where(is_class(target, self.num_classes), 0, weight)
            squares = jnp.sum(jnp.square(rest), -1) + jnp.square(jnp.sum(rest, -1))
            score = squares / jnp.square(jnp.sum(weight, -1))
        else:
            off = jnp.where(is_class(target, self.num_classes), 1 - preds, preds)
            score = jnp.sum(jnp.square(off), -1)
        return score / 2 if halved else score


class HingeLoss(TaskScore):
    """The mean of `max(0, 1 - margin)`, the margin being how far the decision is on the right side.

    Binary and multilabel: the score, negated where the target is 0. Multiclass: the score of the
    target less the highest of the others (Crammer and Singer).

    `update(preds, target, *, weights=None)`: scores of any size and sign, as of a support vector
    machine; shapes and dtypes as for `LogLoss`. No data gives NaN.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        squared: whether the loss of each example is squared.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: for scores that are not finite, labels out of range and negative weights:
            "exclude" and count them, "propagate" (the result is NaN), or "raise" when read on the
            host.

    As `sklearn.metrics.hinge_loss`, which has no `squared`. K. Crammer and Y. Singer (2001), On the
    algorithmic implementation of multiclass kernel-based vector machines.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import HingeLoss
        >>> preds, target = jnp.array([-2.0, 0.5, 3.0]), jnp.array([0, 0, 1])
        >>> print(HingeLoss().update(preds, target).compute())
        0.5
    """

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        squared: bool = False,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        choice(squared, (False, True), "squared")
        self.squared, self.ignore_index = squared, ignore_index
        self._task(num_classes, num_labels, on_invalid)

    def _score(self, seen: Examples) -> jax.Array:
        preds, target = seen.preds, seen.target
        if self.num_classes is None:
            margin = jnp.where(target, preds, -preds)
        else:
            others = jnp.where(is_class(target, self.num_classes), -jnp.inf, preds)
            margin = _of_label(preds, target) - jnp.max(others, -1)
        loss = jnp.maximum(1 - margin, 0)
        return jnp.square(loss) if self.squared else loss


class Perplexity(MeanScore):
    """The exponential of the mean of `-log(p)` over all tokens, p being the token's probability.

    `update(preds, target, *, weights=None)`: logits (..., V) and integer token ids (...); weights
    broadcast against the leading axes of the ids. No data gives NaN.

    Args:
        ignore_index: a token id that is left out, uncounted, as that of padding.
        on_invalid: for logits that are not finite, token ids out of range and negative weights:
            "exclude" and count them, "propagate" (the result is NaN), or "raise" when read on the
            host.

    The total over the count, however the tokens were batched: never a mean of the perplexities of
    batches, which is another number. The exponential of `LogLoss` of the same logits. F. Jelinek
    and others (1977), https://doi.org/10.1121/1.2016299.

    Raises:
        MetricInputError: shapes that do not go together; shows both.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Perplexity
        >>> logits, ids = jnp.zeros((2, 3, 50)), jnp.array([[4, 8, 0], [7, 0, 0]])
        >>> metric = Perplexity(ignore_index=0).update(logits, ids)
        >>> print(round(float(metric.compute()), 3))
        50.0
    """

    def __init__(self, *, ignore_index: int | None = None, on_invalid: str = "exclude"):
        self.ignore_index = ignore_index
        super().__init__(on_invalid)

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """A new metric with the batch folded in; no communication."""
        preds = numeric(preds, "preds")
        if preds.ndim == 0 or preds.shape[-1] == 0:
            raise MetricInputError(
                f"preds of shape {preds.shape}; expected logits of shape (..., V)"
            )
        seen = examples(
            preds,
            target,
            weights,
            num_classes=preds.shape[-1],
            ignore_index=self.ignore_index,
        )
        return self._added(surprise(seen.preds, seen.target), seen)

    def compute(self) -> jax.Array:
        return jnp.exp(self.statistic.mean)


def surprise(logits: jax.Array, target: jax.Array) -> jax.Array:
    """`-log(softmax(logits)[target])`, to some units however near to zero it is."""
    above = logits - jnp.take_along_axis(logits, target[..., None], -1)
    top = jnp.max(above, -1, keepdims=True)  # not negative
    others = jnp.where(is_class(target, logits.shape[-1]), 0, jnp.exp(above - top))
    top = top[..., 0]
    # log(exp(top) * (others + exp(-top))), of which the last is the target's own share.
    return top + jnp.log1p(jnp.sum(others, -1) + jnp.expm1(-top))


def _of_label(scores: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.take_along_axis(scores, target[..., None], -1)[..., 0]


def _clipped(p: jax.Array, eps: float) -> jax.Array:
    return jnp.clip(p, jnp.asarray(eps, p.dtype), jnp.asarray(1 - eps, p.dtype))


def _wrong(preds: jax.Array, positive: jax.Array, *, from_logits: bool) -> jax.Array:
    """The probability of what did not happen, of two outcomes."""
    if from_logits:
        return jax.nn.sigmoid(jnp.where(positive, -preds, preds))
    return jnp.where(positive, 1 - preds, preds)
