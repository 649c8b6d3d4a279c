"""`MultiTask`: several metrics as one, each of the outputs of its own task."""

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self

from datarax._checks import kind
from datarax._errors import MetricInputError, MetricTypeError, UnknownMetricError
from datarax._typing import PyTree
from datarax.metric.arguments import Route, naming, refuse_ignored
from datarax.metric.base import Metric
from datarax.wrappers.collection import Collection, calls_of
from datarax.wrappers.shared_states import states_of


class MultiTask(Collection):
    """A collection of metrics by task, in which each task has its own outputs.

    `update(animal={"preds": ..., "target": ...}, age={...})` gives each metric the outputs of its
    task, from which it takes its arguments as a metric of a `Collection` does. A task that is left
    out is not updated. The metric of a task may be a `Collection`; where it has several results,
    they are called "task/...". Tasks share no statistics, because they share no outputs.

    Everything else is as in a `Collection`: `[task]`, `items()`, `|`, `replace`.

    Args:
        metrics: a mapping from tasks to metrics.
        prefix: what is put before all names in results, as of a `Collection`.
        strict: a task that is not known is an error either way. Default: False.

    Raises:
        MetricTypeError: a value is not a metric, or the prefix is not a string.
        MetricInputError: there are no metrics, or a name is not a string or is empty.

    Example:
        >>> import jax.numpy as jnp
        >>> import datarax
        >>> from datarax.metrics import Accuracy, MeanAbsoluteError
        >>> metrics = datarax.MultiTask(
        ...     {"animal": Accuracy(num_classes=3), "age": MeanAbsoluteError()}
        ... )
        >>> metrics = metrics.update(
        ...     animal={"preds": jnp.array([0, 2]), "target": jnp.array([0, 1])},
        ...     age={"preds": jnp.array([3.0, 5.0]), "target": jnp.array([2.0, 5.0])},
        ... )
        >>> metrics = metrics.update(age={"preds": jnp.array([8.0]), "target": jnp.array([5.0])})
        >>> print(metrics.results())
        {'age': 1.3333333333333333, 'animal': 0.5}
    """

    shares: ClassVar[bool] = False

    if TYPE_CHECKING:  # a checker would derive another one from the fields

        def __init__(self, metrics: Mapping[str, Metric], prefix: str = ""): ...

    def update(self, /, *args: PyTree, **tasks: Mapping[str, PyTree]) -> Self:
        """The metrics with those of the given tasks updated.

        Args:
            *args: none: tasks are given by name.
            **tasks: for each task a dict of its outputs by name; weights, too.

        Raises:
            UnknownMetricError: there is no task of that name; names the nearest.
            MetricTypeError: the outputs of a task are not a dict.
            MetricInputError: no task is given; or the outputs of a task are refused, as by
                `Collection.update`.
        """
        return self.apply(self.calls(args, tasks))

    def routes(self) -> list[Route]:
        return [
            Route(type(metric), name, False, f"{self.prefix}{name}", output=name, routed=False)
            for name, metric in self.items()
        ]

    def arguments_from(self, outputs: Mapping[str, PyTree]) -> dict[str, PyTree]:
        return {name: outputs[name] for name in self if name in outputs}

    def calls(self, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> tuple[PyTree, ...]:
        write = f"write update({', '.join(f'{name}={{...}}' for name in self)})"
        if args:
            raise MetricInputError(
                f"MultiTask.update takes the outputs of each task by name, and got {len(args)} by "
                f"position; {write}"
            )
        if not kwargs:
            raise MetricInputError(f"MultiTask.update was given no task; {write}")
        for name, outputs in kwargs.items():
            if name not in self:
                near = difflib.get_close_matches(name, self, 1)
                raise UnknownMetricError(
                    f"MultiTask has no task {name!r}; it has: {', '.join(map(repr, self))}. "
                    + (f"Did you mean {near[0]!r}?" if near else "Weights belong to a task")
                )
            if not isinstance(outputs, Mapping):
                got = "an array or a number" if hasattr(outputs, "dtype") else kind(outputs)
                raise MetricTypeError(
                    f"MultiTask.update: {name} is {got}; expected a dict of the outputs of this "
                    f"task"
                )
        calls = []
        # No two tasks share a state, so these are all of them.
        for name, (path, metric) in zip(self, states_of(self).updated_metrics(), strict=True):
            given = kwargs.get(name)
            if given is not None:
                refuse_ignored(metric.routes(), given, f"MultiTask.update({name}=...)")
                with naming(path):
                    own = metric.arguments_from(given)
                given = calls_of(path, metric, own)
            calls.append(given)
        return tuple(calls)
