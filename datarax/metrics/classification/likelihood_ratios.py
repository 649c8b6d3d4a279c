"""How much a prediction changes the odds."""

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax.metrics.classification.count_ratio import CountMetric, Counts
from datarax.numerics.pairs import or_nan


class LikelihoodRatios(CountMetric):
    """By what factor a prediction multiplies the odds of the class.

    A dict. "positive" is sensitivity / (1 - specificity) = (TP / (TP + FN)) / (FP / (TN + FP));
    "negative" is (1 - sensitivity) / specificity = (FN / (TP + FN)) / (TN / (TN + FP)). Binary: a
    number each; multiclass and multilabel: one for each class against the rest.

    `update(preds, target, *, weights=None)`: shapes and dtypes as for `Accuracy`. NaN without a
    positive or without a negative; "positive" also without a false positive, and "negative"
    without a true negative, as in scikit-learn, where the limit is infinite or, without a true
    positive, unknown.

    Args:
        num_classes: how many classes a multiclass task has.
        num_labels: how many labels a multilabel task has. Neither: binary.
        threshold: binary and multilabel: a score above it predicts the class.
        top_k: multiclass: the classes of the k highest scores are predicted.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: "exclude", "propagate" or "raise", as for `Accuracy`.

    As `sklearn.metrics.class_likelihood_ratios`. J. J. Deeks and D. G. Altman (2004), Diagnostic
    tests 4: likelihood ratios, https://doi.org/10.1136/bmj.329.7458.168.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import LikelihoodRatios
        >>> preds, target = jnp.array([0.9, 0.8, 0.7, 0.1, 0.2]), jnp.array([1, 1, 0, 0, 0])
        >>> ratios = LikelihoodRatios().update(preds, target).compute()
        >>> print(ratios["positive"], ratios["negative"])
        3.0 0.0
    """

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        threshold: float = 0.5,
        top_k: int = 1,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        self._count(
            num_classes=num_classes,
            num_labels=num_labels,
            threshold=threshold,
            top_k=top_k,
            ignore_index=ignore_index,
            on_invalid=on_invalid,
        )

    def compute(self) -> dict[str, jax.Array]:
        counts = Counts.of(self.statistic).scaled()
        both = jnp.minimum(counts.positives[0], counts.negatives[0])

        def ratio(found: nx.Pair, wrong: nx.Pair) -> jax.Array:
            value = nx.pair_divide(
                nx.pair_product(found, counts.negatives), nx.pair_product(wrong, counts.positives)
            )
            value = or_nan(value, both)
            return value[0] if self._is_binary else value

        return {"positive": ratio(counts.tp, counts.fp), "negative": ratio(counts.fn, counts.tn)}
