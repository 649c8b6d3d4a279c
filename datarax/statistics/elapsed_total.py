"""A weighted sum and the time it took, the statistic of rates."""

from typing import Self

from datarax._checks import as_float, numeric
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.algebra.state import State
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import on_leading_axes, rows_weight
from datarax.statistics.invalid_counts import InvalidCounts, not_finite, out_of_range
from datarax.statistics.weighted_total import WeightedTotal


class ElapsedTotal(State):
    """The sum of `w * x`, and the greatest of the times elapsed.

    What devices and processes count at the same time adds up. Their times do not.

    Example:
        >>> from datarax.statistics.elapsed_total import ElapsedTotal
        >>> seen = ElapsedTotal().update(300, elapsed=0.5).update(300, elapsed=1.5)
        >>> print(seen.rate.to_float())
        400.0
    """

    counted = WeightedTotal()
    elapsed = MetricAccumulator(0.0, "max")
    """In seconds, since the start of the clock."""
    invalid = InvalidCounts()

    def update(self, values: ArrayLike, elapsed: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `values` of any shape; times and weights broadcast against their leading axes.

        Values and times that are not finite, and negative times, are excluded and counted.
        """
        x = numeric(values, "values")
        seconds = as_float(numeric(elapsed, "elapsed"))
        seconds = xp.broadcast_to(on_leading_axes(seconds, x.shape, "elapsed"), x.shape)
        unusable = not_finite(x) | not_finite(seconds) | out_of_range(seconds < 0, seconds)
        w, invalid = rows_weight(unusable, weights)
        return self.replace(
            counted=self.counted.update(x, weights=w),
            elapsed=self.elapsed.update(seconds, where=w.astype(xp.bool_)),
            invalid=self.invalid.update(invalid),
        )

    @property
    def rate(self) -> DoubleFloat:
        """The sum for each second; NaN where there is no data, and where no time has elapsed."""
        return self.counted.total.double / self.elapsed.value
