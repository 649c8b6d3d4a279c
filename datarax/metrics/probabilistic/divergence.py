"""Divergences between predicted distributions and target distributions."""

import math
from math import log
from typing import ClassVar

import jax

from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax._xp import xp
from datarax.algebra.fold import sum_of_rows
from datarax.metrics.probabilistic.mean_score import ElementwiseMean
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.special import kl_div
from datarax.statistics.batches import not_distribution
from datarax.statistics.class_rows import class_rows
from datarax.statistics.invalid_counts import Invalid
from datarax.statistics.score_kinds import OfProbabilities


class Divergence(ElementwiseMean, OfProbabilities):
    """The weighted mean of a divergence of each pair of distributions; a subclass defines `score`.

    Pairs are invalid if a row is not a distribution: a value outside 0 to 1, or a sum that is not
    one within 3.5e-4 (or the root of the eps of a coarser dtype). Valid rows are not divided by
    their sums.

    Raises:
        MetricInputError: `base` is at most 1.
    """

    value_range = (0.0, math.inf)
    higher_is_better = False
    takes_probabilities: ClassVar[bool] = True  # type: ignore[assignment]
    element_axes = 1
    base: float | None = None
    """The base of the logarithm: 2 for bits; `None` for e, which gives nats."""

    def __post_init__(self) -> None:
        if self.base is not None and not self.base > 1:
            raise MetricInputError(
                f"base={self.base!r}; expected a number above 1, such as 2 for bits, or None for "
                f"nats"
            )

    def invalid_elements(self, preds: jax.Array, target: jax.Array, score: jax.Array) -> Invalid:
        p, t = (not_distribution(class_rows(x), x) for x in (preds, target))
        return p | t

    def compute(self) -> PyTree:
        mean = self.statistic.mean
        return mean if self.base is None else mean / log(self.base)

    def as_ratio(self) -> tuple[DoubleFloat, DoubleFloat]:
        total, weight = self.statistic.total.double, self.statistic.weight.double
        return (total if self.base is None else total / log(self.base)), weight


class KLDivergence(Divergence):
    """The mean Kullback-Leibler divergence of the predicted distributions from the targets.

    `D(target || preds) = sum over c of target[c] * log(target[c] / preds[c])`: the information
    lost when `preds` stands for the target. Infinite if `preds` is zero where the target is not. No
    data gives NaN.

    As the sum of `scipy.special.rel_entr(target, preds)`; small divergences keep full precision.
    Libraries differ in the order of the arguments. Some replace zeros of `preds` by an epsilon,
    which decides the result. A probability below the least normal float counts as zero. S.
    Kullback and R. A. Leibler (1951), On information and sufficiency.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import KLDivergence
        >>> preds, target = jnp.array([[0.25, 0.75]]), jnp.array([[0.5, 0.5]])
        >>> print(round(float(KLDivergence().update(preds, target).compute()), 4))
        0.1438
    """

    reverse: bool = False
    """True to compute `D(preds || target)` instead."""

    def score(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        p, q = (preds, target) if self.reverse else (target, preds)
        # sum p log(p / q) = sum (p log(p / q) - p + q) + sum (p - q). The terms of the first sum
        # are not negative, so that it does not cancel; the second is near zero.
        return sum_of_rows(DoubleFloat.of(p - q) + kl_div(p, q)).to_float()


class JensenShannonDivergence(Divergence):
    """The mean Jensen-Shannon divergence of the predicted distributions and the targets.

    `(D(preds || m) + D(target || m)) / 2` with `m = (preds + target) / 2`: symmetric, finite, and
    from 0 to log(2), which is 1 in bits. No data gives NaN.

    As the square of `scipy.spatial.distance.jensenshannon`, which is a distance. J. Lin (1991),
    https://doi.org/10.1109/18.61115.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import JensenShannonDivergence
        >>> metric = JensenShannonDivergence(base=2)
        >>> print(metric.update(jnp.array([[0.0, 1.0]]), jnp.array([[1.0, 0.0]])).compute())
        1.0
    """

    def score(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        # m - preds and target - m are both `half`, so that the extra terms -p + q cancel exactly.
        half = (target - preds) / 2
        middle = preds / 2 + target / 2
        both = kl_div(preds, middle, half) + kl_div(target, middle, -half)
        return xp.sum(both, -1) / 2
