"""Metrics of strings as metrics of arrays: of what they count of the strings, on the host."""

from collections.abc import Mapping
from typing import Any

from datarax.algebra.fields import field
from datarax.metric.arguments import Call, Route
from datarax.metric.base import Metric
from datarax.metrics.language.text_metric import CountedText
from datarax.wrappers.wrapper import Wrapper

Batch = Mapping[str, Any]


class OfCounts(Wrapper):
    """A metric of strings whose `update` takes what the metric counts, so that it can be traced.

    The counts are outputs called "name/argument", so that each metric of a collection finds its
    own. `counted` makes them.
    """

    name: str = field(kw_only=False)

    def calls(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        named = {each.removeprefix(f"{self.name}/"): x for each, x in kwargs.items()}
        return Call((), named, type(self.metric).__name__, (*self._counts(), "weights"), ())

    def routes(self) -> list[Route]:
        metric = type(self.metric)
        own = (f"{self.name}/{each}" for each in self._counts())
        counts = [Route(metric, each, output=each, routed=False) for each in own]
        return [*counts, Route(metric, "weights", False, output="weights", routed=False)]

    def arguments_from(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        return Metric.arguments_from(self, outputs)

    def _counts(self) -> list[str]:
        strings = {each.argument: ["a", "b"] for each in self.metric.routes() if each.required}
        return [name for name in self.metric.calls((), strings).takes if name != "weights"]


def traceable(metric: Metric, name: str) -> Metric:
    """The metric, or that of its counts: one whose `update` takes arrays."""
    return OfCounts(metric, name) if isinstance(metric, CountedText) else metric


def counted(metric: Metric, name: str, batch: Batch) -> dict[str, Any]:
    """A batch as `traceable(metric, name)` takes it: strings are counted, arrays are as they are.

    Weights do not change the counts, so that batches of one shape have counts of one shape.
    """
    if not isinstance(metric, CountedText):
        return dict(batch)
    strings = {key: x for key, x in batch.items() if key != "weights"}
    counts = metric.calls((), metric.arguments_from(strings)).kwargs
    weights = {"weights": batch["weights"]} if "weights" in batch else {}
    return {f"{name}/{key}": x for key, x in counts.items()} | weights
