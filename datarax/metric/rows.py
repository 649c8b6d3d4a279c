"""Updates several states of one metric at once, each with some of the rows of a batch."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import jax
import numpy as np

from datarax._checks import as_float, numeric
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree
from datarax._update_context import in_update
from datarax._xp import as_in_program, at, is_traced, lax, none_true, on_host, vmap, xp
from datarax.algebra.devices import axes_of, counted_once
from datarax.algebra.leaf_state import LeafState
from datarax.algebra.pytrees import leaf_states, map_leaf_states
from datarax.algebra.rows import RowTerms, Target, merge_rows
from datarax.algebra.state import State
from datarax.distributed.collectives import replicated
from datarax.metric.arguments import Call, is_call
from datarax.metric.declared import shares_statistic, statistic_of
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.invalid_counts import (
    counting_by_row,
    rows_with_counts,
    with_invalid_of,
)

S = TypeVar("S", bound=State)
Tree = TypeVar("Tree")

AT_ONCE = 2**16
"""The most rows whose terms are added at a time; at most 2**16, see `Packed`."""
MOST_REPEATED = 2**22
"""About the most counts of rows in replicas that are used at a time."""

Terms = list[RowTerms | None]
"""The terms of each leaf state of a metric; None if there are none."""


def unusable_rows(metric: State, call: Call) -> jax.Array:
    """Marks the rows of a call that a metric cannot use, (rows,).

    All rows of a group, such as a query, are marked if one of them is. The weights are those of the
    call: a row of weight zero is never looked at.
    """
    rows = rows_of(call)
    if not rows:
        return xp.zeros(0, xp.bool_)
    call = with_all_rows(call, rows)
    group = call.by_name[1][call.together] if call.together and call.grouped else None
    if group is not None:  # each row is a group by itself, so that the rows stay in their order
        args, kwargs = call.by_name
        alone = xp.arange(rows, dtype=xp.asarray(group).dtype)
        call = replace(call, args=args, kwargs=kwargs | {call.together or "": alone})
    before: PyTree = counted_once(counting_by_row(metric.emptied(), rows), axes_of(call))
    with in_update(checks="none"):  # the update itself checks the values
        found = rows_with_counts(before.apply(call), rows)
    return found if group is None else _in_groups(found, xp.asarray(group))


def _in_groups(mask: jax.Array, group: jax.Array) -> jax.Array:
    """Marks all rows of each group of which one row is marked."""
    order = xp.argsort(group)
    ordered = group[order]
    new = xp.concatenate([xp.zeros(1, xp.bool_), ordered[1:] != ordered[:-1]])
    number = xp.cumsum(new.astype(xp.int32))
    some = at(xp.zeros(group.shape, xp.int32))[number].max(mask[order].astype(xp.int32))
    return at(xp.zeros(group.shape, xp.bool_))[order].set(some[number] > 0)


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


def by_elements(call: Call, shape: tuple[int, ...]) -> Call:
    """The call with a row for each element of leading axes of this shape.

    Arrays without some of these axes are repeated along them.

    Raises:
        MetricInputError: no array has these axes, or one has others.
    """
    shapes = [xp.shape(x) for x in jax.tree.leaves(call)]

    def leading(shape_of: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape_of, *[1] * len(shape))[: len(shape)]

    fits = [all(n in (1, m) for n, m in zip(leading(x), shape, strict=True)) for x in shapes]
    if not all(fits) or shape not in map(leading, shapes):
        raise MetricInputError(
            f"{call.metric}: arrays of shapes {', '.join(map(str, shapes))} with an id for each "
            f"value of shape {shape}; expected arrays with these leading axes"
        )

    def flat(given: ArrayLike) -> jax.Array:
        x = replicated(xp.asarray(given))
        axes, rest = leading(x.shape), x.shape[len(shape) :]
        return xp.broadcast_to(x.reshape(*axes, *rest), (*shape, *rest)).reshape(-1, *rest)

    args, kwargs = jax.tree.map(flat, call.by_name)
    return replace(call, args=args, kwargs=kwargs)


def by_rows(call: Call, rows: int) -> Call:
    """The call with two leading axes: of rows, and of one example in each."""
    return jax.tree.map(lambda x: x[:, None], with_all_rows(call, rows))


def updated_at(stacked: S, calls: PyTree, target: Target) -> S:
    """Stacked states of a metric, each updated with its rows of a batch.

    If the terms of the update are those of single rows, they are added to the stacked states, so
    the cost depends on the batch, and little on the number of states. Else each state is updated
    with its rows: on the host they are chosen and repeated, and on devices weights say how often
    each counts.

    Args:
        stacked: a metric; its arrays have a leading axis of `target.size`.
        calls: the arguments of its update, as a tree of `Call`s.
        target: where each row goes.

    Raises:
        MetricInputError: on devices, the metric takes no weights, and its states have no terms of
            single rows.
    """
    empty = empty_place(stacked)
    on_devices = not on_host(stacked, *jax.tree.leaves((calls, target)))
    several = jax.tree.leaves(calls, is_leaf=is_call)
    unweighted = [call.metric for call in several if "weights" not in call.takes]
    terms = None
    if adds_by_row(empty, calls):
        terms = terms_of_rows(empty, calls, target)
    elif on_devices and unweighted and has_terms(empty, calls):
        terms = _terms_one_by_one(empty, calls, target)
    if terms is not None:
        return with_terms(stacked, terms, replicated_target(target))
    if on_devices and unweighted:
        raise MetricInputError(
            f"{unweighted[0]}.update takes no weights, which tell how often each row counts, and "
            f"its state cannot be held for each row either"
        )
    updated = (_weighted if on_devices else _one_by_one)(stacked, calls, target)
    return updated if target.counts_invalid else with_invalid_of(stacked, updated)


def has_terms(metric: PyTree, calls: PyTree) -> bool:
    """True if the states of a metric can hold the terms of single rows."""
    # Of a wrapper, the states may depend on more than one row at a time.
    return isinstance(calls, Call) and all(
        isinstance(x, LeafState) and x.by_row(1) is not None for x in leaf_states(metric)
    )


def adds_by_row(metric: PyTree, calls: PyTree) -> bool:
    """True if all terms that an update adds are of single rows, in their order."""
    # Rows that are grouped, for example by query, give no terms of single rows.
    if not has_terms(metric, calls) or calls.grouped:
        return False
    return metric.terms_by_row or (shares_statistic(metric) and statistic_of(metric).terms_by_row)


def terms_of_rows(empty: PyTree, call: Call, target: Target) -> Terms:
    """The terms of an update for which `adds_by_row` holds."""
    return _terms(kept_apart(empty, call, target.place.size), empty, target)


def kept_apart(empty: PyTree, call: Call, rows: int) -> PyTree:
    """A metric whose states keep the rows of a batch apart: see `RowTerms`.

    Raises:
        MetricInputError: the update added what is not of single rows.
    """
    call = with_all_rows(call, rows)
    # The terms vary over devices as the rows do, and the empty ones need the same type.
    before = counted_once(_in_rows(empty, rows), axes_of(call))
    if is_traced(call):  # the update makes these of its constants: then no array is the same
        before = as_in_program(before)
    updated = before.apply(call)
    for old, new in zip(leaf_states(before), leaf_states(updated), strict=True):
        if new.num_rows != rows and not _same(old, new):
            raise MetricInputError(
                f"{call.metric}: terms_by_row is True, and its update did not add one term for "
                f"each of {rows} rows to a {type(old).__name__}; set it to False"
            )
    return updated


def _same(before: RowTerms, after: RowTerms) -> bool:
    a, b = jax.tree.leaves(before), jax.tree.leaves(after)
    # By identity: an update that adds nothing to a state returns its arrays as they are.
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def _in_rows(empty: PyTree, rows: int) -> PyTree:
    return map_leaf_states(lambda states: [each.by_row(rows) for each in states], empty)


def _terms(updated: PyTree, empty: PyTree, target: Target) -> Terms:
    if not target.counts_invalid:
        updated = with_invalid_of(_in_rows(empty, 1), updated)
    return [None if each.num_rows is None else each for each in leaf_states(updated)]


def _terms_one_by_one(empty: PyTree, call: Call, target: Target) -> Terms:
    """The same as `_terms`, by one update for each row."""
    before = _in_rows(empty, 1)
    before = counted_once(before, axes_of((call, target)))
    terms = vmap(lambda call: _terms(before.apply(call), empty, target))(
        by_rows(call, target.place.size)
    )

    def joined(each: RowTerms) -> RowTerms:
        first = 1 if each.row_axis == 0 else -1

        def one(x: jax.Array) -> jax.Array:
            if x.ndim == 1:  # of shape () in each update: the same in all
                return xp.sum(x[:1], dtype=x.dtype)
            # The axis of one row becomes that of all rows.
            return xp.moveaxis(xp.squeeze(x, first), 0, each.row_axis)

        return jax.tree.map(one, each)

    return [None if each is None else joined(each) for each in terms]


def with_terms(stacked: Tree, terms: Terms, target: Target) -> Tree:
    """The stacked states of a pytree with the terms of rows added, some of the rows at a time."""
    rows = target.place.size
    # Each row is repeated for each replica, so with many replicas fewer rows fit in memory at a
    # time.
    step = min(AT_ONCE, max(1, MOST_REPEATED // target.replicas))

    def added(stacked: Tree, terms: Terms, target: Target) -> Tree:
        return map_leaf_states(lambda states: merge_rows(states, terms, target), stacked)

    if rows <= step:
        return added(stacked, terms, target)
    if on_host(stacked, terms, target):
        for start in range(0, rows, step):
            index = slice(start, start + step)
            some = _each_array(terms, target, lambda x, axis, i=index: xp.moveaxis(x, axis, 0)[i])
            stacked = added(stacked, *some)
        return stacked
    parts = -(-rows // step)

    def padded(x: jax.Array, axis: int) -> jax.Array:
        padding = [(0, parts * step - rows)] + [(0, 0)] * (x.ndim - 1)
        return xp.pad(xp.moveaxis(x, axis, 0), padding)

    terms, target = _each_array(terms, target, padded)
    # Rows past the last place fill up the last part.
    is_row = xp.arange(parts * step) < rows
    target = target._replace(place=xp.where(is_row, target.place, xp.uint32(target.places)))

    def part(i: jax.Array, stacked: Tree) -> Tree:
        def taken(x: jax.Array, axis: int) -> jax.Array:
            return lax.dynamic_slice_in_dim(xp.moveaxis(x, axis, 0), i * step, step)

        return added(stacked, *_each_array(terms, target, taken))

    return lax.fori_loop(0, parts, part, jax.tree.map(xp.asarray, stacked))


def _each_array(
    terms: Terms, target: Target, change: Callable[[jax.Array, int], jax.Array]
) -> tuple[Terms, Target]:
    """Terms and target with each array changed; `change` returns it with rows as the first axis."""

    def of(axis: int) -> Callable[[PyTree], PyTree]:
        def changed(x: PyTree) -> PyTree:
            if isinstance(x, DoubleFloat):
                return x.map(changed)
            return xp.moveaxis(change(x, axis), 0, axis) if x.ndim else x

        return changed

    def of_terms(each: RowTerms) -> RowTerms:
        return jax.tree.map(of(each.row_axis), each, is_leaf=lambda x: isinstance(x, DoubleFloat))

    return [each and of_terms(each) for each in terms], target.each(of(0))


def _one_by_one(stacked: PyTree, calls: PyTree, target: Target) -> PyTree:
    """The states, each updated with its rows of arrays on the host; a row counts by repetition."""
    rows = target.place.size
    calls = jax.tree.map(lambda call: with_all_rows(call, rows), calls, is_leaf=is_call)
    leaves, structure = jax.tree.flatten(stacked)
    # States may be large: each is written once, and an array that no update changes is kept.
    written: dict[int, np.ndarray] = {}
    for i in range(target.size):
        times = target.times
        # The states are those of all places of the first replica, then of the second, and so on.
        index = np.flatnonzero(target.place == i % target.places)
        if times is not None:
            index = np.repeat(index, times[index, i // target.places])
        own = updated = [x[i, ...] for x in leaves]
        if index.size:
            one = structure.unflatten(own)
            updated = jax.tree.leaves(one.apply(jax.tree.map(lambda x, i=index: x[i], calls)))
        for k, (old, new) in enumerate(zip(own, updated, strict=True)):
            if k not in written and new is not old and not np.may_share_memory(new, old):
                written[k] = np.empty(leaves[k].shape, leaves[k].dtype)
                written[k][:i] = leaves[k][:i]
            if k in written:
                written[k][i] = new
    return structure.unflatten(written.get(k, x) for k, x in enumerate(leaves))


def empty_place(stacked: S) -> S:
    """The empty state of one of the places of stacked states."""
    # Only the shapes matter: an index would be an operation of the program for each array.
    return jax.tree.map(
        lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape[1:]), stacked
    ).emptied()


def _weighted(stacked: PyTree, calls: PyTree, target: Target) -> PyTree:
    """The states, each updated with all rows, with weights that say how often a row counts."""
    target = replicated_target(target)
    times = target.times

    def update(one: PyTree, index: jax.Array) -> PyTree:
        factor = target.place == index % xp.uint32(target.places)
        if times is not None:
            replica = (index // xp.uint32(target.places)).astype(xp.int32)
            factor = xp.where(factor, times[:, replica], 0)

        def weighted(call: Call) -> Call:
            return reweighted(call, factor)

        return one.apply(jax.tree.map(weighted, calls, is_leaf=is_call))

    # All rows for each state, because the shapes in a program cannot depend on the target.
    return vmap(update)(stacked, xp.arange(target.size, dtype=xp.uint32))


def replicated_target(target: Target) -> Target:
    """The target, replicated over an `Explicit` mesh."""
    return target.each(replicated)


def without_rows(call: Call, mask: jax.Array) -> Call:
    """The call with the rows in a mask at weight zero.

    Raises:
        MetricInputError: there may be such rows, and the update takes no weights.
    """
    # Mostly, on the host. In a program it is not known, so the update must take weights.
    if none_true(mask):
        return call
    if "weights" in call.takes:
        return reweighted(call, ~mask)
    raise MetricInputError(
        f"{call.metric}.update takes no weights, so the rows that one of two models cannot use "
        f"cannot be left out of the other. Give its update an argument weights="
    )


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
