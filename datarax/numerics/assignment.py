"""The best one-to-one matching of rows and columns."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def best_matching(gain: jax.Array) -> jax.Array:
    """For each row of a (R, K) table its column, so that the sum of matched gains is greatest.

    (R,) int32; -1 for rows without one, where R > K. By the Hungarian algorithm in the form of
    shortest augmenting paths (Kuhn 1955, Jonker and Volgenant 1987): the smaller side squared
    times the larger. Exact while sums of gains are, else as near to best as they are rounded.
    """
    rows, columns = gain.shape
    if rows > columns:
        column_row = best_matching(gain.T)
        places = jnp.where(column_row >= 0, column_row, jnp.int32(rows))
        empty = jnp.full(rows, -1, jnp.int32)
        return empty.at[places].set(jnp.arange(columns, dtype=jnp.int32), mode="drop")
    # Row 0 and column 0 stand for none. Made of `gain`, so that in `shard_map` it varies as that.
    zero = gain[0, 0] * 0
    cost = jnp.pad(-gain, ((1, 0), (1, 0)))
    none = jnp.zeros(columns + 1, jnp.int32) + zero.astype(jnp.int32)
    infinite = jnp.full(columns + 1, jnp.inf, gain.dtype) + zero

    def assign(row: jax.Array, state: Any) -> Any:
        u, v, matched = state
        matched = matched.at[0].set(row)
        used = none.astype(jnp.bool_)

        def search(carry: Any) -> Any:
            u, v, least, way, used, column = carry
            used = used.at[column].set(True)
            here = matched[column]
            reduced = cost[here] - u[here] - v
            closer = ~used & (reduced < least)
            least = jnp.where(closer, reduced, least)
            way = jnp.where(closer, column, way)
            open_ = jnp.where(used, jnp.asarray(jnp.inf, least.dtype), least)
            following = jnp.argmin(open_.at[0].set(jnp.inf)).astype(jnp.int32)
            delta = open_[following]
            step = jnp.where(used, delta, jnp.zeros((), delta.dtype))
            u, v = u.at[matched].add(step), v - step
            return u, v, jnp.where(used, least, least - delta), way, used, following

        start = u, v, infinite, none, used, none[0]
        # The first round is of column 0, whose row is not zero; the last is of one without a row.
        u, v, _, way, _, column = lax.while_loop(lambda c: matched[c[5]] != 0, search, start)

        def back(carry: Any) -> Any:
            matched, column = carry
            return matched.at[column].set(matched[way[column]]), way[column]

        matched, _ = lax.while_loop(lambda c: c[1] != 0, back, (matched, column))
        return u, v, matched

    potentials = jnp.zeros(rows + 1, gain.dtype) + zero, jnp.zeros(columns + 1, gain.dtype) + zero
    start = (*potentials, none)
    matched = lax.fori_loop(jnp.int32(1), jnp.int32(rows + 1), assign, start)[2][1:]
    places = jnp.where(matched > 0, matched - 1, jnp.int32(rows))
    empty = jnp.full(rows, -1, jnp.int32)
    return empty.at[places].set(jnp.arange(columns, dtype=jnp.int32), mode="drop")
