"""Precision, recall and F1 of detections: along the recall, and at thresholds of the score."""

from typing import Literal

import jax
import numpy as np

from datarax._checks import real
from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax._xp import beside, xp
from datarax.metrics.vision.mean_average_precision import DetectionMetric
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.recall_levels import LEVELS, level_curve, sums_above
from datarax.numerics.scaling import nan_where


class DetectionCurve(DetectionMetric):
    """The curves of precision and recall of detections, by IoU threshold and class.

    A dict, for T thresholds, C classes and the 101 levels of recall of `MeanAveragePrecision`:

    - `precision` (T, C, 101): the highest precision at each recall or a higher one, 0 where no
      score reaches it. Its mean over the levels is the average precision;
    - `score` (T, C, 101): the highest score that reaches each recall; NaN where none does;
    - `recall` (101,): the levels 0, 0.01, ..., 1.

    A class without ground truth has NaN. It equals `precision` and `scores` of
    `pycocotools.cocoeval.COCOeval.eval` for all areas, where no two detections of a class have
    equal scores. In a `Collection`, it shares the state of a `MeanAveragePrecision` with the same
    options.

    T.-Y. Lin and others (2014), https://doi.org/10.1007/978-3-319-10602-1_48.

    Raises:
        MetricInputError: as in `MeanAveragePrecision`.

    Example:
        >>> import numpy as np
        >>> from datarax.metrics import DetectionCurve
        >>> target = np.array([[[0, 0, 10, 10], [20, 0, 30, 10]]])  # one image
        >>> boxes = np.array([[[0, 0, 10, 8], [50, 50, 60, 60], [20, 0, 30, 10]]])
        >>> scores, labels = np.array([[0.9, 0.8, 0.7]]), np.array([[0, 0, 0]])
        >>> metric = DetectionCurve(num_classes=1, iou_thresholds=(0.5,))
        >>> curve = metric.update(boxes, scores, labels, target, np.array([[0, 0]])).compute()
        >>> print(*(round(float(x[50]), 3) for x in (curve["recall"], curve["precision"][0, 0])))
        0.5 1.0
        >>> print(*(round(float(x[51]), 3) for x in (curve["recall"], curve["precision"][0, 0])))
        0.51 0.667
        >>> print(curve["score"][0, 0, 50:52])
        [0.9 0.7]
    """

    higher_is_better = None

    def compute(self) -> PyTree:
        ranked, support = self.statistic.ranked(), self.statistic.support[0]
        right, wrong = ranked.outcomes(*_whole(self, support))
        curve = level_curve(ranked.ranking, right, wrong, support)
        none = ~(support.high > 0)[None, :, None]
        precision, place = curve.precision[..., ::-1], curve.place[..., ::-1]
        score = ranked.score[xp.maximum(place, 0)]
        return {
            "precision": nan_where(xp.broadcast_to(none, precision.shape), precision),
            "recall": xp.arange(LEVELS, dtype=precision.dtype) / precision.dtype.type(LEVELS - 1),
            "score": nan_where((place < 0) | none, score),
        }


class DetectionF1(DetectionMetric):
    """The F1 score of detections whose score is at least a threshold, and the best threshold.

    `2 TP / (2 TP + FP + FN)` at each of `thresholds`: the detections with at least that score are
    matched as by `MeanAveragePrecision`, and FN is the ground truth without a match. A dict, for S
    thresholds:

    - `f1`, `precision` and `recall` (S,), means over the classes with ground truth, and over the
      IoU thresholds. The precision of a class without detections is NaN, and not averaged;
    - `threshold` (S,), and `best_f1` with its `best_threshold`: the lowest of equal ones.

    With `average=None`, the first three are (S, C), and the best ones (C,). No ground truth gives
    NaN. Use it to choose the score from which detections are shown.

    A score equal to a threshold reaches it; both are rounded to the precision of the state.

    Raises:
        MetricInputError: thresholds that are no finite increasing numbers; or as in
            `MeanAveragePrecision`.

    Example:
        >>> import numpy as np
        >>> from datarax.metrics import DetectionF1
        >>> target = np.array([[[0, 0, 10, 10], [20, 0, 30, 10]]])  # one image
        >>> boxes = np.array([[[0, 0, 10, 8], [50, 50, 60, 60], [20, 0, 30, 10]]])
        >>> scores, labels = np.array([[0.9, 0.5, 0.7]]), np.array([[0, 0, 0]])
        >>> metric = DetectionF1(num_classes=1, thresholds=(0.4, 0.6, 0.8))
        >>> value = metric.update(boxes, scores, labels, target, np.array([[0, 0]])).compute()
        >>> print(value["f1"], value["best_threshold"])
        [0.8       1.        0.6666667] 0.6
    """

    iou_thresholds: tuple[float, ...] | None = (0.5,)
    """The least IoU of a match, increasing; `None` for 0.5, 0.55, ..., 0.95. The values are means
    over them."""
    thresholds: tuple[float, ...] = tuple(i / 20 for i in range(20))
    """The least scores, increasing; by default 0, 0.05, ..., 0.95."""
    average: Literal["macro"] | None = "macro"
    """"macro" is the mean over the classes with ground truth; `None` gives one value per class."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.thresholds
        found = given if isinstance(given, tuple | list | np.ndarray) else ()
        numbers = tuple(real(x, "thresholds") for x in found)
        if not numbers or sorted(set(numbers)) != list(numbers) or not np.isfinite(numbers).all():
            raise MetricInputError(
                f"thresholds={given!r}; expected increasing finite numbers, such as (0.25, 0.5)"
            )
        self.thresholds = numbers

    def compute(self) -> PyTree:
        ranked, support = self.statistic.ranked(), self.statistic.support[0]
        right, wrong = ranked.outcomes(*_whole(self, support))
        least = xp.array(self.thresholds, ranked.score.dtype)
        # The sums are (T, S, C).
        hits, misses = sums_above(
            *(ranked.ranking, ranked.score, right, wrong, least, self.num_classes)
        )
        found, there = hits + misses, support[None, None]
        absent = xp.broadcast_to(~(support.high > 0)[None, None], hits.shape)

        def mean(x: DoubleFloat) -> jax.Array:
            """Of (T, S, C) over the thresholds of the IoU, and over the classes if asked."""
            by_class = xp.nanmean(nan_where(absent, x.to_float()), 0)
            return by_class if self.average is None else xp.nanmean(by_class, -1)

        f1 = mean(hits * 2 / (found + there))
        return {
            "best_f1": xp.max(f1, 0),
            "best_threshold": nan_where(xp.isnan(f1[0]), xp.take(least, xp.argmax(f1, 0))),
            "f1": f1,
            "precision": mean(hits / found),  # NaN without detections
            "recall": mean(hits / there),
            "threshold": least,
        }


def _whole(metric: DetectionMetric, support: DoubleFloat) -> tuple[jax.Array, jax.Array]:
    """The places of all areas, and of the greatest number of detections."""
    area, tier = beside(support, np.array([0, len(metric.max_detections) - 1], np.int32))
    return area, tier
