"""Detections matched to ground truth, from which mean average precision is computed."""

from typing import NamedTuple, Self

import jax
import numpy as np

from datarax._checks import as_float, default_float, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import lax, vmap, xp
from datarax.algebra.fields import field
from datarax.algebra.state import State
from datarax.distributed.collectives import replicated
from datarax.numerics.box_matching import (
    AREAS,
    MOST_DETECTIONS,
    Found,
    Truth,
    area_of,
    in_areas,
    match,
    pack,
    unpack,
)
from datarax.numerics.digit_sums import sum_by_digits
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import Exact
from datarax.numerics.recall_levels import Ranking
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.box_batches import (
    BoxSet,
    checked_boxes,
    mask_of,
    numbers_of,
    without_area,
)
from datarax.statistics.buffer import WeightedRows
from datarax.statistics.invalid_counts import InvalidCounts, not_finite, out_of_range
from datarax.statistics.labels import count_labels

MOST_CLASSES = 2**20
"""With more, a class and a rank do not fit a float32."""
RANKS = (1, 10, MOST_DETECTIONS)
"""Recall is of so many detections of a class in an image, those of the highest scores."""


class Ranked(NamedTuple):
    """The detections that are kept, in the order of a `Ranking`."""

    ranking: Ranking
    tier: jax.Array
    """The place in `RANKS` of the least number of detections that includes it."""
    words: jax.Array
    """What became of it, by range of areas: see `unpack`. (A, n)."""
    weight: jax.Array
    """0 for unused rows."""

    def outcomes(self, area: jax.Array, tier: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The weights of those that are right and wrong, (T, n), of the first ranks of a tier."""
        w = xp.where(self.tier <= tier, self.weight, 0)
        return tuple(xp.where(x, w[None], 0) for x in unpack(self.words[area]))  # type: ignore


class Detections(State, kw_only=False):
    """Up to `capacity` detections, each with its score and matches; and the ground truth by class.

    Detections are matched within their image when it is folded in. Those that do not fit are
    dropped and counted: those of later batches, and of later devices. A detection takes no room if
    100 others of its class in its image have higher scores.

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
    """How many detections are kept, also after a merge. One takes 28 bytes (56 with x64)."""

    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        positive_int(self.num_classes, "num_classes")
        positive_int(self.capacity, "capacity")
        if self.num_classes > MOST_CLASSES:
            raise MetricInputError(
                f"num_classes={self.num_classes}; expected at most {MOST_CLASSES}"
            )
        # Score; class and tier; a word for each range of areas; weight.
        self.rows = WeightedRows(self.capacity, (3 + len(AREAS),), default_float().name)
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
        weights: Weights = None,
    ) -> Self:
        """Folds in images: see `MeanAveragePrecision.update`."""
        boxes = checked_boxes(boxes, "boxes", "N, D")
        true_boxes = replicated(checked_boxes(target_boxes, "target_boxes", "N, G"))
        if boxes.shape[0] != true_boxes.shape[0]:
            raise MetricInputError(
                f"boxes of shape {boxes.shape} and target_boxes of shape {true_boxes.shape}; "
                f"expected as many images N in (N, D, 4) and (N, G, 4)"
            )

        found = BoxSet.of(boxes, labels, valid, self.num_classes)
        there = mask_of(true_boxes, target_valid, "target_valid", default=True)
        is_crowd = mask_of(true_boxes, crowd, "crowd", default=False)
        # Such as padding that `target_valid` does not name.
        flat = there & ~is_crowd & without_area(true_boxes)
        truth = BoxSet.of(true_boxes, target_labels, there & ~flat, self.num_classes, "target_")
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
            areas = area_of(truth.boxes)
        else:
            areas = DoubleFloat.of(xp.where(truth.valid, area, 0))
        in_area = in_areas(areas)

        # Scores that are subnormal count as zero, because some devices make them so.
        keep = found.valid & (xp.abs(scores) >= np.finfo(default_float()).tiny)
        scores = xp.where(keep, scores, 0)
        order = xp.argsort(xp.where(found.valid, -scores, xp.inf), -1)
        boxes, labels, valid, scores = (
            xp.take_along_axis(x, lax.expand_dims(order, range(2, x.ndim)), 1)
            for x in (found.boxes, found.labels, found.valid, scores)
        )
        outcome = vmap(match)(
            Found(boxes, labels, valid),
            Truth(truth.boxes, truth.labels, truth.valid, is_crowd, in_area),
        )
        tier = xp.searchsorted(xp.array(RANKS, xp.int32), outcome.rank, side="right")
        columns = (
            scores[..., None],
            (labels * len(RANKS) + tier.astype(xp.int32))[..., None],
            pack(outcome),
            xp.broadcast_to(w[:, None], scores.shape)[..., None],
        )
        rows = xp.concatenate([x.astype(self.rows.dtype) for x in columns], -1)
        keep = valid & (outcome.rank < MOST_DETECTIONS)

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
    def filled(self) -> jax.Array:
        """How many detections are kept."""
        return xp.asarray(self.rows.filled)

    @property
    def overflow(self) -> Exact:
        """How many detections did not fit."""
        return self.rows.overflow

    @property
    def support(self) -> DoubleFloat:
        """The weight of the ground truth, crowds excluded, by range of areas and class: (A, C)."""
        return self.counts.double

    def ranked(self) -> Ranked:
        """The detections that are kept, sorted."""
        used, data = self.rows.is_filled, xp.asarray(self.rows.data)
        score, label, *words, w = xp.where(used[:, None], data, 0).T
        label = xp.where(used, label.astype(xp.int32), self.num_classes * len(RANKS))
        order = xp.lexsort((score, label // len(RANKS)))
        score, label, w = score[order], label[order], w[order]
        return Ranked(
            Ranking.of(label // len(RANKS), score),
            label % len(RANKS),
            xp.stack(words)[:, order].astype(xp.int32),
            w,
        )
