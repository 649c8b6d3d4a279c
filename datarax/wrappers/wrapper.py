"""`Wrapper`: the base of metrics that hold one metric, and take what its `update` takes."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax

from datarax._checks import kind
from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import PyTree
from datarax.metrics.base import Metric
from datarax.metrics.routing import Route
from datarax.statistics.fields import shown_fields, state
from datarax.statistics.replication import axes_of, counted_once


class Wrapper(Metric):
    """A metric that holds another one, `metric`.

    A subclass defines `_apply`, and `reading`.
    """

    delegates: ClassVar[bool] = True
    metric: Metric = state()

    def update(self, *args: Any, **kwargs: Any) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            *args: the arguments of the metric's own `update`.
            **kwargs: its keyword arguments, and those of the wrapper.
        """
        return self.apply(self.calls(args, kwargs))

    def apply(self, calls: PyTree) -> Self:
        axes = axes_of(calls)
        return (counted_once(self, axes) if axes else self)._apply(calls)

    def _apply(self, calls: PyTree) -> Self:
        return self.with_parts({"metric": self.metric.apply(calls)})

    def with_metric(self, metric: Metric) -> Self:
        """A copy with the same states, and the configuration of `metric`."""
        return self.with_parts({"metric": metric})

    def calls(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PyTree:
        return self.metric.calls(args, kwargs)

    def routes(self) -> list[Route]:
        return self.metric.routes()

    def arguments_from(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        return self.metric.arguments_from(outputs)

    def from_outputs(self, **outputs: str | None) -> Self:
        return self.with_metric(self.metric.from_outputs(**outputs))

    def replace(self, /, **changes: Any) -> Self:
        """The wrapper with these fields of its metric changed, as by the metric's own `replace`."""
        return self.with_metric(self.metric.replace(**changes))

    def __repr__(self) -> str:
        fields = shown_fields(self)
        return f"{type(self).__name__}({self.metric!r}{', ' if fields else ''}{fields})"

    def invalid_count(self) -> Any:
        return self.metric.invalid_count()


def checked_metric(metric: Any, caller: str) -> Metric:
    """The metric, which must be empty and without copies for each device.

    Raises:
        MetricTypeError: it is not a metric, or is a `per_device` metric.
        MetricInputError: it has data.
    """
    if not isinstance(metric, Metric):
        raise MetricTypeError(f"{caller} expects a datarax.Metric; got {kind(metric)}")
    if metric.owns_mesh:
        raise MetricTypeError(
            f"{caller} expects a metric without copies for each device; wrap the metric first, and "
            f"call per_device on the result"
        )
    leaves = zip(jax.tree.leaves(metric), jax.tree.leaves(metric.reset()), strict=True)
    if not all(a is b for a, b in leaves):
        raise MetricInputError(
            f"{caller} expects a metric without data, because its data cannot be assigned "
            f"afterwards; got a {type(metric).__name__} that was updated. Pass its reset()"
        )
    return metric
