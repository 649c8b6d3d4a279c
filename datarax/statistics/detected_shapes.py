"""What is detected in images: boxes, masks or key points; their areas and their overlaps."""

from abc import ABC, abstractmethod
from typing import NamedTuple, Self

import jax
import numpy as np

from datarax._checks import default_float, integers, numeric
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree
from datarax._xp import lax, vmap, xp
from datarax.distributed.collectives import replicated, unsharded
from datarax.numerics.box_matching import area_of, box_overlap, overlap_of_areas
from datarax.numerics.boxes import BOX_FORMATS, BoxFormat
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.limbs import as_double
from datarax.numerics.products import matrix_product
from datarax.numerics.run_lengths import are_run_lengths, common_pixels, runs_of
from datarax.statistics.invalid_counts import Invalid, not_finite, out_of_range

COCO_SIGMAS = (
    *(0.026, 0.025, 0.025, 0.035, 0.035, 0.079, 0.079, 0.072, 0.072, 0.062, 0.062),
    *(0.107, 0.107, 0.087, 0.087, 0.089, 0.089),
)
"""How far annotators place each of COCO's 17 key points of a person apart, as a fraction of the
square root of the area: https://cocodataset.org/#keypoints-eval."""
MOST_PIXELS = 2**24
"""With more, the number of pixels of a mask is rounded."""
_TINY = 2.0**-52
"""What COCO's evaluation adds to an area, so that it is not zero."""


def checked_boxes(
    x: ArrayLike, name: str, leading: str, box_format: BoxFormat = "xyxy"
) -> jax.Array:
    """Boxes of shape (*leading, 4), where `leading` names the axes: "N" or "N, D".

    Raises:
        MetricInputError: another shape; shows it.
    """
    boxes = numeric(x, name)
    if boxes.ndim != len(leading.split(",")) + 1 or boxes.shape[-1] != 4:
        raise MetricInputError(
            f"{name} of shape {boxes.shape}; expected boxes ({leading}, 4): "
            f"{BOX_FORMATS[box_format]}"
        )
    return unsharded(boxes, boxes.ndim - 1)


def unusable_boxes(boxes: jax.Array, box_format: BoxFormat = "xyxy") -> Invalid:
    """The boxes that hold NaN or infinities, whose second corner is not after the first, or whose
    size is negative.

    A box without area can be used.
    """
    # Compared, not subtracted: a difference of finite corners may overflow.
    low, high = _extent(boxes, box_format)
    return not_finite(boxes, -1) | out_of_range(xp.any(low > high, -1))


def _extent(boxes: jax.Array, box_format: BoxFormat) -> tuple[jax.Array, jax.Array]:
    """Both ends of boxes; of a format with sizes, zero and the size."""
    high = boxes[..., 2:]
    return boxes[..., :2] if box_format == "xyxy" else xp.zeros((), high.dtype), high


class Items(NamedTuple):
    """The detections of images, or their ground truth: arrays (N, K, ...)."""

    arrays: tuple[jax.Array, ...]
    unusable: Invalid
    """(N, K)."""

    def among(self, valid: jax.Array) -> Self:
        """The same with zeros where a mask (N, K) is false, so that nothing is NaN there."""
        arrays = (
            xp.where(lax.expand_dims(valid, range(2, x.ndim)), x, xp.zeros((), x.dtype))
            for x in self.arrays
        )
        return self._replace(arrays=tuple(arrays))


class Shapes(ABC):
    """A kind of what is detected. Methods take the arrays of `Items` of one image, (K, ...)."""

    @abstractmethod
    def area(self, arrays: tuple[jax.Array, ...]) -> DoubleFloat:
        """The area of each, (K,)."""

    @abstractmethod
    def overlap(
        self, found: tuple[jax.Array, ...], there: tuple[jax.Array, ...], crowd: jax.Array
    ) -> DoubleFloat:
        """How well each detection matches each of the ground truth, (D, G), from 0 to 1.

        `crowd` is a mask of the ground truth, (G,).
        """


class Boxes(Shapes):
    """Boxes of a format; the overlap is the IoU."""

    def __init__(self, box_format: BoxFormat):
        self.format: BoxFormat = box_format

    def items(self, boxes: jax.Array) -> Items:
        """Items of checked boxes (N, K, 4)."""
        return Items((boxes,), unusable_boxes(boxes, self.format))

    def area(self, arrays: tuple[jax.Array, ...]) -> DoubleFloat:
        return area_of(arrays[0], self.format)

    def overlap(
        self, found: tuple[jax.Array, ...], there: tuple[jax.Array, ...], crowd: jax.Array
    ) -> DoubleFloat:
        return box_overlap(found[0], there[0], crowd, self.format)


class Masks(Shapes):
    """Masks as their numbers of pixels; of detections also those that they share with each mask of
    the ground truth."""

    def items(self, pixels: jax.Array, *common: jax.Array) -> Items:
        """Items of numbers of pixels (N, K), and of detections of those that they share."""
        # A place without a mask has -1 pixels: see `counts_of_runs`.
        return Items((pixels, *common), out_of_range(pixels < 0))

    def area(self, arrays: tuple[jax.Array, ...]) -> DoubleFloat:
        return DoubleFloat.of(arrays[0])

    def overlap(
        self, found: tuple[jax.Array, ...], there: tuple[jax.Array, ...], crowd: jax.Array
    ) -> DoubleFloat:
        mine, common, theirs = map(DoubleFloat.of, (*found, *there))
        return overlap_of_areas(mine, theirs, common, crowd)


def pixels_of(masks: PyTree, target_masks: PyTree) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The pixels of each detection (N, D) and truth (N, G), and those of each pair (N, D, G).

    Args:
        masks: of detections, (N, D, H, W); or what `counts_of_runs` takes, or returns.
        target_masks: of the ground truth, of the same kind.

    Raises:
        MetricInputError: the masks are not (N, D, H, W) and (N, G, H, W), or larger than 2^24
            pixels; shows both shapes.
        MetricTypeError: they are floats.
    """
    masks, target_masks = counts_of_runs(masks, target_masks)
    found, there = (replicated(numeric(x, "masks")) for x in (masks, target_masks))
    if (found.ndim, there.ndim) == (3, 2):  # counts of encoded masks
        return found[..., 0], there, found[..., 1:]
    if found.ndim != 4 or there.ndim != 4 or found.shape[2:] != there.shape[2:]:
        raise MetricInputError(
            f"masks of shape {found.shape} and target_masks of shape {there.shape}; expected "
            f"(N, D, H, W) and (N, G, H, W)"
        )
    if found.shape[0] != there.shape[0]:
        raise MetricInputError(
            f"masks of shape {found.shape} and target_masks of shape {there.shape}; expected as "
            f"many images N in both"
        )
    check_pixels(*found.shape[2:])

    def flat(x: jax.Array, name: str) -> jax.Array:
        x = integers(x, name, "integers or booleans", booleans=True)
        pixels = x.reshape(*x.shape[:2], x.shape[2] * x.shape[3])
        # Products of 0 and 1 in a matrix product count shared pixels, exactly up to 2**24.
        return pixels.astype(xp.bool_).astype(default_float())

    def common(found: jax.Array, there: jax.Array) -> jax.Array:
        return matrix_product(found, there.T)

    found, there = flat(found, "masks"), flat(there, "target_masks")
    return xp.sum(found, -1), xp.sum(there, -1), vmap(common)(found, there)


def counts_of_runs(masks: PyTree, target_masks: PyTree) -> tuple[PyTree, PyTree]:
    """The pixels of run-length encoded masks, as floats; other masks as they are.

    Of each detection, the number of its pixels and of those that it shares with each of the ground
    truth, (N, D, 1 + G); and the number of pixels of the ground truth, (N, G). A mask that is None
    has -1 pixels.

    Raises:
        MetricInputError: a mask is damaged, or the masks of an image have several sizes; names it.
    """
    encoded = [are_run_lengths(x) for x in (masks, target_masks)]
    if not any(encoded):
        return masks, target_masks
    if not all(encoded) or len(masks) != len(target_masks):
        raise MetricInputError(
            "expected run-length encoded masks= and target_masks= of the same images: a list of "
            "dicts for each image in both"
        )
    widths = [max(map(len, rows), default=0) for rows in (masks, target_masks)]
    found = np.zeros((len(masks), widths[0], 1 + widths[1]), default_float())
    there = np.full((len(masks), widths[1]), -1, default_float())
    # -1 marks a place without a mask: it is out of range, so it is counted unless `valid` leaves it
    # out.
    found[..., 0] = -1
    for i, rows in enumerate(zip(masks, target_masks, strict=True)):
        runs = [
            {j: runs_of(x, f"{name}[{i}][{j}]") for j, x in enumerate(row) if x is not None}
            for name, row in zip(("masks", "target_masks"), rows, strict=True)
        ]
        sizes = {(x.height, x.width) for each in runs for x in each.values()}
        if len(sizes) > 1:
            raise MetricInputError(f"image {i} has masks of several sizes: {sorted(sizes)}")
        for size in sizes:
            check_pixels(*size)
        (mine, theirs), (ones, others) = map(list, runs), (list(x.values()) for x in runs)
        found[i, mine, 0] = [x.pixels for x in ones]
        there[i, theirs] = [x.pixels for x in others]
        found[i, np.array(mine, int)[:, None], 1 + np.array(theirs, int)] = common_pixels(
            ones, others
        )
    return found, there


def check_pixels(height: int, width: int) -> None:
    """Raises if a mask has more pixels than are counted exactly."""
    if height * width > MOST_PIXELS:
        raise MetricInputError(
            f"masks of {height} x {width} pixels; expected at most {MOST_PIXELS} pixels"
        )


class Keypoints(Shapes):
    """Key points x, y, visibility; the overlap is COCO's object keypoint similarity (OKS).

    The ground truth also has areas, and may have boxes: a person without visible key points is
    matched by how far detected key points are outside of a box of three times the size.
    """

    def __init__(self, sigmas: tuple[float, ...], box_format: BoxFormat):
        self.sigmas = sigmas
        self.format: BoxFormat = box_format

    def items(self, points: jax.Array, *others: jax.Array) -> Items:
        """Items of checked key points (N, K, P, 3), of the ground truth with areas and boxes."""
        unusable = not_finite(points, (-2, -1))
        for boxes in others[1:]:
            unusable |= unusable_boxes(boxes, self.format)
        return Items((points, *others), unusable)

    def checked(self, x: ArrayLike, name: str) -> jax.Array:
        """Key points (N, K, P, 3).

        Raises:
            MetricInputError: another shape; shows it.
        """
        points = numeric(x, name)
        if points.ndim != 4 or points.shape[2:] != (len(self.sigmas), 3):
            raise MetricInputError(
                f"{name} of shape {points.shape}; expected (N, D, {len(self.sigmas)}, 3): x, y and "
                f"visibility of each key point. For other numbers of points than 17, give sigmas="
            )
        return points

    def area(self, arrays: tuple[jax.Array, ...]) -> DoubleFloat:
        places = xp.moveaxis(arrays[0], -1, 0)[:2]
        # As COCO: detected points come without an area.
        size = as_double(xp.max(places, -1)) - as_double(xp.min(places, -1))
        return size[0] * size[1]

    def overlap(
        self, found: tuple[jax.Array, ...], there: tuple[jax.Array, ...], crowd: jax.Array
    ) -> DoubleFloat:
        points, (truth, area, *boxes) = found[0], there
        # Only the points that an annotator has marked are compared, whatever was detected
        # elsewhere.
        visible = truth[None, ..., 2] > 0
        apart = [_difference(points[:, None, :, i], truth[None, ..., i]) for i in (0, 1)]
        some = xp.any(visible, -1, keepdims=True)
        if boxes:
            low, high = doubled(boxes[0], self.format)
            # At most one of the two is positive, so their sum is the distance, and 0 inside of the
            # box.
            outside = [
                xp.maximum(_difference(low[None, :, None, i], points[:, None, :, i]), 0)
                + xp.maximum(_difference(points[:, None, :, i], high[None, :, None, i]), 0)
                for i in (0, 1)
            ]
            apart = [xp.where(some, x, y) for x, y in zip(apart, outside, strict=True)]
        squared = apart[0] * apart[0] + apart[1] * apart[1]
        # COCO's evaluation takes twice the sigma as the standard deviation.
        variances = np.asarray([[[(2 * x) ** 2 for x in self.sigmas]]], squared.dtype)
        unit = (area.astype(squared.dtype) + squared.dtype.type(_TINY))[None, :, None]
        counts = visible | ~some if boxes else visible
        near = xp.where(counts, xp.exp(-(squared / variances / unit / 2)), 0)
        # A person without any point to compare has the overlap 0, not NaN.
        number = xp.maximum(xp.sum(counts, -1, dtype=squared.dtype), 1)
        return as_double(xp.sum(near, -1) / number)


def doubled(boxes: jax.Array, box_format: BoxFormat) -> tuple[jax.Array, jax.Array]:
    """The corners of boxes that are three times as wide and as high, about the same centre."""
    x = as_double(xp.moveaxis(boxes, -1, 0))
    place, size = x[:2], x[2:] - x[:2] if box_format == "xyxy" else x[2:]
    # As double-floats: far from the origin, a float would round a small size away.
    low = place - size * 0.5 if box_format == "cxcywh" else place
    corners = low - size, low + size * 2
    return tuple(xp.moveaxis(corner.to_float(), 0, -1) for corner in corners)  # type: ignore


def _difference(a: jax.Array, b: jax.Array) -> jax.Array:
    """The difference of numbers, rounded once."""
    return (as_double(a) - as_double(b)).to_float()
