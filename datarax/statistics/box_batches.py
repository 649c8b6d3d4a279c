"""What a batch of boxes may hold."""

from typing import NamedTuple, Self

import jax

from datarax._checks import is_integer, numeric
from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import ArrayLike
from datarax._xp import xp
from datarax.distributed.collectives import replicated, unsharded
from datarax.statistics.invalid_counts import Invalid, not_finite, out_of_range
from datarax.statistics.labels import in_range


def checked_boxes(x: ArrayLike, name: str, leading: str) -> jax.Array:
    """Boxes of shape (*leading, 4), where `leading` names the axes: "N" or "N, D".

    Raises:
        MetricInputError: another shape; shows it.
    """
    boxes = numeric(x, name)
    if boxes.ndim != len(leading.split(",")) + 1 or boxes.shape[-1] != 4:
        raise MetricInputError(
            f"{name} of shape {boxes.shape}; expected boxes ({leading}, 4): x1, y1, x2, y2"
        )
    return unsharded(boxes, boxes.ndim - 1)


def unusable_boxes(boxes: jax.Array) -> Invalid:
    """The boxes that hold NaN or infinities, or whose second corner is not after the first.

    A box without area can be used.
    """
    reversed_ = xp.any(boxes[..., :2] > boxes[..., 2:], -1)
    return not_finite(boxes, -1) | out_of_range(reversed_)


def without_area(boxes: jax.Array) -> jax.Array:
    """The boxes whose width or height is zero, of those that can be used."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return xp.any(low == high, -1) & xp.all(low <= high, -1)


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
    ) -> Self:
        """Checks boxes and their labels, which are from 0 to `size - 1`.

        Args:
            boxes: from `checked_boxes`.
            labels: integers (N, K).
            valid: a mask (N, K) of the boxes that are not padding; `None` if none is.
            prefix: what the names of the arguments begin with.

        Raises:
            MetricInputError: shapes that do not fit together; shows both.
            MetricTypeError: labels or a mask that are floats.
        """
        boxes = replicated(boxes)
        labels = integers_of(boxes, labels, f"{prefix}labels")
        mask = mask_of(boxes, valid, f"{prefix}valid", default=True)
        bad = unusable_boxes(boxes) | out_of_range(~in_range(labels, size), labels)
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
    if not is_integer(array):
        raise MetricTypeError(f"{name} has dtype {array.dtype}; expected integers or booleans")
    return array


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
