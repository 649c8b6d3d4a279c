"""Boxes: pairs of them, and detections in images."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from datarax import metrics
from datarax.statistics.detected_shapes import COCO_SIGMAS
from tests import coco
from tests.helpers import fsum
from tests.registry.case import Arrays, Case, Inputs
from tests.registry.regression import NOT_NUMBERS

# Pairs of boxes.


def box_pairs(
    rng: np.random.Generator, size: int, *, scale: float = 1.0, offset: float = 0.0, flat: Any = ()
) -> Arrays:
    """Boxes that mostly overlap; `flat` are the axes along which they have no extent."""
    corners = np.sort(rng.random((2, size, 2, 2)), axis=2)
    corners[1] = np.where(rng.random((size, 1, 1)) < 0.2, corners[0], corners[1])
    for axis in flat:
        corners[0, :, 1, axis] = corners[0, :, 0, axis]
    boxes = np.float32(corners.reshape(2, size, 4) * scale + offset)
    return {"preds": boxes[0], "target": boxes[1]}


def whole_boxes(rng: np.random.Generator, size: int) -> Arrays:
    drawn = box_pairs(rng, size, scale=8)
    return {name: np.round(x) for name, x in drawn.items()}


def are_boxes(*several: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        fine = [np.isfinite(x).all(-1) & (x[..., :2] <= x[..., 2:]).all(-1) for x in several]
    return np.logical_and.reduce(fine)


PAIRS = Inputs(
    "box pairs",
    draw=partial(box_pairs, scale=100),
    valid=lambda preds, target: are_boxes(preds, target),
    spoil={"preds": NOT_NUMBERS, "target": NOT_NUMBERS},
    hard={
        "whole": whole_boxes,
        "flat": partial(box_pairs, flat=(0,)),
        "points": partial(box_pairs, flat=(0, 1)),
        "huge": partial(box_pairs, scale=1e20),
        "tiny": partial(box_pairs, scale=1e-20),
        "offset of 1e6": partial(box_pairs, scale=32, offset=1e6),
        "apart": lambda rng, size: {
            "preds": box_pairs(rng, size)["preds"],
            "target": box_pairs(rng, size, offset=3)["target"],
        },
    },
)


def overlaps(p: np.ndarray, t: np.ndarray) -> dict[str, float]:
    """The four measures of one pair of boxes, in float64."""
    a, b = p[2:] - p[:2], t[2:] - t[:2]
    common = np.clip(np.minimum(p[2:], t[2:]) - np.maximum(p[:2], t[:2]), 0, None).prod()
    around = np.maximum(p[2:], t[2:]) - np.minimum(p[:2], t[:2])
    union = a.prod() + b.prod() - common
    iou = common / union if union else 0.0
    empty = (around.prod() - union) / around.prod() if around.prod() else 0.0
    apart = (p[:2] + p[2:] - t[:2] - t[2:]) / 2
    far = (apart**2).sum() / (around**2).sum() if around.any() else 0.0
    turned = math.atan2(*a) - math.atan2(*b) if a.any() and b.any() else 0.0
    v = (2 / math.pi * turned) ** 2
    shape = v * v / (1 - iou + v) if v else 0.0
    return {"iou": iou, "giou": iou - empty, "diou": iou - far, "ciou": iou - far - shape}


def mean_overlap(w: np.ndarray, preds: np.ndarray, target: np.ndarray, *, name: str) -> float:
    used = w > 0
    values = [overlaps(p, t)[name] for p, t in zip(preds[used], target[used], strict=True)]
    return fsum(w[used] * values) / fsum(w[used]) if used.any() else np.nan


# Detections.

CLASSES, FOUND, THERE = 3, 5, 4
F1_THRESHOLDS = (-1.0, 0.25, 0.5, 0.75, 2.0)


def images(rng: np.random.Generator, size: int, **config: Any) -> Arrays:
    return coco.drawn(rng, size, FOUND, THERE, CLASSES, **config)


def altered(change: Callable[[Arrays], Any], rng: np.random.Generator, size: int) -> Arrays:
    drawn = images(rng, size)
    change(drawn)
    return drawn


def equal_scores(drawn: Arrays) -> None:
    drawn["scores"] = np.round(drawn["scores"] * 2)


def exact_boxes(drawn: Arrays) -> None:
    """Boxes of few whole numbers, whose IoU often equals a threshold or another IoU."""
    for name in ("boxes", "target_boxes"):
        x = np.round(drawn[name] / 40)
        drawn[name] = np.concatenate([x[..., :2], np.maximum(x[..., 2:], x[..., :2])], -1)


def one_class(drawn: Arrays) -> None:
    drawn["labels"][:], drawn["target_labels"][:] = 1, 1


def at_the_first(drawn: Arrays) -> None:
    """Every detection equals the first true box."""
    drawn["boxes"][:] = drawn["target_boxes"][:, :1]


IMAGES = {
    "equal scores": partial(altered, equal_scores),
    "exact boxes": partial(altered, exact_boxes),
    "one class": partial(altered, one_class),
    "no detections": partial(altered, lambda x: x["valid"].fill(False)),
    "crowds only": partial(altered, lambda x: x["crowd"].fill(True)),
    "no padding": partial(altered, lambda x: (x["valid"].fill(True), x["target_valid"].fill(True))),
    "all at the first": partial(altered, at_the_first),
    "none right": partial(images, right=0.0),
}  # fmt: skip


def usable(
    boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray, target_boxes: np.ndarray,
    target_labels: np.ndarray, valid: np.ndarray, target_valid: np.ndarray, crowd: np.ndarray,
    area: np.ndarray,
) -> np.ndarray:  # fmt: skip
    found = are_boxes(boxes) & np.isfinite(scores) & (labels >= 0) & (labels < CLASSES)
    there = are_boxes(target_boxes) & np.isfinite(area) & (area >= 0)
    there &= (target_labels >= 0) & (target_labels < CLASSES)
    return (found | (valid == 0)).all(1) & (there | (target_valid == 0)).all(1)


class Detections(Inputs):
    """Inputs whose first boxes are spoilt, which are no padding then."""

    def spoilt(self, rng: np.random.Generator, arrays: Arrays, rows: np.ndarray) -> Arrays:
        spoilt = {name: x.copy() for name, x in arrays.items()}
        for row in rows:
            spoilt["valid"][row, 0] = spoilt["target_valid"][row, 0] = True
            name = rng.choice(list(self.spoil))
            x = spoilt[name]
            at = (row, 0, rng.integers(4)) if x.ndim == 3 else (row, 0)
            x[at] = np.asarray(rng.choice(self.spoil[name])).astype(x.dtype)
        return spoilt


DETECTIONS = Detections(
    "detections",
    draw=images,
    valid=usable,
    spoil={
        "boxes": NOT_NUMBERS,
        "scores": NOT_NUMBERS,
        "labels": (-1, CLASSES, 2**30),
        "target_boxes": NOT_NUMBERS,
        "target_labels": (-1, CLASSES, 2**31 - 1),
        "area": (*NOT_NUMBERS, -1.0),
    },
    hard=IMAGES,
)


def precision_of(
    w: np.ndarray, *, measures: Callable[..., Any] | None = None, **given: np.ndarray
) -> dict[str, float]:
    """The twelve numbers from the definition; equal scores count together.

    `measures` gives of an image the overlaps (D, G), the areas of the detections, and which of the
    ground truth may count; of boxes by default.
    """
    values = {name: [] for name in coco.NAMES}
    ranges = {"": (0, 1e10), "small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, 1e10)}
    for label in range(CLASSES):
        for suffix, within in ranges.items():
            support, rows = matched(w, label, within, given, measures or of_boxes)
            if not support:
                continue
            ap, ar = (
                np.array(x)
                for x in zip(*(curve(support, rows[:, t]) for t in range(10)), strict=True)
            )
            values[f"map_{suffix}".rstrip("_")].append(ap.mean())
            values[f"mar_{suffix or 100}"].append(ar.mean())
            if not suffix:
                values["map_50"].append(ap[0])
                values["map_75"].append(ap[5])
                for most in (1, 10):
                    few = rows[rows[:, 0, 2] < most]
                    found = [curve(support, few[:, t])[1] for t in range(10)]
                    values[f"mar_{most}"].append(np.mean(found))
    return {name: float(np.mean(x)) if x else np.nan for name, x in values.items()}


def matched(
    w: np.ndarray, label: int, within: tuple[float, float], given: Arrays, measures: Any
) -> tuple[float, np.ndarray]:
    """The weight of the ground truth; and the detections by threshold (rows, 10, 4).

    Of each detection the score, the weight, the rank, and 1 if it is right, 0 if wrong, else NaN.
    """
    low, high = within
    support, rows = [], []
    for i in np.flatnonzero(w > 0):
        x = {name: array[i] for name, array in given.items()}
        there = np.flatnonzero((x["target_valid"] > 0) & (x["target_labels"] == label))
        found = np.flatnonzero((x["valid"] > 0) & (x["labels"] == label))
        found = found[np.argsort(-x["scores"][found], kind="stable")][:100]
        overlaps, sizes, may_count = measures(x)
        counts = {
            j: not x["crowd"][j] and may_count[j] and low <= x["area"][j] <= high for j in there
        }
        support += [w[i]] * sum(counts.values())
        taken: list[set[int]] = [set() for _ in range(10)]
        for rank, d in enumerate(found):
            overlap = {j: overlaps[d, j] for j in there}
            of_box = []
            for t, least in enumerate(np.linspace(0.5, 0.95, 10)):
                free = [j for j in there if overlap[j] >= least and j not in taken[t]]
                best = max(free, key=lambda j: (counts[j], overlap[j], j), default=None)
                right = 0.0 if low <= sizes[d] <= high else np.nan
                if best is not None:
                    right = 1.0 if counts[best] else np.nan
                    if not x["crowd"][best]:
                        taken[t].add(best)
                of_box.append((x["scores"][d], w[i], rank, right))
            rows.append(of_box)
    return fsum(np.array(support)), np.array(rows).reshape(-1, 10, 4)


def of_boxes(x: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The overlaps of boxes, and their areas."""
    found, there = x["boxes"], x["target_boxes"]
    overlaps = [
        [iou_of(box, other, crowd > 0) for other, crowd in zip(there, x["crowd"], strict=True)]
        for box in found
    ]
    sizes = (found[:, 2:] - found[:, :2]).prod(1)
    return np.array(overlaps).reshape(len(found), len(there)), sizes, np.ones(len(there), bool)


def of_masks(x: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The overlaps of masks, and their numbers of pixels."""
    found, there = (x[name].reshape(len(x[name]), -1) for name in ("masks", "target_masks"))
    common, mine, theirs = found @ there.T, found.sum(1), there.sum(1)
    union = mine[:, None] + np.where(x["crowd"] > 0, 0, theirs - common)
    overlaps = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return overlaps, mine, np.ones(len(there), bool)


def of_keypoints(x: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The object keypoint similarities, and the areas around the key points of detections."""
    found, there = x["keypoints"][..., :2], x["target_keypoints"][..., :2]
    visible = x["target_keypoints"][..., 2] > 0
    low, high = x["target_boxes"][:, None, :2], x["target_boxes"][:, None, 2:]
    apart = found[:, None] - there
    outside = np.maximum(low - (high - low) - found[:, None], 0)
    outside += np.maximum(found[:, None] - high - (high - low), 0)
    some = visible.any(1)
    squares = (np.where(some[:, None, None], apart, outside) ** 2).sum(-1)
    spread = 2 * x["area"][:, None] * (2 * np.array(COCO_SIGMAS)) ** 2
    near = np.exp(-squares / spread)
    counts = visible | ~some[:, None]
    overlaps = (near * counts).sum(-1) / counts.sum(-1)
    return overlaps, np.ptp(found, axis=1).prod(-1), np.asarray(some)


def iou_of(found: np.ndarray, there: np.ndarray, crowd: bool) -> float:
    size = np.minimum(found[2:], there[2:]) - np.maximum(found[:2], there[:2])
    if (size <= 0).any():
        return 0.0
    a, b = (found[2:] - found[:2]).prod(), (there[2:] - there[:2]).prod()
    return size.prod() / (a if crowd else a + b - size.prod())


def recall_levels() -> np.ndarray:
    """The recalls 0, 0.01, ..., 1, less what sums of weights are rounded by.

    Some levels of COCO are float64 that are above the hundredths, which do not reach them then.
    """
    hundredths = np.arange(101) / 100
    above = np.linspace(0, 1, 101) > hundredths
    return hundredths + np.where(above, 1, -1) * 1e-12


LEVELS = recall_levels()


def curve(support: float, rows: np.ndarray) -> tuple[float, float]:
    """The average precision and the recall."""
    recall, precision = [0.0], [0.0]
    for score in np.unique(rows[:, 0]):
        _, weight, _, right = rows[rows[:, 0] >= score].T
        hits, misses = fsum(weight[right == 1]), fsum(weight[right == 0])
        recall.append(hits / support)
        precision.append(hits / (hits + misses) if hits else 0.0)
    best = np.where(np.array(recall) >= LEVELS[:, None], precision, 0).max(1)
    return fsum(best) / 101, max(recall)


def curves_of(w: np.ndarray, **given: np.ndarray) -> dict[str, np.ndarray]:
    """The curves at the levels of recall, (T, C, 101)."""
    precision, score = np.full((2, 10, CLASSES, 101), np.nan)
    for label in range(CLASSES):
        support, rows = matched(w, label, (0, 1e10), given, of_boxes)
        for t in range(10) if support else ():
            points = [(*point_of(rows[:, t], s, support), s) for s in np.unique(rows[:, t, 0])]
            recall, exact, least = np.array(points).reshape(-1, 3).T
            reached = recall >= LEVELS[:, None]
            precision[t, label] = np.where(reached, exact, 0).max(1, initial=0)
            score[t, label] = np.where(reached, least, -np.inf).max(1, initial=-np.inf)
    score[~np.isfinite(score)] = np.nan
    return {"precision": precision, "score": score, "recall": np.arange(101) / 100}


def point_of(rows: np.ndarray, score: float, support: float) -> tuple[float, float]:
    """The recall and the precision of the detections with at least a score."""
    _, weight, _, right = rows[rows[:, 0] >= score].T
    hits, misses = fsum(weight[right == 1]), fsum(weight[right == 0])
    return hits / support, hits / (hits + misses) if hits else 0.0


def f1_of(
    w: np.ndarray, *, thresholds: tuple[float, ...], average: str | None, **given: np.ndarray
) -> dict[str, Any]:
    """The F1 score, the precision and the recall at an IoU of 0.5 and 0.7, (S, C) or (S,)."""
    parts = np.full((3, 2, len(thresholds), CLASSES), np.nan)
    for label in range(CLASSES):
        support, rows = matched(w, label, (0, 1e10), given, of_boxes)
        for s, least in enumerate(thresholds) if support else ():
            for i, t in enumerate((0, 4)):
                _, weight, _, right = rows[rows[:, t, 0] >= np.float32(least), t].T
                hits, misses = fsum(weight[right == 1]), fsum(weight[right == 0])
                parts[:, i, s, label] = (
                    2 * hits / (hits + misses + support),
                    hits / (hits + misses) if hits + misses else np.nan,
                    hits / support,
                )

    def mean(x: np.ndarray, axis: int) -> np.ndarray:
        some = np.isfinite(x)
        with np.errstate(invalid="ignore"):
            return np.where(some, x, 0).sum(axis) / some.sum(axis)

    f1, precision, recall = mean(parts, 1) if average is None else mean(mean(parts, 1), -1)
    # The best of values that are within a rounding of each other is any of them.
    least = np.float32(thresholds)
    best = np.where(np.isnan(f1[0]), np.nan, least[np.argmax(f1.round(6), 0)])
    return {
        "f1": f1, "precision": precision, "recall": recall, "threshold": least,
        "best_f1": f1.max(0), "best_threshold": best,
    }  # fmt: skip


def coco_precision(w: np.ndarray, **given: np.ndarray) -> dict[str, float] | None:
    if not np.isin(w, (0, 1)).all():
        return None
    used = {name: x[w > 0] for name, x in given.items()}
    scores = used["scores"][used["valid"] > 0]
    if len(np.unique(scores)) < len(scores):
        return None
    return coco.summary(used, CLASSES)


# Masks and key points, which differ in their overlaps alone. Boxes are drawn, too, of which masks
# use none, and key points those of the ground truth.


def usable_without_boxes(target_boxes: np.ndarray, **given: np.ndarray) -> np.ndarray:
    corners = np.broadcast_to(np.float64([0, 0, 1, 1]), (*given["labels"].shape, 4))
    points = [given.pop(name, None) for name in ("keypoints", "target_keypoints")]
    masks = ("masks", "target_masks")
    rest = {name: x for name, x in given.items() if name not in masks and name != "boxes"}
    fine = usable(corners, target_boxes=target_boxes, **rest)
    for x, real in zip(points, (given["valid"], given["target_valid"]), strict=True):
        if x is not None:
            fine &= (np.isfinite(x).all((2, 3)) | (real == 0)).all(1)
    return fine


def shapes(add: Callable[..., Arrays], rng: np.random.Generator, size: int) -> Arrays:
    drawn = add(rng, images(rng, size))
    for name in ("masks", "target_masks"):
        if name in drawn:
            drawn[name][:, :, 0, 0] = True  # none is empty
    return drawn


def detected(name: str, add: Callable[..., Arrays], *points: str) -> Detections:
    kept = ("scores", "labels", "target_labels", "area")
    spoil = {x: DETECTIONS.spoil[x] for x in kept} | dict.fromkeys(points, NOT_NUMBERS)
    return Detections(name, partial(shapes, add), usable_without_boxes, spoil, {})


def coco_of(kind: str, w: np.ndarray, **given: np.ndarray) -> dict[str, float] | None:
    """The reference where weights are a mask, and scores differ."""
    if not np.isin(w, (0, 1)).all():
        return None
    used = {name: x[w > 0] for name, x in given.items()}
    scores = used["scores"][used["valid"] > 0]
    if len(np.unique(scores)) < len(scores):
        return None
    values = coco.by_class(used, CLASSES, iou_type=kind)
    return {n: float(np.nanmean(x)) if np.isfinite(x).any() else np.nan for n, x in values.items()}


CASES = [
    *(
        # A mean of at most 64 values: their sum is a double-float, each is rounded once. The terms
        # of all but the IoU may cancel, and the arctangent of CIoU has a few ulp.
        Case(
            name,
            cls,
            PAIRS,
            partial(mean_overlap, name=name),
            ulps=2,
            atol=lambda w, **_: 4 * 2.0**-24,
            state_atol=lambda w, **_: 4 * 2.0**-24 * max(1.0, float(w.sum())),
        )
        for name, cls in (
            ("iou", metrics.IoU),
            ("giou", metrics.GIoU),
            ("diou", metrics.DIoU),
            ("ciou", metrics.CIoU),
        )
    ),
    Case(
        "mean_average_precision",
        metrics.MeanAveragePrecision,
        DETECTIONS,
        precision_of,
        {"num_classes": CLASSES, "capacity": 512},
        reference=coco_precision,
        ulps=2,  # precisions are rounded, all their means are double-floats that are rounded once
        exact=True,
    ),
    Case(
        "detection_curve",
        metrics.DetectionCurve,
        DETECTIONS,
        curves_of,
        {"num_classes": CLASSES, "capacity": 512},
        empty={"recall": np.arange(101, dtype=np.float32) / np.float32(100)},
        exact=True,
        perfect="any",
    ),
    *(
        Case(
            f"detection_f1_{average}",
            metrics.DetectionF1,
            DETECTIONS,
            partial(f1_of, thresholds=F1_THRESHOLDS, average=average),
            {
                "num_classes": CLASSES,
                "capacity": 512,
                "average": average,
                "thresholds": F1_THRESHOLDS,
                "iou_thresholds": (0.5, 0.7),
            },
            ulps=4,  # each ratio is rounded once, and the means of two and of three
            exact=True,
            empty={"threshold": np.float32(F1_THRESHOLDS)},
            perfect="any",
        )
        for average in ("macro", None)
    ),
    *(
        Case(
            f"mean_average_precision_{kind}",
            metrics.MeanAveragePrecision,
            inputs,
            partial(precision_of, measures=measures),
            {"num_classes": CLASSES, "capacity": 512, "iou_type": kind},
            reference=partial(coco_of, kind),
            ulps=2,
            exact=True,
            laws=False,
        )
        for kind, inputs, measures in (
            ("segm", detected("detected masks", coco.with_masks), of_masks),
            (
                "keypoints",
                detected("key points", coco.with_keypoints, "keypoints", "target_keypoints"),
                of_keypoints,
            ),
        )
    ),
]
