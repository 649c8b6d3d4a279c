"""The terms of the rows of a batch, added to stacked states: by place, by repetition, or both.

An update adds terms to its states, each of one row. If the states keep rows apart, their terms are
known one by one after one update of the whole batch. Slices, replicas and intervals are these
terms, added by place.
"""

import math
from collections.abc import Generator, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jax.typing import DTypeLike

from datarax._typing import PyTree
from datarax._xp import all_finite, at, lax, on_host, xp
from datarax.algebra.pytrees import Leaf
from datarax.distributed.merge_ops import worst
from datarax.numerics.double_float import DoubleFloat, concatenate, is_one
from datarax.numerics.sums import split_for_sum

Numbers = jax.Array | DoubleFloat


class Target(NamedTuple):
    """Where each row of a batch goes, among stacked states, and how often.

    There are `places` states, or as many for each replica, those of the first replica first.
    """

    place: jax.Array
    """The place of each row, (rows,), unsigned; rows past the last place are left out."""
    places: int
    counts: jax.Array | None = None
    """The number of times each row counts in each replica, (rows, replicas) int32; None: once."""
    counts_invalid: bool = True
    """False if states do not count what cannot be used: it is known of the data, and need not be of
    each replica."""

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
        return self._replace(place=xp.where(used, both, xp.uint32(end)), places=end)

    def tagged(self, tags: jax.Array) -> "Target":
        """The slices of each state: those in which a row counts, by a mask (rows, slices)."""
        counts = tags.astype(xp.int32)
        if self.counts is not None:
            counts = self.counts[:, :, None] * counts[:, None]
            counts = counts.reshape(len(tags), self.replicas * tags.shape[1])
        return self._replace(counts=counts)

    def repeated(self, times: int) -> "Target":
        """The target of `times` rows in place of each row."""
        if times == 1:
            return self
        counts = None if self.counts is None else xp.repeat(self.counts, times, 0)
        return self._replace(place=xp.repeat(self.place, times), counts=counts)

    def of_rows(self, known: Any) -> Any:
        """For each row, as the last axis, the reply to "bound" or "total" at its place."""

        def taken(x: jax.Array) -> jax.Array:
            at_place = xp.take(x[: self.places], self.place, 0, mode="clip")
            return xp.moveaxis(at_place, 0, -1)

        return known.map(taken) if isinstance(known, DoubleFloat) else taken(known)

    def folded(self, how: str, x: jax.Array) -> jax.Array:
        """The sums, maxima, upper bounds or totals of rows (K, rows) for each state: see `Packed`.

        Of shape (size, K).
        """
        if self.counts is None:
            return _scattered("max" if how in _MAXIMA else "sum", x, self.place, self.places)
        if how in ("bound", "total"):  # of all rows at the place: the same in all replicas
            known = self._replace(counts=None).folded(how, x)
            return xp.tile(known, (self.replicas, 1))
        # One state in each replica: the sums are a product of matrices, and need no scatter.
        if how == "sum" and self.places == 1:
            return _product(xp.where((self.place == 0)[:, None], self.counts, 0), x)
        counts = self.counts.T[None]
        if how == "sum":
            repeated = _repeated(x[:, None], counts)
        else:
            repeated = xp.where(counts > 0, x[:, None], worst("max", x.dtype))
        # (K, replicas, rows) is folded to (places, K, replicas).
        repeated = repeated.reshape(len(x) * self.replicas, x.shape[1])
        table = _scattered(how, repeated, self.place, self.places)
        table = table.reshape(self.places, len(x), self.replicas)
        return xp.moveaxis(table, 2, 0).reshape(self.size, len(x))


_MAXIMA = "max", "bound"


class Packed(NamedTuple):
    """What terms ask for: sums, maxima, bounds or totals of rows, for each stacked state.

    The reply is an array of the same dtype, or a double-float, with a leading axis of states and
    without that of rows. A state without rows has the sum 0, and as the maximum the least number of
    the dtype. A bound is at least the maximum, and not of those rows alone that count. So is a
    total: the sum of all rows at the place, each once.
    """

    how: str
    """"sum", "max", "bound" or "total"."""
    rows: Numbers
    """Integers, or double-floats whose parts are one array; with a last axis of rows. The sums of
    up to 2**16 rows do not overflow, or may wrap."""


Merging = Generator[Packed, PyTree, Leaf]
"""Asks for what must be known of the terms, and returns the states. See `merge_rows`."""


class RowTerms:
    """What takes the place of a leaf state in an update that keeps the rows of a batch apart.

    Most are a leaf state with a last axis of rows, whose update sums nothing over them. Without any
    term, its arrays are of shape ().
    """

    row_axis: ClassVar[int] = -1
    """The axis of rows of each array."""

    @property
    def num_rows(self) -> int | None:
        """The number of rows; None if no term has been added."""
        raise TypeError(f"{type(self).__name__} does not define num_rows")

    def added_to(self, stacked: Leaf, target: Target) -> Merging:
        """Adds the terms to stacked states, each of whose arrays has a leading axis of states."""
        raise TypeError(f"{type(self).__name__} does not define added_to()")

    def as_state(self) -> Leaf:
        """The terms as a state with a last axis of rows, for formulas."""
        return self


def rows_last(x: jax.Array) -> jax.Array:
    """The array with its first axis, of rows, as the last one."""
    return xp.moveaxis(x, 0, -1) if x.ndim > 1 else x


def merge_rows(
    states: Sequence[Leaf], terms: Sequence[RowTerms | None], target: Target
) -> list[Leaf]:
    """For each of several leaf states, stacked, the same with the terms of rows added.

    All are asked at once, so that there is one scatter for the maxima of all states, and one for
    the sums: a scatter takes a time for each row, whatever the length of the row.

    Args:
        states: the leaf states; their arrays have a leading axis of `target.size`.
        terms: for each, the terms of the rows; None leaves a state as it is.
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

    for i, (state, each) in enumerate(zip(states, terms, strict=True)):
        if each is not None:
            advance(i, each.added_to(state, target), None)
    while running:
        # Sums come last, because what is added up may depend on bounds and totals.
        how = min((asked.how for _, asked in running.values()), key=_ORDER.index)
        chosen = [i for i, (_, asked) in running.items() if asked.how == how]
        replies = _replies(how, [running[i][1].rows for i in chosen], target)
        for i, reply in zip(chosen, replies, strict=True):
            advance(i, running[i][0], reply)
    return merged


_ORDER = "bound", "total", "max", "sum"


def _replies(how: str, arrays: list[PyTree], target: Target) -> list[Numbers]:
    # float64 holds integers of 32 bits and their sums, and double-floats of float32.
    narrow = [i for i, x in enumerate(arrays) if x.dtype.itemsize <= 4 and is_one(x, np.float32)]
    replies: dict[int, Numbers] = {
        i: _of_pairs(how, x, target) if isinstance(x, DoubleFloat) else _reply(how, x, target)
        for i, x in enumerate(arrays)
        if i not in narrow
    }
    if narrow:
        columns = [DoubleFloat.of(arrays[i], xp.float32) for i in narrow]
        flat = [_flat(x) for x in columns]
        packed = concatenate(flat) if len(flat) > 1 else flat[0]
        whole = packed.map(lambda x: target.folded(how, x))
        start = 0
        for i, column, rows in zip(narrow, columns, flat, strict=True):
            end = start + rows.shape[0]
            part = whole[:, start:end].reshape(target.size, *column.shape[:-1])
            is_double = isinstance(arrays[i], DoubleFloat)
            replies[i] = part if is_double else part.to_integer(arrays[i].dtype)
            start = end
    return [replies[i] for i in range(len(arrays))]


def _reply(how: str, x: jax.Array, target: Target) -> jax.Array:
    return target.folded(how, _flat(x)).reshape(target.size, *x.shape[:-1])


def _flat(x: Any) -> Any:
    """An array of shape (..., rows) as one of (K, rows)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _of_pairs(how: str, x: DoubleFloat, target: Target) -> DoubleFloat:
    """The sums of double-floats that are pairs."""
    # A sum of floats would absorb small ones. Those of the upper parts are exact.
    upper, lower = split_for_sum(x.high, (x.ndim - 1,))
    return DoubleFloat.of(_reply(how, upper, target)) + _reply(how, lower + x.low, target)


def _scattered(how: str, x: PyTree, place: PyTree, places: int) -> Any:
    """The sum or the maximum of each row of an array (K, N) at each place: (places, K)."""
    if how == "max":
        empty = xp.full((places, len(x)), worst("max", x.dtype))
        if on_host(x, place):
            columns = zip(empty.T, x, strict=True)
            return np.stack([at(column)[place].max(y) for column, y in columns], -1)
        return at(empty)[place].max(x.T, mode="drop")
    if on_host(x, place) and x.dtype == np.float64:
        # Rows that are left out are counted past the end.
        end = np.minimum(place, places).astype(np.intp)
        return np.array([np.bincount(end, y, places + 1)[:places] for y in x]).T
    if on_host(x, place):
        empty = np.zeros((len(x), places), x.dtype)
        return np.stack([at(column)[place].add(y) for column, y in zip(empty, x, strict=True)], -1)
    return at(xp.zeros((places, len(x)), x.dtype))[place].add(x.T, mode="drop")


_FEW_COLUMNS = 8


def _product(counts: PyTree, rows: PyTree) -> Any:
    """The sums of rows (K, N), each as often as it counts: (replicas, K)."""

    def product(dtype: DTypeLike) -> jax.Array:
        a, b = rows.astype(dtype), counts.astype(dtype)
        return xp.matmul(a, b, precision=lax.Precision.HIGHEST).T.astype(rows.dtype)

    def finite_product() -> jax.Array:
        if rows.dtype != xp.float64 or min(len(rows), counts.shape[1]) <= _FEW_COLUMNS:
            return product(rows.dtype)
        # Products of small whole numbers are exact in float32, and so are their sums.
        top = xp.max(xp.abs(rows), initial=0) * xp.max(xp.sum(counts, 0)).astype(rows.dtype)
        fits = (top < 2**24) & xp.all(rows == xp.round(rows))
        return lax.cond(fits, lambda: product(xp.float32), lambda: product(xp.float64))

    def added(rows: PyTree) -> Any:
        return xp.sum(_repeated(rows[None], counts.T[:, None]), -1, dtype=rows.dtype)

    if not on_host(counts, rows):
        if not xp.issubdtype(rows.dtype, xp.floating):
            return product(rows.dtype)
        return lax.cond(xp.all(xp.isfinite(rows)), finite_product, lambda: added(rows))
    if not all_finite(rows):
        return np.concatenate([added(row[None]) for row in rows], 1)
    if len(rows) <= _FEW_COLUMNS:
        # A library for matrices would start threads, which takes longer.
        return np.einsum("kn,nr->rk", rows, counts.astype(rows.dtype))
    return finite_product()


def _repeated(rows: PyTree, counts: PyTree) -> Any:
    """The rows as often as they count; 0 for those that do not, also where they are infinite."""
    return xp.where(counts > 0, rows * counts.astype(rows.dtype), rows.dtype.type(0))
