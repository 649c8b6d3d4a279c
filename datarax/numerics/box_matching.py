"""Detections of one image matched to its ground truth, as COCO's evaluation does."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from datarax._xp import lax, xp
from datarax.numerics.boxes import BoxFormat, areas, box_sizes, ratio
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
_HIGHEST_THRESHOLD = 1 - 1e-10
"""A higher threshold is this one, so that what is rounded still reaches a threshold of 1."""
_WORD = 12
"""The thresholds whose outcomes are in one word: two bits each fit a float32."""


class Found(NamedTuple):
    """The detections of an image, from the highest score to the lowest: arrays (D, ...)."""

    labels: jax.Array
    valid: jax.Array
    in_area: jax.Array
    """True if the area of the detection is in each of `AREAS`, (D, A)."""


class Truth(NamedTuple):
    """The ground truth of an image: arrays (G, ...)."""

    labels: jax.Array
    valid: jax.Array
    crowd: jax.Array
    in_area: jax.Array
    """True if the box counts, and its area is in each of `AREAS`, (G, A)."""


class DetectionMatches(NamedTuple):
    """The outcomes of the detections of an image."""

    rank: jax.Array
    """The number of detections of the same class that come before each, (D,)."""
    matched: jax.Array
    """True if each is matched to a box that counts, by area and threshold: (D, A, T)."""
    ignored: jax.Array
    """True if each is neither right nor wrong: matched to a crowd or to a box out of the range of
    areas, or not matched and out of the range itself."""


def area_of(boxes: jax.Array, box_format: BoxFormat = "xyxy") -> DoubleFloat:
    """The areas of boxes (..., 4)."""
    x = as_double(xp.moveaxis(boxes, -1, 0)) * 0.25  # so that no difference overflows
    sizes = x[2:] - x[:2] if box_format == "xyxy" else x[2:]
    return sizes[0] * sizes[1] * 16


def in_areas(area: DoubleFloat) -> jax.Array:
    """True if each area is in each of `AREAS`: (..., A)."""
    limits = np.array(list(AREAS.values()), area.dtype).reshape(*[1] * area.ndim, -1, 2)
    low, high = (DoubleFloat.of(limits[..., i]) for i in (0, 1))
    area = area[..., None]
    return (area >= low) & (area <= high)


def match(
    found: Found, truth: Truth, overlap: DoubleFloat, thresholds: Sequence[float], most: int
) -> DetectionMatches:
    """Matches the detections of an image, one after the other, to the boxes of their classes.

    A detection takes the box with the greatest overlap among the boxes that count and are not
    taken, or if there is none, among the ignored ones; the last one if overlaps are equal. A crowd
    is never taken, so several detections may match it.

    Args:
        found: the detections.
        truth: the ground truth.
        overlap: that of all pairs, (D, G).
        thresholds: the least overlap of a match, T of them.
        most: how many detections of a class count: those of the highest scores.
    """
    of_class = found.labels[:, None] == found.labels[None, :]
    before = np.tri(found.labels.size, k=-1, dtype=np.bool_)
    rank = xp.sum(of_class & before & found.valid[None, :], 1, dtype=xp.int32)
    valid = found.valid & (rank < most)

    same = (found.labels[:, None] == truth.labels[None, :]) & valid[:, None]
    least: Any = np.minimum(thresholds, _HIGHEST_THRESHOLD)[None, :, None]
    # COCO's evaluation compares float64: 4/5 reaches 0.8, which is a bit more than 4/5.
    rounded = overlap if overlap.dtype == np.float32 else as_double(overlap.to_float())
    reached = (rounded[:, None, :] >= as_double(least)) & same[:, None, :]  # (D, T, G)
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

    free = xp.broadcast_to(truth.valid, (len(AREAS), len(thresholds), size))
    best = lax.scan(step, free, (reached, order))[1]
    outside = ~found.in_area[..., None]
    return DetectionMatches(rank, best > size, xp.where(best > 0, best <= size, outside))


def box_overlap(
    found: jax.Array, truth: jax.Array, crowd: jax.Array, box_format: BoxFormat = "xyxy"
) -> DoubleFloat:
    """The IoU of all pairs of boxes, (D, G); of a crowd, the part of the detection in it."""
    area = areas(box_sizes(found[:, None], truth[None], box_format=box_format)).kept()
    inside, common = area[0], area[2]
    return ratio(common, where(crowd[None, :], inside, inside + area[1] - common)).kept()


def overlap_of_areas(
    found: DoubleFloat, truth: DoubleFloat, common: DoubleFloat, crowd: jax.Array
) -> DoubleFloat:
    """The IoU of all pairs, (D, G), by their areas and by what they share; of a crowd, the part of
    the detection in it."""
    mine = found[:, None].broadcast_to(common.shape)
    return ratio(common, where(crowd[None, :], mine, mine + truth[None] - common)).kept()


def _ranks(x: DoubleFloat) -> jax.Array:
    """The rank of each number in its row (D, G), from 1; the later of equal ones is higher."""
    size = x.shape[-1]
    earlier = np.tri(size, k=-1, dtype=np.bool_)
    one, other = x[:, :, None], x[:, None, :]
    below = (other < one) | ((other == one) & earlier[None])
    return xp.sum(below, -1, dtype=xp.int32) + 1


def number_of_words(thresholds: int) -> int:
    """How many words hold the outcomes of a detection in one range of areas."""
    return -(-thresholds // _WORD)


def pack(outcome: DetectionMatches) -> jax.Array:
    """The outcomes as whole numbers below 2**24, W for each range of areas: (..., A * W)."""
    words = []
    for start in range(0, outcome.matched.shape[-1], _WORD):
        some = [x[..., start : start + _WORD] for x in (outcome.matched, outcome.ignored)]
        bits = xp.concatenate(some, -1).astype(xp.int32)
        shifts = lax.broadcasted_iota(xp.int32, bits.shape, bits.ndim - 1)
        words.append(xp.sum(bits << shifts, -1, dtype=xp.int32))
    if len(words) == 1:
        return words[0]
    return xp.stack(words, -1).reshape(*words[0].shape[:-1], -1)


def unpack(words: jax.Array, thresholds: int) -> tuple[jax.Array, jax.Array]:
    """Masks by threshold, (T, n): matched; and wrong, which is neither matched nor ignored.

    `words` are those of one range of areas, (W, n).
    """
    matched, wrong = [], []
    for place, start in enumerate(range(0, thresholds, _WORD)):
        size = min(_WORD, thresholds - start)
        shifts = xp.arange(2 * size, dtype=xp.int32)[:, None]
        bits = (words[place][None] >> shifts) & 1 == 1
        matched.append(bits[:size])
        wrong.append(~bits[:size] & ~bits[size:])
    if len(matched) == 1:
        return matched[0], wrong[0]
    return xp.concatenate(matched), xp.concatenate(wrong)
