"""Segments of images matched one to one, from which panoptic quality is computed."""

import math
from typing import Self

import jax
import numpy as np

from datarax._checks import as_float, integers, numeric, positive_int, same_shape
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import at, beside, lax, xp
from datarax.algebra.fields import field
from datarax.distributed.collectives import replicated
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import equals, in_range, rows_weight
from datarax.statistics.invalid_counts import CountsInvalid, out_of_range


class SegmentMatches(CountsInvalid):
    """By class: matched, spurious and missed segments, and the sum of the IoU of matched ones.

    Two segments of one class match if their IoU exceeds 1/2. Each segment has at most one match in
    an image. Pixels whose target is not labelled are excluded, and a predicted
    segment with more than half of its area on such pixels is not counted.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import SegmentMatches
        >>> image = jnp.array([[[[0, 0], [1, 3]], [[0, 0], [1, 3]]]])  # the class, the segment
        >>> matches = SegmentMatches(2, things=(1,)).update(image, image)
        >>> print(matches.matched.value, matches.missed.value)
        [1. 1.] [0. 0.]
    """

    num_classes: int = field(kw_only=False)
    """C: the class of each pixel is from 0 to `num_classes - 1`."""
    things: tuple[int, ...]
    """The classes whose segments have numbers; each other class has one segment in an image."""
    max_segments: int = 64
    """The segments of a class in an image are numbered from 0 to `max_segments - 1`."""
    ignore_index: int | None = None
    """The class of pixels that are not labelled. It must not be one of the classes."""
    stuff_matches_always: bool = False
    """True if the segment of a class that is no thing, where the target has one, is matched
    whatever its IoU is, also by nothing, and none is spurious or missed."""

    def __post_init__(self) -> None:
        positive_int(self.num_classes, "num_classes")
        positive_int(self.max_segments, "max_segments")
        given = self.things
        self.things = tuple(sorted(set(given)))
        if not all(isinstance(x, int) and 0 <= x < self.num_classes for x in self.things):
            raise MetricInputError(
                f"things={given!r}; expected classes from 0 to {self.num_classes - 1}"
            )
        if self.ignore_index is not None and 0 <= self.ignore_index < self.num_classes:
            raise MetricInputError(
                f"ignore_index={self.ignore_index} is one of {self.num_classes} classes; expected "
                f"another"
            )
        zeros = np.zeros(self.num_classes)
        self.matched, self.spurious = MetricAccumulator(zeros), MetricAccumulator(zeros)
        self.missed, self.overlap = MetricAccumulator(zeros), MetricAccumulator(zeros)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in images (N, ..., 2): for each pixel its class and the number of its segment.

        An image with a class or a number out of range is excluded and counted.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: the classes or numbers are not integers.
        """
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        same_shape(preds, target)
        if preds.ndim < 3 or preds.shape[-1] != 2:
            raise MetricInputError(
                f"preds and target of shape {preds.shape}; expected images (N, ..., 2): for "
                f"each pixel its class and the number of its segment"
            )
        preds = integers(preds, "preds", booleans=True)
        target = integers(target, "target", booleans=True)
        pixels = math.prod(preds.shape[1:-1])
        images, valid = [], xp.ones(preds.shape[0], xp.bool_)
        for x in (preds, target):
            x = replicated(x).reshape(x.shape[0], pixels, 2)
            fine, segment = self._segments(x)
            images.append(segment)
            valid = valid & xp.all(fine, -1)
        w, invalid = rows_weight(out_of_range(~valid), weights)
        # Image by image, because the table of pairs of segments is large: (C, S, S) for each.
        found: dict[str, jax.Array] = lax.map(lambda pair: self._matches(*pair), tuple(images))
        by_image = as_float(w)[:, None]
        changes = {
            name: getattr(self, name).update(xp.where(by_image != 0, as_float(x) * by_image, 0))
            for name, x in found.items()
        }
        return self.with_batch(invalid, **changes)

    def _segments(self, image: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns which pixels can be used, and the index of their segment: by class and number.

        A pixel that is not labelled or cannot be used has the index after the last.
        """
        label, number = image[..., 0], image[..., 1]
        unlabelled = equals(label, self.ignore_index)
        known = in_range(label, self.num_classes)
        label = xp.where(known, label.astype(xp.int32), 0)
        is_thing = np.zeros(self.num_classes, bool)
        is_thing[list(self.things)] = True
        thing = beside(label, is_thing)[label]
        fine = known & (~thing | in_range(number, self.max_segments))
        # A class that is no thing has one segment in an image, with the number 0.
        number = xp.where(thing & fine, number.astype(xp.int32), 0)
        last = self.num_classes * self.max_segments
        return fine | unlabelled, xp.where(fine, label * self.max_segments + number, last)

    def _matches(self, preds: jax.Array, target: jax.Array) -> dict[str, jax.Array]:
        """Returns what one image adds to each sum, (C,), from the segment of each pixel."""
        size, shape = self.max_segments, (self.num_classes, self.max_segments)
        none = self.num_classes * size

        def area(segment: jax.Array, where: jax.Array, length: int) -> jax.Array:
            place = xp.where(where, segment, length)  # out of range is dropped
            return at(xp.zeros(length, xp.int32))[place].add(1, mode="drop")

        labelled = target != none
        # The area of each segment (C, S); of predicted ones, on labelled pixels and elsewhere.
        on_labelled = area(preds, labelled & (preds != none), none).reshape(shape)
        elsewhere = area(preds, ~labelled & (preds != none), none).reshape(shape)
        there = area(target, labelled, none).reshape(shape)
        # The common area of each predicted and each true segment of a class, (C, S, S).
        same = labelled & (preds // size == target // size)
        both = area(preds * size + target % size, same, none * size).reshape(*shape, size)
        # Of two segments: |A or B| = |A| + |B| - |A and B|.
        union = on_labelled[:, :, None] + there[:, None, :] - both
        # A segment can have more than half in common with one other only, so no assignment is
        # needed.
        match = both > union - both  # IoU > 1/2
        spurious = (on_labelled > 0) | (elsewhere > 0)
        spurious = spurious & (~xp.any(match, 2) & (elsewhere <= on_labelled))
        missed = (there > 0) & ~xp.any(match, 1)
        pairs = xp.sum(match, (1, 2), dtype=xp.int32)
        if self.stuff_matches_always:
            is_stuff = np.ones((self.num_classes, 1), bool)
            is_stuff[list(self.things)] = False
            stuff = beside(preds, is_stuff)
            match = match | (stuff[..., None] & (both > 0))
            pairs = xp.where(stuff[:, 0], xp.sum(there > 0, 1, dtype=xp.int32), pairs)
            spurious, missed = spurious & ~stuff, missed & ~stuff
        overlap = xp.where(match, as_float(both) / as_float(xp.maximum(union, 1)), 0)
        return {
            "matched": pairs,
            "spurious": xp.sum(spurious, 1, dtype=xp.int32),  # predicted ones without a match
            "missed": xp.sum(missed, 1, dtype=xp.int32),  # true ones without a match
            "overlap": xp.sum(overlap, (1, 2)),
        }
