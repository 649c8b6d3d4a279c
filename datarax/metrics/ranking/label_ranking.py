"""Rankings of the labels of an example, where a tie counts as the worse order."""

from datarax.metrics.ranking.query_metric import QueryMetric
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.rankings import Ranking, number


class CoverageError(QueryMetric):
    """How many labels must be taken, from the highest score on, to have all relevant ones.

    The mean over examples of the rank of the lowest relevant label; labels that are tied with it
    count too. The best value is the mean number of relevant labels. No data gives NaN. As
    `sklearn.metrics.coverage_error`, where an example without relevant labels is 0:
    `empty="zero"`. G. Tsoumakas, I. Katakis and I. Vlahavas (2010),
    https://doi.org/10.1007/978-0-387-09823-4_34.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import CoverageError
        >>> preds, target = jnp.array([[0.9, 0.7, 0.5]]), jnp.array([[1, 1, 0]])
        >>> print(CoverageError().update(preds, target).compute())
        2.0
    """

    higher_is_better = False

    def score(self, ranking: Ranking) -> DoubleFloat:
        # A label is taken as long as not all relevant labels have higher scores.
        needed = ranking.relevant_above < ranking.relevant
        return ranking.sum(number(needed))


class LabelRankingLoss(QueryMetric):
    """The fraction of pairs of a relevant and an irrelevant label in the wrong order; 0 is best.

    A tie is the wrong order. The mean over examples; an example without irrelevant labels has 0. No
    data gives NaN. As `sklearn.metrics.label_ranking_loss`, where an example without relevant
    labels is 0 too: `empty="zero"`. G. Tsoumakas, I. Katakis and I. Vlahavas (2010),
    https://doi.org/10.1007/978-0-387-09823-4_34.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import LabelRankingLoss
        >>> preds, target = jnp.array([[0.9, 0.7, 0.5, 0.3]]), jnp.array([[1, 0, 1, 0]])
        >>> print(LabelRankingLoss().update(preds, target).compute())
        0.25
    """

    higher_is_better = False

    def score(self, ranking: Ranking) -> DoubleFloat:
        # For each relevant label, the irrelevant ones that are above it or tied with it.
        not_below = ranking.above + ranking.tied - ranking.relevant_above - ranking.relevant_tied
        # Without irrelevant labels, all terms are 0.
        terms = ranking.chance * number(not_below) / number(ranking.irrelevant.clip(1))
        return ranking.sum(terms) / number(ranking.relevant)


class LabelRankingAveragePrecision(QueryMetric):
    """For each relevant label, the fraction of labels ranked as high that are relevant too.

    The mean over the relevant labels of an example, and the mean over examples. Tied labels all
    have the lowest rank of the tie. No data gives NaN. As
    `sklearn.metrics.label_ranking_average_precision_score`, where an example without relevant
    labels is 1: `empty="one"`. R. E. Schapire and Y. Singer (2000),
    https://doi.org/10.1023/A:1007649029923.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import LabelRankingAveragePrecision
        >>> preds, target = jnp.array([[0.9, 0.7, 0.5, 0.3]]), jnp.array([[1, 0, 0, 1]])
        >>> print(LabelRankingAveragePrecision().update(preds, target).compute())
        0.75
    """

    def score(self, ranking: Ranking) -> DoubleFloat:
        relevant = number(ranking.relevant_above + ranking.relevant_tied)
        precision = relevant / number(ranking.above + ranking.tied)
        return ranking.sum(ranking.chance * precision) / number(ranking.relevant)
