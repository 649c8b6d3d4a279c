"""Merges states over devices: gathers and merges them, or uses one collective for each kind."""

from typing import Any

import jax
import jax.numpy as jnp

from datarax.distributed import collectives
from datarax.distributed.collectives import AxisName
from datarax.statistics.replication import axes_to_merge


def merge_over_devices(states: list[Any], names: tuple[str, ...], small: int) -> list[Any]:
    """Merges each leaf state over those of the axes `names` along which devices hold their own.

    Up to `small` bytes per device are gathered in one collective; above, there is one for each kind
    of merge.
    """
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
        if sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) <= small:
            gathered = collectives.gather(leaves, axes)
            chosen = merge_stack(treedef.unflatten(gathered), size)
        else:
            chosen = _merge_by_kind(chosen, axes, size)
        for i, state in zip(members, chosen, strict=True):
            merged[i] = state
    return merged


def merge_stack(stacked: list[Any], size: int) -> list[Any]:
    """Merges `size` copies of leaf states, stacked along a leading axis, in a fixed order.

    In each round, neighbours are merged in pairs. The rest of the stack is filled with empty
    states, which change nothing.
    """
    # Half the number of states, rounded up to a power of two: 0 for a single state.
    half = 1 << max(size - 1, 0).bit_length() >> 1
    empty = [state.reset() for state in stacked]

    def pad(short: Any, rows: int) -> Any:
        def padded(x: Any, e: Any) -> jax.Array:
            e = jnp.broadcast_to(jnp.asarray(e)[:1], (rows, *x.shape[1:]))
            return jnp.concatenate([x, e.astype(x.dtype)])

        return jax.tree.map(padded, short, empty)

    def merge_neighbours(_: Any, states: Any) -> Any:
        even, odd = (jax.tree.map(lambda x, i=i: x[i::2], states) for i in (0, 1))
        pairs = jax.vmap(lambda a, b: [x.combine(y) for x, y in zip(a, b, strict=True)])(even, odd)
        return pad(pairs, half)

    if half:
        # A loop compiles the merge once, however many states there are.
        states = pad(stacked, 2 * half - size)
        stacked = jax.lax.fori_loop(0, half.bit_length(), merge_neighbours, states)
    return jax.tree.map(lambda leaf: leaf[0], stacked)


def _merge_by_kind(states: list[Any], axis_name: AxisName, size: int) -> list[Any]:
    """The same, with one collective for each kind of merge that `to_mesh` names."""
    kinds = [state.to_mesh() for state in states]
    ranged = [i for i, (kind, _) in enumerate(kinds) if kind == "aligned"]
    minima = [i for i, (kind, _) in enumerate(kinds) if kind == "min"]
    # The minima come first, because some states need the common range before they can be merged.
    first = [states[i].reach for i in ranged] + [states[i] for i in minima]
    first = _merge_kind("min", first, axis_name, size)
    merged = list(states)
    for i, state in zip(minima, first[len(ranged) :], strict=True):
        merged[i] = state
    for i, reach in zip(ranged, first, strict=False):
        merged[i] = states[i].aligned(reach)
    # Of an aligned state, the parts are merged like any others.
    flat, treedef = jax.tree.flatten(
        merged, is_leaf=lambda x: getattr(x, "holds_arrays", False) and x.to_mesh()[0] != "aligned"
    )
    done = {id(state) for state in first}
    for kind in ("sum", "max", "gather"):
        chosen = [i for i, x in enumerate(flat) if id(x) not in done and x.to_mesh()[0] == kind]
        states = _merge_kind(kind, [flat[i] for i in chosen], axis_name, size)
        for i, state in zip(chosen, states, strict=True):
            flat[i] = state
    return treedef.unflatten(flat)


def _merge_kind(kind: str, states: list[Any], axis_name: AxisName, size: int) -> list[Any]:
    """Merges states of one kind, with one collective."""
    if not states:
        return []
    if kind == "gather":
        arrays = [jax.tree.leaves(state) for state in states]
    else:
        arrays = [state.to_mesh()[1] for state in states]
    collective = getattr(collectives, "gather" if kind == "gather" else f"p{kind}")
    received = iter(collective([jnp.asarray(x) for each in arrays for x in each], axis_name))
    merged = []
    for state, each in zip(states, arrays, strict=True):
        mine = [next(received) for _ in each]
        if kind == "gather":
            merged += merge_stack([jax.tree.unflatten(jax.tree.structure(state), mine)], size)
        else:
            merged.append(state.from_mesh(mine))
    return merged
