"""Distances between the edges of two masks."""

import math
from typing import Self

import jax

from datarax._checks import default_float, numeric, real, same_shape
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.metrics.base import Metric
from datarax.metrics.segmentation.boundaries import edges, percentile_of, squared_distance
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import out_of_range
from datarax.statistics.labels import equals
from datarax.statistics.weighted_total import WeightedTotal


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
        w = xp.where(some_a & some_b, w, xp.zeros((), w.dtype))
        distance = self._distance(edges(a), edges(b))
        return self.replace(statistic=self.statistic.add(distance, w, invalid))

    def _distance(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """The greater of both directed distances, for each image."""

        def directed(points: jax.Array, others: jax.Array) -> jax.Array:
            square = squared_distance(others, self.spacing, default_float())
            images, pixels = points.shape[0], math.prod(points.shape[1:])
            square, points = square.reshape(images, pixels), points.reshape(images, pixels)
            if self.percentile == 100:  # one root for each image is enough
                return xp.sqrt(percentile_of(square, points, 100))
            return percentile_of(xp.sqrt(square), points, self.percentile)

        return xp.maximum(directed(a, b), directed(b, a))

    def compute(self) -> PyTree:
        return self.statistic.mean
