"""Tokens that are predicted right: what the metrics of tokens and of sequences share."""

import jax

from datarax._checks import integers, numeric, same_shape
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import lax, xp
from datarax.numerics.limbs import equal_integers
from datarax.numerics.special import score_of
from datarax.statistics.batches import in_range, kept_weight, refuse_one_hot
from datarax.statistics.invalid_counts import Invalid, not_logits, out_of_range


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
    """Which tokens are predicted right, the weight of each, and the invalid tokens.

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
    preds, target = numeric(preds, "preds"), token_ids(target, "target")
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
        ids = lax.broadcasted_iota(xp.int32, preds.shape, preds.ndim - 1)
        own = score_of(preds, target.astype(xp.int32))
        # Of equal logits, that of the lower id ranks first.
        before = (preds > own) | ((preds == own) & (ids < target[..., None].astype(xp.int32)))
        right = xp.sum(before, -1, dtype=xp.int32) < top_k
        unusable = not_logits(preds, -1) | out_of_range(~in_range(target, size), target)
    w, invalid = kept_weight(unusable, weights, target, ignore_index)
    return right, w, invalid
