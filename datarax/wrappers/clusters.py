"""`ClusterSums`: two sums of each cluster of rows, in a table of constant size."""

from typing import Any, Self

import jax
import numpy as np

from datarax._checks import integers, positive_int, x64_enabled
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike
from datarax._xp import lax, xp
from datarax.algebra.fields import state
from datarax.algebra.rows import Target
from datarax.algebra.state import State
from datarax.distributed.collectives import replicated
from datarax.metric.base import Metric
from datarax.metric.rows import with_terms
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.hashing import hashed
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import in_range

CLUSTER = "cluster"
"""The argument of `update` that has the ids."""


class ClusterSums(State, kw_only=False):
    """Two sums for each cluster of rows, in a table of `cells`.

    An id from 0 to `cells - 1` has the cell of its number. Any other id has a cell and a sign, both
    by its hash: its terms are added with that sign. So the sums of a cell that several clusters
    share are right in the mean of their squares (Alon, Matias and Szegedy 1999): products of two
    clusters cancel in expectation.

    Args:
        cells: how many cells there are.
        shape: the shape of each of the two sums of a cell.
    """

    cells: int
    shape: tuple[int, ...] = ()
    table: MetricAccumulator = state()
    """The sums, (cells, 2, *shape)."""

    def __post_init__(self) -> None:
        positive_int(self.cells, "clusters", least=2)
        self.table = MetricAccumulator(np.zeros((self.cells, 2, *self.shape)))

    def plus(self, ids: jax.Array, terms: DoubleFloat) -> Self:
        """The sums with rows added: their ids (N,), and terms (2, *shape, N)."""
        return self.plus_at(ids, terms, Target(xp.zeros(ids.shape, xp.uint32), 1))

    def plus_at(self, ids: jax.Array, terms: DoubleFloat, target: Target) -> Self:
        """Stacked states of this configuration, each with its rows added: see `apply_at`."""
        known = in_range(ids, self.cells)
        left, right = hashed(ids)
        own = xp.where(known, ids, xp.zeros((), ids.dtype)).astype(xp.uint32)
        # The cell and the sign come from different words, so that they are independent.
        cell = xp.where(known, own, left % xp.uint32(self.cells))
        sign = xp.where(known | (right & xp.uint32(1) == 0), 1, -1).astype(terms.dtype)
        one = MetricAccumulator(np.zeros((2, *self.shape)))
        # The axes of states and of cells are one axis of places.
        # A cell is a place: the mechanism for slices adds rows to clusters, too.
        flat = [xp.reshape(xp.asarray(x), (-1, *one.shape)) for x in self.table.parts]
        sign = lax.expand_dims(sign, range(terms.ndim - 1))
        signed = one.by_row(ids.size).with_parts({"parts": tuple(terms * sign)})
        added = with_terms(
            one.with_parts({"parts": tuple(flat)}), [signed], target.within(cell, self.cells)
        )
        parts = [
            xp.reshape(x, xp.shape(old))
            for x, old in zip(added.parts, self.table.parts, strict=True)
        ]
        return self.with_parts({"table": self.table.with_parts({"parts": tuple(parts)})})

    @property
    def occupied(self) -> jax.Array:
        """True for a cell with data, (cells, *shape): of one cluster, unless ids were hashed."""
        return xp.any(self.table.double.high != 0, 1)

    def residuals(self, factor: DoubleFloat) -> DoubleFloat:
        """The first sum of each cell plus the second times a factor, (cells, *shape)."""
        sums = self.table.double
        return sums[:, 0] + sums[:, 1] * factor[None]


def check_argument_is_free(metric: Metric, wrapper: str) -> None:
    """Raises unless a wrapper may add the argument `CLUSTER` to the update of a metric."""
    if any(route.argument == CLUSTER for route in metric.routes()):
        raise MetricInputError(
            f"{wrapper}: clusters= is given, and {type(metric).__name__}.update takes an argument "
            f"called {CLUSTER!r} already"
        )


def given_ids(given: ArrayLike | None, caller: str) -> Any:
    """The ids as `narrow_ids` gives them.

    Raises:
        MetricInputError: they are left out.
    """
    if given is None:
        raise MetricInputError(
            f"{caller}.update with clusters= needs the cluster of each row: pass {CLUSTER}=, "
            f"integers of shape (N,)"
        )
    return narrow_ids(given)


def narrow_ids(given: ArrayLike) -> Any:
    """Ids of 64 bits as those of 32 that JAX holds: one that does not fit becomes a hash.

    The hash is negative, so it is no id of a cell.
    """
    # JAX has cut the ids already, or keeps 64 bits.
    if isinstance(given, jax.Array) or x64_enabled():
        return given
    ids = np.asarray(given)
    if ids.dtype.kind not in "iu" or ids.dtype.itemsize < 8:
        return given
    fits = (ids >= -(2**31)) & (ids < 2**31)
    # Multiplied by 2**64 over the golden ratio, the upper bits depend on all bits.
    upper = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(33)
    return np.where(fits, ids.astype(np.int32), -1 - upper.astype(np.int32))


def checked_ids(given: ArrayLike, rows: int) -> jax.Array:
    """The id of each row, (rows,).

    Raises:
        MetricInputError: another shape.
        MetricTypeError: they are not integers.
    """
    ids = replicated(integers(given, CLUSTER, "integer ids"))
    if ids.shape not in ((), (1,), (rows,)):
        raise MetricInputError(
            f"{CLUSTER} of shape {ids.shape} for {rows} rows; expected the id of the cluster of "
            f"each row, of shape ({rows},)"
        )
    return xp.broadcast_to(ids, (rows,))
