"""Merges the states of many rows into those of fewer places, in few scatters."""

import math
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from datarax.numerics.double_float import DoubleFloat, concatenate, has_float64


class Packed(NamedTuple):
    """What a state asks for: the sums or the maxima of rows, at each place.

    The reply is an array of the same dtype with a leading axis of places, or a double-float. A
    place without rows has the sum 0, and as the maximum the least number of the dtype.
    """

    how: str
    """"sum" or "max"."""
    rows: Any
    """Integers, or double-floats whose parts are one array; with a leading axis of rows. The sums
    of up to 2**16 rows do not overflow, or may wrap."""


def merge_at_places(
    states: Sequence[Any], rows: Sequence[Any], place: jax.Array, size: int
) -> list[Any]:
    """For each of several leaf states, stacked by places, the merge with its states of rows.

    All states are asked at once, so that there is one scatter for the maxima of all states, and
    one for the sums: a scatter takes a time for each row, whatever the length of the row.

    Args:
        states: the leaf states; their arrays have a leading axis of `size` places.
        rows: for each, the states of the rows; None leaves a state as it is.
        place: the place of each row, unsigned; rows past the last place are left out.
    """
    merged = list(states)
    running: dict[int, tuple[Generator[Packed, Any, Any], Packed]] = {}

    def advance(i: int, generator: Generator[Packed, Any, Any], reply: Any) -> None:
        try:
            running[i] = generator, generator.send(reply)
        except StopIteration as end:
            running.pop(i, None)
            merged[i] = end.value

    for i, (state, row) in enumerate(zip(states, rows, strict=True)):
        if row is not None:
            advance(i, state.at_places(row, place), None)
    while running:
        # Sums come last, because what is added up may depend on maxima.
        how = "max" if any(asked.how == "max" for _, asked in running.values()) else "sum"
        chosen = [i for i, (_, asked) in running.items() if asked.how == how]
        replies = _scattered(how, [running[i][1].rows for i in chosen], place, size)
        for i, reply in zip(chosen, replies, strict=True):
            advance(i, running[i][0], reply)
    return merged


def _scattered(how: str, arrays: list[Any], place: jax.Array, size: int) -> list[Any]:
    # float64 holds integers of 32 bits and their sums, and double-floats of float32.
    narrow = [i for i, x in enumerate(arrays) if has_float64() and x.dtype.itemsize <= 4]
    replies: dict[int, Any] = {
        i: _scatter(how, x, place, size) for i, x in enumerate(arrays) if i not in narrow
    }
    if narrow:
        columns = [DoubleFloat.of(arrays[i], jnp.float32) for i in narrow]
        packed = concatenate([x.reshape(len(place), -1) for x in columns], -1)
        whole = packed.map(lambda x: _scatter(how, x, place, size))
        start = 0
        for i, column in zip(narrow, columns, strict=True):
            end = start + math.prod(column.shape[1:])
            part = whole[:, start:end].reshape(size, *column.shape[1:])
            is_double = isinstance(arrays[i], DoubleFloat)
            replies[i] = part if is_double else part.to_integer(arrays[i].dtype)
            start = end
    return [replies[i] for i in range(len(arrays))]


def _scatter(how: str, x: jax.Array, place: jax.Array, size: int) -> jax.Array:
    if how == "sum":
        return jnp.zeros((size, *x.shape[1:]), x.dtype).at[place].add(x, mode="drop")
    least = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    return jnp.full((size, *x.shape[1:]), least, x.dtype).at[place].max(x, mode="drop")


def merged_in_pairs(stacked: Any, rows: Any, place: jax.Array) -> Any:
    """The merge of stacked states with those of rows, by the `combine` of the state alone."""
    size, count = place.size, jnp.shape(jax.tree.leaves(stacked)[0])[0]
    order = jnp.argsort(place)
    place = place[order]
    rows = jax.tree.map(lambda x: jnp.asarray(x)[order], rows)
    index = jnp.arange(size, dtype=jnp.int32)
    combine = jax.vmap(lambda a, b: a.combine(b))

    def chosen(mask: jax.Array, a: Any, b: Any) -> Any:
        def one(x: jax.Array, y: jax.Array) -> jax.Array:
            return jnp.where(lax.expand_dims(mask, range(1, x.ndim)), x, y)

        return jax.tree.map(one, a, b)

    def double(k: jax.Array, rows: Any) -> Any:
        # Each row holds the merge of up to 2**k rows: itself and those before it, at its place.
        before = index - (jnp.int32(1) << k)
        same = (before >= 0) & (place[before] == place)
        merged = combine(jax.tree.map(lambda x: x[before], rows), rows)
        return chosen(same, merged, rows)

    rounds = jnp.int32(max(size - 1, 0).bit_length())
    rows = lax.fori_loop(jnp.int32(0), rounds, double, rows)
    # The last row at a place holds the merge of all.
    last = jnp.full(count, -1, jnp.int32).at[place].max(index, mode="drop")
    merged = combine(stacked, jax.tree.map(lambda x: x[last], rows))
    return chosen(last >= 0, merged, jax.tree.map(jnp.asarray, stacked))
