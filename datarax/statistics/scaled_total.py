"""`ScaledTotal`: a sum of floats whose products and whose value may leave the range of a float."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Self, TypeVar

import jax
import numpy as np

from datarax._checks import default_float, is_integer
from datarax._typing import PyTree
from datarax._x64 import made_once
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.algebra.fold import Fold, Term, fold_of_products, in_one_pass, reduced
from datarax.algebra.leaf_state import ElementwiseState
from datarax.algebra.rows import Merging, Packed, RowTerms, Target, rows_last
from datarax.distributed.merge_ops import filled, zeros
from datarax.numerics.double_float import DoubleFloat, stack, where
from datarax.numerics.exact import Exact, exact
from datarax.numerics.scaled_double import NOTHING, ScaledDouble, scaled_by, scaled_power
from datarax.numerics.scaled_sums import (
    INFINITE,
    Total,
    float64_total,
    in_own_unit,
    plus,
    plus_total,
    plus_totals,
    products,
    scaled_part,
    stacked_totals,
)
from datarax.numerics.scaling import exponent_of, real_power, times_power_of_two
from datarax.statistics.moments import Parts, as_double

T = TypeVar("T", bound="ScaledTotal")
_FAR = 100  # an exponent up to which floats are far from overflow and underflow


class ScaledTotal(ElementwiseState, kw_only=False):
    """A sum of `w * x` for each element of `shape`: a double-float times a power of two.

    The power is that of the greatest summand so far, so that neither a product nor the sum
    overflows, and only summands that are negligible underflow. Sums of integers and booleans are
    exact to 2**48.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics.scaled_total import ScaledTotal, quotient
        >>> x, w = jnp.array([1e10, 3e10]), jnp.array([1e30, 1e30])
        >>> total, weight = ScaledTotal().of(x, w), ScaledTotal().of(w)
        >>> print(float(total.value), float(quotient(total, weight)))
        inf 20000000000.0
    """

    shape: tuple[int, ...] = ()

    parts: Parts | DoubleFloat = state()
    """A double-float: two arrays in a state, and a `DoubleFloat` within an update, see `of`."""
    exponent: jax.Array = state()
    """The sum is `parts * 2**exponent`."""

    def __post_init__(self) -> None:
        self.shape = tuple(self.shape)
        super().__post_init__()

    def empty(self) -> dict[str, PyTree]:
        return self.empty_of(self.shape)

    def empty_of(self, shape: tuple[int, ...]) -> dict[str, PyTree]:
        """The arrays of the empty state, of this shape."""
        zero = zeros(shape, default_float().name)
        return {"parts": (zero, zero), "exponent": filled(shape, "int32", NOTHING)}

    def of(self, x: jax.Array, w: jax.Array | None = None) -> Self:
        """The sum of `w * x` over a batch of shape (..., *shape).

        It is to be merged with `combine`, which splits the double-float into its two arrays.

        Args:
            x: numbers, which may be infinite; where `w` is zero, anything.
            w: booleans or floats, which broadcast against `x`; `None` for one.
        """
        axes = tuple(range(x.ndim - len(self.shape)))
        w = None if w is None else xp.broadcast_to(w, x.shape)
        # A sum of integers of 64 bits, or of fewer, is far from the ends of the range of floats.
        in_range = is_integer(x) and (w is None or w.dtype == np.bool_)
        of_total = partial(self._of_total, in_range=in_range)
        return in_one_pass(fold_of_products(((x, w),), axes, of_total))[0]

    def plus(self, *terms: tuple[jax.Array | ScaledDouble, jax.Array | None]) -> Fold | Self:
        """This stack of sums, with the sum of `w * x` of the i-th term added to the i-th sum.

        Equal to `combine(stack_totals([one.of(x, w), ...]))`, where `one` is an empty sum.
        """
        axes = tuple(range(terms[0][0].ndim - len(self.shape) + 1))
        return fold_of_products(terms, axes, self._plus_totals)

    def _of_total(self, total: Total, *, in_range: bool = False) -> Self:
        """One sum. `in_range`: it is known to be a float, though it may be given in float64."""
        return self._holding(*in_own_unit(total, in_range=in_range))

    def _plus_totals(self, *totals: Total) -> Self:
        """These sums with others added."""
        parts, exponent = plus_totals(self.parts, self.exponent, totals)
        return self.with_parts({"parts": parts, "exponent": exponent})

    def of_powers(self, x: jax.Array, power: float, w: jax.Array) -> Self:
        """The sum of `w * x**power` for `x >= 0` and any power of at least 1."""
        part, exponents = scaled_power(x, power)
        return self.of_scaled(xp.where(x > 0, part, 0), exponents, w)

    def of_scaled(self, part: jax.Array, exponents: jax.Array, w: jax.Array) -> Self:
        """The sum of `w * part * 2**exponents`; where `w` is zero, `part` may be anything."""
        axes = tuple(range(part.ndim - len(self.shape)))
        (total,) = reduced([Term(products(scaled_part(part, exponents), w), axes)])
        return self._of_total(total)

    def root(self, power: float) -> jax.Array:
        """The sum to the power of `1 / power`, of a sum that is not negative."""
        exponent = xp.asarray(self.exponent)
        sums = self.scaled.to_float()
        # (s * 2**e)**(1/p) is s**(1/p) * 2**whole * 2**(rest/p), with e = whole * p + rest, so that
        # the last factor is from 1 to 2.
        whole = xp.floor(exponent.astype(sums.dtype) / xp.asarray(power, sums.dtype))
        rest = DoubleFloat.of(exponent.astype(sums.dtype)) - DoubleFloat.of(whole) * float(power)
        part = xp.sqrt(sums) if power == 2 else real_power(sums, 1 / power)
        part = part * xp.exp2(rest.to_float() / xp.asarray(power, sums.dtype))
        return times_power_of_two(part, xp.where(sums > 0, whole, 0).astype(xp.int32))

    def _holding(self, parts: Parts | DoubleFloat, exponent: jax.Array) -> Self:
        return self.with_parts({"parts": parts, "exponent": exponent})

    def stored(self) -> Self:
        """The same sum with its double-float as two arrays, as a state holds it."""
        return self.with_parts({"parts": tuple(self.parts)})

    def in_unit(self, unit: jax.Array) -> Self:
        """The sum of numbers that are in units of `2**unit`."""
        exponent = xp.asarray(self.exponent)
        # An empty sum keeps the least exponent, or it would set the unit of a merge.
        unit = xp.where(self.scaled.high == 0, xp.int32(0), unit)
        return self._holding(self.scaled, exponent + unit)

    def __getitem__(self, index: int) -> "ScaledTotal":
        """One of several sums that are stacked."""
        high, low = (x[index] for x in self.parts)
        # A state of one shape is made once, and here only gets its arrays.
        return self.one().with_parts({"parts": (high, low), "exponent": self.exponent[index]})

    def one(self) -> "ScaledTotal":
        """An empty sum, of the shape of one of several sums that are stacked."""
        return _empty_total(self.shape[1:])

    @property
    def scaled(self) -> DoubleFloat:
        """The sum in units of `2**exponent`."""
        return as_double(self.parts)

    @property
    def number(self) -> ScaledDouble:
        """The sum as a number for formulas."""
        return ScaledDouble(self.scaled, xp.asarray(self.exponent))

    @property
    def double(self) -> DoubleFloat:
        """The sum as a double-float; infinite if it overflows."""
        return self.number.to_double()

    @property
    def ratio(self) -> jax.Array:
        """The quotient of two stacked sums, rounded once; NaN where the divisor is zero."""
        sums = self.number
        return (sums[0] / sums[1]).to_float()

    @property
    def value(self) -> jax.Array:
        """The sum, rounded to the default float."""
        return self.double.high

    @property
    def exact(self) -> jax.Array | Exact:
        """The sum without rounding: an `Exact` that holds both parts of the double-float."""
        return exact(self.double)

    def combine(self, other: "ScaledTotal") -> Self:
        return self._holding(*plus(self.parts, self.exponent, other.parts, other.exponent))

    def weighted_by(self, factor: ScaledDouble) -> Self:
        # In units of the power of the sum itself, so that it does not underflow however often it is
        # multiplied: a quotient of two sums stays what it is without new data.
        product, exponent = self.scaled * factor.double, xp.asarray(self.exponent)
        power = exponent_of(product.high)
        apart = product.map(lambda x: times_power_of_two(x, -power))
        moved = exponent + factor.exponent + power
        # So far below one that no later sum sees it; the exponent itself must not wrap.
        gone = (product.high == 0) | (moved < NOTHING // 4)
        apart = apart.map(lambda x: xp.where(gone, xp.zeros((), x.dtype), x))
        # An infinity has no significand, and stays infinite under any factor.
        stays = ~xp.isfinite(product.high)
        return self._holding(
            where(stays, product, apart),
            xp.where(stays, exponent, xp.where(gone, xp.int32(NOTHING), moved)),
        ).stored()

    def by_row(self, rows: int) -> "RowTotals":
        return _empty_total((*self.shape, rows), RowTotals)

    def plus_unscaled(self, total: DoubleFloat) -> Self:
        """The sum with double-floats added that are one array of float64."""
        return self._holding(*plus_total(self.parts, self.exponent, total))

    def canonical(self) -> Self:
        # The sum itself, if it is far from overflow; else its significand and its exponent.
        power = exponent_of(self.scaled.high)
        exponent = xp.asarray(self.exponent) + power
        # So equal sums have one form, whichever summand has set the unit.
        near = (self.scaled.high == 0) | (xp.abs(exponent) < _FAR)
        apart = self.scaled.map(lambda x: times_power_of_two(x, -power))
        exponent = xp.where(near, xp.int32(0), exponent)
        return self._holding(where(near, self.double, apart), exponent).stored()


class RowTotals(RowTerms, ScaledTotal):
    """Sums of each row by itself: the last axis of `shape` is the first axis of a batch."""

    def empty(self) -> dict[str, PyTree]:
        return self.empty_of(())

    @property
    def num_rows(self) -> int | None:
        shape = as_double(self.parts).shape
        return shape[-1] if shape else None

    def of(self, x: jax.Array, w: jax.Array | None = None) -> Self:
        w = None if w is None else rows_last(xp.broadcast_to(w, x.shape))
        return super().of(rows_last(x), w)

    def plus(self, *terms: tuple[jax.Array | ScaledDouble, jax.Array | None]) -> Fold | Self:
        def moved(x: Any) -> Any:
            return x.map(rows_last) if isinstance(x, ScaledDouble) else rows_last(x)

        return super().plus(*((moved(x), None if w is None else moved(w)) for x, w in terms))

    def combine(self, other: ScaledTotal) -> Self:
        # Neither an empty state nor `UnscaledTotals` has an exponent for each row.
        merged = super().combine(other)
        exponent = xp.broadcast_to(merged.exponent, merged.scaled.shape)
        return merged._holding(merged.parts, exponent)

    def one(self) -> "RowTotals":
        return _empty_total(self.shape[1:], RowTotals)

    def of_scaled(self, part: jax.Array, exponents: jax.Array, w: jax.Array) -> Self:
        return super().of_scaled(*map(rows_last, (part, exponents, w)))

    def _of_total(self, total: Total, *, in_range: bool = False) -> "RowTotals":
        wide = float64_total(total) if self.num_rows is None else None
        return super()._of_total(total, in_range=in_range) if wide is None else self._unscaled(wide)

    def _plus_totals(self, *totals: Total) -> "RowTotals":
        if self.num_rows is not None:
            return super()._plus_totals(*totals)
        total = stacked_totals(totals)
        if isinstance(total, DoubleFloat):
            return self._unscaled(total)
        return self._holding(*plus_total(self.parts, self.exponent, total))

    def _unscaled(self, total: DoubleFloat) -> "UnscaledTotals":
        unit = filled((), "int32", 0)
        empty = _empty_total(self.shape, UnscaledTotals)
        return empty.with_parts({"parts": total, "exponent": unit})

    def added_to(self, stacked: ScaledTotal, target: Target) -> Merging:
        # The rows of one state are added up in units of the greatest power among them, or more.
        exponents = xp.asarray(self.exponent)
        # An infinite row sets no unit: the bound may be one of all states, whose rows it would make
        # negligible. It is never scaled itself.
        of_numbers = xp.where(exponents < INFINITE, exponents, xp.int32(NOTHING))
        (top,) = yield Packed("bound", [of_numbers])
        top = xp.maximum(top, xp.int32(NOTHING))
        shift = xp.minimum(target.by_tag(exponents) - target.of_rows(top), 0)
        terms = scaled_by(target.by_tag(self.scaled), shift)
        # Asked second: only with the common unit are the terms numbers that can be added up.
        (total,) = yield target.apart("sum", [terms])
        top = xp.where(xp.isfinite(total.high), top, xp.int32(INFINITE))
        return stacked.combine(stacked._holding(total, top))


class UnscaledTotals(RowTotals):
    """Sums of each row in float64, which holds any product of float32 numbers: in units of 1."""

    @property
    def double(self) -> DoubleFloat:
        return self.scaled

    def __getitem__(self, index: int) -> "UnscaledTotals":
        return self.one()._unscaled(self.scaled[index])

    def added_to(self, stacked: ScaledTotal, target: Target) -> Merging:
        (total,) = yield Packed("sum", [self.scaled])
        return stacked.plus_unscaled(total)


def stack_totals(totals: Sequence[ScaledTotal]) -> ScaledTotal:
    """Several sums of one shape as one, along a new leading axis; they are merged at once."""
    parts = stack([total.scaled for total in totals])
    exponent = xp.stack([xp.broadcast_to(x.exponent, x.scaled.shape) for x in totals])
    return _empty_total((len(totals), *totals[0].shape))._holding(parts, exponent)


def sums_of_sums(totals: ScaledTotal, chosen: jax.Array) -> ScaledTotal:
    """Adds up sums: each result is the sum of those that a mask chooses.

    Args:
        totals: of shape (..., 1, n).
        chosen: a mask (..., m, n): which of the n sums are added up in each of the m results.
    """
    exponents = xp.where(chosen, xp.asarray(totals.exponent), xp.int32(NOTHING))
    top = xp.max(exponents, -1, initial=NOTHING)
    parts = totals.scaled.map(lambda x: xp.where(chosen, x, xp.zeros((), x.dtype)))
    # The power underflows to zero where a sum is negligible.
    total = scaled_by(parts, exponents - top[..., None]).sum((-1,))
    return ScaledTotal(top.shape).with_parts({"parts": tuple(total), "exponent": top})


def quotient(a: ScaledTotal, b: ScaledTotal) -> jax.Array:
    """The quotient of two sums, rounded once; NaN where the divisor is zero."""
    return (a.number / b.number).to_float()


@made_once
def _empty_total(shape: tuple[int, ...], cls: type[T] = ScaledTotal) -> T:
    """`ScaledTotal(shape)`, or that of a subclass."""
    return cls(shape)
