"""One pass over a batch: what several states add up of its rows is reduced together.

A reduction that a compiler fuses with what makes its operand reads the batch again for each
reduction, and is not vectorised. One `lax.reduce` of many operands reads it once. So a state says
what is to be added up, in a `Fold`, and `in_one_pass` reduces the terms of many states at once.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from datarax._platform import float64_zero
from datarax._typing import PyTree
from datarax._x64 import Changes, differentiable, elementary_in_x64, in_x64
from datarax._xp import lax, on_host, xp
from datarax.distributed.collectives import from_key, to_key, varying_axes
from datarax.numerics.double_float import DoubleFloat, adds_wide, has_float64, is_one
from datarax.numerics.sums import sum_floats

How = Literal["sum", "float sum", "max"]


class Term(NamedTuple):
    """A reduction over some axes of an array.

    The sum of floats is a `DoubleFloat`: of float64, where devices have it. The sum of booleans
    and integers is an int32 array, and may wrap. The maximum, of no NaN, has the dtype of the rows,
    and so has a "float sum", which is for few floats.
    """

    rows: jax.Array
    """Floats of 32 or 64 bits, integers or booleans, whose maximum says whether any is True."""
    axes: tuple[int, ...]
    """The axes to reduce, in order, and not negative."""
    how: How = "sum"


class Fold(NamedTuple):
    """A state that waits for sums and maxima over a batch."""

    terms: list[Term]
    finish: Callable[..., PyTree]
    """Takes the reduction of each term, and returns the state."""


def in_one_pass(*given: PyTree) -> list[PyTree]:
    """The states of several folds, of which all terms of one shape are reduced together.

    What is given but is no `Fold`, such as a state that waits for nothing, is returned as it is.
    """
    found = iter(reduced([term for x in given if isinstance(x, Fold) for term in x.terms]))
    return [x.finish(*[next(found) for _ in x.terms]) if isinstance(x, Fold) else x for x in given]


def reduced(terms: Sequence[Term]) -> list[PyTree]:
    """The reduction of each term."""
    found: list[PyTree] = [None] * len(terms)
    alike: dict[object, list[int]] = {}
    first: dict[object, int] = {}
    for i, term in enumerate(terms):
        rows, axes, how = term
        if first.setdefault((id(rows), axes, how), i) != i:
            continue  # several states often add up the same weights
        if not axes or on_host(rows) or (_is_sum_of_floats(term) and not _has_wide_sums()):
            found[i] = _alone(rows, axes, how)
        else:
            alike.setdefault((axes, rows.shape, *_layout(rows)), []).append(i)
    for (axes, *_), together in alike.items():  # type: ignore[misc]
        sums = [i for i in together if _is_sum_of_floats(terms[i])]
        # XLA for CPUs vectorises a reduction of a whole batch, if it has one sum of floats at most.
        apart = sums[1:] if 0 in axes else []
        for places in ([i for i in together if i not in apart], *([i] for i in apart)):
            hows: tuple[How, ...] = tuple(terms[i].how for i in places)
            outputs = _reduce(hows, axes, *(terms[i].rows for i in places))
            for i, x in zip(places, outputs, strict=True):
                found[i] = DoubleFloat.of_float64(x) if i in sums else x
    return [found[first[id(rows), axes, how]] for rows, axes, how in terms]


def sum_of_rows(x: DoubleFloat) -> DoubleFloat:
    """The sum of double-floats over the last axis."""
    axis = x.ndim - 1
    return reduced([Term(x.wide, (axis,))])[0] if adds_wide(x) else x.sum(axis)


def sums_of_rows(given: Sequence[DoubleFloat]) -> list[DoubleFloat]:
    """The sums of double-floats over the last axis, in one pass; of pairs, as by `sum_floats`."""
    if adds_wide(*given):
        return reduced([Term(x.wide, (x.ndim - 1,)) for x in given])
    return [
        x.sum() if is_one(x) else sum_floats(x.high, (x.ndim - 1,)) + xp.sum(x.low, -1)
        for x in given
    ]


def _is_sum_of_floats(term: Term) -> bool:
    return term.how == "sum" and xp.issubdtype(term.rows.dtype, xp.floating)


def _has_wide_sums() -> bool:
    """True if float64 holds the sums of floats: with x64, they are of float64 themselves."""
    return has_float64() and not jax.config.jax_enable_x64  # type: ignore[attr-defined]


def _alone(rows: jax.Array, axes: tuple[int, ...], how: How) -> PyTree:
    if how == "max":
        if rows.dtype == np.bool_:
            return xp.any(rows, axes)
        worst = -np.inf if xp.issubdtype(rows.dtype, xp.floating) else np.iinfo(rows.dtype).min
        return xp.max(rows, axes, initial=worst)
    if how == "float sum":
        return xp.sum(rows, axes)
    if not xp.issubdtype(rows.dtype, xp.floating):
        return xp.sum(rows, axes, dtype=xp.int32)
    if rows.dtype == np.float64 and _has_wide_sums():
        return DoubleFloat.of_float64(rows).sum(axes)
    return sum_floats(rows, axes)


def _layout(x: jax.Array) -> tuple[object, ...]:
    """The sharding and the axes over which an array varies: those of one reduction are equal."""
    if not isinstance(x, Tracer):
        return ()
    return jax.typeof(x).sharding, varying_axes(x)


def _reduce(
    hows: tuple[How, ...], axes: tuple[int, ...], *rows: jax.Array
) -> tuple[jax.Array, ...]:
    """One reduction: of floats, sums are in float64, and maxima of integers in the same order."""
    # JAX differentiates no reduction of several operands with a `lax.max`.
    reduce, changes = partial(_reduction, hows, axes), partial(_changes, hows, axes)
    return differentiable(reduce, changes, *rows)


def _reduction(
    hows: tuple[How, ...], axes: tuple[int, ...], *rows: jax.Array
) -> tuple[jax.Array, ...]:
    # Otherwise XLA evaluates the reduction of a constant, such as weights of one, when it compiles:
    # that takes 20 seconds for 500,000 numbers.
    rows = lax.optimization_barrier(rows)
    with elementary_in_x64():
        operands, starts = [], []
        for how, x in zip(hows, rows, strict=True):
            is_float = xp.issubdtype(x.dtype, xp.floating)
            if how == "max":
                # A maximum of floats is not vectorised; one of integers is.
                operand = to_key(x.astype(np.int32) if x.dtype == np.bool_ else x, has_nan=False)
                lowest = np.iinfo(operand.dtype)
                # The key of -inf: its bits are flipped, but for the sign.
                start = lowest.max ^ _bits(-np.inf, x.dtype) if is_float else lowest.min
            elif how == "float sum":
                operand, start = x, 0
            else:
                operand, start = x.astype(np.float64 if is_float else np.int32), 0
            operands.append(operand)
            is_wide = how == "sum" and is_float
            starts.append(float64_zero() if is_wide else np.asarray(start, operand.dtype))
        # XLA gives a reduction alone to a library for CPUs, and makes its operand an array.
        is_alone = len(rows) == 1
        if is_alone:
            operands.append((operands[0] == operands[0]).astype(np.int32))
            starts.append(np.int32(0))
        found = lax.reduce(
            tuple(operands),
            tuple(starts),
            lambda a, b: tuple(
                lax.max(p, q) if how == "max" else p + q
                for how, p, q in zip((*hows, "sum"), a, b, strict=False)
            ),
            axes,
        )
        if is_alone:  # the count is used, so that it stays
            found = [xp.where(found[1] >= 0, found[0], xp.zeros((), found[0].dtype))]
        return tuple(
            _of_key(y, x.dtype) if how == "max" else y
            for how, x, y in zip(hows, rows, found, strict=True)
        )


def _of_key(key: jax.Array, dtype: np.dtype) -> jax.Array:
    """The maximum whose key this is; that of no booleans is False."""
    return key > 0 if dtype == np.bool_ else from_key(key, dtype)


def _bits(x: float, dtype: np.dtype) -> int:
    return int(np.asarray(x, dtype).view(f"int{8 * dtype.itemsize}"))


def _changes(
    hows: tuple[How, ...], axes: tuple[int, ...], rows: list[jax.Array], changes: Changes
) -> tuple[tuple[jax.Array, ...], Changes]:
    """The `Derivative` of `_reduction`."""
    outputs = _reduce(hows, axes, *rows)
    found = []
    for how, x, y, dx in zip(hows, rows, outputs, changes, strict=True):
        if not xp.issubdtype(y.dtype, xp.floating):
            continue
        if dx is not None and how == "max":
            dx = dx * in_x64(partial(_shares, axes), x, y)
        with elementary_in_x64():
            found.append(None if dx is None else xp.sum(dx.astype(y.dtype), axes))
    return outputs, found


def _shares(axes: tuple[int, ...], x: jax.Array, y: jax.Array) -> jax.Array:
    """The share of each element in the maximum `y` of `x`: equal for several greatest ones."""
    share = (x == lax.expand_dims(y, axes)).astype(x.dtype)
    return share / xp.maximum(xp.sum(share, axes, keepdims=True), 1)
