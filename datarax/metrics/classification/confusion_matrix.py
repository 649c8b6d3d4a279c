"""How often each class was taken for each."""

from typing import Any

import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import choice
from datarax.metrics.base import Metric, check_policy
from datarax.metrics.classification.count_ratio import Counts
from datarax.numerics.exact import Exact
from datarax.numerics.pairs import or_nan, pair_broadcast
from datarax.statistics.class_counts import ClassCounts
from datarax.statistics.confusion import ConfusionCounts

_AXES = {"true": (-1,), "pred": (-2,), "all": (-1, -2)}


class ConfusionMatrix(Metric):
    """How often each class was predicted for each target: targets in rows, predictions in columns.

    Multiclass: (C, C). Binary: (2, 2), [[TN, FP], [FN, TP]]. Multilabel: that of each label,
    (L, 2, 2). `compute` gives the nearest floats; `results` and a collector exact counts.

    `update(preds, target, *, weights=None)`: shapes and dtypes as for `Accuracy`. No data gives
    zeros, as counts do; NaN where they are normalized.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        threshold: binary and multilabel: a score above it predicts the class.
        normalize: "true" divides by how often each class was the target, "pred" by how often it was
            predicted, "all" by all examples; the share of a class that never was is 0. `None`
            gives counts.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: "exclude", "propagate" or "raise", as for `Accuracy`.

    As `sklearn.metrics.confusion_matrix` and `multilabel_confusion_matrix`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ConfusionMatrix
        >>> metric = ConfusionMatrix(num_classes=3)
        >>> print(metric.update(jnp.array([0, 2, 1, 1]), jnp.array([0, 0, 1, 2])).compute())
        [[1. 0. 1.]
         [0. 1. 0.]
         [0. 1. 0.]]
    """

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        threshold: float = 0.5,
        normalize: str | None = None,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        choice(normalize, (*_AXES, None), "normalize")
        self.normalize, self.on_invalid = normalize, check_policy(on_invalid)
        if num_classes is None or num_labels is not None:
            self.statistic = ClassCounts(
                num_classes=num_classes,
                num_labels=num_labels,
                threshold=threshold,
                ignore_index=ignore_index,
            )
        else:
            self.statistic = ConfusionCounts(num_classes=num_classes, ignore_index=ignore_index)

    def _words(self) -> nx.Pair:
        if isinstance(self.statistic, ConfusionCounts):
            return self.statistic.matrix.parts
        counts = Counts.of(self.statistic)
        cells = (counts.tn, counts.fp, counts.fn, counts.tp)
        high, low = (jnp.stack(words, -1).reshape(-1, 2, 2) for words in zip(*cells, strict=True))
        return (high, low) if self.statistic.num_labels is not None else (high[0], low[0])

    def compute(self) -> Any:
        words = self._words()
        if self.normalize is None:
            return Exact(*words) if words[0].dtype.itemsize == 4 else words[0]
        total = words
        for axis in _AXES[self.normalize]:
            total = nx.pair_sum(total, axis)
            total = jnp.expand_dims(total[0], axis), jnp.expand_dims(total[1], axis)
        share = nx.pair_divide(words, pair_broadcast(total, words[0].shape))
        share = jnp.where(jnp.isnan(share), jnp.zeros((), share.dtype), share)
        seen = jnp.sum(words[0], (-2, -1), keepdims=True)
        return or_nan(share, jnp.broadcast_to(seen, share.shape))
