"""`Stacked`: the base of wrappers that hold their metric in a stack of states."""

from typing import Any, Self

from datarax.metrics.base import Metric
from datarax.statistics.fields import state
from datarax.wrappers.wrapper import Wrapper


class Stacked(Wrapper):
    """A metric that holds one or more states of another metric, in `stack`."""

    stack: Any = state()
    """A `Stack` of states of the metric."""

    @property
    def metric(self) -> Metric:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The metric, without data."""
        return self.stack.element.empty

    def with_metric(self, metric: Metric) -> Self:
        return self.with_parts({"stack": self.stack.with_element(metric.reset())})
