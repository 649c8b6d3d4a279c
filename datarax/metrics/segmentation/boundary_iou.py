"""The intersection over union of what lies near the boundaries of two masks."""

import math

import jax

from datarax._checks import as_float, positive_int
from datarax._xp import lax, xp
from datarax.metrics.segmentation.mask_score import MaskScore
from datarax.numerics.scaling import nan_where

_SHARE = 0.02
"""The default distance in diagonals of the image."""


def eroded(mask: jax.Array, distance: int) -> jax.Array:
    """The pixels of a mask (N, ...) whose box of `2 * distance + 1` pixels a side lies in the mask.

    Pixels outside the image are not in the mask. It equals `distance` erosions by a box of 3 pixels
    a side. The time does not depend on the distance.
    """
    for axis in range(1, mask.ndim):
        reach = min(distance, mask.shape[axis])
        pad = [(0, 0)] * mask.ndim
        pad[axis] = (reach + 1, reach)
        size = 2 * reach + 1
        # The sum of a window is the difference of two sums from the start.
        sums = lax.cumsum(xp.pad(mask.astype(xp.int32), pad), axis=axis)
        end = lax.slice_in_dim(sums, size, None, axis=axis)
        start = lax.slice_in_dim(sums, 0, mask.shape[axis], axis=axis)
        mask = end - start == size
    return mask


class BoundaryIoU(MaskScore):
    """Intersection over union of the boundary regions of two masks, the mean over images.

    The boundary region of a mask is its pixels within `distance` pixels of what is outside, along
    rows, columns and diagonals: what `distance` erosions by a box of 3 pixels a side remove. A mask
    ends at the border of its image. It depends less than IoU on how large an object is. Where one
    mask is empty it is 0. An image with both empty is excluded and not counted. No data gives NaN.

    As the code of its authors. B. Cheng and others (2021),
    https://doi.org/10.1109/CVPR46437.2021.01508.

    Raises:
        MetricInputError: a distance or `num_classes` that is not a positive integer.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import BoundaryIoU
        >>> target = jnp.zeros((1, 8, 8), bool).at[0, 1:7, 1:7].set(True)
        >>> preds = jnp.zeros((1, 8, 8), bool).at[0, 1:7, 1:6].set(True)
        >>> print(round(float(BoundaryIoU(distance=1).update(preds, target).compute()), 4))
        0.5833
    """

    value_range = (0.0, 1.0)
    higher_is_better = True
    distance: int | None = None
    """The width of the boundary region in pixels. `None`: 2 % of the diagonal of the image,
    rounded, and at least 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distance is not None:
            positive_int(self.distance, "distance")

    def score(self, preds: jax.Array, target: jax.Array, *options: jax.Array) -> jax.Array:
        distance = self.distance or max(1, round(_SHARE * math.hypot(*preds.shape[1:])))
        a, b = (x & ~eroded(x, distance) for x in (preds, target))
        pixels = tuple(range(1, a.ndim))
        both, either = (as_float(xp.sum(x, pixels, dtype=xp.int32)) for x in (a & b, a | b))
        return nan_where(either == 0, both / xp.maximum(either, 1))
