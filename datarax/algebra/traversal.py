"""The states within a pytree, and within a state."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from datarax.algebra.state import State


def states_in(tree: Any) -> list[State]:
    """The outermost states in a pytree."""
    if isinstance(tree, State):  # most are, or are arrays: the tree need not be flattened
        return [tree]
    if isinstance(tree, np.ndarray | jax.Array):
        return []
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, State))
    return [leaf for leaf in leaves if isinstance(leaf, State)]


def walk(root: State) -> Iterator[State]:
    """Yields a state, and all states within it."""
    yield root
    for child in root.children().values():
        for each in states_in(child):
            yield from walk(each)
