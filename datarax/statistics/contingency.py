"""Contingency tables of two labellings; ratings: how raters put subjects into categories."""

from typing import Self

import numpy as np

from datarax._checks import as_float, integers, positive_int, same_shape
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import in_range, refuse_one_hot, rows_weight
from datarax.statistics.invalid_counts import CountsInvalid, out_of_range
from datarax.statistics.scatter_counts import ScatterCounts


class Contingency(CountsInvalid, kw_only=False):
    """The weight of examples by target (rows) and prediction (columns).

    Counts are exact to 2**48 without weights or with a mask. Examples with a label out of range
    are excluded and counted in `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import Contingency
        >>> seen = Contingency(2, 3).update(jnp.array([0, 2, 2]), jnp.array([0, 1, 1]))
        >>> print(seen.table.value)
        [[1. 0. 0.]
         [0. 0. 2.]]
    """

    rows: int
    """The number of labels that `target` may hold: 0 to `rows - 1`."""
    columns: int
    """The number of labels that `preds` may hold: 0 to `columns - 1`."""

    def __post_init__(self) -> None:
        positive_int(self.rows, "rows")
        positive_int(self.columns, "columns")
        self.table = ScatterCounts((self.rows, self.columns))

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in integer labels of one shape (...).

        Raises:
            MetricInputError: the shapes differ; shows both.
            MetricTypeError: the labels are not integers.
        """
        preds = integers(preds, "preds", "integer labels", booleans=True)
        target = integers(target, "target", "integer labels", booleans=True)
        same_shape(preds, target)
        refuse_one_hot(preds, target, self.rows)
        unusable = out_of_range(~in_range(preds, self.columns), preds)
        unusable |= out_of_range(~in_range(target, self.rows), target)
        w, invalid = rows_weight(unusable, weights)
        # Labels that cannot be used have weight zero, but must be indices: they become 0.
        row, column = (xp.where(unusable.mask, 0, x.astype(xp.int32)) for x in (target, preds))
        return self.with_batch(invalid, table=self.table.add(row * self.columns + column, w))


class Ratings(CountsInvalid, kw_only=False):
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
    """The number of categories."""

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
        counts = integers(ratings, "ratings", "integer counts")
        if counts.shape[-1:] != (self.num_categories,):
            raise MetricInputError(
                f"ratings of shape {counts.shape} for num_categories={self.num_categories}; "
                f"expected (..., {self.num_categories}), how many raters chose each category"
            )
        w, invalid = rows_weight(out_of_range(xp.any(counts < 0, -1)), weights)
        # A negative count of a subject that is left out must not reach the sums.
        x = as_float(xp.where(w.astype(xp.bool_)[..., None], counts, 0))
        # Ordered pairs of two different ratings: x (x - 1) in a category of x ratings.
        w, raters = as_float(w), xp.sum(x, -1)
        return self.with_batch(
            invalid,
            ratings=self.ratings.update(x * w[..., None]),
            agreeing=self.agreeing.update(w * xp.sum(x * (x - 1), -1)),
            pairs=self.pairs.update(w * (raters * (raters - 1))),
        )
