"""How raters put subjects into categories, and how often two raters of a subject agree."""

from typing import Self

import numpy as np

from datarax._checks import as_float, is_integer, numeric, positive_int
from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.algebra.state import State
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import InvalidCounts, out_of_range


class Ratings(State, kw_only=False):
    """The number of ratings by category, of pairs of ratings of one subject, and of equal pairs.

    Pairs are ordered: r ratings of a subject make `r (r - 1)` of them. Subjects with a negative
    count are excluded and counted in `invalid`. Exact to 2**48 without weights or with a mask,
    while each subject has fewer than 4096 ratings.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import Ratings
        >>> seen = Ratings(2).update(jnp.array([[3, 0], [2, 1]]))
        >>> print(seen.ratings.value, seen.agreeing.value, seen.pairs.value)
        [5. 1.] 8.0 12.0
    """

    num_categories: int
    """How many categories there are."""

    invalid = InvalidCounts()
    agreeing = MetricAccumulator(0.0)
    pairs = MetricAccumulator(0.0)

    def __post_init__(self) -> None:
        positive_int(self.num_categories, "num_categories")
        self.ratings = MetricAccumulator(np.zeros(self.num_categories))

    def update(self, ratings: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in how many raters put each subject into each category, (..., K) integers.

        Raises:
            MetricInputError: the shape does not end in `num_categories`.
            MetricTypeError: the counts are not integers.
        """
        counts = numeric(ratings, "ratings")
        if not is_integer(counts) or counts.dtype == xp.bool_:
            raise MetricTypeError(f"ratings has dtype {counts.dtype}; expected integer counts")
        if counts.shape[-1:] != (self.num_categories,):
            raise MetricInputError(
                f"ratings of shape {counts.shape} for num_categories={self.num_categories}; "
                f"expected (..., {self.num_categories}), how many raters chose each category"
            )
        w, invalid = rows_weight(out_of_range(xp.any(counts < 0, -1)), weights)
        x = as_float(xp.where(w.astype(xp.bool_)[..., None], counts, 0))
        # Ordered pairs of two different ratings: x (x - 1) in a category of x ratings.
        w, raters = as_float(w), xp.sum(x, -1)
        return self.replace(
            ratings=self.ratings.update(x * w[..., None]),
            agreeing=self.agreeing.update(w * xp.sum(x * (x - 1), -1)),
            pairs=self.pairs.update(w * (raters * (raters - 1))),
            invalid=self.invalid.update(invalid),
        )
