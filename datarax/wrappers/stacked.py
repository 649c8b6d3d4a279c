"""`Stacked`: the base of wrappers that hold their metric in a stack of states."""

from typing import Any, Self

from datarax.algebra.fields import shown_fields, state
from datarax.metrics.base import Metric
from datarax.wrappers.wrapper import MultiplyingWrapper


class Stacked(MultiplyingWrapper):
    """A metric that holds one or more states of another metric, in `stack`."""

    stack: Any = state()
    """A `Stack` of states of the metric."""

    @property
    def metric(self) -> Metric:
        """The metric, without data."""
        return self.stack.element.empty

    def with_metric(self, metric: Metric) -> Self:
        return self.with_parts({"stack": self.stack.with_element(metric.reset())})

    def __repr__(self) -> str:
        fields = shown_fields(self)
        return f"{type(self).__name__}({self.metric!r}{', ' if fields else ''}{fields})"
