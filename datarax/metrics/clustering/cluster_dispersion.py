"""How compact clusters are and how far apart, from their moments alone."""

from typing import Any

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax.metrics.base import Metric, check_policy
from datarax.numerics.pairs import pair_subtract
from datarax.statistics.cluster_moments import ClusterMoments


class Compactness(Metric):
    """What reads the moments of clusters."""

    def __init__(self, *, num_clusters: int, num_features: int, on_invalid: str = "exclude"):
        self.on_invalid = check_policy(on_invalid)
        self.statistic = ClusterMoments(num_clusters, num_features)

    def _sizes(self) -> nx.Pair:
        high, low = map(jnp.asarray, self.statistic.central.count)
        return high[:, 0], low[:, 0]

    def _means(self) -> Any:
        return tuple(map(jnp.asarray, self.statistic.central.mean))

    def _squares(self) -> jax.Array:
        """The sum of squared distances of each cluster's points from its mean."""
        return jnp.sum(jnp.asarray(self.statistic.central.powers[0][0]), -1)


class CalinskiHarabasz(Compactness):
    """The variance between clusters over the variance within them: the higher, the better.

    `(B / (k - 1)) / (W / (n - k))`: W the sum of squared distances of the n points from the mean
    of their cluster, B that of their clusters' means from the mean of all, of the k clusters that
    occur. `update(features, labels, *, weights=None)`: points (..., D) and integer labels (...);
    weights count as repetitions. Stable however far from zero the points are. NaN for fewer than
    two clusters, or no more points than clusters; 1.0 where W is zero, as in scikit-learn
    (`calinski_harabasz_score`, which raises in the former cases).

    T. Caliński and J. Harabasz (1974), https://doi.org/10.1080/03610927408827101.

    Args:
        num_clusters: labels are from 0 to `num_clusters - 1`.
        num_features: D, of each point.
        on_invalid: for NaN, infinities, labels out of range and negative weights: "exclude" the
            point and count it, "propagate" (the result is NaN), or "raise" when read on the host.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import CalinskiHarabasz
        >>> metric = CalinskiHarabasz(num_clusters=2, num_features=1)
        >>> points = jnp.array([[0.0], [2.0], [10.0], [12.0]])
        >>> print(metric.update(points, jnp.array([0, 0, 1, 1])).compute())
        50.0
    """

    def compute(self) -> jax.Array:
        sizes, means = self._sizes(), self._means()
        n = nx.pair_sum(sizes)
        clusters = jnp.sum(sizes[0] > 0).astype(sizes[0].dtype)
        # From the mean of the largest cluster, so that an offset of all is gone.
        largest = jnp.argmax(sizes[0])
        apart = pair_subtract(means, tuple(x[largest][None, :] for x in means))[0]
        share = nx.pair_divide(sizes, n)[:, None]
        some = (sizes[0] > 0)[:, None]
        apart = jnp.where(some, apart, jnp.zeros((), apart.dtype))
        apart = apart - jnp.sum(share * apart, 0)[None, :]
        between = jnp.sum(jnp.where(some, sizes[0][:, None] * apart * apart, 0))
        within, rest = jnp.sum(self._squares()), (n[0] - clusters) + n[1]
        one = jnp.ones((), within.dtype)
        value = (between / (clusters - 1)) * (rest / jnp.where(within > 0, within, one))
        value = jnp.where(within > 0, value, one)
        return jnp.where((clusters > 1) & (rest > 0), value, jnp.asarray(jnp.nan, value.dtype))


class DaviesBouldin(Compactness):
    """How much clusters overlap the nearest other, on average: the lower, the better.

    The mean over clusters of the greatest `(S_i + S_j) / M_ij`: S the root mean square distance of
    a cluster's points from its mean, M the distance of two means. `update` as for
    `CalinskiHarabasz`. Clusters with one mean give infinity, unless both are points: 0. NaN for
    fewer than two clusters.

    The definition leaves the power q in S open. Here q = 2, which moments tell exactly, batch by
    batch; scikit-learn (`davies_bouldin_score`) has q = 1, the mean distance, for which all points
    must be kept until their mean is known. S is never less with q = 2: for Gaussian clusters by
    25% in one dimension, 13% in two, and about 1 / (4 D) in many. scikit-learn also leaves out
    pairs of clusters with one mean.

    D. L. Davies and D. W. Bouldin (1979), https://doi.org/10.1109/TPAMI.1979.4766909.

    Args:
        num_clusters: as for `CalinskiHarabasz`.
        num_features: as for `CalinskiHarabasz`.
        on_invalid: as for `CalinskiHarabasz`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import DaviesBouldin
        >>> metric = DaviesBouldin(num_clusters=2, num_features=1)
        >>> points = jnp.array([[0.0], [2.0], [10.0], [12.0]])
        >>> print(round(float(metric.update(points, jnp.array([0, 0, 1, 1])).compute()), 4))
        0.2
    """

    def compute(self) -> jax.Array:
        sizes, means = self._sizes(), self._means()
        some, zero = sizes[0] > 0, jnp.zeros((), sizes[0].dtype)
        safe = jnp.where(some, sizes[0], jnp.ones_like(sizes[0]))
        spread = jnp.sqrt(self._squares() / safe)
        index = jnp.arange(spread.shape[0], dtype=jnp.int32)

        def worst(i: jax.Array) -> jax.Array:
            apart = pair_subtract(means, tuple(x[i][None, :] for x in means))[0]
            distance = jnp.sqrt(jnp.sum(apart * apart, -1))
            both = spread + spread[i]
            ratio = jnp.where(both > 0, both / distance, zero)
            return jnp.max(jnp.where(some & (index != i), ratio, zero))

        each = jnp.where(some, jax.lax.map(worst, index), zero)
        clusters = jnp.sum(some).astype(zero.dtype)
        value = jnp.sum(each) / clusters
        return jnp.where(clusters > 1, value, jnp.asarray(jnp.nan, value.dtype))
