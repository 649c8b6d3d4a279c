"""Detections of one image matched to its ground truth, as COCO's evaluation does."""

from typing import Any, NamedTuple

import jax
import numpy as np

from datarax._xp import lax, xp
from datarax.numerics.boxes import areas, box_sizes, ratio
from datarax.numerics.double_float import DoubleFloat, where
from datarax.numerics.limbs import as_double

IOU_THRESHOLDS: tuple[float, ...] = tuple(np.linspace(0.5, 0.95, 10).tolist())
"""The least IoU of a match."""
AREAS: dict[str, tuple[float, float]] = {
    "all": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}
"""The least and the greatest area of the boxes that count, both included."""
MOST_DETECTIONS = 100
"""At most this many detections of a class count in an image: those of the highest scores."""


class Found(NamedTuple):
    """The detections of an image, from the highest score to the lowest: arrays (D, ...)."""

    boxes: jax.Array
    labels: jax.Array
    valid: jax.Array


class Truth(NamedTuple):
    """The ground truth of an image: arrays (G, ...)."""

    boxes: jax.Array
    labels: jax.Array
    valid: jax.Array
    crowd: jax.Array
    in_area: jax.Array
    """True if the area of the box is one of `AREAS`, (G, A)."""


class DetectionMatches(NamedTuple):
    """The outcomes of the detections of an image."""

    rank: jax.Array
    """The number of detections of the same class that come before each, (D,)."""
    matched: jax.Array
    """True if each is matched to a box that counts, by area and threshold: (D, A, T)."""
    ignored: jax.Array
    """True if each is neither right nor wrong: matched to a crowd or to a box out of the range of
    areas, or not matched and out of the range itself."""


def area_of(boxes: jax.Array) -> DoubleFloat:
    """The areas of boxes (..., 4)."""
    corners = as_double(xp.moveaxis(boxes, -1, 0)) * 0.25  # so that no difference overflows
    sizes = corners[2:] - corners[:2]
    return sizes[0] * sizes[1] * 16


def in_areas(area: DoubleFloat) -> jax.Array:
    """True if each area is in each of `AREAS`: (..., A)."""
    limits = np.array(list(AREAS.values()), area.dtype).reshape(*[1] * area.ndim, -1, 2)
    low, high = (DoubleFloat.of(limits[..., i]) for i in (0, 1))
    area = area[..., None]
    return (area >= low) & (area <= high)


def match(found: Found, truth: Truth) -> DetectionMatches:
    """Matches the detections of an image, one after the other, to the boxes of their classes.

    A detection takes the box with the greatest overlap among the boxes that count and are not
    taken, or if there is none, among the ignored ones; the last one if overlaps are equal. A crowd
    is never taken, so several detections may match it.
    """
    of_class = found.labels[:, None] == found.labels[None, :]
    before = np.tri(found.labels.size, k=-1, dtype=np.bool_)
    rank = xp.sum(of_class & before & found.valid[None, :], 1, dtype=xp.int32)
    valid = found.valid & (rank < MOST_DETECTIONS)

    overlap = _overlap(found.boxes, truth.boxes, truth.crowd).kept()
    same = (found.labels[:, None] == truth.labels[None, :]) & valid[:, None]
    thresholds: Any = np.array(IOU_THRESHOLDS)[None, :, None]
    reached = (overlap[:, None, :] >= as_double(thresholds)) & same[:, None, :]  # (D, T, G)
    order = _ranks(overlap)
    counts = truth.in_area.T & ~truth.crowd[None, :]  # (A, G)
    size = truth.labels.size

    def step(free: jax.Array, detection: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        reached, order = detection
        # The key of a box: higher is better, and boxes that count come before all others.
        key = xp.where(counts, order[None, :] + size, order[None, :])[:, None, :]
        key = xp.where(free & reached[None], key, 0)
        best = xp.max(key, -1, initial=0)
        taken = (key == best[..., None]) & (key > 0)
        return free & (~taken | truth.crowd[None, None, :]), best

    free = xp.broadcast_to(truth.valid, (len(AREAS), len(IOU_THRESHOLDS), size))
    best = lax.scan(step, free, (reached, order))[1]
    outside = ~in_areas(area_of(found.boxes))[..., None]
    return DetectionMatches(rank, best > size, xp.where(best > 0, best <= size, outside))


def _overlap(found: jax.Array, truth: jax.Array, crowd: jax.Array) -> DoubleFloat:
    """The IoU of all pairs, (D, G); of a crowd, the part of the detection that lies in it."""
    area = areas(box_sizes(found[:, None], truth[None]))
    area = area.kept()
    inside, common = area[0], area[2]
    return ratio(common, where(crowd[None, :], inside, inside + area[1] - common))


def _ranks(x: DoubleFloat) -> jax.Array:
    """The rank of each number in its row (D, G), from 1; the later of equal ones is higher."""
    size = x.shape[-1]
    earlier = np.tri(size, k=-1, dtype=np.bool_)
    one, other = x[:, :, None], x[:, None, :]
    below = (other < one) | ((other == one) & earlier[None])
    return xp.sum(below, -1, dtype=xp.int32) + 1


def pack(outcome: DetectionMatches) -> jax.Array:
    """The outcome of each detection as an integer below 2**20 for each range of areas: (D, A)."""
    bits = xp.concatenate([outcome.matched, outcome.ignored], -1).astype(xp.int32)
    shifts = lax.broadcasted_iota(xp.int32, bits.shape, bits.ndim - 1)
    return xp.sum(bits << shifts, -1, dtype=xp.int32)


def unpack(word: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Masks by threshold, (T, ...): matched; and wrong, which is neither matched nor ignored."""
    size = len(IOU_THRESHOLDS)
    shifts = lax.expand_dims(xp.arange(2 * size, dtype=xp.int32), range(1, word.ndim + 1))
    bits = (word[None] >> shifts) & 1 == 1
    return bits[:size], ~bits[:size] & ~bits[size:]
