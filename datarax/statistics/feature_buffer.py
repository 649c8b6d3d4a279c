"""`FeatureBuffer`: keeps rows of features with their weights."""

from typing import Any, Self

import jax

from datarax._checks import as_float, default_float, numeric, positive_int
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.algebra.state import State
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import Exact
from datarax.statistics.batches import rows_weight
from datarax.statistics.buffer import WeightedRows
from datarax.statistics.feature_moments import check_features
from datarax.statistics.invalid_counts import NOT_SAMPLED, InvalidCounts, not_finite


class SampledRows(WeightedRows):
    """Rows with their weights, which stand for those that do not fit."""

    def unusable(self) -> dict[str, Any]:
        return {NOT_SAMPLED: self.overflow}


class FeatureBuffer(State, kw_only=False):
    """The first `capacity` rows of features, each with its weight; counts those that do not fit.

    Rows with a NaN or an infinity are excluded, and counted in `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import FeatureBuffer
        >>> seen = FeatureBuffer(num_features=3, capacity=2).update(jnp.ones((5, 3)))
        >>> print(seen.filled, seen.overflow)
        2 3
    """

    num_features: int
    """F, how many elements each row has."""
    capacity: int
    """How many rows are kept, also after a merge."""

    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        positive_int(self.num_features, "num_features")
        positive_int(self.capacity, "capacity")
        self.rows = SampledRows(self.capacity, (self.num_features + 1,), default_float().name)

    def update(self, features: ArrayLike, *, weights: Weights = None) -> Self:
        """Appends features (N, F); rows of weight zero are skipped.

        Raises:
            MetricInputError: another shape.
        """
        x = as_float(numeric(features, "features"))
        check_features(x, self.num_features)
        w, invalid = rows_weight(not_finite(x, 1), weights)
        data = xp.concatenate([x, as_float(w)[:, None]], 1)
        return self.replace(
            rows=self.rows.append(data, w.astype(xp.bool_)),
            invalid=self.invalid.update(invalid),
        )

    @property
    def filled(self) -> jax.Array:
        """How many rows are kept."""
        return xp.asarray(self.rows.filled)

    @property
    def overflow(self) -> Exact:
        """How many rows did not fit."""
        return self.rows.overflow

    @property
    def columns(self) -> DoubleFloat:
        """Features and weights, (capacity, F + 1); 0 from `filled` on."""
        data = xp.asarray(self.rows.data)
        return DoubleFloat.of(xp.where(self.rows.is_filled[:, None], data, 0))
