"""Which of two models is right, example by example."""

from typing import Self

import jax
import numpy as np

from datarax._checks import numeric
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import examples, predictions
from datarax.statistics.class_counts import TaskCounts
from datarax.statistics.invalid_counts import Invalid
from datarax.statistics.thresholds import is_above, of_probabilities


class PairedMatches(TaskCounts):
    """Which of two models is right: both, only the first, only the second, or neither, (4,).

    See `TaskCounts`. In a multilabel task, each label is a prediction. An example that cannot be
    used of either model is excluded, and counted once in `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.classification.paired_matches import PairedMatches
        >>> a, b, target = jnp.array([0, 1, 2]), jnp.array([0, 2, 1]), jnp.array([0, 1, 2])
        >>> print(PairedMatches(num_classes=3).update(a, b, target).cells.value)
        [1. 2. 0. 0.]
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cells = MetricAccumulator(np.zeros(4))

    @property
    def only_a(self) -> DoubleFloat:
        """The weight of the examples that only the first model has right."""
        return self.cells.double[1]

    @property
    def only_b(self) -> DoubleFloat:
        """The weight of the examples that only the second model has right."""
        return self.cells.double[2]

    @property
    def total(self) -> DoubleFloat:
        """The weight of all examples."""
        return self.cells.double.sum()

    def update(
        self,
        preds_a: ArrayLike,
        preds_b: ArrayLike,
        target: ArrayLike,
        *,
        weights: Weights = None,
    ) -> Self:
        """Folds in the predictions of both models.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: the labels are not integers.
        """
        a, w, invalid_a = self._matches(preds_a, target, weights, "preds_a")
        b, _, invalid_b = self._matches(preds_b, target, weights, "preds_b")
        # The weight is zero already where the first prediction is invalid.
        w = xp.where(invalid_b.mask, xp.zeros((), w.dtype), w)
        parts = (a & b, a & ~b, ~a & b, ~(a | b))

        def count(w: jax.Array) -> jax.Array:
            return xp.stack([xp.sum(xp.where(part, w, 0), dtype=w.dtype) for part in parts])

        return self.counted(w, count, invalid_a | invalid_b)

    def _matches(
        self, preds: ArrayLike, target: ArrayLike, weights: Weights, name: str
    ) -> tuple[jax.Array, jax.Array, Invalid]:
        """Which predictions are right, the weight of each, and the invalid ones."""
        if self.num_classes is not None:
            preds, target = numeric(preds, name), numeric(target, "target")
            chosen, target, w, invalid = predictions(
                preds, target, weights, self.size, self.top_k, self.ignore_index, name
            )
            return xp.any(chosen == target[..., None], -1), w, invalid
        scores, positive, w, invalid, _ = examples(
            preds,
            target,
            weights,
            num_labels=self.num_labels,
            ignore_index=self.ignore_index,
            threshold=of_probabilities(self.threshold, self.from_logits),
            from_logits=self.from_logits,
            name=name,
        )
        chosen = is_above(scores, self.threshold, self.from_logits)
        return chosen == positive, w, invalid
