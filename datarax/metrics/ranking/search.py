"""Metrics of search engines: of incomplete judgements, of readers who stop, and the curve."""

from typing import Self

import jax
import numpy as np

from datarax._checks import as_float, numeric, positive_int, same_shape
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import at, xp
from datarax.algebra.fields import field
from datarax.distributed.collectives import replicated
from datarax.metrics.ranking.queries import Queries, mask_of, ranked_queries
from datarax.metrics.ranking.query_metric import QueryMetric, RelevanceMean
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.rankings import Ranking, number
from datarax.numerics.sums import run_prefix_maxima
from datarax.statistics.weighted_total import WeightedTotal

_EPSILON = 1e-5  # of inferred AP, as in trec_eval
_MOST_GRADE = 100  # so that no power of two overflows


class RBP(RelevanceMean):
    """Rank-biased precision: the relevant documents that a reader sees who may stop at each.

    The reader goes on from a document to the next with the probability `persistence`, so the score
    of a query is (1 - persistence) times the sum of persistence**(rank - 1) over the relevant
    documents; the mean over queries. Of ties, the expected value over their random order. A query
    without relevant documents has 0. No data gives NaN. A document is relevant or not, where
    trec_eval 10 takes grades. A. Moffat and J. Zobel (2008), https://doi.org/10.1145/1416950.1416952.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RBP
        >>> preds, target = jnp.array([[0.9, 0.7, 0.5, 0.3]]), jnp.array([[1, 0, 1, 0]])
        >>> print(RBP(persistence=0.5).update(preds, target).compute())
        0.625
    """

    value_range = (0.0, 1.0)
    persistence: float = 0.8
    """The probability of going on to the next document, at least 0 and below 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.persistence < 1:
            raise MetricInputError(
                f"persistence={self.persistence!r}; expected a number of at least 0 and below 1"
            )

    def score(self, ranking: Ranking) -> DoubleFloat:
        relevant = (ranking.relevance > 0).astype(ranking.relevance.dtype)
        p = self.persistence
        return ranking.weighted(relevant, lambda rank: (1 - p) * xp.power(p, rank - 1))


class ERR(RelevanceMean):
    """Expected reciprocal rank: of the document that satisfies a reader, who then stops.

    A document of grade g satisfies with the probability R = (2**g - 1) / 2**max_grade. The score of
    a query is the sum over ranks of R / rank times the product of 1 - R over the documents above;
    the mean over queries. Tied documents are taken in the order given. A query without relevant
    documents has 0, and one with a grade above `max_grade` is invalid. No data gives NaN. O.
    Chapelle, D. Metzler, Y. Zhang and P. Grinspan (2009), https://doi.org/10.1145/1645953.1646033.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ERR
        >>> preds, target = jnp.array([[0.9, 0.7, 0.5]]), jnp.array([[1, 0, 2]])
        >>> print(ERR(max_grade=2).update(preds, target).compute())
        0.4375
    """

    value_range = (0.0, 1.0)
    max_grade: int = field(kw_only=False)
    """The greatest grade of relevance that there is, from 1 to 100."""
    k: int | None = None
    """The number of documents of each query that count; None for all."""

    def __post_init__(self) -> None:
        positive_int(self.max_grade, "max_grade")
        if self.max_grade > _MOST_GRADE:
            raise MetricInputError(f"max_grade={self.max_grade}; expected at most {_MOST_GRADE}")
        if self.k is not None:
            positive_int(self.k, "k")

    def ranked(self, *given: PyTree) -> Queries:
        return ranked_queries(*given, greatest=float(self.max_grade))

    def score(self, ranking: Ranking) -> DoubleFloat:
        def satisfies(grade: jax.Array) -> jax.Array:
            return (xp.exp2(grade) - 1) * 2.0**-self.max_grade

        grade = DoubleFloat.of(ranking.relevance)
        # A document that cannot be used may have any grade.
        usable = grade.map(lambda x: xp.where(ranking.relevance <= self.max_grade, x, 0))
        goes_on = usable.evaluated(lambda x: xp.log1p(-satisfies(x)))
        stops = DoubleFloat.of(usable.evaluated(satisfies))
        terms = ranking.product_above(goes_on) * stops / number(ranking.rank)
        return ranking.sum(ranking.up_to(self.k, terms))


def _judged_queries(
    preds: ArrayLike, target: ArrayLike, judged: ArrayLike | None, *others: PyTree
) -> tuple[Queries, jax.Array]:
    """The ranked queries, and which of their documents in order were judged."""
    relevance = as_float(numeric(target, "target"))
    if judged is None:
        queries = ranked_queries(preds, relevance, *others)
        return queries, queries.ranking.counts
    scores = numeric(preds, "preds", any_range=True)
    same_shape(scores, relevance, ("preds", "target"))
    mask = mask_of(judged, "judged", scores)
    queries = ranked_queries(preds, xp.where(mask, relevance, 0), *others)
    return queries, queries.in_order(replicated(mask)) & queries.ranking.counts


class Bpref(QueryMetric):
    """Binary preference: how often judged documents are in the right order; others do not count.

    With R relevant and N judged irrelevant documents of a query: the sum over its retrieved
    relevant documents of 1 - min(n, R) / min(N, R), over R, where n is how many judged irrelevant
    documents are above; the mean over queries. Of ties, the expected value over their random order.
    No data gives NaN. As `bpref` of trec_eval, of documents without ties. C. Buckley and E. M.
    Voorhees (2004), https://doi.org/10.1145/1008992.1009000.

    Example:
        >>> import numpy as np
        >>> from datarax.metrics import Bpref
        >>> preds, target = np.array([[0.9, 0.7, 0.5, 0.3]]), np.array([[0, 0, 1, 1]])
        >>> judged = np.array([[True, False, True, True]])
        >>> print(Bpref().update(preds, target, judged=judged).compute())
        0.0
        >>> retrieved = np.array([[False, True, True, False]])
        >>> print(Bpref().update(preds, target, judged=judged, retrieved=retrieved).compute())
        0.5
    """

    value_range = (0.0, 1.0)

    def update(
        self,
        preds: ArrayLike,
        target: ArrayLike,
        *,
        valid: ArrayLike | None = None,
        retrieved: ArrayLike | None = None,
        judged: ArrayLike | None = None,
        query: ArrayLike | None = None,
        weights: Weights = None,
    ) -> Self:
        """A new metric with the queries folded in; no communication.

        Args:
            preds: scores of documents, (Q, D), or (N,) with `query`, as for `NDCG`.
            target: the relevance of each document, of the same shape.
            valid: the mask of the documents that there are, of the same shape.
            retrieved: the mask of the documents that were retrieved, of the same shape.
            judged: the mask of the documents that have a judgement, of the same shape; by default
                all. The target of the others is not looked at.
            query: the query of each document (N,), as for `NDCG`.
            weights: of queries: (Q,), or with `query` (N,).

        Raises:
            MetricInputError: the shapes do not fit together; shows them.
            MetricTypeError: `query` is not of integers, or a mask is not of booleans.
        """
        return self.with_batch(preds, target, valid, retrieved, judged, query, weights)

    def scored(self, *given: PyTree) -> tuple[Queries, jax.Array]:
        preds, target, valid, retrieved, judged, *rest = given
        queries, judged = _judged_queries(preds, target, judged, valid, retrieved, *rest)
        ranking = queries.ranking
        above, tied, irrelevant = ranking.with_ties(judged & (ranking.relevance == 0))
        # How many of n irrelevant documents of the ties are above a relevant one is equally often
        # 0, 1, ... n: the mean of min(above + i, R) over these, of which `below` are below R.
        relevant = number(ranking.relevant)
        below = xp.clip(ranking.relevant - above, 0, tied + 1)
        few = number(below) * (number(above) + number(xp.maximum(below - 1, 0)) * 0.5)
        mean = (few + number(tied + 1 - below) * relevant) / number(tied + 1)
        most = number(xp.clip(irrelevant, 1, xp.maximum(ranking.relevant, 1)))
        terms = ranking.chance * (1 - mean / most)
        return self.defined(queries, queries.by_row(ranking.sum(terms) / relevant))


class InferredAP(QueryMetric):
    """Inferred average precision: the estimate from judgements of a sample of the pool.

    The mean over the relevant documents of a query of the precision that is expected at their rank:
    (1 + P * (r + e) / (j + 2 e)) / rank, where above it are P documents of the pool, j judged ones
    and r relevant ones, and e is 0.00001. It is 0 for those that were not retrieved; the mean over
    queries. Tied documents are taken in the order given. No data gives NaN. As `infAP` of
    trec_eval. E. Yilmaz and J. A. Aslam (2006), https://doi.org/10.1145/1183614.1183633.

    Example:
        >>> import numpy as np
        >>> from datarax.metrics import InferredAP
        >>> preds, target = np.array([[0.9, 0.7, 0.5, 0.3]]), np.array([[1, 0, 0, 1]])
        >>> judged = np.array([[True, False, True, True]])
        >>> seen = InferredAP().update(preds, target, judged=judged, pooled=judged | True)
        >>> print(round(float(seen.compute()), 4))
        0.8125
    """

    value_range = (0.0, 1.0)

    def update(
        self,
        preds: ArrayLike,
        target: ArrayLike,
        *,
        valid: ArrayLike | None = None,
        retrieved: ArrayLike | None = None,
        judged: ArrayLike | None = None,
        pooled: ArrayLike | None = None,
        query: ArrayLike | None = None,
        weights: Weights = None,
    ) -> Self:
        """A new metric with the queries folded in; no communication.

        Args:
            preds: scores of documents, (Q, D), or (N,) with `query`, as for `NDCG`.
            target: the relevance of each document, of the same shape.
            valid: the mask of the documents that there are, of the same shape.
            retrieved: the mask of the documents that were retrieved, of the same shape.
            judged: the mask of the documents that have a judgement, of the same shape; by default
                all. The target of the others is not looked at.
            pooled: the mask of the documents in the pool of which a sample was judged, of the same
                shape; by default those that were judged, which are in the pool in any case.
            query: the query of each document (N,), as for `NDCG`.
            weights: of queries: (Q,), or with `query` (N,).

        Raises:
            MetricInputError: the shapes do not fit together; shows them.
            MetricTypeError: `query` is not of integers, or a mask is not of booleans.
        """
        return self.with_batch(preds, target, valid, retrieved, judged, pooled, query, weights)

    def scored(self, *given: PyTree) -> tuple[Queries, jax.Array]:
        preds, target, valid, retrieved, judged, pooled, *rest = given
        queries, judged = _judged_queries(preds, target, judged, valid, retrieved, *rest)
        ranking, in_pool = queries.ranking, judged
        if pooled is not None:
            mask = mask_of(pooled, "pooled", numeric(preds, "preds", any_range=True))
            in_pool = judged | (queries.in_order(replicated(mask)) & ranking.counts)
        relevant = ranking.relevance > 0
        each = xp.stack([relevant, judged, in_pool])
        (found, of_judged, of_pool), _ = ranking.before(each)
        share = (number(found) + _EPSILON) / (number(of_judged) + 2 * _EPSILON)
        terms = (number(of_pool) * share + 1.0) / number(ranking.rank)
        total = ranking.sum(terms, ranking.ranked & relevant)
        return self.defined(queries, queries.by_row(total / number(ranking.relevant)))


class RetrievalPrecisionRecallCurve(QueryMetric):
    """The interpolated precision at levels of recall, from 0 to 1; the mean over queries.

    `compute()` gives an array (num_levels,), at the recalls 0, 1 / (num_levels - 1), ... 1.
    Interpolated precision is the greatest precision at this recall or a higher one, and 0 where the
    recall is not reached. Tied documents are taken in the order given. No data gives NaN. As
    `iprec_at_recall` of trec_eval 9: a level is reached with int(level * R + 0.9) of R relevant
    documents, in the arithmetic of float64 up to R = 1000. C. D. Manning, P. Raghavan and H.
    Schuetze (2008), Introduction to Information Retrieval, 8.4.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RetrievalPrecisionRecallCurve
        >>> preds, target = jnp.array([[0.9, 0.7, 0.5, 0.3]]), jnp.array([[1, 0, 0, 1]])
        >>> print(RetrievalPrecisionRecallCurve(num_levels=3).update(preds, target).compute())
        [1.  1.  0.5]
    """

    value_range = (0.0, 1.0)
    num_levels: int = 11
    """The number of levels of recall, which are equally far apart."""

    def __post_init__(self) -> None:
        positive_int(self.num_levels, "num_levels", least=2)
        self.statistic = WeightedTotal((self.num_levels,))

    def scored(self, *given: PyTree) -> tuple[Queries, jax.Array]:
        queries = self.ranked(*given)
        ranking = queries.ranking
        relevant = ranking.ranked & (ranking.relevance > 0)
        found = ranking.before(relevant)[0] + relevant.astype(xp.int32)
        precision = (number(found) / number(ranking.rank)).to_float()
        precision = xp.where(relevant, precision, xp.zeros((), precision.dtype))
        # The greatest of each place and all below it.
        best = run_prefix_maxima(precision[..., ::-1], ranking.last[..., ::-1])[..., ::-1]
        best = xp.where(relevant, best, xp.zeros((), best.dtype))
        # By the number of relevant documents found: at so many places from the first of the query.
        place = xp.arange(best.size, dtype=xp.int32).reshape(best.shape)
        start = place - (ranking.rank - 1)
        index = start + xp.maximum(found, 1) - 1
        table = at(xp.zeros(best.size, best.dtype))[index.reshape(-1)].max(best.reshape(-1))
        needed = _documents_needed(queries.by_row(ranking.relevant), self.num_levels)
        at_levels = queries.by_row(start)[:, None] + xp.maximum(needed, 1) - 1
        return self.defined(queries, table[at_levels])


_TABLE = 1000


def _documents_needed(relevant: jax.Array, levels: int) -> jax.Array:
    """How many of (N,) relevant documents must be found for each level of recall: (N, levels)."""
    last, level = levels - 1, xp.arange(levels, dtype=xp.int32)[None]
    whole, rest = relevant[:, None] // last, relevant[:, None] % last
    exact = level * whole + (10 * level * rest + 9 * last) // (10 * last)
    # What the rounding of `level * relevant` to float64 takes away.
    places, counts = np.arange(levels), np.arange(_TABLE + 1)[:, None]
    rounded = np.floor(places / last * counts + 0.9).astype(np.int64)
    less = ((10 * places * counts + 9 * last) // (10 * last) - rounded).astype(np.int8)
    lowered = xp.take(less, xp.minimum(relevant, _TABLE), 0).astype(xp.int32)
    return exact - xp.where(relevant[:, None] <= _TABLE, lowered, 0)
