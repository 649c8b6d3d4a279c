"""`SharedStates`: the states of the metrics of a collection: shared, stacked, and updated together.

Metrics that read equal statistics of the same outputs share one state. Small states of one kind,
such as those of twenty means, are one `Stack`, because each operation of a program costs time,
however small its arrays are. Within a traced function, an update folds the batches of all states of
a stack at once; elsewhere each state is updated by itself.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, Protocol, Self, TypeVar

import jax
import numpy as np

from datarax._typing import PyTree, Structure
from datarax._xp import fetched, is_traced, lax, on_host, vmap, xp
from datarax.algebra.devices import axes_of, counted_once, folded_on_axes
from datarax.algebra.leading_axes import find_leading_axes
from datarax.algebra.pytrees import leaf_states
from datarax.algebra.rows import Target
from datarax.algebra.saving import Parts
from datarax.algebra.stack import Stack
from datarax.algebra.state import State, is_untouched
from datarax.distributed.placement import device_sets
from datarax.metric.arguments import Call, is_call, naming, with_empty_rows
from datarax.metric.base import Metric
from datarax.metric.declared import shares_statistic, statistic_of
from datarax.metric.finer import ReadsFiner
from datarax.metric.rows import (
    Terms,
    adds_by_row,
    empty_place,
    replicated_target,
    terms_of_rows,
    with_terms,
)
from datarax.wrappers.wrapper import Wrapper

MOST_CELLS = 2**10
"""The most numbers of a state that is stacked: the number of operations matters for small ones."""
MOST_VALUES = 2**13
"""The most values of an array that is stacked with others, because stacking copies it."""
MOST_TOGETHER = 64
"""The most numbers of a state whose terms are added together with those of other states."""

Arrays = list[jax.Array]
Slots = list[list[PyTree]]
"""For each part, its states: a metric, or any pytree with the arrays of one."""
Update = Callable[[Metric, PyTree], PyTree]
"""Updates a metric with its arguments: a dict of them, or its `Call`s."""


class Member(NamedTuple):
    """A metric of a collection. Its arrays are those of a state in a part."""

    name: str
    structure: Structure | None
    """The structure of a metric that may share its state; None if the part is the metric."""
    part: int
    """The index of the part that has its state."""
    place: int
    """The place of the state in a `Stack`; 0 in any other part."""

    def __eq__(self, other: object) -> bool:
        # JAX compares a structure with other structures only: with None it raises.
        if not isinstance(other, Member) or (self.structure is None) != (other.structure is None):
            return False
        return tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    @property
    def where(self) -> tuple[int, int]:
        """The part and the place: the same for members that share a state."""
        return self.part, self.place

    def over(self, slots: Slots) -> Metric:
        """The metric over its state."""
        state = slots[self.part][self.place]
        if self.structure is None:
            return state
        # From the arrays, so that the metric has its own configuration over a state that another
        # one updates.
        return self.structure.unflatten(state if type(state) is list else jax.tree.leaves(state))


class Members(tuple[Member, ...]):
    """The members of a collection, sorted by name; a step makes what follows from them once."""

    @cached_property
    def owners(self) -> list[Member]:
        """The first member of each state, by name: an update takes the arguments of this one."""
        found: dict[tuple[int, int], Member] = {}
        for member in self:
            # Any member would do, as those that share a state take the same outputs. The first one
            # by name is the same in all processes.
            found.setdefault(member.where, member)
        return list(found.values())

    @cached_property
    def configurations(self) -> dict[str, PyTree]:
        """By name, the metrics that may share their states, without arrays."""
        with_structure = ((x.name, x.structure) for x in self if x.structure is not None)
        return {name: _without_arrays(structure) for name, structure in with_structure}

    def __reduce__(self) -> tuple[type, tuple[tuple[Member, ...]]]:
        # For `pickle`: without what is cached, which is made again.
        return type(self), (tuple(self),)


class Holder(Protocol):
    """What a collection has of the states of its metrics."""

    @property
    def parts(self) -> tuple[PyTree, ...]: ...
    @property
    def members(self) -> Members: ...
    @property
    def prefix(self) -> str: ...
    def with_parts(self, parts: Parts) -> Self: ...


C = TypeVar("C", bound=Holder)


class SharedStates(NamedTuple):
    """The states of the metrics of a collection, by the part that holds them.

    - `of` makes it of metrics: it finds which share a state, and which states are stacked.
    - `updated` and `updated_at` update each state once.
    - `metrics` gives each metric over its state; `owners` gives one metric for each state.
    - `put_in` gives a collection that has them; `states_of` finds those of a collection.
    - `restacked` and `restored` keep the states, and say again which are stacked or shared.

    A collection is a pytree of the parts; the members are its configuration. So an update must give
    parts of the same structure, wherever the states can be stacked as they were.
    """

    parts: tuple[PyTree, ...]
    """Each is a metric, or a stack of the statistics of several metrics."""
    members: Members
    prefix: str = ""
    """What errors and warnings have before the name of a member."""

    @classmethod
    def of(cls, metrics: Mapping[str, Metric], *, shares: bool) -> Self:
        """The states of these metrics.

        Two metrics share a state if they read equal statistics, whose arrays are the same objects.
        That holds for fresh statistics, and for metrics that share one already.

        Args:
            metrics: by name.
            shares: whether all metrics get the same outputs, so that equal statistics are shared.
        """
        untouched = [metric for metric in metrics.values() if shares and is_untouched(metric)]
        states: list[Metric] = []
        members: list[tuple[str, Structure | None, int]] = []
        # Members are sorted by name, so that all processes pack their arrays in the same order.
        for name in sorted(metrics):
            metric, number = metrics[name], len(states)
            if shares:
                if any(metric is other for other in untouched):
                    metric = _over_another(metric, untouched)
                # A state that was updated is shared only if it is the same object: equal values may
                # be chance.
                equal = (i for i, state in enumerate(states) if _has_state_of(state, metric))
                number = next(equal, number)
            if number == len(states):
                states.append(metric)
            structure = jax.tree.structure(metric) if shares_statistic(metric) else None
            members.append((name, structure, number))
        return cls._arranged(members, states)

    def put_in(self, collection: C) -> C:
        """A copy of a collection with these states."""
        # Then the copy keeps its static part, and JAX need not compare it with that of the program.
        if self.members is collection.members:  # the configuration stays as it is
            return collection.with_parts({"parts": self.parts})
        return collection.with_parts({"parts": self.parts, "members": self.members})

    @classmethod
    def _arranged(
        cls, members: Iterable[tuple[str, Structure | None, int]], states: Sequence[Metric]
    ) -> Self:
        """These states, with those of one kind in one stack.

        `members` have a name, a structure and the number of a state each.
        """
        parts: list[Metric | Stack] = []
        where: dict[int, tuple[int, int]] = {}
        for numbers in _alike(states):
            where |= {number: (len(parts), place) for place, number in enumerate(numbers)}
            several = [states[number] for number in numbers]
            parts.append(_stacked(several) if len(several) > 1 else several[0])
        return cls(tuple(parts), Members(Member(n, s, *where[number]) for n, s, number in members))

    def slots(self, axis: int | None = None) -> Slots:
        """For each part, its states; outside `jit`, the same objects each time."""
        return [part.apart(axis) if isinstance(part, Stack) else [part] for part in self.parts]

    def metrics(self) -> list[Metric]:
        """Each metric over its state, by name."""
        slots = self.slots()
        return [member.over(slots) for member in self.members]

    def owners(self) -> list[Metric]:
        """A metric for each state: the first of the members that share it."""
        slots = self.slots()
        found = ((owner, slots[owner.part][owner.place]) for owner in self.members.owners)
        return [x if isinstance(x, Metric) else owner.over(slots) for owner, x in found]

    def configuration(self, member: Member) -> Metric:
        """A metric; if it may share its state, without arrays."""
        return self.members.configurations.get(member.name, self.parts[member.part])

    def updated_metrics(self) -> list[tuple[str, Metric]]:
        """The metrics whose arguments an update takes: one for each state, by its name in errors.

        Those in a stack have no arrays.
        """
        found: list[tuple[str, Metric]] = []
        for owner in self.members.owners:
            part = self.parts[owner.part]
            in_stack = isinstance(part, Stack)
            metric = self.members.configurations[owner.name] if in_stack else part
            found.append((f"{self.prefix}{owner.name}", metric))
        return found

    def updated(self, arguments: Sequence[PyTree], update: Update) -> Self:
        """The states after an update.

        Args:
            arguments: what `update` takes beside each of the `updated_metrics`; None leaves the
                state as it is.
            update: updates one metric.
        """
        if on_host(self.parts, arguments):
            return self._holding(self._updated_one_by_one(arguments, update))
        if not is_traced((self.parts, arguments)):
            slots = self._updated_one_by_one(arguments, update)
            # States that are now on different meshes cannot be in one stack.
            is_one_mesh = len(device_sets(jax.tree.leaves(slots))) < 2
            return self._holding(slots) if is_one_mesh else self._restacked(slots)
        pairs = list(zip(self.parts, self._updates(arguments, update), strict=True))
        if not all(_vary_alike(part, each) for part, each in pairs if isinstance(part, Stack)):
            # States that are replicated and states that vary over devices cannot be in one stack.
            return self._restacked(self._updated_one_by_one(arguments, update))
        parts = (_folded(x, y) if isinstance(x, Stack) else y[0].of(x) for x, y in pairs)
        return self._replace(parts=tuple(parts))

    def updated_at(self, calls: Sequence[PyTree], target: Target) -> Self:
        """The states, of which each array has a leading axis, updated with their rows of a batch.

        As `Metric.apply_at` says. `calls` are those of the `updated_metrics`.
        """
        # If the rows of a batch are sharded, each sum over them is a collective. `with_terms` adds
        # all terms that it is given in one sum of each kind; so the terms of small states wait for
        # those of the other members. With that of `Sliced`, the update of `benchmarks/tags.py` has
        # 10 collectives: 19 if each member adds its terms itself, and 30 without both. A large
        # state adds its terms itself, because joining them with those of others copies them.
        small: list[Metric] = []
        terms: Terms = []

        def update(metric: Metric, call: PyTree) -> PyTree:
            empty = empty_place(metric)
            size = sum(x.size for x in jax.tree.leaves(empty))
            if not is_call(call) or size > MOST_TOGETHER or not adds_terms(empty, call):
                return metric.apply_at(call, target)
            terms.extend(terms_of_rows(empty, call, target))
            small.append(metric)
            return None

        slots = self._updated_one_by_one(calls, update, axis=1)
        added = iter(with_terms(small, terms, replicated_target(target)) if small else [])
        slots = [[next(added) if x is None else x for x in states] for states in slots]
        return self._holding(slots, axis=1)

    def restacked(self) -> Self:
        """The same states, with all of one kind in one stack."""
        kinds = [kind for kind in map(_kind_of, self.parts) if kind is not None]
        return self if len(set(kinds)) == len(kinds) else self._restacked(self.slots())

    def restored(self, metrics: Mapping[str, Metric]) -> Self | None:
        """The states of restored metrics, by name, shared and stacked as these.

        None if these metrics cannot share so, because members that have one state here were saved
        with different ones, or because one was saved with another statistic.
        """
        for member in self.members:
            found = jax.tree.structure(metrics[member.name])
            if member.structure is not None and not _have_one_statistic(member.structure, found):
                return None
        slots: Slots = [[] for _ in self.parts]
        for owner in self.members.owners:
            slots[owner.part].append(metrics[owner.name])
        shared = self._holding(slots)
        # Compared by value: a checkpoint of members with states of their own may hold different
        # data for each.
        pairs = zip(self.members, shared.metrics(), strict=True)
        return shared if all(_have_equal_arrays(x, metrics[m.name]) for m, x in pairs) else None

    def _holding(self, slots: Slots, axis: int = 0) -> Self:
        """These parts with other states."""
        parts = (
            part.holding_each(states, axis) if isinstance(part, Stack) else states[0]
            for part, states in zip(self.parts, slots, strict=True)
        )
        return self._replace(parts=tuple(parts))

    def _restacked(self, slots: Slots) -> Self:
        """These states, with those of one kind in one stack."""
        owners = self.members.owners
        numbers = {owner.where: number for number, owner in enumerate(owners)}
        members = [(x.name, x.structure, numbers[x.where]) for x in self.members]
        states = [owner.over(slots) for owner in owners]
        return self._arranged(members, states)._replace(prefix=self.prefix)

    def _updated_one_by_one(
        self, arguments: Sequence[PyTree], update: Update, axis: int = 0
    ) -> Slots:
        """The states of each part, each after its own update."""
        pairs = zip(self._updates(arguments, update), self.slots(axis), strict=True)
        return [[x.of(y) for x, y in zip(*each, strict=True)] for each in pairs]

    def _updates(self, arguments: Sequence[PyTree], update: Update) -> list[list["StateUpdate"]]:
        """The updates of the states of each part."""
        found: list[list[StateUpdate]] = [[] for _ in self.parts]
        configurations = self.members.configurations
        for owner, own in zip(self.members.owners, arguments, strict=True):
            name, metric = f"{self.prefix}{owner.name}", configurations.get(owner.name)
            found[owner.part].append(StateUpdate(name, metric, owner.structure, own, update))
        return found


def states_of(collection: Holder) -> SharedStates:
    """The states of the metrics of a collection: which share one, and how they are updated."""
    return SharedStates(collection.parts, collection.members, collection.prefix)


class StateUpdate(NamedTuple):
    """The update of one state."""

    name: str
    """The name of the first member that has the state, for errors."""
    metric: PyTree
    """That member without arrays; None if the part is the metric."""
    structure: Structure | None
    """Its structure; None if the part is the metric."""
    arguments: PyTree
    """What `update` takes; None if the state stays as it is."""
    update: Update

    def of(self, state: PyTree) -> Metric:
        """The metric over a state, its own or a list of arrays, after the update.

        An error has its name.
        """
        metric, given = state, self.arguments
        if self.structure is not None and not isinstance(state, Metric):
            metric = self.structure.unflatten(state)
        if given is None:
            return metric
        args, kwargs = (), {}
        if isinstance(given, Call):
            args, kwargs = given.args, given.kwargs
        elif isinstance(given, dict):
            kwargs = given
        with naming(self.name, args, kwargs):
            return self.update(metric, given)


def adds_terms(metric: Metric, call: PyTree) -> bool:
    """True if all that `apply_at` of a metric does with a call is to add terms of single rows."""
    return type(metric).apply_at is Metric.apply_at and adds_by_row(metric, call)


# Which metrics share a state.


def _read_same_outputs(a: Metric, b: Metric) -> bool:
    """True if two metrics read statistics, and take them from the same outputs."""
    return shares_statistic(a) and shares_statistic(b) and a.outputs == b.outputs


def _may_share(a: Metric, b: Metric) -> bool:
    """True if two metrics read statistics of one configuration, and of the same outputs."""
    if not _read_same_outputs(a, b):
        return False
    return jax.tree.structure(statistic_of(a)) == jax.tree.structure(statistic_of(b))


def _has_state_of(a: Metric, b: Metric) -> bool:
    """True if two metrics may share, and their arrays are the same objects.

    Values are never compared.
    """
    if not _may_share(a, b):
        return False
    ours, theirs = jax.tree.leaves(statistic_of(a)), jax.tree.leaves(statistic_of(b))
    return all(x is y for x, y in zip(ours, theirs, strict=True))


def _over_another(metric: Metric, others: Iterable[Metric]) -> Metric:
    """An empty metric over the statistic of another empty one that holds more."""
    for other in others:
        if _read_same_outputs(metric, other):
            metric = _over(metric, statistic_of(other))
    return metric


def _over(metric: Metric, statistic: State) -> Metric:
    if isinstance(metric, Wrapper):
        return metric.with_metric(_over(metric.metric, statistic))
    return metric.over(statistic) if isinstance(metric, ReadsFiner) else metric


def _without_arrays(structure: Structure) -> Metric:
    """The metric of a structure, with a placeholder for each array."""
    # Placeholders other than None, which JAX would take for a subtree without leaves.
    return structure.unflatten([...] * structure.num_leaves)


def _have_one_statistic(one: Structure, other: Structure) -> bool:
    """True if the metrics of two structures have equal statistics, or are equal themselves."""
    a, b = _without_arrays(one), _without_arrays(other)
    if shares_statistic(a) and shares_statistic(b):
        a, b = statistic_of(a), statistic_of(b)
    return jax.tree.structure(a) == jax.tree.structure(b)


def share_equal_statistics(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """The same metrics, in which equal statistics are the same arrays, so that they are shared.

    As such metrics get the same outputs, their statistics stay equal.
    """
    found: dict[str, Metric] = {}
    for name, metric in metrics.items():
        others = (x for x in found.values() if _may_share(x, metric))
        same = next((x for x in others if _have_equal_arrays(x, metric)), metric)
        found[name] = jax.tree.structure(metric).unflatten(jax.tree.leaves(same))
    return found


def _have_equal_arrays(ours: Metric, theirs: Metric) -> bool:
    """True if the arrays of two metrics have equal values."""
    a, b = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    if len(a) != len(b):
        return False
    # What is the same array need not be fetched.
    pairs = fetched([(x, y) for x, y in zip(a, b, strict=True) if x is not y])
    return all(np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in pairs)


# Which states are stacked. The kind of a metric is the structure of its statistic.


class _Kind(NamedTuple):
    """The common form of the states of a stack."""

    statistic: Structure
    axes: tuple[int, ...]
    """The sizes of leading axes, as out of `vmap`."""
    place: Hashable
    """Where the arrays are; None on the host."""


def _kind_of(part: Metric | Stack) -> _Kind | None:
    """The kind of the states of a stack, or of a metric; None if its state is not stacked."""
    axes, leaves = find_leading_axes(part), jax.tree.leaves(part)
    if isinstance(part, Stack):
        statistic = part.element.empty
    elif part.together_by or not shares_statistic(part):
        return None
    else:
        statistic = statistic_of(part)
        # The work on a large state outweighs the operations, and stacking copies it.
        if sum(math.prod(x.shape[len(axes) :]) for x in leaves) > MOST_CELLS:
            return None
        # Such a state merges stacked states by one `combine`: see `by_row`.
        if any(state.by_row(1) is None for state in leaf_states(statistic)):
            return None
    if on_host(*leaves):
        place: Hashable = None
    elif is_traced(leaves):
        place = axes_of(leaves)
    else:
        # One array has one sharding, so states on different devices cannot be one array.
        place = frozenset(x.sharding for x in leaves if isinstance(x, jax.Array))
    return _Kind(jax.tree.structure(statistic), axes, place)


def _alike(metrics: Sequence[Metric]) -> list[list[int]]:
    """The indices of metrics whose states are of one kind, in order of the first.

    States on the host join those on devices.
    """
    kinds = [_kind_of(metric) for metric in metrics]
    on_devices: dict[Hashable, set[_Kind]] = {}
    for kind in kinds:
        if kind is not None and kind.place is not None:
            on_devices.setdefault(kind[:2], set()).add(kind)
    groups: dict[Hashable, list[int]] = {}
    for i, kind in enumerate(kinds):
        if kind is not None and kind.place is None and len(on_devices.get(kind[:2], ())) == 1:
            (kind,) = on_devices[kind[:2]]
        groups.setdefault(i if kind is None else kind, []).append(i)
    return list(groups.values())


def _stacked(metrics: Sequence[Metric]) -> Stack:
    """The states of metrics of one kind as a stack."""
    statistic = statistic_of(metrics[0])
    empty = statistic.emptied()
    if axes := find_leading_axes(statistic):
        empty = jax.tree.map(lambda x: x[(0,) * len(axes)], empty)
    stack = Stack.of(empty, len(metrics))
    if all(is_untouched(metric) and on_host(metric) for metric in metrics) and not axes:
        return stack
    varying = axes_of(list(metrics))
    # One array varies over the same axes for all places. A state that is replicated counts on the
    # first device, as everywhere.
    if varying:
        metrics = [counted_once(metric, varying) for metric in metrics]
    return stack.holding_each(metrics, len(axes))


# How the states of a stack are updated in a traced function.


def _vary_alike(stack: Stack, updates: Sequence[StateUpdate]) -> bool:
    """True if all states of a stack vary over the same axes of `shard_map` after an update."""
    before = axes_of(stack)
    return len({before | axes_of(each.arguments) for each in updates}) == 1


def _folded(stack: Stack, updates: Sequence[StateUpdate]) -> Stack:
    """The stack after the updates of its states, in a traced function.

    Batches of equal shapes are stacked, and folded by one update; those with fewer rows get rows of
    weight zero. If there are several shapes, each batch is folded into an empty state, and all of
    these are merged with the stack at once.
    """
    if len(_places_by_form(updates)) > 1:
        updates = _padded(updates)
    data = [each.arguments for each in updates]
    return folded_on_axes(stack, data, lambda stack: _folded_alike(stack, updates))


def _folded_alike(stack: Stack, updates: Sequence[StateUpdate]) -> Stack:
    """As `_folded`; the batches have as many rows each, and the states vary as the batches do."""
    places_of = _places_by_form(updates)
    if len(places_of) == 1 and len(updates) > 1 and None not in places_of:
        return _unflattened(stack, _updated_at_once(updates, jax.tree.leaves(stack)))
    empty = jax.tree.leaves(stack.element.empty)
    columns, order = [], []
    for form, places in places_of.items():
        same = [updates[place] for place in places]
        if form is None:  # left out
            arrays = [xp.broadcast_to(x, (len(same), *x.shape)) for x in map(xp.asarray, empty)]
        elif len(same) > 1:
            arrays = _updated_at_once(same, empty, in_axes=None)
        else:
            leaves = jax.tree.leaves(same[0].of(empty))
            arrays = [xp.expand_dims(xp.asarray(x), 0) for x in leaves]
        columns.append(arrays)
        order += places
    batch = [xp.concatenate(column) for column in zip(*columns, strict=True)]
    # Forms may alternate in the order of places, so the updated states are put back.
    if order != sorted(order):
        back = [order.index(i) for i in range(len(order))]
        batch = [xp.stack([x[i] for i in back]) for x in batch]
    merged = stack.combine(_unflattened(stack, batch))
    if None not in places_of:
        return merged
    is_left_out = xp.asarray([each.arguments is None for each in updates])

    def chosen(old: jax.Array, new: jax.Array) -> jax.Array:
        return xp.where(lax.expand_dims(is_left_out, range(1, new.ndim)), old, new)

    return jax.tree.map(chosen, stack, merged)


def _updated_at_once(
    updates: Sequence[StateUpdate], states: Arrays, in_axes: int | None = 0
) -> Arrays:
    """The arrays of states after one update for all, whose arguments have one form."""
    first, structure = updates[0], jax.tree.structure(updates[0].arguments)

    def update(state: Arrays, arguments: Arrays) -> Arrays:
        one = first._replace(arguments=structure.unflatten(arguments))
        return list(map(xp.asarray, jax.tree.leaves(one.of(state))))

    rows = [jax.tree.leaves(each.arguments) for each in updates]
    return vmap(update, (in_axes, 0))(states, [xp.stack(x) for x in zip(*rows, strict=True)])


def _unflattened(stack: Stack, leaves: Arrays) -> Stack:
    return jax.tree.structure(stack).unflatten(leaves)


def _places_by_form(updates: Sequence[StateUpdate]) -> dict[Hashable, list[int]]:
    """The places of the updates of each form, which are made at once; those left out at None."""
    found: dict[Hashable, list[int]] = {}
    for place, update in enumerate(updates):
        arguments, form = update.arguments, None
        if arguments is not None:
            if isinstance(arguments, Call):
                # Names for errors are no part of the form.
                arguments = replace(arguments, path="", metric="")
            leaves, structure = jax.tree.flatten(arguments)
            form = structure, type(update.metric).update, tuple(map(jax.typeof, leaves))
            # A large batch is not copied, and what is no array cannot be stacked.
            if not all(_is_array(x) and x.size <= MOST_VALUES for x in leaves):
                form = place  # made by itself
        found.setdefault(form, []).append(place)
    return found


def _is_array(x: object) -> bool:
    """True if it is a JAX array, or a mask of `_with_rows`."""
    return isinstance(x, jax.Array) or (isinstance(x, np.ndarray) and x.dtype == np.bool_)


def _padded(updates: Sequence[StateUpdate]) -> list[StateUpdate]:
    """The updates; of those whose batches differ in the number of rows alone, all have the same.

    Rows of weight zero are added to the others, which changes no state.
    """
    # Without this, twenty means of twenty shapes would take 1,702 operations in place of 174, and
    # four heads of two batch sizes 275 in place of 119: see `benchmarks/many_means.py`.
    places_of: dict[Hashable, list[int]] = {}
    rows: dict[int, tuple[int, ...]] = {}
    for place, each in enumerate(updates):
        call = each.arguments
        if isinstance(call, dict):
            call = each.metric.calls((), call)
        # A row of weight zero changes no state. That is a law of all metrics that take weights.
        if call is None or not _may_be_padded(call):
            continue
        data, structure = jax.tree.flatten(replace(call, path="", metric=""))
        rows[place] = data[0].shape[:1]  # () of one value
        form = structure, type(each.metric).update, tuple((x.shape[1:], x.dtype) for x in data)
        places_of.setdefault(form, []).append(place)
    found = list(updates)
    for places in places_of.values():
        if len({rows[place] for place in places}) > 1:
            most = max(math.prod(rows[place]) for place in places)
            for place in places:
                found[place] = _with_rows(updates[place], math.prod(rows[place]), most)
    return found


def _may_be_padded(call: Call) -> bool:
    """True if the arguments are small arrays that have one leading axis, or a value for one row."""
    data = jax.tree.leaves(call)
    if not call.rows or "weights" not in call.takes or len(call.args) > len(call.takes):
        return False
    if not all(isinstance(x, jax.Array) and x.size <= MOST_VALUES for x in data):
        return False
    # Padding rows that are split over a mesh would move them between devices.
    is_split = any(any(jax.typeof(x).sharding.spec) for x in data)
    return len({x.shape[:1] for x in data}) == 1 and not is_split


def _with_rows(update: StateUpdate, rows: int, most: int) -> StateUpdate:
    """The update with rows of weight zero after its own."""
    given = update.arguments
    kwargs = given.by_name[1] if isinstance(given, Call) else given
    if kwargs.get("weights") is None:
        kwargs = {**kwargs, "weights": np.ones(rows, np.bool_)}

    def with_axis(x: jax.Array) -> jax.Array:
        x = lax.convert_element_type(x, x.dtype)  # a weak type would be another form
        return x if x.ndim else xp.expand_dims(x, 0)

    kwargs = with_empty_rows(jax.tree.map(with_axis, kwargs), most - rows)
    is_call_itself = isinstance(given, Call)
    return update._replace(
        arguments=replace(given, args=(), kwargs=kwargs) if is_call_itself else kwargs
    )
