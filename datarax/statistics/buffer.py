"""Buffers keep the first rows, pairs or features, and count those beyond the capacity."""

from typing import Any, Self

import jax
import numpy as np

from datarax._checks import (
    as_float,
    default_float,
    numeric,
    positive_int,
    warn_of_rounded,
)
from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import at, faster_in_numpy, lax, xp
from datarax.algebra.devices import Asking, NeedsMaxima
from datarax.algebra.fields import state
from datarax.algebra.leaf_state import LeafState, Travel
from datarax.distributed.collectives import pack_words, replicated, unpack_words
from datarax.distributed.merge_ops import added_limbs, limbs_to_add, zeros
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import Exact
from datarax.numerics.float_ranges import keys_of
from datarax.numerics.limbs import Limbs, add_limbs, sum_integers
from datarax.statistics.batches import least_weight, pairs, rows_weight
from datarax.statistics.cross_moments import check_features
from datarax.statistics.invalid_counts import (
    BEYOND_CAPACITY,
    NOT_SAMPLED,
    CountsInvalid,
    not_finite,
)

Keys = tuple[jax.Array, jax.Array]
"""A number in two floats: see `datarax.numerics.float_ranges`."""


class Rows(NeedsMaxima, LeafState, kw_only=False):
    """The first `capacity` rows that were appended, and the count of the rows that did not fit."""

    capacity: int
    shape: tuple[int, ...]
    """The shape of one row."""
    dtype: str

    data: jax.Array = state()
    """(capacity, *shape); only the first `filled` rows are data."""
    filled: jax.Array = state()
    """The number of rows that are kept."""
    lost: Limbs = state()
    """The number of rows that did not fit."""

    def __post_init__(self) -> None:
        positive_int(self.capacity, "capacity")
        super().__post_init__()

    def empty(self) -> dict[str, PyTree]:
        return {
            "data": zeros((self.capacity, *self.shape), self.dtype),
            "filled": zeros((), "int32"),
            "lost": (zeros((), "int32"), zeros((), "uint32")),
        }

    def _append_those_that_fit(self, rows: Any, keep: Any, lost: Limbs | None = None) -> Self:
        """As `append`: only the rows that fit are read."""
        kept, start = np.flatnonzero(keep), int(self.filled)
        fits = kept[: self.capacity - start]
        return self._with_next(rows[fits], kept.size - fits.size, lost)

    def _with_next(self, rows: Any, num_lost: int, lost: Limbs | None = None) -> Self:
        """This with rows that fit appended in NumPy, and the count of others."""
        start, data = int(self.filled), self.data
        if len(rows):
            data: Any = np.array(data)
            data[start : start + len(rows)] = rows
        beyond: Any = np.int32(num_lost >> 32), np.uint32(num_lost & 0xFFFFFFFF)
        total = add_limbs(self.lost, beyond)
        return self.with_parts(
            {
                "data": data,
                "filled": np.int32(start + len(rows)),
                "lost": total if lost is None else add_limbs(total, lost),
            }
        )

    @faster_in_numpy(_append_those_that_fit)  # of 65,536 rows of five floats 0.2 ms, not 2
    def append(self, rows: jax.Array, keep: jax.Array, lost: Limbs | None = None) -> Self:
        """Appends the rows marked in `keep`, in order, and counts those that do not fit.

        `lost` is a further count to add: that of the rows which another state has lost.
        """
        rows, keep = replicated(rows), replicated(keep)
        # The rows to keep take the next free places, in order.
        place = self.filled + xp.cumsum(keep.astype(xp.int32)) - 1
        fits = keep & (place < self.capacity)
        # The scatter ignores positions that are out of range.
        place = xp.where(fits, place, xp.int32(self.capacity))
        data = at(xp.asarray(self.data))[place].set(rows, mode="drop")
        total = add_limbs(self.lost, sum_integers(keep & ~fits, (0,)))
        return self.with_parts(
            {
                "data": data,
                "filled": self.filled + xp.sum(fits, dtype=xp.int32),
                "lost": total if lost is None else add_limbs(total, lost),
            }
        )

    @property
    def is_filled(self) -> jax.Array:
        """The mask (capacity,) of the rows that are data: the first `filled`."""
        return xp.arange(self.capacity, dtype=xp.int32) < self.filled

    @property
    def kept(self) -> jax.Array:
        """The rows of a buffer of vectors, (capacity, width); 0 from `filled` on."""
        return xp.where(self.is_filled[:, None], xp.asarray(self.data), 0)

    @property
    def overflow(self) -> Exact:
        """The number of rows that did not fit."""
        return Exact(*map(xp.asarray, self.lost))

    def unusable(self) -> dict[str, PyTree]:
        return {BEYOND_CAPACITY: self.overflow}

    def combine(self, other: Self) -> Self:
        return self.append(xp.asarray(other.data), other.is_filled, other.lost)

    def canonical(self) -> Self:
        return self

    # Over devices: each device puts its rows where they belong in the merged buffer, and zeros
    # elsewhere. The buffers are then added up, as bits. A device knows where its rows belong from
    # how many rows the devices before it have.

    def ask_maxima(self, index: jax.Array, size: int) -> Asking[Self]:
        # A maximum over the devices gathers the counts: each device knows one of them.
        mine = xp.arange(size, dtype=xp.int32) == index
        (filled,) = yield [xp.where(mine, self.filled, 0)]
        before = xp.where(xp.arange(filled.size, dtype=xp.int32) < index, filled, 0)
        # The sum, cut off at the capacity: the sum itself may overflow.
        start = lax.associative_scan(lambda a, b: a + xp.minimum(b, self.capacity - a), before)[-1]
        empty = self.emptied()
        moved = empty.with_parts({"filled": start, "lost": self.lost})
        moved = moved.append(xp.asarray(self.data), self.is_filled)
        return moved.with_parts({"filled": moved.filled - start})

    def to_mesh(self) -> list[Travel]:
        data = pack_words([xp.asarray(self.data)])
        return [Travel("sum", [data, self.filled, *limbs_to_add(self.lost)])]

    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        # The rows travelled as words of bits. Added up as floats, -0.0 beside zeros would become
        # 0.0.
        words, filled, *lost = arrays
        (data,) = unpack_words(words[None], [xp.asarray(self.data)])
        return self.with_parts({"data": data[0], "filled": filled, "lost": added_limbs(lost)})


class WeightedRows(Rows):
    """Rows of floats. The last float of a row is the weight of the others."""

    def _append_pairs_that_fit(self, p: Any, t: Any, w: Any) -> Self:
        """As `append_pairs`: only of the pairs that fit, rows are made."""
        p, t, w = (x.reshape(-1) for x in (p, t, w))
        kept = np.flatnonzero(w)
        fits = kept[: self.capacity - int(self.filled)]
        return self._with_next(_pair_rows(p[fits], t[fits], w[fits]), kept.size - fits.size)

    @faster_in_numpy(_append_pairs_that_fit)  # of 65,536 pairs that do not fit 0.1 ms, not 2
    def append_pairs(self, p: jax.Array, t: jax.Array, w: jax.Array) -> Self:
        """Appends pairs as rows (keys of `p`, keys of `t`, weight), but those of weight zero.

        All three arrays have one shape.
        """
        return self.append(_pair_rows(p, t, w), w.astype(xp.bool_).reshape(-1))

    def canonical(self) -> Self:
        """The rows sorted; equal rows become one with their total weight."""
        used, data = self.is_filled, xp.asarray(self.data)
        # Used rows first, in the order of their columns; the last column is the weight.
        # `lexsort` takes the last key as the first to compare.
        order = xp.lexsort((*data[:, -2::-1].T, ~used))
        data, used = xp.where(used[:, None], data, 0)[order], used[order]
        keys, w = data[:, :-1], data[:, -1]
        first = used & (xp.any(keys != xp.roll(keys, 1, 0), 1) | ~xp.roll(used, 1))
        first = at(first)[0].set(used[0])  # the roll compared it with the last row
        # The position `capacity` is out of range: the scatters ignore it.
        place = xp.where(used, xp.cumsum(first.astype(xp.int32)) - 1, self.capacity)
        data = at(xp.zeros_like(data))[place, -1].add(w, mode="drop")
        data = at(data)[place, :-1].set(keys, mode="drop")
        return self.with_parts({"data": data, "filled": xp.sum(first, dtype=xp.int32)})


class KeepsRows:
    """The row counts of states that keep rows, up to a capacity, in a child named `rows`."""

    rows: Rows

    @property
    def filled(self) -> jax.Array:
        """The number of rows that are kept."""
        return xp.asarray(self.rows.filled)

    @property
    def overflow(self) -> Exact:
        """The number of rows that did not fit."""
        return self.rows.overflow


class Buffer(KeepsRows, CountsInvalid, kw_only=False):
    """Keeps the first `capacity` rows of data, and counts the others.

    Args:
        capacity: how many rows are kept. A merge keeps the first `capacity` rows of both.
        shape: the shape of one row.
        dtype: the dtype of the kept rows.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import Buffer
        >>> kept = Buffer(capacity=3).update(jnp.array([1.0, 2.0])).update(jnp.array([3.0, 4.0]))
        >>> print(kept.data, kept.filled, kept.overflow)
        [1. 2. 3.] 3 1
    """

    capacity: int
    shape: tuple[int, ...] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self.shape, self.dtype = tuple(self.shape), np.dtype(self.dtype).name
        self.rows = Rows(self.capacity, self.shape, self.dtype)

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """Appends rows of shape (N, *shape); rows of weight zero are left out."""
        x = numeric(values, "values")
        if x.ndim != 1 + len(self.shape) or x.shape[1:] != self.shape:
            raise MetricInputError(f"values of shape {x.shape}; expected (N, *{self.shape})")
        kept = xp.dtype(self.dtype)
        if not (xp.issubdtype(kept, xp.floating) or np.can_cast(x.dtype, kept)):
            raise MetricTypeError(f"values of dtype {x.dtype} do not fit a Buffer of {kept}")
        keep, invalid = rows_weight(not_finite(x, tuple(range(1, x.ndim))), weights)
        # A row is kept or not. How much it weighs is not stored.
        keep = keep.astype(xp.bool_)
        return self.with_batch(invalid, rows=self.rows.append(x.astype(kept), keep))

    @property
    def data(self) -> jax.Array:
        """The rows, of shape (capacity, *shape); only the first `filled` are data."""
        return xp.asarray(self.rows.data)


class KeepsPairs(KeepsRows):
    """How pairs of a prediction and a target are read that are kept as `WeightedRows`."""

    @property
    def columns(self) -> tuple[Keys, Keys, jax.Array]:
        """The keys of predictions and targets, and weights, each (capacity,); 0 from `filled` on.

        The first key decides the order, then the second one.
        """
        x, x_low, y, y_low, w = self.rows.kept.T
        return (x, x_low), (y, y_low), w


def _pair_rows(p: jax.Array, t: jax.Array, w: jax.Array) -> jax.Array:
    """The rows of pairs, (N, 5)."""
    # On an `Explicit` mesh, one of a pair may be sharded and the other not.
    parts = replicated((*keys_of(p), *keys_of(t), as_float(w).astype(default_float())))
    # Two keys for each number, so that the order of float64 and of large integers is kept.
    data = xp.stack([part.reshape(-1) for part in parts], -1)
    # Copied as they are, subnormal numbers would differ from zero when they are read.
    return xp.where(xp.abs(data) >= least_weight(), data, 0)


class PairBuffer(KeepsPairs, CountsInvalid, kw_only=False):
    """Up to `capacity` pairs of a prediction and a target, each with its weight.

    Pairs that do not fit are dropped and counted: those of later batches, and of later devices.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import PairBuffer
        >>> seen = PairBuffer(capacity=2).update(jnp.array([1.0, 2.0, 3.0]), jnp.zeros(3))
        >>> print(seen.filled, seen.overflow)
        2 1
    """

    capacity: int
    """The number of pairs kept, also after a merge. A pair takes 20 bytes (40 with x64)."""
    rows: WeightedRows = state()

    def __post_init__(self) -> None:
        self.rows = WeightedRows(self.capacity, (5,), default_float().name)  # type: ignore[reportIncompatibleVariableOverride]

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Appends `preds` and `target`, both of any one shape; pairs of weight zero are skipped.

        Integers of 32 bits are not rounded, nor is float64 on the host.
        """
        p, t, w, invalid = pairs(preds, target, weights, (), any_range=True)
        warn_of_rounded(preds=p, target=t)
        rows = self.rows.append_pairs(p, t, xp.broadcast_to(w, p.shape))
        return self.with_batch(invalid, rows=rows)


class SampledRows(WeightedRows):
    """Rows with their weights, which stand for those that do not fit."""

    def unusable(self) -> dict[str, PyTree]:
        return {NOT_SAMPLED: self.overflow}


class FeatureBuffer(KeepsRows, CountsInvalid, kw_only=False):
    """The first `capacity` rows of features, each with its weight; counts those that do not fit.

    Rows with a NaN or an infinity are excluded, and counted in `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import FeatureBuffer
        >>> seen = FeatureBuffer(num_features=3, capacity=2).update(jnp.ones((5, 3)))
        >>> print(seen.filled, seen.overflow)
        2 3
    """

    num_features: int
    """F, how many elements each row has."""
    capacity: int
    """The number of rows that are kept, also after a merge."""

    def __post_init__(self) -> None:
        positive_int(self.num_features, "num_features")
        self.rows = SampledRows(self.capacity, (self.num_features + 1,), default_float().name)

    def update(self, features: ArrayLike, *, weights: Weights = None) -> Self:
        """Appends features (N, F); rows of weight zero are skipped.

        Raises:
            MetricInputError: another shape.
        """
        x = as_float(numeric(features, "features"))
        check_features(x, self.num_features)
        w, invalid = rows_weight(not_finite(x, 1), weights)
        x, w = replicated((x, w))
        data = xp.concatenate([x, as_float(w)[:, None]], 1)
        return self.with_batch(invalid, rows=self.rows.append(data, w.astype(xp.bool_)))

    @property
    def columns(self) -> DoubleFloat:
        """Features and weights, (capacity, F + 1); 0 from `filled` on."""
        return DoubleFloat.of(self.rows.kept)
