"""Tests that predictions and targets are not associated, by the correlations of their ranks."""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from datarax._typing import PyTree
from datarax._xp import beside, special, xp
from datarax.algebra.memo import computed_once
from datarax.metric.reading import Bounds
from datarax.metrics.regression.correlation import of_three, p_value_by_t
from datarax.metrics.regression.joint_bins import agreement_of_bins
from datarax.metrics.regression.rank_correlation import (
    KendallPairs,
    RankCorrelation,
    SpearmanRanks,
)
from datarax.numerics.scaling import power_of_two_near_reciprocal
from datarax.numerics.sums import sum_floats


class RankTest(RankCorrelation):
    """A rank correlation, and its p-value. A subclass defines `p_values`."""

    higher_is_better = None
    hidden_names = frozenset({"p_values"})

    def compute(self) -> PyTree:
        value = self.estimated().value
        return {"correlation": value, "p_value": self.p_values(value, value, value)[1]}

    def value_and_bounds(self) -> tuple[PyTree, Bounds]:
        value, bounds = super().value_and_bounds()
        low, high = bounds.ends
        sizes = xp.abs(low), xp.abs(high)
        nearest = xp.where((low <= 0) & (high >= 0), 0, xp.minimum(*sizes))
        found = self.p_values(nearest, value["correlation"], xp.maximum(*sizes))
        # The p-value falls as the correlation grows in size.
        most, p_value, least = found[0], value["p_value"], found[2]
        is_known, is_open = low == high, (low == -1) & (high == 1)
        least = xp.where(is_known, p_value, xp.where(is_open, 0, xp.minimum(least, p_value)))
        most = xp.where(is_known, p_value, xp.where(is_open, 1, xp.maximum(most, p_value)))
        return value, replace(
            bounds,
            lower={"correlation": low, "p_value": least},
            upper={"correlation": high, "p_value": most},
        )

    def p_values(self, nearest: jax.Array, value: jax.Array, farthest: jax.Array) -> jax.Array:
        """The greatest p-value, that of the value, and the least one, (3,).

        `nearest` and `farthest` are the least and the greatest size of the correlation.
        """
        raise TypeError(f"{type(self).__name__} does not define p_values()")


class SpearmanTest(RankTest, SpearmanRanks):
    """The test that predictions and targets are not associated, by Spearman's correlation.

    A dict: "correlation", r, as `SpearmanCorrCoef`, and "p_value", the probability that Student's t
    of n - 2 degrees of freedom is beyond `r * sqrt((n - 2) / (1 - r**2))` in size, for n examples
    (the total weight): the approximation of M. G. Kendall and A. Stuart (1973), which is good from
    about ten examples on. For n = 2 it is 1. NaN where either is constant, and for any other n
    below 3. Float weights count as repetitions, for which a p-value means little. All values are
    one population.

    Of more than `capacity` examples, the correlation is an estimate, and the p-value is that of the
    estimate. `bounds()` are certain to hold both, and `results` warns if they are wide. With
    `exact`, both are NaN.

    As `scipy.stats.spearmanr`. `SpearmanCorrCoef` shares its statistic in a `Collection`.

    Raises:
        MetricInputError: `capacity` is not a positive integer, or `bits` is not from 6 to 13.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SpearmanTest
        >>> preds, target = jnp.array([1.0, 2.0, 30.0, 4.0]), jnp.array([1.0, 2.0, 3.0, 4.0])
        >>> for name, value in SpearmanTest().update(preds, target).results().items():
        ...     print(name, round(value, 4))
        correlation 0.8
        p_value 0.2
    """

    def p_values(self, nearest: jax.Array, value: jax.Array, farthest: jax.Array) -> jax.Array:
        n = self.chosen(
            lambda: sum_floats(self.statistic.columns[2], (0,)).to_float(),
            lambda: self.statistic.table().weights.sum((0, 1)).to_float(),
        )
        return p_value_by_t(xp.stack([nearest, value, farthest]), n)


class Ties(NamedTuple):
    """What the p-value of Kendall's tau needs to know of the ties of both values; each is ()."""

    n: jax.Array
    """The number of examples."""
    least: jax.Array
    """The least `shared_order` of both, multiplied."""
    most: jax.Array
    """The greatest one."""
    are_none: jax.Array
    """True if there are no ties, and every example has weight one."""


def shared_order(share: jax.Array, different: jax.Array, n: jax.Array) -> jax.Array:
    """How often three examples are not all equal, divided by how often two of them differ.

    1 without ties, and at most 1.5, of two distinct values; less if a group of ties is split.

    Args:
        share: the share of all examples that each row stands for, (N,).
        different: the share of all examples that differ from each row, (N,).
        n: the number of examples.
    """
    own = share * different
    pairs, squares = (sum_floats(x, (0,)).to_float() for x in (own, own * different))
    one = 1 / xp.maximum(n, 3)
    return (2 - 3 * one - squares / xp.where(pairs > 0, pairs, 1)) / (1 - 2 * one)


_FEW = 33


@lru_cache
def _exact_p_values() -> np.ndarray:
    """The p-value of each number of discordant (or concordant) pairs, for up to 33 examples.

    Twice the share of the permutations of n with at most so many inversions, (34, 265). M. G.
    Kendall (1970), Rank Correlation Methods, chapter 5.
    """
    size = _FEW * (_FEW - 1) // 4 + 1  # up to half of all pairs
    counts: Any = np.zeros(size, object)  # of permutations, as exact integers
    counts[0] = 1
    table = np.ones((_FEW + 1, size))
    for n in range(2, _FEW + 1):
        # The last one of n has from 0 to n - 1 inversions with the others.
        up_to = np.cumsum(counts)
        counts = up_to.copy()
        counts[n:] -= up_to[:-n]
        table[n] = [min(1.0, 2 * k / math.factorial(n)) for k in np.cumsum(counts)]
    return table


def kendall_p_value(
    value: jax.Array, n: jax.Array, order: jax.Array, without_ties: jax.Array
) -> jax.Array:
    """The p-value of Kendall's tau-b `value` of `n` examples; `order` is the `shared_order`.

    The variance of the difference of concordant and discordant pairs is `n(n - 1)(n - 2) a / 9 +
    n(n - 1) b / 2`: `b` is how often two examples differ, of both values multiplied, and `a` how
    often three are not all equal. It is that of Kendall (1970), chapter 4, without cancellation.
    """
    size = xp.abs(value)
    z = 3 * size * xp.sqrt(n) * xp.sqrt((n - 1) / (4 * xp.maximum(n - 2, 1) * order + 18))
    found = special.erfc(z / 2**0.5)
    # The number of pairs with the rarer order, if there are no ties.
    rarer = xp.floor(n * (n - 1) * (1 - size) / 4 + 0.5)
    are_few, is_clear = (n <= _FEW) & (rarer >= 0), rarer <= 1  # false for NaN
    place = xp.where(without_ties & are_few, n, 2).astype(xp.int32)
    rare = xp.where(without_ties & are_few, rarer, 0).astype(xp.int32)
    of_few = beside(place, _exact_p_values().astype(found.dtype))[place, rare]
    # Of n! permutations, one has no inversion, and n - 1 have one.
    of_clear = xp.exp(math.log(2) - special.gammaln(n + 1 - xp.where(is_clear, rarer, 0)))
    exact = xp.where(are_few, of_few, of_clear)
    p_value = xp.where(without_ties & (are_few | is_clear), exact, found)
    return of_three(value, n, p_value)


class KendallTest(RankTest, KendallPairs):
    """The test that predictions and targets are not associated, by Kendall's tau-b.

    A dict: "correlation", tau-b, as `KendallTau`, and "p_value", the probability that independent
    orders agree or disagree at least so much. It is exact if there are no ties and all weights are
    0 or 1, for up to 33 examples, and if at most one pair is discordant (or concordant). Otherwise
    it is by the normal distribution, with the variance that the ties leave. NaN where either is
    constant, and for weights that are below 3 together and not 2. Float weights count as
    repetitions, for which a p-value means little. All values are one population.

    Of more than `capacity` examples, the correlation is an estimate, and the p-value is that of the
    estimate. `bounds()` are certain to hold both, and `results` warns if they are wide. With
    `exact`, both are NaN.

    As `scipy.stats.kendalltau`. `KendallTau` shares its statistic in a `Collection`.

    Raises:
        MetricInputError: `capacity` is not a positive integer, or `bits` is not from 6 to 13.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import KendallTest
        >>> preds, target = jnp.array([1.0, 2.0, 30.0, 4.0]), jnp.array([1.0, 2.0, 3.0, 4.0])
        >>> for name, value in KendallTest().update(preds, target).results().items():
        ...     print(name, round(value, 4))
        correlation 0.6667
        p_value 0.3333
    """

    hidden_names = frozenset({"ties"})

    def p_values(self, nearest: jax.Array, value: jax.Array, farthest: jax.Array) -> jax.Array:
        ties = self.ties()
        order = xp.stack([ties.most, ties.least, ties.least])
        return kendall_p_value(xp.stack([nearest, value, farthest]), ties.n, order, ties.are_none)

    @computed_once
    def ties(self) -> Ties:
        """The ties of both values."""
        return self.chosen(self._ties_of_pairs, self._ties_of_bins)

    def _ties_of_pairs(self) -> Ties:
        w, (_, *different), _ = self.sums()
        total = sum_floats(w, (0,)).to_float()
        one = power_of_two_near_reciprocal(xp.max(self.statistic.columns[2]))  # as `kept` scales
        n, some = total / one, xp.where(total > 0, total, 1)
        x, y = (shared_order(w / some, each / some, n) for each in different)
        alone = [xp.all((w == 0) | (total - each == one)) for each in different]
        return Ties(n, x * y, x * y, alone[0] & alone[1])

    def _ties_of_bins(self) -> Ties:
        # Values of one bin may differ, unless it holds one value.
        weights, is_tie = self.statistic.table()
        found, n = agreement_of_bins(weights), weights.sum((0, 1)).to_float()
        ends, alone = [], []
        for axis in (0, 1):
            own, share = (x.sum(1 - axis).to_float() for x in (weights, found.shares))
            different = found.different[axis]
            apart = xp.where(is_tie[axis], different, 1 - 1 / xp.maximum(n, 1))
            ends.append([shared_order(share, x, n) for x in (apart, different)])
            alone.append(xp.all((own == 0) | (own == 1)))
        (least, most), (least_y, most_y) = ends
        return Ties(n, least * least_y, most * most_y, alone[0] & alone[1])
