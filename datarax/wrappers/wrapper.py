"""The base class of wrappers that hold one metric."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import jax

from datarax._checks import kind
from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import PyTree
from datarax._update_context import in_update
from datarax.algebra.devices import folded_on_axes
from datarax.algebra.fields import field, shown_fields, state, unrestored
from datarax.algebra.leaf_state import LeafState
from datarax.algebra.pytrees import MeshNode, children_of, map_leaf_states
from datarax.algebra.rows import Target
from datarax.algebra.stack import Stack
from datarax.algebra.state import State, is_untouched, walk
from datarax.metric.arguments import (
    Argument,
    Route,
    arguments_of,
    joined,
    taken_from,
    with_argument,
)
from datarax.metric.base import Metric
from datarax.metric.reading import Reading
from datarax.metric.rows import updated_at
from datarax.numerics.scaled_double import ScaledDouble
from datarax.statistics.accumulator import MetricAccumulator


class Wrapper(Metric):
    """A metric that holds another one, and has its properties unless a subclass defines others.

    A subclass defines what differs: `calls` or `apply` of an update, and `reading`. Its fields are
    arguments by position, after the metric. The policy `on_invalid` is that of the metric.
    """

    delegates: ClassVar[bool] = True
    hidden_names = frozenset({"with_metric"})

    metric: Metric = field(kw_only=False)
    """The metric that is wrapped: one without copies for each device."""

    def __post_init__(self) -> None:
        _check_plain(self.metric, type(self).__name__)

    @property
    def on_invalid(self) -> PyTree:  # type: ignore[override]
        """The policy of the metric."""
        return self.metric.on_invalid

    @property
    def is_extreme(self) -> bool:
        return self.metric.is_extreme

    @property
    def outputs(self) -> PyTree:  # type: ignore[override]
        """The outputs that `from_outputs` of the metric names."""
        return self.metric.outputs

    def update(self, *args: PyTree, **kwargs: PyTree) -> Self:
        """A new metric with the batch folded in; the arguments are those of the metric."""
        return self.apply(self.calls(args, kwargs))

    def replace(self, /, **changes: PyTree) -> Self:
        """A copy with these fields changed: those of the wrapper, or of the metric.

        Raises:
            AttributeError: neither of the two has an attribute.
            MetricInputError: with the new field, the same data would have given another state.
        """
        names = {*self.fields, *children_of(self)}
        # A name of both is that of the wrapper. The metric within is changed by `metric=`.
        own = {name: changes.pop(name) for name in list(changes) if name in names}
        metric = own.pop("metric", self.metric)
        copy = super().replace(**own) if own else self
        if changes:
            metric = metric.replace(**changes)
        if metric is self.metric:
            return copy
        given = {name: getattr(copy, name) for name in self.fields}
        # The constructor checks the new metric, with the new fields. What it makes lacks the data
        # of this wrapper.
        type(self)(**given | {"metric": metric})
        return copy.with_metric(metric)

    def with_metric(self, metric: Metric) -> Self:
        """A copy that holds `metric`, which is not checked."""
        return self.with_parts({"metric": metric})

    def calls(self, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> PyTree:
        return self.metric.calls(args, kwargs)

    def apply(self, calls: PyTree) -> Self:
        return self.with_metric(self.metric.apply(calls))

    def unusable_rows(self, calls: PyTree) -> PyTree:
        return self.metric.unusable_rows(calls)

    def routes(self) -> list[Route]:
        return self.metric.routes()

    def arguments_from(self, outputs: Mapping[str, PyTree]) -> dict[str, PyTree]:
        return self.metric.arguments_from(outputs)

    def from_outputs(self, **outputs: str | None) -> Self:
        return self.with_metric(self.metric.from_outputs(**outputs))

    def readers(self) -> list[Argument]:
        return self.metric.readers()

    def reading(self) -> Reading:
        return self.metric.reading()

    def apply_at(self, calls: PyTree, target: Target) -> Self:
        return self.with_metric(self.metric.apply_at(calls, target))


class MultiplyingWrapper(Wrapper):
    """The base of wrappers that hold further states of their metric, or copies of it.

    The metric is empty when it is wrapped, so that all states have seen the same data. A subclass
    defines its own constructor, and `_apply` and `reading`.
    """

    hidden_names = frozenset({"routed"})
    routed: tuple[tuple[str, str | None], ...] = unrestored(default=(), init=False)
    """The outputs that `from_outputs` names for the arguments of the wrapper itself."""

    def __post_init__(self) -> None:
        checked_metric(self.metric, type(self).__name__)

    def apply(self, calls: PyTree) -> Self:
        # Inside `shard_map`, all states must vary over the same axes.
        return folded_on_axes(self, calls, lambda state: state._apply(calls))

    def _apply(self, calls: PyTree) -> Self:
        """The update with these calls."""
        raise TypeError(f"{type(self).__name__} does not define _apply()")

    def apply_at(self, calls: PyTree, target: Target) -> Self:
        return updated_at(self, calls, target)

    def with_metric(self, metric: Metric) -> Self:
        """A copy with the same states, and the configuration of `metric`."""
        # A stack has an empty metric as its element, so it holds the configuration, too.
        empty, children = metric.emptied(), children_of(self).items()
        # Else replicas would go on under the old policy, and merging would find two configurations.
        stacks = {name: x.with_element(empty) for name, x in children if isinstance(x, Stack)}
        return self.with_parts({"metric": metric, **stacks})

    def replace(self, /, **changes: PyTree) -> Self:
        """The wrapper with these fields of its metric changed, as by the metric's own `replace`."""
        return self.with_metric(self.metric.replace(**changes))

    def invalid_count(self) -> PyTree:
        return self.metric.invalid_count()


class Stacked(MultiplyingWrapper):
    """The base of wrappers that hold one or more states of their metric, in `stack`."""

    hidden_names = frozenset({"stack"})

    stack: Any = state()
    """A `Stack` of states of the metric."""

    @property
    def metric(self) -> Metric:  # type: ignore[override]
        """The metric, without data."""
        return self.stack.element.empty

    def with_metric(self, metric: Metric) -> Self:
        return self.with_parts({"stack": self.stack.with_element(metric.emptied())})

    def __repr__(self) -> str:
        fields = shown_fields(self)
        return f"{type(self).__name__}({self.metric!r}{', ' if fields else ''}{fields})"


class WithArgument(MultiplyingWrapper):
    """The base of wrappers whose `update` takes one more argument: a number for each row."""

    # The argument travels in the calls of the metric, so that it is padded, split over devices and
    # cut into rows as theirs. `_apply` takes it out again.

    hidden_names = frozenset({"needs_own", "own", "own_routes"})

    needs_own: ClassVar[bool]
    """True if the argument is required."""

    @property
    def own(self) -> str | None:
        """The name of the argument; None if the configuration has none."""
        raise NotImplementedError

    def calls(self, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> PyTree:
        given, own = dict(kwargs), self.own
        value = None if own is None else given.pop(own, None)
        calls = self.metric.calls(args, given)
        return calls if own is None or value is None else with_argument(calls, own, value)

    def unusable_rows(self, calls: PyTree) -> PyTree:
        own = self.own
        return super().unusable_rows(calls if own is None else taken_from(calls, own)[1])

    def own_routes(self) -> list[Route]:
        """The route of the argument, if there is one."""
        own, routed = self.own, dict(self.routed)
        if own is None:
            return []
        # An output of None: the argument is left out on purpose.
        fed_by = routed.get(own, own)
        return [Route(type(self), own, self.needs_own, output=fed_by, routed=own in routed)]

    def routes(self) -> list[Route]:
        return [*self.metric.routes(), *self.own_routes()]

    def arguments_from(self, outputs: Mapping[str, PyTree]) -> dict[str, PyTree]:
        return self.metric.arguments_from(outputs) | arguments_of(self.own_routes(), outputs)

    def from_outputs(self, **outputs: str | None) -> Self:
        own = {name: outputs.pop(name) for name in list(outputs) if name == self.own}
        new = self.with_metric(self.metric.from_outputs(**outputs)) if outputs else self
        return new.with_parts({"routed": tuple(own.items())}) if own else new

    def weighted_by(self, factor: ScaledDouble) -> Self:
        if not self.weights_repeat:
            return super().weighted_by(factor)  # which raises
        # Its own accumulators count rows, which have no weight.
        children = children_of(self).items()
        states = {name: x for name, x in children if not isinstance(x, MetricAccumulator)}
        return self.with_parts({name: x.weighted_by(factor) for name, x in states.items()})


def checked_metric(metric: Metric, caller: str) -> Metric:
    """The metric, which must have no data and no copies for each device.

    Raises:
        MetricTypeError: it is not a metric, or is or holds a `per_device` metric.
        MetricInputError: it has data.
    """
    _check_plain(metric, caller)
    if not is_untouched(metric):
        raise MetricInputError(
            f"{caller} expects a metric without data, because its data cannot be assigned "
            f"afterwards; got a {type(metric).__name__} that was updated. Pass its reset()"
        )
    return metric


def each_updated(stack: Stack, calls: PyTree, target: Target) -> Stack:
    """The stack of a wrapper, with each state updated with its rows of a batch."""
    with in_update(checks="none"):  # wrappers update the metric with the whole batch, too
        return stack.holding(stack.states.apply_at(calls, target))


def prefixed(parts: Iterable[tuple[str, Mapping[str, PyTree]]]) -> dict[str, PyTree]:
    """Several dicts as one, with names like "outer/inner"."""
    return {joined(name, key): x for name, part in parts for key, x in part.items()}


def reading_of(value: PyTree, parts: list[tuple[str, Reading]], *, flat: bool) -> Reading:
    """A reading made of several. Each name is that of its part, then that within the part."""
    return Reading(
        value,
        prefixed((name, each.invalid) for name, each in parts),
        prefixed((name, each.bounds) for name, each in parts),
        tuple(prefixed((name, dict(each.policies)) for name, each in parts).items()),
        flat=flat,
        undefined=prefixed((name, each.undefined) for name, each in parts),
    )


def _check_plain(metric: object, caller: str) -> None:
    if not isinstance(metric, Metric):
        raise MetricTypeError(f"{caller} expects a datarax.Metric; got {kind(metric)}")
    if holds_copies(metric):
        raise MetricTypeError(
            f"{caller} expects a metric without copies for each device; got one that is, or "
            f"holds, a per_device metric. Write per_device({caller}(...), mesh, axis_names)"
        )


def holds_copies(metric: Metric) -> bool:
    """True if it is, or holds, a metric with copies for each device."""
    return any(isinstance(each, MeshNode) for each in walk(metric))


def _value(metric: Metric) -> PyTree:
    return metric.reading().rounded()


def value_shapes(metric: Metric) -> PyTree:
    """The shapes and dtypes of what `compute` gives, without computing it."""
    # The state may be stacked, as within `per_device`: an empty one is not.
    return jax.eval_shape(_value, map_leaf_states(lambda leaves: [*map(_empty, leaves)], metric))


def _empty(leaf: State) -> State:
    return leaf.with_parts(leaf.empty()) if isinstance(leaf, LeafState) else leaf
