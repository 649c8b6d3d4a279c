"""`map_leaf_states`: applies a function to all leaf states within a pytree."""

from collections.abc import Callable
from typing import Any

import jax


def map_leaf_states(function: Callable[[list[Any]], list[Any]], tree: Any) -> Any:
    """The pytree with its leaf states replaced by those that `function` of the list returns.

    Leaves that are not states are in the list, too.
    """
    leaves, rebuild = _leaf_states(tree)
    return rebuild(function(leaves))


def _leaf_states(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    nodes, treedef = jax.tree.flatten(tree, is_leaf=_is_end)
    leaves: list[Any] = []
    parts: list[tuple[Any, int, Callable[..., Any]] | None] = []
    for node in nodes:
        if getattr(node, "flat", False):
            inner, rebuild = _leaf_states(node.children())
            parts.append((node, len(inner), rebuild))
            leaves += inner
        else:
            parts.append(None)
            leaves.append(node)

    def rebuilt(leaves: list[Any]) -> Any:
        rest = iter(leaves)
        done = []
        for part in parts:
            if part is None:
                done.append(next(rest))
                continue
            node, count, rebuild = part
            done.append(node.with_parts(rebuild([next(rest) for _ in range(count)])))
        return treedef.unflatten(done)

    return leaves, rebuilt


def _is_end(x: Any) -> bool:
    """Whether a node is a leaf state, or one whose children are not nodes of the pytree."""
    return getattr(x, "holds_arrays", False) or getattr(x, "flat", False)
