"""Policies that are trained on rewards: how far they have moved, and how much rewards vary."""

from typing import Any, ClassVar, Literal, Self

import jax

from datarax._checks import as_float, finite_number, integers, numeric, positive_int, same_shape
from datarax._typing import ArrayLike, Weights
from datarax._xp import at, lax, xp
from datarax.algebra.fields import field, state
from datarax.algebra.fold import Fold, in_one_pass
from datarax.algebra.state import State
from datarax.distributed.collectives import replicated
from datarax.metric.base import Metric
from datarax.metrics.probabilistic.mean_score import MeanScore
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.special import kl_div
from datarax.statistics.batches import broadcast_leading, on_leading_axes, rows_weight
from datarax.statistics.cluster_moments import ClusterMoments
from datarax.statistics.invalid_counts import not_finite, out_of_range
from datarax.statistics.scaled_total import ScaledTotal, quotient
from datarax.statistics.thresholds import rounded_to
from datarax.statistics.weighted_total import WeightedTotal


class ApproxKL(MeanScore):
    """An estimate of the Kullback-Leibler divergence of a policy from a reference, over tokens.

    The mean over tokens, drawn from the policy, of an estimate from `d = reference - policy`, the
    difference of the log-probabilities of the token, in nats: `-d` for "k1", `d**2 / 2` for "k2",
    and `exp(d) - 1 - d` for "k3". Over many tokens, k1 and k3 give the divergence; k3 is never
    negative, and varies less where the two policies are close; there k2 is close too, though it is
    biased. Small differences keep full precision. A token with a NaN or an infinity is invalid. No
    data gives NaN.

    J. Schulman (2020), Approximating KL divergence, http://joschu.net/blog/kl-approx.html.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ApproxKL
        >>> log_probs, reference = jnp.log(jnp.array([[0.5, 0.5], [0.25, 0.75]]))
        >>> for estimator in ("k1", "k2", "k3"):
        ...     metric = ApproxKL(estimator=estimator).update(log_probs, reference)
        ...     print(estimator, round(float(metric.compute()), 4))
        k1 0.1438
        k2 0.1612
        k3 0.1438
    """

    estimator: Literal["k1", "k2", "k3"] = field(default="k3", kw_only=False)
    """"k1", "k2" or "k3", as Schulman names them."""
    terms_by_row = True

    def update(
        self, log_probs: ArrayLike, reference_log_probs: ArrayLike, *, weights: Weights = None
    ) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            log_probs: log-probabilities under the policy that drew the tokens, of any shape.
            reference_log_probs: those of the same tokens under the reference, of the same shape.
            weights: broadcast against the leading axes; a mask of the tokens that count, for
                example.

        Raises:
            MetricInputError: the two shapes differ, or weights do not broadcast; shows both shapes.
            MetricTypeError: arguments that are not numbers.
        """
        own = numeric(log_probs, "log_probs")
        other = numeric(reference_log_probs, "reference_log_probs")
        same_shape(own, other, ("log_probs", "reference_log_probs"))
        own, other = as_float(own), as_float(other)
        w, invalid = rows_weight(not_finite(own) | not_finite(other), weights)
        d = xp.where(w.astype(xp.bool_), other - own, 0)
        if self.estimator == "k1":
            score = -d
        elif self.estimator == "k2":
            score = d * d / 2
        else:
            # The divergence of two numbers, 1 and exp(d), which does not cancel near d = 0.
            score = kl_div(xp.ones_like(d), xp.exp(d), xp.expm1(d), -d)
        return self.replace(statistic=self.statistic.add(score, w, invalid))


class ClipFraction(MeanScore):
    """The share of probability ratios that are clipped, as PPO does.

    A ratio is clipped if it is below `1 - low` or above `1 + high`, which are rounded to the dtype
    of the ratios. With `advantage`, it counts only where the clip decides the loss: above, if the
    advantage is positive, and below, if it is negative. A ratio that is negative, NaN or infinite
    is invalid, and so is an advantage that is NaN or infinite. No data gives NaN.

    J. Schulman et al. (2017), Proximal policy optimization algorithms,
    https://arxiv.org/abs/1707.06347, equation 7. Different bounds: Q. Yu et al. (2025), DAPO,
    https://arxiv.org/abs/2503.14476.

    Raises:
        MetricInputError: `low` or `high` is not a number of at least 0.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ClipFraction
        >>> ratio, advantage = jnp.array([0.5, 1.0, 1.1, 1.5]), jnp.array([2.0, 2.0, -2.0, 2.0])
        >>> print(ClipFraction().update(ratio).compute())
        0.5
        >>> print(ClipFraction().update(ratio, advantage).compute())
        0.25
    """

    value_range = (0.0, 1.0)
    low: float = 0.2
    """The most by which a ratio may be below 1, at least 0."""
    high: float = 0.2
    """The most by which a ratio may be above 1, at least 0."""
    is_proportion = True
    terms_by_row = True

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            given = getattr(self, name)
            number = finite_number(given, name, "a number of at least 0", lambda x: x >= 0)
            setattr(self, name, number)

    def update(
        self, ratio: ArrayLike, advantage: ArrayLike | None = None, *, weights: Weights = None
    ) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            ratio: the probability of each token (or action) under the policy, divided by that under
                the policy that drew it; of any shape.
            advantage: broadcasts against the leading axes of `ratio`: of each token, or (N,) of
                sequences for ratios (N, T).
            weights: broadcast against the leading axes; a mask of the tokens that count, for
                example.

        Raises:
            MetricInputError: an advantage or weights that do not broadcast; shows both shapes.
            MetricTypeError: arguments that are not numbers.
        """
        given = numeric(ratio, "ratio")
        lowest, highest = (rounded_to(given.dtype, x) for x in (1 - self.low, 1 + self.high))
        x = as_float(given)
        below, above = x < lowest, x > highest
        unusable = not_finite(x) | out_of_range(x < 0, x)
        if advantage is not None:
            sign = as_float(numeric(advantage, "advantage"))
            sign = broadcast_leading(sign, x.shape, "advantage")
            below, above = below & (sign < 0), above & (sign > 0)
            unusable |= not_finite(sign)
        w, invalid = rows_weight(unusable, weights)
        return self.replace(statistic=self.statistic.add(below | above, w, invalid))


class GroupMoments(ClusterMoments):
    """The weight, the mean and the sum of squares about the mean of the values of each group.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.health.policy import GroupMoments
        >>> seen = GroupMoments(3, 1).update(jnp.array([[1.0], [3.0], [5.0]]), jnp.array([0, 0, 2]))
        >>> print(seen.mean, seen.sums.value)
        3.0 [1.4142135 1.        0.       ]
    """

    @property
    def mean(self) -> jax.Array:
        """The mean of the values of all groups; NaN without any."""
        count, (mean, rest), _ = self.in_one_unit()
        mean = mean + rest
        unit = xp.max(self.central.exponents[0])
        return ScaledDouble((count * mean[:, 0]).sum() / count.sum(), unit).to_float()

    @property
    def sums(self) -> ScaledTotal:
        """The sums that `SpreadTotals` holds."""
        return in_one_pass(self.added_to(ScaledTotal((3,))))[0]

    def added_to(self, sums: ScaledTotal) -> Fold | ScaledTotal:
        """The sums that `SpreadTotals` holds, with these groups added."""
        count, _, (square,) = self.central.scaled()
        degrees = count - ScaledDouble.of(xp.ones_like(count.double.high))
        # A group of one row has no standard deviation.
        has_one = degrees.double.high > 0
        std = xp.where(has_one, (square / degrees).root(), 0)
        is_flat = has_one & (square.double.high == 0)
        return sums.plus(*((x[:, 0], None) for x in (std, has_one, is_flat)))


class SpreadSums(ScaledTotal):
    """Sums over the groups of batches: what a group adds is not a sum over its rows."""

    rowwise: ClassVar[bool] = False


class SpreadTotals(State):
    """The total of values, and the sums of the spreads of groups, each of which is in one batch.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.health.policy import SpreadTotals
        >>> seen = SpreadTotals().update(jnp.array([[1.0], [3.0], [5.0]]), jnp.array([7, 7, -1]))
        >>> print(seen.mean, seen.sums.value)
        3.0 [1.4142135 1.        0.       ]
    """

    values = WeightedTotal()
    sums = SpreadSums((3,))
    """The sum of the standard deviations of the groups of at least two rows, the number of these
    groups, and the number of those among them whose values are all equal."""

    def update(self, values: ArrayLike, group: jax.Array, *, weights: Weights = None) -> Self:
        """Folds in values (N, 1) with their groups (N,), any integers."""
        batch = GroupMoments(max(group.size, 1), 1).update(
            values, _numbered(group), weights=weights
        )
        sums = in_one_pass(batch.added_to(self.sums))[0]
        return self.replace(values=self.values.update(values, weights=weights), sums=sums)

    @property
    def mean(self) -> jax.Array:
        """The mean of all values; NaN without any."""
        return self.values.mean


def _numbered(ids: jax.Array) -> jax.Array:
    """The number of each id (N,) among the distinct ones, from 0."""
    place = xp.arange(ids.size, dtype=xp.int32)
    ids, order = lax.sort((ids, place), num_keys=1)
    begins = (place > 0) & (ids != xp.roll(ids, 1))
    return at(xp.zeros_like(place))[order].set(xp.cumsum(begins, 0, dtype=xp.int32))


class GroupSpread(Metric):
    """The variation of values, such as rewards, within groups, such as the answers to one prompt.

    A dict of three numbers. "mean" is the mean of all values. "std" is the mean over groups of the
    sample standard deviation of each, `sqrt(sum(w * (x - mean)**2) / (sum(w) - 1))`. "zero_share"
    is the share of groups whose values are all equal: with advantages relative to the group, as of
    GRPO, they teach nothing. A group of one row (of a total weight of at most 1) has no standard
    deviation: it counts in "mean" only. NaN without data, and without a group of two rows.

    With `num_groups`, the state holds the moments of each group, so the rows of a group may be in
    any updates and on any devices, and are merged without loss. Without it, the state has three
    sums, ids may be any integers, and all rows of a group must be in one update: inside
    `shard_map`, on one device. `per_device` raises if they are not, outside `jit`; elsewhere, each
    part counts as a group. Then a group of a later update is another one, also with the same id.

    Z. Shao et al. (2024), DeepSeekMath, https://arxiv.org/abs/2402.03300, section 4.1.

    Raises:
        MetricInputError: `num_groups` is not a positive integer.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import GroupSpread
        >>> rewards, prompt = jnp.array([1.0, 3.0, 1.0, 1.0, 0.0]), jnp.array([0, 0, 1, 1, 2])
        >>> for name, value in GroupSpread(num_groups=3).update(rewards, prompt).results().items():
        ...     print(name, round(value, 4))
        mean 1.2
        std 0.7071
        zero_share 0.5
    """

    num_groups: int | None = field(default=None, kw_only=False)
    """The number of groups, which are numbered from 0. None if each group is in one update."""

    statistic: Any = state()

    def __post_init__(self) -> None:
        if self.num_groups is None:
            self.statistic = SpreadTotals()
        else:
            positive_int(self.num_groups, "num_groups")
            self.statistic = GroupMoments(self.num_groups, 1)

    @property
    def together_by(self) -> str | None:  # type: ignore[override]
        """The argument whose rows must be in one update: without `num_groups`, that of groups."""
        return "group" if self.num_groups is None else None

    def update(self, values: ArrayLike, group: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            values: of any shape and real dtype. A NaN or an infinity is invalid.
            group: the group of each value: integers that broadcast against the leading axes of
                `values`. With `num_groups`, an id out of range is invalid.
            weights: broadcast against the leading axes of `values`, and count as repetitions.

        Raises:
            MetricInputError: groups or weights that do not broadcast; shows both shapes.
            MetricTypeError: groups that are not integers, or values that are not numbers.
        """
        x, ids = replicated((numeric(values, "values"), integers(group, "group")))
        ids = broadcast_leading(ids, x.shape, "group")
        if weights is not None:
            w = on_leading_axes(replicated(numeric(weights, "weights")), x.shape, "weights")
            weights = xp.broadcast_to(w, x.shape).reshape(-1)
        seen = self.statistic.update(x.reshape(-1, 1), ids.reshape(-1), weights=weights)
        return self.replace(statistic=seen)

    def compute(self) -> dict[str, jax.Array]:
        sums = self.statistic.sums
        return {
            "mean": self.statistic.mean,
            "std": quotient(sums[0], sums[1]),
            "zero_share": quotient(sums[2], sums[1]),
        }
