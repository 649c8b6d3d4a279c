"""How often each class was taken for each: what confusion matrices are read from."""

from typing import Any, Self

import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import numeric, positive_int
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import predictions
from datarax.statistics.class_counts import ClassCounts
from datarax.statistics.scatter_counts import ScatterCounts
from datarax.statistics.state import State


class ConfusionCounts(State):
    """The weight of examples by target (rows) and predicted class (columns).

    Args:
        num_classes: scores (..., C) or predicted labels (...), and labels (...) as target.
        ignore_index: a target that leaves its example out, uncounted.

    An update adds to one cell an example, in place: nothing of the size of the matrix, or of N by
    C, is made but the scores. Exact to 2**48 without weights or with a mask. Examples with NaN or
    infinite scores, or with a label out of range, are excluded and counted in `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import ConfusionCounts
        >>> seen = ConfusionCounts(num_classes=2)
        >>> print(seen.update(jnp.array([0, 1, 1]), jnp.array([0, 0, 1])).matrix.value)
        [[1. 1.]
         [0. 1.]]
    """

    invalid = MetricAccumulator(0)

    def __init__(self, *, num_classes: int, ignore_index: int | None = None):
        positive_int(num_classes, "num_classes", least=2)
        self.num_classes, self.ignore_index = num_classes, ignore_index
        self.matrix = ScatterCounts((num_classes, num_classes))

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """Folds in a batch.

        Raises:
            MetricInputError: shapes that do not go together; shows both.
            MetricTypeError: labels that are no integers.
        """
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        size = self.num_classes
        chosen, target, w, invalid = predictions(
            preds, target, weights, size, ignore_index=self.ignore_index
        )
        cell = target * jnp.int32(size) + chosen[..., 0]
        return self.replace(
            matrix=self.matrix.add(jnp.where(w.astype(jnp.bool_), cell, jnp.int32(0)), w),
            invalid=self.invalid.update(invalid),
        )

    def derive(self, other: State) -> State | None:
        """What `other`, of the same inputs, would hold; None where this does not tell."""
        same = (self.num_classes, 1, self.ignore_index)
        if not isinstance(other, ClassCounts):
            return None
        if (other.num_classes, other.top_k, other.ignore_index) != same:
            return None
        words: Any = self.matrix.parts
        actual = nx.pair_sum(words)
        parts = {
            "right": tuple(jnp.diagonal(x, axis1=-2, axis2=-1) for x in words),
            "predicted": nx.pair_sum(words, -2),
            "actual": actual,
            "total": nx.pair_sum(actual),
        }
        accumulators = {
            name: getattr(other, name).with_value(DoubleFloat(*pair))
            for name, pair in parts.items()
        }
        return other.replace(**accumulators, invalid=self.invalid)
