"""The fractions of tokens, and of whole sequences, that are predicted right."""

from typing import ClassVar, Self

from datarax._checks import numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.metrics.language.tokens import tokens_right
from datarax.metrics.probabilistic.mean_score import MeanScore


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

    terms_by_row = True
    higher_is_better = True
    top_k: int = 1
    """How many of the highest logits count as predicted."""
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
        counts, invalid = w.astype(xp.bool_), invalid.any((-1,))
        w = xp.where(invalid.mask, xp.zeros((), w.dtype), xp.max(w, -1, initial=0))
        right = xp.all(right | ~counts, -1)
        return self.replace(statistic=self.statistic.add(right, w, invalid))
