"""Weighted sums: of values, integers, counts with the time they took, probabilities."""

from typing import NamedTuple, Self

import jax

from datarax._checks import as_float, is_integer, numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import special, xp
from datarax.algebra.fields import state
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaling import nan_where
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import broadcast_leading, not_distribution, rows_weight
from datarax.statistics.class_rows import class_rows
from datarax.statistics.invalid_counts import (
    CountsInvalid,
    Invalid,
    InvalidCounts,
    evidence_of,
    not_finite,
    out_of_range,
)
from datarax.statistics.scaled_total import ScaledTotal
from datarax.statistics.score_kinds import ScoreKind


class WeightedTotal(CountsInvalid, kw_only=False):
    """The sum of `w * x`, the sum of `w`, and the number of values that could not be used.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import WeightedTotal
        >>> seen = WeightedTotal().update(jnp.array([1.0, 3.0, jnp.nan]))
        >>> print(seen.mean, seen.invalid.value)
        2.0 1
    """

    shape: tuple[int, ...] = ()
    """The shape of one example: there is a sum for each of its elements."""
    scores: ScoreKind = ""
    """The kind of the scores from which the values are computed: see `InvalidCounts`."""

    sums: ScaledTotal = state()
    """The sums of `w * x` and of `w`, (2, *shape)."""

    def __post_init__(self) -> None:
        self.shape = tuple(self.shape)
        self.sums = ScaledTotal((2, *self.shape))
        # Codes of evidence are counted only where values come from scores, so a mean of others has
        # none.
        if self.scores:
            self.invalid = InvalidCounts(self.scores)

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `values` (..., *shape); `weights` broadcast against their leading axes.

        NaN and infinities are excluded, and counted in `invalid` unless their weight is zero.
        """
        return self.plus_values(numeric(values, "values", any_range=True), weights)

    def plus_values(self, x: jax.Array, weights: Weights) -> Self:
        """Folds in an array from `numeric`, as `update`."""
        if not is_integer(x):
            x = as_float(x)
        return self.add(x, *rows_weight(not_finite(x), weights))

    def add(self, x: jax.Array, w: jax.Array, invalid: Invalid) -> Self:
        """Folds in values that have been checked; they may be infinite.

        Args:
            x: the values; a value of weight zero is ignored, even NaN.
            w: their weights, as from `rows_weight`.
            invalid: the values that could not be used, as from `rows_weight`.
        """
        # The second sum is that of the weights themselves, each counted once.
        of_each = w if w.shape == x.shape else xp.broadcast_to(w, x.shape)
        return self.with_batch(invalid, sums=self.sums.plus((x, w), (of_each, None)))

    @property
    def total(self) -> ScaledTotal:
        """The sum of `w * x`."""
        return self.sums[0]

    @property
    def weight(self) -> ScaledTotal:
        """The sum of `w`."""
        return self.sums[1]

    @property
    def mean(self) -> jax.Array:
        """The weighted mean, rounded once; NaN where the weight is zero."""
        return self.sums.ratio


class ElapsedTotal(CountsInvalid):
    """The sum of `w * x`, and the greatest of the times elapsed.

    Counts of devices and processes that work at the same time add up. Their times do not.

    Example:
        >>> from datarax.statistics.weighted_total import ElapsedTotal
        >>> seen = ElapsedTotal().update(300, elapsed=0.5).update(300, elapsed=1.5)
        >>> print(seen.rate.to_float())
        400.0
    """

    counted = WeightedTotal()
    elapsed = MetricAccumulator(0.0, "max")
    """In seconds, since the start of the clock."""

    def update(
        self, values: ArrayLike, elapsed: ArrayLike | None, *, weights: Weights = None
    ) -> Self:
        """Folds in `values` of any shape; times and weights broadcast against their leading axes.

        Values and times that are not finite, and negative times, are excluded and counted. Without
        a time the sum alone changes.
        """
        x = numeric(values, "values")
        if elapsed is None:
            return self.replace(counted=self.counted.update(x, weights=weights))
        seconds = broadcast_leading(as_float(numeric(elapsed, "elapsed")), x.shape, "elapsed")
        unusable = not_finite(x) | not_finite(seconds) | out_of_range(seconds < 0, seconds)
        w, invalid = rows_weight(unusable, weights)
        return self.with_batch(
            invalid,
            counted=self.counted.update(x, weights=w),
            elapsed=self.elapsed.update(seconds, where=w.astype(xp.bool_)),
        )

    @property
    def rate(self) -> DoubleFloat:
        """The sum for each second; NaN where there is no data, and where no time has elapsed."""
        return self.counted.total.double / self.elapsed.value

    def rate_over(self, seconds: jax.Array) -> DoubleFloat:
        """The sum for each of so many seconds; NaN without values, and for 0 seconds."""
        return self.counted.total.double / nan_where(self.counted.weight.scaled.high == 0, seconds)

    @property
    def lacks_time(self) -> bool:
        """True if there are values, and no update gave a time; of a state on the host."""
        # The identity of a maximum: no time was ever given, not even 0.
        no_time = self.elapsed.parts[0] == -xp.inf
        return bool(no_time & (self.counted.weight.scaled.high > 0))


class Distributions(NamedTuple):
    """The means that the sums give."""

    mean: DoubleFloat
    """The mean probability of each class, (C,)."""
    negentropy: DoubleFloat
    """The mean over rows of `sum(p * log(p))`, in nats."""


class EntropyTotals(CountsInvalid, kw_only=False):
    """The sums over rows of the probabilities of each class, and of `sum(p * log(p))`.

    Rows of fewer classes than `num_classes` are filled up with zeros, which have no entropy.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import EntropyTotals
        >>> seen = EntropyTotals(3).update(jnp.array([[1.0, 0.0], [0.0, 1.0]]))
        >>> print(seen.distributions.mean.to_float())
        [0.5 0.5 0. ]
    """

    num_classes: int
    """The most classes that a row may have."""
    from_logits: bool = False
    """True if rows are logits of a softmax, False for probabilities."""

    def __post_init__(self) -> None:
        positive_int(self.num_classes, "num_classes", least=2)
        if self.from_logits:
            self.invalid = InvalidCounts("softmax")
        # A sum for each class, one of negative entropies, and one of weights.
        self.sums = ScaledTotal((self.num_classes + 2,))

    def update(self, preds: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in rows (N, C) of up to `num_classes` classes.

        Raises:
            MetricInputError: another shape.
        """
        given = numeric(preds, "preds")
        if given.ndim != 2 or not 2 <= given.shape[1] <= self.num_classes:
            raise MetricInputError(
                f"preds of shape {given.shape}; expected (N, C) with C from 2 to "
                f"num_classes={self.num_classes}: give num_classes= for more"
            )
        x = as_float(given)
        if self.from_logits:
            rows = class_rows(x)
            unusable = rows.not_logits() | evidence_of("softmax", rows, given)
        else:
            unusable = not_distribution(class_rows(x), given)
        w, invalid = rows_weight(unusable, weights)
        # A row that is left out may hold anything, and its logarithm must not be NaN: 0 times NaN
        # is NaN.
        p = xp.where(w.astype(xp.bool_)[:, None], x, 0)
        if self.from_logits:
            log_p = special.log_softmax(p, axis=-1)
            p = xp.exp(log_p)
            # p log(p) is 0 for p = 0, where the product would be NaN.
            negentropy = xp.sum(xp.where(p > 0, p * log_p, 0), axis=-1)
        else:
            negentropy = xp.sum(special.xlogy(p, p), -1)
        p = xp.pad(p, ((0, 0), (0, self.num_classes - x.shape[1])))
        columns = xp.concatenate([p, negentropy[:, None], xp.ones_like(negentropy)[:, None]], 1)
        # All sums in one reduction, that of weights too.
        batch = self.sums.emptied().of(columns, w[:, None])
        return self.with_batch(invalid, sums=self.sums.combine(batch))

    @property
    def distributions(self) -> Distributions:
        """The means over rows; NaN where there are none."""
        sums = self.sums.number
        means = (sums / sums[self.num_classes + 1]).to_double()
        return Distributions(means[:-2], means[-2])
