"""Overlap of boxes, in double-floats. They are `x1, y1, x2, y2`, unless a `BoxFormat` is given.

Coordinates are the first axis here, and the boxes of a pair the second: one operation serves both
boxes, what they share and what is around them, and vector units are filled by the other axes.
"""

import math
from typing import Literal

import jax
import numpy as np

from datarax._xp import xp
from datarax.numerics.double_float import DoubleFloat, concatenate, rounded, stack, where
from datarax.numerics.limbs import as_double
from datarax.numerics.scaling import exponent_of, normal_power_of_two, one_where_zero

MEASURES = ("iou", "giou", "diou", "ciou")
"""The rows of `overlaps`: see the metrics of these names."""
BoxFormat = Literal["xyxy", "xywh", "cxcywh"]
"""The four numbers of a box: both corners; the lower corner and the size; the centre and the
size."""
BOX_FORMATS: dict[BoxFormat, str] = {
    "xyxy": "x1, y1, x2, y2",
    "xywh": "x, y, width, height",
    "cxcywh": "the centre x, y, then width, height",
}
"""Each format in words."""


def box_sizes(
    first: jax.Array, second: jax.Array, *, centres: bool = False, box_format: BoxFormat = "xyxy"
) -> DoubleFloat:
    """An eighth of the widths and heights of pairs of boxes (..., 4): (2, 4, ...).

    Of the first box, the second, their intersection and the smallest box that holds both. The
    intersection has a size of 0 along an axis on which they do not overlap. The boxes may have any
    dtypes, and their shapes broadcast. Differences of integers are not rounded, and differences of
    floats do not overflow.

    Args:
        first: the first box of each pair.
        second: the second box of each pair.
        centres: append what is the same part of the distances of both centres: (2, 5, ...).
        box_format: the format of both boxes.
    """
    corners, given = _corners(first, second, box_format)
    swapped = corners[:, ::-1]
    # The corners of the intersection, whose lower ones are negative too, and those around both.
    is_lesser = (corners < swapped) ^ _along(np.array([False, True]), 1, corners.ndim)
    extremes = where(is_lesser, corners, swapped)
    lows, highs = ([x[half] for x in (corners, extremes)] for half in (slice(2), slice(2, 4)))
    if centres:
        lows.append(-lows[0])
        highs.append(highs[0])
    sums = concatenate(lows, 1) + concatenate(highs, 1)
    sizes = sums[:, :4] if centres else sums
    if given is not None:  # the difference of the corners is rounded
        sizes = concatenate([given, sizes[:, 2:]], 1)
    some = sizes > 0
    sizes = sizes.map(lambda part: xp.where(some, part, xp.zeros((), part.dtype)))
    if not centres:
        return sizes
    return concatenate([sizes, (sums[:, 4:5] - sums[:, 5:]) * 0.5], 1)


def _corners(
    first: jax.Array, second: jax.Array, box_format: BoxFormat
) -> tuple[DoubleFloat, DoubleFloat | None]:
    """An eighth of the corners of pairs of boxes, (4, 2, ...); the lower ones are negative.

    Also an eighth of their sizes (2, 2, ...), of a format that has them; else None.
    """
    shape = xp.broadcast_shapes(first.shape, second.shape)
    boxes = [xp.moveaxis(xp.broadcast_to(x, shape), -1, 0) for x in (first, second)]
    alike = boxes[0].dtype == boxes[1].dtype
    x = as_double(xp.stack(boxes, 1)) if alike else stack([as_double(x) for x in boxes], 1)
    if box_format == "xyxy":
        return x.times_power(_along(np.array([-1, -1, 1, 1], x.dtype) / 8, 0, x.ndim)), None
    x = x * 0.125
    place, size = x[:2], x[2:]
    low = place if box_format == "xywh" else place - size * 0.5
    high = place + (size if box_format == "xywh" else size * 0.5)
    return concatenate([-low, high]), size


def _along(x: np.ndarray, axis: int, ndim: int) -> jax.Array:
    """A vector along one of many axes."""
    return x.reshape([-1 if i == axis else 1 for i in range(ndim)])  # type: ignore[return-value]


def units(sizes: DoubleFloat) -> jax.Array:
    """Powers of two that scale sizes to values from 1/2 to 1; subnormal sizes to less."""
    # Devices may take a subnormal size for zero; in this unit it is still far from underflow.
    size = sizes.to_float()
    exponent = exponent_of(xp.maximum(size, xp.finfo(size.dtype).tiny))
    return normal_power_of_two(-exponent, size.dtype)


def areas(sizes: DoubleFloat) -> DoubleFloat:
    """Areas (4, ...) of sizes (2, 4, ...), in units in which the box around both is about 1.

    There is a unit for each axis, so no product overflows; it changes no ratio of areas.
    """
    scaled = sizes.times_power(units(sizes[:, 3:])).kept()
    return scaled[0] * scaled[1]


def ratio(part: DoubleFloat, whole: DoubleFloat) -> DoubleFloat:
    """`part / whole`, where no part is greater than its whole; 0 where the whole is zero."""
    return part.over(where(whole > 0, whole, DoubleFloat.of(1, whole.dtype)))


def overlaps(first: jax.Array, second: jax.Array) -> jax.Array:
    """The measures of pairs of boxes (..., 4), each rounded about once: (4, ...)."""
    sizes = box_sizes(first, second, centres=True).kept()
    around, both = sizes[:, 3:4], sizes[:, :2]
    # Areas in a unit for each axis; distances, and the sides of either box, in one for both axes.
    unit = units(sizes[:, :4])
    of_both = xp.minimum(unit, unit[::-1])
    by_axis = xp.broadcast_to(unit[:, 3:], unit.shape)
    of_around = of_both[:, 3:]
    rows = concatenate([sizes[:, :4], around, sizes[:, 4:], both], 1).times_power(
        xp.concatenate([by_axis, of_around, of_around, of_both[:, :2]], 1)
    )
    # Rows 0 to 7 are x, and 8 to 15 are y: the sizes of four boxes for areas, the diagonal around
    # both, the distance of the centres, the sides of both boxes. All products are one.
    x = rows.reshape(16, *rows.shape[2:]).kept()
    squared = x[4:6], x[12:14]
    products = concatenate([x[:7], x[12:15]]) * concatenate([
        x[8:12], squared[0], x[15:], squared[1], x[7:8]
    ])  # fmt: skip
    common, whole = products[2:3], products[3:4]
    sums = concatenate([products[:1], products[4:6]]) + concatenate([
        products[1:2], products[7:9]
    ])  # fmt: skip
    union, diagonal, apart = sums[:1] - common, sums[1:2], sums[2:]
    ratios = ratio(concatenate([common, union, apart]), concatenate([union, whole, diagonal]))
    iou, filled, far = ratios[:1], ratios[1:2], ratios[2:]
    one = DoubleFloat.of(1, iou.dtype)
    giou = rounded(lambda filled, one, iou: filled - one + iou, filled, one, iou)
    giou = xp.where(whole > 0, giou, iou.to_float())
    diou = rounded(lambda iou, far: iou - far, iou, far)
    # The angle between the diagonals of both boxes, over a right angle: by the tangent of a
    # difference, in which no digits cancel where both angles are nearly equal.
    across = rounded(lambda a, b: a - b, products[6:7], products[9:])
    side = x.to_float()
    along = side[6:7] * side[7:8] + side[14:15] * side[15:]
    angle = xp.arctan2(across, along) * along.dtype.type(2 / math.pi)
    v = angle * angle
    unlike = v + rounded(lambda one, iou: one - iou, one, iou)
    return xp.concatenate([iou.to_float(), giou, diou, diou - v * v / one_where_zero(unlike)])
