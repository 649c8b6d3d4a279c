"""What the metrics of values share: one `update`."""

from typing import Any, Self

from datarax._typing import ArrayLike, Weights
from datarax.algebra.fields import state
from datarax.metrics.base import Metric, shareable


class ValueMetric(Metric):
    """A metric of values, which its `statistic` accumulates; a subclass makes that state."""

    # Any state whose `update` takes values and weights.
    statistic: Any = state()

    @shareable
    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            values: of any shape and real dtype; all are one population.
            weights: broadcast against the leading axes of `values`, and count as repetitions. A
                value of weight zero does not count, even if it is NaN.

        Raises:
            MetricInputError: weights that do not broadcast; shows both shapes.
            MetricTypeError: values or weights that are not numbers.
        """
        return self.replace(statistic=self.statistic.update(values, weights=weights))
