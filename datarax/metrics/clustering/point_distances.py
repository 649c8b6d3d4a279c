"""Metrics of the distances between points of clusters: silhouette, Dunn index."""

from collections.abc import Callable
from typing import Self

import jax
import numpy as np

from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import beside, lax, xp
from datarax.algebra.fields import state
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.metrics.clustering.point_sample import ClusteredPoints, Points
from datarax.numerics.scaling import nan_where, one_where_zero


class PointMetric(Metric):
    """A metric of the points of clusters, of which up to `capacity` are kept."""

    num_clusters: int
    """The number of clusters: labels are from 0 to `num_clusters - 1`."""
    num_features: int
    """The number of coordinates of each point."""
    capacity: int = 4096
    """The number of points that are kept. With more, the value is that of a uniform sample."""

    statistic: ClusteredPoints = state()

    def __post_init__(self) -> None:
        self.statistic = ClusteredPoints.from_fields(self)

    @shareable
    def update(
        self,
        features: ArrayLike,
        labels: ArrayLike,
        *,
        weights: Weights = None,
        index: ArrayLike | None = None,
    ) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            features: points (..., D), with D the number of features. A point with a NaN or an
                infinity is invalid.
            labels: the cluster of each point, integers (...).
            weights: broadcast against `labels`; weight w counts as w repetitions.
            index: the global id of each point, integers (N,), where `features` is (N, D). With it,
                the sample does not depend on the order or on the batches.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: the labels are not integers.
        """
        statistic = self.statistic.update(features, labels, weights=weights, index=index)
        return self.replace(statistic=statistic)


def by_cluster(values: jax.Array, points: Points, size: int) -> jax.Array:
    """The sums of `w * values` over the points of each cluster; values are (N,) or (N, D)."""
    w = points.weight.astype(values.dtype)
    weighed = values * w.reshape(w.shape + (1,) * (values.ndim - 1))
    own = is_in(points, size)
    own = own.reshape(own.shape + (1,) * (values.ndim - 1))
    return xp.sum(xp.where(own, weighed[:, None], xp.zeros((), weighed.dtype)), 0)


def is_in(points: Points, size: int) -> jax.Array:
    """The mask (N, K): true for the cluster of a point, false for all where there is no point."""
    clusters = beside(points.label, np.arange(size, dtype=np.int32))
    return (points.label[:, None] == clusters[None, :]) & (points.weight > 0)[:, None]


def each_point(function: Callable[[jax.Array], PyTree], points: Points) -> PyTree:
    """`function(i)` of each place i, one after the other: an array with a leading axis.

    All distances at once could fill the memory. Of a place without a point, the value has no
    meaning.
    """
    return lax.map(function, beside(points.label, np.arange(len(points.label), dtype=np.int32)))


def distances_from(x: jax.Array, center: jax.Array) -> jax.Array:
    """The distances of points (N, D) from one, (D,)."""
    apart = x - center[None, :]
    return xp.sqrt(xp.sum(apart * apart, -1))


def means_of(points: Points, size: int) -> tuple[jax.Array, jax.Array]:
    """The weight (K,) and the mean (K, D) of each cluster; 0 where it is empty."""
    weight = by_cluster(xp.ones_like(points.x[:, 0]), points, size)
    # About the first point of each cluster, so that the mean of equal points is exact.
    start = points.x[xp.argmax(is_in(points, size), 0)]
    apart = points.x - start[points.label]
    mean = start + by_cluster(apart, points, size) / one_where_zero(weight)[:, None]
    return weight, xp.where(weight[:, None] > 0, mean, 0)


class Silhouette(PointMetric):
    """The mean silhouette: how much nearer points are to their own cluster than to the next one.

    The mean of `(b - a) / max(a, b)`, with a the mean distance of a point from the others of its
    cluster, and b the least mean distance from the points of another cluster. From -1 to 1; the
    silhouette of a point that is alone in its cluster is 0. Fewer than two clusters, or no more
    points than clusters, give NaN, where scikit-learn raises. As `sklearn.metrics.silhouette_score`
    of Euclidean distances. P. J. Rousseeuw (1987), https://doi.org/10.1016/0377-0427(87)90125-7.

    Exact for up to `capacity` points. With more, it is that of a uniform sample of so many, and
    reading it warns. The standard error is then one to two times the standard deviation of the
    silhouettes over the root of `capacity`, so at most about 0.03 for 4096 points. `compute`
    compares all pairs of the points that are kept.

    Raises:
        MetricInputError: a size or `capacity` that is not a positive integer.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Silhouette
        >>> metric = Silhouette(num_clusters=2, num_features=1)
        >>> points = jnp.array([[0.0], [2.0], [10.0], [12.0]])
        >>> print(round(float(metric.update(points, jnp.array([0, 0, 1, 1])).compute()), 4))
        0.798
    """

    higher_is_better = True

    def compute(self) -> PyTree:
        points, size = self.statistic.points(), self.num_clusters
        x, own = points.x, is_in(points, size)
        weight = by_cluster(xp.ones_like(x[:, 0]), points, size)
        occurs = weight > 0

        def silhouette(i: jax.Array) -> jax.Array:
            totals = by_cluster(distances_from(x, x[i]), points, size)
            mine = own[i]
            others = xp.sum(xp.where(mine, weight, 0)) - 1
            near = xp.sum(xp.where(mine, totals, 0)) / xp.where(others > 0, others, 1)
            means = xp.where(occurs & ~mine, totals / one_where_zero(weight), xp.inf)
            next_ = xp.min(means)
            value = (next_ - near) / one_where_zero(xp.maximum(near, next_))
            return xp.where((others > 0) & xp.isfinite(next_), value, 0)

        values = each_point(silhouette, points)
        total = xp.sum(weight)
        clusters = xp.sum(occurs).astype(weight.dtype)
        w = points.weight.astype(values.dtype)
        mean = xp.sum(xp.where(w > 0, w * values, 0)) / one_where_zero(total)
        return nan_where((clusters <= 1) | ~(total > clusters), mean)


class DunnIndex(PointMetric):
    """The least distance between two clusters over the greatest diameter of one; higher is better.

    Of clusters, the distance is that of the two nearest points, and the diameter that of the two
    farthest points. With `centroids=True` they are the distance of both means, and the greatest
    distance of a point from its mean, as `DunnIndex` of torchmetrics. Infinite if all points of
    each cluster are equal. Fewer than two clusters give NaN. J. C. Dunn (1974),
    https://doi.org/10.1080/01969727408546059.

    Exact for up to `capacity` points. With more, it is that of a uniform sample of so many, and
    reading it warns: then the distance of the nearest points is never too small, nor the diameter
    too great, so the value is at least that of all points. Its size is not bounded, because single
    points decide it.

    Raises:
        MetricInputError: a size or `capacity` that is not a positive integer.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import DunnIndex
        >>> metric = DunnIndex(num_clusters=2, num_features=1)
        >>> points = jnp.array([[0.0], [2.0], [10.0], [12.0]])
        >>> print(metric.update(points, jnp.array([0, 0, 1, 1])).compute())
        4.0
    """

    higher_is_better = True
    centroids: bool = False
    """True for distances of means, and of points from their mean."""

    def compute(self) -> PyTree:
        points, size = self.statistic.points(), self.num_clusters
        x, label, _ = points
        if self.centroids:
            weight, means = means_of(points, size)
            occurs = weight > 0
            widest = xp.max(xp.where(points.weight > 0, _from_own(points, means), 0))
            least = xp.min(_between(means, occurs))
        else:
            own = is_in(points, size)
            occurs, used = xp.any(own, 0), points.weight > 0

            def extremes(i: jax.Array) -> jax.Array:
                distance, same = distances_from(x, x[i]), label == label[i]
                least = xp.min(xp.where(used & ~same & used[i], distance, xp.inf))
                return xp.stack([least, xp.max(xp.where(used & same & used[i], distance, 0))])

            found = each_point(extremes, points)
            least, widest = xp.min(found[:, 0]), xp.max(found[:, 1])
        return nan_where(xp.sum(occurs) <= 1, least / widest)


def _from_own(points: Points, means: jax.Array) -> jax.Array:
    """The distance of each point from the mean of its cluster, (N,)."""
    apart = points.x - means[points.label]
    return xp.sqrt(xp.sum(apart * apart, -1))


def _between(means: jax.Array, occurs: jax.Array) -> jax.Array:
    """The distances of the means of clusters (K, K); infinite where they are not two clusters."""
    index = beside(means, np.arange(len(means), dtype=np.int32))

    def from_mean(i: jax.Array) -> jax.Array:
        distance = distances_from(means, means[i])
        return xp.where(occurs & (index != i) & occurs[i], distance, xp.inf)

    return lax.map(from_mean, index)


def mean_distance_overlap(points: Points, size: int) -> jax.Array:
    """The Davies-Bouldin index, with the mean distance of points from the mean of their cluster."""
    weight, means = means_of(points, size)
    spread = by_cluster(_from_own(points, means), points, size) / one_where_zero(weight)
    spreads = spread[:, None] + spread[None, :]
    overlap = xp.where(spreads > 0, spreads / _between(means, weight > 0), 0)
    clusters = xp.sum(weight > 0).astype(overlap.dtype)
    return nan_where(clusters <= 1, xp.sum(xp.max(overlap, 1)) / clusters)
