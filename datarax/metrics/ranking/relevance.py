"""Scores of the ranking of each query by the relevance of its documents, or of its labels."""

from typing import Literal

import jax

from datarax._checks import positive_int
from datarax._typing import PyTree
from datarax._xp import xp
from datarax.algebra.fields import field
from datarax.metrics.ranking.queries import Queries, ranked_queries
from datarax.metrics.ranking.query_metric import QueryMetric, RelevanceMean
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.rankings import Ranking, number

# So that no sum of gains overflows.
_GREATEST = {"linear": 2.0**100, "exponential": 100.0}


class DCG(RelevanceMean):
    """Discounted cumulative gain: the gains of the documents, less the lower they are ranked.

    sum(gain / log2(1 + rank)) over the documents of a query, the mean over queries. Tied documents
    have the mean of their gains. A query without relevant documents has 0. No data gives NaN.

    As `sklearn.metrics.dcg_score`, with `gain="exponential"` of the gains `2**relevance - 1`.
    K. Jarvelin and J. Kekalainen (2002), https://doi.org/10.1145/582415.582418; the exponential
    gain is of C. Burges and others (2005), https://doi.org/10.1145/1102351.1102363.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import DCG
        >>> preds, target = jnp.array([[0.9, 0.7, 0.5]]), jnp.array([[3, 0, 1]])
        >>> print(DCG().update(preds, target).compute())
        3.5
    """

    k: int | None = None
    """The number of documents of each query that count; None for all."""
    gain: Literal["linear", "exponential"] = "linear"
    """"linear" takes the relevance, up to `2**100`, as gain; "exponential" takes
    `2**relevance - 1`, up to a relevance of 100. A greater one is invalid."""

    def __post_init__(self) -> None:
        if self.k is not None:
            positive_int(self.k, "k")

    def ranked(self, *given: PyTree) -> Queries:
        return ranked_queries(*given, greatest=_GREATEST[self.gain])

    def gains(self, relevance: jax.Array) -> jax.Array:
        """The gain of each document."""
        if self.gain == "linear":
            return relevance
        return DoubleFloat.of(relevance).evaluated(lambda x: xp.exp2(x) - 1)

    def score(self, ranking: Ranking) -> DoubleFloat:
        return ranking.discounted(self.gains(ranking.relevance), self.k)


class NDCG(DCG, QueryMetric):
    """Normalised discounted cumulative gain: `DCG` over that of the best ranking of the query.

    The mean over queries of sum(gain / log2(1 + rank)) over the same sum of the documents in the
    order of their relevance, both up to rank `k`. Tied documents have the mean of their gains. No
    data gives NaN.

    As `sklearn.metrics.ndcg_score`, where a query without relevant documents is 0: `empty="zero"`.
    And as `ndcg` and `ndcg_cut_k` of trec_eval, of documents without ties. K. Jarvelin and
    J. Kekalainen (2002), https://doi.org/10.1145/582415.582418.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import NDCG
        >>> preds, target = jnp.array([[0.9, 0.7, 0.5]]), jnp.array([[3, 0, 1]])
        >>> print(round(float(NDCG().update(preds, target).compute()), 4))
        0.9639
    """

    value_range = (0.0, 1.0)

    def score(self, ranking: Ranking) -> DoubleFloat:
        return super().score(ranking) / super().score(ranking.best_first())


class UpToK(QueryMetric):
    """A metric of the relevant documents up to a rank."""

    value_range = (0.0, 1.0)
    k: int | None = None
    """The number of retrieved documents of each query; relevant ones of a greater rank are not
    found. None for all."""

    def __post_init__(self) -> None:
        if self.k is not None:
            positive_int(self.k, "k")


class MRR(UpToK):
    """Mean reciprocal rank: one over the rank of the first relevant document.

    The mean over queries of 1 / rank, or of 0 if it is not among the first `k`. Of ties, the
    expected value over their random order. No data gives NaN. As `recip_rank` of trec_eval, of
    documents without ties. E. M. Voorhees (1999), The TREC-8 question answering track report.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import MRR
        >>> preds = jnp.array([[0.9, 0.7, 0.5], [0.9, 0.7, 0.5]])
        >>> target = jnp.array([[0, 1, 0], [1, 0, 1]])
        >>> print(MRR().update(preds, target).compute())
        0.75
    """

    def score(self, ranking: Ranking) -> DoubleFloat:
        terms = ranking.first_chance / number(ranking.rank)
        return ranking.sum(ranking.up_to(self.k, terms))


class RetrievalMAP(UpToK):
    """Mean average precision: the precision at the rank of each relevant document.

    The mean over queries of sum(precision at rank) / (relevant documents), where the sum is over
    the relevant documents up to rank `k`. Of ties, the expected value over their random order;
    `AveragePrecision` takes the precision at the end of the ties instead. No data gives NaN.
    As `map` and `map_cut_k` of trec_eval, of documents without ties. C. Buckley and E. M. Voorhees
    (2000), https://doi.org/10.1145/345508.345543.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RetrievalMAP
        >>> preds, target = jnp.array([[0.9, 0.7, 0.5, 0.3]]), jnp.array([[1, 0, 0, 1]])
        >>> print(RetrievalMAP().update(preds, target).compute())
        0.75
    """

    short_name = "map"

    def score(self, ranking: Ranking) -> DoubleFloat:
        # If the document at the i-th place of n tied ones is relevant, so are, by expectation,
        # (i - 1) (r - 1) / (n - 1) of those before it.
        others = number(ranking.rank - ranking.above - 1) / number(xp.maximum(ranking.tied - 1, 1))
        found = number(ranking.relevant_above + 1) + others * number(ranking.relevant_tied - 1)
        terms = ranking.chance * found / number(ranking.rank)
        return ranking.sum(ranking.up_to(self.k, terms)) / number(ranking.relevant)


class RetrievalAUROC(QueryMetric):
    """The area under the ROC curve of each query: how often a relevant document is ranked higher.

    The mean over queries of the fraction of pairs of a relevant and an irrelevant document in which
    the relevant one has the higher score; a tie counts half. A query without relevant or without
    irrelevant documents is what `empty` says. No data gives NaN. As
    `sklearn.metrics.roc_auc_score` of each query. J. A. Hanley and B. J. McNeil (1982),
    https://doi.org/10.1148/radiology.143.1.7063747.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RetrievalAUROC
        >>> preds, target = jnp.array([[0.9, 0.7, 0.5, 0.3]]), jnp.array([[1, 0, 1, 0]])
        >>> print(RetrievalAUROC().update(preds, target).compute())
        0.75
    """

    value_range = (0.0, 1.0)

    def score(self, ranking: Ranking) -> DoubleFloat:
        # For each relevant document: the irrelevant ones below it, and half of those tied with it.
        irrelevant = number(ranking.irrelevant)
        above = ranking.above - ranking.relevant_above
        below = irrelevant - number(above) - number(ranking.tied - ranking.relevant_tied) * 0.5
        terms = ranking.chance * below / irrelevant
        return ranking.sum(terms, ranking.counts) / number(ranking.relevant)

    def undefined(self, ranking: Ranking) -> jax.Array:
        return (ranking.relevant == 0) | (ranking.irrelevant == 0)


class TopK(QueryMetric):
    """A metric of the `k` documents of the highest scores."""

    value_range = (0.0, 1.0)
    k: int = field(kw_only=False)
    """The number of retrieved documents of each query."""

    def __post_init__(self) -> None:
        positive_int(self.k, "k")


class PrecisionAtK(TopK):
    """The fraction of the first k documents that are relevant.

    (relevant documents up to rank k) / k, also for queries of fewer than k documents. The mean over
    queries. A tie at rank k counts by its expected part: two of four tied documents are retrieved,
    so each counts half. No data gives NaN. As `P_k` of trec_eval. C. D. Manning, P. Raghavan and
    H. Schuetze (2008), Introduction to Information Retrieval, 8.4.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PrecisionAtK
        >>> preds, target = jnp.array([[0.9, 0.7, 0.5, 0.3]]), jnp.array([[1, 0, 1, 0]])
        >>> print(PrecisionAtK(k=2).update(preds, target).compute())
        0.5
    """

    def score(self, ranking: Ranking) -> DoubleFloat:
        return ranking.sum(ranking.up_to(self.k, ranking.chance)) / self.k


class RecallAtK(TopK):
    """The fraction of the relevant documents that are among the first k.

    (relevant documents up to rank k) / (relevant documents), the mean over queries. A tie at rank k
    counts by its expected part. No data gives NaN. As `recall_k` of trec_eval. C. D. Manning,
    P. Raghavan and H. Schuetze (2008), Introduction to Information Retrieval, 8.4.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RecallAtK
        >>> preds, target = jnp.array([[0.9, 0.7, 0.5, 0.3]]), jnp.array([[1, 0, 1, 0]])
        >>> print(RecallAtK(k=3).update(preds, target).compute())
        1.0
    """

    def score(self, ranking: Ranking) -> DoubleFloat:
        return ranking.sum(ranking.up_to(self.k, ranking.chance)) / number(ranking.relevant)


class HitRate(TopK):
    """The fraction of queries with a relevant document among the first k.

    Of a query whose ties make it a matter of chance, the probability of a hit. No data gives NaN.
    As `success_k` of trec_eval, of documents without ties. M. Deshpande and G. Karypis (2004),
    https://doi.org/10.1145/963770.963776.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import HitRate
        >>> preds = jnp.array([[0.9, 0.7, 0.5], [0.9, 0.7, 0.5]])
        >>> target = jnp.array([[0, 1, 0], [0, 0, 1]])
        >>> print(HitRate(k=2).update(preds, target).compute())
        0.5
    """

    def score(self, ranking: Ranking) -> DoubleFloat:
        # One document at most is the first relevant one, so the probabilities add up.
        return ranking.sum(ranking.up_to(self.k, ranking.first_chance))


class FallOut(TopK):
    """The fraction of the irrelevant documents that are among the first k; less is better.

    (irrelevant documents up to rank k) / (irrelevant documents), the mean over queries. A query
    without irrelevant documents is what `empty` says. A tie at rank k counts by its expected part.
    No data gives NaN. Not in scikit-learn. D. D. Lewis (1991),
    https://doi.org/10.3115/112405.112471.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import FallOut
        >>> preds, target = jnp.array([[0.9, 0.7, 0.5, 0.3]]), jnp.array([[1, 0, 1, 0]])
        >>> print(FallOut(k=2).update(preds, target).compute())
        0.5
    """

    higher_is_better = False

    def score(self, ranking: Ranking) -> DoubleFloat:
        # The probability that the document at this rank is irrelevant.
        miss = number(ranking.tied - ranking.relevant_tied) / number(ranking.tied)
        return ranking.sum(ranking.up_to(self.k, miss)) / number(ranking.irrelevant)

    def undefined(self, ranking: Ranking) -> jax.Array:
        return ranking.irrelevant == 0


class RPrecision(QueryMetric):
    """The precision at rank R, where R is how many relevant documents the query has.

    (relevant documents up to rank R) / R, which is also the recall at R; the mean over queries. A
    tie at rank R counts by its expected part. No data gives NaN. As `Rprec` of trec_eval. C. D.
    Manning, P. Raghavan and H. Schuetze (2008), Introduction to Information Retrieval, 8.4.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RPrecision
        >>> preds, target = jnp.array([[0.9, 0.7, 0.5, 0.3]]), jnp.array([[1, 0, 1, 0]])
        >>> print(RPrecision().update(preds, target).compute())
        0.5
    """

    value_range = (0.0, 1.0)

    def score(self, ranking: Ranking) -> DoubleFloat:
        found = ranking.sum(ranking.up_to(ranking.relevant, ranking.chance))
        return found / number(ranking.relevant)


# Rankings of the labels of an example. A tie counts as the worse order, as in scikit-learn.


class CoverageError(QueryMetric):
    """The number of labels to take, from the highest score on, to have all relevant ones.

    The mean over examples of the rank of the lowest relevant label; labels that are tied with it
    count too. The best value is the mean number of relevant labels. An example without relevant
    labels has 0, unless `empty` says otherwise. No data gives NaN. As
    `sklearn.metrics.coverage_error`. G. Tsoumakas, I. Katakis and I. Vlahavas (2010),
    https://doi.org/10.1007/978-0-387-09823-4_34.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import CoverageError
        >>> preds, target = jnp.array([[0.9, 0.7, 0.5]]), jnp.array([[1, 1, 0]])
        >>> print(CoverageError().update(preds, target).compute())
        2.0
    """

    higher_is_better = False
    empty = "zero"

    def score(self, ranking: Ranking) -> DoubleFloat:
        # A label is taken as long as not all relevant labels have higher scores.
        needed = ranking.relevant_above < ranking.relevant
        return ranking.sum(number(needed), ranking.counts)


class LabelRankingLoss(QueryMetric):
    """The fraction of pairs of a relevant and an irrelevant label in the wrong order; 0 is best.

    A tie is the wrong order. The mean over examples. An example without irrelevant labels has 0,
    and so has one without relevant labels, unless `empty` says otherwise. No data gives NaN. As
    `sklearn.metrics.label_ranking_loss`. G. Tsoumakas, I. Katakis and I. Vlahavas (2010),
    https://doi.org/10.1007/978-0-387-09823-4_34.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import LabelRankingLoss
        >>> preds, target = jnp.array([[0.9, 0.7, 0.5, 0.3]]), jnp.array([[1, 0, 1, 0]])
        >>> print(LabelRankingLoss().update(preds, target).compute())
        0.25
    """

    value_range = (0.0, 1.0)
    higher_is_better = False
    empty = "zero"

    def score(self, ranking: Ranking) -> DoubleFloat:
        # For each relevant label, the irrelevant ones that are above it or tied with it.
        not_below = ranking.above + ranking.tied - ranking.relevant_above - ranking.relevant_tied
        # Without irrelevant labels, all terms are 0.
        terms = ranking.chance * number(not_below) / number(ranking.irrelevant.clip(1))
        return ranking.sum(terms, ranking.counts) / number(ranking.relevant)


class LabelRankingAveragePrecision(QueryMetric):
    """For each relevant label, the fraction of labels ranked as high that are relevant too.

    The mean over the relevant labels of an example, and the mean over examples. Tied labels all
    have the lowest rank of the tie. An example with only relevant labels has 1, and so has one
    without relevant labels, unless `empty` says otherwise. No data gives NaN. As
    `sklearn.metrics.label_ranking_average_precision_score`. R. E. Schapire and Y. Singer (2000),
    https://doi.org/10.1023/A:1007649029923.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import LabelRankingAveragePrecision
        >>> preds, target = jnp.array([[0.9, 0.7, 0.5, 0.3]]), jnp.array([[1, 0, 0, 1]])
        >>> print(LabelRankingAveragePrecision().update(preds, target).compute())
        0.75
    """

    value_range = (0.0, 1.0)
    empty = "one"

    def score(self, ranking: Ranking) -> DoubleFloat:
        relevant = number(ranking.relevant_above + ranking.relevant_tied)
        precision = relevant / number(ranking.above + ranking.tied)
        return ranking.sum(ranking.chance * precision) / number(ranking.relevant)
