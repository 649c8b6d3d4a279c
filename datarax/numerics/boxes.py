"""Overlap of boxes `x1, y1, x2, y2`, in double-floats."""

import math
from typing import NamedTuple, Self

import jax

from datarax._xp import xp
from datarax.numerics.double_float import DoubleFloat, where
from datarax.numerics.limbs import as_double
from datarax.numerics.scaling import power_of_two_near_reciprocal


class PairSizes(NamedTuple):
    """Widths and heights of pairs of boxes, each (..., 2): a quarter of them, or in other units."""

    first: DoubleFloat
    second: DoubleFloat
    common: DoubleFloat
    """The size of the intersection: zero along an axis on which they do not overlap."""
    around: DoubleFloat
    """The size of the smallest box that holds both."""
    apart: DoubleFloat
    """The distance from the centre of the second box to that of the first."""

    @classmethod
    def of(cls, first: jax.Array, second: jax.Array) -> Self:
        """The sizes of pairs of boxes (..., 4) of any dtypes; their shapes broadcast.

        Differences of integers are not rounded, and differences of floats do not overflow.
        """
        # A quarter of each, so that no difference overflows.
        a, b = (as_double(x) * 0.25 for x in (first, second))
        a_low, a_high, b_low, b_high = a[..., :2], a[..., 2:], b[..., :2], b[..., 2:]
        low, high = _greater(a_low, b_low), _less(a_high, b_high)
        return cls(
            a_high - a_low,
            b_high - b_low,
            _greater(low, high) - low,
            _greater(a_high, b_high) - _less(a_low, b_low),
            (a_low - b_low + (a_high - b_high)) * 0.5,
        )

    def scaled(self, *, by_axis: bool) -> Self:
        """In units in which the box around both is at most 1 wide and high, and so is no product.

        A unit for each axis, which changes no ratio of areas; or one for both axes, which changes
        no angle either.
        """
        unit = _unit(self.around, by_axis=by_axis)
        return type(self)(*(x * unit for x in self))


def _greater(a: DoubleFloat, b: DoubleFloat) -> DoubleFloat:
    return where(a < b, b, a)


def _less(a: DoubleFloat, b: DoubleFloat) -> DoubleFloat:
    return where(a < b, a, b)


def product(sizes: DoubleFloat) -> DoubleFloat:
    """Width times height: sizes (..., 2) become areas (...)."""
    return sizes[..., 0] * sizes[..., 1]


def ratio(part: DoubleFloat, whole: DoubleFloat) -> DoubleFloat:
    """`part / whole`, 0 where the whole is zero."""
    some = whole > 0
    zero = whole * 0
    return where(some, part / where(some, whole, zero + 1), zero)


def intersection_over_union(sizes: PairSizes) -> DoubleFloat:
    """The area of the intersection over that of the union; 0 where the union has no area.

    The sizes must have a unit for each axis, from `scaled`.
    """
    common = product(sizes.common)
    return ratio(common, product(sizes.first) + product(sizes.second) - common)


class Overlaps(NamedTuple):
    """Measures of pairs of boxes, each (...)."""

    iou: DoubleFloat
    giou: DoubleFloat
    diou: DoubleFloat
    ciou: DoubleFloat

    @classmethod
    def of(cls, sizes: PairSizes) -> Self:
        """All measures: see the metrics of these names."""
        by_axis = sizes.scaled(by_axis=True)
        iou, around = intersection_over_union(by_axis), product(by_axis.around)
        union = product(by_axis.first) + product(by_axis.second) - product(by_axis.common)
        diou = iou - _distance(sizes.scaled(by_axis=False))
        angle = _angle(sizes)
        v = angle * angle
        return cls(iou, iou - ratio(around - union, around), diou, diou - ratio(v * v, v - iou + 1))


def _distance(sizes: PairSizes) -> DoubleFloat:
    """The squared distance of the centres over the squared diagonal around both boxes."""
    return ratio((sizes.apart * sizes.apart).sum(-1), (sizes.around * sizes.around).sum(-1))


def _angle(sizes: PairSizes) -> DoubleFloat:
    """The difference of both angles atan(w / h), over a right angle."""
    a, b = (x * _unit(x, by_axis=False) for x in (sizes.first, sizes.second))
    # The tangent of a difference: no digits cancel where both angles are nearly equal.
    across = a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    angle = xp.arctan2(across.to_float(), (a * b).sum(-1).to_float())
    return DoubleFloat.of(angle) * (2 / math.pi)


def _unit(sizes: DoubleFloat, *, by_axis: bool) -> jax.Array:
    """A power of two near the reciprocal of each size, or of the greater of width and height."""
    # Devices may take a subnormal size for zero; in this unit it is still far from underflow.
    size = xp.maximum(sizes.high, 2 * xp.finfo(sizes.dtype).tiny)
    return power_of_two_near_reciprocal(size if by_axis else xp.max(size, -1, keepdims=True))
