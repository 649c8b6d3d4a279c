"""The mean of each cluster of points, and the squared distances of its points from that mean."""

from typing import Self

import jax
import jax.numpy as jnp

from datarax._checks import as_float, is_integer, numeric, positive_int
from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import ArrayLike, Weights
from datarax.distributed.collectives import replicated
from datarax.numerics.double_float import DoubleFloat, two_sum
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import InvalidCounts, not_finite, out_of_range
from datarax.statistics.labels import in_range
from datarax.statistics.moments import CentralMoments
from datarax.statistics.scatter_counts import scatter_sum
from datarax.statistics.state import State


class ClusterMoments(State, kw_only=False):
    """The weight, the mean and the sum of squares about the mean of each cluster, by feature.

    Batches are merged by pairwise formulas, so no digits are lost however far from zero the
    points are. Points with a NaN, an infinity or a label out of range are excluded and counted in
    `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import ClusterMoments
        >>> points = jnp.array([[1.0], [3.0], [9.0]])
        >>> seen = ClusterMoments(2, 1).update(points, jnp.array([0, 0, 1]))
        >>> print(seen.means.high[:, 0], seen.squares)
        [2. 9.] [2. 0.]
    """

    num_clusters: int
    """How many clusters there are: labels are from 0 to `num_clusters - 1`."""
    num_features: int
    """How many coordinates each point has."""

    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        positive_int(self.num_clusters, "num_clusters")
        positive_int(self.num_features, "num_features")
        self.central = CentralMoments((self.num_clusters, self.num_features))

    def update(self, features: ArrayLike, labels: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in points (..., D) and their integer labels (...).

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: the labels are not integers.
        """
        x, labels = as_float(numeric(features, "features")), numeric(labels, "labels")
        if not is_integer(labels):
            raise MetricTypeError(f"labels has dtype {labels.dtype}; expected integer labels")
        if x.shape != (*labels.shape, self.num_features):
            raise MetricInputError(
                f"features of shape {x.shape} and labels of shape {labels.shape}; expected "
                f"features of shape {(*labels.shape, self.num_features)} for "
                f"num_features={self.num_features}"
            )
        known = in_range(labels, self.num_clusters)
        w, invalid = rows_weight(not_finite(x, -1) | out_of_range(~known, labels), weights)
        batch = self._of(
            jnp.where(w.astype(jnp.bool_)[..., None], x, 0).reshape(-1, x.shape[-1]),
            jnp.where(known, labels.astype(jnp.int32), 0).reshape(-1),
            as_float(w).reshape(-1),
        )
        return self.replace(
            central=self.central.combine(batch), invalid=self.invalid.update(invalid)
        )

    @property
    def sizes(self) -> DoubleFloat:
        """The weight of each cluster, (C,)."""
        count, _, _ = self.central.doubles()
        return count[:, 0]  # the same for each feature

    @property
    def means(self) -> DoubleFloat:
        """The mean of each cluster, (C, D); 0 where it is empty."""
        _, mean, _ = self.central.doubles()
        return mean

    @property
    def squares(self) -> jax.Array:
        """The sum of squared distances of each cluster's points from its mean, (C,)."""
        _, _, (square,) = self.central.doubles()
        return jnp.sum(square.to_float(), -1)

    def _of(self, x: jax.Array, labels: jax.Array, w: jax.Array) -> CentralMoments:
        """The moments of one batch: points (N, D), labels (N,) and weights (N,)."""
        clusters, features = self.num_clusters, self.num_features
        x, labels, w = map(replicated, (x, labels, w))
        place = labels[:, None] * features + jnp.arange(features, dtype=jnp.int32)[None, :]
        w = w[:, None]

        def total(values: jax.Array) -> DoubleFloat:
            return scatter_sum(place, values, clusters * features).reshape(clusters, features)

        count = total(jnp.broadcast_to(w, x.shape))
        # The mean in two steps: the second corrects what the first rounded away. One bit less in
        # the first, so that no compiler merges its rounding into the subtraction that follows.
        info = jnp.finfo(x.dtype)
        first = _zero_where_nan((total(w * x) / count).to_float())
        first = jax.lax.reduce_precision(first, info.nexp, info.nmant - 1)
        d = x - first[labels]
        second = _zero_where_nan((total(w * d) / count).to_float())
        d = d - second[labels]
        return self.central.holding(count, DoubleFloat(*two_sum(first, second)), [total(w * d * d)])


def _zero_where_nan(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isnan(x), 0, x)
