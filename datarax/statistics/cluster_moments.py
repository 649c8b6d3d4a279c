"""The mean of each cluster of points, and the squared distances of its points from that mean."""

from typing import Any, Protocol, Self

import jax
import numpy as np

from datarax._checks import integers, numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import at, faster_in_numpy, lax, xp
from datarax.distributed.collectives import replicated
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.limbs import float_parts, has_many_digits
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.scaling import power_of_two
from datarax.numerics.scatter import scatter_sums
from datarax.statistics.batches import in_range, rows_weight
from datarax.statistics.invalid_counts import CountsInvalid, not_finite, out_of_range
from datarax.statistics.moments import (
    DIGITS,
    CentralMoments,
    LongMean,
    in_unit_of_greatest,
    unit_exponent,
)
from datarax.statistics.sums_about_mean import powers_about_mean


class Clusters(Protocol):
    """The sizes of points with labels."""

    num_clusters: int
    num_features: int


def labelled_points(
    features: ArrayLike, labels: ArrayLike, sizes: Clusters
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Points (..., D), their integer labels (...), and which labels are those of clusters.

    Raises:
        MetricInputError: the shapes do not fit together; shows both.
        MetricTypeError: the labels are not integers.
    """
    x = numeric(features, "features")
    labels = integers(labels, "labels", "integer labels", booleans=True)
    if x.shape != (*labels.shape, sizes.num_features):
        raise MetricInputError(
            f"features of shape {x.shape} and labels of shape {labels.shape}; expected features of "
            f"shape {(*labels.shape, sizes.num_features)} for num_features={sizes.num_features}"
        )
    return x, labels, in_range(labels, sizes.num_clusters)


class ClusterMoments(CountsInvalid, kw_only=False):
    """The weight, the mean and the sum of squares about the mean of each cluster, by feature.

    Batches are merged by pairwise formulas, so no digits are lost however far from zero the
    points are. Points with a NaN, an infinity or a label out of range are excluded and counted in
    `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import ClusterMoments
        >>> points = jnp.array([[1.0], [3.0], [9.0]])
        >>> seen = ClusterMoments(2, 1).update(points, jnp.array([0, 0, 1]))
        >>> print(seen.means.to_float()[:, 0], seen.squares)
        [2. 9.] [2. 0.]
    """

    terms_by_row = False

    num_clusters: int
    """The number of clusters: labels are from 0 to `num_clusters - 1`."""
    num_features: int
    """The number of coordinates of each point."""

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
        x, labels, known = labelled_points(features, labels, self)
        w, invalid = rows_weight(not_finite(x, -1) | out_of_range(~known, labels), weights)
        counts = w.astype(xp.bool_)[..., None]
        batch = self._of(
            [xp.where(counts, part, 0).reshape(-1, x.shape[-1]) for part in float_parts(x)],
            xp.where(known, labels.astype(xp.int32), 0).reshape(-1),
            w.reshape(-1),
            many_digits=has_many_digits(x),
        )
        return self.with_batch(invalid, central=self.central.combine(batch))

    @property
    def sizes(self) -> ScaledDouble:
        """The weight of each cluster, (C,)."""
        count, _, _ = self.central.scaled()
        return count[:, 0]  # the same for each feature

    @property
    def weight(self) -> ScaledDouble:
        """The weight of all clusters."""
        sizes, _, _ = self.in_one_unit()
        return ScaledDouble(sizes.sum(), xp.max(self.central.exponents[1]))

    @property
    def means(self) -> ScaledDouble:
        """The mean of each cluster, (C, D); 0 where it is empty."""
        _, mean, _ = self.central.scaled()
        return mean

    @property
    def squares(self) -> jax.Array:
        """The sum of squared distances of each cluster's points from its mean, (C,)."""
        _, _, (square,) = self.central.scaled()
        return xp.sum(square.to_float(), -1)

    def in_one_unit(self) -> tuple[DoubleFloat, LongMean, DoubleFloat]:
        """Weights (C,), means (C, D) and sums of squares (C, D), in one unit that fits all."""
        # Empty clusters have the least exponents.
        # Only moments in one unit can be added up over clusters and features.
        unit, weight_unit = (xp.broadcast_to(xp.max(x), x.shape) for x in self.central.exponents)
        held = self.central.in_units((unit, weight_unit))
        count, mean, (square,) = held.doubles()
        return count[:, 0], LongMean(mean, held.mean_rest), square

    def _of(
        self, parts: list[jax.Array], labels: jax.Array, w: jax.Array, *, many_digits: bool
    ) -> CentralMoments:
        """The moments of one batch: points (N, D) in `float_parts`, labels (N,), weights (N,)."""
        clusters, features = self.num_clusters, self.num_features
        (x, *rest), labels, w = replicated((parts, labels, w))
        place = labels[:, None] * features + xp.arange(features, dtype=xp.int32)[None, :]
        w, weight_unit = in_unit_of_greatest(w[:, None], (0,), x.dtype)
        counts = w.astype(xp.bool_)
        w = xp.broadcast_to(w, x.shape)
        sides = _sides(x)
        least = xp.finfo(x.dtype).min
        extremes = xp.full((clusters, sides.shape[-1]), least, x.dtype)
        extremes = at(extremes)[labels].max(xp.where(counts, sides, least))
        extremes = extremes.reshape(clusters, -1, features)
        greatest = xp.max(extremes, 1, initial=0)
        unit = unit_exponent(greatest, DIGITS)
        power = power_of_two(-unit, x.dtype)
        scale = power[labels]
        x = xp.where(counts, x, 0) * scale

        def totals(tops: list[Any], *values: jax.Array) -> list[DoubleFloat]:
            """The sums of values (N, D), none of which is much above its top."""
            columns = [x.reshape(-1) for x in values]
            return scatter_sums(place.reshape(-1), columns, (clusters, features), tops)

        count, total = totals([1, 2.0**DIGITS], w, w * x)
        # The mean in two steps: the second corrects what the first rounded away. One bit less in
        # the first, so that no compiler merges its rounding into the subtraction that follows.
        info = xp.finfo(x.dtype)
        divisor = count.map(lambda part: xp.where(count.high > 0, part, 1))
        first = (total / divisor).to_float()
        first = lax.reduce_precision(first, info.nexp, info.nmant - 1)
        d = x - first[labels]
        for part in rest:
            d = d + xp.where(counts, part, 0) * scale
        widest = xp.max(xp.sum(extremes * power[:, None], 1), initial=0)
        total, squares = totals([widest, widest * widest], w * d, w * d * d)
        second = (total / divisor).to_float()
        squares = powers_about_mean(count, DoubleFloat.of(second), [squares])
        mean = LongMean(DoubleFloat.of(first), second).parts(many_digits)
        exponents = unit, xp.broadcast_to(weight_unit, unit.shape)
        return self.central.holding(count, *mean, squares, exponents)


# In NumPy, which needs no bound, an update of 20,000 rows would take 1.25 times as long.
@faster_in_numpy(np.abs)
def _sides(x: jax.Array) -> jax.Array:
    """Numbers whose greatest are the range of `x`, or in NumPy its greatest magnitude.

    The range bounds the distances from the mean, and so saves a program a pass over the rows.
    """
    return xp.concatenate([x, -x], -1)
