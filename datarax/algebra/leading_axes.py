"""Axes that all arrays of a state have before their own, as out of `vmap`: it is several states."""

from functools import lru_cache

import jax

from datarax._checks import x64_enabled
from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax.algebra.pytrees import (
    ArrayNode,
    MeshNode,
    flatten_once,
    states_in,
    without_children,
)


def find_leading_axes(state: PyTree) -> tuple[int, ...]:
    """The sizes of the axes that all arrays of a state have before their own, or ()."""
    found: tuple[int, ...] = ()
    coming = [state]
    while coming:
        each = coming.pop()
        if isinstance(each, MeshNode):  # it has an axis of devices, and knows it
            return ()
        # Not `states_within`, which for a collection are its members: these are its stacks.
        children, aux = flatten_once(each)
        if not isinstance(each, ArrayNode):
            coming.extend(reversed(states_in(*children)))
            continue
        for name, shapes in _own_shapes(type(each), aux, x64_enabled()):
            # A number has fewer parts with x64.
            for own, x in zip(shapes, jax.tree.leaves(getattr(each, name)), strict=False):
                shape = getattr(x, "shape", ())
                axes = shape[: len(shape) - len(own)]
                # Mostly the first array has none, and the others need not be looked at.
                if not axes or shape[len(axes) :] != own or axes != (found or axes):
                    return ()
                found = axes
    return found


@lru_cache(maxsize=4096)
def _own_shapes(cls: type, aux: PyTree, x64: bool) -> list[tuple[str, list[tuple[int, ...]]]]:
    """The shapes of the arrays of an empty leaf state, by child; with x64 there are others."""
    empty: PyTree = without_children(cls, aux)
    return [(name, [x.shape for x in jax.tree.leaves(own)]) for name, own in empty.empty().items()]


def refuse_leading_axes(state: PyTree) -> None:
    """Raises if a state is several, as out of `vmap` or `pmap`.

    Raises:
        MetricInputError: all arrays have a leading axis more; says how to take one, or merge.
    """
    if axes := find_leading_axes(state):
        size = axes[0] if len(axes) == 1 else axes
        raise MetricInputError(
            f"{type(state).__name__}: its arrays have a leading axis of {size}, as out of vmap or "
            f"pmap: take one with jax.tree.map(lambda x: x[0], metric), or merge those of the list "
            f"that datarax.distributed.collect_from_devices(metric) gives, with "
            f"functools.reduce(lambda a, b: a.merge(b), metrics)"
        )
