"""The overlap of boxes against exact rationals: in NumPy, in float64 and in pairs."""

import math
from fractions import Fraction

import jax
import numpy as np
import pytest

import datarax
from datarax.numerics.box_matching import area_of, in_areas
from datarax.numerics.boxes import overlaps

SIZE = 150


def some_boxes(rng, scale=1.0, offset=0.0, size=SIZE):
    corners = np.sort(rng.random((size, 2, 2)), axis=1).reshape(size, 4)
    return np.float32(corners * scale + offset)


def nudged(rng, boxes):
    """Boxes of which a corner is a few floats off."""
    steps = rng.integers(0, 4, boxes.shape) * np.float32([-1, -1, 1, 1])
    return np.float32(boxes + np.spacing(boxes) * steps)


KINDS = {
    "random": lambda rng: (some_boxes(rng), some_boxes(rng)),
    "identical": lambda rng: (x := some_boxes(rng), x),
    "nearly identical": lambda rng: (x := some_boxes(rng, 100), nudged(rng, x)),
    "apart": lambda rng: (some_boxes(rng), some_boxes(rng, offset=3)),
    "far apart": lambda rng: (some_boxes(rng), some_boxes(rng, offset=1e6)),
    "touching": lambda rng: (x := some_boxes(rng), np.concatenate([x[:, 2:], x[:, 2:] + 1], 1)),
    "one in the other": lambda rng: (some_boxes(rng), np.float32([[-1, -2, 3, 2]] * SIZE)),
    "points": lambda rng: (x := some_boxes(rng), np.concatenate([x[:, :2]] * 2, 1)),
    "the same point": lambda rng: (x := np.repeat(some_boxes(rng)[:, :1], 4, 1), x),
    "lines": lambda rng: tuple(some_boxes(rng)[:, [0, 1, 2, 1]] for _ in range(2)),
    "huge": lambda rng: (some_boxes(rng, 6e38, -3e38), some_boxes(rng, 6e38, -3e38)),
    "tiny": lambda rng: (some_boxes(rng, 1e-20), some_boxes(rng, 1e-20)),
    "of very different sizes": lambda rng: (some_boxes(rng, 1e-9), some_boxes(rng, 1e6)),
    "flat and wide": lambda rng: tuple(
        some_boxes(rng) * np.float32([1e15, 1e-15, 1e15, 1e-15]) for _ in range(2)
    ),
    "with an offset": lambda rng: (some_boxes(rng, 32, 1e6), some_boxes(rng, 32, 1e6)),
    "integers": lambda rng: tuple(
        np.int32(some_boxes(rng, 64)) + np.int32([[2**30, 2**30, 2**30 + 5, 2**30 + 3]])
        for _ in range(2)
    ),
    "of two dtypes": lambda rng: (np.int32(some_boxes(rng, 64)), some_boxes(rng, 64)),
}


def exact_overlaps(first, second):
    """The measures of one pair, IoU, GIoU and DIoU as rationals; and the magnitudes in them."""
    a, b = ([Fraction(v) for v in x.tolist()] for x in (first, second))
    sizes, others, common, around, apart = [], [], [], [], []
    for low, high in ((0, 2), (1, 3)):
        sizes.append(a[high] - a[low])
        others.append(b[high] - b[low])
        common.append(max(min(a[high], b[high]) - max(a[low], b[low]), 0))
        around.append(max(a[high], b[high]) - min(a[low], b[low]))
        apart.append((a[high] + a[low] - b[high] - b[low]) / 2)
    area, whole = math.prod(common), math.prod(around)
    union = math.prod(sizes) + math.prod(others) - area
    iou = area / union if union else Fraction(0)
    empty = (whole - union) / whole if whole else 0
    diagonal = sum(x * x for x in around)
    far = sum(x * x for x in apart) / diagonal if diagonal else 0
    v = 0.0
    if any(sizes) and any(others):
        # In units in which neither side leaves the range of float64.
        (w, h), (w2, h2) = ([x / max(each) for x in each] for each in (sizes, others))
        v = (2 / math.pi * math.atan2(w * h2 - h * w2, w * w2 + h * h2)) ** 2
    unlike = v * v / (float(1 - iou) + v) if v else 0.0
    return [iou, iou - empty, iou - far, float(iou - far) - unlike]


FORMS = {
    "host": overlaps,
    "float64": jax.jit(overlaps),
    "pairs": jax.jit(lambda first, second: overlaps(first, second)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_measures_are_those_of_exact_rationals(rng, kind):
    first, second = KINDS[kind](rng)
    want = [exact_overlaps(*pair) for pair in zip(first, second, strict=True)]
    iou = np.float64([float(x[0]) for x in want])
    want = np.float64([[float(x) for x in each] for each in want]).T
    for form, function in FORMS.items():
        with datarax.lowering_for("tpu" if form == "pairs" else "cpu"):
            got = np.asarray(function(first, second), np.float64)
        off = np.abs(got - want)
        # The IoU is rounded once, on the host by each operation; the others are sums of it.
        unit, of_iou = (2.0**-52, 3) if form == "host" else (2.0**-24, 1.01)
        assert (off[0] <= of_iou * unit * iou + 2.0**-126).all(), form
        assert (off[1:3] <= 3 * unit).all(), form
        assert (off[3] <= 8 * unit).all(), form


@pytest.mark.parametrize("form", FORMS)
def test_areas_at_a_limit_are_of_both_ranges(form):
    sides = np.float32([[32, 32], [32, np.nextafter(np.float32(32), 0)], [1e5, 1e5], [3e38, 3e38]])
    boxes = np.concatenate([-sides / 2, sides / 2], 1)
    given = boxes if form == "host" else jax.numpy.asarray(boxes)
    with datarax.lowering_for("tpu" if form == "pairs" else "cpu"):
        got = in_areas(area_of(given))
    # All, small, medium, large.
    want = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]]
    np.testing.assert_array_equal(got, np.bool_(want))
