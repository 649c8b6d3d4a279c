"""Merges states over devices: gathers and merges all of them, or merges a part on each device."""

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, Self, TypeVar

import jax
import numpy as np

from datarax._typing import PyTree
from datarax._xp import lax, vmap, xp
from datarax.algebra.pytrees import Leaf, Tree
from datarax.algebra.replication import axes_to_merge, gathered_once
from datarax.distributed import collectives
from datarax.distributed.collectives import AxisName

_Item = TypeVar("_Item")

SMALL_BYTES = 1 << 20
"""The most bytes of all copies of the states together that a sync gathers on each device."""
AT_ONCE = 64
"""The most devices that exchange parts of larger states in one all-to-all."""


class NeedsMaxima:
    """A leaf state that must know something of all devices before its arrays can travel."""

    @abstractmethod
    def needed_maxima(self, index: jax.Array, size: int) -> list[jax.Array]:
        """Returns the signed integers that this state must know of all devices before `to_mesh`.

        `with_maxima` gets their maxima over the devices.

        Args:
            index: the index of this device, int32.
            size: the number of devices.
        """

    @abstractmethod
    def with_maxima(self, maxima: list[jax.Array], index: jax.Array) -> Self:
        """The same data in a form that `to_mesh` can merge, given the maxima of `needed_maxima`."""


class CountsUpdates:
    """A leaf state that holds the number of updates, so that devices count an update once."""

    @abstractmethod
    def reached(self) -> list[jax.Array]:
        """The number of updates: signed integers.

        `brought_to` gets their maxima over the devices, before `needed_maxima` is asked.
        """

    @abstractmethod
    def brought_to(self, newest: list[jax.Array]) -> Self:
        """Ages this state to as many updates as the maxima of `reached`."""

    @abstractmethod
    def on_other_devices(self) -> Self:
        """What the other devices keep of a replicated state: no data, and the number."""


def reached_by(state: Leaf) -> list[jax.Array]:
    """The number of updates of a leaf state, as it states it."""
    return state.reached() if isinstance(state, CountsUpdates) else []


def asked_by(state: Leaf, index: jax.Array, size: int) -> list[jax.Array]:
    """The numbers that a leaf state must know of all devices."""
    return state.needed_maxima(index, size) if isinstance(state, NeedsMaxima) else []


def merge_over_devices(
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
            chosen = merge_stack(stacked, [state.emptied() for state in stacked], _combined, size)
        else:
            chosen = _merge_in_parts(chosen, axes, size, at_once)
        for i, state in zip(members, chosen, strict=True):
            merged[i] = state
    return merged


def _combined(a: list[Leaf], b: list[Leaf]) -> list[Leaf]:
    return [x.combine(y) for x, y in zip(a, b, strict=True)]


def merge_stack(
    stacked: Tree, empty: PyTree, merge: Callable[[Tree, Tree], Tree], size: int
) -> Tree:
    """Merges `size` pytrees, stacked along a leading axis, in a fixed order.

    In each round, neighbours are merged in pairs. The rest of the stack is filled with rows of
    `empty`, which change nothing.
    """
    # Half the number of states, rounded up to a power of two: 0 for a single state.
    half = 1 << max(size - 1, 0).bit_length() >> 1

    def pad(short: Tree, rows: int) -> Tree:
        def padded(x: jax.Array, e: jax.Array) -> jax.Array:
            e = xp.broadcast_to(xp.asarray(e)[:1], (rows, *x.shape[1:]))
            return xp.concatenate([x, e.astype(x.dtype)])

        return jax.tree.map(padded, short, empty)

    def merge_neighbours(_: jax.Array, states: Tree) -> Tree:
        even, odd = (jax.tree.map(lambda x, i=i: x[i::2], states) for i in (0, 1))
        return pad(vmap(merge)(even, odd), half)

    if half:
        # A loop compiles the merge once, however many states there are.
        states = pad(stacked, 2 * half - size)
        stacked = lax.fori_loop(0, half.bit_length(), merge_neighbours, states)
    return jax.tree.map(lambda leaf: leaf[0], stacked)


def _merge_in_parts(states: list[Leaf], axis_name: AxisName, size: int, at_once: int) -> list[Leaf]:
    """Merges large states. A device sends about three times their bytes.

    There are at most five collectives, and one more for each axis of more than `at_once` devices.
    Integers are added up, and maxima found, by an all-reduce, which is exact in any order. Of all
    other states, each device merges some of the elements: an all-to-all brings it those of all
    devices. The all-reduce that adds up the integers also brings the merged elements to all.
    """
    index = lax.axis_index(axis_name).astype(xp.int32)
    # First, how many updates there were, then what else some states must know of all devices.
    numbers = [reached_by(state) for state in states]
    newest = _regrouped(collectives.pmax(_flat(numbers), axis_name), numbers)
    states = [s.brought_to(x) if x else s for s, x in zip(states, newest, strict=True)]
    told = [asked_by(state, index, size) for state in states]
    known = _regrouped(collectives.pmax(_flat(told), axis_name), told)
    states = [s.with_maxima(x, index) if x else s for s, x in zip(states, known, strict=True)]

    by_state = [state.to_mesh() for state in states]
    travels = _flat(by_state)
    groups: dict[Hashable, list[int]] = {}  # the indices of travels that are merged in the same way
    for i, travel in enumerate(travels):
        how = travel.how if isinstance(travel.how, str) else jax.tree.structure(travel.how)
        groups.setdefault(how, []).append(i)
    maxima, sums = (groups.pop(how, []) for how in ("max", "sum"))
    arrays = [[travels[i].arrays for i in group] for group in (maxima, sums, *groups.values())]
    greatest = collectives.pmax(_flat(arrays[0]), axis_name)
    empty = [travels[group[0]].how for group in groups.values()]
    # Elements that merge alike, end to end.
    joined = [[xp.concatenate(x) for x in zip(*each, strict=True)] for each in arrays[2:]]
    mine = _merged_elements(joined, empty, _stages(axis_name, at_once))
    words = collectives.pack_words(_flat(mine))
    *added, words = collectives.psum([*_flat(arrays[1]), words], axis_name)
    received = [x[0] for x in collectives.unpack_words(words[None], _flat(mine))]

    merged: dict[int, list[jax.Array]] = {}
    merged |= zip(maxima, _regrouped(greatest, arrays[0]), strict=True)
    merged |= zip(sums, _regrouped(added, arrays[1]), strict=True)
    for group, whole in zip(groups.values(), _regrouped(received, joined), strict=True):
        start = 0
        for i in group:
            end = start + len(travels[i].arrays[0])
            merged[i], start = [x[start:end] for x in whole], end
    results = _regrouped([merged[i] for i in range(len(travels))], by_state)
    return [state.from_mesh(_flat(x)) for state, x in zip(states, results, strict=True)]


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
        section = max(n for n in range(1, math.isqrt(size) + 1) if size % n == 0)
        if size <= at_once or section == 1:  # few devices, or a prime number of them
            found.append(stage)
            continue
        # First within each row of the grid, which is a section; then within each column.
        grid = np.arange(size).reshape(-1, section)
        found.append(_Stage(name, grid.tolist(), section, place % section))
        found.append(_Stage(name, grid.T.tolist(), size // section, place // section))
    return found


def _merged_elements(
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
        share = -(-len(x) // stage.size)
        missing = (share * stage.size - len(x), *x.shape[1:])
        filled = xp.concatenate([x, xp.broadcast_to(xp.asarray(e, x.dtype), missing)])
        return filled.reshape(stage.size, share, *x.shape[1:])

    def place(x: jax.Array, like: jax.Array) -> jax.Array:
        among = xp.zeros((stage.size * len(x), *x.shape[1:]), x.dtype)
        start = stage.place * len(x)
        return lax.dynamic_update_slice_in_dim(among, x, start, 0)[: len(like)]

    def merge(a: list[Leaf], b: list[Leaf]) -> list[Leaf]:
        return [vmap(lambda x, y: x.combine(y))(x, y) for x, y in zip(a, b, strict=True)]

    rows = [blocks(x, e) for x, e in zip(_flat(arrays), ones, strict=True)]
    received = treedef.unflatten(collectives.exchange(rows, stage.axis_name, stage.groups))
    one = treedef.unflatten([xp.asarray(e)[None, None] for e in ones])
    merged = _regrouped(jax.tree.leaves(merge_stack(received, one, merge, stage.size)), arrays)
    if later:
        merged = _merged_elements(merged, empty, later)
    placed = [place(x, like) for x, like in zip(_flat(merged), _flat(arrays), strict=True)]
    return _regrouped(placed, arrays)


def _flat(lists: Iterable[Iterable[_Item]]) -> list[_Item]:
    return [x for each in lists for x in each]


def _regrouped(flat: Iterable[_Item], like: Iterable[Iterable[object]]) -> list[list[_Item]]:
    """The items of a flat list in groups as long as those of `like`."""
    items = iter(flat)
    return [[next(items) for _ in each] for each in like]
