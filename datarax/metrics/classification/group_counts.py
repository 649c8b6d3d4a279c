"""Counts of a binary task by group of examples."""

from typing import Self

import jax
import numpy as np

from datarax._checks import is_integer, numeric, positive_int, same_shape
from datarax._errors import MetricTypeError
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.algebra.state import State
from datarax.numerics.digit_sums import sum_by_digits
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import examples, in_range
from datarax.statistics.invalid_counts import InvalidCounts, out_of_range
from datarax.statistics.scatter_counts import count_labels
from datarax.statistics.thresholds import checked_threshold, is_above, of_probabilities


class GroupCounts(State):
    """For each group: true positives, false positives, false negatives and true negatives.

    Examples with NaN or infinite scores (logits may be -inf), with a target other than 0 and 1, or
    with a group out of range, are excluded and counted in `invalid`.
    """

    num_groups: int
    """The number of groups, which are numbered from 0."""
    threshold: float = 0.5
    """A score above it predicts the positive class."""
    from_logits: bool = False
    """Whether scores are logits; then the threshold is of their sigmoid."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted in `invalid`."""

    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        positive_int(self.num_groups, "num_groups")
        self.threshold = checked_threshold(self.threshold, self.from_logits)
        self.counts = MetricAccumulator(np.zeros((4, self.num_groups)))

    @property
    def cells(self) -> DoubleFloat:
        """True positives, false positives, false negatives, true negatives, (4, num_groups)."""
        return self.counts.double

    @property
    def right(self) -> DoubleFloat:
        """The true positives of each group."""
        return self.cells[0]

    @property
    def predicted(self) -> DoubleFloat:
        """The predicted positives of each group."""
        return self.cells[0] + self.cells[1]

    @property
    def actual(self) -> DoubleFloat:
        """The positives of each group."""
        return self.cells[0] + self.cells[2]

    @property
    def total(self) -> DoubleFloat:
        """The examples of each group."""
        return self.cells.sum(0)

    def update(
        self, preds: ArrayLike, target: ArrayLike, groups: ArrayLike, *, weights: Weights = None
    ) -> Self:
        """Folds in scores, 0/1 targets and group numbers, all of one shape."""
        groups = numeric(groups, "groups")
        batch = examples(
            preds,
            target,
            weights,
            ignore_index=self.ignore_index,
            threshold=of_probabilities(self.threshold, self.from_logits),
            from_logits=self.from_logits,
        )
        same_shape(batch.preds, groups, ("preds", "groups"))
        if not is_integer(groups):
            raise MetricTypeError(
                f"groups has dtype {groups.dtype}; expected integers below {self.num_groups}"
            )
        known, zero = in_range(groups, self.num_groups), xp.zeros((), batch.weight.dtype)
        unknown = out_of_range(~known & batch.weight.astype(xp.bool_), groups)
        # A group out of range gets weight zero, as `count_labels` requires.
        w = xp.where(known, batch.weight, zero)
        chosen = is_above(batch.preds, self.threshold, self.from_logits)

        a, b = chosen, batch.target
        parts = (a & b, a & ~b, ~a & b, ~(a | b))

        def count(w: jax.Array) -> jax.Array:
            return xp.stack(
                [count_labels(groups, xp.where(part, w, 0), self.num_groups) for part in parts]
            )

        return self.replace(
            counts=self.counts.plus(sum_by_digits(w, count)),
            invalid=self.invalid.update(batch.invalid | unknown),
        )
