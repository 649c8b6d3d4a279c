"""`ClusteredPoints`: points in clusters with their weights, or a uniform sample of them."""

from typing import Any, NamedTuple, Self

import jax
import numpy as np

from datarax._checks import as_float, default_float, positive_int
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import at, faster_in_numpy, xp
from datarax.algebra.devices import Asking
from datarax.algebra.fields import state
from datarax.algebra.leaf_state import Travel
from datarax.distributed.collectives import replicated
from datarax.distributed.merge_ops import added_limbs, limbs_to_add, zeros
from datarax.numerics.exact import Exact
from datarax.numerics.hashing import bits_of_rows, mixed
from datarax.numerics.limbs import Limbs, add_limbs, as_double, limbs_from_int
from datarax.numerics.scaling import power_of_two_near_reciprocal
from datarax.statistics.batches import least_weight, rows_weight
from datarax.statistics.cluster_moments import labelled_points
from datarax.statistics.invalid_counts import NOT_SAMPLED, CountsInvalid, not_finite, out_of_range
from datarax.statistics.moments import as_double as of_parts
from datarax.statistics.row_sample import RowSample, row_keys


def _answered(asking: Asking[Any], known: list[jax.Array]) -> Any:
    """The result of what has asked once, with the answer."""
    try:
        asking.send(known)
    except StopIteration as end:
        return end.value
    raise AssertionError("a sample asks once")


class UniformSample(RowSample, kw_only=False):
    """A uniform sample of weighted rows: all while they fit. Counts the rows that are left out.

    The last float of a row is its weight. While all rows fit, equal rows may become one with their
    total weight, whose key is a hash of what it holds: see `canonical`.
    """

    lost: Limbs = state()
    """The number of rows that are left out."""

    def empty(self) -> dict[str, PyTree]:
        return super().empty() | {"lost": (zeros((), "int32"), zeros((), "uint32"))}

    def plus(self, rows: jax.Array, stratum: jax.Array, keys: jax.Array, keep: jax.Array) -> Self:
        added = super().plus(rows, stratum, keys, keep)
        before = xp.concatenate([self.is_row, replicated(keep)])
        return added.with_parts({"lost": self._lost_of(before, added, self.lost)})

    def combine(self, other: Any) -> Self:
        both = super().combine(other)
        before = xp.concatenate([self.is_row, other.is_row])
        lost = add_limbs(self.lost, other.lost)
        return both.with_parts({"lost": self._lost_of(before, both, lost)})

    def _lost_of(self, before: jax.Array, after: Self, lost: Limbs) -> Limbs:
        """The count of lost rows with those that were rows before, and are not in `after`."""
        left_out = xp.sum(before, dtype=xp.int32) - xp.sum(after.is_row, dtype=xp.int32)
        return add_limbs(lost, limbs_from_int(left_out))

    @property
    def overflow(self) -> Exact:
        """The number of rows that are left out."""
        return Exact(*map(xp.asarray, self.lost))

    def unusable(self) -> dict[str, PyTree]:
        return {NOT_SAMPLED: self.overflow}

    def canonical(self) -> Self:
        """Sorted rows, and equal rows as one, if none is left out; else the same sample.

        Then the keys, which were those of the order in which the rows came, are new ones.
        """
        used, data = self.is_row, xp.asarray(self.data)
        data = xp.where(used[:, None], data, 0)
        order = xp.lexsort((*data[:, -2::-1].T, ~used))
        data, used = data[order], used[order]
        values, w = data[:, :-1], data[:, -1]
        first = used & (xp.any(values != xp.roll(values, 1, 0), 1) | ~xp.roll(used, 1))
        first = at(first)[0].set(used[0])  # the roll compared it with the last row
        # The position `capacity` is out of range: the scatters ignore it.
        place = xp.where(used, xp.cumsum(first.astype(xp.int32)) - 1, self.capacity)
        merged = at(xp.zeros_like(data))[place, -1].add(w, mode="drop")
        merged = at(merged)[place, :-1].set(values, mode="drop")
        count = xp.sum(first, dtype=xp.int32)
        is_row = xp.arange(self.capacity, dtype=xp.int32) < count
        keys = mixed(bits_of_rows(merged[:, :-1]))
        order, empty = xp.lexsort((keys, ~is_row)), self.empty()
        parts = {
            "keys": xp.where(is_row, keys[order], empty["keys"]),
            "stratum": xp.where(is_row, xp.int32(0), empty["stratum"]),
            "data": xp.where(is_row[:, None], merged[order], 0),
        }
        complete = (self.lost[0] == 0) & (self.lost[1] == 0)
        return self.with_parts(
            {name: xp.where(complete, x, getattr(self, name)) for name, x in parts.items()}
        )

    def ask_maxima(self, index: jax.Array, size: int) -> Asking[Self]:
        asking = super().ask_maxima(index, size)
        known = yield next(asking)
        before = known[1].reshape(-1) < self.strata  # the strata of all rows on all devices
        sample = _answered(asking, known)
        # Counted once: by the first device.
        lost = self._lost_of(before, sample, self.lost)
        lost = tuple(xp.where(index == 0, x, y) for x, y in zip(lost, self.lost, strict=True))
        return sample.with_parts({"lost": lost})

    def to_mesh(self) -> list[Travel]:
        (data,) = super().to_mesh()
        return [Travel("sum", [*data.arrays, *limbs_to_add(self.lost)])]

    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        data, *lost = arrays
        return super().from_mesh([data]).with_parts({"lost": added_limbs(lost)})


class Points(NamedTuple):
    """The points of a sample, N places of which some may hold none."""

    x: jax.Array
    """The differences from one of the points, in a unit that fits all, (N, D)."""
    label: jax.Array
    """The cluster of each point, int32 (N,)."""
    weight: jax.Array
    """(N,); 0 where there is no point."""


class ClusteredPoints(CountsInvalid, kw_only=False):
    """The points of clusters with their weights: all while they fit, else a uniform sample.

    Points with a NaN, an infinity or a label out of range are excluded and counted in `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.clustering.point_sample import ClusteredPoints
        >>> points = jnp.array([[1.0], [3.0], [9.0]])
        >>> seen = ClusteredPoints(2, 1, capacity=2).update(points, jnp.array([0, 0, 1]))
        >>> print(seen.rows.overflow)
        1
    """

    terms_by_row = False

    num_clusters: int
    """The number of clusters: labels are from 0 to `num_clusters - 1`."""
    num_features: int
    """The number of coordinates of each point."""
    capacity: int
    """The number of points that are kept in all. One takes `8 * num_features + 16` bytes."""

    def __post_init__(self) -> None:
        positive_int(self.num_clusters, "num_clusters")
        positive_int(self.num_features, "num_features")
        positive_int(self.capacity, "capacity")
        self.rows = UniformSample(1, self.capacity, 2 * self.num_features + 2)

    def update(
        self,
        features: ArrayLike,
        labels: ArrayLike,
        *,
        weights: Weights = None,
        index: ArrayLike | None = None,
    ) -> Self:
        """Adds points (..., D) with integer labels (...)."""
        x, labels, known = labelled_points(features, labels, self)
        w, invalid = rows_weight(not_finite(x, -1) | out_of_range(~known, labels), weights)
        dtype = default_float()
        parts = replicated((*as_double(x), xp.where(known, labels, 0), as_float(w)))
        columns = [*(part.reshape(-1, x.shape[-1]) for part in parts[:2])]
        columns += [part.reshape(-1, 1) for part in parts[2:]]
        rows = xp.concatenate([column.astype(dtype) for column in columns], -1)
        # Copied as they are, subnormal numbers would differ from zero when they are read.
        rows = xp.where(xp.abs(rows) >= least_weight(), rows, 0)
        keep, held = rows[:, -1] > 0, self.rows
        seen = xp.sum(held.is_row, dtype=xp.uint32) + xp.asarray(held.lost[1])
        keys = row_keys(index, keep, seen, [rows], self)
        stratum = xp.zeros(keep.shape, xp.int32)
        return self.with_batch(invalid, rows=held.plus(rows, stratum, keys, keep))

    def points(self) -> Points:
        """The points that are kept."""
        data, is_row = _used_places(xp.asarray(self.rows.data), xp.asarray(self.rows.is_row))
        data, size = xp.where(is_row[:, None], data, 0), self.num_features
        x = of_parts((data[:, :size], data[:, size : 2 * size]))
        x = xp.where(is_row[:, None], (x - x[:1]).to_float(), 0)
        x = x * power_of_two_near_reciprocal(xp.max(xp.abs(x)))
        return Points(x, data[:, -2].astype(xp.int32), data[:, -1])


def _first_places(data: PyTree, is_row: PyTree) -> tuple[PyTree, PyTree]:
    some = slice(max(1, np.count_nonzero(is_row)))
    return data[some], is_row[some]


@faster_in_numpy(_first_places)  # the time grows with the square of the places
def _used_places(data: jax.Array, is_row: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The places of a sample, which begin with those that hold a row."""
    return data, is_row
