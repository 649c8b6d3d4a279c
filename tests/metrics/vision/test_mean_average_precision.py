"""Mean average precision: pycocotools on large images, equal scores, slices, overflow, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax.metrics import DetectionCurve, DetectionF1, MeanAveragePrecision
from tests import coco
from tests.helpers import compiled_update, update, x64

SHAPE = {"images": 8, "detections": 150, "boxes": 12}
CLASSES = 3
METRIC = MeanAveragePrecision(num_classes=CLASSES, capacity=1024, average=None)


def images(rng: np.random.Generator, **config: float) -> coco.Arrays:
    """Most detections are of class 1: in some images, more than 100. None is of class 2."""
    drawn = coco.drawn(rng, **SHAPE, classes=2, **config)
    for name in ("labels", "target_labels"):
        drawn[name] |= (rng.random(drawn[name].shape) < 0.7).astype(np.int32)
    return drawn


def test_equals_pycocotools(rng):
    for right in (1.0, 0.8, 0.3):
        batch = images(rng, right=right)
        assert (batch["valid"] & (batch["labels"] == 1)).sum(1).max() > 100
        seen = update(METRIC, **batch)
        want = coco.by_class(batch, CLASSES)
        got = seen.compute()
        assert got.keys() == want.keys()
        for name, value in got.items():
            np.testing.assert_allclose(value, want[name], atol=1e-7, err_msg=name)
            assert np.isnan(value[2])


OPTIONS = (
    {"iou_thresholds": (0.3,), "max_detections": (7,)},
    {"iou_thresholds": (0.5, 0.9), "max_detections": (2, 5, 60, 130), "box_format": "xywh"},
    # More than fit one word, and more than reach a threshold of 1 but for what is rounded.
    {"iou_thresholds": tuple(np.linspace(0.05, 1, 29).tolist()), "box_format": "cxcywh"},
)


@pytest.mark.parametrize("options", OPTIONS)
def test_options_equal_those_of_pycocotools(rng, options):
    batch = images(rng, right=0.8)
    batch["boxes"][:, :3] = batch["target_boxes"][:, :3]  # an overlap of 1
    batch["ignore"] = rng.random(batch["crowd"].shape) < 0.2
    config = {name: x for name, x in options.items() if name != "box_format"}
    want = coco.by_class(batch, CLASSES, **config)
    form = options.get("box_format", "xyxy")
    given = dict(batch)
    for name in ("boxes", "target_boxes"):
        given[name] = coco.in_format(batch[name], form)
    metric = MeanAveragePrecision(num_classes=CLASSES, capacity=2048, per_class=True, **options)
    got = update(metric, **given).compute()
    np.testing.assert_allclose(got.pop("map_per_class"), want["map"], atol=1e-7)
    assert set(got) == set(want)
    for name, value in got.items():
        mean = np.nanmean(want[name]) if np.isfinite(want[name]).any() else np.nan
        np.testing.assert_allclose(value, mean, atol=1e-7, err_msg=name)


def test_options_in_a_program(rng):
    batch = images(rng)
    batch["ignore"] = rng.random(batch["crowd"].shape) < 0.2
    for name in ("boxes", "target_boxes"):
        batch[name] = coco.in_format(batch[name], "xywh").astype(np.float32)
    metric = MeanAveragePrecision(num_classes=CLASSES, capacity=2048, **OPTIONS[1])
    want = update(metric, **batch)
    got = jax.jit(lambda metric, batch: metric.update(**batch))(metric, batch)
    jax.tree.map(np.testing.assert_array_equal, got.compute(), want.compute())


def test_sizes_are_not_rounded():
    # The corners 0.1 + 32 and 1e6 + 32 are rounded, and so are differences of them.
    boxes = np.array([[[0.1, 0.1, 32, 32], [1e6 + 0.1, 0.3, 32, 32]]])
    scores, labels = np.array([[0.9, 0.8]]), np.zeros((1, 2), np.int32)
    metric = MeanAveragePrecision(num_classes=1, capacity=4, box_format="xywh")
    for dtype in (np.float64, np.float32):
        x = boxes.astype(dtype)
        value = metric.update(x, scores, labels, x, labels).compute()
        assert value["map_small"] == value["map_medium"] == 1
        assert np.isnan(value["map_large"])
        half = x * dtype([1, 1, 1, 0.5])
        value = metric.update(half, scores, labels, x, labels).compute()
        np.testing.assert_allclose(value["map_50"], 1, err_msg="the IoU is 0.5")
        assert value["map"] == np.float32(0.1)


def test_a_box_of_negative_size_is_invalid():
    box, scores, labels = np.float32([[[5, 5, -1, 3]]]), np.ones((1, 1)), np.zeros((1, 1), np.int32)
    for form in ("xywh", "cxcywh"):
        metric = MeanAveragePrecision(num_classes=1, capacity=4, box_format=form)
        for boxes, truth in ((box, abs(box)), (abs(box), box)):
            assert int(metric.update(boxes, scores, labels, truth, labels).invalid_count()) == 1
        flat = abs(box) * np.float32([1, 1, 0, 1])  # counts, and is not found
        seen = metric.update(abs(box), scores, labels, flat, labels)
        assert int(seen.invalid_count()) == 0
        assert seen.compute()["map"] == 0


def test_curves_equal_those_of_pycocotools(rng):
    batch = images(rng, right=0.8)
    evaluation = coco.evaluated(batch, CLASSES).eval
    config = {"num_classes": CLASSES, "capacity": 1024}
    seen = update(DetectionCurve(**config), **batch).compute()
    for name, of in (("precision", "precision"), ("score", "scores")):
        want = np.moveaxis(evaluation[of][..., 0, 2], 1, 2)
        if name == "score":  # 0 beyond the recall
            want = np.where(want == 0, np.nan, want)
        np.testing.assert_allclose(seen[name], np.where(want < 0, np.nan, want), atol=1e-7)
    both = {"map": METRIC.replace(average="macro"), "curve": DetectionCurve(**config)}
    value = datarax.Collection(both).update(**batch).compute()
    np.testing.assert_allclose(value["map/map"], np.nanmean(value["curve/precision"]), rtol=1e-6)


def test_the_best_threshold_of_the_score():
    for thresholds in ((), 0.5, (0.5, 0.2), (0.1, np.inf), "0.5"):
        with pytest.raises(datarax.MetricInputError, match="thresholds="):
            DetectionF1(num_classes=1, thresholds=thresholds)
    box = np.float32([[[0, 0, 9, 9], [50, 50, 60, 60]]])
    labels, scores = np.zeros((1, 2), np.int32), np.float32([[0.5, 0.1]])
    metric = DetectionF1(num_classes=2, thresholds=(0.1, 0.3, 0.5, 0.7))
    value = metric.update(box, scores, labels, box[:, :1], labels[:, :1]).compute()
    np.testing.assert_allclose(value["f1"], [2 / 3, 1, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(value["precision"], [0.5, 1, 1, np.nan])
    assert (value["best_f1"], value["best_threshold"]) == (1, np.float32(0.3))


def test_no_order_matters(rng):
    batch = images(rng)
    batch["scores"] = np.round(batch["scores"] * 8)  # many are equal
    want = update(METRIC, **batch, weights=np.ones(SHAPE["images"], np.bool_)).compute()
    order = rng.permutation(SHAPE["images"])
    shuffled, got = {name: x[order] for name, x in batch.items()}, METRIC
    for part in (order < 3, order >= 3, order < 0):
        got = update(got, **shuffled, weights=part)
    jax.tree.map(np.testing.assert_array_equal, got.compute(), want)


def test_equal_scores_are_one_point():
    box, other = [0, 0, 10, 10], [50, 50, 60, 60]
    arrays = {
        "boxes": np.float32([[box, other]]),
        "labels": np.zeros((1, 2), np.int32),
        "target_boxes": np.float32([[box]]),
        "target_labels": np.zeros((1, 1), np.int32),
    }
    metric = MeanAveragePrecision(num_classes=1, capacity=4)
    for scores, want in (
        ([0.9, 0.8], 1.0),
        ([0.8, 0.9], 0.5),
        ([0.9, 0.9], 0.5),
        ([0.0, -0.0], 0.5),
    ):
        assert update(metric, scores=np.float32([scores]), **arrays).compute()["map"] == want


def test_boxes_of_any_size():
    box = np.float32([[[0, 0, 1, 1], [0, 0, 1, 0.875]]])
    scores, labels = np.float32([[0.9, 0.8]]), np.zeros((1, 2), np.int32)
    metric = MeanAveragePrecision(num_classes=1, capacity=4)
    for scale, value in ((1e-20, 1.0), (1e4, 1.0), (1e20, np.nan)):  # areas above 1e10 do not count
        boxes = box * np.float32(scale)
        seen = update(
            metric,
            boxes=boxes,
            scores=scores,
            labels=labels,
            target_boxes=boxes[:, :1],
            target_labels=labels[:, :1],
        )
        np.testing.assert_equal(float(seen.compute()["map"]), value)


def test_what_does_not_fit_is_counted(rng):
    batch = images(rng, right=0.5)
    once = update(METRIC, **batch)
    kept = int(once.statistic.filled)
    twice = update(once, **batch)
    assert kept > METRIC.capacity / 2
    assert int(twice.invalid_count()) == 2 * kept - METRIC.capacity
    with pytest.warns(datarax.InvalidValuesWarning, match="beyond the capacity.*capacity="):
        assert np.isnan(twice.compute()["map"]).all()


def test_images_without_boxes(rng):
    batch = images(rng)
    found = {name: batch[name] for name in ("boxes", "scores", "labels", "valid")}
    none = {name: x[:, :0] for name, x in batch.items() if name not in found}
    value = update(METRIC, **found, **none).compute()
    assert all(np.isnan(x).all() for x in value.values())
    there = {name: x for name, x in batch.items() if name not in found}
    value = update(METRIC, **{name: x[:, :0] for name, x in found.items()}, **there).compute()
    np.testing.assert_array_equal(value["map"], [0, 0, np.nan])
    np.testing.assert_array_equal(value["mar_100"], [0, 0, np.nan])


def test_a_true_box_without_area_is_not_found(rng):
    """As in pycocotools, also by a detection that is the same box, and if it is a crowd."""
    batch = images(rng)
    flat = rng.random(batch["target_valid"].shape) < 0.3
    for i, j in np.argwhere(flat):
        box = batch["target_boxes"][i, j]
        axis = rng.integers(0, 2)
        box[axis + 2] = box[axis]
    batch["boxes"][:, : flat.shape[1]][flat] = batch["target_boxes"][flat]
    for given in (batch, {name: x for name, x in batch.items() if name != "area"}):
        want = coco.by_class(given, CLASSES)
        seen = update(METRIC, **given)
        assert int(seen.invalid_count()) == 0
        for name, value in seen.compute().items():
            np.testing.assert_allclose(value, want[name], atol=1e-7, err_msg=name)


@pytest.mark.parametrize("dtypes", [("int32", "int32"), ("uint32", "int32"), ("uint32", "uint32")])
def test_integer_corners_are_subtracted_before_they_are_rounded(rng, dtypes):
    batch = images(rng)
    far = dict(batch)
    for name, dtype in zip(("boxes", "target_boxes"), dtypes, strict=True):
        batch[name] = np.round(batch[name]).astype(np.int64) + np.array([0, 0, 1, 1])
        offset = 3 * 10**9 if dtypes == ("uint32", "uint32") else 2**30
        far[name] = (batch[name] + offset).astype(dtype)
        batch[name] = batch[name].astype(np.float32)
    want = update(METRIC, **batch).compute()
    jax.tree.map(np.testing.assert_array_equal, update(METRIC, **far).compute(), want)


def test_slices(rng):
    batch = images(rng)
    slices = np.int32([0, 1, 1, 0, 1, 0, 0, 1])
    sliced = update(datarax.Sliced(METRIC, 2), **batch, slices=slices).compute()
    for i in range(2):
        want = coco.by_class({name: x[slices == i] for name, x in batch.items()}, CLASSES)
        for name, value in sliced["slices"].items():
            np.testing.assert_allclose(value[i], want[name], atol=1e-7, err_msg=name)


def test_float64(rng):
    batch = images(rng)
    with x64():
        batch["boxes"] = np.sort(rng.random((8, 150, 2, 2)), 2).reshape(8, 150, 4) * 50
        metric = MeanAveragePrecision(num_classes=CLASSES, capacity=2048)
        value = update(metric, **batch).compute()
        assert value["map"].dtype == jnp.float64
    for name, want in coco.summary(batch, CLASSES).items():
        np.testing.assert_allclose(value[name], want, atol=1e-12, err_msg=name)


def test_an_overlap_that_equals_a_threshold():
    """13/20 reaches 0.65, as the division of float64 does, though 0.65 is not 13/20 exactly."""
    fractions = [
        (n, whole)
        for whole in range(1, 250)
        for n in range(whole // 2, whole)
        if np.abs(n / whole - np.linspace(0.5, 0.95, 10)).min() < 1e-9
    ]
    images = len(fractions)
    boxes, target = np.zeros((2, images, 1, 4), np.float32)
    boxes[:, 0, 2], target[:, 0, 2] = np.array(fractions).T
    boxes[..., 3] = target[..., 3] = 1
    one = np.ones((images, 1), np.int32)
    batch = {
        "boxes": boxes,
        "scores": np.linspace(0, 1, images, dtype=np.float32)[:, None],
        "labels": 0 * one,
        "target_boxes": target,
        "target_labels": 0 * one,
    }
    masks = {
        "masks": np.arange(250) < boxes[..., 2, None],
        "target_masks": np.arange(250) < target[..., 2, None],
    }
    reached = [
        sum(n / whole >= least for n, whole in fractions) for least in np.linspace(0.5, 0.95, 10)
    ]
    for on in (False, True):
        with x64(on):
            for kind, given in {
                "bbox": batch,
                "segm": batch
                | {name: x[:, :, None] for name, x in masks.items()}
                | {"boxes": None, "target_boxes": None},
            }.items():
                metric = MeanAveragePrecision(num_classes=1, capacity=images, iou_type=kind)
                for seen in (update(metric, **given), compiled_update(metric, **given)):
                    got = seen.compute()["mar_100"] * images
                    np.testing.assert_allclose(got, np.mean(reached), rtol=1e-6, err_msg=kind)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"boxes": (8, 150, 5)}, datarax.MetricInputError, r"boxes of shape \(8, 150, 5\)"),
        ({"boxes": (7, 150, 4)}, datarax.MetricInputError, r"\(7, 150, 4\) and target_boxes"),
        ({"scores": (8, 149)}, datarax.MetricInputError, r"scores of shape \(8, 149\)"),
        ({"labels": (8, 1)}, datarax.MetricInputError, r"labels of shape \(8, 1\)"),
        ({"target_labels": (8,)}, datarax.MetricInputError, r"target_labels of shape \(8,\)"),
        ({"area": (8, 12, 1)}, datarax.MetricInputError, r"area of shape \(8, 12, 1\)"),
        ({"labels": np.float32}, datarax.MetricTypeError, "labels has dtype float32"),
        ({"target_valid": np.float32}, datarax.MetricTypeError, "target_valid has dtype float32"),
        ({"crowd": np.float32}, datarax.MetricTypeError, "crowd has dtype float32"),
    ],
)
def test_errors(rng, change, error, message):
    batch = images(rng)
    for name, to in change.items():
        x = batch[name]
        batch[name] = np.zeros(to, x.dtype) if isinstance(to, tuple) else x.astype(to)
    with pytest.raises(error, match=message):
        METRIC.update(**batch)


def test_configuration_is_checked():
    for config, message in (
        ({"num_classes": 0}, "num_classes=0"),
        ({"num_classes": 2**21}, "num_classes=2097152"),
        ({"num_classes": 2, "capacity": 0}, "capacity=0"),
        ({"num_classes": 2, "average": "micro"}, "average='micro'"),
        ({"num_classes": 2, "box_format": "yxyx"}, "box_format='yxyx'"),
        ({"num_classes": 2, "iou_thresholds": 0.5}, "iou_thresholds=0.5; expected increasing"),
        ({"num_classes": 2, "iou_thresholds": ()}, r"iou_thresholds=\(\); expected increasing"),
        ({"num_classes": 2, "iou_thresholds": (0.7, 0.5)}, r"\(0.7, 0.5\); expected increasing"),
        ({"num_classes": 2, "iou_thresholds": (50, 75)}, "expected increasing numbers above 0"),
        ({"num_classes": 2, "max_detections": 100}, "max_detections=100; expected increasing"),
        ({"num_classes": 2, "max_detections": (10, 1)}, "max_detections=.*expected increasing"),
        ({"num_classes": 2**20, "max_detections": range(1, 18)}, "expected at most 16"),
    ):
        with pytest.raises(datarax.MetricInputError, match=message):
            MeanAveragePrecision(**config)
