"""Scores of forecasts of ordered outcomes: classes in order, and numbers."""

from math import pi, sqrt
from typing import Any, Self

import jax
import jax.numpy as jnp

from datarax._checks import as_float, choice, numeric
from datarax._errors import MetricInputError
from datarax.metrics.probabilistic.mean_score import MeanScore, TaskScore
from datarax.statistics.batches import Examples, rows_weight


class RankedProbabilityScore(TaskScore):
    """The mean squared distance of cumulative probabilities from what happened, of ordered classes.

    `sum over k < C - 1 of (P(class <= k) - [target <= k])**2`: a forecast is worse the farther its
    probability lies from the target. For two classes this is the Brier score.

    `update(preds, target, *, weights=None)`: floats (..., C) and integer labels (...), of classes
    in order. No data gives NaN.

    Args:
        num_classes: how many classes there are.
        from_logits: what `preds` are: logits of a softmax, or probabilities.
        normalize: whether the sum is divided by C - 1, so that it is from 0 to 1.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: for logits that are not finite, rows that are no distribution, labels out of
            range and negative weights: "exclude" and count them, "propagate" (the result is NaN),
            or "raise" when read on the host.

    Probabilities are summed from both ends, so that a nearly certain forecast keeps its digits.
    E. S. Epstein (1969), A scoring system for probability forecasts of ranked categories; A. H.
    Murphy (1971), A note on the ranked probability score. Some authors normalize it and some do
    not.

    Raises:
        MetricInputError: shapes that do not go together; shows both.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import RankedProbabilityScore
        >>> preds, target = jnp.array([[0.25, 0.5, 0.25]]), jnp.array([0])
        >>> print(RankedProbabilityScore(num_classes=3).update(preds, target).compute())
        0.625
    """

    def __init__(
        self,
        *,
        num_classes: int,
        from_logits: bool = False,
        normalize: bool = False,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        choice(from_logits, (False, True), "from_logits")
        choice(normalize, (False, True), "normalize")
        if num_classes is None:
            raise MetricInputError("num_classes=None; expected how many classes there are")
        self.from_logits, self.normalize = from_logits, normalize
        self.ignore_index = ignore_index
        self._task(num_classes, None, on_invalid)

    def _score(self, seen: Examples) -> jax.Array:
        p, axis = seen.preds, seen.preds.ndim - 1
        if self.from_logits:
            p = jax.nn.softmax(p, -1)
        up_to = jax.lax.cumsum(p, axis)[..., :-1]
        above = jax.lax.cumsum(p, axis, reverse=True)[..., 1:]
        classes = jax.lax.broadcasted_iota(jnp.int32, up_to.shape, axis)
        off = jnp.where(classes < seen.target[..., None], up_to, above)
        score = jnp.sum(jnp.square(off), -1)
        return score / up_to.shape[-1] if self.normalize else score


class ContinuousRankedProbabilityScore(MeanScore):
    """The mean of `integral of (F(x) - [x >= target])**2 dx`, F being the forecast's distribution.

    In the units of the target; of a forecast that is one number, it is the absolute error.

    `update(preds, target, *, weights=None)`: targets (...), and for each an ensemble of M numbers,
    preds (..., M), or its normal distribution, preds (..., 2): mean and standard deviation. No
    data gives NaN.

    Args:
        forecast: what `preds` are: an "ensemble", or the parameters of a "normal" distribution.
        fair: what an ensemble stands for: `False`, the distribution that gives each member 1 / M;
            `True`, one of which the members are a sample, whose score this estimates without bias,
            and below zero at times. It needs two members.
        on_invalid: for forecasts and targets that are not finite, negative standard deviations and
            negative weights: "exclude" and count them, "propagate" (the result is NaN), or "raise"
            when read on the host.

    Of an ensemble, `mean|x - target| - mean|x - x'| / 2`, where `fair` leaves out of the second
    mean the pairs of a member with itself: found from the sorted distances to the target as a sum
    in which nothing cancels, however far the numbers are from zero. Libraries differ in which of
    the two they take. J. E. Matheson and R. L. Winkler (1976), Scoring rules for continuous
    probability distributions; T. Gneiting and A. E. Raftery (2007),
    https://doi.org/10.1198/016214506000001437, section 4.2, for the normal one; fair: C. A. T.
    Ferro (2014), https://doi.org/10.1002/qj.2270.

    Raises:
        MetricInputError: shapes that do not go together; shows both.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ContinuousRankedProbabilityScore
        >>> metric = ContinuousRankedProbabilityScore()
        >>> print(metric.update(jnp.array([[1.0, 3.0]]), jnp.array([2.0])).compute())
        0.5
    """

    def __init__(
        self, *, forecast: str = "ensemble", fair: bool = False, on_invalid: str = "exclude"
    ):
        choice(forecast, ("ensemble", "normal"), "forecast")
        choice(fair, (False, True), "fair")
        if fair and forecast == "normal":
            raise MetricInputError('fair=True is for forecast="ensemble"')
        self.forecast, self.fair = forecast, fair
        super().__init__(on_invalid)

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """A new metric with the batch folded in; no communication."""
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        least = 2 if self.fair else 1
        last = "2" if self.forecast == "normal" else "M"
        wanted = ", ".join((*map(str, target.shape), last))
        fits = preds.shape[:-1] == target.shape and preds.ndim == target.ndim + 1
        if not fits or (self.forecast == "normal" and preds.shape[-1] != 2):
            raise MetricInputError(
                f"preds of shape {preds.shape} and target of shape {target.shape}; expected preds "
                f'of shape ({wanted}) for forecast="{self.forecast}"'
            )
        if preds.shape[-1] < least:
            raise MetricInputError(
                f"preds of shape {preds.shape}: expected at least {least} "
                f"{'member' if least == 1 else 'members'} along the last axis"
            )
        x, y = as_float(preds), as_float(target)
        valid = jnp.all(jnp.isfinite(x), -1) & jnp.isfinite(y)
        if self.forecast == "normal":
            valid &= x[..., 1] >= 0
            score = _of_normal(y - x[..., 0], x[..., 1])
        else:
            score = _of_ensemble(jnp.sort(x - y[..., None], -1), fair=self.fair)
        return self.replace(statistic=self.statistic.add(score, *rows_weight(valid, weights)))


def _of_ensemble(d: jax.Array, *, fair: bool) -> jax.Array:
    """From the distances of the members to the target, ascending."""
    size, axis = d.shape[-1], d.ndim - 1
    zero = jnp.zeros_like(d[..., :1])
    below = jnp.concatenate([jnp.minimum(d, 0), zero], -1)
    above = jnp.concatenate([zero, jnp.maximum(d, 0)], -1)
    # Between neighbours F is constant: the share of members up to there, and of those after.
    rank = jax.lax.broadcasted_iota(jnp.int32, d.shape, axis).astype(d.dtype)
    before, after = (rank + 1) / size, (size - rank) / size
    left = jnp.square(before) * (below[..., 1:] - below[..., :-1])
    right = jnp.square(after) * (above[..., 1:] - above[..., :-1])
    score = jnp.sum(left + right, -1)
    if fair:
        between = before * (1 - before) * (jnp.concatenate([d[..., 1:], d[..., -1:]], -1) - d)
        score = score - jnp.sum(between, -1) / (size - 1)
    return score


def _of_normal(d: jax.Array, std: jax.Array) -> jax.Array:
    """From the distance of the target to the mean; with no spread it is the distance."""
    some = std > 0
    z = d / jnp.where(some, std, 1)
    density = jnp.exp(-jnp.square(z) / 2) / sqrt(2 * pi)
    score = d * jax.lax.erf(z / sqrt(2)) + std * (2 * density - 1 / sqrt(pi))
    return jnp.where(some, score, jnp.abs(d))
