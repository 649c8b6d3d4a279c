"""Metrics of recommendations: novelty, diversity, and coverage of the catalogue."""

from typing import ClassVar, Self

import jax
import numpy as np

from datarax._checks import as_float, integers, numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import at, xp
from datarax.algebra.fields import state
from datarax.algebra.rows import Target
from datarax.distributed.collectives import replicated
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.metric.base import Metric
from datarax.metrics.ranking.queries import Queries, cuts_with, ranked_queries, retrieved_only
from datarax.metrics.ranking.query_metric import RankedMean
from datarax.numerics.double_float import DoubleFloat, where
from datarax.numerics.rankings import Ranking, as_rank, number
from datarax.numerics.scaling import nan_where
from datarax.numerics.sums import run_sums
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import in_range
from datarax.statistics.cut_groups import CutGroups
from datarax.statistics.invalid_counts import InvalidCounts

_LEAST = float(np.finfo(np.float32).tiny)


class Recommended(RankedMean):
    """A `RankedMean` of the items of the highest scores."""

    k: int
    """The number of items that are recommended to each user."""

    def __post_init__(self) -> None:
        positive_int(self.k, "k")


class Novelty(Recommended):
    """The unexpectedness of the recommended items: their mean self-information, in bits.

    The mean over queries, for example users, of the mean of `-log2(popularity)` over the k items of
    the highest scores, or all if there are fewer. The popularity of an item is the probability that
    it is known: the fraction of users who have used it. A tie at rank k counts by its expected
    part. A query without items does not count. No data gives NaN. T. Zhou and others (2010),
    https://doi.org/10.1073/pnas.1000488107.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Novelty
        >>> preds, popularity = jnp.array([[0.9, 0.7, 0.5]]), jnp.array([[0.5, 0.125, 1.0]])
        >>> print(Novelty(k=2).update(preds, popularity).compute())
        2.0
    """

    terms_by_row = True

    def update(
        self,
        preds: ArrayLike,
        popularity: ArrayLike,
        *,
        valid: ArrayLike | None = None,
        retrieved: ArrayLike | None = None,
        query: ArrayLike | None = None,
        weights: Weights = None,
    ) -> Self:
        """A new metric with the queries folded in; no communication.

        Args:
            preds: scores of items, (Q, D), or (N,) with `query`.
            popularity: of each item, above 0 and at most 1; of the same shape.
            valid: the mask of the items that there are, of the same shape.
            retrieved: the mask of the items that can be recommended, of the same shape; an item
                that was not retrieved is as one that is not there.
            query: the query of each item (N,), as for `NDCG`.
            weights: of queries: (Q,), or with `query` (N,).

        Raises:
            MetricInputError: the shapes do not fit together; shows them.
            MetricTypeError: `query` is not of integers, or `valid` or `retrieved` is no mask.
        """
        return self.with_batch(preds, popularity, valid, retrieved, query, weights)

    def ranked(self, *given: PyTree) -> Queries:
        preds, popularity, valid, retrieved, *rest = given
        there = retrieved_only(preds, valid, retrieved)
        return ranked_queries(
            preds, popularity, there, None, *rest, least=_LEAST, greatest=1.0, name="popularity"
        )

    def undefined(self, ranking: Ranking) -> jax.Array:
        return ranking.documents == 0

    def score(self, ranking: Ranking) -> DoubleFloat:
        bits = -xp.log2(xp.where(ranking.counts, ranking.relevance, 1))
        k = as_rank(self.k)
        # How many of each run of ties are among the first k: which ones is random, so the expected
        # sum is that number times the mean of the run.
        taken = xp.clip(k - ranking.above, 0, ranking.tied)
        total = ranking.sum(ranking.tied_mean(bits) * number(taken))
        return total / number(xp.minimum(k, ranking.documents))


class IntraListDiversity(Recommended):
    """The difference of the items that are recommended together: their mean cosine distance.

    The mean over queries, for example users, of the mean of `1 - cos(a, b)` over all pairs of the k
    items of the highest scores, from embeddings of the items; 0 for items that are alike. Of tied
    items, the first in the order given are taken. A query with fewer than two items does not count,
    and an embedding of zeros is invalid. No data gives NaN. Within about 1e-6. B. Smyth and
    P. McClave (2001), https://doi.org/10.1007/3-540-44593-5_25; C.-N. Ziegler and others (2005),
    https://doi.org/10.1145/1060745.1060754.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import IntraListDiversity
        >>> preds = jnp.array([[0.9, 0.7, 0.5]])
        >>> embeddings = jnp.array([[[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]])
        >>> metric = IntraListDiversity(k=3).update(preds, embeddings)
        >>> print(round(float(metric.compute()), 4))
        0.6667
    """

    terms_by_row = True

    def update(
        self,
        preds: ArrayLike,
        embeddings: ArrayLike,
        *,
        valid: ArrayLike | None = None,
        retrieved: ArrayLike | None = None,
        query: ArrayLike | None = None,
        weights: Weights = None,
    ) -> Self:
        """A new metric with the queries folded in; no communication.

        Args:
            preds: scores of items, (Q, D), or (N,) with `query`.
            embeddings: of each item, (Q, D, F), or (N, F) with `query`.
            valid: the mask of the items that there are, of the shape of `preds`.
            retrieved: the mask of the items that can be recommended, of the shape of `preds`; an
                item that was not retrieved is as one that is not there.
            query: the query of each item (N,), as for `NDCG`.
            weights: of queries: (Q,), or with `query` (N,).

        Raises:
            MetricInputError: the shapes do not fit together; shows them.
            MetricTypeError: `query` is not of integers, or `valid` or `retrieved` is no mask.
        """
        return self.with_batch(preds, embeddings, valid, retrieved, query, weights)

    def undefined(self, ranking: Ranking) -> jax.Array:
        # With k = 1, no query has a pair.
        return xp.minimum(ranking.documents, xp.int32(min(self.k, 2))) < 2

    def scored(self, *given: PyTree) -> tuple[Queries, jax.Array]:
        preds, embeddings, valid, retrieved, *rest = given
        there = retrieved_only(preds, valid, retrieved)
        preds = numeric(preds, "preds", any_range=True)
        x = replicated(as_float(numeric(embeddings, "embeddings")))
        if x.ndim != preds.ndim + 1 or x.shape[:-1] != preds.shape:
            raise MetricInputError(
                f"preds of shape {preds.shape} and embeddings of shape {x.shape}; expected "
                f"embeddings of shape {(*preds.shape, 'F')}"
            )
        # Scaled first, so that no square overflows or underflows.
        greatest = xp.max(xp.abs(x), -1, keepdims=True, initial=0)
        usable = (greatest > 0) & xp.isfinite(greatest) & xp.all(xp.isfinite(x), -1, keepdims=True)
        x = xp.where(usable, x / xp.where(usable, greatest, 1), 0)
        unit = x / xp.sqrt(xp.maximum(xp.sum(x * x, -1, keepdims=True), _LEAST))
        queries = ranked_queries(preds, xp.where(usable[..., 0], 0, -1.0), there, None, *rest)
        unit = xp.moveaxis(queries.in_order(unit), -1, 0)
        return self.defined(queries, queries.by_row(self._distance(queries.ranking, unit)))

    def _distance(self, ranking: Ranking, unit: jax.Array) -> DoubleFloat:
        """The score of each query, from the unit vectors (F, Q, D) of its ranked items."""
        taken = ranking.counts & (ranking.rank <= as_rank(self.k))
        each = DoubleFloat.of(xp.where(taken[None], unit, 0))
        # The sum of the cosines of all pairs, of each item with itself too, is |sum(unit)|**2.
        runs = (xp.broadcast_to(x[None], each.shape) for x in (ranking.first, ranking.last))
        sums = run_sums(each, *runs)
        cosines = (sums * sums).sum(0) - ranking.sum((each * each).sum(0))
        items = ranking.sum(number(taken))
        pairs = items * (items - 1.0)
        one = DoubleFloat.of(xp.ones_like(ranking.relevance))
        # Queries without a pair are left out, but must not divide by zero.
        pairs = where(pairs > 0.0, pairs, one)
        return (pairs - cosines) / pairs


class CatalogCoverage(Metric):
    """The fraction of the catalogue that is recommended to anyone.

    (items that are among the k of the highest scores of any query) / (all items). Of tied items,
    the first in the order given are taken. It grows with the number of queries. No data gives NaN.
    M. Ge, C. Delgado-Battenfeld and D. Jannach (2010), https://doi.org/10.1145/1864708.1864761.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import CatalogCoverage
        >>> preds = jnp.array([[0.9, 0.7, 0.5], [0.9, 0.7, 0.5]])
        >>> items = jnp.array([[3, 1, 0], [3, 0, 1]])
        >>> print(CatalogCoverage(num_items=4, k=2).update(preds, items).compute())
        0.75
    """

    num_items: int
    """The number of items of the catalogue: their ids are from 0 to `num_items - 1`."""
    k: int
    """The number of items that are recommended to each user."""

    seen: MetricAccumulator = state()
    invalid = InvalidCounts()
    cuts = CutGroups()
    together_by: ClassVar[str | None] = "query"

    def __post_init__(self) -> None:
        positive_int(self.num_items, "num_items")
        positive_int(self.k, "k")
        self.seen = MetricAccumulator(np.zeros(self.num_items, np.int32), MetricReduceOp.max)

    def update(
        self,
        preds: ArrayLike,
        items: ArrayLike,
        *,
        valid: ArrayLike | None = None,
        retrieved: ArrayLike | None = None,
        query: ArrayLike | None = None,
        weights: Weights = None,
    ) -> Self:
        """A new metric with the queries folded in; no communication.

        Args:
            preds: scores of items, (Q, D), or (N,) with `query`.
            items: the id of each item, integers of the same shape.
            valid: the mask of the items that there are, of the same shape.
            retrieved: the mask of the items that can be recommended, of the same shape; an item
                that was not retrieved is as one that is not there.
            query: the query of each item (N,), as for `NDCG`.
            weights: of queries: (Q,), or with `query` (N,). Only whether they are zero matters.

        Raises:
            MetricInputError: the shapes do not fit together; shows them.
            MetricTypeError: `items` or `query` are not integers, or `valid` or `retrieved` is no
                mask.
        """
        ids = integers(items, "items", "integer ids", booleans=True)
        known = in_range(ids, self.num_items)
        queries = ranked_queries(
            preds,
            xp.where(known, 0.0, -1.0),
            retrieved_only(preds, valid, retrieved),
            None,
            query,
            weights,
            name="items",
        )
        ranking = queries.ranking
        ids = queries.in_order(replicated(xp.where(known, ids, 0).astype(xp.int32)))
        if queries.flat:
            # The weight of a query is at its first document.
            runs = xp.cumsum(ranking.first[0], dtype=xp.int32) - 1
            weight = at(xp.zeros_like(queries.weight))[runs].max(queries.weight)[runs][None]
        else:
            weight = queries.weight[:, None]
        taken = ranking.counts & (ranking.rank <= as_rank(self.k)) & weight.astype(xp.bool_)
        table = at(xp.zeros(self.num_items, xp.int32))[ids].max(taken.astype(xp.int32))
        changes = {"seen": self.seen.update(table), "invalid": self.invalid.update(queries.invalid)}
        if query is not None:
            changes["cuts"] = cuts_with(self.cuts, valid, query, weights)
        return self.replace(**changes)

    def compute(self) -> PyTree:
        found = xp.sum(self.seen.value, dtype=xp.int32)
        share = (number(found) / self.num_items).to_float()
        return nan_where(found == 0, share)

    def apply_at(self, calls: PyTree, target: Target) -> Self:
        if calls.by_name[1].get("query") is not None:
            raise MetricInputError(
                "CatalogCoverage: with query=, rows are items, which cannot be sliced or drawn "
                "alone; expected arrays of shape (Q, D)"
            )
        return super().apply_at(calls, target)
