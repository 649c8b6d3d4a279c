"""Segments of images matched one to one: what panoptic quality is read from."""

import math
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax._checks import as_float, default_float, is_integer, numeric, positive_int, same_shape
from datarax._errors import MetricInputError, MetricTypeError
from datarax.distributed.collectives import replicated
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.labels import in_range
from datarax.statistics.state import State


class Matches(NamedTuple):
    """Of one image, by class: matched segments, others predicted, others there, sum of IoU."""

    matched: jax.Array
    spurious: jax.Array
    missed: jax.Array
    overlap: jax.Array


class SegmentMatches(State):
    """By class: segments matched, predicted in vain and missed, and the sum of matched IoU.

    Args:
        num_classes: C; each pixel is of a class from 0 to `num_classes - 1`.
        things: the classes whose segments are told apart; the others have one in an image.
        max_segments: segments of a class are numbered from 0 to `max_segments - 1`.
        ignore_index: the class of pixels that are not labelled.

    Two segments of one class match where their IoU exceeds 1/2, which no two of an image can with
    the same one. Pixels whose target is not labelled are not looked at, and a predicted segment
    that lies mostly on such is not counted.
    """

    invalid = MetricAccumulator(0)

    def __init__(
        self,
        num_classes: int,
        *,
        things: tuple[int, ...],
        max_segments: int = 64,
        ignore_index: int | None = None,
    ):
        positive_int(num_classes, "num_classes")
        positive_int(max_segments, "max_segments")
        self.things = tuple(sorted(set(things)))
        if not all(isinstance(x, int) and 0 <= x < num_classes for x in self.things):
            raise MetricInputError(
                f"things={things!r}; expected classes from 0 to {num_classes - 1}"
            )
        if ignore_index is not None and 0 <= ignore_index < num_classes:
            raise MetricInputError(
                f"ignore_index={ignore_index} is one of {num_classes} classes; expected another"
            )
        self.num_classes, self.max_segments = num_classes, max_segments
        self.ignore_index = ignore_index
        zeros = np.zeros(num_classes)
        self.matched, self.spurious = MetricAccumulator(zeros), MetricAccumulator(zeros)
        self.missed, self.overlap = MetricAccumulator(zeros), MetricAccumulator(zeros)

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """Folds in images (N, ..., 2): of each pixel its class, and the number of its segment.

        Raises:
            MetricInputError: shapes that do not go together; shows both.
            MetricTypeError: classes or numbers that are no integers.
        """
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        same_shape(preds, target)
        if preds.ndim < 3 or preds.shape[-1] != 2:
            raise MetricInputError(
                f"preds and target of shape {preds.shape}; expected images (N, ..., 2), of each "
                f"pixel its class and the number of its segment"
            )
        for name, x in (("preds", preds), ("target", target)):
            if not is_integer(x):
                raise MetricTypeError(f"{name} has dtype {x.dtype}; expected integers")
        pixels = math.prod(preds.shape[1:-1])
        images, valid = [], jnp.ones(preds.shape[0], jnp.bool_)
        for x in (preds, target):
            x = replicated(x).reshape(x.shape[0], pixels, 2)
            fine, segment = self._segments(x)
            images.append(segment)
            valid &= jnp.all(fine, -1)
        w, invalid = rows_weight(valid, weights)
        found: Matches = jax.lax.map(lambda pair: self._matches(*pair), tuple(images))
        by_image, zero = as_float(w)[:, None], jnp.zeros((), default_float())
        changes = {
            name: getattr(self, name).update(
                jnp.where(by_image != zero, as_float(x) * by_image, zero)
            )
            for name, x in found._asdict().items()
        }
        return self.replace(**changes, invalid=self.invalid.update(invalid))

    def _segments(self, image: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Which pixels can be used, and the segment of each: by class, then by number.

        Pixels that are not labelled, or cannot be used, are of the segment after the last.
        """
        label, number = image[..., 0], image[..., 1]
        unlabelled = jnp.zeros(label.shape, jnp.bool_)
        if self.ignore_index is not None:
            unlabelled = label.astype(jnp.int32) == self.ignore_index
        known = in_range(label, self.num_classes)
        label = jnp.where(known, label.astype(jnp.int32), jnp.int32(0))
        is_thing = np.zeros(self.num_classes, bool)
        is_thing[list(self.things)] = True
        thing = jnp.asarray(is_thing)[label]
        fine = known & (~thing | in_range(number, self.max_segments))
        number = jnp.where(thing & fine, number.astype(jnp.int32), jnp.int32(0))
        last = jnp.int32(self.num_classes * self.max_segments)
        return fine | unlabelled, jnp.where(fine, label * self.max_segments + number, last)

    def _matches(self, preds: jax.Array, target: jax.Array) -> Matches:
        """The matches of one image, from the segment of each pixel."""
        size, shape = self.max_segments, (self.num_classes, self.max_segments)
        none = jnp.int32(self.num_classes * size)

        def area(segment: jax.Array, where: jax.Array, length: int) -> jax.Array:
            place = jnp.where(where, segment, jnp.int32(length))
            return jnp.zeros(length, jnp.int32).at[place].add(jnp.int32(1), mode="drop")

        labelled = target != none
        on_labelled = area(preds, labelled & (preds != none), shape[0] * size).reshape(shape)
        beside = area(preds, ~labelled & (preds != none), shape[0] * size).reshape(shape)
        there = area(target, labelled, shape[0] * size).reshape(shape)
        same = labelled & (preds // size == target // size)
        both = area(preds * size + target % size, same, shape[0] * size * size)
        both = both.reshape(*shape, size)
        union = on_labelled[:, :, None] + there[:, None, :] - both
        match = both > union - both
        ratio = as_float(both) / as_float(jnp.maximum(union, 1))
        overlap = jnp.where(match, ratio, jnp.zeros((), ratio.dtype))
        spurious = (on_labelled > 0) | (beside > 0)
        spurious &= ~jnp.any(match, 2) & (beside <= on_labelled)
        missed = (there > 0) & ~jnp.any(match, 1)
        return Matches(
            jnp.sum(match, (1, 2), dtype=jnp.int32),
            jnp.sum(spurious, 1, dtype=jnp.int32),
            jnp.sum(missed, 1, dtype=jnp.int32),
            jnp.sum(overlap, (1, 2)),
        )
