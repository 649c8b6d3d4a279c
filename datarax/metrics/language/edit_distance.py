"""The edit distance of sequences of token ids."""

import math
from typing import Self

import jax

from datarax._checks import as_float, integers
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import lax, xp
from datarax.distributed.collectives import unsharded
from datarax.metrics.language.token_accuracy import token_ids
from datarax.metrics.probabilistic.mean_score import MeanScore
from datarax.numerics.limbs import equal_integers
from datarax.statistics.batches import in_range, refuse_one_hot, rows_weight
from datarax.statistics.invalid_counts import out_of_range


def edit_distance(
    a: jax.Array, b: jax.Array, a_lengths: jax.Array, b_lengths: jax.Array
) -> jax.Array:
    """The least number of insertions, deletions and substitutions that make `a` of `b`.

    One row of the table of R. A. Wagner and M. J. Fischer (1974) is held at a time, for all pairs:
    its entry j is the distance of the tokens of `a` so far from the first j tokens of `b`.

    Args:
        a: sequences (N, T); the first `a_lengths` (N,) tokens of each count; from 0 to T, int32.
        b: sequences (N, U), likewise.

    Returns:
        int32 distances, (N,).
    """
    # An entry is 1 more than that to its left if the last step inserts a token. Less their places,
    # the entries of a row are the running minimum of those without that step.
    place = lax.broadcasted_iota(xp.int32, (1, b.shape[1] + 1), 1)
    # Zeros that vary over the same axes of `shard_map` as the data.
    first = place + (a_lengths + b_lengths)[:, None] * 0

    def row(above: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        number, token = step
        changed = (~equal_integers(b, token[:, None])).astype(xp.int32)
        other = xp.minimum(above[:, 1:] + 1, above[:, :-1] + changed)
        entries = xp.concatenate([above[:, :1] + 1, other], 1)
        # Insertions: entry k is the least of entry j + (k - j) over j <= k. Less its place, that is
        # a cumulative minimum, so a row takes no loop.
        entries = lax.cummin(entries - place, 1) + place
        return xp.where(number < a_lengths[:, None], entries, above), None

    numbers = xp.arange(a.shape[1], dtype=xp.int32)
    last, _ = lax.scan(row, first, (numbers, a.T))
    return xp.sum(xp.where(place == b_lengths[:, None], last, 0), 1)


class EditDistance(MeanScore):
    """The mean number of insertions, deletions and substitutions that make a prediction its target.

    The Levenshtein distance of each pair is an exact integer, computed on the device in T steps,
    with memory of the size of the sequences. Pairs with a length that is out of range are invalid.
    Tokens past the length of a sequence are never looked at. No data gives NaN.

    As `rapidfuzz.distance.Levenshtein.distance`, or `normalized_distance`. V. I. Levenshtein
    (1966), Binary codes capable of correcting deletions, insertions, and reversals.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import EditDistance
        >>> preds = jnp.array([[1, 2, 3, 4], [5, 6, 0, 0]])
        >>> target = jnp.array([[1, 3, 4], [5, 6, 7]])
        >>> metric = EditDistance().update(preds, target, pred_lengths=jnp.array([4, 2]))
        >>> print(metric.compute())  # one deletion, one insertion
        1.0
    """

    value_range = (0.0, math.inf)
    terms_by_row = True
    higher_is_better = False
    normalize: bool = False
    """True if each distance is divided by the length of the longer sequence of its pair, which
    gives a number from 0 to 1; of two empty sequences it is 0."""

    def update(
        self,
        preds: ArrayLike,
        target: ArrayLike,
        *,
        pred_lengths: ArrayLike | None = None,
        target_lengths: ArrayLike | None = None,
        weights: Weights = None,
    ) -> Self:
        """A new metric with the pairs folded in; no communication.

        Args:
            preds: integer ids (N, T).
            target: integer ids (N, U).
            pred_lengths: how many of the ids of each prediction count, integers (N,) from 0 to T;
                None for all.
            target_lengths: the same of the targets.
            weights: of the pairs, (N,).

        Raises:
            MetricInputError: shapes that are not (N, T), (N, U) and (N,). Or ids on the host are
                one-hot.
            MetricTypeError: ids or lengths that are not integers.
        """
        a, b = token_ids(preds, "preds"), token_ids(target, "target")
        if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[0]:
            raise MetricInputError(
                f"preds of shape {a.shape} and target of shape {b.shape}; expected (N, T) and "
                f"(N, U)"
            )
        refuse_one_hot(a, b, None)
        a_lengths = _lengths(pred_lengths, a, "pred_lengths")
        b_lengths = _lengths(target_lengths, b, "target_lengths")
        wrong = out_of_range(~in_range(a_lengths, a.shape[1] + 1), a_lengths)
        wrong |= out_of_range(~in_range(b_lengths, b.shape[1] + 1), b_lengths)
        w, invalid = rows_weight(wrong, weights)
        # Cast only after the check of the range: a cast may wrap an invalid length to a valid one.
        a_lengths, b_lengths = (n.astype(xp.int32) for n in (a_lengths, b_lengths))
        # The loop is over the shorter axis.
        pair = (a, a_lengths), (b, b_lengths)
        (a, a_lengths), (b, b_lengths) = sorted(pair, key=lambda x: x[0].shape[1])
        distance = edit_distance(unsharded(a, 1), unsharded(b, 1), a_lengths, b_lengths)
        if self.normalize:
            longer = xp.maximum(xp.maximum(a_lengths, b_lengths), 1)
            distance = as_float(distance) / as_float(longer)
        return self.replace(statistic=self.statistic.add(distance, w, invalid))


def _lengths(lengths: ArrayLike | None, ids: jax.Array, name: str) -> jax.Array:
    if lengths is None:
        # Of the type of the data inside `shard_map` and on a mesh.
        return xp.sum(xp.ones_like(ids, xp.int32), 1)
    lengths = integers(lengths, name)
    if lengths.shape != ids.shape[:1]:
        raise MetricInputError(
            f"{name} of shape {lengths.shape}; expected {ids.shape[:1]}, one for each sequence"
        )
    return lengths
