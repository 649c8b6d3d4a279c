"""The best one-to-one matching of the rows and columns of a table."""

from typing import NamedTuple

import jax

from datarax._xp import at, lax, xp


class _Matching(NamedTuple):
    """The matching of the rows so far. Index 0 means no row or column, so tables are padded."""

    row_price: jax.Array
    """(R + 1,): the dual variable of each row. In every cell, row price plus column price is at
    most the cost; in a matched cell, it equals the cost."""
    column_price: jax.Array
    """(K + 1,): the dual variable of each column."""
    row_of: jax.Array
    """(K + 1,): the row that each column is matched to; 0 if the column is free."""


class _Search(NamedTuple):
    """The search for the cheapest augmenting path from a new row to a free column."""

    row_price: jax.Array
    column_price: jax.Array
    slack: jax.Array
    """(K + 1,): for each column not visited, the least reduced cost (cost minus both prices) from
    the rows visited."""
    previous: jax.Array
    """(K + 1,): the column before each column on the path to it."""
    visited: jax.Array
    """(K + 1,): which columns were visited."""
    column: jax.Array
    """The column that was reached last."""


def best_matching(gain: jax.Array) -> jax.Array:
    """The one-to-one matching of rows and columns with the greatest sum of gains.

    It uses the Hungarian algorithm in the form of shortest augmenting paths (H. W. Kuhn 1955;
    R. Jonker and A. Volgenant 1987). It takes about `min(R, K)**2 * max(R, K)` steps.

    Args:
        gain: a table (R, K) of floats.

    Returns:
        The column of each row, (R,) int32. If R > K, some rows have no match: -1. The matching is
        exact if sums of gains are exact in the dtype; otherwise it is the best for rounded prices.
    """
    rows, columns = gain.shape
    if rows > columns:
        return _inverse(best_matching(gain.T), rows)
    # Zeros and infinities are computed from `gain`, so that inside `shard_map` they vary over the
    # same axes.
    zero = gain[0, 0] * 0
    cost = xp.pad(-gain, ((1, 0), (1, 0)))
    none = xp.zeros(columns + 1, xp.int32) + zero.astype(xp.int32)
    infinite = xp.full(columns + 1, xp.inf, gain.dtype) + zero

    def match_row(row: jax.Array, now: _Matching) -> _Matching:
        row_of = at(now.row_of)[0].set(row)

        def visit(now: _Search) -> _Search:
            # One step of Dijkstra's algorithm over reduced costs: from the row of the last column
            # to the nearest column not visited. Then the prices change so that its slack is zero.
            visited = at(now.visited)[now.column].set(True)
            row = row_of[now.column]
            reduced = cost[row] - now.row_price[row] - now.column_price
            closer = ~visited & (reduced < now.slack)
            slack = xp.where(closer, reduced, now.slack)
            previous = xp.where(closer, now.column, now.previous)
            open_slack = at(xp.where(visited, xp.inf, slack))[0].set(xp.inf)
            following = xp.argmin(open_slack).astype(xp.int32)
            delta = open_slack[following]
            step = xp.where(visited, delta, 0)
            return _Search(
                row_price=at(now.row_price)[row_of].add(step),
                column_price=now.column_price - step,
                slack=xp.where(visited, slack, slack - delta),
                previous=previous,
                visited=visited,
                column=following,
            )

        start = _Search(
            now.row_price, now.column_price, infinite, none, none.astype(xp.bool_), none[0]
        )
        # The search starts at column 0, to which the new row is matched, and ends at a free column.
        found = lax.while_loop(lambda search: row_of[search.column] != 0, visit, start)

        def shift(path: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            row_of, column = path
            previous = found.previous[column]
            return at(row_of)[column].set(row_of[previous]), previous

        # Augment: each column on the path takes the row of the column before it. The first column
        # takes the new row.
        row_of, _ = lax.while_loop(lambda path: path[1] != 0, shift, (row_of, found.column))
        return _Matching(found.row_price, found.column_price, row_of)

    start = _Matching(
        xp.zeros(rows + 1, gain.dtype) + zero, xp.zeros(columns + 1, gain.dtype) + zero, none
    )
    matching = lax.fori_loop(xp.int32(1), xp.int32(rows + 1), match_row, start)
    return _inverse(matching.row_of[1:] - 1, rows)


def _inverse(places: jax.Array, size: int) -> jax.Array:
    """For each number below `size`, the index at which `places` holds it; -1 if it does not."""
    places = xp.where(places >= 0, places, size)
    index = xp.arange(len(places), dtype=xp.int32)
    return at(xp.full(size, -1, xp.int32))[places].set(index, mode="drop")
