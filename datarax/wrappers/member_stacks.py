"""States of one kind as one `Stack`: how members of a collection are stacked and updated together.

The kind of a metric is the structure of its statistic. Within a traced function, an update folds
the batches of all states of a stack at once; elsewhere each state is updated by itself.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np

from datarax._typing import PyTree, Structure
from datarax._xp import is_traced, lax, on_host, vmap, xp
from datarax.algebra.pytrees import leaf_states
from datarax.algebra.replication import axes_of, counted_once, made_varying
from datarax.algebra.stack import Stack
from datarax.metric.arguments import Call, naming, with_empty_rows
from datarax.metric.base import Metric
from datarax.metric.declared import shares_statistic, statistic_of

Arrays = list[jax.Array]
Change = Callable[[Metric, PyTree], PyTree]
"""An update of a metric with what it is given: its `Call`, or a dict of arguments."""

MOST_CELLS = 2**10
"""The most numbers of a state that is stacked: the number of operations matters for small ones."""
MOST_VALUES = 2**13
"""The most values of an array that is stacked with others, because stacking copies it."""


class Kind(NamedTuple):
    """The common form of the states of a stack."""

    statistic: Structure
    axes: tuple[int, ...]
    """The sizes of leading axes, as out of `vmap`."""
    place: Hashable
    """Where the arrays are; None on the host."""


def kind_of(part: Metric | Stack) -> Kind | None:
    """The kind of the states of a stack, or of a metric; None if its state is not stacked."""
    axes, leaves = part.leading_axes(), jax.tree.leaves(part)
    if isinstance(part, Stack):
        statistic = part.element.empty
    elif part.together_by or not shares_statistic(part):
        return None
    else:
        statistic = statistic_of(part)
        if sum(math.prod(x.shape[len(axes) :]) for x in leaves) > MOST_CELLS:
            return None
        if any(state.by_row(1) is None for state in leaf_states(statistic)):
            return None
    if on_host(*leaves):
        place: Hashable = None
    elif is_traced(leaves):
        place = axes_of(leaves)
    else:
        place = frozenset(x.sharding for x in leaves if isinstance(x, jax.Array))
    return Kind(jax.tree.structure(statistic), axes, place)


def alike(metrics: Sequence[Metric]) -> list[list[int]]:
    """The indices of metrics whose states are of one kind, in order of the first.

    States on the host join those on devices.
    """
    kinds = [kind_of(metric) for metric in metrics]
    elsewhere: dict[Hashable, set[Kind]] = {}
    for kind in kinds:
        if kind is not None and kind.place is not None:
            elsewhere.setdefault(kind[:2], set()).add(kind)
    together: dict[Hashable, list[int]] = {}
    for i, kind in enumerate(kinds):
        if kind is not None and kind.place is None and len(elsewhere.get(kind[:2], ())) == 1:
            (kind,) = elsewhere[kind[:2]]
        together.setdefault(i if kind is None else kind, []).append(i)
    return list(together.values())


def stacked(metrics: Sequence[Metric]) -> Stack:
    """The states of metrics of one kind as a stack."""
    statistic = statistic_of(metrics[0])
    empty = statistic.emptied()
    if axes := statistic.leading_axes():
        empty = jax.tree.map(lambda x: x[(0,) * len(axes)], empty)
    stack = Stack.of(empty, len(metrics))
    if all(metric.is_untouched and on_host(metric) for metric in metrics) and not axes:
        return stack
    varying = axes_of(list(metrics))
    if varying:
        metrics = [counted_once(each, varying) for each in metrics]
    return stack.holding_each(metrics, len(axes))


class Given(NamedTuple):
    """The arguments of the update of a state."""

    name: str
    """The name of the first member that has the state."""
    metric: Metric
    """That member without arrays."""
    structure: Structure
    given: PyTree
    """What `Change` takes; None if the state stays as it is."""

    def changed(self, metric: Metric, change: Change) -> Metric:
        """A metric after the update; an error has its name."""
        if self.given is None:
            return metric
        args, kwargs = (), {}
        if isinstance(self.given, Call):
            args, kwargs = self.given.args, self.given.kwargs
        elif isinstance(self.given, dict):
            kwargs = self.given
        with naming(self.name, args, kwargs):
            return change(metric, self.given)

    def of(self, state: PyTree) -> Metric:
        """The metric with the arrays of a state: itself, or a list."""
        return state if isinstance(state, Metric) else self.structure.unflatten(state)

    def changed_arrays(self, arrays: Arrays, change: Change) -> Arrays:
        """The arrays of a state after the update."""
        return jax.tree.leaves(self.changed(self.of(arrays), change))


def vary_alike(stack: Stack, members: Sequence[Given]) -> bool:
    """True if all states of a stack vary over the same axes of `shard_map` after an update."""
    own = axes_of(stack)
    return len({own | axes_of(each.given) for each in members}) == 1


def folded(stack: Stack, members: Sequence[Given], change: Change) -> Stack:
    """The stack with each state changed, in a traced function.

    Batches of equal shapes are stacked, and folded by one update; those with fewer rows get rows of
    weight zero. If there are several shapes, each batch is folded into an empty state, and all of
    these are merged with the stack at once.
    """
    members = _padded(members)
    stack = made_varying(stack, [each.given for each in members])
    together: dict[Hashable, list[int]] = {}
    for i, each in enumerate(members):
        together.setdefault(_form(each, i), []).append(i)
    if len(together) == 1 and len(members) > 1 and None not in together:
        return _unflattened(stack, _update(members, change, jax.tree.leaves(stack)))
    empty = jax.tree.leaves(stack.element.empty)
    rows, order = [], []
    for form, places in together.items():
        chosen = [members[i] for i in places]
        if form is None:  # left out
            found = [xp.broadcast_to(x, (len(chosen), *x.shape)) for x in map(xp.asarray, empty)]
        elif len(chosen) > 1:
            found = _update(chosen, change, empty, in_axes=None)
        else:
            updated = chosen[0].changed_arrays(empty, change)
            found = [xp.expand_dims(xp.asarray(x), 0) for x in updated]
        rows.append(found)
        order += places
    batch = [xp.concatenate(column) for column in zip(*rows, strict=True)]
    if order != sorted(order):
        back = [order.index(i) for i in range(len(order))]
        batch = [xp.stack([x[i] for i in back]) for x in batch]
    merged = stack.combine(_unflattened(stack, batch))
    if None not in together:
        return merged
    kept = xp.asarray([each.given is None for each in members])

    def chosen_of(old: jax.Array, new: jax.Array) -> jax.Array:
        return xp.where(lax.expand_dims(kept, range(1, new.ndim)), old, new)

    return jax.tree.map(chosen_of, stack, merged)


def _form(member: Given, index: int) -> Hashable:
    """The common form of members that are updated together; None if it is left out."""
    given = member.given
    if given is None:
        return None
    if isinstance(given, Call):
        given = replace(given, path="", metric="")
    leaves, structure = jax.tree.flatten(given)
    if not all(_is_array(x) and x.size <= MOST_VALUES for x in leaves):
        return index
    return structure, type(member.metric).update, tuple(map(jax.typeof, leaves))


def _is_array(x: object) -> bool:
    """True if it is a JAX array, or a mask of `_with_rows`."""
    return isinstance(x, jax.Array) or (isinstance(x, np.ndarray) and x.dtype == np.bool_)


def _padded(members: Sequence[Given]) -> list[Given]:
    """The members; of those whose batches differ in the number of rows alone, all have the same.

    Rows of weight zero are added to the others, which changes no state.
    """
    alike: dict[Hashable, list[int]] = {}
    shapes: dict[int, tuple[int, ...]] = {}
    for i, each in enumerate(members):
        given = each.given
        call = each.metric.calls((), given) if isinstance(given, dict) else given
        if call is None or not _may_be_padded(call):
            continue
        data, structure = jax.tree.flatten(replace(call, path="", metric=""))
        shapes[i] = data[0].shape[:1]  # () of one value
        rows = tuple((x.shape[1:], x.dtype) for x in data)
        alike.setdefault((structure, type(each.metric).update, rows), []).append(i)
    found = list(members)
    for places in alike.values():
        if len({shapes[i] for i in places}) > 1:
            sizes = [math.prod(shapes[i]) for i in places]
            for i, size in zip(places, sizes, strict=True):
                found[i] = _with_rows(members[i], size, max(sizes))
    return found


def _may_be_padded(call: Call) -> bool:
    """True if the arguments are small arrays that have one leading axis, or a value for one row."""
    data = jax.tree.leaves(call)
    if not call.rows or "weights" not in call.takes or len(call.args) > len(call.takes):
        return False
    if not all(isinstance(x, jax.Array) and x.size <= MOST_VALUES for x in data):
        return False
    is_split = any(any(jax.typeof(x).sharding.spec) for x in data)
    return len({x.shape[:1] for x in data}) == 1 and not is_split


def _with_rows(member: Given, rows: int, most: int) -> Given:
    """The member with rows of weight zero after its own."""
    given = member.given
    kwargs = given.by_name[1] if isinstance(given, Call) else given
    weights = kwargs.get("weights")
    kwargs = {**kwargs, "weights": np.ones(rows, np.bool_) if weights is None else weights}

    def with_axis(x: jax.Array) -> jax.Array:
        x = lax.convert_element_type(x, x.dtype)  # a weak type would be another form
        return x if x.ndim else xp.expand_dims(x, 0)

    kwargs = with_empty_rows(jax.tree.map(with_axis, kwargs), most - rows)
    if isinstance(given, Call):
        return member._replace(given=replace(given, args=(), kwargs=kwargs))
    return member._replace(given=kwargs)


def _update(
    members: Sequence[Given], change: Change, states: Arrays, in_axes: int | None = 0
) -> Arrays:
    """The arrays of states after one update for all members, whose arguments have one form."""
    first = members[0]
    structure = jax.tree.structure(first.given)
    given = [jax.tree.leaves(each.given) for each in members]

    def one(states: Arrays, given: Arrays) -> Arrays:
        member = first._replace(given=structure.unflatten(given))
        return list(map(xp.asarray, member.changed_arrays(states, change)))

    columns = [xp.stack(column) for column in zip(*given, strict=True)]
    return vmap(one, (in_axes, 0))(states, columns)


def _unflattened(stack: Stack, leaves: Arrays) -> Stack:
    return jax.tree.structure(stack).unflatten(leaves)
