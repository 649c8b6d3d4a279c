"""What pycocotools says of a batch of images, and random images to compare with it."""

import contextlib
import io
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

Arrays = dict[str, np.ndarray]
HEIGHT, WIDTH = 37, 53
"""Of masks."""
NAMES = ("map", "map_50", "map_75", "map_small", "map_medium", "map_large")
NAMES += ("mar_1", "mar_10", "mar_100", "mar_small", "mar_medium", "mar_large")


def evaluated(
    images: Arrays,
    num_classes: int,
    *,
    iou_thresholds: Any = None,
    max_detections: tuple[int, ...] | None = None,
    iou_type: str = "bbox",
    sigmas: tuple[float, ...] | None = None,
) -> COCOeval:
    """The evaluation of images: the arguments of `MeanAveragePrecision.update`.

    pycocotools has no way to ignore a box or a mask; one that is greater than all areas that count
    is, and so are key points whose number is said to be zero.
    """
    n, d = images["scores"].shape
    g = images["target_labels"].shape[1]
    valid = images.get("valid", np.ones((n, d), bool))
    target_valid = images.get("target_valid", np.ones((n, g), bool))
    crowd = images.get("crowd", np.zeros((n, g), bool))
    ignore = images.get("ignore", np.zeros((n, g), bool))

    def xywh(box: np.ndarray) -> list[float]:
        x1, y1, x2, y2 = map(float, box)
        return [x1, y1, x2 - x1, y2 - y1]

    truth = []
    for i, j in np.argwhere(target_valid):
        box = xywh(images["target_boxes"][i, j])
        area = float(images["area"][i, j]) if "area" in images else box[2] * box[3]
        area = 2e10 if ignore[i, j] and iou_type != "keypoints" else area
        truth.append({
            "id": len(truth) + 1, "image_id": int(i), "bbox": box, "area": area,
            "category_id": int(images["target_labels"][i, j]), "iscrowd": int(crowd[i, j]),
        })  # fmt: skip
        truth[-1] |= shape(images, "target_", iou_type, i, j)
    found = [
        {
            "image_id": int(i), **shape(images, "", iou_type, i, j),
            "category_id": int(images["labels"][i, j]), "score": float(images["scores"][i, j]),
        }
        for i, j in np.argwhere(valid)
    ]  # fmt: skip
    if iou_type == "bbox":
        for each, (i, j) in zip(found, np.argwhere(valid), strict=True):
            each["bbox"] = xywh(images["boxes"][i, j])
    with contextlib.redirect_stdout(io.StringIO()):
        coco: Any = COCO()
        coco.dataset = {
            "images": [{"id": i, "height": HEIGHT, "width": WIDTH} for i in range(n)],
            "categories": [{"id": c} for c in range(num_classes)],
            "annotations": truth,
        }
        coco.createIndex()
        detected: Any = COCO()
        detected.dataset = coco.dataset | {"annotations": []}
        detected.createIndex()
        if found:
            detected = coco.loadRes(found)
        evaluation = COCOeval(coco, detected, iou_type)
        usual = COCOeval(iouType="bbox").params
        # Of key points, pycocotools has other areas, numbers and thresholds by default.
        evaluation.params.areaRng, evaluation.params.areaRngLbl = usual.areaRng, usual.areaRngLbl
        evaluation.params.maxDets = usual.maxDets
        if sigmas is not None:
            evaluation.params.kpt_oks_sigmas = np.array(sigmas)
        if iou_thresholds is not None:
            evaluation.params.iouThrs = np.array(iou_thresholds)
        if max_detections is not None:
            evaluation.params.maxDets = list(max_detections)
        evaluation.evaluate()
        evaluation.accumulate()
        if (
            max_detections is None and iou_type == "bbox"
        ):  # it prints three numbers of detections, and no others
            evaluation.summarize()
    return evaluation


def shape(images: Arrays, prefix: str, iou_type: str, i: int, j: int) -> dict[str, Any]:
    """A mask or key points as a file of COCO has them; nothing of a box."""
    if iou_type == "segm":
        return {"segmentation": encoded(images[f"{prefix}masks"][i, j])}
    if iou_type == "keypoints":
        points = images[f"{prefix}keypoints"][i, j].astype(np.float64)
        ignored = prefix and "ignore" in images and images["ignore"][i, j]
        number = 0 if ignored else int((points[:, 2] > 0).sum())
        return {"keypoints": points.ravel().tolist(), "num_keypoints": number}
    return {}


def encoded(mask: np.ndarray) -> Any:
    """The run lengths of a mask, compressed."""
    return coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))


def with_masks(rng: np.random.Generator, drawn: Arrays) -> Arrays:
    """The ellipses within the boxes on a small grid; a few masks have pixels elsewhere, too."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    for name in ("boxes", "target_boxes"):
        box = drawn[name][..., None, None].astype(np.float64) * (HEIGHT / 300)
        low, high = box[:, :, :2], box[:, :, 2:]
        centre, half = (low + high) / 2, np.maximum((high - low) / 2, 0.7)
        x, y = (
            ((columns - centre[:, :, 0]) / half[:, :, 0]),
            ((rows - centre[:, :, 1]) / half[:, :, 1]),
        )
        masks = x * x + y * y <= 1
        masks |= (rng.random(masks.shape) < 0.02) & (rng.random(box.shape[:2]) < 0.2)[
            ..., None, None
        ]
        drawn[f"{name.removesuffix('boxes')}masks"] = masks
    return drawn


def with_keypoints(rng: np.random.Generator, drawn: Arrays, points: int = 17) -> Arrays:
    """Key points at random places in the boxes; those of detections near one of the true ones."""
    there, found = drawn["target_boxes"], drawn["boxes"]
    place = rng.random((*there.shape[:2], points, 2))
    size = there[:, :, None, 2:] - there[:, :, None, :2]
    seen = (
        rng.integers(0, 3, (*there.shape[:2], points))
        * (rng.random(there.shape[:2]) < 0.8)[..., None]
    )
    truth = np.concatenate([there[:, :, None, :2] + place * size, seen[..., None]], -1)
    of = rng.integers(0, there.shape[1], found.shape[:2])
    near = np.take_along_axis(truth, of[..., None, None], 1)
    scale = np.sqrt(np.take_along_axis(size.prod(-1), of[..., None], 1))[..., None]
    spread = -0.05 * np.log(rng.random((*found.shape[:2], 1, 1))) * scale
    moved = near[..., :2] + rng.normal(size=(*found.shape[:2], points, 2)) * spread
    drawn["labels"] = np.where(
        rng.random(of.shape) < 0.9,
        np.take_along_axis(drawn["target_labels"], of, 1),
        drawn["labels"],
    ).astype(np.int32)
    drawn["keypoints"] = np.concatenate([moved, np.ones_like(moved[..., :1])], -1).astype(
        np.float32
    )
    drawn["target_keypoints"] = truth.astype(np.float32)
    return drawn


def summary(images: Arrays, num_classes: int) -> dict[str, Any]:
    """The twelve numbers, NaN where they are not defined."""
    stats = evaluated(images, num_classes).stats
    return {name: np.nan if x == -1 else x for name, x in zip(NAMES, stats, strict=True)}


def by_class(images: Arrays, num_classes: int, **config: Any) -> dict[str, Any]:
    """The twelve numbers of each class, NaN where they are not defined."""
    evaluation = evaluated(images, num_classes, **config)
    precision, recall = (
        np.where(evaluation.eval[x] == -1, np.nan, evaluation.eval[x])
        for x in ("precision", "recall")
    )
    ap, ar = precision.mean(1), recall  # (T, C, A, M)
    thresholds = list(evaluation.params.iouThrs)

    def at(threshold: float) -> np.ndarray:
        if threshold not in thresholds:
            return np.full(num_classes, np.nan)
        return ap[thresholds.index(threshold), :, 0, -1]

    values = {"map": ap[..., 0, -1].mean(0), "map_50": at(0.5), "map_75": at(0.75)}
    sizes = {size: place for place, size in enumerate(("small", "medium", "large"), 1)}
    values |= {f"map_{size}": ap[..., a, -1].mean(0) for size, a in sizes.items()}
    values |= {
        f"mar_{most}": ar[..., 0, m].mean(0) for m, most in enumerate(evaluation.params.maxDets)
    }
    return values | {f"mar_{size}": ar[..., a, -1].mean(0) for size, a in sizes.items()}


def in_format(boxes: np.ndarray, box_format: str) -> np.ndarray:
    """Corners in another format, in float64: of these numbers, the sizes are not rounded."""
    low, high = boxes[..., :2].astype(np.float64), boxes[..., 2:].astype(np.float64)
    if box_format == "xyxy":
        return boxes
    return np.concatenate([low if box_format == "xywh" else (low + high) / 2, high - low], -1)


def drawn(
    rng: np.random.Generator,
    images: int,
    detections: int,
    boxes: int,
    classes: int,
    *,
    right: float = 0.7,
) -> Arrays:
    """Images with some padding: detections are true boxes that are moved, or other boxes.

    Boxes, areas and scores are float32; no two scores are equal.
    """
    corner = rng.random((images, boxes, 2)) * 200
    side = np.exp(rng.uniform(np.log(4), np.log(300), (images, boxes, 2)))
    truth = np.concatenate([corner, corner + side], -1)
    labels = rng.integers(0, classes, (images, boxes))
    of = rng.integers(0, boxes, (images, detections))
    box = np.take_along_axis(truth, of[..., None], 1)
    size = np.tile(box[..., 2:] - box[..., :2], 2)
    spread = -0.08 * np.log(rng.random((images, detections, 1)))
    box = box + size * rng.normal(size=box.shape) * spread
    box[..., 2:] = np.maximum(box[..., 2:], box[..., :2])
    same = rng.random((images, detections)) < right
    label = np.where(
        same, np.take_along_axis(labels, of, 1), rng.integers(0, classes, (images, detections))
    )
    scores = rng.permutation(images * detections).reshape(images, detections) + 1
    return {
        "boxes": box.astype(np.float32),
        "scores": (scores / max(scores.size, 1)).astype(np.float32),
        "labels": label.astype(np.int32),
        "target_boxes": truth.astype(np.float32),
        "target_labels": labels.astype(np.int32),
        "valid": rng.random((images, detections)) < 0.9,
        "target_valid": rng.random((images, boxes)) < 0.9,
        "crowd": rng.random((images, boxes)) < 0.1,
        "area": (side.prod(-1) * rng.uniform(0.5, 1, (images, boxes))).astype(np.float32),
    }
