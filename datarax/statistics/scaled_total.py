"""`ScaledTotal`: a sum of floats whose products and whose value may leave the range of a float."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Self, TypeVar

import jax
import numpy as np

from datarax._checks import default_float, is_integer, x64_enabled
from datarax._typing import Array, PyTree
from datarax._x64 import elementary_in_x64
from datarax._xp import all_finite, on_host, xp
from datarax.algebra.fields import state
from datarax.algebra.leaf_state import ElementwiseState
from datarax.algebra.one_pass import Fold, Rows, Term, reduced
from datarax.algebra.row_merge import Merging, Packed, RowTerms, Target, rows_last
from datarax.distributed.merge_ops import filled, zeros
from datarax.numerics import limbs
from datarax.numerics.double_float import DoubleFloat, split, stack, where
from datarax.numerics.exact import Exact, exact
from datarax.numerics.scaled_double import (
    NOTHING,
    ScaledDouble,
    scaled_by,
    scaled_power,
    unit_product,
)
from datarax.numerics.scaling import (
    exponent_of,
    power_of_two,
    real_power,
    times_power_of_two,
)
from datarax.statistics.moments import Parts, as_double

T = TypeVar("T", bound="ScaledTotal")
Total = ScaledDouble | DoubleFloat | jax.Array
"""A sum: in a unit of its own, a double-float, or a count."""
INFINITE = 2**20  # that of an infinite sum, above all others, so that it is never scaled to NaN
_MOST_COUNTED = 2**31  # a mask of fewer elements is added up as int32
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
        if on_host(x, w) and not x64_enabled():
            total = _host_sum(x, w, len(self.shape))
            if not all_finite(total) and x.dtype == np.float64:
                return self.emptied()._plus_on_host(*_scaled_host_sum(x, w, len(self.shape)))
            return self.emptied()._plus_on_host(total)
        axes = tuple(range(x.ndim - len(self.shape)))
        w = None if w is None else xp.broadcast_to(w, x.shape)
        (total,) = reduced([Term(_products(x, w), axes)])
        return self._of_total(total, in_range=is_integer(x) and (w is None or w.dtype == np.bool_))

    def plus(self, *terms: tuple[jax.Array | ScaledDouble, jax.Array | None]) -> Fold | Self:
        """This stack of sums, with the sum of `w * x` of the i-th term added to the i-th sum.

        Equal to `combine(stacked([one.of(x, w), ...]))`, where `one` is an empty sum.
        """
        shape = self.shape[1:]
        are_arrays = not any(isinstance(x, ScaledDouble) for x, _ in terms)
        if are_arrays and not x64_enabled() and on_host(*sum(terms, self.parts), self.exponent):
            total = np.array([_host_sum(*term, len(shape)) for term in terms])
            if all_finite(total):  # mostly
                return self._plus_on_host(total)
            found = [_scaled_host_sum(*term, len(shape)) for term in terms]
            return self._plus_on_host(*map(np.array, zip(*found, strict=True)))
        axes = tuple(range(terms[0][0].ndim - len(shape)))
        return Fold([Term(_products(*term), axes) for term in terms], self._plus_totals)

    def _of_total(self, total: Total, *, in_range: bool = False) -> Self:
        """One sum. `in_range`: it is known to be a float, though it may be given in float64."""
        number = _number(total)
        if in_range and isinstance(number, DoubleFloat):
            return self._holding(*_unscaled(number))
        return self._holding(*_scaled(number))

    def _plus_totals(self, *totals: Total) -> Self:
        """These sums with others added."""
        numbers = list(map(_number, totals))
        wide = [x.wide for x in numbers if isinstance(x, DoubleFloat) and x.is_one]
        if len(wide) == len(numbers):
            with elementary_in_x64():
                return self._plus_float64(xp.stack(wide))
        parts, exponents = zip(*map(_scaled, numbers), strict=True)
        exponents = [xp.broadcast_to(x, p.shape) for p, x in zip(parts, exponents, strict=True)]
        return self.combine(self._holding(stack(parts), xp.stack(exponents)))

    def _plus_float64(self, total: jax.Array) -> Self:
        parts = self.scaled
        with elementary_in_x64():
            usable, exponent = _exponent_of_float64(total)
            own = xp.asarray(self.exponent)
            top = xp.maximum(own, exponent)
            # The power underflows to zero where a sum is negligible.
            total = parts.wide * power_of_two(own - top, np.float64) + total * power_of_two(
                xp.where(usable, -top, xp.int32(0)), np.float64
            )
            return self.with_parts({"parts": split(total), "exponent": top})

    def of_powers(self, x: jax.Array, power: float, w: jax.Array) -> Self:
        """The sum of `w * x**power` for `x >= 0` and any power of at least 1."""
        part, exponents = scaled_power(x, power)
        return self.of_scaled(xp.where(x > 0, part, 0), exponents, w)

    def of_scaled(self, part: jax.Array, exponents: jax.Array, w: jax.Array) -> Self:
        """The sum of `w * part * 2**exponents`; where `w` is zero, `part` may be anything."""
        axes = tuple(range(part.ndim - len(self.shape)))
        (total,) = reduced([Term(_products(scaled_part(part, exponents), w), axes)])
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

    def _holding(self, total: DoubleFloat, exponent: jax.Array) -> Self:
        return self.with_parts({"parts": total, "exponent": exponent})

    def stored(self) -> Self:
        """The same sum with its double-float as two arrays, as a state holds it."""
        return self.with_parts({"parts": tuple(self.parts)})

    def in_unit(self, unit: jax.Array) -> Self:
        """The sum of numbers that are in units of `2**unit`."""
        exponent = xp.asarray(self.exponent)
        unit = xp.where(self.scaled.high == 0, xp.int32(0), unit)
        return self._holding(self.scaled, exponent + unit)

    def __getitem__(self, index: int) -> "ScaledTotal":
        """One of several sums that are stacked."""
        high, low = (x[index] for x in self.parts)
        return self.one().with_parts({"parts": (high, low), "exponent": self.exponent[index]})

    def one(self) -> "ScaledTotal":
        """An empty sum, of the shape of one of several sums that are stacked."""
        return _empty_total(self.shape[1:], x64_enabled())

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
    def value(self) -> jax.Array:
        """The sum, rounded to the default float."""
        return self.double.high

    @property
    def exact(self) -> jax.Array | Exact:
        """The sum without rounding: an `Exact` that holds both parts of the double-float."""
        return exact(self.double)

    def combine(self, other: "ScaledTotal") -> Self:
        if on_host(self.parts, self.exponent, other.parts, other.exponent) and not x64_enabled():
            high, low = other.parts
            x = np.add(high, low, dtype=np.float64)
            return self._plus_on_host(x, other.exponent)
        a, b = xp.asarray(self.exponent), xp.asarray(other.exponent)
        # The power underflows to zero where the lower sum is negligible.
        x, y = (
            scaled_by(each.scaled, xp.minimum(e, 0)) for each, e in ((self, a - b), (other, b - a))
        )
        return self._holding(x + y, xp.maximum(a, b)).stored()

    def _plus_on_host(self, x: Array, unit: Array | None = None) -> Self:
        """The sum with `x * 2**unit` added, in NumPy."""
        high, low = self.parts
        # Two float32 are exactly one float64. Both summands are scaled to the greater exponent,
        # where what underflows is negligible.
        own = np.add(high, low, dtype=np.float64)
        part, exponent = np.frexp(x)
        if unit is not None:
            exponent = exponent + unit
        if np.count_nonzero(part) < part.size:
            # A zero has the least exponent: it must not change the unit of the other summand.
            exponent = np.where(part == 0, np.int32(NOTHING), exponent)
        if not all_finite(part):
            exponent = np.where(np.isfinite(part), exponent, np.int32(INFINITE))
        top = np.maximum(self.exponent, exponent)
        total: Any = np.ldexp(own, self.exponent - top) + np.ldexp(part, exponent - top)
        return self.with_parts({"parts": split(total), "exponent": top})

    def weighted_by(self, factor: ScaledDouble) -> Self:
        # In units of the power of the sum itself, so that it does not underflow however often it is
        # multiplied: a quotient of two sums stays what it is without new data.
        product, exponent = self.scaled * factor.double, xp.asarray(self.exponent)
        power = exponent_of(product.high)
        apart = product.map(lambda x: times_power_of_two(x, -power))
        moved = exponent + factor.exponent + power
        gone = (product.high == 0) | (moved < NOTHING // 4)
        apart = apart.map(lambda x: xp.where(gone, xp.zeros((), x.dtype), x))
        stays = ~xp.isfinite(product.high)
        return self._holding(
            where(stays, product, apart),
            xp.where(stays, exponent, xp.where(gone, xp.int32(NOTHING), moved)),
        ).stored()

    def by_row(self, rows: int) -> "RowTotals":
        return _empty_total((*self.shape, rows), x64_enabled(), RowTotals)

    def plus_unscaled(self, total: DoubleFloat) -> Self:
        """The sum with double-floats added that are one array of float64."""
        if total.is_on_host and on_host(self):
            return self._plus_on_host(total.wide)
        return self._plus_float64(total.wide)

    def canonical(self) -> Self:
        # The sum itself, if it is far from overflow; else its significand and its exponent.
        power = exponent_of(self.scaled.high)
        exponent = xp.asarray(self.exponent) + power
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

    def one(self) -> "RowTotals":
        return _empty_total(self.shape[1:], x64_enabled(), RowTotals)

    def of_scaled(self, part: jax.Array, exponents: jax.Array, w: jax.Array) -> Self:
        return super().of_scaled(*map(rows_last, (part, exponents, w)))

    def _plus_on_host(self, x: Any, unit: Array | None = None) -> "RowTotals":
        if unit is None and self.num_rows is None:
            return self._unscaled(DoubleFloat.of_float64(x))
        return super()._plus_on_host(x, unit)

    def _plus_float64(self, total: jax.Array) -> "RowTotals":
        if self.num_rows is None:
            return self._unscaled(DoubleFloat.of_float64(total))
        return super()._plus_float64(total)

    def _unscaled(self, total: DoubleFloat) -> "UnscaledTotals":
        unit = filled((), "int32", 0)
        empty = _empty_total(self.shape, x64_enabled(), UnscaledTotals)
        return empty.with_parts({"parts": total, "exponent": unit})

    def added_to(self, stacked: ScaledTotal, target: Target) -> Merging:
        # The rows of one state are added up in units of the greatest power among them, or more.
        exponents = xp.asarray(self.exponent)
        (top,) = yield Packed("bound", [exponents])
        top = xp.maximum(top, xp.int32(NOTHING))
        shift = xp.minimum(target.by_tag(exponents) - target.of_rows(top), 0)
        terms = scaled_by(target.by_tag(self.scaled), shift)
        (total,) = yield target.apart("sum", [terms])
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


def _host_sum(x: Any, w: Array | None, axes: int) -> np.ndarray:
    """The sum of `w * x` over all but the last `axes` axes, in NumPy.

    The products of float32 numbers, and any sum of them, are in the range of float64.
    """
    if w is not None:
        if np.count_nonzero(w) < w.size:
            x = np.where(w, x, 0)
        x = x if w.dtype == np.bool_ else np.multiply(x, w, dtype=np.float64)
    if x.dtype == np.bool_ and not axes:
        return np.float64(np.count_nonzero(x))  # type: ignore[return-value]
    over = tuple(range(x.ndim - axes))
    return np.add.reduce(x, over, np.float64) if over else x.astype(np.float64)


def _scaled_host_sum(x: Any, w: Array | None, axes: int) -> tuple[np.ndarray, np.ndarray]:
    """`_host_sum` and the exponent of its unit, in which no sum of float64 overflows."""
    exponent = 0
    if x.dtype == np.float64:
        greatest = np.max(np.abs(x), initial=0, where=np.isfinite(x))
        exponent = int(np.frexp(greatest)[1])
        x = np.ldexp(x, -exponent)
    total = _host_sum(x, w, axes)
    return total, np.full(np.shape(total), exponent, np.int32)


def _products(x: Any, w: Any) -> Rows:
    """The products `w * x` without rounding; 0 where `w` is zero. Or a mask.

    In float64, which has the range of the products of float32 numbers, or in units of their own.
    The numbers may be in float64 already.
    """
    is_mask = w is None or w.dtype == np.bool_
    if isinstance(x, ScaledDouble):
        x = x if w is None else x.where(w.astype(xp.bool_))
    elif x.dtype == np.bool_ and is_mask and x.size < _MOST_COUNTED:
        return x if w is None else x & w
    else:
        x = limbs.as_double(x)
        if w is not None:
            some = w.astype(xp.bool_)
            x = x.map(lambda part: xp.where(some, part, xp.zeros((), part.dtype)))
    if isinstance(x, DoubleFloat) and not x.is_one:
        return unit_product(x, None if is_mask else w)
    if w is None or is_mask:
        return x
    if isinstance(x, DoubleFloat) or x.double.is_one:
        return x * w
    return x * unit_product(w)


def _number(total: Total) -> ScaledDouble | DoubleFloat:
    return total if isinstance(total, ScaledDouble | DoubleFloat) else limbs.as_double(total)


def _scaled(total: ScaledDouble | DoubleFloat) -> tuple[DoubleFloat, jax.Array]:
    """A sum in units of a power of two, in which it is a float, and the exponent of the unit."""
    number, unit = (total.double, total.exponent) if isinstance(total, ScaledDouble) else (total, 0)
    if number.is_one:
        with elementary_in_x64(number.wide):
            usable, exponent = _exponent_of_float64(number.wide)
            power = power_of_two(xp.where(usable, -exponent, xp.int32(0)), np.float64)
            return DoubleFloat.of_float64(number.wide * power), exponent + unit
    if not isinstance(total, ScaledDouble):
        return _unscaled(number)
    # An infinite sum is above all others, so that it is never scaled to NaN.
    return number, xp.where(xp.isfinite(number.high), unit, xp.int32(INFINITE))


def _unscaled(total: DoubleFloat) -> tuple[DoubleFloat, jax.Array]:
    # A sum of nothing but zeros must not change the unit of a sum that it is added to.
    return total, xp.where(total.high == 0, xp.int32(NOTHING), xp.int32(0))


def _exponent_of_float64(total: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where sums in float64 have an exponent of their own, and those of all."""
    usable = xp.isfinite(total) & (total != 0)
    special = xp.where(total == 0, xp.int32(NOTHING), xp.int32(INFINITE))
    return usable, xp.where(usable, exponent_of(total), special)


def scaled_part(part: jax.Array, exponents: jax.Array) -> ScaledDouble:
    """`part * 2**exponents`, with parts in float64, or of about 1."""
    number = DoubleFloat.of(part)
    if number.is_one:
        return ScaledDouble(number, xp.where(part != 0, exponents, xp.int32(NOTHING)))
    number = unit_product(part)
    return ScaledDouble(number.double, number.exponent + exponents)


def stacked(totals: Sequence[ScaledTotal]) -> ScaledTotal:
    """Several sums of one shape as one, along a new leading axis; they are merged at once."""
    parts = stack([total.scaled for total in totals])
    exponent = xp.stack([xp.broadcast_to(x.exponent, x.scaled.shape) for x in totals])
    return _empty_total((len(totals), *totals[0].shape), x64_enabled())._holding(parts, exponent)


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


@lru_cache(maxsize=4096)
def _empty_total(shape: tuple[int, ...], x64: bool, cls: type[T] = ScaledTotal) -> T:
    """`ScaledTotal(shape)`, or that of a subclass, made once: with x64 it has another dtype."""
    return cls(shape)
