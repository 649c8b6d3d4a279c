"""Mean and spread of each cluster of points."""

from typing import Any, Self

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import as_float, is_integer, numeric, positive_int
from datarax._errors import MetricInputError, MetricTypeError
from datarax.distributed.collectives import replicated
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.labels import in_range
from datarax.statistics.moments import CentralMoments
from datarax.statistics.scatter_counts import scatter_sum
from datarax.statistics.state import State


class ClusterMoments(State):
    """The weight, mean and sum of squares about the mean of each cluster, by feature.

    Args:
        num_clusters: labels are from 0 to `num_clusters - 1`.
        num_features: of each point.

    Merged pairwise, so that nothing is lost however far from zero the points are. Points with a
    NaN, an infinity or a label out of range are excluded and counted in `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import ClusterMoments
        >>> points = jnp.array([[1.0], [3.0], [9.0]])
        >>> seen = ClusterMoments(2, 1).update(points, jnp.array([0, 0, 1]))
        >>> print(seen.central.mean[0][:, 0], seen.central.powers[0][0][:, 0])
        [2. 9.] [2. 0.]
    """

    invalid = MetricAccumulator(0)

    def __init__(self, num_clusters: int, num_features: int):
        positive_int(num_clusters, "num_clusters")
        positive_int(num_features, "num_features")
        self.num_clusters, self.num_features = num_clusters, num_features
        self.central = CentralMoments((num_clusters, num_features))

    def update(self, features: Any, labels: Any, *, weights: Any = None) -> Self:
        """Folds in points (..., D) and their integer labels (...).

        Raises:
            MetricInputError: shapes that do not go together; shows both.
            MetricTypeError: labels that are no integers.
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
        valid = in_range(labels, self.num_clusters) & jnp.all(jnp.isfinite(x), -1)
        w, invalid = rows_weight(valid, weights)
        batch = self._of(
            jnp.where(w.astype(jnp.bool_)[..., None], x, jnp.zeros((), x.dtype)).reshape(
                -1, x.shape[-1]
            ),
            jnp.where(valid, labels.astype(jnp.int32), jnp.int32(0)).reshape(-1),
            as_float(w).reshape(-1),
        )
        return self.replace(
            central=self.central.combine(batch), invalid=self.invalid.update(invalid)
        )

    def _of(self, x: jax.Array, labels: jax.Array, w: jax.Array) -> CentralMoments:
        clusters, features = self.num_clusters, self.num_features
        x, labels, w = map(replicated, (x, labels, w))
        place = labels[:, None] * features + jnp.arange(features, dtype=jnp.int32)[None, :]
        w = w[:, None]

        def total(values: jax.Array) -> nx.Pair:
            high, low = scatter_sum(place, values, clusters * features)
            return high.reshape(clusters, features), low.reshape(clusters, features)

        count = total(jnp.broadcast_to(w, x.shape))
        # In two steps, as the mean of all is: the second corrects what the first rounded away.
        info = jnp.finfo(x.dtype)
        first = _or_zero(nx.pair_divide(total(w * x), count))
        first = jax.lax.reduce_precision(first, info.nexp, info.nmant - 1)
        d = x - first[labels]
        second = _or_zero(nx.pair_divide(total(w * d), count))
        d = d - second[labels]
        mean, square = nx.two_sum(first, second), total(w * d * d)
        return self.central.with_parts({"count": count, "mean": mean, "powers": (square,)})


def _or_zero(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isnan(x), jnp.zeros((), x.dtype), x)
