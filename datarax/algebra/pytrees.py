"""Flattens and unflattens states; visits all leaf states within a pytree."""

import functools
import math
from collections.abc import Callable, Hashable, Iterable
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh

from datarax._typing import PyTree, Structure
from datarax.algebra.lineage import (
    Marked,
    has_mark,
    last_flattened,
    note_flattened,
    note_unflattened,
)

Tree = TypeVar("Tree")
Node = TypeVar("Node", bound="StateNode")
Leaf = PyTree
"""A leaf state; or a leaf of a pytree that is not a state."""


_Aux = tuple[tuple[str, ...], tuple[tuple[str, Hashable], ...], tuple[str, ...], tuple[str, ...]]
"""The static part of a state: the names of its children, the names and values of all other
attributes, which of these are NaN, and which are `Ungiven`."""


class PytreeNode:
    """The base of what a pytree is searched for: states, and terms of rows in their place."""


class ArrayNode(PytreeNode):
    """The base of nodes whose children are arrays. Of others, an array as attribute is an error."""


class StateNode(PytreeNode, Marked):
    """The base of `State`, by which a state is known where `State` is not."""

    # An instance is immutable, so these are set by `vars(self)[...]`.
    _children: tuple[str, ...] = ()
    """The names of the children, sorted."""
    _aux: Any = None
    """The static part of the pytree, an `_Aux`; None until the instance is frozen."""
    _arrays: "tuple[tuple[jax.Array, ...], _Flat] | None" = None
    """The flat form of a flat state: its children are made from it when they are asked for."""


class FlatNode(StateNode):
    """The base of states that are one node of a pytree, whose children are all their arrays.

    This is faster to flatten than a node for each state. The states within are made from the arrays
    when asked for.
    """


class MeshNode(StateNode):
    """The base of states that have a mesh of devices, with a copy on each.

    They sync without an axis name.
    """

    mesh: Mesh

    def merge_copies(self) -> PyTree:
        """The copies merged, as a state without a mesh."""
        raise TypeError(f"{type(self).__name__} does not define merge_copies()")


def register_pytree(cls: type[StateNode]) -> None:
    """Registers a class of states as a pytree, in one of the two ways."""
    flat = issubclass(cls, FlatNode)
    # With keys, so that errors of JAX, and checkpoints, name an array by its path.
    jax.tree_util.register_pytree_with_keys(
        cls,
        _flatten_flat_with_keys if flat else _flatten_with_keys,
        functools.partial(_unflatten_flat if flat else _unflatten, cls),
        _flatten_flat if flat else flatten_once,
    )


def flatten_once(self: StateNode) -> tuple[tuple[PyTree, ...], _Aux]:
    """The children of a state, and its static part, also of a flat one."""
    # By `getattr`, as a `Stack` makes its arrays when they are first asked for.
    return tuple(map(getattr, repeat(self), self._children)), self._aux


def _flatten_with_keys(self: StateNode) -> tuple[tuple[PyTree, ...], _Aux]:
    keyed = ((jax.tree_util.GetAttrKey(n), getattr(self, n)) for n in self._children)
    return tuple(keyed), self._aux


def _unflatten(cls: type[Tree], aux: _Aux, children: Iterable[PyTree]) -> Tree:
    # JAX may pass any objects as children, so nothing is checked here.
    self = without_children(cls, aux)
    vars(self).update(zip(aux[0], children, strict=True))
    return self


def without_children(cls: type[Tree], aux: _Aux) -> Tree:
    """An instance that has its static part, and no children yet."""
    # Not by the constructor, which would check its arguments and make an empty state.
    self = object.__new__(cls)
    names, config, nans, _ = aux
    # For a NaN, `config` holds an object that equals itself, so that static parts can be compared.
    vars(self).update(config)
    for name in nans:
        vars(self)[name] = math.nan
    vars(self)["_children"], vars(self)["_aux"] = names, aux
    return self


class _Flat(NamedTuple):
    """The static part of a flat state."""

    aux: _Aux
    """The static part of the same state without `flat`."""
    children: Structure
    """The structure of its children."""


@functools.lru_cache(maxsize=4096)
def _interned(flat: _Flat) -> _Flat:
    """One object for all that are equal, because Python compares an object with itself at once."""
    return flat


def _flatten_flat(self: StateNode) -> tuple[tuple[jax.Array, ...], _Flat]:
    # Kept, because JAX flattens a metric several times in a step. A changed copy drops them.
    arrays = self._arrays
    if arrays is None:
        children, aux = flatten_once(self)
        leaves, structure = jax.tree.flatten(children)
        arrays = tuple(leaves), _interned(_Flat(aux, structure))
        vars(self)["_arrays"] = arrays
    if last_flattened.marks or has_mark(self):  # seldom
        note_flattened(self, arrays[1])
    return arrays


def _flatten_flat_with_keys(
    self: StateNode,
) -> tuple[tuple[tuple[Hashable, jax.Array], ...], _Flat]:
    arrays, flat = _flatten_flat(self)
    return tuple(zip(_keys_of_arrays(flat), arrays, strict=True)), flat


@functools.lru_cache(maxsize=4096)
def _keys_of_arrays(flat: _Flat) -> tuple[Hashable, ...]:
    """The path of each array of a flat state, as one key."""
    children = flat.children.unflatten(range(flat.children.num_leaves))
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(children)]
    names = flat.aux[0]
    # The first key of a path is the index of a child, the others lead from the child to the array.
    return tuple(
        jax.tree_util.GetAttrKey(names[first.idx] + jax.tree_util.keystr(tuple(rest)))
        for first, *rest in paths
    )


def _unflatten_flat(cls: type[Node], flat: _Flat, arrays: Iterable[jax.Array]) -> Node:
    # The children are not made here. JAX unflattens at each border of a traced function, and most
    # of what comes in or out is only flattened again.
    self = without_children(cls, flat.aux)
    vars(self)["_arrays"] = tuple(arrays), flat
    if last_flattened.marks:
        note_unflattened(self, flat)
    return self


def children_of(state: StateNode) -> dict[str, PyTree]:
    """The children by attribute: states or pytrees of states; of a leaf state, its arrays."""
    return {name: getattr(state, name) for name in state._children}


def make_children(self: StateNode) -> bool:
    """Makes the children of a flat state from its arrays; False if it has none of these."""
    if self._arrays is None:
        return False
    arrays, flat = self._arrays
    # The arrays stay too, so that this state is flattened again at once.
    vars(self).update(zip(self._children, flat.children.unflatten(arrays), strict=True))
    return True


def leaf_states(tree: PyTree) -> list[Leaf]:
    """The leaf states within a pytree, and the leaves that are not states."""
    return jax.tree.leaves(opened(tree), is_leaf=holds_arrays)


def map_leaf_states(function: Callable[[list[Leaf]], list[Leaf]], tree: Tree) -> Tree:
    """The pytree with its leaf states replaced by those that `function` of the list returns.

    Leaves that are not states are in the list, too.
    """
    states, treedef = jax.tree.flatten(opened(tree), is_leaf=holds_arrays)
    return _closed(tree, treedef.unflatten(function(states)))


def opened(tree: PyTree) -> PyTree:
    """The pytree with the children of each flat state in its place."""
    return jax.tree.map(lambda x: opened(children_of(x)) if _is_flat(x) else x, tree, is_leaf=_ends)


def _closed(tree: PyTree, parts: PyTree) -> PyTree:
    """The pytree with the leaves of `parts`, which has the children of each flat state."""

    def closed(x: PyTree, part: PyTree) -> PyTree:
        return x.with_parts(_closed(children_of(x), part)) if _is_flat(x) else part

    return jax.tree.map(closed, tree, parts, is_leaf=_ends)


def _ends(x: object) -> bool:
    return isinstance(x, ArrayNode | FlatNode)


def holds_arrays(x: object) -> bool:
    """True if `x` is a leaf state, or terms of rows in the place of one."""
    return isinstance(x, ArrayNode)


def _is_flat(x: object) -> bool:
    """True if `x` is a state whose children are not nodes of the pytree."""
    return isinstance(x, FlatNode)


def is_node(x: object) -> bool:
    """True if `x` is a state, or terms of rows in the place of one."""
    return isinstance(x, PytreeNode)


def is_state(x: object) -> bool:
    """True if `x` is a state."""
    return isinstance(x, StateNode)


def states_in(*trees: PyTree) -> list[PyTree]:
    """The outermost states in pytrees."""
    found: list[PyTree] = []
    coming = [*reversed(trees)]
    while coming:
        each = coming.pop()
        # Most are states or arrays, or tuples of these: the tree need not be flattened.
        if isinstance(each, StateNode):
            found.append(each)
        elif type(each) is tuple:
            coming.extend(reversed(each))
        elif not isinstance(each, np.ndarray | np.generic | jax.Array):
            found += filter(is_state, jax.tree.leaves(each, is_leaf=is_state))
    return found
