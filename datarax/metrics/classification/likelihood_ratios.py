"""How much a prediction changes the odds of a class."""

import jax

from datarax._typing import PyTree
from datarax.metrics.classification.count_ratio import Counts, TopKCountMetric
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaling import nan_where


class LikelihoodRatios(TopKCountMetric):
    """The factor by which a prediction multiplies the odds of the class.

    A dict. "positive" is sensitivity / (1 - specificity) = (TP / (TP + FN)) / (FP / (TN + FP));
    "negative" is (1 - sensitivity) / specificity = (FN / (TP + FN)) / (TN / (TN + FP)). Binary: one
    number each; multiclass and multilabel: one for each class against the rest.

    NaN without positives or without negatives. As in scikit-learn, "positive" is also NaN without
    false positives, and "negative" without true negatives: the limit is infinite, or unknown where
    the numerator is zero too.

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

    def compute(self) -> PyTree:
        c = Counts.of(self.statistic).scaled()
        both_occur = (c.positives.high > 0) & (c.negatives.high > 0)

        def ratio(found: DoubleFloat, wrong: DoubleFloat) -> jax.Array:
            # (found / positives) / (wrong / negatives), as one quotient.
            value = ((found * c.negatives) / (wrong * c.positives)).to_float()
            value = nan_where(~both_occur, value)
            return value[0] if self.is_binary else value

        return {"positive": ratio(c.tp, c.fp), "negative": ratio(c.fn, c.tn)}
