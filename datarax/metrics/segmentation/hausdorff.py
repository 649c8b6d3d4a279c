"""How far the edges of two masks are apart."""

import math
from typing import Any, Self

import jax
import jax.numpy as jnp

from datarax._checks import default_float, numeric, same_shape
from datarax._errors import MetricInputError
from datarax.metrics.probabilistic.mean_score import MeanScore
from datarax.numerics.boundaries import edges, percentile_of, squared_distance
from datarax.statistics.batches import rows_weight


class HausdorffDistance(MeanScore):
    """The greatest distance from a point on the edge of one mask to the edge of the other.

    The mean over images, in pixels or in units of `spacing`. An edge is what an erosion by the
    four neighbours takes away, and at the border of the image the mask ends. The Hausdorff
    distance of two filled masks, as point sets, is never more than that of their edges.

    `update(preds, target, *, weights=None)`: binary masks (N, H, W), booleans or 0 and 1; weights
    (N,). By an exact Euclidean distance transform, `H * W * W` steps an image. No data gives NaN.

    An image with one mask empty has no distance: it is excluded and counted as invalid. One with
    both empty has nothing to measure, and is left out uncounted.

    As `scipy.spatial.distance.directed_hausdorff` of the edges' pixels, the greater of both
    directions, for `percentile=100`. D. P. Huttenlocher, G. A. Klanderman and W. J. Rucklidge
    (1993), https://doi.org/10.1109/34.232073.

    Args:
        percentile: of the distances from each edge, the one taken in place of the greatest:
            95 for the usual robust variant, HD95. Interpolated as by `numpy.percentile`, and the
            greater of both directions.
        spacing: the height and the width of a pixel, in units of the result.
        on_invalid: for pixels other than 0 and 1, an empty mask beside one that is not, and
            negative weights: "exclude" the image and count it, "propagate" (the result is NaN), or
            "raise" when read on the host.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import HausdorffDistance
        >>> preds = jnp.array([[[1, 1, 0, 0], [0, 0, 0, 0]]])
        >>> target = jnp.array([[[1, 0, 0, 0], [0, 0, 0, 1]]])
        >>> print(round(float(HausdorffDistance().update(preds, target).compute()), 4))
        2.2361
    """

    def __init__(
        self,
        *,
        percentile: float = 100,
        spacing: tuple[float, float] = (1.0, 1.0),
        on_invalid: str = "exclude",
    ):
        if not 0 <= percentile <= 100:
            raise MetricInputError(f"percentile={percentile!r}; expected a number from 0 to 100")
        if len(spacing) != 2 or not all(0 < x < float("inf") for x in spacing):
            raise MetricInputError(
                f"spacing={spacing!r}; expected the height and the width of a pixel, both positive"
            )
        self.percentile = float(percentile)
        self.spacing = float(spacing[0]), float(spacing[1])
        super().__init__(on_invalid)

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """A new metric with the images folded in."""
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        same_shape(preds, target)
        if preds.ndim != 3:
            raise MetricInputError(f"masks of shape {preds.shape}; expected (N, H, W)")
        masks = [x == jnp.ones((), x.dtype) for x in (preds, target)]
        binary = [
            m | (x == jnp.zeros((), x.dtype)) for m, x in zip(masks, (preds, target), strict=True)
        ]
        pixels = (1, 2)
        full = [jnp.any(mask, pixels) for mask in masks]
        valid = jnp.all(binary[0] & binary[1], pixels) & (full[0] == full[1])
        w, invalid = rows_weight(valid, weights)
        score = self._distance(*map(edges, masks))
        w = jnp.where(full[0] & full[1], w, jnp.zeros((), w.dtype))
        return self.replace(statistic=self.statistic.add(score, w, invalid))

    def _distance(self, a: jax.Array, b: jax.Array) -> jax.Array:
        def directed(points: jax.Array, others: jax.Array) -> jax.Array:
            square = squared_distance(others, self.spacing, default_float())
            images, pixels = points.shape[0], math.prod(points.shape[1:])
            rows = square.reshape(images, pixels), points.reshape(images, pixels)
            if self.percentile == 100:
                return jnp.sqrt(percentile_of(*rows, self.percentile))
            return percentile_of(jnp.sqrt(rows[0]), rows[1], self.percentile)

        return jnp.maximum(directed(a, b), directed(b, a))
