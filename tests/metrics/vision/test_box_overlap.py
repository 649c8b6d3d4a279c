"""Overlap of boxes: worked examples, integers, one shared statistic, errors."""

import jax
import numpy as np
import pytest

import datarax
from datarax import metrics
from tests.helpers import update

ALL = {
    name: getattr(metrics, name)().from_outputs(preds="boxes", target="truth")
    for name in ("IoU", "GIoU", "DIoU", "CIoU")
}


@pytest.mark.parametrize(
    ("preds", "target", "want"),
    [
        # Squares of 2 that share half: IoU 2 / 6, all of the box around is covered.
        ([0, 0, 2, 2], [1, 0, 3, 2], (1 / 3, 1 / 3, 1 / 3 - 1 / 13, 1 / 3 - 1 / 13)),
        # Diagonal neighbours: the box around is half empty, the centres are half of it apart.
        ([0, 0, 1, 1], [1, 1, 2, 2], (0, -1 / 2, -1 / 4, -1 / 4)),
        # One in the other, twice as wide: the angles are atan(1) and atan(2).
        (
            [0, 0, 2, 2],
            [0, 0, 4, 2],
            (
                1 / 2,
                1 / 2,
                1 / 2 - 1 / 20,
                1 / 2 - 1 / 20 - (v := (2 / np.pi * np.arctan(1 / 3)) ** 2) ** 2 / (1 / 2 + v),
            ),
        ),
        ([1, 2, 3, 4], [1, 2, 3, 4], (1, 1, 1, 1)),
        ([1, 1, 1, 1], [1, 1, 1, 1], (0, 0, 0, 0)),
        ([0, 0, 0, 0], [1, 1, 1, 1], (0, -1, -1, -1)),
        # A point in a square: the ratio of its sides is that of the square.
        ([1, 1, 1, 1], [0, 0, 2, 2], (0, 0, 0, 0)),
    ],
)
def test_worked_examples(preds, target, want):
    boxes, truth = np.float32([preds]), np.float32([target])
    values = update(datarax.Collection(ALL), boxes=boxes, truth=truth).compute()
    np.testing.assert_allclose([values[name] for name in ALL], want, atol=2e-7)


def test_all_share_one_statistic():
    leaves = [len(jax.tree.leaves(x)) for x in (datarax.Collection(ALL), metrics.IoU())]
    assert leaves[0] == leaves[1]


def test_large_integers_are_not_rounded():
    preds = np.int32([[2**30, 2**30, 2**30 + 3, 2**30 + 3]])
    target = preds + np.int32([[0, 0, 1, 0]])
    assert update(metrics.IoU(), preds, target).compute() == 0.75


@pytest.mark.parametrize("jitted", [False, True])
def test_boxes_of_a_subnormal_size_keep_their_angle(jitted):
    # Corners are normal numbers; their differences, times this, are 1 and 3, and 2 and 2.
    unit = 2.0**-130
    whole = [np.float32([[32, 32, 32 + w, 32 + h]]) for w, h in ((1, 3), (2, 2))]
    metric, boxes = metrics.CIoU(), [x * np.float32(unit) for x in whole]
    seen = jax.jit(metrics.CIoU.update)(metric, *boxes) if jitted else metric.update(*boxes)
    np.testing.assert_allclose(seen.compute(), metric.update(*whole).compute(), rtol=1e-6)


def test_what_is_no_box_is_counted():
    boxes = np.float32([[0, 0, 1, 1]] * 4)
    bad = boxes.copy()
    bad[0, 2], bad[1, 3], bad[2, 0] = -1, np.nan, np.inf
    metric = update(metrics.GIoU(on_invalid="exclude"), boxes, bad)
    assert int(metric.invalid_count()) == 3
    with pytest.warns(datarax.InvalidValuesWarning, match="3 values"):
        assert metric.compute() == 1
    masked = update(metrics.GIoU(), boxes, bad, weights=np.bool_([0, 0, 0, 1]))
    assert masked.compute() == 1


@pytest.mark.parametrize(
    ("preds", "target", "message"),
    [
        ((3, 5), (3, 5), r"preds of shape \(3, 5\).*\(N, 4\)"),
        ((4,), (4,), r"preds of shape \(4,\)"),
        ((3, 4), (2, 4), r"\(3, 4\).*\(2, 4\)"),
    ],
)
def test_shapes(preds, target, message):
    with pytest.raises(datarax.MetricInputError, match=message):
        metrics.IoU().update(np.zeros(preds, np.float32), np.zeros(target, np.float32))
