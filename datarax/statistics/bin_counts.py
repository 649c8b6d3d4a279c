"""Values by bins with given edges."""

from collections.abc import Sequence
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from datarax._checks import as_float, default_float, numeric
from datarax._errors import MetricInputError
from datarax.distributed.collectives import replicated
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.scatter_counts import ScatterCounts
from datarax.statistics.state import State


class BinCounts(State):
    """The weight of values by bins: below all edges, between each two, above all.

    Args:
        edges: at least two, finite, in increasing order. Bins are half-open, `[edge, next)`, but
            the last, which holds its upper edge.
    """

    invalid = MetricAccumulator(0)

    def __init__(self, edges: Sequence[float]):
        try:
            self.edges = tuple(map(float, edges))
        except (TypeError, ValueError):
            raise MetricInputError(f"edges={edges!r}; expected numbers") from None
        if len(self.edges) < 2 or not np.isfinite(self.edges).all() or _falls(self.edges):
            raise MetricInputError(
                f"edges={edges!r}; expected at least two finite numbers in increasing order"
            )
        # Below all bins comes first, above all last.
        self.counts = ScatterCounts((len(self.edges) + 1,))

    def update(self, values: Any, *, weights: Any = None) -> Self:
        """Folds in `values` of any shape; `weights` broadcast against their leading axes.

        NaN and infinities are excluded and counted, unless their weight is zero.
        """
        x = replicated(as_float(numeric(values, "values")))
        w, invalid = rows_weight(jnp.isfinite(x), weights)
        edges, last = _as_thresholds(self.edges, default_float())
        place = jnp.searchsorted(jnp.asarray(edges), x, side="right").astype(jnp.int32)
        highest = jnp.int32(len(edges))
        place = jnp.where((place == highest) & (x <= jnp.asarray(last)), highest - 1, place)
        return self.replace(counts=self.counts.add(place, w), invalid=self.invalid.update(invalid))


def _falls(edges: tuple[float, ...]) -> bool:
    return bool((np.diff(edges) <= 0).any())


def _as_thresholds(edges: tuple[float, ...], dtype: Any) -> tuple[Any, Any]:
    """The edges as floats of the values' dtype that tell the same values apart.

    A value is at or above an edge exactly if it is at or above the next float from the edge up;
    and at or below the last edge if it is at or below the next float down.
    """
    exact = np.asarray(edges)
    near = exact.astype(dtype)
    infinity = np.asarray(np.inf, dtype)
    up = np.where(near < exact, np.nextafter(near, infinity), near)
    down = np.where(near > exact, np.nextafter(near, -infinity), near)
    return up, down[-1]
