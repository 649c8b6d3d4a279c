"""Losses of the tokens of a language model: perplexity, bits per byte."""

import math
from typing import Self

import jax

from datarax._checks import as_float, is_integer, numeric, same_shape
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.metric.base import Metric
from datarax.metric.sampling import Ratio, Sampling
from datarax.metrics.language.token_accuracy import check_tokens
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.batches import examples, kept_weight
from datarax.statistics.invalid_counts import (
    Invalid,
    InvalidCounts,
    evidence_of,
    not_finite,
    out_of_range,
    with_batch,
)
from datarax.statistics.scaled_total import ScaledTotal
from datarax.statistics.score_kinds import ScoreKind
from datarax.statistics.weighted_total import WeightedTotal


class TokenLoss(Metric):
    """A metric of the losses `-log(p)` of tokens, p being the probability of the token.

    Logits may be sharded over their last axis, and may be in half precision: they are neither
    gathered nor copied, and losses are computed in float32. A logit of -inf is valid: the token is
    impossible. Probabilities that are given as logits give a `ScoresWarning` when the metric is
    read, and so do losses below 0.
    """

    higher_is_better = False
    ignore_index: int | None = None
    """Tokens with this id, such as padding, are excluded, and not counted as invalid."""
    from_losses: bool = False
    """True if `preds` are the losses of the tokens (...), in nats, instead of logits. Then `target`
    is needed for `ignore_index` only."""

    @property
    def kind(self) -> ScoreKind:
        """The kind of scores that `preds` are taken for."""
        return "losses" if self.from_losses else "softmax"

    def losses(
        self, preds: ArrayLike, target: ArrayLike | None, weights: Weights
    ) -> tuple[jax.Array, jax.Array, Invalid]:
        """The loss of each token, its weight, and the invalid tokens."""
        preds = numeric(preds, "preds", subnormals=not self.from_losses)
        if not self.from_losses:
            if target is None:
                raise MetricInputError(
                    f"{type(self).__name__}.update() got no target; expected token ids (...) for "
                    f"logits (..., V). If preds are losses, give from_losses=True"
                )
            size = check_tokens(preds, numeric(target, "target"))
            seen = examples(
                preds,
                target,
                weights,
                num_classes=size,
                from_logits=True,
                kind=self.kind,
                ignore_index=self.ignore_index,
                by_label=True,
            )
            # In the dtype in which they are given; integers as floats.
            logits = None if is_integer(preds) else preds
            return seen.rows.cross_entropy(logits), seen.weight, seen.invalid
        if target is None and self.ignore_index is not None:
            raise MetricInputError(
                f"ignore_index={self.ignore_index} without target; expected the token ids (...), "
                f"or ignore_index=None"
            )
        # Without an `ignore_index` the values of the ids are not read.
        ids = preds if target is None else numeric(target, "target")
        same_shape(preds, ids)
        loss = as_float(preds)
        unusable = not_finite(loss) | evidence_of(self.kind, loss, preds)
        w, invalid = kept_weight(unusable, weights, ids, self.ignore_index)
        return loss, w, invalid


class Perplexity(TokenLoss):
    """The exponential of the mean of `-log(p)` over all tokens, p being the token's probability.

    The mean is over all tokens of all batches; the mean of the perplexities of the batches would be
    another number. It is the exponential of `LogLoss` of the same logits. Infinite if the logit of
    a target is -inf. No data gives NaN.

    F. Jelinek and others (1977), https://doi.org/10.1121/1.2016299.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Perplexity
        >>> logits, ids = jnp.zeros((2, 3, 50)), jnp.array([[4, 8, 0], [7, 0, 0]])
        >>> metric = Perplexity(ignore_index=0).update(logits, ids)
        >>> print(round(float(metric.compute()), 3))
        50.0
        >>> metric = Perplexity(from_losses=True).update(jnp.array([0.5, 1.5]))
        >>> print(round(float(metric.compute()), 3))
        2.718
    """

    statistic: WeightedTotal = state()

    def __post_init__(self) -> None:
        self.statistic = WeightedTotal(scores=self.kind)

    def update(
        self, preds: ArrayLike, target: ArrayLike | None = None, *, weights: Weights = None
    ) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: logits (..., V), V being the size of the vocabulary; with `from_losses=True`
                losses (...).
            target: integer token ids (...).
            weights: broadcast against the leading axes of `target`; zero excludes a token.

        Raises:
            MetricInputError: the shapes do not fit together; shows both. Or no `target`, where it
                is needed.
            MetricTypeError: token ids that are not integers.
        """
        loss, w, invalid = self.losses(preds, target, weights)
        return self.replace(statistic=self.statistic.add(loss, w, invalid))

    def compute(self) -> PyTree:
        return xp.exp(self.statistic.mean)

    def sampling(self) -> "PerplexitySampling":
        return PerplexitySampling(self)


class PerplexitySampling(Sampling):
    """The standard error of `Perplexity`, from that of the mean loss."""

    def ratio(self) -> Ratio:
        statistic = self.metric.statistic
        return statistic.total.double, statistic.weight.double

    def slope(self) -> jax.Array:
        return xp.exp(self.metric.statistic.mean)


class BitsPerByte(TokenLoss):
    """The loss of all tokens in bits, over the bytes of their text.

    `sum(w * -log2(p)) / sum(w * num_bytes)`: unlike perplexity it does not depend on how a
    tokenizer cuts a text into tokens. A token without text, such as a mark of the end, has zero
    bytes, and its loss counts; exclude it with `ignore_index` or weights if it should not. A number
    of bytes that is negative or not finite is invalid. Infinite if the logit of a target is -inf.
    No data, or no bytes, gives NaN.

    L. Gao and others (2020), The Pile, section 3.1, https://arxiv.org/abs/2101.00027.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import BitsPerByte
        >>> logits, ids = jnp.zeros((1, 3, 256)), jnp.array([[17, 4, 99]])
        >>> metric = BitsPerByte().update(logits, ids, num_bytes=jnp.array([[3, 4, 1]]))
        >>> print(metric.compute())  # three tokens of 8 bits each, of 8 bytes
        3.0
    """

    value_range = (0.0, math.inf)
    sums = ScaledTotal((2,))
    """The loss in nats, and the bytes."""
    terms_by_row = True
    invalid: InvalidCounts = state()

    def __post_init__(self) -> None:
        self.invalid = InvalidCounts(self.kind)

    def update(
        self,
        preds: ArrayLike,
        target: ArrayLike | None = None,
        *,
        num_bytes: ArrayLike,
        weights: Weights = None,
    ) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: logits (..., V), V being the size of the vocabulary; with `from_losses=True`
                losses (...), in nats.
            target: integer token ids (...).
            num_bytes: the number of bytes of the text of each token, (...).
            weights: broadcast against the leading axes of `target`; zero excludes a token.

        Raises:
            MetricInputError: the shapes do not fit together; shows both. Or no `target`, where it
                is needed.
            MetricTypeError: token ids that are not integers.
        """
        loss, w, invalid = self.losses(preds, target, weights)
        size = numeric(num_bytes, "num_bytes")
        same_shape(loss, size, ("losses", "num_bytes"))
        # The bytes of a token that is excluded or has no loss are not looked at.
        wrong = (not_finite(size) | out_of_range(size < 0, size)).where(w.astype(xp.bool_))
        w = xp.where(wrong.mask, xp.zeros((), w.dtype), w)
        return with_batch(self, invalid | wrong, sums=self.sums.plus((loss, w), (size, w)))

    def compute(self) -> PyTree:
        # A nat is 1 / log(2) bits.
        nats, size = self.sums[0].number, self.sums[1].number
        return (nats * (1 / math.log(2)) / size).to_float()

    def as_ratio(self) -> tuple[DoubleFloat, DoubleFloat]:
        return self.sums[0].double * (1 / math.log(2)), self.sums[1].double
