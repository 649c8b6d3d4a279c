"""Batches of boxes; detections matched to ground truth, for mean average precision."""

from collections.abc import Iterable
from typing import NamedTuple, Self

import jax
import numpy as np

from datarax._checks import (
    as_float,
    default_float,
    integers,
    numeric,
    positive_int,
    python_int,
    real,
)
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import beside, lax, vmap, xp
from datarax.algebra.fields import field
from datarax.distributed.collectives import replicated, unsharded
from datarax.numerics.box_matching import (
    AREAS,
    IOU_THRESHOLDS,
    DetectionMatches,
    Found,
    Truth,
    area_of,
    box_overlap,
    in_areas,
    match,
    number_of_words,
    pack,
    unpack,
)
from datarax.numerics.boxes import BOX_FORMATS, BoxFormat
from datarax.numerics.digit_sums import sum_by_digits
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.recall_levels import RankedDetections
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import in_range, rows_weight
from datarax.statistics.buffer import KeepsRows, WeightedRows
from datarax.statistics.invalid_counts import CountsInvalid, Invalid, not_finite, out_of_range
from datarax.statistics.scatter_counts import count_labels


def checked_boxes(
    x: ArrayLike, name: str, leading: str, box_format: BoxFormat = "xyxy"
) -> jax.Array:
    """Boxes of shape (*leading, 4), where `leading` names the axes: "N" or "N, D".

    Raises:
        MetricInputError: another shape; shows it.
    """
    boxes = numeric(x, name)
    if boxes.ndim != len(leading.split(",")) + 1 or boxes.shape[-1] != 4:
        raise MetricInputError(
            f"{name} of shape {boxes.shape}; expected boxes ({leading}, 4): "
            f"{BOX_FORMATS[box_format]}"
        )
    return unsharded(boxes, boxes.ndim - 1)


def unusable_boxes(boxes: jax.Array, box_format: BoxFormat = "xyxy") -> Invalid:
    """The boxes that hold NaN or infinities, whose second corner is not after the first, or whose
    size is negative.

    A box without area can be used.
    """
    low, high = _extent(boxes, box_format)
    return not_finite(boxes, -1) | out_of_range(xp.any(low > high, -1))


def without_area(boxes: jax.Array, box_format: BoxFormat = "xyxy") -> jax.Array:
    """The boxes whose width or height is zero, of those that can be used."""
    low, high = _extent(boxes, box_format)
    return xp.any(low == high, -1) & xp.all(low <= high, -1)


def _extent(boxes: jax.Array, box_format: BoxFormat) -> tuple[jax.Array, jax.Array]:
    """Both ends of boxes; of a format with sizes, zero and the size."""
    high = boxes[..., 2:]
    return boxes[..., :2] if box_format == "xyxy" else xp.zeros((), high.dtype), high


class BoxSet(NamedTuple):
    """The boxes of images, (N, K, ...); some may be padding."""

    boxes: jax.Array
    """(N, K, 4)."""
    labels: jax.Array
    """int32."""
    valid: jax.Array
    """False for padding."""
    unusable: Invalid
    """Padding may hold anything, and is usable here."""

    @classmethod
    def of(
        cls,
        boxes: jax.Array,
        labels: ArrayLike,
        valid: ArrayLike | None,
        size: int,
        prefix: str = "",
        box_format: BoxFormat = "xyxy",
    ) -> Self:
        """Checks boxes and their labels, which are from 0 to `size - 1`.

        Args:
            boxes: from `checked_boxes`.
            labels: integers (N, K).
            valid: a mask (N, K) of the boxes that are not padding; `None` if none is.
            prefix: what the names of the arguments begin with.
            box_format: the format of the boxes.

        Raises:
            MetricInputError: shapes that do not fit together; shows both.
            MetricTypeError: labels or a mask that are floats.
        """
        boxes = replicated(boxes)
        labels = integers_of(boxes, labels, f"{prefix}labels")
        mask = mask_of(boxes, valid, f"{prefix}valid", default=True)
        bad = unusable_boxes(boxes, box_format) | out_of_range(~in_range(labels, size), labels)
        # Cast only after the check of the range.
        return cls(boxes, labels.astype(xp.int32), mask, bad.where(mask))

    def among(self, images: jax.Array) -> Self:
        """The boxes of a mask of images (N,); all others, and all padding, are zero boxes."""
        valid = self.valid & images[:, None]
        boxes = xp.where(valid[..., None], self.boxes, xp.zeros((), self.boxes.dtype))
        return self._replace(boxes=boxes, labels=xp.where(valid, self.labels, 0), valid=valid)


def numbers_of(boxes: jax.Array, x: ArrayLike, name: str) -> jax.Array:
    """Numbers, one for each of the boxes.

    Raises:
        MetricInputError: they do not have one number for each box; shows both shapes.
    """
    array = replicated(numeric(x, name))
    if array.shape != boxes.shape[:-1]:
        raise MetricInputError(
            f"{name} of shape {array.shape} for boxes of shape {boxes.shape}; expected a shape of "
            f"{boxes.shape[:-1]}, one number for each box"
        )
    return array


def integers_of(boxes: jax.Array, x: ArrayLike, name: str) -> jax.Array:
    """Integers or booleans, one for each of the boxes.

    Raises:
        MetricInputError: they do not have one number for each box; shows both shapes.
        MetricTypeError: they are floats.
    """
    array = numbers_of(boxes, x, name)
    return integers(array, name, "integers or booleans", booleans=True)


def mask_of(boxes: jax.Array, x: ArrayLike | None, name: str, *, default: bool) -> jax.Array:
    """A mask of the boxes: true where an integer is not zero; `default` for `None`.

    Raises:
        MetricInputError: it does not have one entry for each box; shows both shapes.
        MetricTypeError: it has floats.
    """
    if x is None:
        # Made of the boxes, so that it has their sharding.
        return xp.full_like(boxes[..., 0], default, xp.bool_)
    return integers_of(boxes, x, name).astype(xp.bool_)


MOST_CLASSES = 2**20
"""With more, a class and a rank do not fit a float32."""
_MOST_CODES = 2**24


class Ranked(NamedTuple):
    """The detections that are kept, in the order of a `RankedDetections`."""

    ranking: RankedDetections
    tier: jax.Array
    """The place in `max_detections` of the least number of detections that includes it."""
    words: jax.Array
    """The outcome of the match in each range of areas, packed: see `unpack`. (A, W, n)."""
    weight: jax.Array
    """0 for unused rows."""
    thresholds: int
    """The number of thresholds, T."""

    def outcomes(self, area: jax.Array, tier: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The weights of right and of wrong detections, (T, n), among the first ranks of a tier."""
        w = xp.where(self.tier <= tier, self.weight, 0)
        outcomes = unpack(self.words[area], self.thresholds)
        return tuple(xp.where(x, w[None], 0) for x in outcomes)  # type: ignore[return-value]


class Detections(KeepsRows, CountsInvalid, kw_only=False):
    """Up to `capacity` detections, each with its score and matches; and the ground truth by class.

    Detections are matched within their image when it is folded in. Those that do not fit are
    dropped and counted: those of later batches, and of later devices. A detection takes no room if
    100 others (the last of `max_detections`) of its class in its image have higher scores.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import Detections
        >>> boxes = jnp.array([[[0, 0, 9, 9], [1, 1, 9, 9], [5, 5, 9, 9]]])
        >>> scores, labels = jnp.array([[0.9, 0.8, 0.7]]), jnp.array([[0, 1, 0]])
        >>> seen = Detections(2, capacity=2).update(boxes, scores, labels, boxes, labels)
        >>> print(seen.filled, seen.overflow, seen.support[0].to_float())
        2 1 [2. 1.]
    """

    num_classes: int
    """C: labels are from 0 to `num_classes - 1`."""
    capacity: int = field(default=2**17)
    """The number of detections kept, also after a merge. One takes 28 bytes (56 with x64), and 16
    more for each 12 thresholds beyond the first 12."""
    iou_thresholds: tuple[float, ...] | None = None
    """The least IoU of a match, T of them; `None` for 0.5, 0.55, ..., 0.95."""
    max_detections: tuple[int, ...] = (1, 10, 100)
    """How many detections of a class in an image count, by score: one recall for each."""
    box_format: BoxFormat = "xyxy"
    """The format of the boxes."""

    def __post_init__(self) -> None:
        positive_int(self.num_classes, "num_classes")
        if self.num_classes > MOST_CLASSES:
            raise MetricInputError(
                f"num_classes={self.num_classes}; expected at most {MOST_CLASSES}"
            )
        self.iou_thresholds = checked_thresholds(self.iou_thresholds)
        self.max_detections = checked_numbers(self.max_detections)
        if self.num_classes * len(self.max_detections) > _MOST_CODES:
            raise MetricInputError(
                f"max_detections has {len(self.max_detections)} numbers for "
                f"num_classes={self.num_classes}; expected at most "
                f"{_MOST_CODES // self.num_classes}"
            )
        # Score; class and tier; words for each range of areas; weight.
        words = len(AREAS) * number_of_words(len(self.thresholds))
        self.rows = WeightedRows(self.capacity, (3 + words,), default_float().name)
        self.counts = MetricAccumulator(np.zeros((len(AREAS), self.num_classes)))

    def update(
        self,
        boxes: ArrayLike,
        scores: ArrayLike,
        labels: ArrayLike,
        target_boxes: ArrayLike,
        target_labels: ArrayLike,
        *,
        valid: ArrayLike | None = None,
        target_valid: ArrayLike | None = None,
        crowd: ArrayLike | None = None,
        area: ArrayLike | None = None,
        ignore: ArrayLike | None = None,
        weights: Weights = None,
    ) -> Self:
        """Folds in images: see `MeanAveragePrecision.update`."""
        form = self.box_format
        boxes = checked_boxes(boxes, "boxes", "N, D", form)
        true_boxes = replicated(checked_boxes(target_boxes, "target_boxes", "N, G", form))
        if boxes.shape[0] != true_boxes.shape[0]:
            raise MetricInputError(
                f"boxes of shape {boxes.shape} and target_boxes of shape {true_boxes.shape}; "
                f"expected as many images N in (N, D, 4) and (N, G, 4)"
            )

        found = BoxSet.of(boxes, labels, valid, self.num_classes, box_format=form)
        there = mask_of(true_boxes, target_valid, "target_valid", default=True)
        is_crowd = mask_of(true_boxes, crowd, "crowd", default=False)
        flat = there & ~is_crowd & without_area(true_boxes, form)
        ignored = None if ignore is None else mask_of(true_boxes, ignore, "ignore", default=False)
        if ignored is not None:
            flat = flat & ~ignored
        # For example padding that `target_valid` does not mark.
        there = there & ~flat
        truth = BoxSet.of(true_boxes, target_labels, there, self.num_classes, "target_", form)
        scores = as_float(numbers_of(found.boxes, scores, "scores"))
        unusable = (found.unusable | not_finite(scores).where(found.valid)).any((1,))
        unusable |= truth.unusable.any((1,))
        if area is not None:
            area = as_float(numbers_of(truth.boxes, area, "area"))
            bad = not_finite(area) | out_of_range(area < 0, area)
            unusable |= bad.where(truth.valid).any((1,))
        w, invalid = rows_weight(unusable, weights)
        w = replicated(w)
        used = w.astype(xp.bool_)
        found, truth = found.among(used), truth.among(used)
        if area is None:
            areas = area_of(truth.boxes, form)
        else:
            areas = DoubleFloat.of(xp.where(truth.valid, area, 0))
        in_area = in_areas(areas)
        if ignored is not None:
            in_area = in_area & ~ignored[..., None]

        # Scores that are subnormal count as zero, because some devices make them so.
        keep = found.valid & (xp.abs(scores) >= np.finfo(default_float()).tiny)
        scores = xp.where(keep, scores, 0)
        order = xp.argsort(xp.where(found.valid, -scores, xp.inf), -1)
        boxes, labels, valid, scores = (
            xp.take_along_axis(x, lax.expand_dims(order, range(2, x.ndim)), 1)
            for x in (found.boxes, found.labels, found.valid, scores)
        )

        def matched(
            boxes: jax.Array, labels: jax.Array, valid: jax.Array, there: jax.Array, truth: Truth
        ) -> DetectionMatches:
            found = Found(labels, valid, in_areas(area_of(boxes, form)))
            overlap = box_overlap(boxes, there, truth.crowd, form)
            return match(found, truth, overlap, self.thresholds, most)

        most = self.max_detections[-1]
        outcome = vmap(matched)(
            *(boxes, labels, valid, truth.boxes),
            Truth(truth.labels, truth.valid, is_crowd, in_area),
        )
        tiers = np.array(self.max_detections, np.int32)
        tier = xp.searchsorted(beside(outcome.rank, tiers), outcome.rank, side="right")
        columns = (
            scores[..., None],
            (labels * len(tiers) + tier.astype(xp.int32))[..., None],
            pack(outcome),
            xp.broadcast_to(w[:, None], scores.shape)[..., None],
        )
        rows = xp.concatenate([x.astype(self.rows.dtype) for x in columns], -1)
        keep = valid & (outcome.rank < most)

        counts = in_area & (truth.valid & ~is_crowd)[..., None]

        def count(w: jax.Array) -> jax.Array:
            return xp.stack([
                count_labels(truth.labels, xp.where(x, w, 0), self.num_classes)
                for x in xp.moveaxis(counts, -1, 0)
            ])  # fmt: skip

        w = xp.broadcast_to(w[:, None], truth.valid.shape)
        return self.replace(
            rows=self.rows.append(rows.reshape(-1, rows.shape[-1]), keep.reshape(-1)),
            counts=self.counts.plus(sum_by_digits(w, count)),
            invalid=self.invalid.update(invalid).update(flat & used[:, None]),
        )

    @property
    def support(self) -> DoubleFloat:
        """The weight of the ground truth, crowds excluded, by range of areas and class: (A, C)."""
        return self.counts.double

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The least IoU of a match, T of them."""
        return IOU_THRESHOLDS if self.iou_thresholds is None else self.iou_thresholds

    def ranked(self) -> Ranked:
        """The detections that are kept, sorted."""
        used, data = self.rows.is_filled, xp.asarray(self.rows.data)
        score, label, *words, w = xp.where(used[:, None], data, 0).T
        # A row holds the label times the number of tiers, and its tier. Unused rows get a label
        # above all classes, so that they come last.
        tiers = len(self.max_detections)
        label = xp.where(used, label.astype(xp.int32), self.num_classes * tiers)
        order = xp.lexsort((score, label // tiers))
        score, label, w = score[order], label[order], w[order]
        packed = xp.stack(words)[:, order].astype(xp.int32)
        return Ranked(
            RankedDetections.of(label // tiers, score),
            label % tiers,
            packed.reshape(len(AREAS), -1, packed.shape[-1]),
            w,
            len(self.thresholds),
        )


def checked_thresholds(given: object) -> tuple[float, ...] | None:
    """The thresholds of `iou_thresholds=`, as Python floats; `None` for those of COCO.

    Raises:
        MetricInputError: they are no numbers above 0 and up to 1, in increasing order.
    """
    if given is None:
        return None
    found = tuple(given) if isinstance(given, Iterable) else ()
    numbers = [real(x, "iou_thresholds") for x in found]
    if not numbers or sorted(set(numbers)) != numbers or not 0 < numbers[0] <= numbers[-1] <= 1:
        raise MetricInputError(
            f"iou_thresholds={given!r}; expected increasing numbers above 0 and up to 1, such as "
            f"(0.5, 0.75), or None for 0.5, 0.55, ..., 0.95"
        )
    return None if tuple(numbers) == IOU_THRESHOLDS else tuple(numbers)


def checked_numbers(given: object) -> tuple[int, ...]:
    """The numbers of `max_detections=`, as Python integers.

    Raises:
        MetricInputError: they are no positive integers in increasing order.
    """
    found = tuple(map(python_int, given)) if isinstance(given, Iterable) else ()
    whole = all(isinstance(x, int) and not isinstance(x, bool) and x > 0 for x in found)
    if not found or not whole or sorted(set(found)) != list(found):
        raise MetricInputError(
            f"max_detections={given!r}; expected increasing positive integers, such as (1, 10, 100)"
        )
    return found
