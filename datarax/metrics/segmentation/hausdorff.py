"""Distances between the edges of two masks."""

import math
from fractions import Fraction
from typing import Self

import jax
import numpy as np

from datarax._checks import float_dtype, numeric, real, same_shape
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import lax, xp
from datarax.metric.base import Metric
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.batches import equals, rows_weight
from datarax.statistics.invalid_counts import out_of_range
from datarax.statistics.weighted_total import WeightedTotal


def edges(mask: jax.Array) -> jax.Array:
    """The pixels of a mask (N, H, W) with at least one of the four neighbours outside the mask.

    Pixels outside the image are not in the mask.
    """
    around = xp.pad(mask, ((0, 0), (1, 1), (1, 1)))
    rows, columns = around[:, :, 1:-1], around[:, 1:-1]
    inner = rows[:, :-2] & rows[:, 2:] & columns[:, :, :-2] & columns[:, :, 2:]
    return mask & ~inner


def squared_distance(points: jax.Array, spacing: tuple[float, float], dtype: xp.dtype) -> jax.Array:
    """For each pixel (N, H, W), the square of the distance to the nearest point; infinite for none.

    First it finds the nearest point within each column: the last one above, or the first one below.
    Then it takes the minimum over all columns. The only error is that of rounding: within 6 ulp. It
    takes `H * W * W` steps for an image, and the memory of one more image. T. Saito and J.-I.
    Toriwaki (1994), https://doi.org/10.1016/0031-3203(94)90133-3.
    """
    height, width = points.shape[1:]
    row = xp.broadcast_to(xp.arange(height, dtype=xp.int32)[None, :, None], points.shape)
    # A row outside the image stands for no point, so far away that the distance is at least `far`.
    far = 2 * height
    above = lax.cummax(xp.where(points, row, -far), axis=1)
    below = lax.cummin(xp.where(points, row, 2 * far), axis=1, reverse=True)
    rows = xp.minimum(row - above, below - row)
    vertical = xp.where(rows < far, rows.astype(dtype) * spacing[0], xp.inf)
    square = vertical * vertical
    columns = xp.arange(width, dtype=xp.int32)

    def through(k: jax.Array, least: jax.Array) -> jax.Array:
        aside = xp.abs(columns - k).astype(dtype) * spacing[1]
        column = lax.dynamic_slice_in_dim(square, k, 1, 2)
        return xp.minimum(least, column + (aside * aside)[None, None, :])

    return lax.fori_loop(xp.int32(0), xp.int32(width), through, square)


def percentile_of(values: jax.Array, where: jax.Array, percent: float) -> jax.Array:
    """The percentile (N,) of the `values` (N, K) in a mask, interpolated as by `numpy.percentile`.

    Infinite or NaN where the mask is empty. Within 4 ulp for values that are not negative.
    """
    if percent == 100:
        return xp.max(xp.where(where, values, -xp.inf), -1)
    ordered = xp.sort(xp.where(where, values, xp.inf), -1)
    last = xp.maximum(xp.sum(where, -1, dtype=xp.int32) - 1, 0)
    # The place is a double-float, because a float32 would lose the fraction between two values. The
    # share is a `Fraction`, because percent / 100 is rounded.
    share = Fraction(percent) / 100
    high = np.asarray(float(share), values.dtype)
    low = np.asarray(float(share - Fraction(float(high))), values.dtype)
    place = DoubleFloat(xp.asarray(high), xp.asarray(low)) * last.astype(values.dtype)
    start = xp.floor(place.to_float())
    below = xp.minimum(start.astype(xp.int32), last)
    above = xp.minimum(below + 1, last)
    a, b = (xp.take_along_axis(ordered, x[:, None], -1)[:, 0] for x in (below, above))
    return a + (b - a) * (place - start).to_float()


class HausdorffDistance(Metric):
    """The greatest distance from a point on the edge of one mask to the edge of the other.

    The mean over images of max(h(A, B), h(B, A)), where h(A, B) is the greatest distance from a
    point of A to the nearest point of B, in pixels or in units of `spacing`. The edge of a mask is
    what an erosion by the four neighbours removes; a mask ends at the border of its image. The
    Hausdorff distance of two filled masks, as sets of points, is at most that of their edges.

    An exact Euclidean distance transform takes `H * W * W` steps for each image. An image with one
    mask empty has no distance: it is invalid. An image with both empty is
    excluded and not counted. No data gives NaN.

    As the greater of both `scipy.spatial.distance.directed_hausdorff` of the pixels of the edges,
    for `percentile=100`. D. P. Huttenlocher, G. A. Klanderman and W. J. Rucklidge (1993),
    https://doi.org/10.1109/34.232073.

    Raises:
        MetricInputError: a percentile that is not from 0 to 100, or a spacing that is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import HausdorffDistance
        >>> preds = jnp.array([[[1, 1, 0, 0], [0, 0, 0, 0]]])
        >>> target = jnp.array([[[1, 0, 0, 0], [0, 0, 0, 1]]])
        >>> print(round(float(HausdorffDistance().update(preds, target).compute()), 4))
        2.2361
    """

    higher_is_better = False
    percentile: float = 100
    """The percentile of the distances from each edge that is taken instead of the greatest: 95 for
    the common robust variant, HD95. Interpolated as by `numpy.percentile`."""
    spacing: tuple[float, float] = (1.0, 1.0)
    """The height and the width of a pixel, in units of the result."""

    statistic = WeightedTotal()

    def __post_init__(self) -> None:
        self.percentile = real(self.percentile, "percentile")
        if not 0 <= self.percentile <= 100:
            raise MetricInputError(f"percentile={self.percentile}; expected a number from 0 to 100")
        if len(self.spacing) != 2 or not all(0 < x < math.inf for x in self.spacing):
            raise MetricInputError(
                f"spacing={self.spacing!r}; expected the height and the width of a pixel, both "
                f"positive"
            )
        self.spacing = float(self.spacing[0]), float(self.spacing[1])

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the images folded in; no communication.

        Args:
            preds: binary masks (N, H, W), booleans or 0 and 1. An image with any other value is
                invalid.
            target: masks of the same shape.
            weights: by image, (N,).

        Raises:
            MetricInputError: shapes that are not (N, H, W) or not equal.
        """
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        same_shape(preds, target)
        if preds.ndim != 3:
            raise MetricInputError(f"masks of shape {preds.shape}; expected (N, H, W)")
        pixels = (1, 2)
        a, b = equals(preds, 1), equals(target, 1)
        binary = xp.all((a | equals(preds, 0)) & (b | equals(target, 0)), pixels)
        some_a, some_b = xp.any(a, pixels), xp.any(b, pixels)
        w, invalid = rows_weight(out_of_range(~binary | (some_a != some_b)), weights)
        # Two empty masks agree, but have no distance: no weight, and not invalid.
        w = xp.where(some_a & some_b, w, xp.zeros((), w.dtype))
        distance = self._distance(edges(a), edges(b))
        return self.replace(statistic=self.statistic.add(distance, w, invalid))

    def _distance(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """The greater of both directed distances, for each image."""

        def directed(points: jax.Array, others: jax.Array) -> jax.Array:
            square = squared_distance(others, self.spacing, float_dtype(others))
            images, pixels = points.shape[0], math.prod(points.shape[1:])
            square, points = square.reshape(images, pixels), points.reshape(images, pixels)
            if self.percentile == 100:  # one root for each image is enough
                return xp.sqrt(percentile_of(square, points, 100))
            return percentile_of(xp.sqrt(square), points, self.percentile)

        return xp.maximum(directed(a, b), directed(b, a))

    def compute(self) -> PyTree:
        return self.statistic.mean
