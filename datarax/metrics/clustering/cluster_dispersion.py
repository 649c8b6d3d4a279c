"""The compactness of clusters and their distances, computed from the moments of each cluster."""

from typing import Any, Self

import jax
import numpy as np

from datarax._checks import choice, refuse_ignored
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import beside, lax, xp
from datarax.algebra.fields import state
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.metrics.clustering.point_distances import mean_distance_overlap
from datarax.metrics.clustering.point_sample import ClusteredPoints
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.scaling import nan_where, one_where_zero
from datarax.statistics.cluster_moments import ClusterMoments


class DispersionMetric(Metric):
    """A metric that is computed from the weight, mean and sum of squares of each cluster."""

    num_clusters: int
    """The number of clusters: labels are from 0 to `num_clusters - 1`."""
    num_features: int
    """The number of coordinates of each point."""

    statistic: ClusterMoments = state()

    def __post_init__(self) -> None:
        self.statistic = ClusterMoments.from_fields(self)

    @shareable
    def update(self, features: ArrayLike, labels: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            features: points (..., D), with D the number of features. A point with a NaN or an
                infinity is invalid.
            labels: the cluster of each point, integers (...).
            weights: broadcast against `labels`; weight w counts as w repetitions.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: the labels are not integers.
        """
        return self.replace(statistic=self.statistic.update(features, labels, weights=weights))


class CalinskiHarabasz(DispersionMetric):
    """The variance between clusters over the variance within them; higher is better.

    `(B / (k - 1)) / (W / (n - k))`, with W the sum of squared distances of the n points from the
    mean of their cluster, and B that of the clusters' means from the mean of all points, over the
    k clusters that occur. Stable however far from zero the points are. Fewer than two clusters, or
    no more points than clusters, give NaN, where scikit-learn raises; `W = 0` gives 1.0. As
    `sklearn.metrics.calinski_harabasz_score`. T. Caliński and J. Harabasz (1974),
    https://doi.org/10.1080/03610927408827101.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import CalinskiHarabasz
        >>> metric = CalinskiHarabasz(num_clusters=2, num_features=1)
        >>> points = jnp.array([[0.0], [2.0], [10.0], [12.0]])
        >>> print(metric.update(points, jnp.array([0, 0, 1, 1])).compute())
        50.0
    """

    higher_is_better = True

    def compute(self) -> PyTree:
        # The result does not depend on the unit.
        sizes, means, distances = self.statistic.in_one_unit()
        n, occurs = sizes.sum(), sizes.high > 0
        clusters = xp.sum(occurs).astype(sizes.dtype)
        # Relative to the mean of the largest cluster, so that an offset of all points cancels.
        apart = means.apart_from(xp.argmax(sizes.high))
        apart = xp.where(occurs[:, None], apart, 0)
        share = (sizes / n).to_float()[:, None]
        apart = apart - xp.sum(share * apart, 0)[None, :]
        squares = xp.where(occurs[:, None], sizes.to_float()[:, None] * apart * apart, 0)
        between, within = xp.sum(squares), xp.sum(distances.to_float())
        weight = self.statistic.weight
        degrees = (weight - ScaledDouble.of(clusters)).to_float()
        value = (between / (clusters - 1)) * (degrees / one_where_zero(within))
        value = xp.where(within > 0, value, 1)
        return nan_where((clusters <= 1) | ~(degrees > 0), value)


class DaviesBouldin(DispersionMetric):
    """The overlap of each cluster with the one it overlaps most, on average; lower is better.

    The mean over clusters i of the greatest `(S_i + S_j) / M_ij` over j, with S the root mean
    square distance of a cluster's points from its mean, and M the distance of two means. Two
    clusters with the same mean give infinity, or 0 if all points of both are equal. Fewer than two
    clusters give NaN. D. L. Davies and D. W. Bouldin (1979),
    https://doi.org/10.1109/TPAMI.1979.4766909.

    The definition leaves the power q in S open. By default q = 2, which moments give exactly, batch
    by batch. `sklearn.metrics.davies_bouldin_score` has q = 1, the mean distance: with `power=1`,
    points are kept until their mean is known. Then the value is exact for up to `capacity` points,
    and with more that of a uniform sample of so many, and reading it warns; the standard error of
    each S is that of a mean over the points of its cluster in the sample. S is never smaller with
    q = 2: for Gaussian clusters it is 25% larger in one dimension, 13% in two, and about
    `1 / (4 D)` in D. scikit-learn leaves out pairs of clusters with the same mean.

    Raises:
        MetricInputError: another `power`, or a `capacity` without `power=1`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import DaviesBouldin
        >>> metric = DaviesBouldin(num_clusters=2, num_features=1)
        >>> points = jnp.array([[0.0], [2.0], [10.0], [12.0]])
        >>> print(round(float(metric.update(points, jnp.array([0, 0, 1, 1])).compute()), 4))
        0.2
    """

    higher_is_better = False
    power: int = 2
    """The power of the distances in S: 2 is their root mean square, 1 their mean."""
    capacity: int = 4096
    """With `power=1`, the number of points that are kept."""

    statistic: Any = state()  # `ClusterMoments`, or `ClusteredPoints` with `power=1`

    def __post_init__(self) -> None:
        choice(self.power, (1, 2), "power")
        self.power = int(self.power)
        if self.power == 2:
            refuse_ignored(self, "capacity", "without power=1, as moments keep no points")
            super().__post_init__()
        else:
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
            index: with `power=1`, the global id of each point, integers (N,), where `features` is
                (N, D). With it, the sample does not depend on the order or on the batches.

        Raises:
            MetricInputError: the shapes do not fit together; shows both. Or an `index` without
                `power=1`.
            MetricTypeError: the labels are not integers.
        """
        if isinstance(self.statistic, ClusterMoments):
            if index is not None:
                raise MetricInputError("index= without power=1; expected None: no point is sampled")
            seen = self.statistic.update(features, labels, weights=weights)
        else:
            seen = self.statistic.update(features, labels, weights=weights, index=index)
        return self.replace(statistic=seen)

    def compute(self) -> PyTree:
        if isinstance(self.statistic, ClusteredPoints):
            return mean_distance_overlap(self.statistic.points(), self.num_clusters)
        # The result does not depend on the unit.
        sizes, means, squares = self.statistic.in_one_unit()
        sizes = sizes.to_float()
        occurs = sizes > 0
        spread = xp.sqrt(xp.sum(squares.to_float(), -1) / one_where_zero(sizes))
        index = beside(sizes, np.arange(len(sizes), dtype=np.int32))

        def greatest_overlap(i: jax.Array) -> jax.Array:
            apart = means.apart_from(i)
            distance = xp.sqrt(xp.sum(apart * apart, -1))
            spreads = spread + spread[i]
            overlap = xp.where(spreads > 0, spreads / distance, 0)
            return xp.max(xp.where(occurs & (index != i), overlap, 0))

        # One cluster after the other: all distances at once could fill the memory.
        overlaps = xp.where(occurs, lax.map(greatest_overlap, index), 0)
        clusters = xp.sum(occurs).astype(sizes.dtype)
        return nan_where(clusters <= 1, xp.sum(overlaps) / clusters)
