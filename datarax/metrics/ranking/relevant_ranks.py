"""Metrics of the ranks of the relevant documents of each query."""

import jax

from datarax._checks import positive_int
from datarax._xp import xp
from datarax.metrics.ranking.query_metric import QueryMetric
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.rankings import Ranking, number


class UpToK(QueryMetric):
    """A metric of the relevant documents up to a rank."""

    k: int | None = None
    """How many documents of each query are retrieved; relevant ones of a greater rank are not
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

    def score(self, ranking: Ranking) -> DoubleFloat:
        irrelevant = number(ranking.irrelevant)
        above = ranking.above - ranking.relevant_above
        below = irrelevant - number(above) - number(ranking.tied - ranking.relevant_tied) * 0.5
        return ranking.sum(ranking.chance * below / irrelevant) / number(ranking.relevant)

    def undefined(self, ranking: Ranking) -> jax.Array:
        return (ranking.relevant == 0) | (ranking.irrelevant == 0)
