"""`EntropyTotals`: sums of probabilities, and of their entropies."""

from typing import NamedTuple, Self

from datarax._checks import as_float, numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._update_context import check_values
from datarax._xp import special, xp
from datarax.algebra.state import State
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.batches import not_distribution, rows_weight
from datarax.statistics.invalid_counts import InvalidCounts, not_logits
from datarax.statistics.scaled_total import ScaledTotal
from datarax.statistics.thresholds import check_logits


class Distributions(NamedTuple):
    """What the sums say."""

    mean: DoubleFloat
    """The mean probability of each class, (C,)."""
    negentropy: DoubleFloat
    """The mean over rows of `sum(p * log(p))`, in nats."""


class EntropyTotals(State, kw_only=False):
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
    """Whether rows are logits of a softmax, or probabilities."""

    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        positive_int(self.num_classes, "num_classes", least=2)
        # Of each class, of the negative entropy, and of the weight.
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
        unusable = not_logits(x, 1) if self.from_logits else not_distribution(given)
        w, invalid = rows_weight(unusable, weights)
        if self.from_logits:
            check_values(check_logits, (None, weights, preds), None, "preds")
        if self.from_logits:
            log_p = special.log_softmax(xp.where(w.astype(xp.bool_)[:, None], x, 0), axis=-1)
            p = xp.exp(log_p)
            negentropy = xp.sum(xp.where(p > 0, p * log_p, 0), axis=-1)
        else:
            p = xp.where(w.astype(xp.bool_)[:, None], x, 0)
            negentropy = xp.sum(special.xlogy(p, p), -1)
        p = xp.pad(p, ((0, 0), (0, self.num_classes - x.shape[1])))
        columns = xp.concatenate([p, negentropy[:, None], xp.ones_like(negentropy)[:, None]], 1)
        batch = self.sums.reset().of(columns, w[:, None])
        return self.replace(sums=self.sums.combine(batch), invalid=self.invalid.update(invalid))

    @property
    def distributions(self) -> Distributions:
        """The means over rows; NaN where there are none."""
        *_, weight = xp.arange(self.num_classes + 2, dtype=xp.int32)
        means = (self.sums.number / self.sums.number[weight]).to_double()
        return Distributions(means[:-2], means[-2])
