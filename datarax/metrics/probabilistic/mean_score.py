"""Means of a score of each example: what log loss, Brier score, hinge loss and others share."""

from typing import Any, Self

import jax

from datarax.metrics.base import Metric, check_policy
from datarax.statistics.batches import Examples, check_task, examples
from datarax.statistics.weighted_total import WeightedTotal


class MeanScore(Metric):
    """The weighted mean of a score of each example, over all that was seen."""

    def __init__(self, on_invalid: str):
        self.on_invalid = check_policy(on_invalid)
        self.statistic = WeightedTotal()

    def _added(self, score: jax.Array, seen: Examples) -> Self:
        return self.replace(statistic=self.statistic.add(score, seen.weight, seen.invalid))

    def compute(self) -> jax.Array:
        return self.statistic.mean


class TaskScore(MeanScore):
    """The mean over the examples of a task, of what `_score` says of each."""

    num_classes: int | None = None
    num_labels: int | None = None
    from_logits: bool | None = None
    ignore_index: int | None = None

    def _task(self, num_classes: int | None, num_labels: int | None, on_invalid: str) -> None:
        check_task(num_classes, num_labels)
        self.num_classes, self.num_labels = num_classes, num_labels
        super().__init__(on_invalid)

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """A new metric with the batch folded in; no communication."""
        seen = examples(
            preds,
            target,
            weights,
            num_classes=self.num_classes,
            num_labels=self.num_labels,
            probabilities=self.from_logits is False,
            ignore_index=self.ignore_index,
        )
        return self._added(self._score(seen), seen)

    def _score(self, seen: Examples) -> jax.Array:
        """The score of each example."""
        raise TypeError(type(self).__name__)
