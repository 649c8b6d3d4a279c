"""Scores of forecasts of ordered outcomes: ordered classes, and real numbers."""

import math
from math import pi, sqrt
from typing import ClassVar, Literal, Self

import jax

from datarax._checks import as_float, numeric
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import lax, special, xp
from datarax.algebra.fields import field
from datarax.distributed.collectives import unsharded
from datarax.metrics.probabilistic.mean_score import MeanScore, ProbabilityScore
from datarax.numerics.limbs import difference
from datarax.statistics.batches import Examples, rows_weight
from datarax.statistics.invalid_counts import not_finite, out_of_range


class RankedProbabilityScore(ProbabilityScore):
    """The mean squared distance of the cumulative probabilities from the target, in class order.

    `sum over k < C - 1 of (P(class <= k) - [target <= k])**2`: probability far from the target
    costs more than probability near it. For two classes this is the Brier score. No data gives NaN.

    Probabilities are summed from both ends, so that a nearly certain forecast keeps full precision.
    E. S. Epstein (1969), A scoring system for probability forecasts of ranked categories; A. H.
    Murphy (1971), A note on the ranked probability score. Some authors normalize it, others do not.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RankedProbabilityScore
        >>> preds, target = jnp.array([[0.25, 0.5, 0.25]]), jnp.array([0])
        >>> print(RankedProbabilityScore(num_classes=3).update(preds, target).compute())
        0.625
    """

    tasks = ("multiclass",)
    num_classes: int | None = field()
    """The number of classes; their labels are in order."""
    normalize: bool = False
    """True to divide the sum by C - 1, so that it is from 0 to 1."""
    num_labels: ClassVar[None] = None  # type: ignore[reportIncompatibleVariableOverride]
    average: ClassVar[str] = "micro"  # type: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        if self.num_classes is None:
            raise MetricInputError("num_classes=None; expected how many classes there are")
        super().__post_init__()

    def score(self, seen: Examples) -> jax.Array:
        p, axis = seen.preds, seen.preds.ndim - 1
        if self.from_logits:
            p = special.softmax(p, axis=-1)
        up_to = lax.cumsum(p, axis)[..., :-1]
        above = lax.cumsum(p, axis, reverse=True)[..., 1:]
        classes = lax.broadcasted_iota(xp.int32, up_to.shape, axis)
        # From the target on, P(class <= k) - 1 is minus the probability of the classes above k.
        error = xp.where(classes < seen.target[..., None], up_to, above)
        score = xp.sum(xp.square(error), -1)
        return score / up_to.shape[-1] if self.normalize else score


class ContinuousRankedProbabilityScore(MeanScore):
    """The mean of `integral of (F(x) - [x >= target])**2 dx`, F being the forecast distribution.

    In the units of the target. If the forecast is one number, the score is the absolute error. For
    an ensemble x it is `mean|x - target| - mean|x - x'| / 2`, computed from the sorted distances to
    the target without cancellation, however far the numbers are from zero. No data gives NaN.

    Forecasts and targets that are not finite, and negative standard deviations, are invalid.

    J. E. Matheson and R. L. Winkler (1976), Scoring rules for continuous probability
    distributions; the normal distribution: T. Gneiting and A. E. Raftery (2007),
    https://doi.org/10.1198/016214506000001437, section 4.2; fair: C. A. T. Ferro (2014),
    https://doi.org/10.1002/qj.2270. Libraries differ in whether they compute the fair score.

    Raises:
        MetricInputError: `fair` for a normal distribution.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ContinuousRankedProbabilityScore
        >>> metric = ContinuousRankedProbabilityScore()
        >>> print(metric.update(jnp.array([[1.0, 3.0]]), jnp.array([2.0])).compute())
        0.5
    """

    value_range = (0.0, math.inf)
    terms_by_row = True
    higher_is_better = False
    forecast: Literal["ensemble", "normal"] = "ensemble"
    """What `preds` are: the members of an "ensemble", or the parameters of a "normal"
    distribution."""
    fair: bool = False
    """How an ensemble is read. If False, it is the distribution that gives each of M members the
    probability 1 / M. If True, its members are a sample from a distribution, whose score is
    estimated without bias: the mean of `|x - x'|` excludes the pairs of a member with itself. This
    needs two members, and may be negative."""

    def __post_init__(self) -> None:
        if self.fair and self.forecast == "normal":
            raise MetricInputError('fair=True is for forecast="ensemble"')

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: "ensemble": floats (..., M), the M members. "normal": floats (..., 2), the mean
                and the standard deviation.
            target: floats (...).
            weights: broadcast against the leading axes of `target`; zero excludes an example.

        Raises:
            MetricInputError: shapes that do not fit together, or too few members; shows them.
        """
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        is_normal, least = self.forecast == "normal", 2 if self.fair else 1
        fits = preds.shape[:-1] == target.shape and preds.ndim == target.ndim + 1
        if not fits or (is_normal and preds.shape[-1] != 2):
            expected = ", ".join((*map(str, target.shape), "2" if is_normal else "M"))
            raise MetricInputError(
                f"preds of shape {preds.shape} and target of shape {target.shape}; expected preds "
                f'of shape ({expected}) for forecast="{self.forecast}"'
            )
        if preds.shape[-1] < least:
            raise MetricInputError(
                f"preds of shape {preds.shape}: expected at least {least} "
                f"{'member' if least == 1 else 'members'} along the last axis"
            )
        unusable = not_finite(preds, -1) | not_finite(target)
        if is_normal:
            std = as_float(preds[..., 1])
            unusable |= out_of_range(std < 0, std)
            score = _normal_score(difference(target, preds[..., 0]), std)
        else:
            distance = unsharded(difference(preds, target[..., None]), -1)
            score = _ensemble_score(xp.sort(distance, -1), fair=self.fair)
        return self.replace(statistic=self.statistic.add(score, *rows_weight(unusable, weights)))


def _ensemble_score(d: jax.Array, *, fair: bool) -> jax.Array:
    """The score from the distances of the members to the target, in ascending order."""
    size, axis = d.shape[-1], d.ndim - 1
    # The intervals between neighbours below the target, and above it; the target is at zero.
    zero = xp.zeros_like(d[..., :1])
    below = xp.concatenate([xp.minimum(d, 0), zero], -1)
    above = xp.concatenate([zero, xp.maximum(d, 0)], -1)
    # F is constant on an interval: below the target the score is F**2, above it (1 - F)**2.
    rank = lax.broadcasted_iota(xp.int32, d.shape, axis).astype(d.dtype)
    before, after = (rank + 1) / size, (size - rank) / size
    left = xp.square(before) * (below[..., 1:] - below[..., :-1])
    right = xp.square(after) * (above[..., 1:] - above[..., :-1])
    score = xp.sum(left + right, -1)
    if fair:
        # mean|x - x'| / 2 is the integral of F (1 - F), and is scaled by size / (size - 1).
        gap = xp.concatenate([d[..., 1:], d[..., -1:]], -1) - d
        score = score - xp.sum(before * (1 - before) * gap, -1) / (size - 1)
    return score


def _normal_score(d: jax.Array, std: jax.Array) -> jax.Array:
    """The score from the distance of the target to the mean: `|d|` if the deviation is zero.

    `d erf(z / sqrt(2)) + std (2 phi(z) - 1 / sqrt(pi))`, z being `d / std` and phi the density.
    """
    some = std > 0
    z = d / xp.where(some, std, 1)
    density = xp.exp(-xp.square(z) / 2) / sqrt(2 * pi)
    score = d * special.erf(z / sqrt(2)) + std * (2 * density - 1 / sqrt(pi))
    return xp.where(some, score, xp.abs(d))
