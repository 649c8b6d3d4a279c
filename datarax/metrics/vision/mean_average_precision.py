"""Mean average precision of object detection, as by COCO's evaluation."""

from collections.abc import Mapping
from typing import Literal, Self

import jax
import numpy as np

from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import beside, lax, xp
from datarax.algebra.fields import state
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.numerics.box_matching import AREAS
from datarax.numerics.boxes import BoxFormat
from datarax.numerics.double_float import DoubleFloat, where
from datarax.numerics.recall_levels import average_precision
from datarax.numerics.run_lengths import RunLengths
from datarax.numerics.scaling import nan_where
from datarax.statistics.detected_shapes import COCO_SIGMAS, counts_of_runs
from datarax.statistics.detections import Detections, IoUType


class DetectionMetric(Metric):
    """What is computed of detections that are matched to their ground truth, image by image."""

    higher_is_better = True
    tasks = ("detection",)
    num_classes: int
    """The number of classes, numbered from 0."""
    capacity: int = 2**17
    """The number of detections that are kept in all."""
    iou_thresholds: tuple[float, ...] | None = None
    """The least IoU of a match, increasing; `None` for 0.5, 0.55, ..., 0.95. More than 12 take 16
    more bytes for each 12."""
    max_detections: tuple[int, ...] = (1, 10, 100)
    """How many detections of a class count in an image: those of the highest scores. There is a
    recall for each number, and the last one is that of all other values."""
    box_format: BoxFormat = "xyxy"
    """The four numbers of a box: "xyxy" both corners, "xywh" the corner x, y, the width and the
    height, as in the files of COCO, "cxcywh" the centre, the width and the height."""
    iou_type: IoUType = "bbox"
    """What is detected: "bbox" boxes, "segm" masks, matched by their IoU in pixels; "keypoints"
    key points, matched by the object keypoint similarity. COCO takes `max_detections=(20,)` of key
    points, and no small ones."""
    sigmas: tuple[float, ...] = COCO_SIGMAS
    """Of key points: how far annotators place each point apart, over the square root of the area.
    The default are COCO's 17 points of a person."""

    statistic: Detections = state()

    def __post_init__(self) -> None:
        self.statistic = Detections.from_fields(self)
        # Checked, and as tuples, which can be compared.
        self.iou_thresholds = self.statistic.iou_thresholds
        self.max_detections = self.statistic.max_detections
        self.sigmas = self.statistic.sigmas

    def calls(self, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> PyTree:
        # A wrapper moves and pads arrays, so encoded masks become arrays of one row an image.
        found, there = counts_of_runs(kwargs.get("masks"), kwargs.get("target_masks"))
        if found is not None:
            kwargs = {**kwargs, "masks": found, "target_masks": there}
        return super().calls(args, kwargs)

    @shareable
    def update(
        self,
        boxes: ArrayLike | None,
        scores: ArrayLike,
        labels: ArrayLike,
        target_boxes: ArrayLike | None,
        target_labels: ArrayLike,
        *,
        valid: ArrayLike | None = None,
        target_valid: ArrayLike | None = None,
        crowd: ArrayLike | None = None,
        area: ArrayLike | None = None,
        ignore: ArrayLike | None = None,
        masks: ArrayLike | RunLengths | None = None,
        target_masks: ArrayLike | RunLengths | None = None,
        keypoints: ArrayLike | None = None,
        target_keypoints: ArrayLike | None = None,
        weights: Weights = None,
    ) -> Self:
        """A new metric with the images folded in; no communication.

        All detections and the whole ground truth of an image must be in one update. An image is
        invalid if one of its boxes has NaN, infinities, x2 < x1, y2 < y1 or a negative size, a
        score that is not finite, a label out of range, or an area that is negative or not finite. A
        box of the ground truth without width or height, or a mask without pixels, counts, and no
        detection matches it, as in pycocotools: mark padding with `target_valid`.

        Args:
            boxes: the detections (N, D, 4), in `box_format`: x1, y1, x2, y2. Of masks and key
                points, it is not used: pass `None`.
            scores: (N, D), any finite numbers.
            labels: integers (N, D) from 0 to `num_classes - 1`.
            target_boxes: the ground truth (N, G, 4). Of masks, it is not used. Of key points, it
                may be `None`: then nothing matches a person without visible key points.
            target_labels: integers (N, G).
            valid: a mask (N, D) of detections; others are padding. By default, all are valid.
            target_valid: the same of the ground truth, (N, G).
            crowd: a mask (N, G) of boxes that hold a crowd: a detection that lies in one by enough
                of its area is ignored, and there is none to be found.
            area: (N, G), the area by which the ground truth is small, medium or large; by default
                that of the box, or the pixels of the mask. Key points need it, or `target_boxes`.
            ignore: a mask (N, G) of boxes that need not be found. The detection that matches one is
                neither right nor wrong; a second one is wrong.
            masks: with `iou_type="segm"`, the pixels of the detections (N, D, H, W). Or, outside
                `jit`, a list for each image of masks as COCO encodes them: dicts with `size` and
                `counts`, and None for padding. Images may then differ in size.
            target_masks: the same of the ground truth.
            keypoints: with `iou_type="keypoints"`, (N, D, P, 3): x, y and an unused number.
            target_keypoints: (N, G, P, 3): x, y, and the visibility, which is 0 for a point that is
                not labelled. A person without labelled points need not be found.
            weights: by image, (N,).

        Raises:
            MetricInputError: shapes that do not fit together; shows both. Or masks or key points
                that `iou_type` does not use, or that it lacks.
            MetricTypeError: labels or masks that are floats.
        """
        return self.replace(
            statistic=self.statistic.update(
                boxes,
                scores,
                labels,
                target_boxes,
                target_labels,
                valid=valid,
                target_valid=target_valid,
                crowd=crowd,
                area=area,
                ignore=ignore,
                masks=masks,
                target_masks=target_masks,
                keypoints=keypoints,
                target_keypoints=target_keypoints,
                weights=weights,
            )
        )


class MeanAveragePrecision(DetectionMetric):
    """The mean average precision and recall of detected boxes, as COCO's evaluation has them.

    In each image, the detections of a class are matched to its ground truth in the order of their
    scores, at each of `iou_thresholds`. The average precision of a class is the mean
    over the levels of recall 0, 0.01, ..., 1 of the highest precision at that recall or a higher
    one; its recall is that of all its detections. A dict, of means over classes and thresholds:

    - `map`; at one threshold `map_50`, `map_75`, which are NaN if it is none of `iou_thresholds`;
      for boxes of up to 32^2, up to 96^2 and more pixels `map_small`, `map_medium`, `map_large`;
    - `mar_1`, `mar_10`, `mar_100`: the recall of so many detections of a class in each image, for
      each of `max_detections`; `mar_small`, `mar_medium`, `mar_large`;
    - with `per_class=True`, `map_per_class`, (C,).

    A class without ground truth has NaN, and is excluded from the mean; no ground truth at all
    gives NaN, where COCO's evaluation has -1. It equals `pycocotools.cocoeval.COCOeval` where no
    two detections of a class have equal scores. Equal scores are one point of the curve.

    A batch is matched when it is folded in. The outcome is kept for the first `capacity`
    detections: a state of 28 bytes for each (56 with x64). `invalid_count()` counts the others, and
    `on_invalid` applies to them. Reading takes about `200 * capacity` more bytes for a while.
    T.-Y. Lin and others (2014), https://doi.org/10.1007/978-3-319-10602-1_48.

    Raises:
        MetricInputError: sizes that are not positive integers, more than 2^20 classes, thresholds
            or numbers of detections that do not increase.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MeanAveragePrecision
        >>> target = jnp.array([[[0, 0, 10, 10], [20, 0, 30, 10]]])  # one image
        >>> boxes = jnp.array([[[0, 0, 10, 8], [50, 50, 60, 60], [20, 0, 30, 10]]])
        >>> scores, labels = jnp.array([[0.9, 0.8, 0.7]]), jnp.array([[0, 0, 0]])
        >>> metric = MeanAveragePrecision(num_classes=1)
        >>> value = metric.update(boxes, scores, labels, target, jnp.array([[0, 0]])).compute()
        >>> print(*(f"{name} {value[name]:.3f}" for name in ("map", "map_50", "mar_100")))
        map 0.635 map_50 0.835 mar_100 0.850
    """

    average: Literal["macro"] | None = "macro"
    """"macro" is the mean over the classes with ground truth; `None` gives one value per class."""
    per_class: bool = False
    """Whether `map_per_class` is given, too."""

    def compute(self) -> PyTree:
        ranked, support = self.statistic.ranked(), self.statistic.support
        thresholds, numbers = self.statistic.thresholds, self.max_detections
        areas, last = ("small", "medium", "large"), len(numbers) - 1
        # The curves that are read: the place in `AREAS` of the boxes, and the place in
        # `max_detections` of how many detections of an image count.
        curves = {"all": (0, last), **{area: (i, last) for i, area in enumerate(AREAS) if i}}
        curves |= {f"{number}": (0, i) for i, number in enumerate(numbers[:-1])}

        def curve(place: jax.Array) -> tuple[DoubleFloat, DoubleFloat]:
            area, tier = place
            right, wrong = ranked.outcomes(area, tier)
            return average_precision(ranked.ranking, right, wrong, support[area])

        # One after the other, because they take much memory.
        codes = beside(support, np.array(tuple(curves.values()), np.int32))
        # Both are (curves, T, C): T thresholds of the IoU, C classes.
        precision, recall = lax.map(curve, codes)

        def mean(
            x: DoubleFloat, curve: str, threshold: float | None = None, average: str | None = ""
        ) -> jax.Array:
            """Of (curves, T, C), over the thresholds or at one, and over the classes if asked."""
            x = x[tuple(curves).index(curve)]
            # A class without ground truth of this size has no recall, and is not averaged.
            some = support[curves[curve][0]] > 0
            if threshold is None:
                x = x.sum(0) / len(thresholds)
            elif threshold in thresholds:
                x = x[thresholds.index(threshold)]
            else:
                x, some = x[0], some & False
            if (self.average if average == "" else average) is None:
                return nan_where(~some, x.to_float())
            number = xp.sum(some, dtype=x.dtype)
            zero = DoubleFloat.of(xp.zeros(x.shape, x.dtype))
            return (where(some, x, zero).sum() / number).to_float()

        recalls = {f"{number}": f"{number}" for number in numbers[:-1]} | {f"{numbers[-1]}": "all"}
        values = {
            "map": mean(precision, "all"),
            "map_50": mean(precision, "all", 0.5),
            "map_75": mean(precision, "all", 0.75),
            **{f"map_{area}": mean(precision, area) for area in areas},
            **{f"mar_{name}": mean(recall, curve) for name, curve in recalls.items()},
            **{f"mar_{area}": mean(recall, area) for area in areas},
        }
        if self.per_class:
            values["map_per_class"] = mean(precision, "all", average=None)
        return values
