"""Images: classes of pixels, masks, and segments."""

from functools import partial
from typing import Any

import numpy as np
import scipy.ndimage
import scipy.spatial.distance
import sklearn.metrics

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Arrays, Case, Inputs
from tests.registry.reference import sklearn_of, whole

PIXEL_CLASSES, SIDE = 3, 5


def blobs(rng: np.random.Generator, size: int, labels: Any) -> np.ndarray:
    """Images that hold rectangles of random classes."""
    images = np.full((size, SIDE, SIDE), labels[0], np.int32)
    for image in images:
        for label in rng.choice(labels, 3):
            top, left = rng.integers(0, SIDE, 2)
            image[top : top + rng.integers(1, 4), left : left + rng.integers(1, 4)] = label
    return images


def images(
    rng: np.random.Generator, size: int, *, labels: Any = range(PIXEL_CLASSES), right: float = 0.8
) -> Arrays:
    target, other = blobs(rng, size, labels), blobs(rng, size, labels)
    return {"preds": np.where(rng.random(target.shape) < right, target, other), "target": target}


def pixels_in_range(preds: np.ndarray, target: np.ndarray) -> np.ndarray:
    return (preds >= 0) & (preds < PIXEL_CLASSES) & (target >= 0) & (target < PIXEL_CLASSES)


PIXELS = Inputs(
    "pixels",
    draw=images,
    valid=pixels_in_range,
    spoil={"preds": (-1, PIXEL_CLASSES, 2**30), "target": (-1, PIXEL_CLASSES, -100, 2**31 - 1)},
    hard={
        "background only": partial(images, labels=(0,)),
        "a class never": partial(images, labels=(0, 2)),
        "all right": partial(images, right=1.0),
        "none right": lambda rng, size: {
            "preds": np.full((size, SIDE, SIDE), 1, np.int32),
            "target": np.full((size, SIDE, SIDE), 2, np.int32),
        },
    },
)
# The same, where a whole image is valid or not.
IMAGES = Inputs(
    "images",
    draw=images,
    valid=lambda preds, target: pixels_in_range(preds, target).all((1, 2)),
    spoil=PIXELS.spoil,
    hard=PIXELS.hard,
)


def counts_of(w: Any, preds: np.ndarray, target: np.ndarray) -> np.ndarray:
    """By class: pixels predicted right, pixels predicted, and pixels in the target."""
    w = np.broadcast_to(w, preds.shape)
    masks = [(preds == c, target == c) for c in range(PIXEL_CLASSES)]
    return np.array([[fsum(w[p & t]), fsum(w[p]), fsum(w[t])] for p, t in masks]).T


def mean_of(ratio: np.ndarray, weights: Any = 1.0) -> float:
    weights = np.broadcast_to(weights, ratio.shape)[~np.isnan(ratio)]
    total = fsum(weights)
    return fsum(ratio[~np.isnan(ratio)] * weights) / total if total else np.nan


def overlap_of(
    w: np.ndarray,
    preds: np.ndarray,
    target: np.ndarray,
    *,
    dice: bool = False,
    average: str | None = "macro",
    start: int = 0,
) -> Any:
    right, predicted, there = counts_of(w, preds, target)[:, start:]
    if average == "micro":
        right, predicted, there = (x.sum(keepdims=True) for x in (right, predicted, there))
    with np.errstate(invalid="ignore"):
        iou = right / (predicted + there - right)
    ratio = 2 * iou / (1 + iou) if dice else iou
    if average == "weighted":
        # If no class is the target, all have equal weight.
        return mean_of(ratio, there if there.any() else 1.0)
    if average is None:
        return ratio if w.any() else np.full(ratio.shape, np.nan)
    return mean_of(ratio)


def pixel_accuracy_of(
    w: np.ndarray, preds: np.ndarray, target: np.ndarray, *, average: str | None = "micro"
) -> Any:
    right, _, there = counts_of(w, preds, target)
    if average == "micro":
        right, there = right.sum(keepdims=True), there.sum(keepdims=True)
    with np.errstate(invalid="ignore"):
        ratio = right / there
    return ratio if average is None else mean_of(ratio)


def generalized_score(counts: np.ndarray) -> float:
    right, predicted, there = counts
    if not (predicted + there).any():
        return np.nan
    volume = np.where(there > 0, there, there[there > 0].min() if there.any() else 1.0)
    return float(2 * (right / volume**2).sum() / ((predicted + there) / volume**2).sum())


def generalized_by_image(
    w: np.ndarray, preds: np.ndarray, target: np.ndarray, *, start: int = 0
) -> float:
    scores = [
        generalized_score(counts_of(1.0, p, t)[:, start:]) if v > 0 else np.nan
        for v, p, t in zip(w, preds, target, strict=True)
    ]
    return mean_of(np.array(scores), w) if scores else np.nan


def generalized_of_all(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    return generalized_score(counts_of(w, preds, target))


def overlap_by_image(
    w: np.ndarray,
    preds: np.ndarray,
    target: np.ndarray,
    *,
    dice: bool = False,
    average: str | None = "macro",
    empty: str = "skip",
    start: int = 0,
) -> Any:
    found = np.full((len(w), PIXEL_CLASSES - start), np.nan)
    means = np.full(len(w), np.nan)
    for i in np.flatnonzero(w > 0):
        right, predicted, there = counts_of(1.0, preds[i], target[i])[:, start:]
        if average == "micro":
            right, predicted, there = (x.sum(keepdims=True) for x in (right, predicted, there))
        union = predicted + there - right
        for c, none in enumerate(union == 0):
            above, below = (2 * right[c], union[c] + right[c]) if dice else (right[c], union[c])
            value = (1.0 if empty == "one" else np.nan) if none else above / below
            found[i, c] = np.nan if empty == "ignore" and there[c] == 0 else value
        values = found[i, : len(right)]
        present = there[~np.isnan(values)].any()
        means[i] = mean_of(values, there if average == "weighted" and present else 1.0)
    if average is None:
        return np.array([mean_of(x, w) if len(w) else np.nan for x in found.T])
    return mean_of(means, w) if len(w) else np.nan


# Masks.


def masks(
    rng: np.random.Generator,
    size: int,
    *,
    fill: float = 0.3,
    seed: int = 1,
    sides: tuple[int, ...] = (SIDE, SIDE + 1),
) -> Arrays:
    def one() -> np.ndarray:
        mask = rng.random((size, *sides)) < fill
        mask[:, *(rng.integers(n) for n in sides)] = seed
        return mask.astype(np.int32)

    return {"preds": one(), "target": one()}


def empty(rng: np.random.Generator, size: int, *, names: Any = ("preds", "target")) -> Arrays:
    """Masks of which every other image is empty, from the second or from the first on."""
    drawn = masks(rng, size)
    some = (np.arange(size) % 2)[:, None, None].astype(np.int32)
    return {name: x * some if name in names else x for name, x in drawn.items()}


MASKS = Inputs(
    "masks",
    draw=masks,
    valid=lambda preds, target: (np.isin(preds, (0, 1)) & np.isin(target, (0, 1))).all((1, 2)),
    spoil={"preds": (-1, 2, 2**30), "target": (-1, 2, -100, 2**31 - 1)},
    hard={
        "one pixel": partial(masks, fill=0.0),
        "full": partial(masks, fill=1.0),
        "dense": partial(masks, fill=0.9),
        "both empty": empty,
        "one empty": partial(empty, names=("preds",)),
        "equal": lambda rng, size: dict.fromkeys(("preds", "target"), masks(rng, size)["preds"]),
    },
)
VOLUMES = Inputs(
    "volumes",
    draw=partial(masks, sides=(3, 4, 5), fill=0.5),
    valid=lambda preds, target: (np.isin(preds, (0, 1)) & np.isin(target, (0, 1))).all((1, 2, 3)),
    spoil=MASKS.spoil,
    hard={
        "full": partial(masks, sides=(3, 4, 5), fill=1.0),
        "sparse": partial(masks, sides=(3, 4, 5), fill=0.0),
    },
)


def edge_of(mask: np.ndarray) -> np.ndarray:
    """The positions of pixels with a neighbour that is not in the mask."""
    points = {tuple(p) for p in np.argwhere(mask).tolist()}
    steps = [*np.eye(mask.ndim, dtype=int), *-np.eye(mask.ndim, dtype=int)]
    edge = [p for p in points if any(tuple((p + step).tolist()) not in points for step in steps)]
    return np.array(edge, np.float64).reshape(-1, mask.ndim)


def distances_of(a: np.ndarray, b: np.ndarray, spacing: Any) -> tuple[np.ndarray, np.ndarray]:
    """From each pixel on an edge to the nearest pixel on the other one, in both directions."""
    p, q = (edge_of(x) * spacing for x in (a, b))
    if not (len(p) and len(q)):
        return np.full(len(p), np.inf), np.full(len(q), np.inf)
    apart = np.sqrt(((p[:, None] - q) ** 2).sum(-1))
    return apart.min(1), apart.min(0)


def greatest(p: np.ndarray, q: np.ndarray, *, percentile: float = 100) -> float:
    return max(np.percentile(x, percentile) for x in (p, q))


def mean_distance(p: np.ndarray, q: np.ndarray, *, directed: bool = False) -> float:
    return p.mean() if directed else np.concatenate([p, q]).mean()


def share_within(p: np.ndarray, q: np.ndarray, *, tolerance: float) -> float:
    # A distance that rounding alone puts above the tolerance is within it.
    return (np.concatenate([p, q]) <= tolerance * (1 + 1e-9)).mean()


def surface_of(
    w: np.ndarray,
    preds: np.ndarray,
    target: np.ndarray,
    *,
    score: Any,
    spacing: Any = 1.0,
    one_empty: float = np.inf,
) -> float:
    scores = np.full(len(w), np.nan)
    for i in np.flatnonzero(w > 0):
        both = distances_of(preds[i], target[i], spacing)
        if all(map(len, both)):
            scores[i] = score(*both)
        elif any(map(len, both)):
            scores[i] = one_empty
    return mean_of(scores, w)


def of_classes(
    w: np.ndarray, preds: np.ndarray, target: np.ndarray, *, of_class: Any, average: str | None
) -> Any:
    """Scores of the masks of each class but the background; "macro" is averaged by image."""

    def one(rows: slice) -> np.ndarray:
        labels = range(1, PIXEL_CLASSES)
        return np.array([of[k - 1](w[rows], preds[rows] == k, target[rows] == k) for k in labels])

    of = of_class if isinstance(of_class, list) else [of_class] * (PIXEL_CLASSES - 1)
    if average is None:
        return one(slice(None))
    means = np.array([mean_of(one(slice(i, i + 1))) for i in range(len(w))])
    return mean_of(means, w) if len(w) else np.nan


def boundary_iou(w: np.ndarray, preds: np.ndarray, target: np.ndarray, *, distance: int) -> float:
    scores = np.full(len(w), np.nan)
    for i in np.flatnonzero(w > 0):
        box = np.ones((3,) * preds[i].ndim, bool)
        a, b = (
            (x[i] > 0) > scipy.ndimage.binary_erosion(x[i] > 0, box, distance)
            for x in (preds, target)
        )
        if (a | b).any():
            scores[i] = (a & b).sum() / (a | b).sum()
    return mean_of(scores, w)


def scipy_hausdorff(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    distances = np.full(len(w), np.nan)
    cross = scipy.ndimage.generate_binary_structure(2, 1)
    for i in np.flatnonzero(w > 0):
        a, b = (
            np.argwhere(x[i] > scipy.ndimage.binary_erosion(x[i], cross)) for x in (preds, target)
        )
        if len(a) and len(b):
            both = scipy.spatial.distance.directed_hausdorff
            distances[i] = max(both(a, b)[0], both(b, a)[0])
        elif len(a) or len(b):
            distances[i] = np.inf
    return mean_of(distances, w)


# Segments.

KINDS, THINGS, NUMBERS, VOID = 3, (1, 2), 3, 255


def segments(
    rng: np.random.Generator, size: int, *, labels: Any = range(KINDS), right: float = 0.9,
    unlabelled: float = 0.1,
) -> Arrays:  # fmt: skip
    target = np.stack([blobs(rng, size, labels), blobs(rng, size, range(NUMBERS))], -1)
    other = np.stack([blobs(rng, size, labels), blobs(rng, size, range(NUMBERS))], -1)
    chosen = rng.random((*target.shape[:-1], 1)) < right
    preds, names = np.where(chosen, target, other), rng.permutation(NUMBERS)
    preds[..., 1] = names[preds[..., 1]]  # other numbers for the same segments
    for x, share in ((target, unlabelled), (preds, unlabelled / 2)):
        x[rng.random(x.shape[:-1]) < share, 0] = VOID
    return {"preds": preds.astype(np.int32), "target": target.astype(np.int32)}


def segments_in_range(preds: np.ndarray, target: np.ndarray) -> np.ndarray:
    fine = np.ones(len(preds), bool)
    for x in (preds, target):
        label, number = x[..., 0], x[..., 1]
        known = (label >= 0) & (label < KINDS)
        numbered = (number >= 0) & (number < NUMBERS) | ~np.isin(label, THINGS)
        fine &= ((label == VOID) | (known & numbered)).reshape(len(x), -1).all(1)
    return fine


class Segments(Inputs):
    """Inputs whose classes are spoilt, as the number of a segment is not used in all of them."""

    def spoilt(self, rng: np.random.Generator, arrays: Arrays, rows: np.ndarray) -> Arrays:
        spoilt = {name: x.copy() for name, x in arrays.items()}
        for name, values in self.spoil.items():
            pixels = rng.integers(0, SIDE, (2, len(rows)))
            spoilt[name][rows, *pixels, 0] = rng.choice(values, len(rows))
        return spoilt


SEGMENTS = Segments(
    "segments",
    draw=segments,
    valid=segments_in_range,
    spoil={"preds": (-1, 256, 2**30), "target": (-1, -100, 2**31 - 1)},
    hard={
        "one class": partial(segments, labels=(1,)),
        "stuff only": partial(segments, labels=(0,), right=0.5),
        "all right": partial(segments, right=1.0, unlabelled=0.0),
        "none labelled": partial(segments, unlabelled=1.0),
        "mostly not labelled": partial(segments, unlabelled=0.6),
    },
)


def panoptic_counts(
    w: np.ndarray, preds: np.ndarray, target: np.ndarray, *, modified: bool = False
) -> np.ndarray:
    """By class: the weights of matched, spurious and missed segments, and the sum of IoU.

    With `modified`, a class of no things adds its IoU where the target has it, and nothing else.
    """

    def segments_of(image: np.ndarray, label: int) -> list[np.ndarray]:
        own = image[..., 0] == label
        if label not in THINGS:
            return [own] if own.any() else []
        return [own & (image[..., 1] == k) for k in np.unique(image[own][:, 1])]

    counts = np.zeros((4, KINDS))
    for v, p, t in zip(w, preds, target, strict=True):
        labelled = t[..., 0] != VOID
        for label in range(KINDS) if v > 0 else ():
            found, there = segments_of(p, label), segments_of(t, label)
            iou = np.array(
                [[(a & b).sum() / ((a & labelled) | b).sum() for b in there] for a in found]
            ).reshape(len(found), len(there))
            if modified and label not in THINGS:
                counts[[0, 3], label] += v * np.array([len(there), iou.sum()])
                continue
            match = iou > 0.5
            in_vain = [
                a for a, own in zip(found, match, strict=True)
                if not own.any() and (a & ~labelled).sum() * 2 <= a.sum()
            ]  # fmt: skip
            missed = len(there) - match.any(0).sum()
            counts[:, label] += v * np.array([match.sum(), len(in_vain), missed, fsum(iou[match])])
    return counts


def panoptic_of(
    w: np.ndarray,
    preds: np.ndarray,
    target: np.ndarray,
    *,
    quality: str = "panoptic",
    average: str | None = "macro",
    modified: bool = False,
) -> Any:
    matched, spurious, missed, iou = panoptic_counts(w, preds, target, modified=modified)
    of = matched + spurious / 2 + missed / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        value = {
            "panoptic": iou / of,
            "recognition": matched / of,
            "segmentation": np.where(of > 0, np.where(matched > 0, iou / matched, 0.0), np.nan),
        }[quality]
    return value if average is None else mean_of(value)


PIXEL_CONFIG = {"num_classes": PIXEL_CLASSES}
PANOPTIC = {"num_classes": KINDS, "things": THINGS, "max_segments": NUMBERS, "ignore_index": VOID}
# The mean of C ratios, each rounded once, with one rounding of each weight, sum and quotient.
AVERAGE = 2 * PIXEL_CLASSES + 2
# The quotient of sums of 16 products with weights, of one sign.
BY_IMAGE = 20


def surface_case(name: str, cls: Any, inputs: Inputs, oracle: Any, **config: Any) -> Case:
    return Case(
        name,
        cls,
        inputs,
        oracle,
        config,
        reference=scipy_hausdorff if name == "hausdorff" else None,
        # The root of a square 4, a mean over surfaces 4, and over classes 4.
        ulps=12 + BY_IMAGE,
        together=f"surfaces of {inputs.id}",
    )


APART, DEEP = (0.7, 1.3), (3.0, 0.7, 0.9)
SURFACES = [
    surface_case(
        "hausdorff", metrics.HausdorffDistance, MASKS, partial(surface_of, score=greatest)
    ),
    surface_case(
        "hausdorff_95",
        metrics.HausdorffDistance,
        MASKS,
        partial(surface_of, score=partial(greatest, percentile=95), spacing=APART),
        percentile=95,
        spacing=APART,
    ),
    surface_case(
        "hausdorff_3d",
        metrics.HausdorffDistance,
        VOLUMES,
        partial(surface_of, score=partial(greatest, percentile=80), spacing=DEEP),
        percentile=80,
        spacing=DEEP,
    ),
    surface_case(
        "hausdorff_classes",
        metrics.HausdorffDistance,
        IMAGES,
        partial(of_classes, of_class=partial(surface_of, score=greatest), average="macro"),
        num_classes=PIXEL_CLASSES,
    ),
    surface_case(
        "surface_distance",
        metrics.MeanSurfaceDistance,
        MASKS,
        partial(surface_of, score=mean_distance, spacing=APART),
        spacing=APART,
    ),
    surface_case(
        "surface_distance_directed",
        metrics.MeanSurfaceDistance,
        VOLUMES,
        partial(surface_of, score=partial(mean_distance, directed=True), spacing=0.7),
        spacing=0.7,
        directed=True,
    ),
    surface_case(
        "surface_dice",
        metrics.SurfaceDice,
        MASKS,
        partial(surface_of, score=partial(share_within, tolerance=1.4), spacing=APART, one_empty=0),
        tolerance=1.4,
        spacing=APART,
    ),
    surface_case(
        "surface_dice_classes",
        metrics.SurfaceDice,
        IMAGES,
        partial(
            of_classes,
            of_class=[
                partial(surface_of, score=partial(share_within, tolerance=x), one_empty=0)
                for x in (0.0, 2.0)
            ],
            average=None,
        ),
        tolerance=(0.0, 2.0),
        num_classes=PIXEL_CLASSES,
        average=None,
    ),
    surface_case("boundary_iou", metrics.BoundaryIoU, MASKS, partial(boundary_iou, distance=1)),
    surface_case(
        "boundary_iou_classes",
        metrics.BoundaryIoU,
        IMAGES,
        partial(of_classes, of_class=partial(boundary_iou, distance=2), average=None),
        distance=2,
        num_classes=PIXEL_CLASSES,
        average=None,
    ),
]

CASES = [
    *(
        Case(
            f"{name}_{average}{'_foreground' if start else ''}",
            cls,
            PIXELS,
            partial(overlap_of, dice=dice, average=average, start=start),
            PIXEL_CONFIG | {"average": average, "include_background": not start},
            reference=(
                sklearn_of(score, prepare=whole, average="macro")
                if (average, start) == ("macro", 0)
                else None
            ),
            ulps=AVERAGE if average in ("macro", "weighted") else 1,
            exact=True,
        )
        for name, cls, dice, score in (
            ("mean_iou", metrics.MeanIoU, False, sklearn.metrics.jaccard_score),
            ("dice", metrics.Dice, True, sklearn.metrics.f1_score),
        )
        for average, start in (
            ("macro", 0), ("macro", 1), ("micro", 0), ("micro", 1), ("weighted", 0), (None, 0),
        )
    ),
    *(
        Case(
            f"pixel_accuracy_{average}",
            metrics.PixelAccuracy,
            PIXELS,
            partial(pixel_accuracy_of, average=average),
            PIXEL_CONFIG | {"average": average},
            reference=(
                sklearn_of(sklearn.metrics.accuracy_score, prepare=whole)
                if average == "micro"
                else None
            ),
            ulps=AVERAGE if average == "macro" else 1,
            exact=True,
        )
        for average in ("micro", "macro", None)
    ),
    Case(
        "generalized_dice_dataset",
        metrics.GeneralizedDice,
        PIXELS,
        generalized_of_all,
        PIXEL_CONFIG | {"aggregate": "dataset"},
        ulps=12,  # a weight 3, a product 1, both sums of 3 terms 2, the quotient 1
        exact=True,
    ),
    *(
        Case(
            f"generalized_dice_{start}",
            metrics.GeneralizedDice,
            IMAGES,
            partial(generalized_by_image, start=start),
            PIXEL_CONFIG | {"include_background": not start},
            ulps=12 + BY_IMAGE,
        )
        for start in (0, 1)
    ),
    *(
        Case(
            f"{name}_image_{config['average']}",
            cls,
            IMAGES,
            partial(overlap_by_image, dice=name == "dice", start=start, **config),
            PIXEL_CONFIG | {"aggregate": "image", "include_background": not start, **config},
            ulps=AVERAGE + BY_IMAGE,
            together="overlap by image",
        )
        for name, cls, start, config in (
            ("dice", metrics.Dice, 0, {"average": "macro"}),
            ("dice", metrics.Dice, 0, {"average": None, "empty": "one"}),
            ("dice", metrics.Dice, 1, {"average": "weighted", "empty": "ignore"}),
            ("mean_iou", metrics.MeanIoU, 1, {"average": "micro"}),
        )
    ),
    *SURFACES,
    *(
        Case(
            f"panoptic_{quality}_{average}",
            metrics.PanopticQuality,
            SEGMENTS,
            partial(panoptic_of, quality=quality, average=average),
            PANOPTIC | {"quality": quality, "average": average},
            ulps=BY_IMAGE + AVERAGE,
        )
        for quality, average in (
            ("panoptic", "macro"), ("panoptic", None), ("segmentation", "macro"),
            ("recognition", "macro"),
        )
    ),
    *(
        Case(
            f"modified_panoptic_{average}",
            metrics.ModifiedPanopticQuality,
            SEGMENTS,
            partial(panoptic_of, average=average, modified=True),
            PANOPTIC | {"average": average},
            ulps=BY_IMAGE + AVERAGE,
        )
        for average in ("macro", None)
    ),
]  # fmt: skip
