"""Classification, from counts by class."""

from typing import Any

import jax
import jax.numpy as jnp

from datarax import _numerics as nx
from datarax._checks import choice
from datarax.metrics._metric import Metric, check_policy
from datarax.statistics.class_counts import ClassCounts

AVERAGES = ("micro", "macro", "weighted", None)


class Accuracy(Metric):
    """The fraction of examples (multilabel: of labels) that were predicted right.

    `update(preds, target, *, weights=None)`: multiclass (`num_classes=`) takes scores (..., C) or
    labels (...) and integer labels (...); multilabel (`num_labels=`) scores and 0/1 targets
    (..., L); binary, neither given, scores and 0/1 targets (...). No data gives NaN.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has.
        threshold: binary and multilabel: a score above it predicts the class.
        top_k: multiclass: right if the target is among the k highest scores.
        average: "micro" counts examples; "macro" averages the accuracy of each class (multiclass:
            the recall, over the classes that occur, as scikit-learn's balanced accuracy; binary:
            over both classes), "weighted" by how often each occurs, `None` gives one per class.
        ignore_index: a target that leaves its example out.
        on_invalid: for NaN or infinite scores, labels out of range and negative weights: "exclude"
            and count them, "propagate" (the result is NaN), or "raise" when read on the host.

    Raises:
        MetricInputError: shapes that do not go together; shows both.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Accuracy
        >>> scores = jnp.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        >>> metric = Accuracy(num_classes=2).update(scores, jnp.array([0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.6667
    """

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        threshold: float = 0.5,
        top_k: int = 1,
        average: str | None = "micro",
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        choice(average, AVERAGES, "average")
        self.average, self.on_invalid = average, check_policy(on_invalid)
        self.statistic = ClassCounts(
            num_classes=num_classes,
            num_labels=num_labels,
            threshold=threshold,
            top_k=top_k,
            ignore_index=ignore_index,
        )

    def _value(self) -> jax.Array:
        counts = self.statistic
        if counts.num_classes is not None:
            right, of = counts.right.words, counts.actual.words
            if self.average == "micro":
                return nx.pair_divide(nx.pair_sum(right), counts.total.words)
            return _averaged(right, of, of, self.average)
        # Right are the positives hit, and the negatives left alone.
        tn, negatives = _negatives(counts)
        if counts.num_labels is None:
            hit, positives = counts.right.words, counts.actual.words
            right, of = (tuple(map(jnp.concatenate, zip(*p, strict=True))) for p in (
                (tn, hit), (negatives, positives)))  # fmt: skip
            if self.average == "micro":
                return nx.pair_divide(nx.pair_sum(right), nx.pair_sum(of))  # type: ignore[arg-type]
            return _averaged(right, of, of, self.average)
        right = nx.pair_add(counts.right.words, tn)
        total = counts.total.words
        if self.average == "micro":
            return nx.pair_divide(nx.pair_sum(right), nx.pair_sum(total))
        return _averaged(right, total, counts.actual.words, self.average)


def _negatives(counts: Any) -> tuple[nx.Pair, nx.Pair]:
    """True negatives, and negatives, by class."""
    total = tuple(jnp.broadcast_to(x, counts.right.shape) for x in counts.total.words)
    negatives = nx.pair_add(total, _minus(counts.actual.words))  # type: ignore[arg-type]
    false_positives = nx.pair_add(counts.predicted.words, _minus(counts.right.words))
    return nx.pair_add(negatives, _minus(false_positives)), negatives


def _minus(a: nx.Pair) -> nx.Pair:
    return -a[0], -a[1]


def _averaged(part: Any, of: Any, support: Any, average: str | None) -> jax.Array:
    """The ratio by class, or its mean over the classes that occur."""
    ratio = nx.pair_divide(part, of)
    if average is None:
        return ratio
    some = of[0] > 0
    weight = support[0] if average == "weighted" else some.astype(ratio.dtype)
    zero = jnp.zeros((), ratio.dtype)
    total = jnp.sum(jnp.where(some, ratio * weight, zero), -1)
    return total / jnp.sum(jnp.where(some, weight, zero), -1)
