"""`QueryMetric`: the mean over queries of a score of the ranking of their documents."""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal, Self

import jax

from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import blocks_of_rows, xp
from datarax.algebra.rows import RowTerms, Target
from datarax.distributed.collectives import replicated
from datarax.metric.arguments import arguments
from datarax.metric.rows import counted_rows, replicated_target, updated_at
from datarax.metrics.probabilistic.mean_score import MeanScore
from datarax.metrics.ranking.queries import Queries, cuts_with, first_rows, ranked_queries
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.rankings import Ranking
from datarax.statistics.batches import rows_weight
from datarax.statistics.cut_groups import CutGroups
from datarax.statistics.invalid_counts import Invalid

Empty = Literal["skip", "zero", "one"]
"""The score of a query for which it is undefined; "skip": the query does not count."""


class QueryMean(MeanScore):
    """The weighted mean of the scores of queries. Queries that cannot be used are left out."""

    terms_by_row = True

    def update(self, scores: jax.Array, code: jax.Array, *, weights: Weights = None) -> Self:
        """Folds in scores (N, ...); those with a code other than 0 are invalid."""
        w, invalid = rows_weight(Invalid(code), weights)
        w = xp.broadcast_to(_beside(w, scores), scores.shape)
        return self.replace(statistic=self.statistic.add(scores, w, invalid))


def _beside(x: jax.Array, scores: jax.Array) -> jax.Array:
    """Values by row (N,), with the axes of a score."""
    return x.reshape(x.shape + (1,) * (scores.ndim - 1))


class RankedMean(MeanScore):
    """The weighted mean over queries of a score of their ranking, which a subclass defines."""

    together_by: ClassVar[str | None] = "query"
    cuts = CutGroups()
    empty: ClassVar[Empty] = "skip"
    """The score of a query for which it is undefined; "skip": the query does not count."""

    def score(self, ranking: Ranking) -> DoubleFloat:
        """The score of each query at the first place of its documents."""
        raise TypeError(f"{type(self).__name__} does not define score()")

    def undefined(self, ranking: Ranking) -> jax.Array | None:
        """Where queries have no score; None if all have one."""
        return None

    def ranked(self, *given: PyTree) -> Queries:
        """The checked and ranked batch of an update, from all of its arguments in order."""
        return ranked_queries(*given)

    def scored(self, *given: PyTree) -> tuple[Queries, jax.Array]:
        """The batch of an update, where queries without a score have weight zero; and the scores.

        The scores are by row, and finite.
        """
        queries = self.ranked(*given)
        return self.defined(queries, queries.by_row(self.score(queries.ranking)))

    def defined(self, queries: Queries, value: jax.Array) -> tuple[Queries, jax.Array]:
        """Returns what `scored` does for scores by row that may be undefined."""
        undefined, w = self.undefined(queries.ranking), queries.weight
        if undefined is not None:
            undefined = queries.by_row(undefined)
            instead = xp.asarray(self.empty == "one", value.dtype)
            value = xp.where(_beside(undefined, value), instead, value)
            if self.empty == "skip":
                w = xp.where(undefined, xp.zeros((), w.dtype), w)
        # The score of an invalid query may be any number.
        return queries._replace(weight=w), xp.where(_beside(w.astype(xp.bool_), value), value, 0)

    def with_batch(self, *given: PyTree) -> Self:
        """The metric updated with all arguments of `update`, in order."""
        _, _, valid, *_, query, weights = given
        if query is not None:
            cuts = cuts_with(self.cuts, valid, query, weights)
            return self.replace(cuts=cuts)._with_blocks([given])
        if isinstance(self.statistic.sums, RowTerms):
            return self._with_blocks([given])
        try:
            return self._with_blocks(blocks_of_rows(*given))
        except MetricInputError:  # an error shows the shapes of the whole batch
            return self._with_blocks([given])

    def _with_blocks(self, blocks: Iterable[Sequence[PyTree]]) -> Self:
        statistic = self.statistic
        for given in blocks:
            queries, scores = self.scored(*given)
            w = xp.broadcast_to(_beside(queries.weight, scores), scores.shape)
            statistic = statistic.add(scores, w, queries.invalid)
        return self.replace(statistic=statistic)

    def apply_at(self, calls: PyTree, target: Target) -> Self:
        _, given = calls.by_name
        if given.get("query") is None or not target.place.size:
            return super().apply_at(calls, target)
        # A query is ranked as a whole, and goes where the first of its documents goes.
        queries, scores = self.scored(*(given.get(name) for name, _ in arguments(self)))
        # A row of weight zero is never counted as invalid, so invalid queries get weight 1.
        w = xp.where(queries.invalid.mask, xp.ones((), queries.weight.dtype), queries.weight)
        counted = counted_rows(calls, scores.shape[0])
        ids, counted = replicated((xp.asarray(given["query"]), counted))
        row = first_rows(ids, counted)[queries.ranking.order[0]]
        target = replicated_target(target).each(lambda x: xp.take(x, row, 0))
        mean = QueryMean(on_invalid=self.on_invalid).with_parts({"statistic": self.statistic})
        calls = mean.calls((scores, queries.invalid.code), {"weights": w})
        return self.replace(statistic=updated_at(mean, calls, target).statistic)


class RelevanceMean(RankedMean):
    """A `RankedMean` of the relevance of documents."""

    terms_by_row = True
    higher_is_better = True
    tasks = ("ranking",)

    def update(
        self,
        preds: ArrayLike,
        target: ArrayLike,
        *,
        valid: ArrayLike | None = None,
        retrieved: ArrayLike | None = None,
        query: ArrayLike | None = None,
        weights: Weights = None,
    ) -> Self:
        """A new metric with the queries folded in; no communication.

        Args:
            preds: scores of documents, the highest first; they may be infinite. (Q, D), or (N,)
                with `query`.
            target: the relevance of each document, of the same shape: numbers of at least 0, or
                booleans. A document is relevant if it is above 0.
            valid: the mask of the documents that there are, of the same shape.
            retrieved: the mask of the documents that were retrieved, of the same shape. The others
                have no rank, and their scores are not looked at; they count among the documents
                and the relevant documents of their query.
            query: the query of each document (N,), integers in any order. All documents of a query
                must be in one update: inside `shard_map`, on one device. `per_device` raises if
                they are not, outside `jit`; elsewhere, each part counts as a query, and `results`
                gives a `CutGroupsWarning` if a query ends one update and begins another.
            weights: of queries: (Q,). With `query`, (N,), equal for all documents of a query; a
                document of weight zero is not there. A query of different weights is invalid.

        Raises:
            MetricInputError: the shapes do not fit together; shows them.
            MetricTypeError: `query` is not of integers, or `valid` or `retrieved` is no mask.
        """
        return self.with_batch(preds, target, valid, retrieved, query, weights)


class QueryMetric(RelevanceMean):
    """A `RelevanceMean` in which a query without relevant documents has no score."""

    empty: Empty = "skip"  # type: ignore[override]
    """A query without relevant documents does not count ("skip"), or its score is 0 or 1."""

    def undefined(self, ranking: Ranking) -> jax.Array | None:
        return ranking.relevant == 0
