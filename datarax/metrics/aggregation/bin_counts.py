"""`BinCounts`: the weight of the values in bins with given edges."""

from collections.abc import Sequence
from typing import Self

import numpy as np

from datarax._checks import as_float, default_float, is_integer, numeric
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.algebra.state import State
from datarax.distributed.collectives import replicated
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import InvalidCounts, not_finite
from datarax.statistics.scatter_counts import ScatterCounts


class BinCounts(State, kw_only=False):
    """The weight of the values in each bin: below all edges, between two edges, above all edges."""

    edges: Sequence[float]
    """The edges: at least two finite numbers in increasing order. A bin includes its lower edge,
    not its upper edge; but the last bin includes both."""
    rounded: bool = False
    """Whether values that are floats are compared with the edges rounded to their dtype, as
    `numpy.histogram` does for bins of equal width, or with the exact edges."""

    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        given = self.edges
        try:
            self.edges = tuple(map(float, given))
        except (TypeError, ValueError):
            raise MetricInputError(f"edges={given!r}; expected numbers") from None
        increasing = np.isfinite(self.edges).all() and (np.diff(self.edges) > 0).all()
        if len(self.edges) < 2 or not increasing:
            raise MetricInputError(
                f"edges={given!r}; expected at least two finite numbers in increasing order"
            )
        # The first is below all bins, the last above all bins.
        self.counts = ScatterCounts((len(self.edges) + 1,))

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `values` of any shape; `weights` broadcast against their leading axes.

        NaN and infinities are excluded and counted, unless their weight is zero.
        """
        given = numeric(values, "values")
        x = replicated(as_float(given))
        w, invalid = rows_weight(not_finite(x), weights)
        edges, last = _thresholds(self.edges, default_float())
        if self.rounded and not is_integer(given):
            near = np.asarray(self.edges).astype(given.dtype).astype(default_float())
            edges, last = near, near[-1]
        place = xp.searchsorted(xp.asarray(edges), x, side="right").astype(xp.int32)
        highest = len(edges)
        place = xp.where((place == highest) & (x <= xp.asarray(last)), highest - 1, place)
        return self.replace(counts=self.counts.add(place, w), invalid=self.invalid.update(invalid))


def _thresholds(edges: Sequence[float], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The edges rounded to the dtype of the values, so that each value stays in its exact bin.

    A value is at or above an edge exactly if it is at or above the least float that is not below
    the edge; it is at or below the last edge exactly if it is at or below the greatest float that
    is not above the edge.
    """
    exact = np.asarray(edges)
    near = exact.astype(dtype)
    infinity = np.asarray(np.inf, dtype)
    up = np.where(near < exact, np.nextafter(near, infinity), near)
    down = np.where(near > exact, np.nextafter(near, -infinity), near)
    return up, down[-1]
