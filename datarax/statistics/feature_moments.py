"""`FeatureMoments`: the mean and the covariance of features, the statistic of Fréchet distances."""

from typing import ClassVar, Self

import jax
import numpy as np

from datarax._checks import as_float, default_float, numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.device_merge import Positioned
from datarax.algebra.leaf_state import Travel
from datarax.distributed.collectives import from_key, replicated, to_key
from datarax.distributed.merge_ops import zeros
from datarax.numerics.double_float import DoubleFloat, has_wide, stack
from datarax.numerics.limbs import float_or_double
from datarax.numerics.products import matrix_product
from datarax.numerics.scaled_double import ScaledDouble, scaled_by
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import CountsInvalid, not_finite
from datarax.statistics.moments import (
    CentralMoments,
    CrossedMoments,
    about_mean,
    in_unit_of_greatest,
)


class CoMoments(Positioned, CrossedMoments):
    """The mean of vectors of `shape` (F,), and the co-moments of all pairs of their elements.

    `co` is `sum(w * outer(x - mean, x - mean))`, (F, F).
    """

    rowwise: ClassVar[bool] = False
    order: int = 1

    def empty(self) -> dict[str, PyTree]:
        zero = zeros((*self.shape, *self.shape), default_float().name)
        return self.empty_of(self.shape) | {"co": (zero, zero)}

    def of(self, x: jax.Array | DoubleFloat, w: jax.Array) -> Self:
        """The moments of rows `x` (N, F), with weights `w` (N, 1), floats or booleans."""
        w, weight_unit = in_unit_of_greatest(w, (0,), x.dtype)
        weight, mean, d, unit = about_mean(x, w, (0,))
        units = unit, xp.broadcast_to(weight_unit, self.shape)
        held = self.holding(weight.broadcast_to(self.shape), mean, [], units)
        return held.with_co(_sum_of_outer(d, w))

    def product(self, x: PyTree, y: PyTree) -> PyTree:
        return x.reshape(-1, 1) * y.reshape(1, -1)

    @property
    def co_moments(self) -> ScaledDouble:
        """The co-moments, (F, F)."""
        unit, weight_unit = self.exponents
        return ScaledDouble(self.co_double, unit[:, None] + (unit + weight_unit)[None])

    # Over devices: the means merge element by element. The co-moments are added up, once all
    # devices take them about the common mean: so each device first learns the means of all.

    def beforehand(self, index: jax.Array, size: int) -> list[jax.Array]:
        count, mean, _ = self.scaled()
        known = xp.concatenate([count.to_double().high[:1], *mean.to_double()])
        # A maximum over the devices gathers the rows: each device knows one of them.
        keys = to_key(known)
        mine = xp.arange(size, dtype=xp.int32) == index
        least = xp.asarray(xp.iinfo(keys.dtype).min, keys.dtype)
        return [*self.exponents, xp.where(mine[:, None], keys[None], least)]

    def positioned(self, maxima: list[jax.Array], index: jax.Array) -> Self:
        *exponents, keys = maxima
        held = self.in_units((exponents[0], exponents[1]))
        rows = from_key(keys, default_float())
        n, (high, low) = rows[:, :1], xp.split(rows[:, 1:], 2, -1)
        # Without any data, the shares are 0 and not NaN.
        share = n / xp.maximum(xp.sum(n), xp.finfo(n.dtype).tiny)
        common = (DoubleFloat(high, low) * xp.broadcast_to(share, high.shape)).sum(0)
        count, mean, _ = held.doubles()
        # Moved to another centre c, the co-moments grow by n * outer(mean - c, mean - c).
        apart = mean - scaled_by(common, -exponents[0])
        return held.with_co(held.co_double + self.product(apart, apart) * count[0]).stored()

    def to_mesh(self) -> list[Travel]:
        return self._means().to_mesh() + self._sums().to_mesh()

    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        *means, high, low = arrays
        merged = self._means().from_mesh(means)
        co = self._sums().from_mesh([high, low]).parts
        return self.with_parts({**merged.children(), "co": co})

    def _means(self) -> CentralMoments:
        means = CentralMoments(self.shape, 1)
        return means.with_parts({name: getattr(self, name) for name in means.children()})

    def _sums(self) -> MetricAccumulator:
        zero = np.zeros((*self.shape, *self.shape), default_float())
        return MetricAccumulator(zero).with_parts({"parts": self.co})


def _sum_of_outer(d: jax.Array, w: jax.Array) -> DoubleFloat:
    """The sum over rows of `w * outer(d, d)`, (F, F).

    In float64 where the devices have it: a float32 would give a matrix whose rank is not that of
    the rows, and the square root of a matrix magnifies what is left of zero.
    """
    if not has_wide(d.dtype):
        return DoubleFloat.of(matrix_product(d.T, w * d))
    both = stack([DoubleFloat.of(d), DoubleFloat.of(d) * w])
    return both.map(lambda x: matrix_product(x[0].T, x[1]))


class FeatureMoments(CountsInvalid, kw_only=False):
    """The mean and the covariance matrix of features, stable at any offset.

    Rows with a NaN or an infinity are excluded, and counted in `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import FeatureMoments
        >>> seen = FeatureMoments(2).update(jnp.array([[1e6, 1.0], [1e6 + 2, 5.0]]))
        >>> print(seen.covariance(ddof=1).to_float().tolist())
        [[2.0, 4.0], [4.0, 8.0]]
    """

    num_features: int
    """F, how many elements each row has."""

    def __post_init__(self) -> None:
        positive_int(self.num_features, "num_features")
        self.central = CoMoments((self.num_features,))

    def update(self, features: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in features (N, F); `weights` (N,) count as repetitions.

        Raises:
            MetricInputError: another shape.
        """
        given = numeric(features, "features")
        check_features(given, self.num_features)
        w, invalid = rows_weight(not_finite(as_float(given), 1), weights)
        x, w = replicated((float_or_double(given), w))
        return self.with_batch(
            invalid, central=self.central.combine(self.central.of(x, w[:, None]))
        )

    @property
    def count(self) -> DoubleFloat:
        """The total weight."""
        return self.central.scaled()[0][0].to_double()

    @property
    def mean(self) -> DoubleFloat:
        """The mean, (F,); 0 where there is no data."""
        return self.central.scaled()[1].to_double()

    def covariance(self, ddof: float = 0) -> DoubleFloat:
        """The co-moments over `count - ddof`, (F, F); NaN where that is zero."""
        return self.central.co_moments.to_double() / (self.count - ddof)


def check_features(x: jax.Array, num_features: int) -> None:
    """Raises unless `x` is of shape (N, num_features)."""
    if x.ndim != 2 or x.shape[1] != num_features:
        raise MetricInputError(
            f"features of shape {x.shape} for num_features={num_features}; expected "
            f"(N, {num_features})"
        )
