"""`RowSample`: a random sample of as many rows of each stratum, which merges in any order."""

from collections.abc import Iterable
from typing import Self

import jax
import numpy as np

from datarax._checks import default_float, integers, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree
from datarax._xp import faster_in_numpy, lax, xp
from datarax.algebra.devices import Asking, NeedsMaxima, axes_of
from datarax.algebra.fields import state
from datarax.algebra.gathered import gathered_axes
from datarax.algebra.leaf_state import LeafState, Travel
from datarax.distributed.collectives import pack_words, replicated, unpack_words
from datarax.distributed.merge_ops import filled, zeros
from datarax.numerics.exact import Exact
from datarax.numerics.hashing import bits_of_rows, hashed, mixed

_LAST_KEY = 2**32 - 1
_BLOCK = 1 << 16
"""The number of rows added at a time on the host: most of those that follow have greater keys."""
INDEX = "index"


def row_keys(
    index: ArrayLike | None,
    counted: jax.Array,
    seen: PyTree,
    contents: Iterable[jax.Array],
    into: PyTree = None,
    data: PyTree = None,
) -> jax.Array:
    """A hash for each row, uint32: of its global id, or of its number and of what it holds.

    Without ids, equal rows get different hashes, because they come one after the other. Rows that
    come at the same time on several devices, or in states that are merged later, differ in what
    they hold. Rows that do not count, such as padding, do not change the hashes of the others.

    Args:
        index: the global id of each row, integers (rows,); or None.
        counted: the mask of the rows that count.
        seen: how many rows there were before, an integer or an `Exact`.
        contents: what the rows hold; arrays with another leading axis are left out.
        into: the state to which the rows are added.
        data: what the rows were made of, if it is more than `contents`.

    Raises:
        MetricInputError: `index` has another shape.
    """
    rows = counted.size
    if index is not None:
        ids = integers(index, INDEX, "integer ids")
        if ids.shape != (rows,):
            raise MetricInputError(
                f"{INDEX} of shape {ids.shape} for {rows} rows; expected the global id of "
                f"each row, of shape ({rows},)"
            )
        # Of the id alone, so that neither the batch nor the device changes a draw.
        left, right = hashed(replicated(ids))
        return left ^ right
    # Rows are numbered modulo 2**32: the key is a hash, so it need not be unique.
    low = seen.low if isinstance(seen, Exact) else seen.astype(xp.uint32)
    keys = mixed(low.astype(xp.uint32) + xp.cumsum(counted, dtype=xp.uint32))
    # Inside `shard_map`, all devices start at the same number. But rows that were gathered are the
    # same on all of them: with keys that differ, each device would keep other rows, and a sync
    # would take these for rows of different data.
    contents = [xp.asarray(x) for x in contents]
    rows_of = contents, data
    axes = axes_of((into, rows_of))
    for axis in sorted(axes - gathered_axes(rows_of, axes)):
        keys = mixed(keys + lax.axis_index(axis).astype(xp.uint32))
    for x in map(replicated, contents):
        if x.ndim and x.shape[0] == rows:
            keys = mixed(keys ^ bits_of_rows(x))
    return keys


class RowSample(NeedsMaxima, LeafState, kw_only=False):
    """Of each stratum, the rows with the least keys: up to `quota` rows, and `capacity` in all.

    The quota is the greatest with which the rows fit, so strata with few rows leave their room to
    others, and all rows are kept while they fit. With more data it only falls, and the rank of a
    row in its stratum only rises. So which rows are kept is a function of all rows and their keys,
    whatever the order in which they came. Keys are hashes: the sample is random.
    """

    strata: int
    """The number of strata, at most `capacity`."""
    capacity: int
    width: int
    """The number of floats of a row."""

    keys: jax.Array = state()
    """(capacity,); the rows are in the order of the strata, and of the keys within them."""
    stratum: jax.Array = state()
    """(capacity,); `strata` where there is no row."""
    data: jax.Array = state()
    """(capacity, width)"""
    quota: jax.Array = state()

    def __post_init__(self) -> None:
        positive_int(self.capacity, "capacity", least=self.strata)
        super().__post_init__()

    def empty(self) -> dict[str, PyTree]:
        return {
            "keys": filled((self.capacity,), "uint32", _LAST_KEY),
            "stratum": filled((self.capacity,), "int32", self.strata),
            "data": zeros((self.capacity, self.width), default_float().name),
            "quota": filled((), "int32", self.capacity),
        }

    def plus(self, rows: jax.Array, stratum: jax.Array, keys: jax.Array, keep: jax.Array) -> Self:
        """This with rows (N, width) added, of which the mask `keep` says whether they count."""
        rows, stratum, keys, keep, self = replicated((rows, stratum, keys, keep, self))
        stratum = xp.where(keep, stratum.astype(xp.int32), xp.int32(self.strata))
        return self._plus(rows, stratum, keys)

    def _plus_by_blocks(self, rows: PyTree, stratum: PyTree, keys: PyTree) -> Self:
        for start in range(0, len(rows), _BLOCK):
            part = slice(start, start + _BLOCK)
            some = np.flatnonzero(self._may_be_kept(stratum[part], keys[part])) + start
            if some.size:
                self = self._with(rows[some], stratum[some], keys[some], self.quota)
        return self

    @faster_in_numpy(_plus_by_blocks)  # of 20,000 rows for 1,000 places 0.3 ms, not 1.6
    def _plus(self, rows: jax.Array, stratum: jax.Array, keys: jax.Array) -> Self:
        """This with rows added; those that do not count are in a stratum that there is not."""
        # Once the sample is full, few rows of a batch have a place in it, and only they are sorted.
        few = max(1, self.capacity // 8)
        if len(rows) <= few:
            return self._with(rows, stratum, keys, self.quota)
        end = xp.cumsum(self._may_be_kept(stratum, keys), dtype=xp.int32)

        def with_few() -> Self:
            count = xp.arange(few, dtype=xp.int32)
            index = xp.minimum(xp.searchsorted(end, count, side="right"), len(rows) - 1)
            used = xp.where(count < end[-1], stratum[index], xp.int32(self.strata))
            return self._with(rows[index], used, keys[index], self.quota)

        def with_all() -> Self:
            return self._with(rows, stratum, keys, self.quota)

        return lax.cond(end[-1] <= few, with_few, with_all)

    # Keys are random and never change, so a row that is kept has the least keys of all data: it
    # does not matter in which order, or on which device, rows come.
    def _may_be_kept(self, stratum: jax.Array, keys: jax.Array) -> jax.Array:
        """The mask of the rows whose key is not above all keys of a stratum that is full."""
        own, ends = xp.asarray(self.keys), xp.arange(self.strata + 1, dtype=xp.int32)
        start = xp.searchsorted(xp.asarray(self.stratum), ends).astype(xp.int32)
        last = xp.minimum(start[:-1] + self.quota, self.capacity) - 1
        is_full = start[1:] - start[:-1] >= self.quota
        limits = xp.where(is_full, own[last], xp.uint32(_LAST_KEY))
        in_stratum = xp.minimum(stratum, self.strata - 1)
        return (stratum < self.strata) & (keys <= limits[in_stratum])

    def _with(self, rows: jax.Array, stratum: jax.Array, keys: jax.Array, quota: jax.Array) -> Self:
        """This with further rows, and at most this quota."""
        keys = xp.concatenate([xp.asarray(self.keys), keys])
        stratum = xp.concatenate([xp.asarray(self.stratum), stratum])
        data = xp.asarray(self.data)
        rows = xp.concatenate([data, rows.astype(data.dtype)])
        index, is_row, quota = self._chosen(stratum, keys, quota)
        return self.with_parts(
            {
                "keys": xp.where(is_row, keys[index], xp.uint32(_LAST_KEY)),
                "stratum": xp.where(is_row, stratum[index], xp.int32(self.strata)),
                "data": xp.where(is_row[:, None], rows[index], xp.zeros((), data.dtype)),
                "quota": quota,
            }
        )

    def _chosen(
        self, stratum: jax.Array, keys: jax.Array, quota: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Of at least `capacity` rows, those that are kept, in order: their indices (capacity,).

        With the mask of those that are rows, and the quota.
        """
        # By stratum, then by key: the first rows of each stratum are those that stay.
        order = xp.lexsort((keys, stratum))
        ends = xp.arange(self.strata + 1, dtype=xp.int32)
        start = xp.searchsorted(stratum[order], ends).astype(xp.int32)
        count = start[1:] - start[:-1]
        quota = xp.minimum(quota, self._quota_of(count))
        # The first rows of each stratum, end to end.
        end = xp.cumsum(xp.minimum(count, quota), dtype=xp.int32)
        place = xp.arange(self.capacity, dtype=xp.int32)
        own = xp.minimum(xp.searchsorted(end, place, side="right"), self.strata - 1)
        before = end[own] - xp.minimum(count[own], quota)
        is_row = place < end[-1]
        return order[xp.where(is_row, start[own] + place - before, 0)], is_row, quota

    def _quota_of(self, count: jax.Array) -> jax.Array:
        """The greatest quota with which strata of so many rows fit."""
        # With the counts in ascending order and any j, sum min(count, quota) is at most the first j
        # counts and the quota for each of the others; for one j it is equal.
        least = xp.minimum(xp.sort(count), self.capacity + 1)
        before = xp.cumsum(least, dtype=xp.int32) - least
        others = self.strata - xp.arange(self.strata, dtype=xp.int32)
        fits = xp.where(before <= self.capacity, (self.capacity - before) // others, 0)
        has_room = before[-1] + least[-1] <= self.capacity
        return xp.where(has_room, xp.int32(self.capacity), xp.max(fits)).astype(xp.int32)

    @property
    def is_row(self) -> jax.Array:
        """The mask (capacity,) of the places that hold a row."""
        return self.stratum < self.strata

    def combine(self, other: Self) -> Self:
        stratum, keys = xp.asarray(other.stratum), xp.asarray(other.keys)
        return self._with(
            xp.asarray(other.data), stratum, keys, xp.minimum(self.quota, other.quota)
        )

    def canonical(self) -> Self:
        return self

    # Over devices: each device knows the keys and the strata of all, and so which rows are kept,
    # and where. It puts its own there, and zeros elsewhere; then these are added up, as bits.

    def ask_maxima(self, index: jax.Array, size: int) -> Asking[Self]:
        # A maximum over the devices gathers what each of them knows of itself.
        mine = (xp.arange(size, dtype=xp.int32) == index)[:, None]
        least = xp.int32(-(2**31))
        gathered = [xp.where(mine, x, least) for x in (_signed(self.keys), self.stratum)]
        *gathered, quota = yield [*gathered, -self.quota]
        keys, stratum = (x.reshape(-1) for x in gathered)
        chosen, is_row, quota = self._chosen(stratum, keys, -quota)
        place = chosen - index * self.capacity
        mine = is_row & (place >= 0) & (place < self.capacity)
        data = xp.asarray(self.data)
        own = data[xp.clip(place, 0, self.capacity - 1)]
        return self.with_parts(
            {
                "keys": xp.where(is_row, _unsigned(keys[chosen]), xp.uint32(_LAST_KEY)),
                "stratum": xp.where(is_row, stratum[chosen], xp.int32(self.strata)),
                "data": xp.where(mine[:, None], own, xp.zeros((), data.dtype)),
                "quota": quota,
            }
        )

    def to_mesh(self) -> list[Travel]:
        return [Travel("sum", [pack_words([xp.asarray(self.data)])])]

    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        (data,) = unpack_words(arrays[0][None], [xp.asarray(self.data)])
        return self.with_parts({"data": data[0]})


def _signed(keys: jax.Array) -> jax.Array:
    """Unsigned keys as signed integers of the same order."""
    return lax.bitcast_convert_type(xp.asarray(keys) ^ xp.uint32(2**31), xp.int32)


def _unsigned(keys: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(keys, xp.uint32) ^ xp.uint32(2**31)
