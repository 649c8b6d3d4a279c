"""One pass over a batch: what several states add up of its rows is reduced together.

A reduction that a compiler fuses with what makes its operand reads the batch again for each
reduction, and is not vectorised. One `lax.reduce` of many operands reads it once. So a state says
what is to be added up, in a `Fold`, and `in_one_pass` reduces the terms of many states at once.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from datarax._checks import x64_enabled
from datarax._platform import float64_zero
from datarax._typing import PyTree
from datarax._x64 import Changes, differentiable, elementary_in_x64, in_x64
from datarax._xp import lax, on_host, xp
from datarax.distributed.collectives import from_key, to_key, varying_axes
from datarax.numerics import pairs
from datarax.numerics.double_float import (
    DoubleFloat,
    FiniteDouble,
    greater,
    greatest_on_host,
    greatest_with,
    has_float64,
    is_one,
)
from datarax.numerics.scaled_double import NOTHING, ScaledDouble, add_scaled
from datarax.numerics.scaled_sums import products, sum_on_host
from datarax.numerics.scaling import power_of_two, scaled_to_one
from datarax.numerics.sums import sum_doubles, sum_floats

How = Literal["sum", "float sum", "max"]
Rows = jax.Array | DoubleFloat | ScaledDouble
Numbers = tuple[jax.Array, ...]
Hows = tuple[tuple[How | Literal["finite sum"], int], ...]
"""How each term is reduced, and the number of its arrays; "finite sum" of a `FiniteDouble`."""


class Term(NamedTuple):
    """A reduction over some axes of numbers.

    The sum of floats is a `DoubleFloat`: of float64, where programs have it. That of a
    `ScaledDouble` is one. The sum of booleans and integers is an int32 array, and may wrap. The
    maximum, of no NaN, has the dtype of the rows, and so has a "float sum", which is for few
    floats.
    """

    rows: Rows
    """Floats of 32 or 64 bits, integers or booleans, whose maximum says whether any is True; or
    double-floats, which are to be added up."""
    axes: tuple[int, ...]
    """The axes to reduce, in order, and not negative."""
    how: How = "sum"


class Fold(NamedTuple):
    """A state that waits for sums and maxima over a batch."""

    terms: list[Term]
    finish: Callable[..., PyTree]
    """Takes the reduction of each term, and returns the state."""


def fold_of_products(
    terms: tuple[tuple[jax.Array | ScaledDouble, jax.Array | None], ...],
    axes: tuple[int, ...],
    finish: Callable[..., PyTree],
) -> Fold | PyTree:
    """The fold of the sums of `w * x` over axes, or on the host its result: see `scaled_sums`.

    Args:
        terms: numbers `x`, which may be infinite; where `w` is zero, anything. And weights `w`:
            booleans or floats, which broadcast against `x`; `None` for one.
        axes: the axes to reduce, in order, and not negative.
        finish: as that of a `Fold`.
    """
    if on_host(*sum(terms, ())) and not x64_enabled():
        found: list[PyTree] = []
        for x, w in terms:
            if isinstance(x, ScaledDouble):
                break
            # In NumPy there is no pass to share with other states, so the sum is computed at once.
            found.append(sum_on_host(x, w, axes))
        else:
            return finish(*found)
    return Fold([Term(products(*term), axes) for term in terms], finish)


def fold_of_greatest(
    held: pairs.Pair,
    x: DoubleFloat,
    counts: jax.Array,
    axes: tuple[int, ...],
    finish: Callable[[pairs.Pair], PyTree],
    *,
    is_float: bool,
) -> Fold | PyTree:
    """The fold of the greatest of double-floats, see `greatest_with`; on the host its result.

    That of floats, which have no low part, is reduced with other terms.
    """
    is_here = x.is_on_host and on_host(counts)
    if is_here and not x64_enabled():
        return finish(greatest_on_host(held, x.wide, counts, axes))
    if is_here or not is_float:
        return finish(greatest_with(held, x, counts, axes))

    def finished(high: jax.Array) -> PyTree:
        return finish(greater(held, (high, xp.zeros_like(high))))

    least = xp.asarray(-xp.inf, x.dtype)
    return Fold([Term(xp.where(counts, x.high, least), axes, "max")], finished)


def in_one_pass(*given: PyTree) -> list[PyTree]:
    """The states of several folds, of which all terms of one shape are reduced together.

    What is given but is no `Fold`, such as a state that waits for nothing, is returned as it is.
    """
    found = iter(reduced([term for x in given if isinstance(x, Fold) for term in x.terms]))
    return [x.finish(*islice(found, len(x.terms))) if isinstance(x, Fold) else x for x in given]


def reduced(terms: Sequence[Term]) -> list[PyTree]:
    """The reduction of each term."""
    found: list[PyTree] = [None] * len(terms)
    given: dict[int, Numbers] = {}
    alike: dict[object, list[int]] = {}
    first: dict[object, int] = {}
    for i, (rows, axes, how) in enumerate(terms):
        # By identity, which is safe because `terms` holds the arrays. Values could not be compared
        # in a program.
        if first.setdefault((id(rows), axes, how), i) != i:
            continue  # several states often add up the same weights
        arrays = _arrays(rows, how)
        if not axes or _is_apart(arrays[0], rows, how):
            found[i] = _alone(rows, axes, how)
        else:
            given[i] = arrays
            # One reduction takes operands of one shape, which are sharded alike.
            alike.setdefault((axes, arrays[0].shape, *_layout(arrays[0])), []).append(i)
    for (axes, *_), together in alike.items():  # type: ignore[misc]
        # XLA for CPUs vectorises a reduction of a whole batch, if it has one sum of floats at most.
        wide = [i for i in together if _is_float_sum(*terms[i]) and len(given[i]) == 1]
        apart = wide[1:] if 0 in axes else []
        for places in ([i for i in together if i not in apart], *([i] for i in apart)):
            hows: Hows = tuple((_way(terms[i]), len(given[i])) for i in places)
            operands = chain.from_iterable(map(given.__getitem__, places))
            outputs = iter(_reduce(hows, axes, *operands))
            for i in places:
                found[i] = _result(terms[i], *islice(outputs, len(given[i])))
    return [found[first[id(rows), axes, how]] for rows, axes, how in terms]


def sum_of_rows(x: DoubleFloat) -> DoubleFloat:
    """The sum of double-floats over the last axis."""
    return sums_of_rows([x])[0]


def sums_of_rows(given: Sequence[DoubleFloat]) -> list[DoubleFloat]:
    """The sums of several double-floats over the last axis, in one pass."""
    return reduced([Term(x, (x.ndim - 1,)) for x in given])


def sums_of_products(x: jax.Array, y: jax.Array) -> list[Any]:
    """Over the last axis, the sums of `x * y`, of `x * x` and of `y * y`, of floats.

    They are in float64, in which no product of float32 over- or underflows: double-floats, or on
    the host arrays. Else they are `ScaledDouble`s of products that are rounded.
    """
    along = (x.ndim - 1,)
    if not is_one(x):
        (x, unit, _), (y, other, _) = scaled_to_one(x), scaled_to_one(y)
        given = (x * y, unit + other), (x * x, unit + unit), (y * y, other + other)
        low = xp.zeros_like(x)
        return reduced([Term(ScaledDouble(DoubleFloat(p, low).finite, e), along) for p, e in given])
    if on_host(x, y):  # of 10,000 rows of 64 numbers 0.7 ms, not 6
        return [xp.vecdot(a, b) for a, b in ((x, y), (x, x), (y, y))]
    a, b = DoubleFloat.of(x), DoubleFloat.of(y)
    return reduced([Term(product.wide, along) for product in (a * b, a * a, b * b)])


def _is_float_sum(rows: Rows, axes: tuple[int, ...], how: How) -> bool:
    is_array = not isinstance(rows, DoubleFloat | ScaledDouble)
    return how == "sum" and not (is_array and not xp.issubdtype(rows.dtype, xp.floating))


def _arrays(rows: Rows, how: How) -> Numbers:
    """The arrays of which a term is reduced: several where a program has no float64."""
    if isinstance(rows, ScaledDouble):
        parts = (rows.double.wide,) if rows.double.is_one else tuple(rows.double)
        return *parts, rows.exponent
    if isinstance(rows, DoubleFloat):
        return (rows.wide,) if rows.is_one else tuple(rows)
    if _is_float_sum(rows, (), how) and not is_one(rows) and rows.dtype != np.float64:
        return rows, xp.zeros_like(rows)
    return (rows,)


def _way(term: Term) -> How | Literal["finite sum"]:
    rows = term.rows.double if isinstance(term.rows, ScaledDouble) else term.rows
    return "finite sum" if isinstance(rows, FiniteDouble) else term.how


def _is_apart(array: jax.Array, rows: Rows, how: How) -> bool:
    """True for what is reduced alone: on the host, and by two vectorised passes of float64.

    A reduction of pairs of float64 takes 36 ms of a million numbers on a CPU, and these passes 8.
    """
    if isinstance(rows, ScaledDouble) and rows.double.is_one:
        return True
    return on_host(array) or (x64_enabled() and _is_float_sum(rows, (), how))


def _alone(rows: Rows, axes: tuple[int, ...], how: How) -> PyTree:
    if isinstance(rows, DoubleFloat | ScaledDouble):
        if not axes:
            return rows
        return rows.sum(axes) if isinstance(rows, ScaledDouble) else sum_doubles(rows, axes)
    if how == "max":
        if rows.dtype == np.bool_:
            return xp.any(rows, axes)
        worst = -np.inf if xp.issubdtype(rows.dtype, xp.floating) else np.iinfo(rows.dtype).min
        return xp.max(rows, axes, initial=worst)
    if how == "float sum":
        return xp.sum(rows, axes)
    if not xp.issubdtype(rows.dtype, xp.floating):
        return xp.sum(rows, axes, dtype=xp.int32)
    if rows.dtype == np.float64 and not x64_enabled():
        # Float64 of the host: its sum is kept in both parts of a double-float.
        return DoubleFloat.of_float64(rows).sum(axes)
    return sum_floats(rows, axes)


def _result(term: Term, *arrays: jax.Array) -> PyTree:
    """The reduction of a term, from those of its arrays."""
    if isinstance(term.rows, ScaledDouble):
        return ScaledDouble(type(term.rows.double)(*arrays[:2]), arrays[2])
    if not _is_float_sum(*term):
        return arrays[0]
    cls = type(term.rows) if isinstance(term.rows, DoubleFloat) else DoubleFloat
    return cls.of_float64(*arrays) if len(arrays) == 1 else cls(*arrays)


def _layout(x: jax.Array) -> tuple[object, ...]:
    """The sharding and the axes over which an array varies: those of one reduction are equal."""
    if not isinstance(x, Tracer):
        return ()
    return jax.typeof(x).sharding, varying_axes(x)


def _reduce(hows: Hows, axes: tuple[int, ...], *rows: jax.Array) -> Numbers:
    """One reduction: sums of floats are in float64 or in pairs of floats."""
    # JAX differentiates no reduction of several operands with a `lax.max`.
    reduce, changes = partial(_reduction, hows, axes), partial(_changes, hows, axes)
    return differentiable(reduce, changes, *rows)


def _each(hows: Hows, *arrays: Sequence[PyTree]) -> Iterator[tuple[str, list[PyTree]]]:
    """Each term, with its part of each of several sequences."""
    start = 0
    for how, count in hows:
        yield how, [*map(itemgetter(slice(start, start + count)), arrays)]
        start += count


def _reduction(hows: Hows, axes: tuple[int, ...], *rows: jax.Array) -> Numbers:
    is_fused = not has_float64()
    if not is_fused:
        # Else XLA fuses what makes the operands into the reduction, which then is not vectorised.
        rows = lax.optimization_barrier(rows)
    with elementary_in_x64():
        operands, starts = [], []
        for how, (given,) in _each(hows, rows):
            for x, start in zip(*_operands(how, given), strict=True):
                operands.append(x)
                is_wide = how == "sum" and x.dtype == np.float64
                starts.append(float64_zero() if is_wide else np.asarray(start, x.dtype))
        # XLA gives a reduction alone to a library for CPUs, and makes its operand an array.
        is_alone = len(rows) == 1
        if is_alone:
            operands.append((operands[0] == operands[0]).astype(np.int32))
            starts.append(np.int32(0))
        ways: Hows = (*hows, ("sum", 1)) if is_alone else hows

        def join(a: Numbers, b: Numbers) -> Numbers:
            joined: list[jax.Array] = []
            for how, both in _each(ways, a, b):
                joined += _joined(how, *both)
            return tuple(joined)

        # Without a barrier XLA evaluates the reduction of a constant, such as weights of one, when
        # it compiles: that takes 20 seconds for 500,000 numbers. XLA for TPUs makes arrays of what
        # is behind a barrier, so there it is before what the sums start from.
        first = lax.optimization_barrier(tuple(starts)) if is_fused else tuple(starts)
        found = lax.reduce(tuple(operands), first, join, axes)
        if is_alone:  # the count is used, so that it stays
            found = [xp.where(found[1] >= 0, found[0], xp.zeros((), found[0].dtype))]
        results: list[jax.Array] = []
        for how, (given, got) in _each(hows, rows, found):
            results += [_of_key(got[0], given[0].dtype)] if how == "max" else got
        return tuple(results)


def _operands(how: str, rows: Numbers) -> tuple[Numbers, tuple[float, ...]]:
    """What is reduced for a term, and what it starts from."""
    x, *rest = rows
    if rest:
        return rows, (0, 0, NOTHING)[: len(rows)]
    is_float = xp.issubdtype(x.dtype, xp.floating)
    if how == "max":
        # A maximum of floats is not vectorised; one of integers, in the same order, is.
        key = to_key(x.astype(np.int32) if x.dtype == np.bool_ else x, has_nan=False)
        lowest = np.iinfo(key.dtype)
        # The key of -inf: its bits are flipped, but for the sign.
        return (key,), (lowest.max ^ _bits(-np.inf, x.dtype) if is_float else lowest.min,)
    if how == "float sum":
        return rows, (0,)
    return (x.astype(np.float64 if is_float else np.int32),), (0,)


def _joined(how: str, a: PyTree, b: PyTree) -> Numbers:
    if how == "max":
        return (lax.max(*a, *b),)
    if len(a) == 1:
        return (a[0] + b[0],)
    add = pairs.add_finite if how == "finite sum" else pairs.add
    return add(a, b) if len(a) == 2 else add_scaled(a, b, add)


def _of_key(key: jax.Array, dtype: np.dtype) -> jax.Array:
    """The maximum whose key this is; that of no booleans is False."""
    return key > 0 if dtype == np.bool_ else from_key(key, dtype)


def _bits(x: float, dtype: np.dtype) -> int:
    return int(np.asarray(x, dtype).view(f"int{8 * dtype.itemsize}"))


def _changes(
    hows: Hows, axes: tuple[int, ...], rows: list[jax.Array], changes: Changes
) -> tuple[Numbers, Changes]:
    """The `Derivative` of `_reduction`."""
    outputs = _reduce(hows, axes, *rows)
    found: list[jax.Array | None] = []
    for how, (given, got, moved) in _each(hows, rows, outputs, changes):
        unit = None
        if len(given) == 3:  # the sum is in another unit
            apart = given[2] - lax.expand_dims(got[2], axes)
            unit = power_of_two(apart, got[0].dtype)
        for x, y, dx in zip(given, got, moved, strict=True):
            if not xp.issubdtype(y.dtype, xp.floating):
                continue
            if dx is not None and how == "max":
                # As in JAX, several greatest elements share the derivative of a maximum.
                dx = dx * in_x64(partial(_shares, axes), x, y)
            if dx is not None and unit is not None:
                dx = dx * unit
            with elementary_in_x64():
                found.append(None if dx is None else xp.sum(dx.astype(y.dtype), axes))
    return outputs, found


def _shares(axes: tuple[int, ...], x: jax.Array, y: jax.Array) -> jax.Array:
    """The share of each element in the maximum `y` of `x`: equal for several greatest ones."""
    share = (x == lax.expand_dims(y, axes)).astype(x.dtype)
    return share / xp.maximum(xp.sum(share, axes, keepdims=True), 1)
