"""Counts of a binary task by group of examples."""

from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax._checks import is_integer, numeric, positive_int, real, same_shape
from datarax._errors import MetricTypeError
from datarax._typing import ArrayLike, Weights
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import examples
from datarax.statistics.labels import count_labels, in_range
from datarax.statistics.state import State


class GroupCounts(State):
    """For each group: true positives, predicted positives, positives, and examples.

    Examples with NaN or infinite scores, with a target other than 0 and 1, or with a group out of
    range, are excluded and counted in `invalid`.
    """

    num_groups: int
    """The number of groups, which are numbered from 0."""
    threshold: float = 0.5
    """A score above it predicts the positive class."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted in `invalid`."""

    invalid = MetricAccumulator(0)

    def __post_init__(self) -> None:
        positive_int(self.num_groups, "num_groups")
        self.threshold = real(self.threshold, "threshold")
        by_group = np.zeros(self.num_groups)
        self.right = MetricAccumulator(by_group)
        self.predicted = MetricAccumulator(by_group)
        self.actual = MetricAccumulator(by_group)
        self.total = MetricAccumulator(by_group)

    def update(
        self, preds: ArrayLike, target: ArrayLike, groups: ArrayLike, *, weights: Weights = None
    ) -> Self:
        """Folds in scores, 0/1 targets and group numbers, all of one shape."""
        groups = numeric(groups, "groups")
        batch = examples(preds, target, weights, ignore_index=self.ignore_index)
        same_shape(batch.preds, groups, ("preds", "groups"))
        if not is_integer(groups):
            raise MetricTypeError(
                f"groups has dtype {groups.dtype}; expected integers below {self.num_groups}"
            )
        known, zero = in_range(groups, self.num_groups), jnp.zeros((), batch.weight.dtype)
        # A group out of range gets weight zero, as `count_labels` requires.
        w = jnp.where(known, batch.weight, zero)
        chosen = batch.preds > self.threshold

        def count(which: jax.Array) -> jax.Array:
            return count_labels(groups, jnp.where(which, w, zero), self.num_groups)

        return self.replace(
            right=self.right.update(count(chosen & batch.target)),
            predicted=self.predicted.update(count(chosen)),
            actual=self.actual.update(count(batch.target)),
            total=self.total.update(count(known)),
            invalid=self.invalid.update(batch.invalid | (~known & batch.weight.astype(jnp.bool_))),
        )
