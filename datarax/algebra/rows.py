"""The terms of the rows of a batch, added to stacked states: by place, by repetition, or both.

An update adds terms to its states, each of one row. If the states keep rows apart, their terms are
known one by one after one update of the whole batch. Slices, replicas and intervals are these
terms, added by place.
"""

import math
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import islice
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import numpy as np
from jax.typing import DTypeLike

from datarax._checks import default_float
from datarax._typing import PyTree
from datarax._xp import at, lax, on_host, xp
from datarax.algebra.fold import sums_of_rows
from datarax.algebra.pytrees import ArrayNode, Leaf
from datarax.distributed.merge_ops import worst
from datarax.numerics.double_float import DoubleFloat, concatenate, has_wide, is_one
from datarax.numerics.sums import split_for_sum

Numbers = jax.Array | DoubleFloat
T = TypeVar("T", bound="RowTerms")


class Target(NamedTuple):
    """Where each row of a batch goes, among stacked states, and how often.

    There are `places` states, or as many for each replica, those of the first replica first. Each
    draw of the rows gives a replica for each tag, those of the first draw first.
    """

    # Unsigned, because for a signed index JAX adds operations that look for negative ones.
    place: jax.Array
    """The place of each row, (rows,), unsigned; rows past the last place are left out."""
    places: int
    counts: jax.Array | None = None
    """The number of times each row counts in each draw, (rows, draws) int32; None: once."""
    tags: jax.Array | None = None
    """The tags of each row, a mask (rows, tags): it counts in the replicas of its tags alone. None
    if there is one replica for each draw."""
    counts_invalid: bool = True
    """False if states do not count what cannot be used: it is known of the data, and need not be of
    each replica."""

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return self.draws * (1 if self.tags is None else self.tags.shape[1])

    @property
    def draws(self) -> int:
        """The number of draws."""
        return 1 if self.counts is None else self.counts.shape[1]

    @property
    def times(self) -> jax.Array | None:
        """How often each row counts in each replica, (rows, replicas) int32; None: once."""
        if self.tags is None:
            return self.counts
        times = self.tags.astype(xp.int32)
        if self.counts is None:
            return times
        return (self.counts[:, :, None] * times[:, None]).reshape(len(times), self.replicas)

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
        if self.tags is not None:
            tags = (self.tags[:, :, None] & tags[:, None]).reshape(len(tags), -1)
        return self._replace(tags=tags)

    def repeated(self, times: int) -> "Target":
        """The target of `times` rows in place of each row."""
        if times == 1:
            return self
        return self.each(lambda x: xp.repeat(x, times, 0))

    def each(self, change: Callable[[jax.Array], jax.Array]) -> "Target":
        """The target with each of its arrays changed, whose first axis is that of rows."""
        place, counts, tags = jax.tree.map(change, (self.place, self.counts, self.tags))
        return self._replace(place=place, counts=counts, tags=tags)

    def of_rows(self, known: Any) -> Any:
        """For each row, as the last axis, the reply to "bound" or "total" at its place.

        With tags, they are the first axis: see `by_tag`.
        """

        def taken(x: jax.Array) -> jax.Array:
            if self.tags is None:
                # `clip`, because a row past the last place is left out later, so any reply will do.
                at_place = xp.take(x[: self.places], self.place, 0, mode="clip")
                return xp.moveaxis(at_place, 0, -1)
            tags = self.tags.shape[1]
            x = x[: tags * self.places].reshape(tags, self.places, *x.shape[1:])
            return xp.moveaxis(xp.take(x, self.place, 1, mode="clip"), 1, -1)

        return known.map(taken) if isinstance(known, DoubleFloat) else taken(known)

    def folded(self, how: str, x: jax.Array) -> jax.Array:
        """The sums, maxima, upper bounds or totals of rows (K, rows) for each state: see `Packed`.

        Of shape (size, K).
        """
        if how in ("bound", "total"):  # the same in all draws
            how = "max" if how == "bound" else "sum"
            known = self._replace(counts=None).folded(how, x)
            return known if self.draws == 1 else xp.tile(known, (self.draws, 1))
        if (times := self.times) is None:
            return _scattered(how, x, self.place, self.places)
        # One state in each replica: the sums are a product of matrices, and need no scatter.
        if how == "sum" and self.places == 1:
            return _product(xp.where((self.place == 0)[:, None], times, 0), x)
        counts = times.T[None]
        if how == "sum":
            repeated = _repeated(x[:, None], counts)
        else:
            repeated = xp.where(counts > 0, x[:, None], worst("max", x.dtype))
        # (K, replicas, rows) is folded to (places, K, replicas).
        repeated = repeated.reshape(len(x) * self.replicas, x.shape[1])
        table = _scattered(how, repeated, self.place, self.places)
        table = table.reshape(self.places, len(x), self.replicas)
        return xp.moveaxis(table, 2, 0).reshape(self.size, len(x))

    def by_tag(self, x: Any) -> Any:
        """Terms with a first axis of tags, of size 1, if there are tags."""
        return x if self.tags is None else x[None]

    def apart(self, how: str, rows: list[DoubleFloat]) -> "Packed":
        """Asks for sums or totals of double-floats (..., rows); with tags, these are the first
        axis."""
        return Packed(how, rows, self.tags is not None)

    def folded_apart(self, how: str, arrays: Sequence[Any]) -> list[DoubleFloat]:
        """The sums or totals of rows (tags, ..., rows), which differ by tag: (size, ...)."""
        if how == "total" and self.counts is not None:  # the same in all draws
            known = self._replace(counts=None).folded_apart(how, arrays)
            return [concatenate([x] * self.draws) for x in known]
        assert self.tags is not None
        used = (self.tags & (self.place < self.places)[:, None]).T

        def of_tags(x: DoubleFloat) -> DoubleFloat:
            mask = lax.expand_dims(used, range(1, x.ndim - 1))
            return x.map(lambda part: xp.where(mask, part, xp.zeros((), part.dtype)))

        if self.counts is None and self.places == 1:
            return sums_of_rows([of_tags(x) for x in arrays])
        # One by one: to pack them would write an array of all tags and rows.
        draws = self._replace(tags=None)
        sums = [_replies(draws, "sum", [of_tags(x)])[0] for x in arrays]
        return [x.map(self._tags_first) for x in sums]

    def _tags_first(self, x: jax.Array) -> jax.Array:
        """States of draws and places, (size, tags, ...), as those of draws, tags and places."""
        apart = x.reshape(self.draws, self.places, *x.shape[1:])
        return xp.moveaxis(apart, 2, 1).reshape(self.size, *x.shape[2:])


class Packed(NamedTuple):
    """Arrays of rows, and how they are reduced for each stacked state: sum, max, bound or total.

    The reply is a list. For each of `rows` it holds an array of the same dtype, or a double-float,
    with a leading axis of states and without that of rows. A state without rows has the sum 0, and
    as the maximum the least number of the dtype. A bound is at least the maximum, and not of those
    rows alone that count. So is a total: the sum of all rows at the place that have the tag, each
    once. Where rows differ by tag, as what is made of `Target.of_rows` does, `Target.apart` asks
    for their sums and totals.
    """

    how: str
    """"sum", "max", "bound" or "total"."""
    rows: Sequence[Numbers]
    """Integers, or double-floats whose parts are one array; with a last axis of rows. The sums of
    up to 2**16 rows do not overflow, or may wrap."""
    differ: bool = False
    """True if the rows differ by tag: their first axis is of tags, or of size 1."""

    @property
    def order(self) -> tuple[int, bool]:
        """What is asked first: sums come last, because what is added up may depend on the rest."""
        return ("bound", "total", "max", "sum").index(self.how), self.differ


Merging = Generator[Packed, list[Any], Leaf]
"""Asks for what must be known of the terms, and returns the states. See `merge_rows`."""


class RowTerms(ArrayNode):
    """The terms of single rows, in an update that keeps the rows of a batch apart.

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


def in_float64(terms: T) -> T | None:
    """Terms that are numbers in float64; None where programs or the default float have others."""
    return terms if has_wide(default_float()) else None


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

    # A state asks by `yield` and gets the reply by `send`, so that its formula reads from top to
    # bottom although others are asked at the same time.
    def advance(i: int, generator: Merging, reply: list[Any] | None) -> None:
        try:
            running[i] = generator, generator.send(reply)  # type: ignore[arg-type]
        except StopIteration as end:
            running.pop(i, None)
            merged[i] = end.value

    for i, (state, each) in enumerate(zip(states, terms, strict=True)):
        if each is not None:
            advance(i, each.added_to(state, target), None)
    while running:
        # In a fixed order, so that states which ask for the same kind wait for each other and share
        # a scatter.
        first = min((asked for _, asked in running.values()), key=lambda asked: asked.order)
        chosen = {i: each for i, each in running.items() if each[1].order == first.order}
        arrays = [x for _, asked in chosen.values() for x in asked.rows]
        fold = target.folded_apart if first.differ else partial(_replies, target)
        replies = iter(fold(first.how, arrays))
        for i, (generator, asked) in chosen.items():
            advance(i, generator, list(islice(replies, len(asked.rows))))
    return merged


def _replies(target: Target, how: str, arrays: list[PyTree]) -> list[Any]:
    def reply(x: jax.Array) -> jax.Array:
        return target.folded(how, _as_matrix(x)).reshape(target.size, *x.shape[:-1])

    def of_pairs(x: DoubleFloat) -> DoubleFloat:
        # A sum of floats would absorb small ones. Those of the upper parts are exact.
        upper, lower = split_for_sum(x.high, (x.ndim - 1,))
        return DoubleFloat.of(reply(upper)) + reply(lower + x.low)

    # float64 holds integers of 32 bits and their sums, and double-floats of float32.
    narrow = [i for i, x in enumerate(arrays) if x.dtype.itemsize <= 4 and is_one(x, np.float32)]
    replies: dict[int, Numbers] = {
        i: of_pairs(x) if isinstance(x, DoubleFloat) else reply(x)
        for i, x in enumerate(arrays)
        if i not in narrow
    }
    if narrow:
        # All in one array: a scatter takes a time for each row, not for each column.
        columns = [DoubleFloat.of(arrays[i], xp.float32) for i in narrow]
        flat = [_as_matrix(x) for x in columns]
        packed = concatenate(flat) if len(flat) > 1 else flat[0]
        whole = packed.apply(lambda x, target: target.folded(how, x), target)
        start = 0
        for i, column, rows in zip(narrow, columns, flat, strict=True):
            end = start + rows.shape[0]
            part = whole[:, start:end].reshape(target.size, *column.shape[:-1])
            is_double = isinstance(arrays[i], DoubleFloat)
            replies[i] = part if is_double else part.to_integer(arrays[i].dtype)
            start = end
    return [replies[i] for i in range(len(arrays))]


def _as_matrix(x: Any) -> Any:
    """An array of shape (..., rows) as one of (K, rows)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _scattered(how: str, x: PyTree, place: PyTree, places: int) -> Any:
    """The sum or the maximum of each row of an array (K, N) at each place: (places, K)."""
    if how == "max":
        empty = xp.full((places, len(x)), worst("max", x.dtype))
        if on_host(x, place):
            # Column by column, because NumPy scatters fast into one flat array by one flat index.
            columns = zip(empty.T, x, strict=True)
            return np.stack([at(column)[place].max(y) for column, y in columns], -1)
        return at(empty)[place].max(x.T, mode="drop")
    if on_host(x, place) and x.dtype == np.float64:
        # Rows that are left out are counted past the end.
        # Once for all columns: `bincount` would convert another dtype each time.
        end = np.minimum(place, places).astype(np.intp)
        return np.array([np.bincount(end, y, places + 1)[:places] for y in x]).T
    if on_host(x, place):
        empty = np.zeros((len(x), places), x.dtype)
        return np.stack([at(column)[place].add(y) for column, y in zip(empty, x, strict=True)], -1)
    return at(xp.zeros((places, len(x)), x.dtype))[place].add(x.T, mode="drop")


_FEW_COLUMNS = 8


def _product(counts: PyTree, rows: PyTree) -> Any:
    """The sums of rows (K, N), each as often as it counts: (replicas, K)."""

    def product(rows: PyTree, dtype: DTypeLike) -> Any:
        if on_host(counts, rows) and len(rows) <= _FEW_COLUMNS:
            # A library for matrices would start threads, which takes longer.
            return np.einsum("kn,nr->kr", rows.astype(dtype), counts.astype(dtype))
        a, b = rows.astype(dtype), counts.astype(dtype)
        # Accelerators multiply float32 in fewer bits by default (TF32, bfloat16), and sums of
        # counts would not be exact.
        return xp.matmul(a, b, precision=lax.Precision.HIGHEST)

    def of_finite(rows: PyTree) -> Any:
        if rows.dtype != xp.float64 or min(len(rows), counts.shape[1]) <= _FEW_COLUMNS:
            return product(rows, rows.dtype)
        # Products of small whole numbers are exact in float32, and so are their sums.
        top = xp.max(xp.abs(rows), initial=0) * xp.max(xp.sum(counts, 0)).astype(rows.dtype)
        fits = (top < 2**24) & xp.all(rows == xp.round(rows))
        return lax.cond(
            fits,
            lambda: product(rows, xp.float32).astype(rows.dtype),
            lambda: product(rows, rows.dtype),
        )

    def of_any(rows: PyTree) -> Any:
        # What does not count would give NaN, because no product of infinity is 0.
        zero = xp.zeros((), rows.dtype)
        sums = product(xp.where(xp.isfinite(rows), rows, zero), rows.dtype)
        for special in (np.inf, -np.inf, np.nan):
            found = xp.isnan(rows) if np.isnan(special) else rows == special
            sums = sums + xp.where(product(found, xp.float32) > 0, rows.dtype.type(special), zero)
        return sums

    if not xp.issubdtype(rows.dtype, xp.floating):
        return product(rows, rows.dtype).T
    return lax.cond(xp.all(xp.isfinite(rows)), of_finite, of_any, rows).T


def _repeated(rows: PyTree, counts: PyTree) -> Any:
    """The rows as often as they count; 0 for those that do not, also where they are infinite."""
    return xp.where(counts > 0, rows * counts.astype(rows.dtype), rows.dtype.type(0))
