"""`Pairs`: a metric of two models, of the rows for which both can be used."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Self

import jax
import numpy as np

from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax._xp import on_host, xp
from datarax.algebra.fields import state
from datarax.algebra.rows import Target, merge_rows
from datarax.metric.arguments import Route, arguments_of, is_call, joined, with_argument
from datarax.metric.base import Metric
from datarax.metric.reading import Reading
from datarax.metric.rows import empty_place, without_rows
from datarax.metric.unusable import Unusable
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.invalid_counts import counts_alike, sum_of_counts, with_invalid_of
from datarax.wrappers.clusters import CLUSTER, given_ids
from datarax.wrappers.collection import Collection
from datarax.wrappers.shared_states import states_of
from datarax.wrappers.wrapper import WithArgument, Wrapper, checked_metric, reading_of

MODELS = ("a", "b")
_LOST = "rows that one of the two models cannot use"


class Pairs(WithArgument):
    """The values of a metric for two models, on the same examples.

    A pair counts where both models can be used: a row that the metric cannot use for one model is
    left out of both, and counted. So both values are of the same rows.

    `update` takes the arguments of the metric, those that differ between the models twice: with
    `_a` and `_b` after the name.

    Args:
        metric: a metric or a collection, without data.

    Raises:
        MetricInputError: the metric has data.
        MetricTypeError: `metric` is not a metric.
    """

    needs_own: ClassVar[bool] = False
    hidden_names = frozenset(
        {"lost", "hold_pairs", "check_twice", "reading_with", "updated_pairs", "updated_pairs_at"}
    )

    other: Metric = state()
    """The metric of the second model."""
    lost: MetricAccumulator = state()
    """The number of rows that one of the models cannot use, for each `Call` of an update."""

    def __init__(self, metric: Metric):
        self.hold_pairs(metric)

    def hold_pairs(self, metric: Metric) -> None:
        """Makes the states for both models."""
        # One object for both, as states are immutable.
        self.metric = self.other = checked_metric(metric, type(self).__name__)
        calls = 1 + max(place for _, place in call_places(metric))
        self.lost = MetricAccumulator(np.zeros(calls, np.int32))

    @property
    def own(self) -> str | None:
        return None

    def with_metric(self, metric: Metric) -> Self:
        # The arrays of `other`, with the configuration that is now that of both.
        other = jax.tree.unflatten(jax.tree.structure(metric), jax.tree.leaves(self.other))
        return super().with_metric(metric).with_parts({"other": other})

    def calls(self, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> PyTree:
        given = self._by_name(args) | dict(kwargs)
        name = self.own
        own = None if name is None else given.pop(name, None)
        if name == CLUSTER:
            own = given_ids(own, f"Compare({type(self.metric).__name__})")
        routes = self.metric.routes()
        names = {name for route in routes for name in (route.argument, route.output)}
        # An argument of the metric may itself end in _a or _b.
        twice = [name for name in given if name not in names and name[-2:] in ("_a", "_b")]
        if not any(route.takes_all for route in routes):
            self._check_pairs(twice, given, names)
        self.check_twice(twice, given)
        shared = {name: x for name, x in given.items() if name not in twice}
        calls = {}
        for model in MODELS:
            pair = {name[:-2]: given[name] for name in twice if name.endswith(f"_{model}")}
            if not pair:
                raise MetricInputError(
                    f"Compare.update needs what differs between the two models twice, with _a and "
                    f"_b after its name (preds_a, preds_b); got: {', '.join(given) or 'nothing'}"
                )
            calls[model] = self.metric.calls((), shared | pair)
        return calls if name is None or own is None else with_argument(calls, name, own)

    def check_twice(self, twice: Sequence[str], given: Mapping[str, PyTree]) -> None:
        """Raises if an argument may not be given twice."""

    def _check_pairs(
        self, twice: list[str], given: Mapping[str, PyTree], names: set[str | None]
    ) -> None:
        """Raises unless arguments that are given twice come in pairs, and are known."""
        bases = {name[:-2] for name in twice}  # without "_a" and "_b"
        if bases <= names and len(twice) == 2 * len(bases):
            return
        known = ", ".join(sorted(each for each in names if each))
        raise MetricInputError(
            f"Compare.update got {', '.join(given)}; expected pairs such as preds_a and preds_b of "
            f"the arguments of {type(self.metric).__name__}: {known}"
        )

    def _by_name(self, args: tuple[PyTree, ...]) -> dict[str, PyTree]:
        """Positional arguments by name: the first argument of the metric is given for both."""
        if not args:
            return {}
        first, *rest = dict.fromkeys(route.argument for route in self.metric.routes())
        names = [f"{first}_a", f"{first}_b", *rest]
        if len(args) > len(names):
            raise MetricInputError(
                f"Compare.update takes {', '.join(names)}; got {len(args)} arguments by position"
            )
        return dict(zip(names, args, strict=False))

    def routes(self) -> list[Route]:
        inner = self.metric.routes()
        twice = [
            replace(route, argument=f"{route.argument}_{model}", output=f"{route.output}_{model}")
            for route in inner
            for model in MODELS
            if route.output is not None
        ]
        # None is required: an argument is given once, or for each model. `calls` checks that.
        return [replace(route, required=False) for route in [*inner, *twice, *self.own_routes()]]

    def arguments_from(self, outputs: Mapping[str, PyTree]) -> dict[str, PyTree]:
        given = {}
        for route in self.metric.routes():
            pair = {model: f"{route.output}_{model}" for model in MODELS}
            if route.output is None:
                continue
            # A collection takes outputs by their own names.
            name = route.output if route.path else route.argument
            if outputs.keys() >= {*pair.values()}:
                given |= {f"{name}_{model}": outputs[pair[model]] for model in MODELS}
            elif route.output in outputs:  # for both models
                given[name] = outputs[route.output]
            elif route.required or route.routed:
                raise MetricInputError(
                    f"Compare({type(self.metric).__name__}) needs the output {route.output!r}, or "
                    f"{pair['a']!r} and {pair['b']!r}, for the argument {route.argument!r}, and "
                    f"update() was given: {', '.join(sorted(outputs)) or 'none'}"
                )
        return given | arguments_of(self.own_routes(), outputs)

    def updated_pairs(self, calls: PyTree) -> tuple[PyTree, dict[str, PyTree]]:
        """The calls without the rows that count for one model only, and the states with them.

        The calls hold no argument of the wrapper.
        """
        # Mostly all rows can be used, and this update is the result. Which rows cannot is asked
        # only if a count has changed.
        a, b = self.metric.apply(calls["a"]), self.other.apply(calls["b"])
        states = {"metric": a, "other": b}
        if on_host(a, b) and counts_alike(self.metric, a) and counts_alike(self.other, b):
            return calls, states
        calls, unusable = self._of_both(calls, self.metric.emptied())
        states = {
            "metric": with_invalid_of(a, self.metric.apply(calls["a"])),
            "other": with_invalid_of(b, self.other.apply(calls["b"])),
            "lost": self.lost.update(xp.stack([xp.sum(x, dtype=xp.int32) for x in unusable])),
        }
        return calls, states

    def updated_pairs_at(self, calls: PyTree, target: Target) -> tuple[PyTree, dict[str, PyTree]]:
        """The same of stacked states, each with its rows of a batch."""
        a, b = (
            state.apply_at(calls[model], target)
            for model, state in zip(MODELS, (self.metric, self.other), strict=True)
        )
        states = {"metric": a, "other": b}
        if on_host(a, b) and counts_alike(self.metric, a) and counts_alike(self.other, b):
            return calls, states
        calls, unusable = self._of_both(calls, empty_place(self.metric))
        by_row = xp.stack(unusable, 1).astype(xp.int32)
        empty = MetricAccumulator(np.zeros(by_row.shape[1], np.int32))
        terms = empty.by_row(len(by_row)).update(by_row)
        (lost,) = merge_rows([self.lost], [terms], target)
        states = {
            "metric": with_invalid_of(a, self.metric.apply_at(calls["a"], target)),
            "other": with_invalid_of(b, self.other.apply_at(calls["b"], target)),
            "lost": lost,
        }
        return calls, states

    def _of_both(self, calls: PyTree, empty: Metric) -> tuple[PyTree, list[jax.Array]]:
        """The calls without the rows that one model cannot use; and for each, a mask of those."""
        # By an empty metric: which rows can be used does not depend on the data so far.
        masks = [empty.unusable_rows(calls[model]) for model in MODELS]
        either = jax.tree.map(xp.logical_or, *masks)
        kept = {
            model: jax.tree.map(without_rows, calls[model], either, is_leaf=is_call)
            for model in MODELS
        }
        # A task of which there is no batch has no mask.
        each = jax.tree.leaves(either, is_leaf=lambda x: x is None)
        return kept, [xp.zeros(0, xp.bool_) if x is None else x for x in each]

    def _apply(self, calls: PyTree) -> Self:
        return self.with_parts(self.updated_pairs(calls)[1])

    def apply_at(self, calls: PyTree, target: Target) -> Self:
        return self.with_parts(self.updated_pairs_at(calls, target)[1])

    def unusable_rows(self, calls: PyTree) -> PyTree:
        return {model: self.metric.unusable_rows(calls[model]) for model in MODELS}

    def invalid_count(self) -> PyTree:
        return sum_of_counts([self.metric.invalid_count(), self.other.invalid_count()])

    def reading(self) -> Reading:
        a, b = self.metric.reading(), self.other.reading()
        return self.reading_with({"a": a.value, "b": b.value}, a, b)

    def reading_with(self, value: PyTree, a: Reading, b: Reading) -> Reading:
        """The reading of both models with this value, and with the pairs that are lost."""
        whole = reading_of(value, [("a", a), ("b", b)], flat=False)
        counts: PyTree = self.lost.value
        unknown, policies = xp.asarray(-xp.inf, xp.float32), dict(a.policies)
        for name, place in call_places(self.metric):
            pairs = joined("pairs", name)
            whole.invalid[pairs] = Unusable(None, {_LOST: counts[place]}, unknown)
            # So the policy of the metric holds for pairs that are lost.
            policies[pairs] = policies.get(name, "exclude")
        added = tuple((name, x) for name, x in policies.items() if name in whole.invalid)
        return replace(whole, policies=(*whole.policies, *added))


def call_places(metric: Metric) -> list[tuple[str, int]]:
    """For each metric within, its name and the place of its `Call` among those of an update."""
    if isinstance(metric, Wrapper):
        return call_places(metric.metric)
    if not isinstance(metric, Collection):
        return [("", 0)]
    # An update has the calls of each state, one state after the other.
    places: list[tuple[str, int]] = []
    first: dict[tuple[int, int], int] = {}
    end = 0
    for member in metric.members:
        inner = call_places(states_of(metric).configuration(member))
        if member.where not in first:
            first[member.where] = end
            end += 1 + max(place for _, place in inner)
        name = f"{metric.prefix}{member.name}"
        places += [(joined(name, path), first[member.where] + place) for path, place in inner]
    return places
