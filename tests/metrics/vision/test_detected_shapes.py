"""Mean average precision of masks and of key points, beside pycocotools."""

import warnings

import jax
import numpy as np
import pytest

import datarax
from datarax.metrics import MeanAveragePrecision
from datarax.numerics.run_lengths import common_pixels, runs_of
from datarax.statistics.detected_shapes import COCO_SIGMAS
from datarax.testing import assert_within_ulps
from tests import coco
from tests.helpers import update
from tests.registry import BATCH, detection
from tests.registry.case import widened

CASES = [case for case in detection.CASES if "iou_type" in case.config]
CLASSES = 2
SIGMAS = (0.05, 0.1, 0.2)


def masks(rng):
    drawn = coco.with_masks(rng, coco.drawn(rng, 6, 20, 8, CLASSES, right=0.9))
    # Half of the areas are those of the masks.
    drawn["area"] = drawn["target_masks"].sum((2, 3)) * np.float32(rng.integers(1, 3))
    drawn["ignore"] = rng.random(drawn["crowd"].shape) < 0.1
    return drawn


def keypoints(rng):
    drawn = coco.with_keypoints(rng, coco.drawn(rng, 6, 20, 8, CLASSES), len(SIGMAS))
    drawn["ignore"] = rng.random(drawn["crowd"].shape) < 0.1
    return drawn


KINDS = {"segm": (masks, {}), "keypoints": (keypoints, {"sigmas": SIGMAS})}
CONFIG = {"iou_thresholds": (0.3, 0.5, 0.75, 0.9), "max_detections": (2, 5)}


def arguments(kind, batch):
    """What an update takes: no boxes that it does not use."""
    unused = {"segm": ("boxes", "target_boxes"), "keypoints": ("boxes",)}[kind]
    return batch | dict.fromkeys(unused)


def metric_of(kind, **more):
    options = {**KINDS[kind][1], **CONFIG, **more}
    return MeanAveragePrecision(num_classes=CLASSES, capacity=256, iou_type=kind, **options)


def close(got, want):
    assert set(got) == set(want)
    for name, value in got.items():
        np.testing.assert_allclose(value, want[name], atol=1e-7, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_equals_pycocotools(rng, kind):
    draw, options = KINDS[kind]
    for _ in range(3):
        batch = draw(rng)
        seen = update(metric_of(kind, average=None), **arguments(kind, batch))
        want = coco.by_class(batch, CLASSES, iou_type=kind, **options, **CONFIG)
        close(seen.compute(), want)
        assert np.nanmax(want["map"]) > 0.1


def test_default_sigmas_are_those_of_coco(rng):
    batch = coco.with_keypoints(rng, coco.drawn(rng, 6, 20, 8, CLASSES))
    metric = MeanAveragePrecision(
        num_classes=CLASSES, capacity=256, iou_type="keypoints", average=None
    )
    got = metric.update(**arguments("keypoints", batch)).compute()
    close(got, coco.by_class(batch, CLASSES, iou_type="keypoints"))


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_program(rng, kind):
    batch = arguments(kind, KINDS[kind][0](rng))
    metric = metric_of(kind)
    want = metric.update(**batch)
    got = jax.jit(lambda metric, batch: metric.update(**batch))(metric, batch)
    # Exponentials of float32 would differ from those of float64 only next to a threshold.
    jax.tree.map(np.testing.assert_array_equal, got.compute(), want.compute())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_equals_the_definition(rng, case):
    for spoil, reference in ((False, True), (True, False)):
        batch = case.inputs.draw(rng, BATCH)
        if spoil:
            batch = case.inputs.spoilt(rng, batch, rng.permutation(BATCH)[:4])
        usable = case.inputs.valid(**widened(batch))
        assert usable.all() != spoil
        weights = np.float32(rng.random(BATCH) * (rng.random(BATCH) < 0.8))
        for w in (weights > 0, weights):
            seen = case.make(on_invalid="exclude").update(**batch, weights=w)
            assert int(seen.invalid_count()) == (~usable & (w > 0)).sum()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what is left out
                got = seen.compute()
            used = w * usable
            assert_within_ulps(got, case.oracle(used, **widened(batch)), case.ulps, name=case.id)
            if reference and w.dtype == bool:
                want = case.reference(used, **batch)
                assert want is not None
                close(got, want)


def encoded(batch, listed=False):
    """The masks of each image as COCO encodes them; None for padding."""
    given = dict(batch)
    for name, real in (("masks", "valid"), ("target_masks", "target_valid")):
        given[name] = [
            [coco.encoded(x) if there else None for x, there in zip(row, valid, strict=True)]
            for row, valid in zip(batch[name], batch[real], strict=True)
        ]
        if listed:
            for row in given[name]:
                row[:] = [None if x is None else uncompressed(x) for x in row]
    return given


def uncompressed(mask):
    runs = runs_of(mask, "")
    changes = np.stack([runs.starts, runs.ends], 1).ravel().tolist()
    changes = [0, *changes, runs.height * runs.width]
    return {"size": mask["size"], "counts": np.diff(changes).tolist()}


def test_run_lengths_are_the_same_masks(rng):
    batch = arguments("segm", masks(rng))
    want = update(metric_of("segm"), **batch).compute()
    for listed in (False, True):
        given = encoded(batch, listed)
        got = metric_of("segm").update(**given)
        jax.tree.map(np.testing.assert_array_equal, got.compute(), want)
    # A text of JSON, in a wrapper, and by parts.
    text = {k: [[x and {**x, "counts": x["counts"].decode()} for x in row] for row in rows or []]
            for k, rows in encoded(batch).items() if k.endswith("masks")}  # fmt: skip
    slices = np.int32([0, 1, 0, 1, 1, 0])
    for given in (batch, batch | text):
        sliced = datarax.Sliced(metric_of("segm"), 2).update(**given, slices=slices).compute()
        part = {k: v if v is None else v[slices == 1] for k, v in batch.items()}
        want = metric_of("segm").update(**part).compute()
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[1], y), sliced["slices"], want)


def test_runs_decode_as_pycocotools_has_them(rng):
    drawn = rng.random((12, 9, 14)) < rng.uniform(0, 1, (12, 1, 1))
    drawn[0], drawn[1] = False, True
    large = np.zeros((3000, 2000), bool)
    large[100:2900, 50:1990] = True
    large[5, 7] = True
    for mask in (*drawn, large):
        runs = runs_of(coco.encoded(mask), "")
        assert runs.pixels == mask.sum()
        assert common_pixels([runs], [runs]) == mask.sum()
    runs = [runs_of(coco.encoded(x), "") for x in drawn]
    want = np.einsum("dij,gij->dg", drawn.astype(int), drawn.astype(int))
    np.testing.assert_array_equal(common_pixels(runs, runs), want)


FAULTS = {
    "masks= is given, and iou_type='bbox'": ("bbox", {"masks": np.zeros((1, 1, 2, 2), bool)}),
    "needs masks and target_masks": ("segm", {"masks": None}),
    r"\(1, 2, 4, 4\) and target_masks of shape \(1, 2, 4, 5\)": (
        "segm", {"target_masks": np.zeros((1, 2, 4, 5), bool)}),
    "masks has dtype float": ("segm", {"masks": np.zeros((1, 2, 4, 4), np.float32)}),
    "run-length encoded masks= and target_masks=": ("segm", {"masks": [[None, None]]}),
    r"masks\[0\]\[1\]: the counts are of 3 pixels, and its size is 2 x 2": (
        "segm",
        {"masks": [[None, {"size": [2, 2], "counts": [1, 2]}]], "target_masks": [[None] * 2]}),
    r"masks\[0\]\[0\]: expected a dict with size": (
        "segm", {"masks": [[{"size": 2}, None]], "target_masks": [[None] * 2]}),
    r"counts are no compressed runs": (
        "segm",
        {"masks": [[{"size": [2, 2], "counts": "\x01~"}] * 2], "target_masks": [[None] * 2]}),
    "image 0 has masks of several sizes": (
        "segm", {"masks": [[{"size": [1, 2], "counts": [2]}, {"size": [2, 1], "counts": [2]}]],
                 "target_masks": [[None] * 2]}),
    "masks of 5000 x 5000 pixels": (
        "segm", {"masks": np.broadcast_to(False, (1, 2, 5000, 5000)),
                 "target_masks": np.broadcast_to(False, (1, 2, 5000, 5000))}),
    r"keypoints of shape \(1, 2, 5, 3\); expected \(N, D, 17, 3\)": (
        "keypoints", {"keypoints": np.zeros((1, 2, 5, 3))}),
    "needs area=, or target_boxes": ("keypoints", {}),
    r"target_boxes of shape \(1, 1, 4\) and target_keypoints": (
        "keypoints", {"target_boxes": np.zeros((1, 1, 4))}),
    r"labels of shape \(1, 2\) for .* \(1, 3": ("segm", {"masks": np.zeros((1, 3, 4, 4), bool)}),
}  # fmt: skip


@pytest.mark.parametrize("said", FAULTS)
def test_errors(said):
    kind, changed = FAULTS[said]
    given = {
        "bbox": {"boxes": np.ones((1, 2, 4)), "target_boxes": np.ones((1, 2, 4))},
        "segm": {"masks": np.ones((1, 2, 4, 4), bool), "target_masks": np.ones((1, 2, 4, 4), bool)},
        "keypoints": {
            "keypoints": np.ones((1, 2, 17, 3)), "target_keypoints": np.ones((1, 2, 17, 3))
        },
    }[kind]  # fmt: skip
    labels = np.zeros((1, 2), np.int32)
    more = {"scores": np.ones((1, 2)), "labels": labels, "target_labels": labels}
    arguments = {"boxes": None, "target_boxes": None, **more, **given, **changed}
    metric = MeanAveragePrecision(num_classes=1, capacity=4, iou_type=kind)
    with pytest.raises(datarax.DataraxError, match=said):
        metric.update(**arguments)


def test_what_cannot_be_used_is_counted():
    labels, scores = np.zeros((3, 1), np.int32), np.ones((3, 1))
    common = {"boxes": None, "target_boxes": None, "scores": scores}
    common |= {"labels": labels, "target_labels": labels}
    mask = {"size": [1, 2], "counts": [0, 2]}
    nothing = {"size": [1, 2], "counts": [2]}
    metric = MeanAveragePrecision(num_classes=1, capacity=4, iou_type="segm", on_invalid="exclude")
    # A valid mask that is None makes its image invalid; a true mask without pixels is not found.
    seen = metric.update(
        masks=[[None], [mask], [mask]], target_masks=[[mask], [nothing], [mask]], **common
    )
    assert int(seen.invalid_count()) == 1
    with pytest.warns(datarax.InvalidValuesWarning):
        assert seen.compute()["mar_100"] == 0.5
    points = np.ones((3, 1, 17, 3))
    spoilt = points.copy()
    spoilt[0, 0, 3, 1] = np.nan
    area = np.float32([[1e4], [1e4], [np.inf]])
    metric = MeanAveragePrecision(num_classes=1, capacity=4, iou_type="keypoints")
    seen = metric.update(keypoints=spoilt, target_keypoints=points, area=area, **common)
    assert int(seen.invalid_count()) == 2


def test_configuration():
    for sigmas in (0.1, (), (0.1, -1), (np.nan,)):
        with pytest.raises(datarax.MetricInputError, match="sigmas="):
            MeanAveragePrecision(num_classes=1, iou_type="keypoints", sigmas=sigmas)
    assert MeanAveragePrecision(num_classes=1, sigmas=list(COCO_SIGMAS)).sigmas == COCO_SIGMAS
    with pytest.raises(datarax.MetricInputError, match="iou_type='mask'"):
        MeanAveragePrecision(num_classes=1, iou_type="mask")
