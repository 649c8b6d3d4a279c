"""`CutGroups`: finds groups of rows, such as queries, that several updates got in parts."""

from typing import Self

import jax
import numpy as np

from datarax._typing import PyTree
from datarax._xp import xp
from datarax.algebra.rows import RowTerms
from datarax.algebra.state import State
from datarax.distributed.collectives import replicated
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.numerics.hashing import bits_of_integer
from datarax.statistics.accumulator import MetricAccumulator

_BUCKETS = 16
_SHIFTS = np.repeat(np.arange(4, dtype=np.int32) * 4, _BUCKETS)[None]
"""The bits of a hash before those that choose the bucket, for each place of a sample."""
_CHOSEN = np.tile(np.arange(_BUCKETS, dtype=np.int32), 4)[None]
"""What these bits must be."""
_NONE = int(np.iinfo(np.int32).max)


class CutGroups(State):
    """A sample of the groups that begin an update, and one of those that end an update.

    If batches or devices cut a group, it ends one update and begins another. Ids that are numbered
    anew in each update do not, as a rule: an update that begins with group 0 does not end with it.
    An update that holds one group alone is not looked at.

    Ids are hashed to 16 buckets, in four ways, and each bucket keeps the least hash. Both samples
    choose the same groups, so one cut is found among few updates, and cuts that are usual among
    many, in any order of merges.

    Example:
        >>> import numpy as np
        >>> from datarax.statistics.cut_groups import CutGroups
        >>> seen = CutGroups().update(np.array([7, 7, 8])).update(np.array([8, 8, 9]))
        >>> print(seen.found(), CutGroups().update(np.array([7, 7, 8])).found())
        True False
    """

    ends = MetricAccumulator(np.full((2, _CHOSEN.size), _NONE, np.int32), MetricReduceOp.min)
    """The least hash of each bucket: of groups that begin updates, and of those that end them."""

    def update(self, ids: jax.Array, counted: jax.Array | None = None) -> Self:
        """Folds in the group of each row, integers (N,); rows may be marked as not counted."""
        if isinstance(self.ends, RowTerms) or not ids.size:
            return self
        ids, counted = replicated((ids, counted))
        any_counted: PyTree = True
        if counted is None:
            both = xp.stack([ids[0], ids[-1]])
        else:
            place = xp.arange(ids.size, dtype=xp.int32)
            last = xp.max(xp.where(counted, place, xp.int32(-1)))
            first = xp.min(xp.where(counted, place, xp.int32(ids.size - 1)))
            any_counted = last >= 0
            both = xp.take(ids, xp.stack([first, xp.maximum(last, 0)]), 0)
        key = _hashed(both)[:, None]
        chosen = ((key >> _SHIFTS) & xp.int32(_BUCKETS - 1)) == _CHOSEN
        chosen &= any_counted & (both[0] != both[1])
        return self.replace(ends=self.ends.update(xp.where(chosen, key, _NONE)))

    def found(self) -> jax.Array:
        """True if a group ends an update and begins another one, as an array of shape ()."""
        # Of stacked states, of any of them.
        (ends,) = self.ends.parts
        begin, end = xp.asarray(ends)[..., 0, :], xp.asarray(ends)[..., 1, :]
        # With x64 the identity of a minimum is greater.
        return xp.any((begin == end) & (begin < xp.asarray(_NONE, begin.dtype)))


def _hashed(ids: jax.Array) -> jax.Array:
    """Hashes of integers, int32 of at least 0: the same for all dtypes that hold the ids."""
    high, low = bits_of_integer(ids)
    # The mixing of MurmurHash3, which spreads ids that differ in few bits.
    x = low ^ (high * xp.uint32(0x9E3779B1))
    x = (x ^ (x >> xp.uint32(16))) * xp.uint32(0x85EBCA6B)
    x = (x ^ (x >> xp.uint32(13))) * xp.uint32(0xC2B2AE35)
    x ^= x >> xp.uint32(16)
    return (x >> xp.uint32(1)).astype(xp.int32)
