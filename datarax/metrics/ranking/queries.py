"""Validates batches of queries and their documents, and ranks the documents of each query."""

from functools import reduce
from typing import NamedTuple

import jax

from datarax._checks import as_float, integers, is_integer, numeric, same_shape
from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import ArrayLike, Weights
from datarax._xp import at, lax, xp
from datarax.distributed.collectives import replicated
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.rankings import NOT_RETRIEVED, Ranking, descending, in_runs, ranking
from datarax.statistics.batches import rows_weight
from datarax.statistics.cut_groups import CutGroups
from datarax.statistics.invalid_counts import Invalid, is_nan, not_finite, out_of_range

# The groups of documents that do not count: they come after `NOT_RETRIEVED`.
_ABSENT, _WEIGHTLESS = NOT_RETRIEVED + 1, NOT_RETRIEVED + 2


class Queries(NamedTuple):
    """A checked batch of queries whose documents are ranked.

    Arrays by row have one entry for each row that was given: for each query, or in the flat form
    for each document. There, a query is at the row of one of its documents, and the other rows have
    weight zero.
    """

    ranking: Ranking
    """The documents, of shape (Q, D), or (1, N) in the flat form."""
    weight: jax.Array
    """The weight of the query of each row; zero if it is invalid."""
    invalid: Invalid
    """The queries that cannot be used, and whose given weight is not zero."""
    flat: bool
    """True if the batch was given in the flat form."""

    def by_row(self, x: jax.Array | DoubleFloat) -> jax.Array:
        """Returns the values at the first place of each query, by row."""
        x = x.to_float() if isinstance(x, DoubleFloat) else x
        return x[0] if self.flat else x[:, 0]

    def in_order(self, x: jax.Array) -> jax.Array:
        """Values by document as they were given, in the order of the ranking: (Q, D, ...)."""
        order = self.ranking.order
        if self.flat:
            return x[order[0]][None]
        if not x.shape[1]:  # a query without documents has a place for one
            x = xp.zeros((x.shape[0], 1, *x.shape[2:]), x.dtype)
        return xp.take_along_axis(x, lax.expand_dims(order, range(2, x.ndim)), 1)


def ranked_queries(
    preds: ArrayLike,
    target: ArrayLike,
    valid: ArrayLike | None,
    retrieved: ArrayLike | None,
    query: ArrayLike | None,
    weights: Weights,
    *,
    least: float = 0.0,
    greatest: float = 2.0**100,
    name: str = "target",
) -> Queries:
    """Checks a batch of queries, and ranks the documents of each.

    Args:
        preds: scores, which may be infinite: (Q, D), or (N,) with `query`.
        target: the relevance of each document, of the same shape.
        valid: the mask of the documents that there are, of the same shape; None for all.
        retrieved: the mask of the documents that have a rank, of the same shape; None for all.
        query: the query of each document, integers (N,).
        weights: of queries: (Q,), or in the flat form (N,), equal within each query.
        least: the least relevance that can be used.
        greatest: the greatest relevance that can be used.
        name: the name of `target` in messages.

    Raises:
        MetricInputError: the shapes do not fit together; shows them.
        MetricTypeError: the queries are not integers, or `valid` or `retrieved` is no mask.
    """
    scores, relevance = numeric(preds, "preds", any_range=True), numeric(target, name)
    same_shape(scores, relevance, ("preds", name))
    ids = None if query is None else _query_ids(query, scores)
    if ids is None and scores.ndim != 2:
        raise MetricInputError(
            f"preds of shape {scores.shape}; expected (Q, D), the documents of each query, or (N,) "
            f"with query=, the query of each document"
        )
    there = xp.ones(scores.shape, xp.bool_) if valid is None else mask_of(valid, "valid", scores)
    found = None if retrieved is None else mask_of(retrieved, "retrieved", scores)
    given = None if weights is None else numeric(weights, "weights")
    relevance, given = as_float(relevance), replicated(given)
    scores, relevance, there, found, ids = replicated((scores, relevance, there, found, ids))
    if found is not None:  # what was not retrieved has no score: all of it is tied
        scores = xp.where(found, scores, xp.zeros((), scores.dtype))
    bad = xp.isfinite(relevance) & ((relevance < least) | (relevance > greatest))
    unusable = not_finite(relevance) | out_of_range(bad, relevance)
    if not is_integer(scores):
        unusable |= is_nan(scores)
    key, unusable = descending(scores), unusable.where(there)
    if ids is not None:
        return _flat(ids, there, found, key, relevance, unusable, given)
    w, invalid = rows_weight(jax.tree.map(_greatest, unusable), given)
    group = _group(xp.zeros(there.shape, xp.int8), there, found)
    if not scores.shape[1]:  # a document that is not there, so that each query has a place
        missing = [(0, 0), (0, 1)]
        key, relevance = (xp.pad(x, missing) for x in (key, relevance))
        group = xp.pad(group, missing, constant_values=_ABSENT)
    return Queries(ranking(None, group, key, relevance), w, invalid, False)


def mask_of(x: ArrayLike, name: str, scores: jax.Array) -> jax.Array:
    """A mask of documents, of the shape of their scores.

    Raises:
        MetricInputError: it has another shape; shows both.
        MetricTypeError: it is not of booleans.
    """
    mask = numeric(x, name)
    if mask.dtype != xp.bool_:
        raise MetricTypeError(f"{name} has dtype {mask.dtype}; expected booleans")
    same_shape(mask, scores, (name, "preds"))
    return mask


def retrieved_only(
    preds: ArrayLike, valid: ArrayLike | None, retrieved: ArrayLike | None
) -> ArrayLike | None:
    """Returns the mask of the documents that there are and that were retrieved; None for all.

    Raises:
        MetricInputError: a mask has not the shape of `preds`; shows both.
        MetricTypeError: a mask is not of booleans.
    """
    if retrieved is None:
        return valid
    scores = numeric(preds, "preds", any_range=True)
    found = mask_of(retrieved, "retrieved", scores)
    return found if valid is None else mask_of(valid, "valid", scores) & found


def _group(of_ranked: jax.Array, there: jax.Array, retrieved: jax.Array | None) -> jax.Array:
    """The group of each document for `ranking`, from that which it has if it has a rank."""
    group = xp.where(there, of_ranked, xp.asarray(_ABSENT, of_ranked.dtype))
    if retrieved is None:
        return group
    without = there & ~retrieved & (of_ranked == xp.zeros((), of_ranked.dtype))
    return xp.where(without, xp.asarray(NOT_RETRIEVED, group.dtype), group)


def _greatest(x: jax.Array) -> jax.Array:
    """The greatest of each row: codes are at least 0, and -inf stands for no value."""
    return xp.max(x, 1, initial=0 if is_integer(x) else -xp.inf)


def _flat(
    ids: jax.Array,
    there: jax.Array,
    retrieved: jax.Array | None,
    key: jax.Array,
    relevance: jax.Array,
    unusable: Invalid,
    given: jax.Array | None,
) -> Queries:
    w, invalid = rows_weight(unusable, given)
    # A query is invalid if one of its documents is: the one with the greatest code comes first.
    # Then come those that have a rank, those that were not retrieved, those that are not there, and
    # those of weight zero.
    group = _group(-invalid.code, there, retrieved)
    if given is not None:
        given = xp.broadcast_to(given, w.shape)
        group = xp.where(given == xp.zeros((), given.dtype), xp.int32(_WEIGHTLESS), group)
    found = ranking(*(x[None] for x in (ids, group, key, relevance)))
    order, first = found.order[0], found.first[0]
    w, invalid = xp.where(first, w[order], xp.zeros((), w.dtype)), invalid[order]
    if given is not None:
        # The weight of each document is compared with that of the one before it.
        other = (group[order] < _WEIGHTLESS) & ~first & (given[order] != xp.roll(given[order], 1))
        ((_, others),) = in_runs(other[None], (found.first, found.last))
        invalid |= out_of_range(others[0] > 0)
        w = xp.where(others[0] > 0, xp.zeros((), w.dtype), w)
    return Queries(found, w, invalid.where(first), True)


def _query_ids(query: ArrayLike, scores: jax.Array) -> jax.Array:
    ids = integers(query, "query")
    if scores.ndim != 1 or ids.shape != scores.shape:
        raise MetricInputError(
            f"preds of shape {scores.shape} and query of shape {ids.shape}; expected both of shape "
            f"(N,). Leave query= out for preds of shape (Q, D)"
        )
    return ids


def cuts_with(
    cuts: CutGroups, valid: ArrayLike | None, query: ArrayLike, weights: Weights
) -> CutGroups:
    """Folds in the queries of a batch, from these arguments of its update."""
    ids = integers(query, "query")
    masks = [] if valid is None else [numeric(valid, "valid").astype(xp.bool_)]
    if weights is not None:
        masks.append(numeric(weights, "weights").astype(xp.bool_))
    masks = [x for x in masks if x.shape == ids.shape]
    counted = None if not masks else reduce(xp.logical_and, masks)
    return cuts.update(ids, counted) if ids.ndim == 1 else cuts


def first_rows(ids: jax.Array, counted: jax.Array) -> jax.Array:
    """For each row (N,), the first of the rows of its query that are counted."""
    place = xp.arange(ids.size, dtype=xp.int32)
    # By query, then the counted rows before the others, then by place.
    ids, _, order = lax.sort((ids, ~counted, place), num_keys=3)
    begins = (place == 0) | (ids != xp.roll(ids, 1))
    start = lax.cummax(xp.where(begins, place, 0))
    return at(xp.zeros_like(order))[order].set(order[start])
