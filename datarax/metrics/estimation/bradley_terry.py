"""Ratings of players from the outcomes of their games: the model of Bradley and Terry."""

from dataclasses import replace
from statistics import NormalDist
from typing import Self

import jax

from datarax._checks import (
    as_float,
    checked_confidence,
    integers,
    numeric,
    positive_int,
    same_shape,
)
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import lax, special, xp
from datarax.algebra.fields import field, state
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.metric.reading import Reading
from datarax.metric.unusable import Undefined
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import whole_or_float
from datarax.numerics.products import matrix_product
from datarax.numerics.scaling import nan_where
from datarax.statistics.batches import in_range, least_weight, rows_weight
from datarax.statistics.invalid_counts import CountsInvalid, not_finite, out_of_range
from datarax.statistics.scatter_counts import ScatterCounts

_MOST_STEPS = 200  # of Newton's method, which takes about ten where no player almost always wins
_OUTSIDE = (
    "no rating of the players {}: a rating needs a player that wins and loses, directly or along a "
    "chain of games, against the others. More games of these players give them ratings"
)


class Games(CountsInvalid, kw_only=False):
    """The weight of games by outcome: (2, K, K), wins of the row over the column, and ties.

    Each game adds to one cell, in place. Games with an id out of range, of a player with itself, or
    with another outcome than 0, 0.5 and 1 are excluded and counted in `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.estimation.bradley_terry import Games
        >>> seen = Games(2).update(jnp.array([0, 1]), jnp.array([1, 0]), jnp.array([1, 0.5]))
        >>> print(seen.table.value)
        [[[0. 1.]
          [0. 0.]]
        <BLANKLINE>
         [[0. 0.]
          [1. 0.]]]
    """

    num_players: int
    """The number of players, numbered from 0."""

    table: ScatterCounts = state()

    def __post_init__(self) -> None:
        positive_int(self.num_players, "num_players", least=2)
        self.table = ScatterCounts((2, self.num_players, self.num_players))

    def update(
        self, first: ArrayLike, second: ArrayLike, outcome: ArrayLike, *, weights: Weights = None
    ) -> Self:
        """Folds in games, all arguments of one shape (...).

        Raises:
            MetricInputError: the shapes differ; shows both.
            MetricTypeError: ids that are not integers, or outcomes that are not numbers.
        """
        first, second = integers(first, "first"), integers(second, "second")
        result = as_float(numeric(outcome, "outcome"))
        same_shape(first, second, ("first", "second"))
        same_shape(first, result, ("first", "outcome"))
        # Some devices make subnormal numbers 0.
        is_tie, is_won, is_lost = result == 0.5, result == 1, xp.abs(result) < least_weight()
        unusable = out_of_range(~in_range(first, self.num_players), first)
        unusable |= out_of_range(~in_range(second, self.num_players), second)
        unusable |= out_of_range(first == second, first) | not_finite(result)
        unusable |= out_of_range(xp.isfinite(result) & ~(is_tie | is_won | is_lost), result)
        w, invalid = rows_weight(unusable, weights)
        # Ids that cannot be used have weight zero, but must be indices: they become 0.
        first, second = (xp.where(unusable.mask, 0, x.astype(xp.int32)) for x in (first, second))
        row, column = xp.where(is_lost, second, first), xp.where(is_lost, first, second)
        size = xp.int32(self.num_players)
        row = xp.where(is_tie, row + size, row)  # ties are the second half of the table
        return self.with_batch(invalid, table=self.table.add(row * size + column, w))


class BradleyTerry(Metric):
    """Ratings of players, such as models in an arena, from the outcomes of their games.

    In the model of Bradley and Terry, player i beats player j with the probability
    `1 / (1 + exp(rating[j] - rating[i]))`. The ratings are those of greatest likelihood. A tie
    counts as half a win of each. Multiplied by `400 / log(10)` they are on the scale of Elo.

    A dict: "rating" (K,), in natural logarithms, with the mean 0; "std_error" (K,), from the Fisher
    information, for ratings with the mean 0; "lower" and "upper" (K,), the normal interval
    `rating ± z * std_error`; and "wins" (K, K), how often the row has beaten the column, with half
    of the ties.

    A player that never wins, or never loses, has no finite rating. So only players of the largest
    group in which each beats each other one, directly or along a chain, get ratings, and the mean
    over this group is 0; of groups of equal size it is the one with the lowest id. Others are NaN,
    and reading the result outside `jit` warns and names them (`PrecisionWarning`). No data gives
    NaN, and zeros for "wins".

    A game of weight 2 counts as two games. The state has `2 K**2` counts, which are exact; the
    ratings are found by Newton's method when the result is read, in float64 where there is one.
    They are accurate while all ratings of the group are within about 30 of each other.

    R. A. Bradley and M. E. Terry (1952), Rank analysis of incomplete block designs,
    https://doi.org/10.2307/2334029; the condition on groups is that of L. R. Ford (1957), Solution
    of a ranking problem from binary comparisons, https://doi.org/10.2307/2308513. Length of a step:
    T. Sun and Q. Tran-Dinh (2019), Generalized self-concordant functions,
    https://arxiv.org/abs/1703.04599.

    Raises:
        MetricInputError: `num_players` is not an integer of at least 2, or `confidence` is not
            between 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import BradleyTerry
        >>> first, second = jnp.array([0, 0, 0, 1, 1]), jnp.array([1, 1, 1, 2, 2])
        >>> outcome = jnp.array([1.0, 1.0, 0.0, 1.0, 0.5])
        >>> for name, value in BradleyTerry(3).update(first, second, outcome).results().items():
        ...     print(name, value.round(3).tolist())
        lower [-1.095, -1.198, -3.242]
        rating [0.828, 0.135, -0.963]
        std_error [0.981, 0.68, 1.163]
        upper [2.752, 1.469, 1.315]
        wins [[0.0, 2.0, 0.0], [1.0, 0.0, 1.5], [0.0, 0.5, 0.0]]
    """

    num_players: int = field(kw_only=False)
    """The number of players, K, which are numbered from 0."""
    confidence: float = 0.95
    """The probability with which the interval of a player covers its rating."""

    statistic: Games = state()

    def __post_init__(self) -> None:
        self.confidence = checked_confidence(self.confidence, "BradleyTerry")
        self.statistic = Games(self.num_players)

    @shareable
    def update(
        self, first: ArrayLike, second: ArrayLike, outcome: ArrayLike, *, weights: Weights = None
    ) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            first: the id of one player of each game, an integer from 0 to K - 1, of any shape.
            second: the id of the other player, of the same shape. An id out of range is invalid,
                and so is a game of a player with itself.
            outcome: 1 if the first player has won, 0 if the second has, 0.5 for a tie; of the same
                shape. Any other number is invalid.
            weights: broadcast against the leading axes, and count as repetitions.

        Raises:
            MetricInputError: the shapes differ; shows both.
            MetricTypeError: ids that are not integers, or outcomes that are not numbers.
        """
        seen = self.statistic.update(first, second, outcome, weights=weights)
        return self.replace(statistic=seen)

    def wins(self) -> DoubleFloat:
        """Games the row has won against the column, with half of the ties; zeros without games."""
        table = self.statistic.table.double
        ties = table[1]
        return table[0] + (ties + ties.map(xp.transpose)) * 0.5

    def compute(self) -> dict[str, PyTree]:
        wins = self.wins()
        no_games = ~(wins.reshape(-1).sum().high > 0)
        rating, error = wins.map(lambda x: nan_where(no_games, x)).evaluated(_fitted)
        half = NormalDist().inv_cdf((1 + self.confidence) / 2) * error
        return {
            "rating": rating,
            "std_error": error,
            "lower": rating - half,
            "upper": rating + half,
            "wins": whole_or_float(wins),
        }

    def reading(self) -> Reading:
        whole = super().reading()
        outside = xp.isnan(whole.value["rating"])
        outside = outside & (self.statistic.table.double.reshape(-1).sum().high > 0)
        if self.on_invalid == "propagate":  # all are NaN for another reason, of which there is word
            outside = outside & ~whole.invalid[""].mask
        return replace(whole, undefined={"": (Undefined(outside, _OUTSIDE),)})


def _fitted(wins: jax.Array) -> jax.Array:
    """The ratings and their standard errors (2, K), from wins (K, K)."""
    unit = xp.max(wins)
    wins = wins / xp.where(unit > 0, unit, 1)
    group = _largest_group(wins > 0)
    inside = group[:, None] & group[None, :]
    wins = xp.where(inside, wins, 0)
    games, members = wins + wins.T, xp.maximum(xp.sum(group), 1).astype(wins.dtype)
    eye = xp.eye(len(wins), dtype=wins.dtype)

    def information(rating: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The gradient, and the Fisher information scaled to a diagonal of 1, with the scale."""
        won = special.expit(
            rating[:, None] - rating[None, :]
        )  # the probability of row against column
        surplus = wins * won.T
        each = games * won * won.T
        degree = xp.sum(each, 1)
        scale = 1 / xp.sqrt(xp.where(degree > 0, degree, 1))
        # The information is singular: equal ratings for all change nothing. `level` is their
        # direction. What is added to the diagonal keeps a solution finite, and not the optimum.
        level = xp.sqrt(degree / xp.maximum(xp.sum(degree), xp.finfo(wins.dtype).tiny))
        scaled = eye - scale[:, None] * each * scale[None, :] + level[:, None] * level[None, :]
        ridge = len(wins) * xp.finfo(wins.dtype).eps
        return xp.sum(surplus - surplus.T, 1), scaled + ridge * eye, scale

    def step(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        rating, _, count = carry
        gradient, matrix, scale = information(rating)
        d = scale * xp.linalg.solve(matrix, scale * gradient)
        d = xp.where(group, d - xp.sum(d) / members, 0)
        # Along a line, the third derivative is at most `most` times the second, so that this
        # part of the step raises the likelihood from anywhere.
        most = xp.max(d) - xp.min(d)
        part = xp.where(most > 0, xp.log1p(most) / xp.where(most > 0, most, 1), 0)
        return rating + part * d, most, count + 1

    def goes_on(carry: tuple[jax.Array, ...]) -> jax.Array:
        # The error after a step is of the order of its square.
        _, most, count = carry
        return (count < _MOST_STEPS) & (most > xp.sqrt(xp.finfo(wins.dtype).eps) / 8)

    start = xp.zeros_like(wins[0]), xp.ones((), wins.dtype), xp.zeros((), xp.int32)
    rating = lax.while_loop(goes_on, step, start)[0]
    _, matrix, scale = information(rating)
    covariance = scale[:, None] * xp.linalg.inv(matrix) * scale[None, :]
    covariance = xp.where(inside, covariance, 0)
    # Of the ratings less their mean.
    row = xp.sum(covariance, 1) / members
    variance = xp.diagonal(covariance) - 2 * row + xp.sum(row) / members
    error = xp.sqrt(xp.maximum(variance, 0) / xp.where(unit > 0, unit, 1))
    return xp.stack([nan_where(~group, rating), nan_where(~group, error)])


def _largest_group(beats: jax.Array) -> jax.Array:
    """The mask of the largest group whose members all beat each other along chains; of two or more.

    It is found by squaring: chains of up to 1, 2, 4, ... wins.
    """
    size = len(beats)
    reaches = beats | xp.eye(size, dtype=xp.bool_)
    for _ in range((size - 1).bit_length()):
        each = reaches.astype(xp.float32)  # sums of positive numbers are never rounded to 0
        reaches = matrix_product(each, each) > 0
    together = reaches & reaches.T
    sizes = xp.sum(together, 1, xp.int32)
    ids = xp.arange(size, dtype=xp.int32)
    first = xp.min(xp.where(sizes == xp.max(sizes), ids, size))
    return xp.any(together & (ids == first)[:, None], 0) & (xp.max(sizes) > 1)
