"""`leaf_states` and `map_leaf_states`: all leaf states within a pytree."""

from collections.abc import Callable
from typing import Any

import jax


def leaf_states(tree: Any) -> list[Any]:
    """The leaf states within a pytree, and the leaves that are not states."""
    return jax.tree.leaves(opened(tree), is_leaf=_holds_arrays)


def map_leaf_states(function: Callable[[list[Any]], list[Any]], tree: Any) -> Any:
    """The pytree with its leaf states replaced by those that `function` of the list returns.

    Leaves that are not states are in the list, too.
    """
    states, treedef = jax.tree.flatten(opened(tree), is_leaf=_holds_arrays)
    return _closed(tree, treedef.unflatten(function(states)))


def opened(tree: Any) -> Any:
    """The pytree with the children of each flat state in its place."""
    return jax.tree.map(lambda x: opened(x.children()) if _is_flat(x) else x, tree, is_leaf=_ends)


def _closed(tree: Any, parts: Any) -> Any:
    """The pytree with the leaves of `parts`, which has the children of each flat state."""

    def closed(x: Any, part: Any) -> Any:
        return x.with_parts(_closed(x.children(), part)) if _is_flat(x) else part

    return jax.tree.map(closed, tree, parts, is_leaf=_ends)


def _ends(x: Any) -> bool:
    return _holds_arrays(x) or _is_flat(x)


def _holds_arrays(x: Any) -> bool:
    return getattr(x, "holds_arrays", False)


def _is_flat(x: Any) -> bool:
    """Whether `x` is a state whose children are not nodes of the pytree."""
    return getattr(x, "flat", False)
