"""A test whether binary forecasts are calibrated."""

import math
from typing import Self

from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import special, xp
from datarax.algebra.fields import state
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.statistics.batches import examples
from datarax.statistics.invalid_counts import CountsInvalid, InvalidCounts
from datarax.statistics.scaled_total import ScaledTotal
from datarax.statistics.score_kinds import OfProbabilities


class ExcessTotals(CountsInvalid, OfProbabilities):
    """Sums over binary forecasts: the excess of the squared error, and its variance.

    Of a calibrated forecast p, the squared error has the expectation `p * (1 - p)`. The excess over
    it is `(target - p) * (1 - 2 * p)`, and has the variance `(1 - 2 * p)**2 * p * (1 - p)`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.probabilistic.calibration_test import ExcessTotals
        >>> seen = ExcessTotals().update(jnp.array([0.5, 0.25]), jnp.array([1, 0]))
        >>> print(seen.sums.value)
        [-0.125     0.046875]
    """

    from_logits: bool = False
    """True if forecasts are logits of a sigmoid, False for probabilities."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted as invalid."""

    sums = ScaledTotal((2,))
    """The sum of `w * excess`, and of `w**2` times the variance."""

    def __post_init__(self) -> None:
        if self.from_logits:
            self.invalid = InvalidCounts("sigmoid")

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in forecasts of any shape."""
        seen = examples(
            preds,
            target,
            weights,
            probabilities=not self.from_logits,
            from_logits=self.from_logits,
            kind=self.invalid.scores,
            ignore_index=self.ignore_index,
        )
        x = seen.preds
        p, rest = (special.expit(x), special.expit(-x)) if self.from_logits else (x, 1 - x)
        excess = xp.where(seen.target, rest, -p) * (rest - p)
        variance = xp.square(rest - p) * p * rest
        w = xp.broadcast_to(seen.weight, x.shape)
        sums = self.sums.plus((excess, w), (variance * w.astype(variance.dtype), w))
        return self.with_batch(seen.invalid, sums=sums)


class CalibrationTest(Metric):
    """The test of Spiegelhalter whether binary forecasts are calibrated.

    A dict of "statistic" and "p_value". The statistic is
    `sum(w * (y - p) * (1 - 2 * p)) / sqrt(sum(w**2 * (1 - 2 * p)**2 * p * (1 - p)))`, with the
    forecasts p and the targets y. Its numerator is the sum of the squared errors minus that which
    calibrated forecasts would have. So it is standard normal for many calibrated forecasts,
    positive if the forecasts are too confident, and negative if they are not confident enough. The
    p-value is two-sided: the probability that calibrated forecasts have a statistic at least as far
    from 0.

    A small p-value says that the forecasts are not calibrated, and not by how much: see
    `ScoreDecomposition` and `CalibrationError`. A large one may also come of few examples, or of
    errors that cancel in the sum, as of forecasts that are too high below 1/2 and above.

    Examples are independent observations; one of weight 2 is one observation. Forecasts of 0, 1/2
    and 1 have no variance: if all are such, the statistic is infinite if one that is sure is wrong,
    and otherwise NaN. No data gives NaN. The state is two sums.

    D. J. Spiegelhalter (1986), Probabilistic prediction in patient management and clinical trials,
    https://doi.org/10.1002/sim.4780050506.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import CalibrationTest
        >>> preds, target = jnp.array([0.9, 0.95, 0.8, 0.1]), jnp.array([1, 0, 1, 1])
        >>> results = CalibrationTest().update(preds, target).results()
        >>> print({name: round(value, 3) for name, value in results.items()})
        {'p_value': 0.003, 'statistic': 2.991}
    """

    tasks = ("binary",)
    needs_scores = True
    weights_repeat = False
    from_logits: bool = False
    """True if `preds` are logits of a sigmoid, False for probabilities; values are never
    inspected."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted as invalid."""

    statistic: ExcessTotals = state()

    def __post_init__(self) -> None:
        self.statistic = ExcessTotals.from_fields(self)

    @shareable
    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: the forecasts of the positive class, floats of any shape.
            target: 0/1, of the same shape.
            weights: broadcast against the leading axes of `target`; zero excludes an example.

        Raises:
            MetricInputError: the shapes differ; shows both.
        """
        return self.replace(statistic=self.statistic.update(preds, target, weights=weights))

    def compute(self) -> PyTree:
        excess, variance = (self.statistic.sums[i].number for i in range(2))
        sign = xp.sign(excess.double.to_float())
        z = sign * (excess * excess / variance).root()
        z = xp.where((variance.double.high == 0) & (sign > 0), xp.asarray(xp.inf, z.dtype), z)
        return {"statistic": z, "p_value": special.erfc(xp.abs(z) / math.sqrt(2))}
