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
    # The operands of each kind of all states, and where those of each state are among them.
    send: dict[str, list[jax.Array]] = {"sum": [], "max": [], "min": [], "gather": []}
    spans = []
    for state in states:
        kind, arrays = state.to_mesh()
        if kind == "gather":
            arrays = jax.tree.leaves(state)
        spans.append((kind, slice(len(send[kind]), len(send[kind]) + len(arrays))))
        send[kind] += [jnp.asarray(x) for x in arrays]
    received = {
        "sum": collectives.psum(send["sum"], axis_name),
        "max": collectives.pmax(send["max"], axis_name),
        "min": collectives.pmin(send["min"], axis_name),
        "gather": collectives.gather(send["gather"], axis_name) if send["gather"] else [],
    }
    merged = []
    for state, (kind, span) in zip(states, spans, strict=True):
        arrays = received[kind][span]
        if kind == "gather":
            stacked = jax.tree.unflatten(jax.tree.structure(state), arrays)
            merged += merge_stack([stacked], size)
        else:
            merged.append(state.from_mesh(arrays))
    return merged
