"""Updates several states of one metric at once, each with some of the rows of a batch."""

import math
from dataclasses import replace
from functools import partial
from typing import TypeVar

import jax
import numpy as np

from datarax._checks import as_float, numeric
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree
from datarax._update_context import in_update
from datarax._xp import lax, on_host, vmap, xp
from datarax.algebra.pytrees import Leaf, leaf_states, map_leaf_states
from datarax.algebra.row_merge import MergesRows, Target, may_repeat, merge_rows
from datarax.algebra.state import State
from datarax.distributed.collectives import replicated
from datarax.metrics.call import Call, is_call
from datarax.statistics.invalid_counts import with_invalid_of

S = TypeVar("S", bound=State)

AT_ONCE = 2**13
"""The most rows whose states are held at a time; at most 2**16, see `Packed`."""
MOST_CELLS = 2**22
"""About the most numbers of those states, with their repetitions, that are held on the host."""


def row_count(call: Call) -> int:
    """The number of rows of a batch.

    Raises:
        MetricInputError: the leading axes of the arguments differ.
    """
    data = jax.tree.leaves(call.unweighted)
    sizes = {x.shape[0] for x in map(xp.asarray, data) if x.ndim}
    expected = f"{call.metric}: expected arrays that share one leading axis"
    return _one_size(sizes, data, expected) if sizes else 1


def rows_of(calls: PyTree) -> int:
    """The number of rows of all calls.

    Raises:
        MetricInputError: it differs, or a metric does not take rows.
    """
    several = jax.tree.leaves(calls, is_leaf=is_call)
    for call in several:
        if not call.rows:
            raise MetricInputError(
                f"{call.metric}.update takes no rows of examples, so they cannot be sliced or drawn"
            )
    expected = "expected arrays that share one leading axis, of rows"
    return _one_size(set(map(row_count, several)), jax.tree.leaves(calls), expected)


def _one_size(sizes: set[int], arrays: list[ArrayLike], expected: str) -> int:
    """The size of an axis, where size 1 is repeated; raises if there are several sizes."""
    several = sizes - {1} or sizes
    if len(several) > 1:
        shapes = ", ".join(str(xp.shape(x)) for x in arrays)
        raise MetricInputError(f"{expected}; got shapes {shapes}")
    return several.pop()


def counted_rows(call: Call, rows: int) -> jax.Array:
    """Marks the rows of a call that have a weight other than zero."""
    weights = call.by_name[1].get("weights")
    if weights is None:
        return xp.ones(rows, xp.bool_)
    w = replicated(numeric(weights, "weights"))
    # A row with several weights counts if one of them is not zero.
    some = xp.any(w.astype(xp.bool_), tuple(range(1, w.ndim)))
    return xp.broadcast_to(some, (rows,))


def with_all_rows(call: Call, rows: int) -> Call:
    """The call with arguments that all have the rows: what is one value is repeated."""

    def repeated(x: ArrayLike) -> jax.Array:
        x = xp.asarray(x)
        x = x[None] if x.ndim == 0 else x
        return xp.broadcast_to(x, (rows, *x.shape[1:]))

    args, kwargs = jax.tree.map(repeated, replicated(call.by_name))
    return replace(call, args=args, kwargs=kwargs)


def by_rows(call: Call, rows: int) -> Call:
    """The call with two leading axes: of rows, and of one example in each."""
    return jax.tree.map(lambda x: x[:, None], with_all_rows(call, rows))


def updated_at(stacked: S, calls: PyTree, target: Target) -> S:
    """Stacked states of a metric, each updated with its rows of a batch.

    The states of single rows are merged into the stacked ones, so the cost depends on the batch,
    and little on the number of states. If the state of a row is large, or cannot be repeated, each
    state is updated with the whole batch instead, with weights: zero for rows that are not its own.

    Args:
        stacked: a metric; its arrays have a leading axis of `target.size`.
        calls: the arguments of its update, as a tree of `Call`s.
        target: where each row goes.

    Raises:
        MetricInputError: the metric takes no weights, and its state is too large for a row.
    """
    empty = element(stacked)
    states = leaf_states(empty)
    rows, several = target.place.size, jax.tree.leaves(calls, is_leaf=is_call)
    # Of a wrapper, the states may depend on more than one row at a time.
    rowwise = isinstance(calls, Call) and all(
        state.rowwise and (target.counts is None or may_repeat(state)) for state in states
    )
    if on_host(stacked, *jax.tree.leaves((calls, target))):
        apart = _apart(empty, calls, rows, target) if rowwise and rows else None
        if apart is not None:
            return _merged_in_parts(stacked, apart, target)
        # Without that, each row or each state is an update in NumPy: the fewer ones are chosen.
        merges, update = rowwise and 0 < rows < target.size, _one_by_one
    else:
        unweighted = [call.metric for call in several if "weights" not in call.takes]
        if unweighted and not rowwise:
            raise MetricInputError(
                f"{unweighted[0]}.update takes no weights, which tell how often each row counts, "
                f"and its state cannot be held for each row either"
            )
        cells = sum(math.prod(x.shape) for x in jax.tree.leaves([s.for_row() for s in states]))
        # The states of all rows hold `rows * cells` numbers. The other way is an update of each
        # state with the whole batch.
        is_small = rows * cells <= 8 * target.size * (rows + cells)
        merges, update = rowwise and (bool(unweighted) or is_small), _weighted
    if merges:
        return _merged_rows(stacked, empty, calls, target)
    updated = update(stacked, calls, target)
    # What cannot be used is known of the data, and need not be of each replica.
    return updated if target.counts is None else with_invalid_of(stacked, updated)


def kept_apart(empty: PyTree, call: Call, rows: int) -> tuple[PyTree, PyTree] | None:
    """A metric whose state keeps rows apart on the host, before and after an update.

    The arrays of its leaf states have a last axis of rows, see `LeafState.by_row`. None if the
    terms of the metric are not those of single rows.
    """
    _, given = call.by_name
    # Rows that are grouped, for example by query, give no terms of single rows.
    if not empty.terms_by_row or given.get(call.together or "") is not None:
        return None
    before = map_leaf_states(lambda states: [each.by_row(rows) for each in states], empty)
    return before, before.apply(with_all_rows(call, rows))


def _apart(empty: PyTree, call: Call, rows: int, target: Target) -> list[Leaf | None] | None:
    """As `row_states`, by one update in NumPy; None if not all states keep and merge rows."""
    with in_update(checks="none"):  # wrappers update the metric with the whole batch, too
        found = kept_apart(empty, call, rows)
    if found is None:
        return None
    before, after = found
    after = after if target.counts is None else with_invalid_of(before, after)
    states: list[Leaf | None] = []
    for own, x, y in zip(*map(leaf_states, (empty, before, after)), strict=True):
        form = jax.tree.structure(own)
        if _same(x, y):
            states.append(None)
        # A state that is its own `by_row` has added the rows up.
        elif jax.tree.structure(x) == form or not isinstance(own, MergesRows):
            return None
        else:
            states.append(form.unflatten(np.moveaxis(each, -1, 0) for each in jax.tree.leaves(y)))
    return states


def _merged_in_parts(stacked: S, states: list[Leaf | None], target: Target) -> S:
    """Stacked states on the host, with the states of rows merged into them."""
    # Each row is held once for each replica.
    cells = target.replicas * sum(x[0].size for x in jax.tree.leaves(states))
    step = min(AT_ONCE, max(MOST_CELLS // max(cells, 1), 1))
    for start in range(0, target.place.size, step):
        chosen = slice(start, start + step)
        rows = jax.tree.map(lambda x, chosen=chosen: x[chosen], states)
        counts = None if target.counts is None else target.counts[chosen]
        part = Target(target.place[chosen], target.places, counts)
        stacked = map_leaf_states(partial(merge_rows, rows=rows, target=part), stacked)
    return stacked


def _one_by_one(stacked: PyTree, calls: PyTree, target: Target) -> PyTree:
    """The states, each updated with its rows of arrays on the host; a row counts by repetition."""
    rows = target.place.size
    calls = jax.tree.map(lambda call: with_all_rows(call, rows), calls, is_leaf=is_call)

    def updated(i: int) -> PyTree:
        one = jax.tree.map(lambda x: x[i], stacked)
        # The states are those of all places of the first replica, then of the second, and so on.
        index = np.flatnonzero(target.place == i % target.places)
        if target.counts is not None:
            index = np.repeat(index, target.counts[index, i // target.places])
        if not index.size:
            return one
        return one.apply(jax.tree.map(lambda x: x[index], calls))

    return jax.tree.map(lambda *x: np.stack(x), *map(updated, range(target.size)))


def element(stacked: S) -> S:
    """The empty state of one element of a stack."""
    return jax.tree.map(lambda x: x[0], stacked).emptied()


def _weighted(stacked: PyTree, calls: PyTree, target: Target) -> PyTree:
    target = replicated_target(target)

    def update(one: PyTree, index: jax.Array) -> PyTree:
        factor = target.place == index % xp.uint32(target.places)
        if target.counts is not None:
            replica = (index // xp.uint32(target.places)).astype(xp.int32)
            factor = xp.where(factor, target.counts[:, replica], 0)

        def weighted(call: Call) -> Call:
            return reweighted(call, factor)

        return one.apply(jax.tree.map(weighted, calls, is_leaf=is_call))

    return vmap(update)(stacked, xp.arange(target.size, dtype=xp.uint32))


def replicated_target(target: Target) -> Target:
    """The target, replicated over an `Explicit` mesh."""
    place, counts = replicated((target.place, target.counts))
    return target._replace(place=place, counts=counts)


def reweighted(call: Call, factor: jax.Array) -> Call:
    """The call with the weight of each row times a factor: a mask, or whole numbers."""
    args, kwargs = call.by_name
    rows, weights = factor.size, kwargs.get("weights")
    w = xp.ones(rows, xp.bool_) if weights is None else replicated(xp.asarray(weights))
    w = w[None] if w.ndim == 0 else w
    w = xp.broadcast_to(w, (rows, *w.shape[1:]))
    factor = lax.expand_dims(factor, range(1, w.ndim))
    # A mask keeps the dtype of the weights, which may be booleans or integers.
    if factor.dtype == xp.bool_:
        w = xp.where(factor, w, xp.zeros((), w.dtype))
    else:
        w = as_float(w) * as_float(factor)
    return replace(call, args=args, kwargs=kwargs | {"weights": w})


def _merged_rows(stacked: S, empty: S, call: Call, target: Target) -> S:
    rows = target.place.size
    call, target = by_rows(call, rows), replicated_target(target)
    places = target.places

    def fold(stacked: S, call: Call, place: jax.Array, counts: jax.Array | None) -> S:
        states = row_states(empty, call, counts_invalid=counts is None)
        part = Target(place, places, counts)
        return map_leaf_states(lambda leaves: merge_rows(leaves, states, part), stacked)

    if rows <= AT_ONCE:
        return fold(stacked, call, target.place, target.counts)
    # Rows past the last place fill up the last part.
    parts = -(-rows // AT_ONCE)

    def cut(x: jax.Array, fill: int = 0) -> jax.Array:
        padding = [(0, parts * AT_ONCE - rows)] + [(0, 0)] * (x.ndim - 1)
        x = xp.pad(x, padding, constant_values=xp.asarray(fill, x.dtype))
        return x.reshape(parts, AT_ONCE, *x.shape[1:])

    given = jax.tree.map(cut, call), cut(target.place, places), jax.tree.map(cut, target.counts)
    stacked = jax.tree.map(xp.asarray, stacked)
    return lax.scan(lambda state, part: (fold(state, *part), None), stacked, given)[0]


def row_states(empty: PyTree, call: Call, *, counts_invalid: bool = True) -> list[Leaf | None]:
    """The leaf states of a metric that is updated with one row, stacked by rows.

    None for a leaf state that the update does not change.
    """
    template = map_leaf_states(lambda states: [each.for_row() for each in states], empty)
    before = leaf_states(template)

    def one(call: Call) -> list[Leaf | None]:
        after = template.apply(call)
        after = after if counts_invalid else with_invalid_of(template, after)
        pairs = zip(before, leaf_states(after), strict=True)
        return [None if _same(x, y) else y for x, y in pairs]

    return vmap(one)(call)


def _same(before: Leaf, after: Leaf) -> bool:
    a, b = jax.tree.leaves(before), jax.tree.leaves(after)
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
