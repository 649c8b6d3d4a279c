"""`Stack`: several states of one configuration; each array has a leading axis."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property
from operator import is_
from typing import TYPE_CHECKING, Self, TypeVar

import jax
import numpy as np

from datarax._typing import PyTree, Structure
from datarax._xp import is_traced, lax, on_host, vmap, xp
from datarax.algebra.devices import Asking, NeedsMaxima, ask_together, merge_each
from datarax.algebra.fields import state, unrestored
from datarax.algebra.leading_axes import find_leading_axes
from datarax.algebra.leaf_state import LeafState, Travel
from datarax.algebra.pytrees import Leaf, Tree, children_of, leaf_states, map_leaf_states
from datarax.algebra.saving import Parts
from datarax.distributed.merge_ops import shared
from datarax.distributed.placement import outside_mesh
from datarax.numerics.scaled_double import ScaledDouble

Value = TypeVar("Value")


class Element:
    """The empty state of an element of a stack: configuration, compared by its structure."""

    def __init__(self, empty: PyTree):
        self.empty = empty

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Element) and self.structure == other.structure

    def __hash__(self) -> int:
        return hash(self.structure)

    def __repr__(self) -> str:
        return repr(self.empty)

    @cached_property
    def structure(self) -> Structure:
        return jax.tree.structure(self.empty)

    def __getstate__(self) -> Parts:
        return {"empty": self.empty}  # the structure cannot be pickled


class Stack(NeedsMaxima, LeafState, kw_only=False):
    """`size` states of one configuration, as one leaf state.

    The states are merged, synced and reset one by one, so a stack costs as many collectives as one
    of its states.

    Args:
        element: the empty state of each place.
        size: how many states there are.
    """

    element: Element = unrestored()  # the states are compared themselves
    size: int

    states: PyTree = state()
    """The states: a state in which each array has a leading axis of `size`."""
    _apart: list[PyTree] | None = None
    """What `apart` returns, once it is known."""

    @classmethod
    def of(cls, empty: PyTree, size: int) -> Self:
        """A stack of empty states."""
        return cls(Element(empty), size)

    @property
    def is_extreme(self) -> bool:  # type: ignore[override]
        return self.element.empty.is_extreme

    def empty(self) -> Parts:
        return {"states": _repeated(self.element, self.size)}

    def holding(self, states: PyTree) -> Self:
        """A copy that holds these states, of the same shapes."""
        return self.with_parts({"states": states})

    def holding_each(self, each: Sequence[PyTree], axis: int = 0) -> Self:
        """A copy that holds the arrays of these pytrees, one for each state.

        Those on the host are stacked when the arrays of the stack are first asked for. Others are
        stacked along `axis` at once.
        """
        copy = self.with_parts({"states": None})
        vars(copy)["_apart"] = list(each)
        if on_host(*each) and axis == 0:
            del vars(copy)["states"]
            vars(copy)["_on_host"] = True
        else:
            vars(copy)["states"] = self._stacked(each, axis)
            if not on_host(*each):
                del vars(copy)["_apart"]
        return copy

    def apart(self, axis: int | None = None) -> list[PyTree]:
        """The states one by one: the pytrees that were given, or lists of arrays.

        Outside `jit`, the same objects each time. The axis of the states is the first one that
        follows leading axes, as out of `vmap`.
        """
        if self._apart is not None:
            return self._apart
        leaves = jax.tree.leaves(self.states)
        empty = jax.tree.leaves(self.empty())
        if not leaves:  # None stands for each array
            known = [[None] * len(empty)] * self.size
        # Untouched. By identity, because the arrays of an empty stack are made once, and values in
        # a program are not known.
        elif all(map(is_, leaves, empty)):
            known = [jax.tree.leaves(self.element.empty)] * self.size
        else:
            take = _taken if on_host(*leaves) or is_traced(leaves) else _taken_on_devices
            known = take(leaves, len(find_leading_axes(self)) if axis is None else axis)
        if not is_traced(known):  # traced arrays must not outlive the traced function
            vars(self)["_apart"] = known
        return known

    def _stacked(self, each: Sequence[PyTree], axis: int) -> PyTree:
        columns = [list(x) for x in zip(*map(jax.tree.leaves, each), strict=True)]
        leaves = [x for column in columns for x in column]
        join = _joined if on_host(*leaves) or is_traced(leaves) else _joined_on_devices
        return jax.tree.unflatten(self.element.structure, join(columns, axis))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> PyTree:
            if name == "states" and self._apart is not None:
                made = vars(self)[name] = self._stacked(self._apart, 0)
                return made
            return super().__getattr__(name)

    def with_parts(self, parts: Parts) -> Self:
        if "states" not in parts:
            children_of(self)  # makes the states
        return super().with_parts(parts)

    def with_element(self, empty: PyTree) -> Self:
        """The same arrays as the states of another metric, which has the same arrays."""
        changed = type(self).from_fields(self, element=Element(empty))
        return jax.tree.unflatten(jax.tree.structure(changed), jax.tree.leaves(self))

    def map(self, function: Callable[..., Value], *others: PyTree) -> Value:
        """`function` of each state, and of its row of `others`; the results are stacked."""
        return vmap(function)(self.states, *others)

    def combine(self, other: PyTree) -> Self:
        others = leaf_states(other.states)
        return self.holding(map_leaf_states(lambda ours: merge_each(ours, others), self.states))

    def canonical(self) -> Self:
        return self.holding(self.map(lambda a: a.canonical()))

    def weighted_by(self, factor: ScaledDouble) -> Self:
        return self.holding(self.map(lambda a: a.weighted_by(factor)))

    def on_other_devices(self) -> Self:
        return self.holding(
            map_leaf_states(lambda x: [y.on_other_devices() for y in x], self.states)
        )

    # Over devices, every array of a state gets one more leading axis. Arrays that `combine` merges
    # by elements have a leading axis of elements already: the two axes become one.

    def ask_maxima(self, index: jax.Array, size: int) -> Asking[Self]:
        maxima: list[list[jax.Array]] = []  # of the rounds so far

        def asked(one: PyTree, maxima: list[list[jax.Array]]) -> PyTree:
            """What one of the states asks for in the next round: a list; or the state, changed."""
            asking = ask_together(leaf_states(one), index, size)
            try:
                numbers = next(asking)
                for known in maxima:
                    numbers = asking.send(known)
            except StopIteration as end:
                changed = end.value
                return map_leaf_states(lambda _: changed, one)
            return numbers

        # What waits for maxima cannot wait within `vmap`: each round begins again, and what it
        # computes twice is one operation of the compiled program.
        while isinstance(found := self.map(asked, maxima), list):
            maxima.append((yield found))
        return self.holding(found)

    def to_mesh(self) -> list[Travel]:
        kinds, arrays = self._travels()
        return [
            Travel(how, x if isinstance(how, str) else [_flattened(each) for each in x])
            for how, x in zip(kinds, arrays, strict=True)
        ]

    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        _, own = self._travels()
        merged = iter(arrays)
        apart = [[next(merged).reshape(x.shape) for x in each] for each in own]

        def held(one: Tree, arrays: list[list[jax.Array]]) -> Tree:
            travels = iter(arrays)

            def each(leaf: Leaf) -> Leaf:
                # `to_mesh` again, because only it tells how many arrays travel. A compiler drops
                # what is computed twice.
                return leaf.from_mesh([x for _ in leaf.to_mesh() for x in next(travels)])

            return map_leaf_states(lambda leaves: [each(leaf) for leaf in leaves], one)

        return self.holding(self.map(held, apart))

    def _travels(self) -> tuple[list[str | LeafState], list[list[jax.Array]]]:
        """Returns how the arrays of each state travel, and the arrays, stacked."""
        kinds: list[str | LeafState] = []

        def arrays_of(one: PyTree) -> list[list[jax.Array]]:
            travels = [travel for leaf in leaf_states(one) for travel in leaf.to_mesh()]
            # All states are of one configuration, so each call gives the same kinds.
            kinds[:] = [travel.how for travel in travels]
            return [travel.arrays for travel in travels]

        arrays = self.map(arrays_of)
        return kinds, arrays


@shared
def _repeated(element: Element, size: int) -> PyTree:
    """The empty states, read-only; the same arrays each time."""

    def repeat(x: np.ndarray) -> np.ndarray:
        return np.broadcast_to(np.asarray(x), (size, *np.shape(x)))

    return jax.tree.map(repeat, element.empty)


def _joined(columns: list[list[jax.Array]], axis: int) -> list[jax.Array]:
    """Each list of arrays as one array."""
    return [xp.stack(column, axis) for column in columns]


def _taken(leaves: list[jax.Array], axis: int) -> list[list[jax.Array]]:
    """The arrays at each place of an axis."""
    size, before = leaves[0].shape[axis], (slice(None),) * axis
    if on_host(*leaves):  # with `...`, a number stays an array
        return [[x[(*before, i, ...)] for x in leaves] for i in range(size)]
    return [[lax.index_in_dim(x, i, axis, keepdims=False) for x in leaves] for i in range(size)]


def _on_devices(function: Callable[..., Value]) -> Callable[..., Value]:
    """One program of a function of arrays and an axis, which runs where the arrays are."""
    # One program for all arrays: to stack them one by one would be a dispatch for each.
    program = outside_mesh(jax.jit(function, static_argnums=1))

    def run(arrays: PyTree, axis: int) -> Value:
        (first, *_) = (x for x in jax.tree.leaves(arrays) if isinstance(x, jax.Array))
        devices = first.devices()
        # Else arrays that are not committed to their device would move to the default one.
        with jax.default_device(next(iter(devices))) if len(devices) == 1 else nullcontext():
            return program(arrays, axis)

    return run


_joined_on_devices = _on_devices(_joined)
_taken_on_devices = _on_devices(_taken)


def _flattened(x: jax.Array) -> jax.Array:
    """An array with its first two axes as one."""
    return xp.reshape(x, (-1, *x.shape[2:]))
