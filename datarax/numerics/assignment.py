"""The best one-to-one matching of the rows and columns of a table."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class _Matching(NamedTuple):
    """The rows matched so far. Row and column 0 stand for none; tables are padded for it."""

    row_price: jax.Array
    """(R + 1,): row and column prices sum to at most the cost of a cell, exactly to it if matched.
    """
    column_price: jax.Array
    """(K + 1,)."""
    row_of: jax.Array
    """(K + 1,): the row that each column is matched to; 0 where there is none."""


class _Search(NamedTuple):
    """A search for the cheapest path of alternating cells from a new row to a free column."""

    row_price: jax.Array
    column_price: jax.Array
    slack: jax.Array
    """(K + 1,): what each column not visited costs above the prices, from the rows visited."""
    previous: jax.Array
    """(K + 1,): the column visited before it on that path."""
    visited: jax.Array
    """(K + 1,)."""
    column: jax.Array
    """The last column that was reached."""


def best_matching(gain: jax.Array) -> jax.Array:
    """For each row of a (R, K) table, the column it is matched to: the sum of gains is greatest.

    (R,) int32; -1 for rows without a match, where R > K. By the Hungarian algorithm in the form of
    shortest augmenting paths (H. W. Kuhn 1955; R. Jonker and A. Volgenant 1987), in about the
    smaller side squared times the larger steps. Exact where sums of gains are exact in the dtype;
    otherwise the matching is the best for prices that are rounded.
    """
    rows, columns = gain.shape
    if rows > columns:
        return _inverse(best_matching(gain.T), rows)
    # Zeros and infinities are made of `gain`, so that in `shard_map` they vary as it does.
    zero = gain[0, 0] * 0
    cost = jnp.pad(-gain, ((1, 0), (1, 0)))
    none = jnp.zeros(columns + 1, jnp.int32) + zero.astype(jnp.int32)
    infinite = jnp.full(columns + 1, jnp.inf, gain.dtype) + zero

    def match_row(row: jax.Array, now: _Matching) -> _Matching:
        row_of = now.row_of.at[0].set(row)

        def visit(now: _Search) -> _Search:
            visited = now.visited.at[now.column].set(True)
            row = row_of[now.column]
            reduced = cost[row] - now.row_price[row] - now.column_price
            closer = ~visited & (reduced < now.slack)
            slack = jnp.where(closer, reduced, now.slack)
            previous = jnp.where(closer, now.column, now.previous)
            open_slack = jnp.where(visited, jnp.inf, slack).at[0].set(jnp.inf)
            following = jnp.argmin(open_slack).astype(jnp.int32)
            delta = open_slack[following]
            step = jnp.where(visited, delta, 0)
            return _Search(
                row_price=now.row_price.at[row_of].add(step),
                column_price=now.column_price - step,
                slack=jnp.where(visited, slack, slack - delta),
                previous=previous,
                visited=visited,
                column=following,
            )

        start = _Search(
            now.row_price, now.column_price, infinite, none, none.astype(jnp.bool_), none[0]
        )
        # It starts at column 0, which the new row is matched to, and ends at a free column.
        found = lax.while_loop(lambda search: row_of[search.column] != 0, visit, start)

        def shift(path: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            row_of, column = path
            previous = found.previous[column]
            return row_of.at[column].set(row_of[previous]), previous

        # Each column on the path takes the row of the one before it, down to the new row.
        row_of, _ = lax.while_loop(lambda path: path[1] != 0, shift, (row_of, found.column))
        return _Matching(found.row_price, found.column_price, row_of)

    start = _Matching(
        jnp.zeros(rows + 1, gain.dtype) + zero, jnp.zeros(columns + 1, gain.dtype) + zero, none
    )
    matching = lax.fori_loop(jnp.int32(1), jnp.int32(rows + 1), match_row, start)
    return _inverse(matching.row_of[1:] - 1, rows)


def _inverse(places: jax.Array, size: int) -> jax.Array:
    """For each of `size` places, the index at which `places` holds it; -1 for none."""
    places = jnp.where(places >= 0, places, size)
    index = jnp.arange(len(places), dtype=jnp.int32)
    return jnp.full(size, -1, jnp.int32).at[places].set(index, mode="drop")
