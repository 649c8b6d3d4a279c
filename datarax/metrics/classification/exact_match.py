"""How often every part of an example is right."""

from typing import Any, Self

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import numeric, real
from datarax._errors import MetricInputError
from datarax.metrics.base import Metric, check_policy
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import check_task, examples, predictions, rows_weight
from datarax.statistics.state import State


class RowMatches(State):
    """How many rows there are, and of how many every entry is predicted right."""

    right = MetricAccumulator(0.0)
    total = MetricAccumulator(0.0)
    invalid = MetricAccumulator(0)

    def __init__(
        self,
        *,
        num_classes: int | None,
        num_labels: int | None,
        threshold: float,
        ignore_index: int | None,
    ):
        check_task(num_classes, num_labels)
        if num_classes is None and num_labels is None:
            raise MetricInputError(
                "ExactMatch is of rows: give num_labels= (multilabel), or num_classes= (sequences "
                "of classes); for single examples it is Accuracy"
            )
        self.num_classes, self.num_labels = num_classes, num_labels
        self.threshold, self.ignore_index = real(threshold, "threshold"), ignore_index

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """Folds in rows of labels or classes; a weight is that of a row."""
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        if target.ndim == 0:
            raise MetricInputError("target has no axes; expected rows (..., S) of targets")
        hit, counts, unusable = self._entries(preds, target)
        w, invalid = rows_weight(~jnp.any(unusable, -1), weights)
        w = jnp.where(jnp.any(counts, -1), w, jnp.zeros((), w.dtype))
        right = jnp.where(jnp.all(hit | ~counts, -1), w, jnp.zeros((), w.dtype))
        return self.replace(
            right=self.right.update(right),
            total=self.total.update(w),
            invalid=self.invalid.update(invalid),
        )

    def _entries(
        self, preds: jax.Array, target: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """For each entry, whether it is right, whether it counts, and whether it is invalid."""
        index = self.ignore_index
        if self.num_classes is not None:
            seen = predictions(preds, target, None, self.num_classes, ignore_index=index)
            return seen.chosen[..., 0] == seen.target, seen.weight, seen.invalid
        batch = examples(preds, target, None, num_labels=self.num_labels, ignore_index=index)
        chosen = batch.preds > jnp.asarray(self.threshold, batch.preds.dtype)
        return chosen == batch.target, batch.weight, batch.invalid


class ExactMatch(Metric):
    """The fraction of rows in which every label, or every class of a sequence, is right.

    The subset accuracy: `sum(w * all(right)) / sum(w)`.

    `update(preds, target, *, weights=None)`: multilabel (`num_labels=`) takes scores and 0/1
    targets (..., L); multiclass (`num_classes=`) scores (..., S, C) or labels (..., S), and integer
    labels (..., S). A weight is that of a row (...). No data gives NaN.

    Args:
        num_classes: how many classes each entry of a sequence may be of.
        num_labels: how many labels a multilabel task has. One of the two is required.
        threshold: multilabel: a score above it predicts the label.
        ignore_index: a target that leaves out its entry, but not the rest of the row; a row of
            nothing else is left out.
        on_invalid: "exclude", "propagate" or "raise", as for `Accuracy`; a row with an entry that
            cannot be used is left out whole, as it is not known to match.

    Raises:
        MetricInputError: neither or both of the sizes; shapes that do not go together.
        MetricTypeError: labels that are no integers.

    As `sklearn.metrics.accuracy_score` of multilabel targets.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ExactMatch
        >>> preds, target = jnp.array([[0.9, 0.2], [0.1, 0.7]]), jnp.array([[1, 0], [0, 0]])
        >>> print(ExactMatch(num_labels=2).update(preds, target).compute())
        0.5
    """

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        threshold: float = 0.5,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        self.on_invalid = check_policy(on_invalid)
        self.statistic = RowMatches(
            num_classes=num_classes,
            num_labels=num_labels,
            threshold=threshold,
            ignore_index=ignore_index,
        )

    def compute(self) -> jax.Array:
        return nx.pair_divide(self.statistic.right.parts, self.statistic.total.parts)
