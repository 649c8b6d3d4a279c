"""Merges the states of many rows into stacked states: by place, by repetition, or both."""

import math
from abc import abstractmethod
from collections.abc import Generator, Sequence
from typing import NamedTuple, Self

import jax
from jax.typing import DTypeLike

from datarax._typing import PyTree
from datarax._xp import at, lax, vmap, xp
from datarax.algebra.pytrees import Leaf, Tree
from datarax.distributed.merge_ops import worst
from datarax.numerics.double_float import DoubleFloat, concatenate, has_float64

Numbers = jax.Array | DoubleFloat


class Target(NamedTuple):
    """Where each row of a batch goes, among stacked states, and how often.

    There are `places` states, or as many for each replica, those of the first replica first.
    """

    place: jax.Array
    """The place of each row, (rows,), unsigned; rows past the last place are left out."""
    places: int
    counts: jax.Array | None = None
    """How often each row counts in each replica, (rows, replicas) int32; None: once."""

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return 1 if self.counts is None else self.counts.shape[1]

    @property
    def size(self) -> int:
        """The number of states."""
        return self.places * self.replicas

    def within(self, inner: jax.Array, places: int) -> "Target":
        """The places within each place: `inner` of `places` for each row."""
        used = (self.place < self.places) & (inner < places)
        both = self.place * xp.uint32(places) + inner
        # A row that is used nowhere gets the place past the last one, and is left out.
        end = self.places * places
        return Target(xp.where(used, both, xp.uint32(end)), end, self.counts)

    def of_rows(self, bounds: jax.Array) -> jax.Array:
        """For each row, the reply to "bound" at its place."""
        return xp.take(bounds[: self.places], self.place, 0, mode="clip")

    def folded(self, how: str, x: jax.Array) -> jax.Array:
        """The sums, maxima or upper bounds of rows for each state: see `Packed`."""
        if self.counts is None:
            return _scattered(how, x, self.place, self.places)
        if how == "bound":  # of all rows at the place, so that it is the same in all replicas
            bound = _scattered("max", x, self.place, self.places)
            return xp.broadcast_to(bound, (self.replicas, *bound.shape)).reshape(-1, *x.shape[1:])
        rows = x.reshape(len(x), math.prod(x.shape[1:]))
        # One state in each replica: the sums are a product of matrices, and need no scatter.
        if how == "sum" and self.places == 1:
            counts = xp.where((self.place == 0)[:, None], self.counts, 0)
            return _product(counts, rows).reshape(self.replicas, *x.shape[1:])
        counts = self.counts[:, :, None]
        if how == "sum":
            repeated = counts.astype(x.dtype) * rows[:, None]
        else:
            repeated = xp.where(counts > 0, rows[:, None], worst("max", x.dtype))
        table = _scattered(how, repeated, self.place, self.places)
        return xp.swapaxes(table, 0, 1).reshape(-1, *x.shape[1:])


class Packed(NamedTuple):
    """What a state asks for: sums, maxima, or upper bounds of rows, for each stacked state.

    The reply is an array of the same dtype with a leading axis of states, or a double-float. A
    state without rows has the sum 0, and as the maximum the least number of the dtype. A bound is
    at least the maximum, and not of those rows alone that count.
    """

    how: str
    """"sum", "max" or "bound"."""
    rows: Numbers
    """Integers, or double-floats whose parts are one array; with a leading axis of rows. The sums
    of up to 2**16 rows do not overflow, or may wrap."""


Merging = Generator[Packed, PyTree, Leaf]
"""Asks for what a state must know, and returns the merged states. See `merge_rows`."""


class MergesRows:
    """A leaf state that merges the states of many rows at once, also of rows that are repeated.

    Of other states, the rows are merged in pairs, and each counts once.
    """

    @property
    @abstractmethod
    def repeats(self) -> bool:
        """True if `with_rows` may count a row several times."""

    @abstractmethod
    def with_rows(self, rows: Leaf, target: Target) -> Generator[Packed, PyTree, Self]:
        """Stacked states, with the states of several rows merged into them.

        Every array of `self` has a leading axis of states, and every array of `rows` one of rows.
        A generator: it asks for what it must know, and returns the states. See `merge_rows`.

        Args:
            rows: what `for_row` has become in the update of each row.
            target: where each row goes.
        """


def may_repeat(state: Leaf) -> bool:
    """True if a row may count several times in a leaf state."""
    return isinstance(state, MergesRows) and state.repeats


def merge_rows(states: Sequence[Leaf], rows: Sequence[Leaf | None], target: Target) -> list[Leaf]:
    """For each of several leaf states, stacked, the merge with its states of rows.

    All states are asked at once, so that there is one scatter for the maxima of all states, and
    one for the sums: a scatter takes a time for each row, whatever the length of the row.

    Args:
        states: the leaf states; their arrays have a leading axis of `target.size`.
        rows: for each, the states of the rows; None leaves a state as it is.
        target: where each row goes.
    """
    merged = list(states)
    running: dict[int, tuple[Merging, Packed]] = {}

    def advance(i: int, generator: Merging, reply: Numbers | None) -> None:
        try:
            running[i] = generator, generator.send(reply)
        except StopIteration as end:
            running.pop(i, None)
            merged[i] = end.value

    for i, (state, row) in enumerate(zip(states, rows, strict=True)):
        if isinstance(state, MergesRows) and row is not None:
            advance(i, state.with_rows(row, target), None)
        elif row is not None:
            merged[i] = merged_in_pairs(state, row, target)
    while running:
        # Sums come last, because what is added up may depend on bounds.
        how = min((asked.how for _, asked in running.values()), key=("bound", "max", "sum").index)
        chosen = [i for i, (_, asked) in running.items() if asked.how == how]
        replies = _replies(how, [running[i][1].rows for i in chosen], target)
        for i, reply in zip(chosen, replies, strict=True):
            advance(i, running[i][0], reply)
    return merged


def _replies(how: str, arrays: list[PyTree], target: Target) -> list[Numbers]:
    # float64 holds integers of 32 bits and their sums, and double-floats of float32.
    narrow = [i for i, x in enumerate(arrays) if has_float64() and x.dtype.itemsize <= 4]
    replies: dict[int, Numbers] = {
        i: target.folded(how, x) for i, x in enumerate(arrays) if i not in narrow
    }
    if narrow:
        columns = [DoubleFloat.of(arrays[i], xp.float32) for i in narrow]
        packed = concatenate([x.reshape(x.shape[0], math.prod(x.shape[1:])) for x in columns], -1)
        whole = packed.map(lambda x: target.folded(how, x))
        start = 0
        for i, column in zip(narrow, columns, strict=True):
            end = start + math.prod(column.shape[1:])
            part = whole[:, start:end].reshape(target.size, *column.shape[1:])
            is_double = isinstance(arrays[i], DoubleFloat)
            replies[i] = part if is_double else part.to_integer(arrays[i].dtype)
            start = end
    return [replies[i] for i in range(len(arrays))]


def _scattered(how: str, x: jax.Array, place: jax.Array, places: int) -> jax.Array:
    if how == "sum":
        return at(xp.zeros((places, *x.shape[1:]), x.dtype))[place].add(x, mode="drop")
    return at(xp.full((places, *x.shape[1:]), worst("max", x.dtype)))[place].max(x, mode="drop")


_FEW_COLUMNS = 8


def _product(counts: jax.Array, rows: jax.Array) -> jax.Array:
    """The sums of rows (N, K), each as often as it counts: (replicas, K)."""

    def product(dtype: DTypeLike) -> jax.Array:
        a, b = rows.astype(dtype), counts.astype(dtype)
        return xp.matmul(a.T, b, precision=lax.Precision.HIGHEST).T.astype(rows.dtype)

    if rows.dtype != xp.float64 or rows.shape[1] <= _FEW_COLUMNS:
        return product(rows.dtype)
    # Products of small whole numbers are exact in float32, and so are their sums.
    top = xp.max(xp.abs(rows), initial=0) * xp.max(xp.sum(counts, 0)).astype(rows.dtype)
    fits = (top < 2**24) & xp.all(rows == xp.round(rows))
    return lax.cond(fits, lambda: product(xp.float32), lambda: product(xp.float64))


def merged_in_pairs(stacked: Tree, rows: Tree, target: Target) -> Tree:
    """The merge of stacked states with those of rows, by the `combine` of the state alone.

    Each row counts once.
    """
    order = xp.argsort(target.place)
    place, size = target.place[order], target.place.size
    rows = jax.tree.map(lambda x: xp.asarray(x)[order], rows)
    index = xp.arange(size, dtype=xp.int32)
    combine = vmap(lambda a, b: a.combine(b))

    def chosen(mask: jax.Array, a: Tree, b: Tree) -> Tree:
        def one(x: jax.Array, y: jax.Array) -> jax.Array:
            return xp.where(lax.expand_dims(mask, range(1, x.ndim)), x, y)

        return jax.tree.map(one, a, b)

    def double(k: jax.Array, rows: Tree) -> Tree:
        # Each row holds the merge of up to 2**k rows: itself and those before it, at its place.
        before = index - (xp.int32(1) << k)
        same = (before >= 0) & (place[before] == place)
        merged = combine(jax.tree.map(lambda x: x[before], rows), rows)
        return chosen(same, merged, rows)

    rounds = xp.int32(max(size - 1, 0).bit_length())
    rows = lax.fori_loop(xp.int32(0), rounds, double, rows)
    # The last row at a place holds the merge of all.
    last = at(xp.full(target.places, -1, xp.int32))[place].max(index, mode="drop")
    merged = combine(stacked, jax.tree.map(lambda x: x[last], rows))
    return chosen(last >= 0, merged, jax.tree.map(xp.asarray, stacked))
