"""Distances between the surfaces of two masks: of images their edges, of volumes their faces."""

import math
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import numpy as np

from datarax._checks import float_dtype, real
from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax._xp import faster_in_numpy, lax, xp
from datarax.algebra.fields import field
from datarax.metrics.segmentation.mask_score import MaskScore
from datarax.numerics.double_float import DoubleFloat

_ROUNDING = 2.0**-18
"""How far above a tolerance a distance may be, relatively, that only rounding put there."""


def edges(mask: jax.Array) -> jax.Array:
    """The pixels of a mask (N, ...) with at least one of the next ones outside the mask.

    The next ones of a pixel share a side with it: 4 in an image, 6 in a volume. Pixels outside the
    image are not in the mask.
    """
    around = xp.pad(mask, [(0, 0), *[(1, 1)] * (mask.ndim - 1)])
    inner = mask
    for axis in range(1, mask.ndim):
        for start in (0, 2):
            place: list[Any] = [slice(None), *[slice(1, -1)] * (mask.ndim - 1)]
            place[axis] = slice(start, start + mask.shape[axis])
            inner = inner & around[tuple(place)]
    return mask & ~inner


def squared_distance(points: jax.Array, spacing: tuple[float, ...], dtype: xp.dtype) -> jax.Array:
    """For each pixel (N, ...), the square of the distance to the nearest point; infinite for none.

    First it finds the nearest point along the first axis of an image: the last one before, or the
    first one after. Then along each further axis it takes the minimum over all places on it. The
    only error is that of rounding: within 8 ulp. For an axis of `n` pixels it takes `n` steps for
    each pixel, and it needs the memory of two more images. T. Saito and J.-I. Toriwaki (1994),
    https://doi.org/10.1016/0031-3203(94)90133-3.
    """
    size = points.shape[1]
    place = lax.broadcasted_iota(xp.int32, points.shape, 1)
    # A place outside the image stands for no point, so far away that the distance is at least
    # `far`.
    far = 2 * size
    before = lax.cummax(xp.where(points, place, -far), axis=1)
    after = lax.cummin(xp.where(points, place, 2 * far), axis=1, reverse=True)
    steps = xp.minimum(place - before, after - place)
    straight = xp.where(steps < far, steps.astype(dtype) * spacing[0], xp.inf)
    square = straight * straight
    for axis in range(2, points.ndim):
        # Broadcast along this axis.
        shape = [points.shape[axis] if i == axis else 1 for i in range(points.ndim)]
        along = xp.arange(points.shape[axis], dtype=xp.int32).reshape(shape)

        def through(
            k: jax.Array,
            least: jax.Array,
            square: jax.Array = square,
            axis: int = axis,
            along: jax.Array = along,
        ) -> jax.Array:
            aside = xp.abs(along - k).astype(dtype) * spacing[axis - 1]
            return xp.minimum(least, lax.dynamic_slice_in_dim(square, k, 1, axis) + aside * aside)

        square = lax.fori_loop(xp.int32(0), xp.int32(points.shape[axis]), through, square)
    return square


def nearest_distances(points: np.ndarray, others: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The distances of points (n, d) of a grid to the nearest of others (m, d); infinite for none.

    In units of `scale`, the spacing (d,). On the host this takes far less time than a distance for
    each pixel, as few pixels lie on a surface.
    """
    from scipy.spatial import KDTree

    if not (len(points) and len(others)):
        return np.full(len(points), np.inf)
    _, place = KDTree(others * scale).query(points * scale)
    # Differences of indices are exact.
    return np.sqrt((((points - others[place]) * scale) ** 2).sum(-1))


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


class Distances(NamedTuple):
    """Distances from the surface of one mask to that of the other, in images (N, ...)."""

    values: jax.Array
    where: jax.Array
    """The mask of the pixels on the surface: other values have no meaning."""

    @property
    def total(self) -> jax.Array:
        """The sum of the distances, (N,): axis by axis, so that many terms lose few digits."""
        total = xp.where(self.where, self.values, 0)
        while total.ndim > 1:
            total = xp.sum(total, -1)
        return total

    @property
    def size(self) -> jax.Array:
        """The number of pixels on the surface, (N,), as floats."""
        pixels = tuple(range(1, self.where.ndim))
        return xp.sum(self.where, pixels, dtype=xp.int32).astype(self.values.dtype)


class SurfaceScore(MaskScore):
    """A `MaskScore` of the distances between two surfaces; a subclass defines `of_distances`."""

    hidden_names = frozenset({"check_sides", "of_distances", "refused"})
    spacing: float | tuple[float, ...] = 1.0
    """The size of a pixel or voxel in units of the distance: one number, or one for each axis:
    (height, width) for images, (depth, height, width) for volumes."""

    one_empty: ClassVar[float] = math.inf
    """The score of two masks of which one is empty."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.spacing
        sizes = tuple(given) if isinstance(given, tuple | list | np.ndarray) else (given,)
        sizes = tuple(real(x, "spacing") for x in sizes)
        several = isinstance(given, tuple | list | np.ndarray)
        if not all(0 < x < math.inf for x in sizes) or (several and len(sizes) not in (2, 3)):
            raise MetricInputError(
                f"spacing={given!r}; expected the size of a pixel: one positive number, or one for "
                f"each axis, (height, width) or (depth, height, width)"
            )
        self.spacing = sizes if several else sizes[0]

    def check_sides(self, sides: tuple[int, ...]) -> None:
        if isinstance(self.spacing, tuple) and len(self.spacing) != len(sides):
            raise MetricInputError(
                f"masks of images of shape {sides}, and spacing={self.spacing!r}: expected "
                f"{len(sides)} numbers, one for each axis"
            )

    def score(self, preds: jax.Array, target: jax.Array, *options: jax.Array) -> jax.Array:
        a, b = edges(preds), edges(target)
        pixels = tuple(range(1, a.ndim))
        some_a, some_b = xp.any(a, pixels), xp.any(b, pixels)
        score = self._of_edges(a, b, *options)
        # Two empty masks agree, but have no distance.
        rest = xp.where(some_a | some_b, np.asarray(self.one_empty, score.dtype), xp.nan)
        return xp.where(some_a & some_b, score, rest)

    def _of_edges_by_trees(self, a: Any, b: Any, *options: Any) -> Any:
        images = zip(a, b, strict=True)
        found = [self.of_distances(*self._between(*each), *options) for each in images]
        return np.concatenate([np.zeros(0), *found])

    @faster_in_numpy(_of_edges_by_trees, looks_at=lambda _, a, b, *__: (a, b))
    def _of_edges(self, a: jax.Array, b: jax.Array, *options: jax.Array) -> jax.Array:
        """The score of each image, by the pixels of both edges, if both have some."""
        return self.of_distances(self._to(b, a), self._to(a, b), *options)

    def _scale(self, axes: int) -> tuple[float, ...]:
        return self.spacing if isinstance(self.spacing, tuple) else (self.spacing,) * axes

    def _to(self, others: jax.Array, points: jax.Array) -> Distances:
        """The distances of points to others."""
        scale = self._scale(points.ndim - 1)
        return Distances(xp.sqrt(squared_distance(others, scale, float_dtype(others))), points)

    def _between(self, a: PyTree, b: PyTree) -> tuple[Distances, Distances]:
        """The distances between the surfaces of one image, of the pixels on them alone."""
        scale = np.asarray(self._scale(a.ndim))
        points = np.argwhere(a), np.argwhere(b)
        found = []
        for these, others in (points, points[::-1]):
            values: Any = nearest_distances(these, others, scale)[None]
            where: Any = np.ones(values.shape, bool)
            if not values.size:  # of at least one pixel a maximum is defined
                values, where = np.zeros((1, 1)), np.zeros((1, 1), bool)
            found.append(Distances(values, where))
        return found[0], found[1]

    def of_distances(self, of_preds: Distances, of_target: Distances, *options: Any) -> jax.Array:
        """The scores (N,) of images with two masks that are not empty.

        Args:
            of_preds: the distances from the surface of the prediction to that of the target.
            of_target: the distances from the surface of the target to that of the prediction.
            options: see `options`.
        """
        raise TypeError(f"{type(self).__name__} does not define of_distances()")


class SurfaceDistance(SurfaceScore):
    """A `SurfaceScore` that is a distance: infinite if one mask is empty."""

    value_range = (0.0, math.inf)
    higher_is_better = False
    directed: bool = False
    """True to measure only from the surface of the prediction to that of the target."""
    empty: Literal["infinite", "invalid"] = "infinite"
    """What an image is in which one mask of a class is empty and the other is not. "infinite": the
    distance is infinite, and so is the mean, as in MONAI. "invalid": the image is invalid, so that
    `on_invalid="exclude"` leaves it out and counts it."""

    def refused(self, scores: jax.Array) -> jax.Array:
        if self.empty == "infinite":
            return super().refused(scores)
        return xp.any(xp.isinf(scores), -1)


class HausdorffDistance(SurfaceDistance):
    """The greatest distance from a point on the surface of one mask to that of the other.

    The mean over images of max(h(A, B), h(B, A)), where h(A, B) is the greatest distance from a
    point of A to the nearest point of B, in pixels or in units of `spacing`. Of images and of
    volumes. The surface of a mask is what an erosion removes: pixels with one of the 4 neighbours,
    or voxels with one of the 6, outside the mask; a mask ends at the border of its image. The
    Hausdorff distance of two filled masks, as sets of points, is at most that of their surfaces.

    If one mask is empty and the other is not, the distance is infinite, see `empty`. An image with
    both empty is excluded and not counted. No data gives NaN. In a program, an exact Euclidean
    distance transform takes `H + W` steps for each voxel (`W` for each pixel of an image) and the
    memory of three images of floats; on the host, the nearest points are found in a tree.

    As the greater of both `scipy.spatial.distance.directed_hausdorff` of the pixels of the edges,
    for `percentile=100`, and as the `HausdorffDistanceMetric` of MONAI. D. P. Huttenlocher, G. A.
    Klanderman and W. J. Rucklidge (1993), https://doi.org/10.1109/34.232073.

    Raises:
        MetricInputError: a percentile that is not from 0 to 100, or a spacing that is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import HausdorffDistance
        >>> preds = jnp.array([[[1, 1, 0, 0], [0, 0, 0, 0]]])
        >>> target = jnp.array([[[1, 0, 0, 0], [0, 0, 0, 1]]])
        >>> print(round(float(HausdorffDistance().update(preds, target).compute()), 4))
        2.2361
        >>> metric = HausdorffDistance(percentile=95, spacing=(2.0, 0.5))
        >>> print(round(float(metric.update(preds, target).compute()), 4))
        2.1243
    """

    percentile: float = 100
    """The percentile of the distances from each surface that is taken instead of the greatest: 95
    for the common robust variant, HD95. Interpolated as by `numpy.percentile`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.percentile = real(self.percentile, "percentile")
        if not 0 <= self.percentile <= 100:
            raise MetricInputError(f"percentile={self.percentile}; expected a number from 0 to 100")

    def of_distances(self, of_preds: Distances, of_target: Distances, *options: Any) -> jax.Array:
        def directed(given: Distances) -> jax.Array:
            values, where = (x.reshape(x.shape[0], math.prod(x.shape[1:])) for x in given)
            return percentile_of(values, where, self.percentile)

        found = directed(of_preds)
        return found if self.directed else xp.maximum(found, directed(of_target))


class MeanSurfaceDistance(SurfaceDistance):
    """The mean distance from the points on the surface of each mask to the surface of the other.

    The mean over images of the mean over the pixels of both surfaces, in pixels or in units of
    `spacing`: the average symmetric surface distance, ASSD. With `directed=True`, the mean over the
    surface of the prediction alone. Of images and of volumes. Surfaces, empty masks, time and
    memory are those of `HausdorffDistance`. No data gives NaN.

    As `SurfaceDistanceMetric(symmetric=True)` of MONAI; `directed=True` is its default. T. Heimann
    and others (2009), https://doi.org/10.1109/TMI.2009.2013851.

    Raises:
        MetricInputError: a spacing that is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MeanSurfaceDistance
        >>> preds = jnp.array([[[1, 1, 0, 0], [0, 0, 0, 0]]])
        >>> target = jnp.array([[[1, 0, 0, 0], [0, 0, 0, 1]]])
        >>> print(round(float(MeanSurfaceDistance().update(preds, target).compute()), 4))
        0.809
    """

    def of_distances(self, of_preds: Distances, of_target: Distances, *options: Any) -> jax.Array:
        both = (of_preds,) if self.directed else (of_preds, of_target)
        return sum(x.total for x in both) / xp.maximum(sum(x.size for x in both), 1)


class SurfaceDice(SurfaceScore):
    """The share of both surfaces that lies within a tolerance of the other surface.

    (|A within t of B| + |B within t of A|) / (|A| + |B|) in pixels of the surfaces A and B of both
    masks, the mean over images: the normalised surface distance, NSD. Of images and of volumes.
    Surfaces, time and memory are those of `HausdorffDistance`. A distance that exceeds the
    tolerance by at most 4e-6 of it counts as equal, so that rounding does not decide.

    If one mask is empty and the other is not, it is 0. An image with both empty is excluded and not
    counted. No data gives NaN. As `SurfaceDiceMetric` of MONAI with `use_subvoxels=False`.
    S. Nikolov and others (2021), https://doi.org/10.2196/26151.

    Raises:
        MetricInputError: a tolerance that is negative, or not one number for each class; a spacing
            that is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SurfaceDice
        >>> preds = jnp.array([[[1, 1, 0, 0], [0, 0, 0, 0]]])
        >>> target = jnp.array([[[1, 0, 0, 0], [0, 0, 0, 1]]])
        >>> print(SurfaceDice(1.0).update(preds, target).compute())
        0.75
    """

    value_range = (0.0, 1.0)
    higher_is_better = True
    one_empty = 0.0
    tolerance: float | tuple[float, ...] = field(kw_only=False)
    """The greatest distance that counts as equal, in units of `spacing`: one number, or with
    `num_classes` one for each class that is compared, without the background by default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.tolerance
        several = isinstance(given, tuple | list | np.ndarray)
        numbers = tuple(real(x, "tolerance") for x in (given if several else (given,)))
        if not all(0 <= x < math.inf for x in numbers) or (
            several and len(numbers) != len(self.classes)
        ):
            raise MetricInputError(
                f"tolerance={given!r}; expected a number that is not negative, or one for each of "
                f"{len(self.classes)} classes"
            )
        self.tolerance = numbers if several else numbers[0]

    def options(self, preds: jax.Array) -> tuple[np.ndarray, ...]:
        most = np.broadcast_to(np.asarray(self.tolerance) * (1 + _ROUNDING), len(self.classes))
        return (most.astype(float_dtype(preds)),)

    def of_distances(self, of_preds: Distances, of_target: Distances, *options: Any) -> jax.Array:
        (most,) = options
        both = (of_preds, of_target)
        near = (x._replace(where=x.where & (x.values <= most)).size for x in both)
        return sum(near) / xp.maximum(sum(x.size for x in both), 1)
