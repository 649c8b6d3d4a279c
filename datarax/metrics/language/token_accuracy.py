"""The fractions of tokens, and of whole sequences, that are predicted right."""

from typing import ClassVar, Self

import jax

from datarax._checks import integers, is_integer, numeric, positive_int, same_shape
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import lax, xp
from datarax.algebra.fold import Fold, Term, in_one_pass
from datarax.metrics.probabilistic.mean_score import MeanScore
from datarax.numerics.limbs import equal_integers
from datarax.numerics.special import score_of
from datarax.statistics.batches import in_range, kept_weight, refuse_one_hot
from datarax.statistics.class_rows import class_rows
from datarax.statistics.invalid_counts import Invalid, not_logits, out_of_range


class TokenAccuracy(MeanScore):
    """The fraction of tokens that are predicted right: `sum(w * right) / sum(w)`.

    A token is right if its id has the highest logit, or one of the `top_k` highest; of equal logits
    the first are taken. Logits may be -inf, but not all of a token. Unlike `Accuracy` it needs no
    number of classes, and no logits are sorted or gathered. No data gives NaN. As
    `sklearn.metrics.accuracy_score` of the tokens.

    Raises:
        MetricInputError: a `top_k` that is not an integer of at least 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import TokenAccuracy
        >>> ids, target = jnp.array([[4, 2, 7], [5, 0, 0]]), jnp.array([[4, 2, 1], [5, 0, 0]])
        >>> print(TokenAccuracy(ignore_index=0).update(ids, target).compute())
        0.75
    """

    value_range = (0.0, 1.0)
    terms_by_row = True
    higher_is_better = True
    top_k: int = 1
    """The number of the highest logits that count as predicted."""
    ignore_index: int | None = None
    """Tokens with this target, such as padding, are excluded, and not counted as invalid."""

    is_proportion: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive_int(self.top_k, "top_k")

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: logits (..., V), V being the size of the vocabulary; or predicted ids (...).
            target: integer token ids (...). Ids below zero are invalid, and so are ids of V or
                more.
            weights: broadcast against the leading axes of `target`; zero excludes a token.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: token ids that are not integers.
        """
        right, w, invalid = tokens_right(
            preds, target, weights, top_k=self.top_k, ignore_index=self.ignore_index
        )
        return self.replace(statistic=self.statistic.add(right, w, invalid))


class SequenceAccuracy(MeanScore):
    """The fraction of sequences in which every token is predicted right.

    Tokens of weight zero, or with the target `ignore_index`, are not compared. A sequence counts
    with the greatest weight of its tokens; one without a token that counts is excluded. A sequence
    with an invalid token is invalid as a whole. No data gives NaN. As
    `sklearn.metrics.accuracy_score` of whole sequences.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SequenceAccuracy
        >>> ids, target = jnp.array([[4, 2, 7], [5, 3, 9]]), jnp.array([[4, 2, 1], [5, 3, 0]])
        >>> mask = jnp.array([[True, True, True], [True, True, False]])
        >>> print(SequenceAccuracy().update(ids, target, weights=mask).compute())
        0.5
    """

    value_range = (0.0, 1.0)
    terms_by_row = True
    higher_is_better = True
    ignore_index: int | None = None
    """Tokens with this target, such as padding, are not compared, and not counted as invalid."""

    is_proportion: ClassVar[bool] = True

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: logits (..., T, V), T being the length of the sequences; or ids (..., T).
            target: integer token ids (..., T). Ids below zero are invalid, and so are ids of V or
                more.
            weights: of sequences (...) or of tokens (..., T).

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: token ids that are not integers.
        """
        if numeric(target, "target").ndim == 0:
            raise MetricInputError("target has no axes; expected sequences (..., T) of token ids")
        right, w, invalid = tokens_right(preds, target, weights, ignore_index=self.ignore_index)
        # An invalid token has weight zero too, and must make its sequence invalid.
        along = (w.ndim - 1,)
        wrong = w.astype(xp.bool_) & ~right
        rows = Fold([Term(w, along, "max"), Term(wrong, along, "max")], lambda *found: found)
        invalid, (w, wrong) = in_one_pass(invalid.of_groups(along), rows)
        w = xp.where(invalid.mask, xp.zeros((), w.dtype), xp.maximum(w, xp.zeros((), w.dtype)))
        return self.replace(statistic=self.statistic.add(~wrong, w, invalid))


def check_tokens(preds: jax.Array, target: jax.Array) -> int:
    """The size V of the vocabulary, for logits (..., V) and token ids (...).

    Raises:
        MetricInputError: the shapes do not fit together; shows both.
    """
    if preds.ndim == 0 or preds.shape[-1] == 0:
        raise MetricInputError(f"preds of shape {preds.shape}; expected logits of shape (..., V)")
    if preds.shape[:-1] != target.shape:
        same = preds.shape == target.shape
        hint = ". If target is one-hot, give target.argmax(-1)" if same else ""
        raise MetricInputError(
            f"preds of shape {preds.shape} and target of shape {target.shape}; expected logits of "
            f"shape (..., V) and token ids of shape (...){hint}"
        )
    return preds.shape[-1]


def token_ids(ids: ArrayLike, name: str) -> jax.Array:
    """Token ids as an array of integers.

    Raises:
        MetricTypeError: they are not integers.
    """
    return integers(ids, name, "integer token ids")


def tokens_right(
    preds: ArrayLike,
    target: ArrayLike,
    weights: Weights,
    *,
    top_k: int = 1,
    ignore_index: int | None = None,
) -> tuple[jax.Array, jax.Array, Invalid]:
    """Returns which tokens are predicted right, the weight of each, and the invalid tokens.

    The rank of the target is counted, so logits that are sharded over their last axis stay where
    they are.

    Args:
        preds: logits (..., V), or predicted ids (...).
        target: token ids (...).
        weights: broadcast against the leading axes of `target`.
        top_k: a token is right if its target is among the `top_k` highest logits. Of equal logits
            the first are taken.
        ignore_index: tokens with this target get weight zero, and are not counted as invalid.

    Raises:
        MetricInputError: the shapes do not fit together; shows both. Or ids with `top_k` above 1,
            or a `top_k` above V.
        MetricTypeError: ids that are not integers.
    """
    # `class_rows` sees to subnormal logits, of which there may be many.
    preds = numeric(preds, "preds", subnormals=top_k == 1, any_range=True)
    target = token_ids(target, "target")
    if preds.ndim == target.ndim:
        same_shape(preds, target)
        preds = token_ids(preds, "preds")
        refuse_one_hot(preds, target, None)
        if top_k > 1:
            raise MetricInputError(f"top_k={top_k} needs logits (..., V); preds are ids")
        right = equal_integers(preds, target)
        unusable = out_of_range(preds < 0, preds) | out_of_range(target < 0, target)
    else:
        size = check_tokens(preds, target)
        if top_k > size:
            raise MetricInputError(f"top_k={top_k}; expected at most {size}, the number of logits")
        unusable = out_of_range(~in_range(target, size), target)
        if top_k == 1 and not is_integer(preds):
            known = xp.where(unusable.mask, 0, target).astype(xp.int32)
            rows = class_rows(preds, known)
            right, unusable = rows.is_first_highest, unusable | rows.not_logits()
        else:
            ids = lax.broadcasted_iota(xp.int32, preds.shape, preds.ndim - 1)
            own = score_of(preds, target.astype(xp.int32))
            # Of equal logits, that of the lower id ranks first.
            before = (preds > own) | ((preds == own) & (ids < target[..., None].astype(xp.int32)))
            # The rank of the target, from 0, is counted, so logits are neither sorted nor gathered.
            right = xp.sum(before, -1, dtype=xp.int32) < top_k
            unusable |= not_logits(preds, -1)
    w, invalid = kept_weight(unusable, weights, target, ignore_index)
    return right, w, invalid
