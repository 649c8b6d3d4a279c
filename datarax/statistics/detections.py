"""Batches of boxes; detections matched to ground truth, for mean average precision."""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, Self

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
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import beside, lax, vmap, xp
from datarax.algebra.fields import field
from datarax.distributed.collectives import replicated
from datarax.numerics.box_matching import (
    AREAS,
    IOU_THRESHOLDS,
    DetectionMatches,
    Found,
    Truth,
    area_of,
    in_areas,
    match,
    number_of_words,
    pack,
    unpack,
)
from datarax.numerics.boxes import BoxFormat
from datarax.numerics.digit_sums import sum_by_digits
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.recall_levels import RankedDetections
from datarax.numerics.run_lengths import RunLengths
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import in_range, rows_weight
from datarax.statistics.buffer import KeepsRows, WeightedRows
from datarax.statistics.detected_shapes import (
    COCO_SIGMAS,
    Boxes,
    Items,
    Keypoints,
    Masks,
    Shapes,
    checked_boxes,
    pixels_of,
)
from datarax.statistics.invalid_counts import CountsInvalid, Invalid, not_finite, out_of_range
from datarax.statistics.scatter_counts import count_labels


def numbers_of(like: jax.Array, x: ArrayLike, name: str) -> jax.Array:
    """Numbers, one for each of what is detected, `like` (N, K, ...).

    Raises:
        MetricInputError: they do not have one number for each; shows both shapes.
    """
    array = replicated(numeric(x, name))
    if array.shape != like.shape[:2]:
        raise MetricInputError(
            f"{name} of shape {array.shape} for detections or ground truth of shape {like.shape}; "
            f"expected a shape of {like.shape[:2]}, one number for each"
        )
    return array


def integers_of(like: jax.Array, x: ArrayLike, name: str) -> jax.Array:
    """Integers or booleans, one for each of what is detected.

    Raises:
        MetricInputError: they do not have one number for each; shows both shapes.
        MetricTypeError: they are floats.
    """
    array = numbers_of(like, x, name)
    return integers(array, name, "integers or booleans", booleans=True)


def mask_of(like: jax.Array, x: ArrayLike | None, name: str, *, default: bool) -> jax.Array:
    """A mask of what is detected: true where an integer is not zero; `default` for `None`.

    Raises:
        MetricInputError: it does not have one entry for each; shows both shapes.
        MetricTypeError: it has floats.
    """
    if x is None:
        # Made of the arrays, so that it has their sharding.
        return xp.full_like(like[(..., *[0] * (like.ndim - 2))], default, xp.bool_)
    return integers_of(like, x, name).astype(xp.bool_)


Arrays = tuple[jax.Array, ...]
IoUType = Literal["bbox", "segm", "keypoints"]
MOST_CLASSES = 2**20
"""With more, a class and a rank do not fit a float32."""
_MOST_CODES = 2**24


class Ranked(NamedTuple):
    """The detections that are kept, in the order of a `RankedDetections`."""

    ranking: RankedDetections
    score: jax.Array
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
    iou_type: IoUType = "bbox"
    """What is compared: boxes, masks or key points."""
    sigmas: tuple[float, ...] = COCO_SIGMAS
    """Of key points: how far annotators place each apart, over the square root of the area."""

    def __post_init__(self) -> None:
        positive_int(self.num_classes, "num_classes")
        if self.num_classes > MOST_CLASSES:
            raise MetricInputError(
                f"num_classes={self.num_classes}; expected at most {MOST_CLASSES}"
            )
        self.iou_thresholds = checked_thresholds(self.iou_thresholds)
        self.max_detections = checked_numbers(self.max_detections)
        self.sigmas = checked_sigmas(self.sigmas)
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
        """Folds in images: see `MeanAveragePrecision.update`."""
        given = {
            "boxes": boxes,
            "target_boxes": target_boxes,
            "masks": masks,
            "target_masks": target_masks,
            "keypoints": keypoints,
            "target_keypoints": target_keypoints,
        }
        shapes, found, truth, area = self._shapes(given, area)
        mine, theirs = found.arrays[0], truth.arrays[0]
        is_crowd = mask_of(theirs, crowd, "crowd", default=False)
        ignored = None if ignore is None else mask_of(theirs, ignore, "ignore", default=False)
        there = mask_of(theirs, target_valid, "target_valid", default=True)
        if self.iou_type == "keypoints":
            # As COCO: a person without a visible point may be matched, and need not be found.
            bare = ~xp.any(theirs[..., 2] > 0, -1)
            ignored = bare if ignored is None else ignored | bare
        real = mask_of(mine, valid, "valid", default=True)
        own, bad = self._labels(mine, labels, "labels")
        score = as_float(numbers_of(mine, scores, "scores"))
        # An image counts as a whole: without one of its detections, others would match differently.
        unusable = (found.unusable | bad | not_finite(score)).where(real).any((1,))
        true_labels, bad = self._labels(theirs, target_labels, "target_labels")
        bad |= truth.unusable
        if area is not None:
            bad |= not_finite(area) | out_of_range(area < 0, area)
        unusable |= bad.where(there).any((1,))
        w, invalid = rows_weight(unusable, weights)
        w = replicated(w)
        used = w.astype(xp.bool_)
        real, there = real & used[:, None], there & used[:, None]
        found, truth = found.among(real), truth.among(there)
        # 0 is a legal index. What is not real is matched by no one.
        own, true_labels = xp.where(real, own, 0), xp.where(there, true_labels, 0)
        if area is None:
            areas = shapes.area(truth.arrays)
        else:
            areas = DoubleFloat.of(xp.where(there, area, 0))
        in_area = in_areas(areas)
        if ignored is not None:
            in_area = in_area & ~ignored[..., None]

        # Scores that are subnormal count as zero, because some devices make them so.
        keep = real & (xp.abs(score) >= np.finfo(default_float()).tiny)
        score = xp.where(keep, score, 0)
        # As COCO matches: the highest score chooses first. The sort is stable, so equal scores keep
        # the order in which they were given.
        order = xp.argsort(xp.where(real, -score, xp.inf), -1)
        own, real, score, *arrays = (
            xp.take_along_axis(x, lax.expand_dims(order, range(2, x.ndim)), 1)
            for x in (own, real, score, *found.arrays)
        )

        # One image at a time, because what is detected in one never matches what is in another.
        def matched(arrays: Arrays, others: Arrays, found: Found, truth: Truth) -> DetectionMatches:
            found = found._replace(in_area=in_areas(shapes.area(arrays)))
            overlap = shapes.overlap(arrays, others, truth.crowd)
            return match(found, truth, overlap, self.thresholds, most)

        most = self.max_detections[-1]
        outcome = vmap(matched)(
            *(tuple(arrays), truth.arrays, Found(own, real, real)),
            Truth(true_labels, there, is_crowd, in_area),
        )
        tiers = np.array(self.max_detections, np.int32)
        tier = xp.searchsorted(beside(outcome.rank, tiers), outcome.rank, side="right")
        columns = (
            score[..., None],
            (own * len(tiers) + tier.astype(xp.int32))[..., None],
            pack(outcome),
            xp.broadcast_to(w[:, None], score.shape)[..., None],
        )
        rows = xp.concatenate([x.astype(self.rows.dtype) for x in columns], -1)
        # What no number of detections counts takes no room in the buffer.
        keep = real & (outcome.rank < most)

        # A crowd may be matched, and need not be found.
        counts = in_area & (there & ~is_crowd)[..., None]

        # Each range of areas by itself: the ranges overlap, so an item counts in several.
        def count(w: jax.Array) -> jax.Array:
            return xp.stack([
                count_labels(true_labels, xp.where(x, w, 0), self.num_classes)
                for x in xp.moveaxis(counts, -1, 0)
            ])  # fmt: skip

        w = xp.broadcast_to(w[:, None], there.shape)
        return self.replace(
            rows=self.rows.append(rows.reshape(-1, rows.shape[-1]), keep.reshape(-1)),
            counts=self.counts.plus(sum_by_digits(w, count)),
            invalid=self.invalid.update(invalid),
        )

    def _labels(self, like: jax.Array, labels: ArrayLike, name: str) -> tuple[jax.Array, Invalid]:
        """Labels as int32, and those that are out of range."""
        found = integers_of(like, labels, name)
        # Cast only after the check of the range.
        return found.astype(xp.int32), out_of_range(~in_range(found, self.num_classes), found)

    def _shapes(
        self, given: Mapping[str, PyTree], area: ArrayLike | None
    ) -> tuple[Shapes, Items, Items, jax.Array | None]:
        """The detections and the ground truth that are given, by `iou_type`; and their areas.

        Raises:
            MetricInputError: what `iou_type` needs is missing, other shapes are given, or their
                shapes do not fit together.
        """
        kind, form = self.iou_type, self.box_format
        name = {"bbox": "boxes", "segm": "masks", "keypoints": "keypoints"}[kind]
        for other in given:
            # An argument that is ignored would hide that another `iou_type` was meant. Boxes may
            # give areas.
            if given[other] is not None and "boxes" not in other and not other.endswith(name):
                raise MetricInputError(f"{other}= is given, and iou_type={kind!r} does not use it")
        x, y = given[name], given[f"target_{name}"]
        if x is None or y is None:
            raise MetricInputError(f"iou_type={kind!r} needs {name} and target_{name}")
        if kind == "segm":
            masks = Masks()
            mine, theirs, common = pixels_of(x, y)
            self._check_images(name, mine, theirs)
            sizes = None if area is None else as_float(numbers_of(theirs, area, "area"))
            return masks, masks.items(mine, common), masks.items(theirs), sizes
        if kind == "bbox":
            boxes = Boxes(form)
            mine, theirs = _boxes(x, name, "N, D", form), _boxes(y, f"target_{name}", "N, G", form)
            self._check_images(name, mine, theirs)
            sizes = None if area is None else as_float(numbers_of(theirs, area, "area"))
            return boxes, boxes.items(mine), boxes.items(theirs), sizes
        points = Keypoints(self.sigmas, form)
        mine, theirs = (
            replicated(points.checked(each, called))
            for each, called in ((x, name), (y, f"target_{name}"))
        )
        self._check_images(name, mine, theirs)
        around = given["target_boxes"]
        there = () if around is None else (_boxes(around, "target_boxes", "N, G", form),)
        if there and there[0].shape[:2] != theirs.shape[:2]:
            raise MetricInputError(
                f"target_boxes of shape {there[0].shape} and target_keypoints of shape "
                f"{theirs.shape}; expected a box for each"
            )
        if area is not None:
            sizes = as_float(numbers_of(theirs, area, "area"))
        elif there:
            sizes = as_float(area_of(there[0], form).to_float())
        else:
            raise MetricInputError(
                "iou_type='keypoints' needs area=, or target_boxes to take it from"
            )
        return points, points.items(mine), points.items(theirs, sizes, *there), sizes

    def _check_images(self, name: str, mine: jax.Array, theirs: jax.Array) -> None:
        if mine.shape[0] != theirs.shape[0]:
            raise MetricInputError(
                f"{name} of shape {mine.shape} and target_{name} of shape {theirs.shape}; expected "
                f"as many images N in (N, D, ...) and (N, G, ...)"
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
        # Integers are stored as floats, which hold them up to 2**24: see `_MOST_CODES`.
        label = xp.where(used, label.astype(xp.int32), self.num_classes * tiers)
        # By class first, so that each class is a run of neighbours in one sorted array.
        order = xp.lexsort((score, label // tiers))
        score, label, w = score[order], label[order], w[order]
        packed = xp.stack(words)[:, order].astype(xp.int32)
        return Ranked(
            RankedDetections.of(label // tiers, score),
            score,
            label % tiers,
            packed.reshape(len(AREAS), -1, packed.shape[-1]),
            w,
            len(self.thresholds),
        )


def _boxes(x: ArrayLike, name: str, leading: str, box_format: BoxFormat) -> jax.Array:
    return replicated(checked_boxes(x, name, leading, box_format))


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
    # One form of one configuration, so that metrics made in both ways can be merged.
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


def checked_sigmas(given: object) -> tuple[float, ...]:
    """The numbers of `sigmas=`, as Python floats.

    Raises:
        MetricInputError: they are no positive numbers.
    """
    found = tuple(given) if isinstance(given, Iterable) else ()
    numbers = tuple(real(x, "sigmas") for x in found)
    if not numbers or not all(0 < x < float("inf") for x in numbers):
        raise MetricInputError(
            f"sigmas={given!r}; expected a positive number for each key point, such as 0.05"
        )
    return numbers
