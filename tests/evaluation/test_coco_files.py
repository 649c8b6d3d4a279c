"""`--format coco`: results and ground truth of detections, beside pycocotools on the same files."""

import contextlib
import io
import json

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from datarax.cli import main
from datarax.evaluation.coco_files import distinct_scores
from tests import coco

CATEGORIES = {7: "cat", 90: "dog", 3: "bird", 12: "fish"}
"""With gaps, in no order; there is no fish."""
IMAGES = 40


def drawn(rng):
    """The contents of both files, with equal scores, crowds, areas, and images without boxes."""
    batch = coco.drawn(rng, IMAGES, 30, 6, 3, right=0.8)
    ids, images = list(CATEGORIES), rng.permutation(1000)[:IMAGES].tolist()
    known = np.arange(IMAGES) % 9 != 8
    truth, found = [], []
    for i, j in np.argwhere(batch["target_valid"] & (np.arange(IMAGES) % 7 != 6)[:, None]):
        x1, y1, x2, y2 = batch["target_boxes"][i, j].round(2).tolist()
        crowd = int(batch["crowd"][i, j])
        truth.append({
            "id": len(truth) + 1, "image_id": images[i], "iscrowd": crowd,
            "category_id": ids[batch["target_labels"][i, j]],
            "bbox": [x1, y1, x2 - x1, y2 - y1], "area": float(batch["area"][i, j]),
        })  # fmt: skip
    for i, j in np.argwhere(batch["valid"] & known[:, None]):
        x1, y1, x2, y2 = batch["boxes"][i, j].round(2).tolist()
        found.append({
            "image_id": images[i], "category_id": ids[batch["labels"][i, j]],
            "bbox": [x1, y1, x2 - x1, y2 - y1], "score": round(float(batch["scores"][i, j]), 1),
        })  # fmt: skip
    rng.shuffle(found)
    return {
        "images": [
            {"id": x, "file_name": f"{x}.jpg", "night": bool(i % 2)} for i, x in enumerate(images)
        ],
        "categories": [{"id": x, "name": name} for x, name in CATEGORIES.items()],
        "annotations": truth,
    }, found


def written(tmp_path, truth, found):
    paths = tmp_path / "truth.json", tmp_path / "found.json"
    for path, contents in zip(paths, (truth, found), strict=True):
        path.write_text(json.dumps(contents))
    return paths


def given(paths, *more, command="evaluate"):
    truth, *found = paths
    files = map(str, found)
    return [command, *files, "--task", "detection", "--format", "coco", "--target", str(truth),
            "--no-progress", *map(str, more)]  # fmt: skip


def evaluated(paths, output, *more):
    assert main(given(paths, "--output", output, *more)) == 0
    return json.loads((output / "metrics.json").read_text())


def refused(capsys, argv):
    with pytest.raises(SystemExit):
        main(argv)
    return capsys.readouterr().err.replace("\n", " ")


def by_pycocotools(paths):
    """The twelve numbers; and the average precision of each class by name, NaN if it has none."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(paths[0]))
        evaluation = COCOeval(truth, truth.loadRes(str(paths[1])), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    precision = evaluation.eval["precision"][..., 0, 2]
    values = np.where(precision < 0, np.nan, precision).mean((0, 1))
    names = [CATEGORIES[x] for x in evaluation.params.catIds]
    return (
        dict(zip(coco.NAMES, evaluation.stats, strict=True)),
        dict(zip(names, values.tolist(), strict=True)),
    )


def test_equals_pycocotools(rng, tmp_path, capsys):
    paths = written(tmp_path, *drawn(rng))
    summary = evaluated(paths, tmp_path / "out")
    want, of_classes = by_pycocotools(paths)
    got = {
        x["name"].removeprefix("mean_average_precision/"): x["value"] for x in summary["metrics"]
    }
    assert got.keys() == want.keys()
    for name, value in got.items():
        np.testing.assert_allclose(value, want[name], atol=2e-7, err_msg=name)
    table = summary["by_class"]
    (column,) = table["columns"]
    assert column["name"] == "mean_average_precision/map"
    values = [np.nan if x is None else x for x in column["values"]]
    np.testing.assert_allclose(values, [of_classes[x] for x in table["classes"]], atol=2e-7)
    assert table["classes"] == ["bird", "cat", "fish", "dog"]
    assert summary["source"]["rows"] == IMAGES
    assert any("4 of 40 images have no detection" in note for note in summary["notes"])
    shown = capsys.readouterr().out
    assert "bird" in shown
    assert "fish" in shown


def test_slices_intervals_options_and_processes(rng, tmp_path, capsys):
    truth, found = drawn(rng)
    paths = written(tmp_path, truth, found)
    more = ("--slice-by", "night", "--bootstrap", 2, "--engine", "processes", "--workers", 1)
    metrics = ("--metrics", "mean_average_precision:iou_thresholds=(0.5,):max_detections=(3,)")
    summary = evaluated(paths, tmp_path / "out", *more, *metrics)
    with contextlib.redirect_stdout(io.StringIO()):
        reference = COCO(str(paths[0]))
        evaluation = COCOeval(reference, reference.loadRes(str(paths[1])), "bbox")
        evaluation.params.iouThrs, evaluation.params.maxDets = np.array([0.5]), [3]
        nights = [x["id"] for x in truth["images"] if x["night"]]
        want = {}
        for name, images in (("true", nights), (None, [x["id"] for x in truth["images"]])):
            evaluation.params.imgIds = images
            evaluation.evaluate()
            evaluation.accumulate()
            precision = evaluation.eval["precision"][..., 0, 0]
            want[name] = precision[precision >= 0].mean()
    (row,) = [x for x in summary["metrics"] if x["name"].endswith("/map")]
    np.testing.assert_allclose(row["value"], want[None], atol=2e-7)
    assert 0 < row["lower"] <= row["upper"] < 1
    (night,) = [x for x in summary["slices"][0]["rows"] if x["name"] == "true"]
    (value,) = [x["value"] for name, x in night["values"].items() if name.endswith("/map")]
    np.testing.assert_allclose(value, want["true"], atol=2e-7)
    # Of another ground truth, it is another evaluation.
    written(tmp_path, truth | {"annotations": truth["annotations"][1:]}, found)
    argv = given(paths, "--output", tmp_path / "out", "--resume", *more, *metrics)
    assert "the ground truth is" in refused(capsys, argv)


def test_models_are_compared_image_by_image(rng, tmp_path):
    truth, found = drawn(rng)
    worse = [x | {"bbox": [0, 0, 1, 1]} if i % 3 else x for i, x in enumerate(found)]
    paths = written(tmp_path, truth, found)
    (tmp_path / "worse.json").write_text(json.dumps(worse[5:]))
    argv = given((*paths, tmp_path / "worse.json"), "--bootstrap", 2, command="compare")
    assert main([*argv, "--output", str(tmp_path / "out")]) == 0
    summary = json.loads((tmp_path / "out" / "metrics.json").read_text())
    row = next(x for x in summary["metrics"] if x["name"].endswith("/map"))
    np.testing.assert_allclose(row["a"], by_pycocotools(paths)[0]["map"], atol=2e-7)
    assert row["b"] < row["a"]


def test_empty_results_find_nothing(rng, tmp_path):
    summary = evaluated(written(tmp_path, drawn(rng)[0], []), tmp_path / "out")
    assert {x["value"] for x in summary["metrics"]} == {0.0}


def test_one_category(tmp_path):
    truth = {
        "images": [{"id": "a"}],
        "categories": [{"id": 5, "name": "cat"}],
        "annotations": [{"image_id": "a", "category_id": 5, "bbox": [1, 2, 3, 4]}],
    }
    found = [{"image_id": "a", "category_id": 5, "bbox": [1, 2, 3, 4], "score": 1}]
    summary = evaluated(written(tmp_path, truth, found), tmp_path / "out")
    assert next(x["value"] for x in summary["metrics"]) == 1
    assert summary["by_class"]["classes"] == ["cat"]


def test_what_cannot_be_used(rng, tmp_path):
    truth, found = drawn(rng)
    truth["annotations"][0]["ignore"] = 1
    truth["annotations"][0]["iscrowd"] = 0
    # A row is an image: the two that cannot be used are in different ones.
    of_image = {entry["image_id"]: entry for entry in found}
    first, second, *_ = of_image.values()
    others = [entry for entry in found if entry is not first and entry is not second]
    for entry in others[:7]:
        entry["category_id"] = 500
    first["score"], second["bbox"] = float("nan"), [5, 5, -3, 4]
    summary = evaluated(written(tmp_path, truth, found), tmp_path / "out")
    notes = " ".join(summary["notes"])
    assert "1 boxes have ignore=1 without iscrowd=1; they count" in notes
    assert "7 of" in notes
    assert "detections are of categories that" in notes
    assert "(500); they are left out" in notes
    reasons = {x["reason"]: x["rows"] for x in summary["excluded"]}
    assert sum(reasons.values()) == 2
    assert reasons.keys() == {"NaN", "out of range"}
    assert all(x["value"] is None for x in summary["metrics"])
    summary = evaluated(
        written(tmp_path, truth, found), tmp_path / "other", "--on-invalid", "exclude"
    )
    assert all(0 < x["value"] < 1 for x in summary["metrics"])


FAULTS = {
    "is the file of the ground truth": (lambda t, f: None, ("--task", "detection")),
    "found.json: it is no list of results of COCO": (lambda t, f: (t, {"a": 1}), ()),
    "it looks like a ground truth, which --target names": (lambda t, f: (t, t), ()),
    "FILE and --target are the other way round": (lambda t, f: (f, f), ()),
    "the list 'categories' is empty": (lambda t, f: (t | {"categories": []}, f), ()),
    "there are two of the image id": (lambda t, f: (t | {"images": t["images"] * 2}, f), ()),
    "which is no image of": (lambda t, f: (t, [f[0] | {"image_id": -4}]), ()),
    "(it has 7)": (lambda t, f: (t, [x | {"category_id": "7"} for x in f]), ()),
    "[1] has no 'score'": (lambda t, f: (t, [f[0], {k: f[0][k] for k in [*f[0]][:3]}]), ()),
    "[1] has score 'high'; expected a number": (
        lambda t, f: (t, [f[0], f[0] | {"score": "high"}]), ()),
    "[1] has bbox [1, 2, 3]; expected [x, y, w": (
        lambda t, f: (t, [f[0], f[0] | {"bbox": [1, 2, 3]}]), ()),
    "[0] is 3; expected an object": (lambda t, f: (t, [3]), ()),
    "has image_id [1]; expected the id": (lambda t, f: (t, [f[0] | {"image_id": [1]}]), ()),
    "annotations[0] has category_id 44, which is none": (
        lambda t, f: (t | {"annotations": [t["annotations"][0] | {"category_id": 44}]}, f), ()),
    "found.json: cannot be read": (None, ()),
    "is not for --format coco: the ground truth": (lambda t, f: (t, f), ("--classes", "a,b")),
    "boxes are x, y, width, height": (lambda t, f: (t, f), ("--box-format", "xyxy")),
    "whose columns are known": (lambda t, f: (t, f), ("--preds", "a,b,c")),
    "takes one file of results, got 2": (lambda t, f: (t, f), None),
}  # fmt: skip


def test_faults_are_named(rng, tmp_path, capsys):
    truth, found = drawn(rng)
    for said, (change, more) in FAULTS.items():
        both = (truth, found) if change is None else change(truth, found)
        if both is None:
            argv = ["evaluate", "a.json", "--format", "coco", *more]
        else:
            paths = written(tmp_path, *both)
            if change is None:
                paths[1].write_text("[{")
            if more is None:
                (tmp_path / "second.json").write_text("[]")
                paths, more = (*paths, tmp_path / "second.json"), ()
            argv = given(paths, *more)
        assert said in refused(capsys, argv), said


def test_two_evaluations_of_one_ground_truth_are_not_merged(rng, tmp_path, capsys):
    truth, found = drawn(rng)
    half = len(found) // 2
    for name, part in (("a", found[:half]), ("b", found[half : 2 * half])):
        evaluated(written(tmp_path, truth, part), tmp_path / name)
    argv = ["merge", str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(tmp_path / "c")]
    assert "images would count twice" in refused(capsys, argv)


def test_scores_become_distinct_in_the_order_of_pycocotools(rng):
    tiny = np.finfo(np.float32).tiny
    kinds = np.array([0, -0.0, 1, -1, 0.5, tiny, tiny / 4, -tiny, 1e-300, 0.1, 0.1 + 1e-12, 3e38])
    scores = rng.choice(kinds, 400)
    image = rng.integers(0, 20, 400)
    out = distinct_scores(scores, image)
    assert len(np.unique(out)) == 400
    assert not ((np.abs(out) < tiny) & (out != 0)).any()
    taken = np.where(np.abs(scores) < tiny, 0, scores)
    order = np.lexsort((np.arange(400), image, -scores))
    assert (np.diff(out[order]) < 0).all()
    np.testing.assert_allclose(out, taken, rtol=1e-4, atol=1e-35)
    same = distinct_scores(np.array([np.nan, 0.25, np.inf, 0.5]), np.zeros(4, int))
    np.testing.assert_array_equal(same, np.float32([np.nan, 0.25, np.inf, 0.5]))


@pytest.mark.parametrize("form", ["xywh", "cxcywh"])
def test_box_format_of_tables(rng, tmp_path, form):
    batch = coco.drawn(rng, 30, 10, 4, 2)
    del batch["area"], batch["crowd"]
    want = coco.summary(batch, 2)
    rows = []
    for i in range(30):
        found, there = batch["valid"][i], batch["target_valid"][i]
        rows.append({
            "b": coco.in_format(batch["boxes"][i], form)[found].tolist(),
            "s": batch["scores"][i][found].tolist(), "l": batch["labels"][i][found].tolist(),
            "tb": coco.in_format(batch["target_boxes"][i], form)[there].tolist(),
            "tl": batch["target_labels"][i][there].tolist(),
        })  # fmt: skip
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    argv = ["evaluate", str(path), "--task", "detection", "--preds", "b,s,l", "--target", "tb,tl",
            "--no-progress", "--output"]  # fmt: skip
    assert main([*argv, str(tmp_path / "out"), "--box-format", form]) == 0
    summary = json.loads((tmp_path / "out" / "metrics.json").read_text())
    for each in summary["metrics"]:
        name = each["name"].removeprefix("mean_average_precision/")
        value = np.nan if each["value"] is None else each["value"]
        np.testing.assert_allclose(value, want[name], atol=2e-7, err_msg=name)
    assert not any("box-format" in note for note in summary["notes"])
    assert main([*argv, str(tmp_path / "other")]) == 0
    summary = json.loads((tmp_path / "other" / "metrics.json").read_text())
    notes = [note for note in summary["notes"] if "give --box-format xywh" in note]
    assert len(notes) == 2
    assert "the column 'tb'" in notes[0]
