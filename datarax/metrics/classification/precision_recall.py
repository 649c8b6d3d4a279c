"""Precision, recall, F1 and other ratios of counts by class.

TP, FP, FN and TN are the true positives, false positives, false negatives and true negatives of a
class against the rest.
"""

import math

import jax

from datarax._checks import real
from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax._xp import xp
from datarax.algebra.fields import field
from datarax.metrics.classification.count_ratio import (
    CountMetric,
    CountProportion,
    CountRatio,
    Counts,
    TopKCountMetric,
)
from datarax.numerics.double_float import DoubleFloat, stack
from datarax.numerics.scaling import nan_where, one_where_zero


class Precision(CountProportion):
    """The fraction of positive predictions that are correct: the positive predictive value.

    TP / (TP + FP). No data gives NaN. As `sklearn.metrics.precision_score`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Precision
        >>> metric = Precision().update(jnp.array([0.9, 0.8, 0.3]), jnp.array([1, 0, 1]))
        >>> print(metric.compute())
        0.5
    """

    def ratio(self, c: Counts) -> tuple[DoubleFloat, DoubleFloat]:
        return c.tp, c.predicted_positives


class Recall(CountProportion):
    """The fraction of positives that are predicted positive: sensitivity, the true positive rate.

    TP / (TP + FN). No data gives NaN. As `sklearn.metrics.recall_score`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Recall
        >>> metric = Recall().update(jnp.array([0.9, 0.8, 0.3]), jnp.array([1, 0, 1]))
        >>> print(metric.compute())
        0.5
    """

    def ratio(self, c: Counts) -> tuple[DoubleFloat, DoubleFloat]:
        return c.tp, c.positives


class Specificity(CountProportion):
    """The fraction of negatives that are predicted negative: the true negative rate.

    TN / (TN + FP). No data gives NaN. As `sklearn.metrics.recall_score(pos_label=0)` for a binary
    task. J. Yerushalmy (1947), Statistical problems in assessing methods of medical diagnosis.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Specificity
        >>> metric = Specificity().update(jnp.array([0.9, 0.8, 0.3]), jnp.array([1, 0, 0]))
        >>> print(metric.compute())
        0.5
    """

    def ratio(self, c: Counts) -> tuple[DoubleFloat, DoubleFloat]:
        return c.tn, c.negatives


class NegativePredictiveValue(CountProportion):
    """The fraction of negative predictions that are correct.

    TN / (TN + FN). No data gives NaN. As `sklearn.metrics.precision_score(pos_label=0)` for a
    binary task.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import NegativePredictiveValue
        >>> metric = NegativePredictiveValue()
        >>> metric = metric.update(jnp.array([0.9, 0.2, 0.3]), jnp.array([1, 0, 1]))
        >>> print(metric.compute())
        0.5
    """

    def ratio(self, c: Counts) -> tuple[DoubleFloat, DoubleFloat]:
        return c.tn, c.predicted_negatives


class FBeta(CountRatio):
    """The weighted harmonic mean of precision and recall.

    (1 + beta^2) TP / ((1 + beta^2) TP + beta^2 FN + FP). No data gives NaN. As
    `sklearn.metrics.fbeta_score`. C. J. van Rijsbergen (1979), Information Retrieval, chapter 7.

    Raises:
        MetricInputError: `beta` is negative or NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import FBeta
        >>> metric = FBeta(2.0).update(jnp.array([0.9, 0.8, 0.3]), jnp.array([1, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.7143
    """

    higher_is_better = True
    is_ratio_of_sums = True
    scales = True
    beta: float = field(default=1.0, kw_only=False)
    """Recall counts `beta` times as much as precision; 0 gives precision, infinity gives recall."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.beta = real(self.beta, "beta", nan=True)  # one message below for NaN
        if not self.beta >= 0:
            raise MetricInputError(f"beta={self.beta!r}; expected a number of at least 0")

    def ratio(self, c: Counts) -> tuple[DoubleFloat, DoubleFloat]:
        return _f_beta(c, self.beta)


class F1(CountRatio):
    """The harmonic mean of precision and recall; for sets, the Dice coefficient.

    2 TP / (2 TP + FP + FN). No data gives NaN. As `sklearn.metrics.f1_score`: the macro average is
    the mean of the F1 of each class.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import F1
        >>> metric = F1().update(jnp.array([0.9, 0.8, 0.3]), jnp.array([1, 0, 1]))
        >>> print(metric.compute())
        0.5
    """

    higher_is_better = True
    is_ratio_of_sums = True
    scales = True

    def ratio(self, c: Counts) -> tuple[DoubleFloat, DoubleFloat]:
        return _f_beta(c, 1.0)


class JaccardIndex(CountRatio):
    """Intersection over union of the predicted and the actual examples of a class.

    TP / (TP + FP + FN). No data gives NaN. As `sklearn.metrics.jaccard_score`. P. Jaccard (1901).

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import JaccardIndex
        >>> metric = JaccardIndex().update(jnp.array([0.9, 0.8, 0.3]), jnp.array([1, 0, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.3333
    """

    higher_is_better = True
    is_ratio_of_sums = True

    def ratio(self, c: Counts) -> tuple[DoubleFloat, DoubleFloat]:
        return c.tp, c.positives + c.fp


class InformednessYouden(CountRatio):
    """Youden's J: how much better than chance a class is separated from the rest.

    TP / (TP + FN) + TN / (TN + FP) - 1; 1 for perfect predictions, 0 for random ones, -1 at worst.
    Where either rate is undefined (no positives, or no negatives) the value is `zero_division`. No
    data gives NaN. For a binary task as `sklearn.metrics.balanced_accuracy_score(adjusted=True)`.
    W. J. Youden (1950), Index for rating diagnostic tests.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import InformednessYouden
        >>> metric = InformednessYouden().update(jnp.array([0.9, 0.8, 0.3]), jnp.array([1, 0, 0]))
        >>> print(metric.compute())
        0.5
    """

    value_range = (-1.0, 1.0)
    higher_is_better = True
    scales = True

    def ratio(self, c: Counts) -> tuple[DoubleFloat, DoubleFloat]:
        # The two ratios in one: (TP TN - FP FN) / ((TP + FN) (TN + FP)). So it is rounded once.
        return c.tp * c.tn - c.fp * c.fn, c.positives * c.negatives


class GeometricMeanScore(CountMetric):
    """The geometric mean of the recalls of the classes; 0 if one of them is never recognized.

    Binary: sqrt(sensitivity * specificity). Multiclass: the n-th root of the product of the recalls
    of the n classes that occur among the targets; an array of shape (). Multilabel: one value per
    label, as of a binary task: (L,). A class without examples is left out, so no data gives NaN. As
    `imblearn.metrics.geometric_mean_score`, where a class that is predicted and never occurs has
    recall 0. M. Kubat and S. Matwin (1997), Addressing the curse of imbalanced training sets:
    one-sided selection.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import GeometricMeanScore
        >>> preds, target = jnp.array([0.9, 0.8, 0.3, 0.7, 0.2]), jnp.array([1, 1, 0, 0, 0])
        >>> print(round(float(GeometricMeanScore().update(preds, target).compute()), 4))
        0.8165
    """

    higher_is_better = True
    value_range = (0.0, 1.0)
    short_name = "gmean"

    def compute(self) -> PyTree:
        c = Counts.of(self.statistic)
        if self.num_classes is not None:
            correct, support = c.tp[:, None], c.positives[:, None]
        else:  # the positive and the negative class
            correct, support = stack([c.tp, c.tn]), stack([c.positives, c.negatives])
        # A class without examples has no recall: it adds log(1) = 0, and `number` leaves it out.
        occurs = support.high > 0
        # Logarithms, because a product of many recalls may underflow.
        logs = xp.log(xp.where(occurs, (correct / support).to_float(), 1))
        number = xp.sum(occurs.astype(logs.dtype), 0)
        value = xp.exp(xp.sum(logs, 0) / one_where_zero(number))
        value = nan_where(number == 0, value)
        return value if self.num_labels is not None else value[0]


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
        # Neither rate is defined without positives, nor without negatives.
        both_occur = (c.positives.high > 0) & (c.negatives.high > 0)

        def ratio(found: DoubleFloat, wrong: DoubleFloat) -> jax.Array:
            # (found / positives) / (wrong / negatives), as one quotient.
            value = ((found * c.negatives) / (wrong * c.positives)).to_float()
            value = nan_where(~both_occur, value)
            return value[0] if self.is_binary else value

        return {"positive": ratio(c.tp, c.fp), "negative": ratio(c.fn, c.tn)}


def _f_beta(c: Counts, beta: float) -> tuple[DoubleFloat, DoubleFloat]:
    if math.isinf(beta):
        return c.tp, c.positives
    # `beta` is cut at 2**40, because the square of a larger one could overflow. From there on, the
    # result equals recall in all its digits.
    square = min(beta, 2.0**40) ** 2
    hit = c.tp + c.tp * square
    return hit, hit + (c.fn * square + c.fp)
