"""D2: which share of a loss of the best constant prediction the predictions explain."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import jax
import numpy as np

from datarax._checks import finite_number, numeric
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import lax, read_on_host, xp
from datarax.algebra.fields import field, state
from datarax.algebra.memo import computed_once
from datarax.distributed.placement import outside_mesh
from datarax.metric.base import bounds_of
from datarax.metric.reading import Bounds
from datarax.metrics.regression.per_output import RegressionMetric
from datarax.numerics.double_float import DoubleFloat, stack, where
from datarax.numerics.float_ranges import is_within_floats
from datarax.numerics.limbs import float_or_double, has_many_digits
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.scaling import (
    exponent_of,
    nan_where,
    power_of_two_near_reciprocal,
    times_power_of_two,
)
from datarax.numerics.special import tweedie_deviance
from datarax.statistics.example_count import (
    ExampleCount,
)
from datarax.statistics.loss_total import LossTotal
from datarax.statistics.moments import (
    Apart,
    CentralMoments,
    Parts,
    about_mean,
    in_unit_of_greatest,
)
from datarax.statistics.scaled_total import ScaledTotal
from datarax.statistics.value_histogram import ValueHistogram, exact_q, quantiles_of


class DevianceMoments(CentralMoments):
    """The total weight, the mean, and the sum of the Tweedie deviances from the mean.

    A deviance is a Bregman divergence: the deviances of a group of values from any number m sum up
    to those from the mean of the group, plus the total weight times the deviance of the mean from
    m. So two states are merged without a difference of large sums.
    """

    power: float = 0.0
    """The power of the deviance: 0, or at least 1."""

    deviance: Parts | DoubleFloat = state()
    """`sum(w * deviance(x, mean))`, in units of `2**deviance_exponent`."""
    deviance_exponent: jax.Array = state()

    def empty(self) -> dict[str, PyTree]:
        none = ScaledTotal(self.shape).empty()
        parts = {"deviance": none["parts"], "deviance_exponent": none["exponent"]}
        return super().empty() | parts

    def of(self, x: jax.Array | DoubleFloat, w: jax.Array, *, many_digits: bool = False) -> Self:
        axes = tuple(range(x.ndim - len(self.shape)))
        given = w = xp.broadcast_to(w, x.shape)
        w, weight_unit = in_unit_of_greatest(w, axes, x.dtype)
        weight, mean, d, unit = about_mean(x, w, axes)
        held = self.holding(weight, *mean.parts(many_digits), [], (unit, weight_unit))
        wide = xp.broadcast_to(lax.expand_dims(unit, axes), x.shape)
        high = x.to_float() if isinstance(x, DoubleFloat) else x
        mean = lax.expand_dims(held._mean, axes)
        total = ScaledTotal(self.shape).of_scaled(*self._deviance(high, mean, -d, wide), given)
        return held._with_total(total)

    @property
    def _mean(self) -> jax.Array:
        return self.scaled()[1].to_float()

    @property
    def total(self) -> ScaledTotal:
        """The sum of the deviances."""
        parts = {"parts": self.deviance, "exponent": self.deviance_exponent}
        return ScaledTotal(self.shape).with_parts(parts)

    def _with_total(self, total: ScaledTotal) -> Self:
        parts = {"deviance": total.parts, "deviance_exponent": total.exponent}
        return self.with_parts(parts)

    def _deviance(
        self, x: jax.Array, mean: jax.Array, apart: jax.Array, unit: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The deviance of each value from a mean that is `apart * 2**unit` above it.

        It is `part * 2**exponent`, see `tweedie_deviance`.
        """
        if self.power == 0:
            # Of errors in the unit: these may be too large for a float.
            part, exponents = tweedie_deviance(mean, x, 0, apart)
            return part, exponents + 2 * unit
        # A mean of 0 is that of no values, or of zeros alone.
        some = mean > 0
        apart = times_power_of_two(apart, unit)
        mean, x, apart = (xp.where(some, y, z) for y, z in ((mean, 1), (x, 1), (apart, 0)))
        part, exponents = tweedie_deviance(mean, x, self.power, apart)
        return xp.where(apart == 0, 0, part), exponents

    def by_row(self, rows: int) -> None:
        return None

    def plus(self, other: Self, total: DoubleFloat, apart: Apart) -> Self:
        merged = super().plus(other, total, apart)
        deviances = self.total.combine(other.total)
        mean, (unit, weight_unit) = merged._mean, self.exponents
        # sum of d(x, m) = sum of d(x, own mean) + weight * d(own mean, m), see the class.
        # Each gains the deviance of the merged mean from its own mean.
        both = stack([self.doubles()[1], other.doubles()[1]])
        weights = xp.stack([each.doubles()[0].to_float() for each in (self, other)])
        shares = xp.stack([apart.share, -apart.rest])
        means = ScaledDouble(both, unit).to_float()
        deviance, exponents = self._deviance(means, mean, apart.means.to_float() * shares, unit)
        gained = ScaledTotal(self.shape).of_scaled(deviance, exponents + weight_unit, weights)
        return merged._with_total(deviances.combine(gained))

    def stored(self) -> Self:
        return super().stored()._with_total(self.total.stored())

    def weighted_by(self, factor: ScaledDouble) -> Self:
        held = super().weighted_by(factor)
        return held._with_total(held.total.weighted_by(factor))

    def canonical(self) -> Self:
        held = super().canonical()
        return held._with_total(held.total.canonical())


class DevianceTotal(LossTotal):
    """The deviances of the targets from the predictions, and from the mean of all targets.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.regression.explained_deviance import DevianceTotal
        >>> seen = DevianceTotal("tweedie", 0.0)
        >>> seen = seen.update(jnp.array([1.0, 5.0]), jnp.array([2.0, 4.0]))
        >>> print(seen.total.value, seen.targets.total.value)
        2.0 2.0
    """

    targets: DevianceMoments = state()
    examples = ExampleCount()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.targets = DevianceMoments(order=1, power=self.parameter)

    def with_targets(self, target: jax.Array, w: jax.Array) -> dict[str, PyTree]:
        # `w` is zero where the loss is not defined.
        many = has_many_digits(target)
        batch = self.targets.of(float_or_double(target), w, many_digits=many)
        return {
            "targets": self.targets.combine(batch),
            "examples": self.examples.combine(self.examples.of(w)),
        }


class LeastLoss(NamedTuple):
    """The mean pinball loss of values in bins; of shape (), and NaN where there is no data.

    The bounds hold for finite values as they are binned, up to the rounding of a float.
    """

    lower: ScaledDouble
    estimate: ScaledDouble
    upper: ScaledDouble
    most_apart: Callable[[], float | None]
    """On the host: how far bounds of the share that is explained may be apart before it matters
    that values have more digits than float32; None if none has."""


class PinballTotal(LossTotal):
    """The total of the pinball loss, and the targets in bins.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.regression.explained_deviance import PinballTotal
        >>> seen = PinballTotal("quantile", 0.5)
        >>> seen = seen.update(jnp.array([1.0, 5.0]), jnp.array([2.0, 3.0]))
        >>> print(seen.mean, seen.targets.quantile(1.0))
        0.75 3.0
    """

    bits: int = 16
    """The resolution of the bins; see `datarax.statistics.ValueHistogram`."""
    targets: ValueHistogram = state()
    examples = ExampleCount()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.targets = ValueHistogram(bits=self.bits, octaves=15, integers=True)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        # The losses take any float64, but the bins have the range of float32.
        return super().update(preds, numeric(target, "target"), weights=weights)

    def with_targets(self, target: jax.Array, w: jax.Array) -> dict[str, PyTree]:
        # With the weights of the loss: a target without a usable prediction is left out.
        return {
            "targets": self.targets.update(target, weights=w),
            "examples": self.examples.combine(self.examples.of(w)),
        }

    @computed_once
    @read_on_host
    def least_loss(self) -> LeastLoss:
        """The mean loss of the targets about their own quantile, the best constant."""
        bins, q = self.targets.bins.contents(), exact_q(self.parameter)
        weights = bins.weights[0, 0]
        some = weights.high > 0
        # In a unit in which no difference or sum overflows. Weights are relative to the greatest.
        weights = weights * power_of_two_near_reciprocal(xp.max(weights.high))
        # Values are relative to one near the quantile, subtracted before they are rounded.
        near = quantiles_of(bins, q, "inverted_cdf")[1]
        ends = bins.ends
        assert ends is not None  # of integers
        gap = xp.where(some, (ends[1, 0] - ends[0, 0]).to_float(), 0)
        most_apart = partial(_most_apart, gap, ends)
        exponent = exponent_of(xp.max(xp.where(some, xp.abs(ends.high[:, 0]), 0)))
        near, ends = (
            x.map(lambda x: times_power_of_two(x, -exponent)) for x in (DoubleFloat.of(near), ends)
        )
        ends = (ends - near).to_float()
        bins = bins._replace(least=ends[0], greatest=ends[1])
        middle = quantiles_of(bins, q, "inverted_cdf")[1]
        least, greatest = ends[:, 0]
        # The best constant is in the bin of the quantile, at any place in it.
        inside = some & (least <= middle) & (middle <= greatest)
        first = xp.min(xp.where(inside, least, xp.inf))
        last = xp.max(xp.where(inside, greatest, -xp.inf))
        # Told by their places: neighbouring ends may round to one number.
        index = xp.arange(inside.size, dtype=xp.int32)
        is_lower = some & (index < xp.min(xp.where(inside, index, inside.size)))
        is_higher = some & (index > xp.max(xp.where(inside, index, -1)))
        above, below = q.to_float(), (1 - q).to_float()

        def loss(low: jax.Array, high: jax.Array, constant: jax.Array) -> DoubleFloat:
            """The sum of losses of values at `low` in higher bins, and at `high` in lower bins."""
            distance = xp.where(is_lower, below * (constant - high), 0)
            distance = xp.where(is_higher, above * (low - constant), distance)
            return (weights * distance).sum()

        # The sum is linear in the constant, so the least one is at an end of the bin.
        at_ends = [loss(least, greatest, end) for end in (first, last)]
        own = xp.maximum(above * (last - middle), below * (middle - first))
        own = (weights * xp.where(inside, own, 0)).sum()
        center = least * 0.5 + greatest * 0.5
        total = weights.sum()
        upper = (loss(greatest, least, middle) + own) / total
        lower = where(at_ends[0] < at_ends[1], *at_ends) / total
        estimate = (loss(center, center, middle) + own * 0.5) / total
        estimate = where(estimate < lower, lower, where(upper < estimate, upper, estimate))
        ends_of_loss = (ScaledDouble(each, exponent) for each in (lower, estimate, upper))
        return LeastLoss(*ends_of_loss, most_apart=most_apart)


def _most_apart(gap: Any, ends: DoubleFloat) -> float | None:
    """`LeastLoss.most_apart`, from the distance of the ends of each bin, and the ends."""
    size: Any = ends.high[0, 0]
    if ((gap > 0) & (gap < np.abs(size) * 2.0**-45)).any():  # a step of two float32
        return 1e-6
    return 1e-3 if is_within_floats(gap, size) else None


def _explained(
    left: ScaledDouble, null: ScaledDouble, seen: DevianceTotal | PinballTotal
) -> jax.Array:
    """`1 - left / null`; of a constant target 1 or 0, and NaN for no data or for a single example.

    Args:
        left: the loss of the predictions.
        null: the loss of the constant prediction.
        seen: what both are of.
    """
    value = ((null - left) / null).to_float()
    is_perfect, is_constant = left.double.high == 0, ~(null.double.high > 0)
    # As R2 with `force_finite`: a target that does not vary leaves nothing to explain.
    value = xp.where(is_constant, is_perfect.astype(value.dtype), value)
    return nan_where((seen.scale.scaled.high == 0) | seen.examples.is_single, value)


class D2Tweedie(RegressionMetric):
    """The share of the Tweedie deviance that is explained.

    1 - D(target, preds) / D(target, mean target), with D the deviance of `TweedieDeviance`: 1 at
    best, 0 for the mean of the targets as the prediction of all. A constant target gives 1 for
    perfect predictions, otherwise 0, where scikit-learn gives NaN and minus infinity. NaN without
    data, and for a single example. With power 0 it is `R2Score`. As
    `sklearn.metrics.d2_tweedie_score`. T. Hastie, R. Tibshirani and M. Wainwright (2015),
    Statistical learning with sparsity, equation 3.11.

    The deviance from the mean is merged by a pairwise formula, so an offset of the targets costs no
    precision. Which examples are invalid is as in `TweedieDeviance`.

    Raises:
        MetricInputError: `power` is neither 0 nor at least 1. A negative power allows negative
            targets, whose mean need not be positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import D2Tweedie
        >>> metric = D2Tweedie(1).update(jnp.array([1.0, 1.5, 3.0]), jnp.array([0.5, 1.5, 4.0]))
        >>> print(round(float(metric.compute()), 4))
        0.8154
    """

    higher_is_better = True
    power: float = field(default=0.0, kw_only=False)
    """The power of the variance: 0 is the normal distribution, 1 Poisson, 2 gamma, 3 inverse
    Gaussian."""

    statistic: DevianceTotal = state()

    def __post_init__(self) -> None:
        expected = "0, or a number of at least 1"
        self.power = finite_number(self.power, "power", expected, lambda x: x == 0 or x >= 1)
        self.statistic = DevianceTotal("tweedie", self.power)

    def compute(self) -> PyTree:
        seen = self.statistic
        return _explained(seen.total.number, seen.targets.total.number, seen)


class D2Pinball(RegressionMetric):
    """The share of the pinball loss that is explained.

    1 - L(target, preds) / L(target, c), with L the loss of `QuantileLoss` and c the quantile `q` of
    all targets: 1 at best, 0 for that constant as the prediction of all. A constant target gives 1
    for perfect predictions, otherwise 0. NaN without data, and for a single example. As
    `sklearn.metrics.d2_pinball_score`. R. Koenker and J. Machado (1999),
    https://doi.org/10.1080/01621459.1999.10473882.

    The loss of the predictions is exact. That of the constant is estimated from targets in bins,
    see `datarax.statistics.ValueHistogram`: it is exact if each bin holds one distinct target.
    `bounds()` are certain to contain the exact value, up to the rounding of a float; of a million
    normal targets they are 1e-4 apart. Integers of 32 bits are not rounded, but on devices without
    float64, such as TPUs.

    Raises:
        MetricInputError: `q` is not from 0 to 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import D2Pinball
        >>> metric = D2Pinball(0.9)
        >>> metric = metric.update(jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, 2.0, 4.0]))
        >>> print(round(float(metric.compute()), 4))
        -0.7273
    """

    higher_is_better = True
    q: float = field(default=0.5, kw_only=False)
    """The quantile, from 0 to 1."""
    bits: int = 16
    """The resolution of the bins of the targets, from 10 to 22."""

    statistic: PinballTotal = state()

    def __post_init__(self) -> None:
        finite_number(self.q, "q", "a number from 0 to 1", lambda x: 0 <= x <= 1)
        self.statistic = PinballTotal("quantile", self.q, bits=self.bits)

    def compute(self) -> PyTree:
        return self._against(self.statistic.least_loss().estimate)

    @outside_mesh
    def bounds(self) -> tuple[jax.Array, jax.Array]:
        """Bounds `(lower, upper)` on the exact value."""
        return bounds_of(self)

    def value_and_bounds(self) -> tuple[PyTree, Bounds]:
        least = self.statistic.least_loss()
        # If the lower bound of the loss is 0, the constant may leave no loss, or any.
        is_open = ~(least.lower.double.high > 0) & (least.upper.double.high > 0)
        lower = xp.where(is_open, -xp.inf, self._against(least.lower))
        upper = self._against(least.upper)

        def are_apart(lower: PyTree, upper: PyTree) -> PyTree:
            most = least.most_apart()
            return None if most is None else ~(upper - lower <= most)

        return super().value_and_bounds()[0], Bounds(lower, upper).rounded_where(are_apart)

    def _against(self, null: ScaledDouble) -> jax.Array:
        seen = self.statistic
        return _explained(seen.total.number / seen.scale.number, null, seen)


class D2AbsoluteError(D2Pinball):
    """The share of the absolute error that is explained.

    1 - sum(w * |preds - target|) / sum(w * |target - median|), with the median of all targets. It
    is `D2Pinball(0.5)`: see there for how the divisor is estimated, and for `bounds()`. NaN without
    data, and for a single example. As `sklearn.metrics.d2_absolute_error_score`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import D2AbsoluteError
        >>> metric = D2AbsoluteError()
        >>> metric = metric.update(jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, 2.0, 4.0]))
        >>> print(round(float(metric.compute()), 4), metric.bounds()[0] == metric.bounds()[1])
        0.5714 True
    """

    q: ClassVar[float] = 0.5  # type: ignore[reportIncompatibleVariableOverride]
