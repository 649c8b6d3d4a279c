"""States on several devices: replicated ones count once, and those of all devices are merged.

With the replication check on, the type of an array says over which axes of the mesh it varies. A
state that does not vary over an axis is replicated: all devices along it hold the same data. If
such a state becomes varying, for example by an update with the data of each device, only the first
device along the axis keeps what it holds, and the others start empty. So a later `sync` counts it
once. What `jax.lax.all_gather` gave is replicated too, although its type says that it varies: see
`gathered`. Where the types say nothing (`pmap`, `check_vma=False`), each device owns the state that
it holds.

`sync_states` merges states over devices: it gathers and merges all of them, or merges a part on
each device.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from functools import wraps
from typing import (
    Any,
    ClassVar,
    Concatenate,
    NamedTuple,
    NoReturn,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
)

import jax
import numpy as np
from jax.core import Tracer

from datarax._errors import MetricTypeError
from datarax._typing import PyTree
from datarax._xp import (
    NEEDS_VALUES,
    any_traced,
    as_in_program,
    fetched,
    has_constants,
    is_near,
    lax,
    on_host,
    vmap,
    xp,
)
from datarax.algebra.gathered import differing_axes, gathered_axes, same_axes
from datarax.algebra.pytrees import ArrayNode, Leaf, Tree, map_leaf_states
from datarax.distributed import collectives
from datarax.distributed.collectives import AxisName, axes_of_type, is_checked, mark_varying


def axes_of(tree: PyTree) -> frozenset[str]:
    """The axes over which any array in a pytree varies."""
    # Only a traced array may vary: outside a traced function this costs nothing.
    kinds = [jax.typeof(x) for x in jax.tree.leaves(tree) if isinstance(x, Tracer)]
    return frozenset().union(*map(axes_of_type, kinds))


def folded_on_axes(state: Tree, data: PyTree, fold: Callable[[Tree], Tree]) -> Tree:
    """The state after `fold`, which adds data to it, made varying over the axes of the data first.

    Where the devices have data of their own, what the state holds counts on the first device, as
    `counted_once` says. Where all devices hold the same gathered data, each keeps the state, so
    that all of it stays equal until it is synced; if their states differ, the data counts on the
    first device.
    """
    axes = axes_of(data)
    if not axes:
        return fold(state)
    gathered = gathered_axes(data, axes)
    differing = axes - gathered
    state = map_leaf_states(lambda leaves: gathered_once(leaves, differing), state)
    state = counted_once(state, differing)
    if not gathered:
        return fold(state)
    differing = differing_axes(state, gathered)
    state = jax.tree.map(lambda x: mark_varying(x, tuple(sorted(gathered))), state)
    new = fold(state)
    if not differing:
        return new
    first = lax.axis_index(tuple(sorted(differing))) == 0
    return jax.tree.map(lambda x, old: xp.where(first, x, old), new, state)


def counted_once(state: Tree, axes: Iterable[str]) -> Tree:
    """A state made varying over `axes`; a leaf state that is replicated counts on one device."""
    return map_leaf_states(lambda leaves: [_on_first(leaf, axes) for leaf in leaves], state)


def _on_first(leaf: Leaf, axes: Iterable[str]) -> Leaf:
    """A leaf state that counts on the first device only along the axes over which it is equal."""
    own = axes_of(leaf)
    if own:
        own -= gathered_axes(leaf, own.intersection(axes))
    missing = tuple(sorted(frozenset(axes) - own))
    if not missing:
        return leaf
    return _kept_on_first(leaf, missing)


def _kept_on_first(leaf: Leaf, missing: tuple[str, ...]) -> Leaf:
    first = lax.axis_index(missing) == 0

    def kept(x: jax.Array, other: jax.Array) -> jax.Array:
        # By identity: a part that the other devices keep too costs no operation.
        here = x if x is other else xp.where(first, x, other)
        return mark_varying(here, missing)

    return jax.tree.map(kept, leaf, leaf.on_other_devices())


def gathered_once(states: list[Leaf], names: Iterable[str]) -> list[Leaf]:
    """Leaf states of which the devices along `names` have data of their own: see `_on_first`.

    Those that hold what was gathered from all devices keep it on the first one. So do those beside
    them that are equal on all devices, because an update did not change them.
    """
    of = [axes_of(leaf).intersection(names) for leaf in states]
    if not any(of):
        return states
    gathered = frozenset().union(
        *(gathered_axes(x, own) for x, own in zip(states, of, strict=True))
    )
    if not gathered:
        return states
    found = []
    for leaf, own in zip(states, of, strict=True):
        once = same_axes(leaf, own & gathered)
        found.append(_kept_on_first(leaf, tuple(sorted(once))) if once else leaf)
    return found


def axes_to_merge(leaf: Leaf, names: Iterable[str]) -> tuple[str, ...]:
    """Those of the bound axes `names` over which each device has data of its own."""
    varying = axes_of(leaf)
    return tuple(name for name in names if name in varying or not is_checked(name))


class _Folds(Protocol):
    """What `folding` looks at of a state: see `State`."""

    delegates: ClassVar[bool]

    @property
    def is_on_host(self) -> bool: ...


_State = TypeVar("_State", bound=_Folds)
_Arguments = ParamSpec("_Arguments")
_Fold = Callable[Concatenate[_State, _Arguments], _State]


def folding(method: _Fold[_State, _Arguments]) -> _Fold[_State, _Arguments]:
    """Wraps a method that folds data into a state, such as `update`: it runs where the data is.

    Raises:
        MetricTypeError: the method does not return a state of the class.
    """
    quiet: Any = np.errstate(all="ignore")(method)

    @wraps(method)
    def fold(self: _State, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _State:
        # Within the update of a metric all arrays are on the host already, or traced.
        if self.is_on_host and on_host(*args, *kwargs.values()):
            new = quiet(self, *args, **kwargs)
        else:
            new = folded(quiet, self, args, kwargs)
        if not isinstance(new, type(self)):
            refuse_result(self, method.__name__, new)
        return new

    return fold


def folded(method: Callable[..., _State], state: _State, args: Any, kwargs: Any) -> _State:
    """The state after a method that folds data into it, some of which are JAX arrays."""
    leaves, given = jax.tree.leaves((state, args, kwargs)), (args, kwargs)
    if any_traced(leaves):
        return folded_in_program(method, state, given, leaves)
    of_host = on_host(*args, *kwargs.values())
    if not of_host and is_near(leaves):
        state, args, kwargs = fetched((state, args, kwargs))
    elif of_host and isinstance(state, ArrayNode):
        state = fetched(state)
    return method(state, *args, **kwargs)


def folded_in_program(
    method: Callable[..., _State], state: _State, given: Any, leaves: list[PyTree]
) -> _State:
    """As `folded`, of arrays some of which are traced: then no part of it runs on the host.

    All become JAX arrays. A method that then needs the values of a constant, such as a shape, gets
    it as it is. Inside `shard_map`, the state first becomes varying over the axes over which the
    data vary.
    """

    def run(state: _State, given: Any, *, staged: bool) -> _State:
        state = as_in_program(state) if staged else state
        args, kwargs = as_in_program(given, staged=staged)
        if state.delegates:
            return method(state, *args, **kwargs)
        return folded_on_axes(state, given, lambda state: method(state, *args, **kwargs))

    if not has_constants(leaves):
        return run(state, given, staged=False)
    try:
        return run(state, given, staged=True)
    except (*NEEDS_VALUES, TypeError, IndexError):  # `x[:n]` of a traced n is the latter
        return run(state, given, staged=False)


def refuse_result(state: object, method: str, result: object) -> NoReturn:
    """Raises the error of a method that folds data into a state, and returns something else.

    Raises:
        MetricTypeError: names the class and the method.
    """
    got = "None" if result is None else f"an object of type {type(result).__name__}"
    raise MetricTypeError(
        f"{type(state).__name__}.{method} returned {got}; expected the updated "
        f"{type(state).__name__}. A state is immutable: write `return self.replace(...)`"
    )


# Merging.

_Item = TypeVar("_Item")

SMALL_BYTES = 1 << 20
"""The most bytes of all copies of the states together that a sync gathers on each device."""
AT_ONCE = 64
"""The most devices that exchange parts of larger states in one all-to-all."""


Asking = Generator[list[jax.Array], list[jax.Array], _Item]
"""Asks, round by round, for the maxima of signed integers over the devices; returns a result."""


class NeedsMaxima:
    """A leaf state that must know something of all devices before its arrays can travel."""

    @abstractmethod
    def ask_maxima(self, index: jax.Array, size: int) -> Asking[Self]:
        """Asks for what this state must know, and returns its data in a form that `to_mesh` merges.

        Each `yield` of a list of signed integers gives their maxima over the devices. All states
        ask at the same time, so there is one collective for each round.

        Args:
            index: the index of this device, int32.
            size: the number of devices.
        """


def ask_together(states: Sequence[Leaf], index: jax.Array, size: int) -> Asking[list[Leaf]]:
    """Asks for what several leaf states must know of all devices, and returns the states."""
    changed, asking = list(states), dict[int, tuple[Asking[Leaf], list[jax.Array]]]()

    def go_on(i: int, asker: Asking[Leaf], maxima: PyTree) -> None:
        try:
            asking[i] = asker, asker.send(maxima)
        except StopIteration as end:
            asking.pop(i, None)
            changed[i] = end.value

    for i, state in enumerate(states):
        if isinstance(state, NeedsMaxima):
            go_on(i, state.ask_maxima(index, size), None)
    while asking:
        asked = [numbers for _, numbers in asking.values()]
        maxima = _grouped((yield _in_a_row(asked)), asked)
        for (i, (asker, _)), known in zip(list(asking.items()), maxima, strict=True):
            go_on(i, asker, known)
    return changed


def _answered(asking: Asking[_Item], answer: Callable[..., list[jax.Array]]) -> _Item:
    """The result of what asks, each time it gets the answer to what it asked for."""
    maxima: PyTree = None
    while True:
        try:
            maxima = answer(asking.send(maxima))
        except StopIteration as end:
            return end.value


def sync_states(
    states: list[Leaf],
    names: tuple[str, ...],
    *,
    small: int = SMALL_BYTES,
    at_once: int = AT_ONCE,
) -> list[Leaf]:
    """Merges each leaf state over those of the axes `names` along which devices hold their own.

    States whose copies together take up to `small` bytes are gathered in one collective,
    and each device merges them. Of larger states, each device merges a part.
    """
    states = gathered_once(states, names)
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, state in enumerate(states):
        groups.setdefault(axes_to_merge(state, names), []).append(i)
    merged = list(states)
    for axes, members in groups.items():
        if not axes:  # replicated: merged already
            continue
        chosen = [states[i] for i in members]
        checked = tuple(name for name in axes if collectives.is_checked(name))
        # All arrays of a state get one type, also those that no data has changed.
        chosen = jax.tree.map(lambda x, axes=checked: collectives.mark_varying(x, axes), chosen)
        size = collectives.bound_axis_size(axes, "sync")
        leaves, treedef = jax.tree.flatten(chosen)
        if size * sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) <= small:
            stacked = treedef.unflatten(collectives.gather(leaves, axes))
            chosen = merge_copies(stacked, size)
        else:
            chosen = _sync_in_parts(chosen, axes, size, at_once)
        for i, state in zip(members, chosen, strict=True):
            merged[i] = state
    return merged


def merge_copies(copies: Tree, size: int, axes: int = 1) -> Tree:
    """Merges `size` states, stacked along a leading axis, in a fixed order.

    In each round, neighbours are merged in pairs, and the last of an odd number waits. So the merge
    is the same on the host and on devices, but for the rounding of sums of floats.

    Args:
        copies: the stacked states.
        size: how many there are.
        axes: the number of leading axes. Those after the first stay: their states are merged one by
            one.
    """

    def merge(states: list[Leaf]) -> list[Leaf]:
        if on_host(*states):
            return [_merge_on_host(state, size, axes) for state in states]
        return _merge_in_loop(states, size, axes)

    return map_leaf_states(merge, copies)


def _merge_on_host(copies: Leaf, size: int, axes: int) -> Leaf:
    arrays, structure = jax.tree.flatten(copies)

    def taken(index: int | slice) -> Leaf:
        return structure.unflatten([x[index, ...] for x in arrays])

    # A state whose terms are of single rows can merge stacked states at once: see `by_row`.
    if axes > 1 or copies.by_row(1) is None:
        each = [taken(i) for i in range(size)]
        while len(each) > 1:
            pairs = zip(each[::2], each[1::2], strict=False)
            waiting = each[-1:] if len(each) % 2 else []
            each = [_merge_one(x, y, axes - 1) for x, y in pairs] + waiting
        return each[0]
    while size > 1:  # all pairs at once
        pairs = size // 2
        merged = taken(np.s_[: 2 * pairs : 2]).combine(taken(np.s_[1 : 2 * pairs : 2]))
        last = arrays
        arrays = jax.tree.leaves(merged)
        if size % 2:
            arrays = [np.concatenate([x, y[-1:]]) for x, y in zip(arrays, last, strict=True)]
        size -= pairs
    return taken(0)


def _merge_in_loop(copies: list[Leaf], size: int, axes: int) -> list[Leaf]:
    """Merges stacked states in a program: a loop compiles the merge once, however many there are.

    The rest of the stack is filled with empty states, which change nothing.
    """
    # Half the number of states, rounded up to a power of two: 0 for a single state.
    half = 1 << max(size - 1, 0).bit_length() >> 1
    if not half:
        return _taken(copies, 0)
    empty = [each.emptied() for each in copies]

    def pad(short: list[Leaf], rows: int) -> list[Leaf]:
        def padded(x: jax.Array, e: jax.Array) -> jax.Array:
            e = xp.broadcast_to(xp.asarray(e)[:1], (rows, *x.shape[1:]))
            return xp.concatenate([x, e.astype(x.dtype)])

        return jax.tree.map(padded, short, empty)

    def merge_neighbours(_: jax.Array, states: list[Leaf]) -> list[Leaf]:
        even, odd = (_taken(states, np.s_[i::2]) for i in (0, 1))
        return pad(merge_each(even, odd, axes), half)

    # Each round halves the number of states. Empty ones fill the arrays up, because what a loop
    # carries has one size.
    states = pad(copies, 2 * half - size)
    return _taken(lax.fori_loop(0, half.bit_length(), merge_neighbours, states), 0)


def merge_each(a: list[Leaf], b: list[Leaf], axes: int = 1) -> list[Leaf]:
    """Merges the states along leading axes of leaf states with those at the same places."""

    def merge(x: Leaf, y: Leaf) -> Leaf:
        if axes == 1 and x.by_row(1) is not None:  # all at once
            return x.combine(y)
        return _merge_one(x, y, axes)

    return list(map(merge, a, b))


def _merge_one(x: Leaf, y: Leaf, axes: int) -> Leaf:
    """Merges each of the states along leading axes; of no axes, the two."""
    combine = lambda x, y: x.combine(y)  # noqa: E731
    for _ in range(axes):
        combine = vmap(combine)
    return combine(x, y)


def _taken(states: list[Leaf], index: int | slice) -> list[Leaf]:
    return jax.tree.map(lambda x: x[index], states)


def _sync_in_parts(states: list[Leaf], axis_name: AxisName, size: int, at_once: int) -> list[Leaf]:
    """Merges large states. A device sends about three times their bytes.

    There are at most five collectives, and one more for each axis of more than `at_once` devices.
    Integers are added up, and maxima found, by an all-reduce, which is exact in any order. Of all
    other states, each device merges some of the elements: an all-to-all brings it those of all
    devices. The all-reduce that adds up the integers also brings the merged elements to all.
    """
    index = lax.axis_index(axis_name).astype(xp.int32)
    asking = ask_together(states, index, size)
    states = _answered(asking, lambda numbers: collectives.pmax(numbers, axis_name))
    by_state = [state.to_mesh() for state in states]
    travels = _in_a_row(by_state)
    groups: dict[Hashable, list[int]] = {}  # the indices of travels that are merged in the same way
    # Elements that merge alike are merged at once, whichever states they are of.
    for i, travel in enumerate(travels):
        how = travel.how if isinstance(travel.how, str) else jax.tree.structure(travel.how)
        groups.setdefault(how, []).append(i)
    maxima, sums = (groups.pop(how, []) for how in ("max", "sum"))
    arrays = [[travels[i].arrays for i in group] for group in (maxima, sums, *groups.values())]
    greatest = collectives.pmax(_in_a_row(arrays[0]), axis_name)
    empty = [travels[group[0]].how for group in groups.values()]
    # Elements that merge alike, end to end.
    joined = [[xp.concatenate(x) for x in zip(*each, strict=True)] for each in arrays[2:]]
    mine = _sync_elements(joined, empty, _stages(axis_name, at_once))
    # The merged elements stand among zeros, as words of 32 bits. So the all-reduce of sums brings
    # them to all devices, and changes no bit.
    words = collectives.pack_words(_in_a_row(mine))
    *added, words = collectives.psum([*_in_a_row(arrays[1]), words], axis_name)
    received = [x[0] for x in collectives.unpack_words(words[None], _in_a_row(mine))]

    merged: dict[int, list[jax.Array]] = {}
    merged |= zip(maxima, _grouped(greatest, arrays[0]), strict=True)
    merged |= zip(sums, _grouped(added, arrays[1]), strict=True)
    for group, whole in zip(groups.values(), _grouped(received, joined), strict=True):
        start = 0
        for i in group:
            end = start + len(travels[i].arrays[0])
            merged[i], start = [x[start:end] for x in whole], end
    results = _grouped([merged[i] for i in range(len(travels))], by_state)
    return [state.from_mesh(_in_a_row(x)) for state, x in zip(states, results, strict=True)]


class _Stage(NamedTuple):
    """Groups of devices that exchange data, and the place of this device in its own."""

    axis_name: AxisName
    groups: list[list[int]] | None
    """The groups of devices along the axis that exchange data; `None` for one group of all."""
    size: int
    """The number of devices of a group."""
    place: jax.Array
    """The place of this device in its group, int32."""


def _stages(axis_name: AxisName, at_once: int) -> list[_Stage]:
    """The groups in which devices exchange data, one after the other, to reach all along the axis.

    Up to `at_once` devices are one group. More devices exchange data axis by axis, the last axis
    first, and along a longer axis first within sections of it, then between them. So the number of
    messages, and the rows that only fill up blocks, grow with the root of the number of devices.
    """

    def one(name: AxisName) -> _Stage:
        return _Stage(name, None, lax.axis_size(name), lax.axis_index(name).astype(xp.int32))

    if lax.axis_size(axis_name) <= at_once:
        return [one(axis_name)]
    found = []
    for name in reversed(collectives.axis_names(axis_name)):
        stage = one(name)
        size, place = stage.size, stage.place
        # The greatest divisor up to the root: about as many devices in a section as there are
        # sections.
        section = max(n for n in range(1, math.isqrt(size) + 1) if size % n == 0)
        if size <= at_once or section == 1:  # few devices, or a prime number of them
            found.append(stage)
            continue
        # First within each row of the grid, which is a section; then within each column.
        grid = np.arange(size).reshape(-1, section)
        found.append(_Stage(name, grid.tolist(), section, place % section))
        found.append(_Stage(name, grid.T.tolist(), size // section, place // section))
    return found


def _sync_elements(
    arrays: list[list[jax.Array]], empty: list[Leaf], stages: list[_Stage]
) -> list[list[jax.Array]]:
    """The elements that this device merges, at their places among zeros.

    Args:
        arrays: for each group, the arrays of its elements, which are their leading axis.
        empty: for each group, the empty state of one element.
        stages: the groups of devices that exchange elements. Each stage merges those that the
            devices of a group received in the stage before.
    """
    if not arrays:
        return []
    (stage, *later), treedef = stages, jax.tree.structure(empty)
    ones = jax.tree.leaves(empty)

    def blocks(x: jax.Array, e: jax.Array) -> jax.Array:
        """The elements as a row for each device, filled up with empty ones."""
        # All devices exchange blocks of one size.
        share = -(-len(x) // stage.size)
        missing = (share * stage.size - len(x), *x.shape[1:])
        filled = xp.concatenate([x, xp.broadcast_to(xp.asarray(e, x.dtype), missing)])
        return filled.reshape(stage.size, share, *x.shape[1:])

    def place(x: jax.Array, like: jax.Array) -> jax.Array:
        among = xp.zeros((stage.size * len(x), *x.shape[1:]), x.dtype)
        start = stage.place * len(x)
        return lax.dynamic_update_slice_in_dim(among, x, start, 0)[: len(like)]

    rows = [blocks(x, e) for x, e in zip(_in_a_row(arrays), ones, strict=True)]
    received = treedef.unflatten(collectives.exchange(rows, stage.axis_name, stage.groups))
    merged = _grouped(jax.tree.leaves(merge_copies(received, stage.size, axes=2)), arrays)
    if later:
        merged = _sync_elements(merged, empty, later)
    placed = [place(x, like) for x, like in zip(_in_a_row(merged), _in_a_row(arrays), strict=True)]
    return _grouped(placed, arrays)


def _in_a_row(lists: Iterable[Iterable[_Item]]) -> list[_Item]:
    return [x for each in lists for x in each]


def _grouped(flat: Iterable[_Item], like: Iterable[Iterable[object]]) -> list[list[_Item]]:
    """The items of a flat list in groups as long as those of `like`."""
    items = iter(flat)
    return [[next(items) for _ in each] for each in like]
