"""Ratios of two sums over rows: the terms of each row, and sums of their squares."""

import jax
import numpy as np

from datarax._typing import PyTree
from datarax._xp import on_host, vmap, xp
from datarax.algebra.pytrees import map_leaf_states
from datarax.algebra.rows import Target
from datarax.algebra.stack import Stack
from datarax.metric.arguments import Call
from datarax.metric.base import Metric
from datarax.metric.rows import adds_by_row, by_rows, kept_apart
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.scaling import exponent_of, nan_where, times_power_of_two

ScaledRatio = tuple[ScaledDouble, ScaledDouble]
"""A numerator and a denominator, each in units of its own power of two."""

_ROUNDED = 2.0**-46
"""How far a sum of squares, of which two parts are kept, may be off."""
_MOST_ROUNDED = 0.05
"""The most that a sum of squares may be off, relative to what it is."""

OUT_OF_RANGE = (
    "the values of rows are so large or so small that their squares leave the range of a float32, "
    "or so far from zero that weights hide their spread (subtract a number near all of them before "
    "the update), so there is no standard error"
)
"""Why a ratio whose value is known has no interval."""


def sum_of_squares(x: DoubleFloat) -> ScaledDouble:
    """The sum of squares along the first axis, in units in which no square overflows."""
    unit = exponent_of(xp.max(xp.abs(x.high), 0))
    scaled = x.map(lambda part: times_power_of_two(part, -unit[None]))
    return ScaledDouble((scaled * scaled).sum((0,)), unit + unit)


def corrected(error: jax.Array, n: jax.Array) -> jax.Array:
    """The standard error times sqrt(n / (n - 1)); NaN for fewer than 2 observations."""
    return nan_where(n < 2, error * xp.sqrt(n / xp.maximum(n - 1, 1)))


def scaled_ratio(metric: Metric) -> ScaledRatio:
    """The ratio of a metric, so scaled that the squares of its parts do not overflow."""

    def scaled(x: DoubleFloat) -> ScaledDouble:
        power = exponent_of(x.high)
        return ScaledDouble(x.map(lambda part: times_power_of_two(part, -power)), power)

    ratio: PyTree = metric.sampling().ratio()
    numerator, denominator = map(scaled, ratio)
    return numerator, denominator


def is_hidden(terms: ScaledDouble, squares: ScaledDouble) -> jax.Array:
    """True if a sum of squares may be mostly rounding, as a difference of terms of this size."""
    return (terms * _ROUNDED / squares).to_float() > _MOST_ROUNDED


def not_negative(x: DoubleFloat) -> DoubleFloat:
    """Zero where rounding has made a sum of squares negative."""
    return x.map(lambda part: xp.where(x.high < 0, xp.zeros((), part.dtype), part))


def hold_float64(calls: PyTree) -> bool:
    """True if an argument in a tree of calls is an array of float64."""
    arrays = np.ndarray | np.generic | jax.Array
    return any(isinstance(x, arrays) and x.dtype == np.float64 for x in jax.tree.leaves(calls))


def terms_of_rows(empty: Metric, call: Call, rows: int) -> PyTree:
    """The numerator and the denominator of each row, each with a leading axis of rows.

    Those of a group of rows, such as a query, stand at its first row; the others have zeros.
    """
    if rows and call.grouped:
        stack = Stack.of(empty, rows)
        each = Target(xp.arange(rows, dtype=xp.uint32), rows)
        stack = stack.holding(stack.states.apply_at(call, each))
        if not (empty.terms_by_row and on_host(*jax.tree.leaves(stack))):
            return stack.map(lambda one: one.sampling().ratio())
        # Formulas of metrics with terms of rows take a last axis of rows: a loop would take longer.
        last = jax.tree.map(lambda x: xp.moveaxis(x, 0, -1), stack.states)
        both: PyTree = last.sampling().ratio()
        return tuple(x.map(lambda part: xp.moveaxis(part, -1, 0)) for x in both)
    if rows and adds_by_row(empty, call):
        terms = kept_apart(empty, call, rows)
        terms = map_leaf_states(lambda states: [each.as_state() for each in states], terms)
        ratio: PyTree = terms.sampling().ratio()
        return [x.map(lambda part: xp.moveaxis(part, -1, 0)) for x in ratio]
    return vmap(lambda call: empty.apply(call).sampling().ratio())(by_rows(call, rows))
