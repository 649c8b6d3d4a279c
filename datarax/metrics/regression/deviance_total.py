"""`DevianceTotal`: the deviances of targets from predictions, and from their own mean."""

from typing import Self

import jax

from datarax._checks import numeric
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import lax, xp
from datarax.algebra.fields import state
from datarax.numerics.double_float import DoubleFloat, stack
from datarax.numerics.limbs import float_or_double
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.scaling import times_power_of_two
from datarax.numerics.special import tweedie_deviance
from datarax.statistics.batches import pairs
from datarax.statistics.loss_total import LOSSES, LossTotal
from datarax.statistics.moments import (
    Apart,
    CentralMoments,
    ExampleCount,
    Parts,
    about_mean,
    in_unit_of_greatest,
)
from datarax.statistics.scaled_total import ScaledTotal


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

    def of(self, x: jax.Array | DoubleFloat, w: jax.Array) -> Self:
        axes = tuple(range(x.ndim - len(self.shape)))
        given = w = xp.broadcast_to(w, x.shape)
        w, weight_unit = in_unit_of_greatest(w, axes, x.dtype)
        weight, mean, d, unit = about_mean(x, w, axes)
        held = self.holding(weight, mean, [], (unit, weight_unit))
        wide = xp.broadcast_to(lax.expand_dims(unit, axes), x.shape)
        high = x.high if isinstance(x, DoubleFloat) else x
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

    def plus(self, other: Self, total: DoubleFloat, apart: Apart) -> Self:
        merged = super().plus(other, total, apart)
        deviances = self.total.combine(other.total)
        mean, (unit, weight_unit) = merged._mean, self.exponents
        # Each gains the deviance of the merged mean from its own mean.
        both = stack([self.doubles()[1], other.doubles()[1]])
        weights = xp.stack([self.doubles()[0].high, other.doubles()[0].high])
        shares = xp.stack([apart.share, -apart.rest])
        means = ScaledDouble(both, unit).to_float()
        deviance, exponents = self._deviance(means, mean, apart.means.high * shares, unit)
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
        >>> from datarax.metrics.regression.deviance_total import DevianceTotal
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

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        domain = LOSSES[self.loss].domain

        def usable(p: jax.Array, t: jax.Array) -> jax.Array | None:
            return domain(p, t, self.parameter) if domain else None

        seen = super().update(preds, target, weights=weights)
        _, t, w, _ = pairs(preds, target, weights, self.shape, usable)
        examples = self.examples.combine(self.examples.of(w))
        y, w = float_or_double(numeric(target, "target")), xp.broadcast_to(w, t.shape)
        targets = self.targets.combine(self.targets.of(y, w))
        return seen.replace(targets=targets, examples=examples)
