"""Agreement of predicted risks with times of which some are censored: Harrell's C."""

from typing import Self

import jax
import numpy as np

from datarax._checks import as_float, default_float, numeric, same_shape, warn_of_rounded
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import faster_in_numpy, lax, xp
from datarax.algebra.fields import state
from datarax.distributed.collectives import replicated
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.metric.unusable import Undefined
from datarax.metrics.regression.rank_correlation import dense_ranks
from datarax.numerics.float_ranges import is_single, keys_of
from datarax.numerics.scaling import power_of_two_near_reciprocal
from datarax.numerics.sums import sum_floats
from datarax.statistics.batches import least_weight, rows_weight
from datarax.statistics.buffer import KeepsRows, Keys, WeightedRows
from datarax.statistics.invalid_counts import CountsInvalid, not_finite, out_of_range

_BLOCK = 128
"""How many examples are compared with all others at a time."""
_LOST_ORDER = (
    "several risks or times are beyond the range of float32, 1.2e-38 to 3.4e38, and count as "
    "equal. Scale them into it before the update, or give their logarithms"
)


class CensoredTimes(KeepsRows, CountsInvalid, kw_only=False):
    """Up to `capacity` examples: a risk, a time, whether the event happened then, and a weight.

    Examples that do not fit are dropped and counted: those of later batches, and of later devices.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.regression.survival import CensoredTimes
        >>> seen = CensoredTimes(capacity=2).update(jnp.zeros(3), jnp.ones(3), jnp.array([1, 0, 1]))
        >>> print(seen.filled, seen.overflow)
        2 1
    """

    capacity: int
    """The number of examples kept, also after a merge. One takes 24 bytes (48 with x64)."""

    def __post_init__(self) -> None:
        self.rows = WeightedRows(self.capacity, (6,), default_float().name)

    def update(
        self, risk: ArrayLike, time: ArrayLike, event: ArrayLike, *, weights: Weights = None
    ) -> Self:
        """Appends examples, all arrays of any one shape; those of weight zero are skipped.

        Integers of 32 bits are not rounded, nor is float64 on the host.
        """
        r, t = (numeric(x, n, any_range=True) for x, n in ((risk, "risk"), (time, "time")))
        e = numeric(event, "event")
        same_shape(r, t, ("risk", "time"))
        same_shape(t, e, ("time", "event"))
        warn_of_rounded(risk=r, time=t)
        one, zero = (xp.asarray(x, e.dtype) for x in (1, 0))
        happened = e == one
        other = ~happened & (e != zero) & xp.isfinite(as_float(e))
        unusable = not_finite(r) | not_finite(t) | not_finite(e) | out_of_range(other, e)
        w, invalid = rows_weight(unusable, weights)
        w = xp.broadcast_to(w, r.shape)
        dtype = default_float()
        parts = replicated((*keys_of(r), *keys_of(t), happened.astype(dtype), as_float(w)))
        data = xp.stack([part.astype(dtype).reshape(-1) for part in parts], -1)
        # Copied as they are, subnormal numbers would differ from zero when they are read.
        data = xp.where(xp.abs(data) >= least_weight(), data, 0)
        return self.with_batch(invalid, rows=self.rows.append(data, w.astype(xp.bool_).reshape(-1)))

    @property
    def columns(self) -> tuple[Keys, Keys, jax.Array, jax.Array]:
        """The keys of risks and times, 1 for an event, and weights, each (capacity,)."""
        r, r_low, t, t_low, event, w = self.rows.kept.T
        return (r, r_low), (t, t_low), event, w


def _later_by_sorting(key: PyTree, end: PyTree, w: PyTree, filled: PyTree) -> tuple[PyTree, PyTree]:
    size, key, end, w = len(w), key[:filled], end[:filled], w[:filled].astype(np.float64)
    lower, higher = np.zeros((2, len(w)))
    for z, sums in ((key, lower), (-key, higher)):
        # Of equal ends, keys ascend: no pair of these counts.
        order = np.lexsort((z, end))
        sums[order] = _lower_later(z[order], w[order])
    groups = np.unique(end, return_inverse=True)[1]
    until = np.cumsum(np.bincount(groups, w))
    later = (until[-1] - until)[groups] if len(w) else w
    padding = 0, size - len(w)
    return np.pad(later, padding), np.pad(lower - higher, padding)


def _lower_later(key: PyTree, w: PyTree) -> PyTree:
    """For each i, the sum of `w_j` over the j after it with a lesser key, by merge sort."""
    size, levels = len(key), max(len(key) - 1, 0).bit_length()
    padding = 0, (1 << levels) - size  # of weight zero
    key, w = np.pad(2 * np.unique(key, return_inverse=True)[1], padding), np.pad(w, padding)
    index, sums = np.arange(len(w)), np.zeros(len(w))
    for level in range(levels):
        parts = [v.reshape(-1, 2 << level) for v in (key, w, sums, index)]
        is_second = np.arange(2 << level) >= 1 << level
        # Of equal keys in two halves, those of the second half come last.
        order = np.argsort(parts[0] + is_second, -1, kind="stable")
        key, w, sums, index = (np.take_along_axis(v, order, -1) for v in parts)
        is_second = is_second[order]
        less = np.cumsum(np.where(is_second, w, 0), -1)
        sums = sums + np.where(is_second, 0, less)
    return sums.reshape(-1)[np.argsort(index, None)][:size]


@faster_in_numpy(_later_by_sorting)
def agreement_with_later(
    key: jax.Array, end: jax.Array, w: jax.Array, filled: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """For each example i, sums over the examples j with a later end, `end_j > end_i`.

    The first is that of `w_j`, the second that of `w_j` times the sign of `key_i - key_j`. All
    arrays are (N,), and only the first `filled` examples have a weight. In a program all pairs are
    compared, so the time grows with `filled * N`; on the host with `N * log(N)`.
    """
    size = key.size
    block = min(_BLOCK, size)
    # Padding has weight zero, so its pairs add nothing.
    key, end, w = (xp.pad(x, (0, -size % block)) for x in (key, end, w))
    # On an `Explicit` mesh, all parts of the loop must be on it.
    key, end, w, nothing = replicated((key, end, w, xp.zeros_like(w)))

    def add_block(i: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        own_key, own_end = (lax.dynamic_slice_in_dim(x, i * block, block) for x in (key, end))
        later = xp.where(end[None, :] > own_end[:, None], w[None, :], 0)
        lower, higher = (own_key[:, None] > key[None, :], own_key[:, None] < key[None, :])
        sign = lower.astype(w.dtype) - higher.astype(w.dtype)
        return tuple(
            lax.dynamic_update_slice_in_dim(all_rows, xp.sum(row, -1), i * block, 0)
            for all_rows, row in zip(sums, (later, later * sign), strict=True)
        )

    blocks = (filled + (block - 1)) // block
    later, sign = lax.fori_loop(xp.int32(0), blocks, add_block, (nothing, nothing))
    return later[:size], sign[:size]


class ConcordanceIndex(Metric):
    """Harrell's C: how often the example with the higher risk has its event first.

    The share of the pairs that can be compared in which the risks have the right order; equal risks
    count half. A pair can be compared if the one with the earlier time had its event then, because
    only then it is known who came first. Of equal times, an event comes before a censored time, and
    two events cannot be compared. 0.5 is chance, 1 the best. Risks are any numbers that are higher
    where the event is expected earlier; for predicted times, give their negation. A pair counts
    with the product of its weights. NaN where no pair can be compared.

    Exact for the first `capacity` examples. With more, the result is NaN, or with
    `on_invalid="exclude"` that of those examples. Outside `jit`, `compute` sorts them; inside, it
    compares all pairs, so its time grows with the square of their number.

    As `lifelines.utils.concordance_index(time, -risk, event)`, and `concordance_index_censored` of
    scikit-survival. F. E. Harrell and others (1982), Evaluating the yield of medical tests,
    https://doi.org/10.1001/jama.1982.03320430047030.

    Raises:
        MetricInputError: `capacity` is not a positive integer.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ConcordanceIndex
        >>> risk, time = jnp.array([0.9, 0.3, 0.5, 0.1]), jnp.array([2.0, 4.0, 3.0, 3.0])
        >>> metric = ConcordanceIndex().update(risk, time, jnp.array([1, 0, 0, 1]))
        >>> print(metric.compute())
        0.6
    """

    value_range = (0.0, 1.0)
    higher_is_better = True
    capacity: int = 8192
    """The number of examples that are kept in all."""

    statistic: CensoredTimes = state()

    def __post_init__(self) -> None:
        self.statistic = CensoredTimes.from_fields(self)

    @shareable
    def update(
        self, risk: ArrayLike, time: ArrayLike, event: ArrayLike, *, weights: Weights = None
    ) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            risk: predicted risks of any real dtype, (...); higher for an earlier event.
            time: when the event happened, or until when it had not (censored); of the same shape.
            event: 1 or True where the event happened, 0 or False where it was censored.
            weights: broadcast against the leading axes; zero leaves an example out.

        Raises:
            MetricInputError: the shapes differ; shows both.
            MetricTypeError: the values are not real numbers.
        """
        return self.replace(statistic=self.statistic.update(risk, time, event, weights=weights))

    def undefined_parts(self) -> Undefined | None:
        risk, time, *_ = self.statistic.columns
        several = [xp.sum(~is_single(*keys), dtype=xp.int32) > 1 for keys in (risk, time)]
        return Undefined(xp.any(xp.stack(several)), _LOST_ORDER)

    def compute(self) -> PyTree:
        risk, time, event, w = self.statistic.columns
        # The result does not depend on the unit of weights.
        w = w * power_of_two_near_reciprocal(xp.max(w))
        # Of equal times, an event ends before a censored time.
        end = 2 * dense_ranks(time) + 1 - event
        later, sign = agreement_with_later(dense_ranks(risk), end, w, self.statistic.filled)
        first = w * event
        compared = sum_floats(first * later, (0,))
        return ((compared + sum_floats(first * sign, (0,))) / (compared * 2)).to_float()
