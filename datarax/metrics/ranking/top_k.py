"""Counts of relevant documents among the first of each query."""

import jax

from datarax._checks import positive_int
from datarax.algebra.fields import field
from datarax.metrics.ranking.query_metric import QueryMetric
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.rankings import Ranking, number


class TopK(QueryMetric):
    """A metric of the `k` documents of the highest scores."""

    k: int = field(kw_only=False)
    """How many documents of each query are retrieved."""

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

    def score(self, ranking: Ranking) -> DoubleFloat:
        found = ranking.sum(ranking.up_to(ranking.relevant, ranking.chance))
        return found / number(ranking.relevant)
