"""Updates several states of one metric at once, each with some of the rows of a batch."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from datarax._checks import as_float
from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax.distributed.collectives import replicated
from datarax.metrics.call import Call, is_call
from datarax.statistics.leaf_states import leaf_states, map_leaf_states
from datarax.statistics.place_merge import merge_at_places

AT_ONCE = 2**13
"""The most rows of which the states are held at a time; at most 2**16, see `Packed`."""


def row_count(call: Call) -> int:
    """The number of rows of a batch.

    Raises:
        MetricInputError: the leading axes of the arguments differ.
    """
    args, kwargs = call.by_name
    data = jax.tree.leaves((args, {name: x for name, x in kwargs.items() if name != "weights"}))
    sizes = {x.shape[0] for x in map(jnp.asarray, data) if x.ndim}
    sizes = sizes - {1} or sizes
    if len(sizes) > 1:
        shapes = ", ".join(str(jnp.shape(x)) for x in data)
        raise MetricInputError(
            f"{call.metric}: expected arrays that share one leading axis; got shapes {shapes}"
        )
    return sizes.pop() if sizes else 1


def by_rows(call: Call, rows: int) -> Call:
    """The call with two leading axes: of rows, and of one example in each."""

    def split(x: Any) -> jax.Array:
        x = jnp.asarray(x)
        x = x[None] if x.ndim == 0 else x
        return jnp.broadcast_to(x, (rows, *x.shape[1:]))[:, None]

    # All arguments get the axes of one batch, so those that are one value are repeated.
    args, kwargs = call.by_name
    split_all = jax.tree.map(split, replicated((args, kwargs)))
    return replace(call, args=split_all[0], kwargs=split_all[1])


def updated_at(stacked: Any, calls: PyTree, place: jax.Array, size: int) -> Any:
    """Stacked states of a metric, each updated with the rows of its place.

    The states of single rows are merged into those at their places, so the cost depends on the
    batch, and little on the number of places. If the state of a row is large, each state is updated
    with the whole batch instead, with weight zero for the rows of other places.

    Args:
        stacked: a metric; its arrays have a leading axis of `size` places.
        calls: the arguments of its update, as a tree of `Call`s.
        place: the place of each row, unsigned; rows past the last place are left out.

    Raises:
        MetricInputError: the metric takes no weights, and its state is too large for a row.
    """
    empty = element(stacked)
    states = leaf_states(empty)
    rows, several = place.size, jax.tree.leaves(calls, is_leaf=is_call)
    # Of a wrapper, the states may depend on more than one row at a time.
    rowwise = isinstance(calls, Call) and all(state.rowwise for state in states)
    unweighted = [call.metric for call in several if "weights" not in call.takes]
    if unweighted and not rowwise:
        raise MetricInputError(
            f"{unweighted[0]}.update takes no weights, which tell the rows of one place from those "
            f"of another, and its state cannot be held for each row either"
        )
    cells = sum(math.prod(x.shape) for x in jax.tree.leaves([s.for_row() for s in states]))
    if rowwise and (unweighted or rows * cells <= 8 * size * (rows + cells)):
        return _merged_rows(stacked, empty, calls, place, size)
    return _masked(stacked, calls, place, size)


def element(stacked: Any) -> Any:
    """The empty state of which several are stacked."""
    return jax.tree.map(lambda x: x[0], stacked).reset()


def _masked(stacked: Any, calls: PyTree, place: jax.Array, size: int) -> Any:
    place = replicated(place)

    def update(one: Any, index: jax.Array) -> Any:
        def masked(call: Call) -> Call:
            return weighted_by(call, place == index)

        return one.apply(jax.tree.map(masked, calls, is_leaf=is_call))

    return jax.vmap(update)(stacked, jnp.arange(size, dtype=place.dtype))


def weighted_by(call: Call, factor: jax.Array) -> Call:
    """The call with the weight of each row times a factor: a mask, or whole numbers."""
    args, kwargs = call.by_name
    rows, weights = factor.size, kwargs.get("weights")
    w = jnp.ones(rows, jnp.bool_) if weights is None else replicated(jnp.asarray(weights))
    w = w[None] if w.ndim == 0 else w
    w = jnp.broadcast_to(w, (rows, *w.shape[1:]))
    factor = jax.lax.expand_dims(factor, range(1, w.ndim))
    if factor.dtype == jnp.bool_:
        w = jnp.where(factor, w, jnp.zeros((), w.dtype))
    else:
        w = as_float(w) * as_float(factor)
    return replace(call, args=args, kwargs=kwargs | {"weights": w})


def _merged_rows(stacked: Any, empty: Any, call: Call, place: jax.Array, size: int) -> Any:
    rows = place.size
    call = by_rows(call, rows)
    place = replicated(place)
    if rows <= AT_ONCE:
        return _fold(stacked, row_states(empty, call), place, size)
    # Rows past the last place fill up the last part.
    parts = -(-rows // AT_ONCE)
    beyond = jnp.iinfo(place.dtype).max

    def cut(x: jax.Array, fill: Any = 0) -> jax.Array:
        padding = [(0, parts * AT_ONCE - rows)] + [(0, 0)] * (x.ndim - 1)
        x = jnp.pad(x, padding, constant_values=jnp.asarray(fill, x.dtype))
        return x.reshape(parts, AT_ONCE, *x.shape[1:])

    def fold(stacked: Any, part: Any) -> tuple[Any, None]:
        return _fold(stacked, row_states(empty, part[0]), part[1], size), None

    stacked = jax.tree.map(jnp.asarray, stacked)
    return jax.lax.scan(fold, stacked, (jax.tree.map(cut, call), cut(place, beyond)))[0]


def row_states(empty: Any, call: Call) -> list[Any]:
    """The leaf states of a metric that is updated with one row, stacked by rows.

    None for a leaf state that the update does not change.
    """
    template = map_leaf_states(lambda states: [each.for_row() for each in states], empty)
    before = leaf_states(template)

    def one(call: Call) -> list[Any]:
        after = leaf_states(template.apply(call))
        return [None if _same(x, y) else y for x, y in zip(before, after, strict=True)]

    return jax.vmap(one)(call)


def _same(before: Any, after: Any) -> bool:
    a, b = jax.tree.leaves(before), jax.tree.leaves(after)
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def _fold(stacked: Any, rows: list[Any], place: jax.Array, size: int) -> Any:
    return map_leaf_states(lambda states: merge_at_places(states, rows, place, size), stacked)
