"""How often each class was predicted for each target: the counts of a confusion matrix."""

from typing import Self

from datarax._checks import numeric, positive_int
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.algebra.state import State
from datarax.statistics.batches import predictions
from datarax.statistics.invalid_counts import InvalidCounts
from datarax.statistics.scatter_counts import ScatterCounts


class ConfusionCounts(State):
    """The weight of examples by target (rows) and predicted class (columns).

    An update adds each example to one cell, in place. It makes no array of the size of the matrix,
    nor of N by C. Exact to 2**48 without weights or with a mask. Examples with a score of NaN or
    +inf, without any score above -inf, or with a label out of range, are excluded and counted in
    `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import ConfusionCounts
        >>> seen = ConfusionCounts(num_classes=2)
        >>> print(seen.update(jnp.array([0, 1, 1]), jnp.array([0, 0, 1])).matrix.value)
        [[1. 1.]
         [0. 1.]]
    """

    num_classes: int
    """Scores (..., C) or predicted labels (...), and labels (...) as target."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted in `invalid`."""

    matrix: ScatterCounts = state()
    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        positive_int(self.num_classes, "num_classes", least=2)
        self.matrix = ScatterCounts((self.num_classes, self.num_classes))

    @property
    def size(self) -> int:
        """The number of classes."""
        return self.num_classes

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in a batch.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: the labels are not integers.
        """
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        size = self.num_classes
        chosen, target, w, invalid = predictions(
            preds, target, weights, size, ignore_index=self.ignore_index
        )
        cell = target * size + chosen[..., 0]
        # Labels of weight zero may be anything, so their cell may not exist.
        return self.replace(
            matrix=self.matrix.add(xp.where(w.astype(xp.bool_), cell, 0), w),
            invalid=self.invalid.update(invalid),
        )
