"""Documents sorted by query and score, and sums over the documents of each query."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from datarax._checks import default_float, is_integer
from datarax._typing import PyTree
from datarax._xp import lax, on_host, replaced, xp
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.limbs import double_from_int
from datarax.numerics.sums import are_lines, run_sums

# The logarithm of a probability of zero: a finite number whose exponential is zero.
_LOG_ZERO = -1e5


class Ranking(NamedTuple):
    """The documents of queries along the last axis, by query, then by score, the highest first.

    The documents of a query are a run of places: those that have a rank, then those that were not
    retrieved, then those that do not count. Equal scores are ties. Their order is random, and each
    metric is the expected value over all orders. F. McSherry and M. Najork (2008),
    https://doi.org/10.1007/978-3-540-78646-7_38.
    """

    order: jax.Array
    """The place of each document in the arrays that were given, int32."""
    first: jax.Array
    """The mask of the places that begin the run of a query."""
    last: jax.Array
    """The mask of the places that end the run of a query."""
    first_tied: jax.Array
    """The mask of the places that begin a run of ties, which may be of one document."""
    last_tied: jax.Array
    """The mask of the places that end a run of ties."""
    counts: jax.Array
    """The mask of the documents that count."""
    ranked: jax.Array
    """The mask of those that were retrieved, so that they have a rank. The others that count are
    tied below all of these."""
    relevance: jax.Array
    """The relevance of each document, 0 where it does not count; floats."""
    rank: jax.Array
    """The number of the place in its query, from 1, int32."""
    above: jax.Array
    """The number of documents of the query that are above the ties of this one, int32."""
    tied: jax.Array
    """The number of documents in the ties of this one, itself included; at least 1."""
    relevant_above: jax.Array
    """The number of those above that are relevant."""
    relevant_tied: jax.Array
    """The number of those in the ties that are relevant."""
    documents: jax.Array
    """The number of documents of the query, at all its places."""
    relevant: jax.Array
    """The number of relevant documents of the query, at all its places."""

    @property
    def irrelevant(self) -> jax.Array:
        """The number of documents of the query that are not relevant, at all its places."""
        return self.documents - self.relevant

    def sum(self, terms: DoubleFloat, among: jax.Array | None = None) -> DoubleFloat:
        """The sum of the terms of the documents of a rank: at the first place of each query.

        Args:
            terms: by place.
            among: the mask of the places that are summed; by default `ranked`.
        """
        among = self.ranked if among is None else among
        return run_sums(_zero_unless(among, terms), self.first, self.last)

    def up_to(self, k: int | jax.Array | None, terms: DoubleFloat) -> DoubleFloat:
        """Terms where the rank is at most `k`, elsewhere 0; all terms if `k` is None."""
        if k is None:
            return terms
        lowest = as_rank(k) if isinstance(k, int) else k
        return _zero_unless(xp.less_equal(self.rank, lowest), terms)

    def tied_mean(self, x: jax.Array) -> DoubleFloat:
        """The mean of `x` over each run of ties: at its first place, with zero at the others."""
        return run_sums(x, self.first_tied, self.last_tied) / number(self.tied)

    def discounted(self, gain: jax.Array, k: int | None) -> DoubleFloat:
        """The sum of `gain / log2(1 + rank)` up to rank `k`: at the first place of each query."""
        return self.weighted(gain, lambda rank: 1 / xp.log2(1 + rank), k)

    def weighted(
        self, gain: jax.Array, weight: Callable[[jax.Array], jax.Array], k: int | None = None
    ) -> DoubleFloat:
        """The sum of `gain * weight(rank)` up to rank `k`: at the first place of each query."""
        discount = self.up_to(k, number(self.rank)).evaluated(
            lambda rank: xp.where(rank > 0, weight(xp.maximum(rank, 1)), 0)
        )
        # Over all orders of the ties, each gain has each discount equally often: the expected sum
        # is the mean gain times the sum of the discounts.
        discounts = run_sums(discount, self.first_tied, self.last_tied)
        return self.sum(self.tied_mean(gain) * discounts)

    def best_first(self) -> "Ranking":
        """All documents that count by relevance, each with a rank and ties of its own."""
        run = xp.cumsum(self.first, self.first.ndim - 1, dtype=xp.int32)
        _, least = lax.sort((run, -self.relevance), num_keys=2)
        # Documents of equal relevance have equal gains: their order does not matter.
        alone = xp.ones_like(self.first)
        return self._replace(
            relevance=-least,
            ranked=self.rank <= self.documents,
            first_tied=alone,
            last_tied=alone,
            tied=xp.ones_like(self.tied),
        )

    def before(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """How many of the documents above each place of its query, and of all, are in a mask."""
        alone = xp.ones_like(self.first)
        (above, _), (earlier, of_query) = in_runs(x, (alone, alone), (self.first, self.last))
        return above - earlier, of_query

    def with_ties(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """How many documents are in a mask: above the ties of each place, in them, and of all."""
        ties, query = (self.first_tied, self.last_tied), (self.first, self.last)
        (above, tied), (earlier, of_query) = in_runs(x, ties, query)
        return above - earlier, tied, of_query

    def product_above(self, log: jax.Array) -> DoubleFloat:
        """The product over the documents above each place of its query, from their logarithms."""
        above = xp.where(self.first, xp.zeros((), log.dtype), xp.roll(log, 1, -1))
        return _product_so_far(above, self.first)

    @property
    def chance(self) -> DoubleFloat:
        """The probability that the document at this rank is relevant."""
        return number(self.relevant_tied) / number(self.tied)

    @property
    def first_chance(self) -> DoubleFloat:
        """The probability that the document at this rank is the first relevant one.

        Of n tied documents, r of them relevant, the first i - 1 are all irrelevant with the
        product of `(n - r - j) / (n - j)` over j < i - 1.
        """
        place = self.rank - self.above
        left = self.tied - (place - 2)  # before the draw that precedes this place
        share = (number(self.relevant_tied) / number(xp.maximum(left, 1))).to_float()
        possible = (share < 1) | (place == 1)
        log = xp.where(place == 1, 0, xp.log1p(-xp.where(possible, share, 0)))
        log = xp.where(possible, log, xp.asarray(_LOG_ZERO, log.dtype))
        none = _product_so_far(log, self.first_tied)
        found = none * number(self.relevant_tied) / number(xp.maximum(left - 1, 1))
        return _zero_unless(self.relevant_above == 0, found)


def _product_so_far(log: jax.Array, first: jax.Array) -> DoubleFloat:
    """The product of each element and all before it in its run, from their logarithms."""
    # Sums from the first place of the run on are sums up to the last place of the reverse.
    backwards, ends = log[..., ::-1], first[..., ::-1]
    so_far = run_sums(backwards, xp.ones_like(ends), ends).map(lambda x: x[..., ::-1])
    return DoubleFloat.of(so_far.evaluated(xp.exp))


def _zero_unless(condition: jax.Array, x: DoubleFloat) -> DoubleFloat:
    return x.map(lambda part: replaced(condition, part, xp.zeros((), part.dtype)))


def number(x: jax.Array) -> DoubleFloat:
    """Integers as double-floats."""
    return double_from_int(x, default_float())


def as_rank(k: int) -> jax.Array:
    """A number of documents as an int32; one that does not fit is above all ranks."""
    return xp.int32(min(k, np.iinfo(np.int32).max))


def descending(scores: jax.Array) -> jax.Array:
    """A sort key that puts the highest scores first; equal for equal scores."""
    return ~scores if is_integer(scores) else -scores


NOT_RETRIEVED = 1
"""The group of documents that count, but have no rank; `ranking` takes them with equal keys."""


def ranking(
    query: jax.Array | None, group: jax.Array, key: jax.Array, relevance: jax.Array
) -> Ranking:
    """Ranks documents along the last axis; all arrays have one shape.

    Args:
        query: the query of each document, integers; None if there is one along each last axis.
        group: comes before the key: int8, at most 0 for documents of a rank, `NOT_RETRIEVED`, or
            above it for documents that do not count.
        key: from `descending`.
        relevance: floats; a document is relevant if it is positive.
    """
    axis, size = key.ndim - 1, key.shape[-1]
    place = lax.broadcasted_iota(xp.int32, key.shape, axis)
    keys = (group, key) if query is None else (query, group, key)
    *keys, relevance, order = lax.sort(
        (*keys, relevance, place), dimension=axis, num_keys=len(keys), is_stable=True
    )
    begins, ends = place == 0, place == size - 1

    def differs(x: jax.Array) -> jax.Array:
        return xp.concatenate([x[..., :1] != x[..., :1], x[..., 1:] != x[..., :-1]], -1)

    first = begins if query is None else begins | differs(keys[0])
    last = _before(first, ends)
    first_tied = first | differs(keys[-1]) | differs(keys[-2] > 0)
    last_tied = _before(first_tied, ends)
    counts, ranked = keys[-2] <= NOT_RETRIEVED, keys[-2] <= 0
    relevance = replaced(counts, relevance, 0)
    # Documents and relevant documents, in ties and in queries.
    each = xp.stack([counts, relevance > 0])
    of_ties, of_queries = in_runs(each, (first_tied, last_tied), (first, last))
    (above, relevant_above), (tied, relevant_tied) = of_ties
    (earlier, relevant_earlier), (documents, relevant) = of_queries
    start = 0 if query is None else lax.cummax(xp.where(first, place, 0), axis=axis)
    return Ranking(
        order=order,
        first=first,
        last=last,
        first_tied=first_tied,
        last_tied=last_tied,
        counts=counts,
        ranked=ranked,
        relevance=relevance,
        rank=place - start + 1,
        above=above - earlier,
        tied=xp.maximum(tied, 1),
        relevant_above=relevant_above - relevant_earlier,
        relevant_tied=relevant_tied,
        documents=documents,
        relevant=relevant,
    )


def _before(first: jax.Array, ends: jax.Array) -> jax.Array:
    """The places before those that begin a run, and the last."""
    return ends | xp.concatenate([first[..., 1:], ends[..., -1:]], -1)


def in_runs(x: jax.Array, *runs: tuple[jax.Array, jax.Array]) -> list[tuple[jax.Array, jax.Array]]:
    """Counts what is true before the run of each place along the last axis, and within it.

    Args:
        x: booleans.
        runs: for each way to divide the places into runs, which places begin one, and which end
            one. They broadcast against `x`.
    """
    if on_host(x, runs):
        total = lax.cumsum(x.astype(xp.int32), x.ndim - 1)
        return [_in_runs_on_host(x, total, *each) for each in runs]
    axis, each = x.ndim, x.astype(xp.int32)
    firsts, lasts = (
        xp.stack([lax.expand_dims(ends, range(x.ndim - ends.ndim)) for ends in of_each])
        for of_each in zip(*runs, strict=True)
    )
    counts = xp.stack([each] * len(runs))
    total = lax.cumsum(counts, axis)
    before = lax.cummax(xp.where(firsts, total - counts, 0), axis=axis)
    up_to = lax.cummin(xp.where(lasts, total, _MOST), axis=axis, reverse=True)
    return list(zip(before, up_to - before, strict=True))


_MOST = np.int32(np.iinfo(np.int32).max)


def _in_runs_on_host(
    x: PyTree, total: PyTree, first: PyTree, last: PyTree
) -> tuple[PyTree, PyTree]:
    """`in_runs` of one kind of runs in NumPy; `total` counts what is true up to each place."""
    if np.count_nonzero(first) == first.size:  # each place is a run
        return total - x, x.astype(np.int32)
    if are_lines(first):
        none, all_of_line = np.int32(0), total[..., -1:]
        return np.broadcast_to(none, x.shape), np.broadcast_to(all_of_line, x.shape)
    axis = x.ndim - 1
    before = lax.cummax(xp.where(first, total - x, 0), axis)
    up_to = lax.cummin(xp.where(last, total, _MOST), axis, reverse=True)
    return before, up_to - before
