"""Segmentation: worked examples, matches in larger images, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax import metrics
from datarax.testing import assert_within_ulps
from tests.helpers import update

# Overlap.

TARGET = np.array([[[0, 0, 1], [0, 2, 1]], [[0, 0, 0], [1, 1, 1]]], np.int32)
PREDS = np.array([[[0, 1, 1], [0, 0, 1]], [[0, 0, 0], [1, 1, 0]]], np.int32)


def test_worked_example():
    # By class, pixels right / predicted / in the target: 5 / 7 / 6, 4 / 5 / 5 and 0 / 0 / 1.
    iou = metrics.MeanIoU(num_classes=3, average=None)
    dice = metrics.Dice(num_classes=3, average=None)
    accuracy = metrics.PixelAccuracy(num_classes=3, average=None)
    for metric, want in (
        (iou, [5 / 8, 4 / 6, 0]),
        (dice, [10 / 13, 8 / 10, 0]),
        (accuracy, [5 / 6, 4 / 5, 0]),
    ):
        assert_within_ulps(update(metric, PREDS, TARGET).compute(), np.float32(want), 1)
    # The first image: v = 1/9, 1/4, 1; 2 (2/9 + 2/4) / (6/9 + 5/4 + 1); the second: v = 1/9, 1/9.
    generalized = update(metrics.GeneralizedDice(num_classes=3), PREDS, TARGET).compute()
    first, second = (13 / 9) / (6 / 9 + 5 / 4 + 1), 2 * 5 / 12
    assert_within_ulps(generalized, (first + second) / 2, 8)


def test_a_class_that_does_not_occur_is_not_averaged():
    metric = metrics.MeanIoU(num_classes=4)
    by_class = metrics.MeanIoU(num_classes=4, average=None)
    assert_within_ulps(
        update(metric, PREDS, TARGET).compute(), np.float32((5 / 8 + 4 / 6 + 0) / 3), 4
    )
    np.testing.assert_array_equal(
        np.isnan(update(by_class, PREDS, TARGET).compute()), [False, False, False, True]
    )


def test_scores_and_labels_agree():
    scores = np.eye(3, dtype=np.float32)[PREDS]
    for metric in (
        metrics.MeanIoU(num_classes=3, include_background=False),
        metrics.PixelAccuracy(num_classes=3, average="macro"),
        metrics.GeneralizedDice(num_classes=3, ignore_index=2),
    ):
        by_label, by_score = (update(metric, x, TARGET).compute() for x in (PREDS, scores))
        assert by_label == by_score


def test_overlap_shares_one_statistic_with_classification():
    collection = datarax.Collection({
        "iou": metrics.MeanIoU(num_classes=3, include_background=False),
        "dice": metrics.Dice(num_classes=3),
        "pixels": metrics.PixelAccuracy(num_classes=3),
        "generalized": metrics.GeneralizedDice(num_classes=3, aggregate="dataset"),
        "accuracy": metrics.Accuracy(num_classes=3),
    })  # fmt: skip
    alone = metrics.Accuracy(num_classes=3)
    assert len(jax.tree.leaves(collection)) == len(jax.tree.leaves(alone))


def test_ignored_pixels():
    target = TARGET.copy()
    target[0, 1, 1] = 255
    for cls in (metrics.MeanIoU, metrics.GeneralizedDice):
        ignoring = update(cls(num_classes=3, ignore_index=255), PREDS, target)
        weights = (target != 255).astype(np.float32)
        assert int(ignoring.invalid_count()) == 0
        if cls is metrics.MeanIoU:
            want = update(cls(num_classes=3), PREDS, TARGET, weights=weights).compute()
            assert ignoring.compute() == want
    image = metrics.GeneralizedDice(num_classes=3, ignore_index=255)
    first = update(image, PREDS, target, weights=np.bool_([1, 0])).compute()
    assert_within_ulps(first, 2 * (2 / 9 + 2 / 4) / (5 / 9 + 5 / 4), 8)


def test_dice_by_image_as_monai():
    # https://github.com/Project-MONAI/MONAI/blob/dev/tests/metrics/test_compute_meandice.py, where
    # the classes of both images are one-hot.
    preds = np.int32([[[2, 0], [1, 1]], [[1, 2], [2, 0]]])
    target = np.int32([[[2, 2], [1, 2]], [[1, 1], [2, 0]]])
    of_images = [[0.6667, 0.5], [0.6667, 0.6667]]
    config = {"num_classes": 3, "aggregate": "image", "include_background": False}
    by_class = metrics.Dice(**config, average=None)
    got = update(by_class, preds, target).compute()
    np.testing.assert_allclose(got, np.mean(of_images, 0), atol=5e-5)
    mean = update(metrics.Dice(**config), preds, target, weights=np.float32([1, 3]))
    np.testing.assert_allclose(mean.compute(), np.average(of_images, None, [[1, 1], [3, 3]]), 1e-4)


def test_classes_that_an_image_does_not_have():
    # Class 1 is in neither image of the first pair, and in the predictions of the second one only.
    preds, target = (
        np.int32([[[0, 0]], [[0, 1]], [[1, 1]]]),
        np.int32([[[0, 0]], [[0, 0]], [[1, 1]]]),
    )
    for empty, ones, zeros in (
        ("skip", [np.nan, 0, 1], [1, 2 / 3, np.nan]),
        ("one", [1, 0, 1], [1, 2 / 3, 1]),
        ("ignore", [np.nan, np.nan, 1], [1, 2 / 3, np.nan]),
    ):
        config = {"num_classes": 2, "aggregate": "image", "empty": empty}
        by_class = update(metrics.Dice(**config, average=None), preds, target)
        assert int(by_class.invalid_count()) == 0
        want = np.nanmean([zeros, ones], 1)
        assert_within_ulps(by_class.compute(), np.float32(want), 4)
        mean = np.mean(np.nanmean([zeros, ones], 0))
        assert_within_ulps(update(metrics.Dice(**config), preds, target).compute(), mean, 4)
    with pytest.raises(datarax.MetricInputError, match="empty='one' has no effect"):
        metrics.Dice(num_classes=2, empty="one")


# Segments.


def stacked(classes: list[int], numbers: list[int]) -> np.ndarray:
    return np.stack([classes, numbers], -1)[None, None].astype(np.int32)


def test_panoptic_worked_example():
    # Class 0 is stuff; class 1 has a match of IoU 2/3 and a missed segment; class 2 a spurious one.
    target = stacked([0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0, 1, 1])
    preds = stacked([0, 0, 0, 0, 1, 1, 2, 2, 2], [7, 8, 9, 0, 3, 3, 0, 0, 0])
    for quality, want in (
        ("panoptic", [1, (2 / 3) / 1.5, 0]),
        ("segmentation", [1, 2 / 3, 0]),
        ("recognition", [1, 1 / 1.5, 0]),
    ):
        metric = metrics.PanopticQuality(
            num_classes=3, things=(1, 2), max_segments=4, quality=quality, average=None
        )
        assert_within_ulps(update(metric, preds, target).compute(), np.float32(want), 2)


def test_pixels_without_a_label_are_excluded():
    metric = metrics.PanopticQuality(
        num_classes=2, things=(1,), max_segments=4, ignore_index=9, average=None
    )
    target = stacked([0, 0, 0, 1, 1, 9, 9, 9, 9], [0, 0, 0, 0, 0, 5, 6, 0, 0])
    # A segment with IoU 1 but for two pixels without a label, and one on such pixels only.
    preds = stacked([0, 0, 0, 1, 1, 1, 1, 1, 1], [0, 0, 0, 2, 2, 2, 2, 3, 3])
    np.testing.assert_array_equal(update(metric, preds, target).compute(), [1, 1])
    # A segment of which exactly half has no label is spurious.
    preds = stacked([0, 0, 1, 1, 1, 1, 9, 9, 9], [0, 0, 3, 2, 2, 3, 0, 0, 0])
    got = update(metric, preds, target).compute()
    assert_within_ulps(got, np.float32([2 / 3, 1 / 1.5]), 2)


def test_modified_panoptic_worked_example():
    # https://lightning.ai/docs/torchmetrics/stable/detection/modified_panoptic_quality.html
    preds = np.int32([[[[0, 0], [0, 1], [6, 0], [7, 0], [0, 2], [1, 0]]]])
    target = np.int32([[[[0, 1], [0, 0], [6, 0], [7, 0], [6, 0], [255, 0]]]])
    config = {"num_classes": 8, "things": (0, 1), "ignore_index": 255}
    value = update(metrics.ModifiedPanopticQuality(**config), preds, target).compute()
    np.testing.assert_allclose(value, (0.8 + 0.5 + 1) / 3, rtol=1e-6)
    # Of a class that only the other image has, nothing is counted.
    both = [np.concatenate([x, np.full_like(x, 6)]) for x in (preds, target)]
    both[0][1, ..., 0] = 7
    metric = metrics.ModifiedPanopticQuality(**config, average=None)
    got = update(metric, *both).compute()
    np.testing.assert_allclose(got, [0.8, *[np.nan] * 5, 0.25, 1], rtol=1e-6)


def test_an_iou_of_one_half_is_no_match():
    metric = metrics.PanopticQuality(num_classes=1, things=(0,), max_segments=2)
    target, preds = stacked([0] * 4, [0] * 4), stacked([0] * 4, [0, 0, 1, 1])
    assert update(metric, preds, target).compute() == 0.0


def test_many_segments():
    # Each segment is a row, of which a quarter is predicted as another class: IoU 3/4.
    rows = np.broadcast_to(np.arange(50)[:, None], (50, 40))
    sliver = np.arange(40) < 10
    target = np.stack([np.ones_like(rows), rows], -1)[None].astype(np.int32)
    preds = np.stack([np.where(sliver, 2, 1) + 0 * rows, rows], -1)[None].astype(np.int32)
    metric = metrics.PanopticQuality(num_classes=3, things=(1, 2), max_segments=50, average=None)
    got = update(metric, preds, target).compute()
    np.testing.assert_array_equal(got, [np.nan, 0.75, 0.0])


def test_configuration_is_checked():
    with pytest.raises(datarax.MetricInputError, match="include_background='no'"):
        metrics.MeanIoU(num_classes=2, include_background="no")
    with pytest.raises(datarax.MetricInputError, match="average='samples'"):
        metrics.Dice(num_classes=2, average="samples")
    with pytest.raises(datarax.MetricInputError, match="average='weighted'"):
        metrics.PixelAccuracy(num_classes=2, average="weighted")
    with pytest.raises(datarax.MetricInputError, match="aggregate='batch'"):
        metrics.GeneralizedDice(num_classes=2, aggregate="batch")
    with pytest.raises(datarax.MetricInputError, match=r"things=\(2,\)"):
        metrics.PanopticQuality(num_classes=2, things=(2,))
    with pytest.raises(datarax.MetricInputError, match="ignore_index=1"):
        metrics.PanopticQuality(num_classes=2, things=(1,), ignore_index=1)
    with pytest.raises(datarax.MetricInputError, match="quality='best'"):
        metrics.PanopticQuality(num_classes=2, things=(1,), quality="best")


@pytest.mark.parametrize(
    ("metric", "preds", "target", "message"),
    [
        (metrics.GeneralizedDice(num_classes=2), (3, 4), (4, 3), r"\(3, 4\).*\(4, 3\)"),
        (metrics.GeneralizedDice(num_classes=2), (3,), (3,), r"\(3,\).*images"),
        (metrics.PanopticQuality(num_classes=2, things=()), (1, 3, 3), (1, 3, 3), r"\(1, 3, 3\)"),
    ],
)
def test_shapes(metric, preds, target, message):
    with pytest.raises(datarax.MetricInputError, match=message):
        metric.update(jnp.zeros(preds, jnp.int32), jnp.zeros(target, jnp.int32))


def test_dtypes():
    image = jnp.zeros((1, 3, 2))
    for metric in (
        metrics.GeneralizedDice(num_classes=3),
        metrics.PanopticQuality(num_classes=2, things=()),
    ):
        with pytest.raises(datarax.MetricTypeError, match="float32"):
            metric.update(image, image)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_the_largest_label_of_an_unsigned_dtype_is_not_minus_one(dtype):
    largest = np.iinfo(dtype).max
    target = np.array([[[largest, 1], [0, 0]]], dtype)
    pixels = metrics.GeneralizedDice(num_classes=2, ignore_index=-1)
    assert int(update(pixels, np.zeros((1, 2, 2), int), target).invalid_count()) == 1
    segments = metrics.PanopticQuality(num_classes=2, things=(1,), max_segments=2, ignore_index=-1)
    pairs = np.stack([target, np.zeros_like(target)], -1)
    assert int(update(segments, np.zeros_like(pairs), pairs).invalid_count()) == 1
