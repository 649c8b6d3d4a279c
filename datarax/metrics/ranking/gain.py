"""Discounted cumulative gain, of graded relevance."""

from typing import Literal

import jax

from datarax._checks import positive_int
from datarax._typing import PyTree
from datarax._xp import xp
from datarax.metrics.ranking.queries import Queries, ranked_queries
from datarax.metrics.ranking.query_metric import QueryMetric, RelevanceMean
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.rankings import Ranking

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
    """How many documents of each query count; None for all."""
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

    def score(self, ranking: Ranking) -> DoubleFloat:
        return super().score(ranking) / super().score(ranking.best_first())
