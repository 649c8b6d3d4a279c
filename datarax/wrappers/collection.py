"""`Collection`: several metrics of the same outputs as one."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, ClassVar, Generic, Self, TypeVar

import jax

from datarax._checks import kind
from datarax._errors import (
    ConfigurationMismatchError,
    MetricInputError,
    MetricTypeError,
    UnknownMetricError,
)
from datarax._typing import PyTree
from datarax.algebra.rows import Target
from datarax.algebra.saving import loaded_parts, type_name
from datarax.algebra.stack import Stack
from datarax.algebra.state import State, is_untouched
from datarax.distributed.collectives import AxisName
from datarax.distributed.placement import outside_mesh, placed_near
from datarax.metric.arguments import (
    Argument,
    Route,
    is_call,
    joined,
    naming,
    refuse_ignored,
    refuse_untaken,
)
from datarax.metric.base import Metric, placed_as, read
from datarax.metric.reading import Reading
from datarax.metric.values import flat_items
from datarax.wrappers.shared_states import (
    Members,
    SharedStates,
    adds_terms,
    share_equal_statistics,
    states_of,
)
from datarax.wrappers.shown import Line, as_html, as_text, is_readable, lines
from datarax.wrappers.wrapper import checked_metric, reading_of

C = TypeVar("C", bound="Collection")
M = TypeVar("M", bound=Metric)

_OPTIONS = ("metrics", "prefix", "strict")
"""The names of the arguments of the constructor."""


class NamedMetrics(Generic[M]):
    """The base of metrics that are a mapping of metrics by name, in their order."""

    def __iter__(self) -> Iterator[str]:
        raise TypeError(f"{type(self).__name__} does not define __iter__()")

    def items(self) -> list[tuple[str, M]]:
        """Pairs of name and metric, sorted by name."""
        raise TypeError(f"{type(self).__name__} does not define items()")

    def keys(self) -> list[str]:
        """The names, sorted."""
        return list(self)

    def values(self) -> list[M]:
        """The metrics, sorted by name."""
        return [metric for _, metric in self.items()]


class Collection(NamedMetrics[Metric], Metric):
    """A metric that holds several metrics by name and updates them from the outputs of a step.

    `update(**outputs)` passes to each metric the outputs that have the names of its arguments;
    `from_outputs`, of a metric or of the collection, gives an argument an output of another name,
    or leaves it out. Other outputs are ignored, except those whose names show that they are meant
    for a metric, such as `mask`. `compute()` returns a flat dict; the metrics of an inner
    collection have names like "outer/inner". Metrics that read equal statistics of the same outputs
    share one statistic, which is updated, synced and stored once.

    A collection is also a mapping of its metrics: `collection["loss"]`, `in`, `len`, iteration,
    `keys()`, `values()` and `items()`; `print` shows a table of the values. `a | b` has the
    metrics of both, with their states; where both have a name, the metric of `b`, as with
    dicts. Either may be a dict of metrics.

    Args:
        metrics: a mapping from names to metrics. Names may contain "/".
        prefix: what is put before all names in results, bounds, errors and warnings: "train/".
            Indexing, `update` and saved states have the names without it, so collections that
            differ in the prefix alone can be merged, and restored from each other.
        strict: whether `update` refuses outputs that no metric takes. Default: False.

    Raises:
        MetricTypeError: a value is not a metric, or an option is of another type.
        MetricInputError: there are no metrics; a name is not a string or is empty; or two results
            would have the same name, such as "a/b" beside a collection "a" that has a "b".

    Example:
        >>> import jax.numpy as jnp
        >>> import datarax
        >>> from datarax.metrics import Accuracy, Mean
        >>> metrics = datarax.Collection({
        ...     "loss": Mean().from_outputs(values="loss"),
        ...     "accuracy": Accuracy(num_classes=2),
        ... })
        >>> metrics = metrics.update(
        ...     loss=jnp.array([0.5, 1.5]), preds=jnp.array([1, 0]), target=jnp.array([1, 1])
        ... )
        >>> print(metrics.results())
        {'accuracy': 0.5, 'loss': 1.0}
        >>> train = datarax.Collection({"loss": Mean()}, prefix="train/")
        >>> print(train.update(values=2.0).results())
        {'train/loss': 2.0}
    """

    delegates: ClassVar[bool] = True
    hidden_names = frozenset({"members", "parts", "shares"})
    shares: ClassVar[bool] = True
    """True if all metrics get the same outputs, so that equal statistics are shared."""

    parts: tuple[Metric | Stack, ...]
    members: Members
    prefix: str = ""
    strict: bool = False

    if TYPE_CHECKING:

        def results(self, *, as_json: bool = False, **given: float) -> dict[str, PyTree]: ...

    def __init__(self, metrics: Mapping[str, Metric], prefix: str = "", *, strict: bool = False):
        if not isinstance(prefix, str):
            raise MetricTypeError(
                f"{type(self).__name__}: prefix is {kind(prefix)}; expected a string"
            )
        if not isinstance(strict, bool):
            raise MetricTypeError(
                f"{type(self).__name__}: strict is {kind(strict)}; expected True or False"
            )
        if not isinstance(metrics, Mapping):
            raise MetricTypeError(
                f"{type(self).__name__} expects a dict of metrics; got {type(metrics).__name__}"
            )
        if not metrics:
            raise MetricInputError(
                f"{type(self).__name__}: expected at least one metric; got an empty dict"
            )
        for name, metric in metrics.items():
            if not isinstance(metric, Metric):
                raise MetricTypeError(
                    f"{type(self).__name__}: {name!r} is {kind(metric)}; expected a datarax.Metric"
                )
            if not isinstance(name, str) or not name:
                raise MetricInputError(
                    f"{type(self).__name__}: the name {name!r} must be a nonempty string"
                )
        # Names are known before data is: a clash must not first show at the end of a run.
        _check_distinct(path for name, metric in metrics.items() for path in _paths(name, metric))
        self.parts, self.members, _ = SharedStates.of(metrics, shares=self.shares)
        self.prefix, self.strict = prefix, strict

    @staticmethod
    def from_rules(
        rules: Mapping[str, Metric], example: Mapping[str, PyTree], *, strict: bool = False
    ) -> "Collection":
        """A collection with a metric for each name of a step's outputs, chosen by patterns.

        For steps that return a dict of numbers whose names are many, or not known before. The
        metric of a name is that of the first pattern that matches it, as by `fnmatch.fnmatchcase`:
        `*` matches any characters, "/" too. Its first required argument for which it names no
        output itself takes the output of that name; so `Ratio().from_outputs(denominator="tokens")`
        divides each output by the output "tokens".

        The rule of a name says what its number means over several steps, or over micro-batches
        that `lax.scan` stacks: `Ratio` is pooled over tokens, `Mean` is the mean of micro-batches,
        in which each counts the same, and `Sum`, `Max` and `LastValue` are what they say.

        Args:
            rules: a mapping from patterns to metrics without data, in order. A pattern that matches
                no name does nothing, so one table can serve several models.
            example: the outputs of a step, or any flat dict with their names: its values are not
                looked at. Outputs that are not in it are ignored by `update`.
            strict: whether to refuse a pattern that no name has as its first, and later, in
                `update`, an output that is not in `example`.

        Raises:
            MetricInputError: no pattern matches a name, lists all such names; a metric has data, or
                names the outputs of all its required arguments; `example` is empty, or holds a
                dict; or, if `strict`, a pattern is used by no name.
            MetricTypeError: `rules` or `example` is not a dict, or a rule is not a metric.

        Example:
            >>> import jax.numpy as jnp
            >>> import datarax
            >>> from datarax.metrics import LastValue, Max, Mean, Ratio, Sum
            >>> rules = {
            ...     "*/aux_loss": Mean(),
            ...     "*loss": Ratio().from_outputs(denominator="tokens"),
            ...     "tokens": Sum(),
            ...     "*_norm": Max(),
            ... }
            >>> step = {"train/loss": 6.0, "moe/aux_loss": 0.5, "grad_norm": 2.0, "tokens": 3}
            >>> metrics = datarax.Collection.from_rules(rules, step)
            >>> metrics = metrics.update(**step)
            >>> metrics = metrics.update(**{name: 2 * x for name, x in step.items()})
            >>> print(metrics.results())
            {'grad_norm': 4.0, 'moe/aux_loss': 0.75, 'tokens': 9, 'train/loss': 2.0}
        """
        caller = "Collection.from_rules"
        for given, name in ((rules, "rules"), (example, "example")):
            if not isinstance(given, Mapping):
                raise MetricTypeError(f"{caller}: {name} is {kind(given)}; expected a dict")
        for name, output in example.items():
            if isinstance(output, Mapping):
                raise MetricInputError(
                    f"{caller}: the output {name!r} is a dict of {', '.join(map(repr, output))}; "
                    f"expected one value for each name. Flatten it, as {{'{name}/...': ...}}, "
                    f"here and for update; or make a collection of each dict, in a MultiTask"
                )
        for pattern, metric in rules.items():
            checked_metric(metric, f"{caller}: the rule {pattern!r}")
        # The first pattern alone counts, so that a table of rules reads from special to general.
        chosen = {name: [each for each in rules if fnmatchcase(name, each)][:1] for name in example}
        missing = [repr(name) for name, patterns in chosen.items() if not patterns]
        if missing:
            raise MetricInputError(
                f"{caller}: no rule matches {', '.join(missing)}; the rules are "
                f"{', '.join(map(repr, rules))}. Add a rule for them, or leave them out of example"
            )
        unused = [repr(each) for each in rules if [each] not in chosen.values()]
        if strict and unused:
            raise MetricInputError(
                f"{caller}: no name takes the rule {', '.join(unused)}; the names are "
                f"{', '.join(map(repr, example))}, and each takes the first rule that matches it. "
                f"Remove the rule, or leave strict=True out"
            )
        fed = {name: _fed_by(name, rules[pattern], pattern) for name, (pattern,) in chosen.items()}
        return Collection(fed, strict=strict)

    @classmethod
    def constructor_hint(cls, kwargs: Mapping[str, PyTree]) -> str:
        named = ", ".join(f'"{name}": ...' for name in kwargs if name not in _OPTIONS)
        return f". Write {cls.__name__}({{{named}}})" if named else ""

    def states_within(self) -> list[State]:
        return list(states_of(self).owners())

    def __getitem__(self, name: str) -> Metric:
        for member in self.members:
            if member.name == name:
                return member.over(states_of(self).slots())
        raise UnknownMetricError(
            f"{type(self).__name__} has no metric {name!r}; it has: {', '.join(map(repr, self))}"
        )

    def __iter__(self) -> Iterator[str]:
        return (member.name for member in self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, name: object) -> bool:
        return any(member.name == name for member in self.members)

    def items(self) -> list[tuple[str, Metric]]:
        """Pairs of name and metric, sorted by name."""
        return list(zip(self, states_of(self).metrics(), strict=True))

    def __or__(self, other: "Mapping[str, Metric] | Collection") -> Self:
        if not isinstance(other, Collection | Mapping):
            return NotImplemented
        return _like(self, dict(self.items()) | dict(other.items()))

    def __ror__(self, other: Mapping[str, Metric]) -> Self:
        if not isinstance(other, Mapping):
            return NotImplemented
        return _like(self, dict(other.items()) | dict(self.items()))

    def replace(self, /, **changes: PyTree) -> Self:
        """The collection with some members replaced; every metric keeps its own state.

        A name that is no identifier is given as `replace(**{"train/loss": metric})`.

        Raises:
            UnknownMetricError: the collection has no metric of a given name.
        """
        # A name that is new would be a typing error: `|` adds metrics.
        for name in changes:
            self[name]  # raises for an unknown name
        return _like(self, dict(self.items()) | changes)

    def update(self, /, *args: PyTree, **outputs: PyTree) -> Self:
        """The collection with each metric updated with its outputs, which are given by name.

        Raises:
            MetricInputError: an output that a metric needs is missing; the error names both. Or an
                output that no metric takes has a name that is used for weights (`mask`, `weight`,
                `sample_weight`, `sample_weights`, `where`, `valid`, `real`, `padding`, names that
                end in `_mask` or `_weight`), or one that is similar to an argument that was not
                given; if `strict`, any output that no metric takes. An error in the update of a
                metric has its name in the message.
        """
        arguments = [kwargs for _, _, kwargs in _arguments_of_each(self, args, outputs)]
        states = states_of(self).updated(arguments, lambda metric, kwargs: metric.update(**kwargs))
        return states.put_in(self)

    def from_outputs(self, **outputs: str | None) -> Self:
        """A copy whose metrics take these arguments from outputs of other names.

        An argument for which a metric names an output itself is left as it is.

        Raises:
            UnknownMetricError: no metric has the argument, or all that have it name an output.
            MetricInputError: as by `Metric.from_outputs`.
        """
        # A new collection is made: members that now take other outputs share no statistic.
        metrics, missing = {}, set(outputs)
        for name, metric in self.items():
            takes = {route.argument for route in metric.routes() if not route.routed}
            own = {argument: outputs[argument] for argument in outputs if argument in takes}
            metrics[name] = metric.from_outputs(**own) if own else metric
            missing -= takes
        if missing:
            raise UnknownMetricError(
                f"{type(self).__name__}.from_outputs({sorted(missing)[0]}=...): no metric takes "
                f"that argument, or each that does names its output itself"
            )
        return _like(self, metrics)

    def routes(self) -> list[Route]:
        return [
            route.inside(name)
            for name, metric in states_of(self).updated_metrics()
            for route in metric.routes()
        ]

    def arguments_from(self, outputs: Mapping[str, PyTree]) -> dict[str, PyTree]:
        for name, metric in states_of(self).updated_metrics():
            with naming(name):
                metric.arguments_from(outputs)  # raises if an output is missing
        routes = self.routes()
        taken = {route.output for route in routes}
        # A metric with `**kwargs` may use any of them.
        if any(route.takes_all for route in routes):
            return dict(outputs)
        return {name: output for name, output in outputs.items() if name in taken}

    def calls(self, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> tuple[PyTree, ...]:
        return tuple(
            calls_of(name, metric, given)
            for name, metric, given in _arguments_of_each(self, args, kwargs)
        )

    def apply(self, calls: tuple[PyTree, ...]) -> Self:
        states = states_of(self).updated(calls, lambda metric, call: metric.apply(call))
        return states.put_in(self)

    def apply_at(self, calls: tuple[PyTree, ...], target: Target) -> Self:
        return states_of(self).updated_at(calls, target).put_in(self)

    def unusable_rows(self, calls: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        # Empty, because only the configuration says which rows can be used.
        pairs = zip(states_of(self.emptied()).owners(), calls, strict=True)
        return tuple(None if call is None else x.unusable_rows(call) for x, call in pairs)

    def sync(self, axis_name: AxisName) -> Self:
        # States that an update has taken apart, as some varied over devices, are stacked again.
        return _restacked(super().sync(axis_name))

    def combine(self, other: PyTree) -> Self:
        if self.members == other.members:
            return super().combine(other)
        # After `replace`, two equal collections may share statistics in different ways. Then they
        # are merged member by member.
        return _like(self, {name: metric.combine(other[name]) for name, metric in self.items()})

    @property
    def is_extreme(self) -> bool:
        """True if any metric is an extreme: then a part of the value is."""
        return any(part.is_extreme for part in self.parts)

    @outside_mesh
    def bounds(self) -> dict[str, tuple[PyTree, PyTree]]:
        """The bounds `(lower, upper)` of each metric that has bounds, by its name."""
        bounds = {name: each.rounded_outward() for name, each in read(self).bounds.items()}
        return placed_as(self, bounds)

    def readers(self) -> list[Argument]:
        return [
            reader.inside(f"{self.prefix}{each.name}")
            for each in self.members
            for reader in states_of(self).configuration(each).readers()
        ]

    def reading(self) -> Reading:
        readings: list[tuple[str, Reading]] = []
        for name, metric in self.items():
            path = f"{self.prefix}{name}"
            try:
                readings.append((path, metric.reading()))
            except MetricInputError:  # a formula lacks an argument
                with naming(path):
                    raise
        value = _flat((name, each.value) for name, each in readings)
        return reading_of(value, readings, flat=True)

    def described(self) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
        return {}, dict(self.items())

    def loaded(self, saved: dict[str, PyTree], where: str, *, partial: bool = False) -> Self:
        # On the host, where taking a stack apart compiles nothing.
        empty = self.emptied()
        is_one = isinstance(saved, dict) and (partial or saved.get("type") == type_name(self))
        state = saved.get("state") if is_one else None
        if isinstance(state, dict) and partial:
            if state.keys().isdisjoint(self):
                raise ConfigurationMismatchError(
                    f"{type(self).__name__}: the saved state holds {sorted(state)}, and none of "
                    f"{list(self)}; partial=True keeps the members that both have"
                )
            # What is absent is loaded as empty, so that one way loads both.
            absent = {name: x.saved() for name, x in empty.items() if name not in state}
            kept = {name: each for name, each in state.items() if name in self}
            saved = saved | {"state": kept | absent}
        elif isinstance(state, dict) and state.keys() != {*self}:
            raise ConfigurationMismatchError(
                f"{where}: the saved state holds {sorted(state)}; expected {list(self)}. To keep "
                f"the members that both have, and to start the others empty, pass partial=True to "
                f"restore, unpack or load_state_dict"
            )
        parts = loaded_parts(empty, saved, where, partial=partial)
        states = states_of(empty).restored(parts)
        # Members that share a state here may hold different data there: then each gets its own.
        if states is None:
            loaded = _like(self, share_equal_statistics(parts))
        else:
            loaded = states.put_in(empty)
        return placed_near(self, loaded)

    def __repr__(self) -> str:
        metrics = ((each.name, states_of(self).configuration(each)) for each in self.members)
        members = (f"{name!r}: {metric!r}" for name, metric in metrics)
        options = ((name, getattr(self, name)) for name in _OPTIONS[1:])
        given = "".join(f", {name}={value!r}" for name, value in options if value)
        return f"{type(self).__name__}({{{', '.join(members)}}}{given})"

    def __str__(self) -> str:
        """The values as a table, where there is data."""
        table = _table(self)
        return repr(self) if table is None else as_text(table)

    def _repr_html_(self) -> str | None:
        """The same in a notebook; None where there is no data."""
        table = _table(self)
        return None if table is None else as_html(table)


def _like(collection: C, metrics: Mapping[str, Metric]) -> C:
    """A collection of these metrics, of the same class and configuration."""
    made = type(collection)(metrics)  # whose constructor may be that of a subclass
    if not collection.prefix and not collection.strict:
        return made
    return made.with_parts({"prefix": collection.prefix, "strict": collection.strict})


def _arguments_of_each(
    collection: Collection, args: tuple[PyTree, ...], outputs: Mapping[str, PyTree]
) -> list[tuple[str, Metric, dict[str, PyTree]]]:
    """The metrics that `update` updates, each with a name and the outputs that it takes."""
    if args:
        required = dict.fromkeys(
            f"{each.output}=..." for each in collection.routes() if each.required
        )
        raise MetricInputError(
            f"Collection.update takes outputs by name, and got {len(args)} by position; write "
            f"update({', '.join(required)})"
        )
    metrics = states_of(collection).updated_metrics()
    try:
        routes = [route for _, metric in metrics for route in metric.routes()]
        refuse_ignored(routes, outputs, "Collection.update")
    except MetricInputError:
        # The slow way, with the names of the metrics, which only the message needs.
        refuse_ignored(collection.routes(), outputs, "Collection.update")
    if collection.strict:
        refuse_untaken(collection.routes(), outputs, f"{type(collection).__name__}.update")
    found = []
    for name, metric in metrics:
        try:
            found.append((name, metric, metric.arguments_from(outputs)))
        except Exception:  # a block for each metric would cost time in every step
            with naming(name):
                raise
    return found


def _table(collection: Collection) -> list[Line] | None:
    """The values as the lines of a table; None where there is no data, or it is not here."""
    if is_untouched(collection) or not is_readable(collection):
        return None
    return lines(list(_each(collection)))


def _each(collection: Collection) -> Iterator[tuple[str, Metric]]:
    """The metrics, those of inner collections too, with the names that results have."""
    for name, metric in collection.items():
        within = _each(metric) if isinstance(metric, Collection) else [("", metric)]
        yield from ((joined(f"{collection.prefix}{name}", path), each) for path, each in within)


def _restacked(collection: C) -> C:
    """The collection, and those within it, with all states of one kind in one stack."""
    parts = (_restacked(x) if isinstance(x, Collection) else x for x in collection.parts)
    states = states_of(collection)._replace(parts=tuple(parts))
    return states.restacked().put_in(collection)


def adds_rows(metric: Metric, calls: PyTree) -> bool:
    """True if all that `apply_at` does with these calls is to add terms of single rows."""
    if not isinstance(metric, Collection):
        return adds_terms(metric, calls)
    pairs = zip(states_of(metric.emptied()).owners(), calls, strict=True)
    return all(call is not None and adds_rows(each, call) for each, call in pairs)


def calls_of(name: str, metric: Metric, given: dict[str, PyTree]) -> PyTree:
    """The calls of the update of a member, with its name in their paths."""
    with naming(name):
        calls = metric.calls((), given)
    return jax.tree.map(
        lambda call: replace(call, path=joined(name, call.path)), calls, is_leaf=is_call
    )


def _fed_by(name: str, metric: Metric, pattern: str) -> Metric:
    """The metric of a rule, whose first argument without an output takes the output `name`."""
    free = [each.argument for each in metric.routes() if each.required and not each.routed]
    if not free:
        raise MetricInputError(
            f"Collection.from_rules: the {type(metric).__name__} of the rule {pattern!r} names an "
            f"output for each argument that it needs; expected one that is left to the output "
            f"{name!r}"
        )
    return metric.from_outputs(**{free[0]: name})


def _flat(values: Iterable[tuple[str, PyTree]]) -> dict[str, PyTree]:
    """Nested dicts as one dict, with names like "outer/inner"."""
    pairs = list(flat_items(dict(values)))
    _check_distinct(name for name, _ in pairs)
    return dict(pairs)


def _paths(name: str, metric: Metric) -> Iterator[str]:
    """The names of a metric's results, as far as they are known before it is read."""
    if not isinstance(metric, Collection):
        yield from (name, f"{name}/invalid")
        return
    for key, each in metric.items():
        yield from _paths(f"{name}/{metric.prefix}{key}", each)


def _check_distinct(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise MetricInputError(
                f"Collection: two results have the name {name!r}, because the name of an inner "
                f"result is joined to that of its metric by '/'; rename one of the metrics"
            )
        seen.add(name)
