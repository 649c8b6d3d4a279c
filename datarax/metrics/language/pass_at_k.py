"""The probability that one of several samples is right."""

from typing import Self

import jax

from datarax._checks import as_float, integers, positive_int, same_shape
from datarax._typing import ArrayLike, Weights
from datarax._xp import lax, xp
from datarax.algebra.fields import field
from datarax.metrics.probabilistic.mean_score import MeanScore
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import out_of_range


class PassAtK(MeanScore):
    """The probability that at least one of `k` samples is right, as a mean over problems.

    For a problem with n samples, c of them right, `1 - C(n - c, k) / C(n, k)`: the unbiased
    estimate, which a mean over repeated draws of k approximates. Computed as a sum of
    logarithms, so that small probabilities do not cancel. A problem with fewer than `k` samples, or
    with c outside 0 to n, is invalid. No data gives NaN.

    M. Chen and others (2021), Evaluating large language models trained on code, section 2.1,
    https://arxiv.org/abs/2107.03374.

    Raises:
        MetricInputError: a `k` that is not an integer of at least 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PassAtK
        >>> metric = PassAtK(k=2).update(jnp.array([1, 0, 4]), jnp.array([4, 4, 4]))
        >>> print(metric.compute())  # the mean of 1/2, 0 and 1
        0.5
    """

    value_range = (0.0, 1.0)
    terms_by_row = True
    higher_is_better = True
    k: int = field(kw_only=False)
    """The number of samples that are drawn."""

    def __post_init__(self) -> None:
        positive_int(self.k, "k")

    def update(
        self, num_correct: ArrayLike, num_samples: ArrayLike, *, weights: Weights = None
    ) -> Self:
        """A new metric with the problems folded in; no communication.

        Args:
            num_correct: how many samples of each problem are right, integers (...).
            num_samples: how many samples of each problem there are, integers (...).
            weights: of the problems; broadcast against the leading axes.

        Raises:
            MetricInputError: the shapes differ.
            MetricTypeError: numbers that are not integers.
        """
        c, n = integers(num_correct, "num_correct"), integers(num_samples, "num_samples")
        same_shape(c, n, ("num_correct", "num_samples"))
        # The cast wraps negative numbers, so they are looked for first.
        unusable = out_of_range(c < 0, c) | out_of_range(n < 0, n)
        # An unsigned dtype holds all numbers that are not negative.
        dtype = xp.uint64 if 8 in (c.dtype.itemsize, n.dtype.itemsize) else xp.uint32
        c, n = c.astype(dtype), n.astype(dtype)
        unusable |= out_of_range(c > n, c) | out_of_range(n < self.k, n)
        w, invalid = rows_weight(unusable, weights)
        valid = ~unusable.mask
        score = pass_at_k(xp.where(valid, c, 0), xp.where(valid, n, self.k), self.k)
        return self.replace(statistic=self.statistic.add(score, w, invalid))


def pass_at_k(c: jax.Array, n: jax.Array, k: int) -> jax.Array:
    """`1 - C(n - c, k) / C(n, k)` for integers of one dtype, `0 <= c <= n` and `n >= k`."""
    # 1 minus the product of 1 - c / (n - i) over i < k. Where a factor is not positive, n - c < k:
    # every draw of k samples holds a right one.
    rest = as_float(n[..., None] - lax.broadcasted_iota(n.dtype, (*n.shape, k), n.ndim))
    share = as_float(c)[..., None] / rest
    some = share < 1
    log = xp.sum(xp.log1p(-xp.where(some, share, 0)), -1)
    return xp.where(xp.all(some, -1), -xp.expm1(log), 1)
