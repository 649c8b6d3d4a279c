"""`Collection`: several metrics of the same outputs as one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import accumulate
from operator import is_not
from typing import TYPE_CHECKING, ClassVar, Self

import jax

from datarax._checks import kind
from datarax._errors import (
    ConfigurationMismatchError,
    MetricInputError,
    MetricTypeError,
    UnknownMetricError,
)
from datarax._typing import PyTree
from datarax._xp import fetched, is_addressable, is_traced, on_host
from datarax.algebra.row_merge import Target
from datarax.algebra.stack import Stack
from datarax.algebra.state import State
from datarax.algebra.state_dicts import type_name
from datarax.distributed.collectives import AxisName
from datarax.distributed.placement import device_sets, outside_mesh, placed_near
from datarax.metric.arguments import (
    Argument,
    Route,
    is_call,
    joined,
    naming,
    refuse_ignored,
)
from datarax.metric.base import Metric, placed_as, read
from datarax.metric.reading import Reading
from datarax.metric.rows import (
    Terms,
    element,
    replicated_target,
    terms_of_rows,
    with_terms,
)
from datarax.metric.values import flat_items
from datarax.wrappers.member_stacks import Change, Given, folded, kind_of, vary_alike
from datarax.wrappers.members import (
    Members,
    Slots,
    arrange_members,
    equal_arrays,
    same_statistic,
    share_equal_statistics,
    without_arrays,
)
from datarax.wrappers.wrapper import checked_metric, reading_of

_MOST_TOGETHER = 64
"""The most numbers of a state whose terms are added together with those of other members."""


class Collection(Metric):
    """A metric that holds several metrics by name and updates them from the outputs of a step.

    `update(**outputs)` passes to each metric the outputs that have the names of its arguments;
    `from_outputs`, of a metric or of the collection, gives an argument an output of another name,
    or leaves it out. Other outputs are ignored, except those whose names show that they are meant
    for a metric, such as `mask`. `compute()` returns a flat dict; the metrics of an inner
    collection have names like "outer/inner". Metrics that read equal statistics of the same outputs
    share one statistic, which is updated, synced and stored once.

    A collection is also a mapping of its metrics: `collection["loss"]`, `in`, `len`, iteration,
    `keys()`, `values()` and `items()`. `a | b` has the metrics of both, with their states; where
    both have a name, the metric of `b`, as with dicts. Either may be a dict of metrics.

    Args:
        metrics: a mapping from names to metrics. Names may contain "/".
        prefix: what is put before all names in results, bounds, errors and warnings: "train/".
            Indexing, `update` and saved states have the names without it, so collections that
            differ in the prefix alone can be merged, and restored from each other.

    Raises:
        MetricTypeError: a value is not a metric, or the prefix is not a string.
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
    hidden_names = frozenset({"groups", "members", "parts", "shares", "updated_metrics"})
    shares: ClassVar[bool] = True
    """True if all metrics get the same outputs, so that equal statistics are shared."""

    parts: tuple[Metric | Stack, ...]
    members: Members
    prefix: str = ""

    if TYPE_CHECKING:

        def results(self, *, as_json: bool = False, **given: float) -> dict[str, PyTree]: ...

    def __init__(self, metrics: Mapping[str, Metric], prefix: str = ""):
        if not isinstance(prefix, str):
            raise MetricTypeError(
                f"{type(self).__name__}: prefix is {kind(prefix)}; expected a string"
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
        self.parts, self.members = arrange_members(metrics, shares=self.shares)
        self.prefix = prefix

    @staticmethod
    def from_rules(rules: Mapping[str, Metric], example: Mapping[str, PyTree]) -> "Collection":
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
            example: the outputs of a step, or any dict with their names: its values are not looked
                at. Outputs that are not in it are ignored by `update`.

        Raises:
            MetricInputError: no pattern matches a name, lists all such names; a metric has data, or
                names the outputs of all its required arguments; or `example` is empty.
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
        for pattern, metric in rules.items():
            checked_metric(metric, f"{caller}: the rule {pattern!r}")
        chosen = {name: [each for each in rules if fnmatchcase(name, each)][:1] for name in example}
        missing = [repr(name) for name, patterns in chosen.items() if not patterns]
        if missing:
            raise MetricInputError(
                f"{caller}: no rule matches {', '.join(missing)}; the rules are "
                f"{', '.join(map(repr, rules))}. Add a rule for them, or leave them out of example"
            )
        return Collection(
            {name: _fed_by(name, rules[pattern], pattern) for name, (pattern,) in chosen.items()}
        )

    def _of(self, metrics: Mapping[str, Metric]) -> Self:
        """A collection of these metrics, of the same class and prefix."""
        made = type(self)(metrics)  # whose constructor may be that of a subclass
        return made.with_parts({"prefix": self.prefix}) if self.prefix else made

    @classmethod
    def constructor_hint(cls, kwargs: Mapping[str, PyTree]) -> str:
        named = ", ".join(f'"{name}": ...' for name in kwargs if name not in ("metrics", "prefix"))
        return f". Write {cls.__name__}({{{named}}})" if named else ""

    @property
    def groups(self) -> tuple[Metric, ...]:
        """A metric for each state: the first of the members that share it."""
        slots = self._slots()
        parts = [(each, self.parts[each.part]) for each in self.members.firsts]
        return tuple(x if isinstance(x, Metric) else each.filled(slots) for each, x in parts)

    def states_within(self) -> list[State]:
        return list(self.groups)

    def _slots(self) -> Slots:
        """For each part, its states; outside `jit`, the same objects each time."""
        return [part.apart() if isinstance(part, Stack) else [part] for part in self.parts]

    def _with_slots(self, slots: Slots, axis: int = 0) -> Self:
        """A copy with these states."""
        return self._with_parts(
            part.holding_each(each, axis) if isinstance(part, Stack) else each[0]
            for part, each in zip(self.parts, slots, strict=True)
        )

    def __getitem__(self, name: str) -> Metric:
        for member in self.members:
            if member.name == name:
                return member.filled(self._slots())
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
        slots = self._slots()
        return [(each.name, each.filled(slots)) for each in self.members]

    def keys(self) -> list[str]:
        """The names, sorted."""
        return list(self)

    def values(self) -> list[Metric]:
        """The metrics, sorted by name."""
        return [metric for _, metric in self.items()]

    def __or__(self, other: "Mapping[str, Metric] | Collection") -> Self:
        if not isinstance(other, Collection | Mapping):
            return NotImplemented
        return self._of(dict(self.items()) | dict(other.items()))

    def __ror__(self, other: Mapping[str, Metric]) -> Self:
        if not isinstance(other, Mapping):
            return NotImplemented
        return self._of(dict(other.items()) | dict(self.items()))

    def replace(self, /, **changes: PyTree) -> Self:
        """The collection with some members replaced; every metric keeps its own state.

        A name that is no identifier is given as `replace(**{"train/loss": metric})`.

        Raises:
            UnknownMetricError: the collection has no metric of a given name.
        """
        for name in changes:
            self[name]  # raises for an unknown name
        return self._of(dict(self.items()) | changes)

    def update(self, /, *args: PyTree, **outputs: PyTree) -> Self:
        """The collection with each metric updated with its outputs, which are given by name.

        Raises:
            MetricInputError: an output that a metric needs is missing; the error names both. Or an
                output that no metric takes has a name that is used for weights (`mask`, `weight`,
                `sample_weight`, `sample_weights`, `where`, `valid`, `real`, `padding`, names that
                end in `_mask` or `_weight`), or one that is similar to an argument that was not
                given. An error in the update of a metric has its name in the message.
        """
        given = [given for _, _, given in self._arguments(args, outputs)]
        return self._changed(given, lambda metric, given: metric.update(**given))

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
        return self._of(metrics)

    def routes(self) -> list[Route]:
        return [
            route.inside(name)
            for name, metric in self.updated_metrics()
            for route in metric.routes()
        ]

    def arguments_from(self, outputs: Mapping[str, PyTree]) -> dict[str, PyTree]:
        for name, metric in self.updated_metrics():
            with naming(name):
                metric.arguments_from(outputs)  # raises if an output is missing
        routes = self.routes()
        taken = {route.output for route in routes}
        if any(route.takes_all for route in routes):
            return dict(outputs)
        return {name: output for name, output in outputs.items() if name in taken}

    def calls(self, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> tuple[PyTree, ...]:
        return tuple(
            calls_of(name, metric, given) for name, metric, given in self._arguments(args, kwargs)
        )

    def _arguments(
        self, args: tuple[PyTree, ...], outputs: Mapping[str, PyTree]
    ) -> list[tuple[str, Metric, dict[str, PyTree]]]:
        """The metrics that `update` updates, each with a name and the outputs that it takes."""
        if args:
            required = dict.fromkeys(
                f"{each.output}=..." for each in self.routes() if each.required
            )
            raise MetricInputError(
                f"Collection.update takes outputs by name, and got {len(args)} by position; write "
                f"update({', '.join(required)})"
            )
        metrics = self.updated_metrics()
        try:
            routes = [route for _, metric in metrics for route in metric.routes()]
            refuse_ignored(routes, outputs, "Collection.update")
        except MetricInputError:
            # The slow way, with the names of the metrics, which only the message needs.
            refuse_ignored(self.routes(), outputs, "Collection.update")
        found = []
        for name, metric in metrics:
            try:
                found.append((name, metric, metric.arguments_from(outputs)))
            except Exception:  # a block for each metric would cost time in every step
                with naming(name):
                    raise
        return found

    def apply(self, calls: tuple[PyTree, ...]) -> Self:
        return self._changed(calls, lambda metric, call: metric.apply(call))

    def apply_at(self, calls: tuple[PyTree, ...], target: Target) -> Self:
        # Terms of rows are added to small states of all members at once (see `merge_rows`), which
        # takes fewer collectives: 7 in place of 18 or 24.
        waiting: list[Metric] = []
        terms: Terms = []

        def change(metric: Metric, call: PyTree) -> PyTree:
            empty = element(metric)
            size = sum(x.size for x in jax.tree.leaves(empty))
            if not is_call(call) or size > _MOST_TOGETHER or not empty.adds_rows(call):
                return metric.apply_at(call, target)
            terms.extend(terms_of_rows(empty, call, target))
            waiting.append(metric)
            return None

        slots = self._states_changed(calls, change, 1)
        added = iter(with_terms(waiting, terms, replicated_target(target)) if waiting else [])
        return self._with_slots([[next(added) if x is None else x for x in y] for y in slots], 1)

    def call_places(self) -> list[tuple[str, int]]:
        within = [metric.call_places() for _, metric in self.updated_metrics()]
        starts = accumulate((1 + max(place for _, place in each) for each in within), initial=0)
        states = [each.where for each in self.members.firsts]
        first = dict(zip(states, starts, strict=False))
        return [
            (joined(f"{self.prefix}{member.name}", name), first[member.where] + place)
            for member, metric in zip(self.members, self.values(), strict=True)
            for name, place in metric.call_places()
        ]

    def unusable_rows(self, calls: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        pairs = zip(self.updated_metrics(), calls, strict=True)
        return tuple(
            None if call is None else metric.unusable_rows(call) for (_, metric), call in pairs
        )

    def adds_rows(self, calls: tuple[PyTree, ...]) -> bool:
        given = [each for part in self._by_part(calls) for each in part]
        metrics = [each for part in self.emptied()._slots() for each in part]
        return all(
            each.given is not None and each.of(metric).adds_rows(each.given)
            for each, metric in zip(given, metrics, strict=True)
        )

    def _changed(self, given: Sequence[PyTree], change: Change) -> Self:
        """The collection with each state changed by what it is given; None leaves it as it is."""
        if on_host(self, given):
            return self._with_slots(self._states_changed(given, change))
        if not is_traced((self, given)):
            slots = self._states_changed(given, change)
            if len(device_sets(jax.tree.leaves(slots))) < 2:
                return self._with_slots(slots)
            # States that are now on different meshes cannot be in one stack.
            return self._of({each.name: each.filled(slots) for each in self.members})
        parts: list[Metric | Stack] = []
        for part, members in zip(self.parts, self._by_part(given), strict=True):
            if not isinstance(part, Stack):
                parts.append(members[0].changed(part, change))
            elif vary_alike(part, members):
                parts.append(folded(part, members, change))
            else:  # replicated states and others cannot be in one stack: stacks are made anew
                slots = self._states_changed(given, change)
                return self._of({each.name: each.filled(slots) for each in self.members})
        return self._with_parts(parts)

    def _states_changed(self, given: Sequence[PyTree], change: Change, axis: int = 0) -> Slots:
        """The states of each part, changed one by one."""
        slots: Slots = []
        for part, members in zip(self.parts, self._by_part(given), strict=True):
            own = part.apart(axis) if isinstance(part, Stack) else [part]
            pairs = zip(members, own, strict=True)
            slots.append([each.changed(each.of(state), change) for each, state in pairs])
        return slots

    def _by_part(self, given: Sequence[PyTree]) -> list[list[Given]]:
        """For each part, its states with what they are given."""
        found: list[list[Given]] = [[] for _ in self.parts]
        for member, metric, each in zip(
            self.members.firsts, self.members.unfilled, given, strict=True
        ):
            found[member.part].append(
                Given(f"{self.prefix}{member.name}", metric, member.structure, each)
            )
        return found

    def _with_parts(self, parts: Iterable[Metric | Stack]) -> Self:
        """A copy with these parts; in `shard_map`, an inner collection may get other stacks."""
        parts = tuple(parts)
        if not any(isinstance(part, Collection) for part in parts):
            return self.with_parts({"parts": parts})
        members = Members(
            each._replace(structure=jax.tree.structure(parts[each.part]))
            if isinstance(parts[each.part], Collection)
            else each
            for each in self.members
        )
        same = members == self.members
        return self.with_parts({"parts": parts} if same else {"parts": parts, "members": members})

    def updated_metrics(self) -> list[tuple[str, Metric]]:
        """The metrics that `update` updates, one for each state, by the name of a member.

        Of one in a stack, only the configuration.
        """
        found = []
        for member, metric in zip(self.members.firsts, self.members.unfilled, strict=True):
            part = self.parts[member.part]
            found.append(
                (f"{self.prefix}{member.name}", part if isinstance(part, Metric) else metric)
            )
        return found

    def sync(self, axis_name: AxisName) -> Self:
        # States that an update has taken apart, as some varied over devices, are stacked again.
        return super().sync(axis_name)._together()

    def _together(self) -> Self:
        """The collection with all states of one kind in one stack."""
        inner = [part._together() if isinstance(part, Collection) else part for part in self.parts]
        whole = self._with_parts(inner) if any(map(is_not, inner, self.parts)) else self
        kinds = [kind for kind in map(kind_of, whole.parts) if kind is not None]
        return whole if len(set(kinds)) == len(kinds) else whole._of(dict(whole.items()))

    def combine(self, other: PyTree) -> Self:
        if self.members == other.members:
            return super().combine(other)
        # After `replace`, two equal collections may share statistics in different ways. Then they
        # are merged member by member.
        return self._of({name: metric.combine(other[name]) for name, metric in self.items()})

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
            for reader in without_arrays(each.structure).readers()
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

    # Saved and loaded on the host, where taking a stack apart compiles nothing.

    def saved(self) -> dict[str, PyTree]:
        """The same as `state_dict()`, without the format version."""
        leaves = jax.tree.leaves(self)
        known = all(is_addressable(x) or x.is_fully_replicated for x in leaves)
        return super(Collection, fetched(self) if known else self).saved()

    def loaded(self, saved: dict[str, PyTree], where: str) -> Self:
        is_one = isinstance(saved, dict) and saved.get("type") == type_name(self)
        state = saved.get("state") if is_one else None
        if isinstance(state, dict) and state.keys() != {*self}:
            raise ConfigurationMismatchError(
                f"{where}: the saved state holds {sorted(state)}; expected {list(self)}. To keep "
                f"the members that both have, and to start the others empty, pass partial=True to "
                f"restore, unpack or load_state_dict"
            )
        return placed_near(self, super(Collection, self.emptied()).loaded(saved, where))

    def completed(self, saved: PyTree) -> PyTree:
        state = saved.get("state") if isinstance(saved, dict) else None
        if not isinstance(state, dict):  # loading it raises
            return saved
        if state.keys().isdisjoint(self):
            raise ConfigurationMismatchError(
                f"{type(self).__name__}: the saved state holds {sorted(state)}, and none of "
                f"{list(self)}; partial=True keeps the members that both have"
            )
        members = {
            name: metric.completed(state[name]) if name in state else metric.saved()
            for name, metric in self.items()
        }
        return saved | {"state": members}

    def restored(self, parts: dict[str, PyTree]) -> Self:
        # Members that share a statistic here keep sharing it, unless they were saved with different
        # states. `leaders` has, for each state, the restored metric from which it is taken.
        members = self.members
        own = {x.where: one for x, one in zip(members.firsts, members.unfilled, strict=True)}
        leaders = {
            member.where: parts[member.name]
            for member in reversed(members)
            if same_statistic(member.structure, jax.tree.structure(own[member.where]))
        }
        # A member may have been saved with another statistic than it has here.
        if all(
            isinstance(part := parts[member.name], Collection)
            or same_statistic(member.structure, jax.tree.structure(part))
            for member in members
        ):
            slots: Slots = [[] for _ in self.parts]
            for first in members.firsts:
                slots[first.part].append(leaders[first.where])
            shared = self._with_slots(slots)
            if all(equal_arrays(shared[name], part) for name, part in parts.items()):
                return shared
        return self._of(share_equal_statistics(parts))

    def __repr__(self) -> str:
        members = (f"{each.name!r}: {without_arrays(each.structure)!r}" for each in self.members)
        prefix = f", prefix={self.prefix!r}" if self.prefix else ""
        return f"{type(self).__name__}({{{', '.join(members)}}}{prefix})"


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
