"""`RowRatios`: the mean over rows of labels of a ratio of counts."""

from typing import Self

import jax
import numpy as np

from datarax._checks import as_float, numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.class_counts import ThresholdCounts
from datarax.statistics.scaled_total import ScaledTotal, quotient

Terms = tuple[float, float, float, float]
"""The factors of the true positives, false positives, false negatives and true negatives."""


class RowRatios(ThresholdCounts):
    """The weighted total of a ratio of the counts of each row of labels.

    A row with a label that cannot be used is excluded and counted in `invalid`; a row in which all
    targets are ignored is excluded.
    """

    num_labels: int
    """Scores (..., L), and 0/1 targets (..., L)."""
    part: Terms
    """The numerator of the ratio."""
    whole: Terms
    """The denominator."""
    zero_division: float = 0.0
    """The score of a row where the ratio is 0/0; NaN excludes the row."""

    sums: ScaledTotal = state()
    """The sums of `w * score` and of `w`."""
    undefined: MetricAccumulator = state()
    """1 if there is a row where the ratio is 0/0."""

    def __post_init__(self) -> None:
        positive_int(self.num_labels, "num_labels")
        self.zero_division = float(self.zero_division)  # whether it was given does not matter
        super().__post_init__()
        self.sums = ScaledTotal((2,))
        self.undefined = MetricAccumulator(0, MetricReduceOp.max)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in rows; `weights` are those of rows.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
        """
        target = numeric(target, "target")
        if weights is not None and np.ndim(weights) >= target.ndim > 0:
            raise MetricInputError(
                f"weights of shape {np.shape(weights)} and target of shape {target.shape}; "
                f'expected weights of rows, {target.shape[:-1]}, for average="samples"'
            )
        # Rows of weight zero may hold anything.
        batch = self.above_threshold(preds, target, weights, num_labels=self.num_labels)
        counts = batch.weight.astype(xp.bool_)
        a, b = batch.preds & counts, batch.target & counts
        cells = a & b, a & ~b, b & ~a, counts & ~(a | b)
        sums = [as_float(xp.sum(cell, -1, dtype=xp.int32)) for cell in cells]
        above, below = (
            sum(x * factor for x, factor in zip(sums, terms, strict=True) if factor)
            for terms in (self.part, self.whole)
        )
        w, invalid = rows_weight(batch.invalid.any((-1,)), weights)
        zero = xp.zeros((), w.dtype)
        w = xp.where(xp.any(counts, -1), w, zero)
        is_undefined = (below == 0) & w.astype(xp.bool_)
        value = self.zero_division
        if np.isnan(value):
            w, value = xp.where(is_undefined, zero, w), 0.0
        score = xp.where(below == 0, value, above / xp.where(below == 0, 1, below))
        return self.with_batch(
            invalid,
            sums=self.sums.plus((xp.where(w.astype(xp.bool_), score, 0), w), (w, None)),
            undefined=self.undefined.update(is_undefined),
        )

    def as_ratio(self) -> tuple[DoubleFloat, DoubleFloat]:
        """The two sums."""
        return self.sums[0].double, self.sums[1].double

    @property
    def mean(self) -> jax.Array:
        """The mean over rows."""
        return quotient(self.sums[0], self.sums[1])
