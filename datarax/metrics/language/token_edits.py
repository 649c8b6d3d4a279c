"""The edit distance of sequences of integers."""

import jax

from datarax._xp import lax, xp
from datarax.numerics.limbs import equal_integers


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
        entries = lax.cummin(entries - place, 1) + place
        return xp.where(number < a_lengths[:, None], entries, above), None

    numbers = xp.arange(a.shape[1], dtype=xp.int32)
    last, _ = lax.scan(row, first, (numbers, a.T))
    return xp.sum(xp.where(place == b_lengths[:, None], last, 0), 1)
