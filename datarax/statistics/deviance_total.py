"""`DevianceTotal`: the deviances of targets from predictions, and from their own mean."""

from typing import Any, Self

import jax
import jax.numpy as jnp

from datarax._checks import default_float, numeric
from datarax._typing import ArrayLike, Weights
from datarax.distributed.merge_ops import zeros
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.limbs import float_or_double
from datarax.numerics.scaled_double import ScaledDouble, scaled_by
from datarax.numerics.scaling import times_power_of_two
from datarax.numerics.special import tweedie_deviance
from datarax.numerics.sums import sum_floats
from datarax.statistics.batches import pairs
from datarax.statistics.fields import state
from datarax.statistics.loss_total import LossTotal
from datarax.statistics.losses import LOSSES
from datarax.statistics.moments import (
    Apart,
    CentralMoments,
    Parts,
    about_mean,
    in_unit_of_greatest,
)


class DevianceMoments(CentralMoments):
    """The total weight, the mean, and the sum of the Tweedie deviances from the mean.

    A deviance is a Bregman divergence: the deviances of a group of values from any number m sum up
    to those from the mean of the group, plus the total weight times the deviance of the mean from
    m. So two states are merged without a difference of large sums.
    """

    power: float = 0.0
    """The power of the deviance: 0, or at least 1."""

    deviance: Parts = state()
    """`sum(w * deviance(x, mean))`, in the unit of the weights."""

    def empty(self) -> dict[str, Any]:
        zero = zeros(self.shape, default_float().name)
        return super().empty() | {"deviance": (zero, zero)}

    def of(self, x: jax.Array | DoubleFloat, w: jax.Array) -> Self:
        axes = tuple(range(x.ndim - len(self.shape)))
        w, unit = in_unit_of_greatest(jnp.broadcast_to(w, x.shape), axes, x.dtype)
        batch, d = about_mean(x, w, axes)
        held = self.holding(batch.weight, batch.mean, [], (batch.exponent, unit))
        wide = jax.lax.expand_dims(batch.exponent, axes)
        high = x.high if isinstance(x, DoubleFloat) else x
        mean = jax.lax.expand_dims(held._mean, axes)
        deviance = self._deviance(high, mean, times_power_of_two(-d, wide))
        total = sum_floats(jnp.where(w > 0, w * deviance, 0), axes)
        return held.with_parts({"deviance": tuple(total)})

    @property
    def _mean(self) -> jax.Array:
        return self.scaled()[1].to_float()

    @property
    def total(self) -> ScaledDouble:
        """The sum of the deviances."""
        return ScaledDouble(DoubleFloat(*map(jnp.asarray, self.deviance)), self.exponents[1])

    def _deviance(self, x: jax.Array, mean: jax.Array, apart: jax.Array) -> jax.Array:
        """The deviance of each value from a mean that is `apart` above it."""
        if self.power == 0:
            return tweedie_deviance(mean, x, 0, apart)
        # A mean of 0 is that of no values, or of zeros alone.
        some = mean > 0
        mean, x, apart = (jnp.where(some, y, z) for y, z in ((mean, 1), (x, 1), (apart, 0)))
        return jnp.where(apart == 0, 0, tweedie_deviance(mean, x, self.power, apart))

    def in_units(self, exponents: tuple[jax.Array, jax.Array]) -> Self:
        total = scaled_by(self.total.double, self.exponents[1] - exponents[1])
        return super().in_units(exponents).with_parts({"deviance": tuple(total)})

    def plus(self, other: Any, total: DoubleFloat, apart: Apart) -> Self:
        merged = super().plus(other, total, apart)
        gained = self.total.double + other.total.double
        mean, unit = merged._mean, self.exponents[0]
        for part, share in ((self, apart.share), (other, -apart.rest)):
            weight, _, _ = part.doubles()
            above = times_power_of_two(apart.means.high * share, unit)
            deviance = self._deviance(part._mean, mean, above)
            gained = gained + weight * jnp.where(weight.high > 0, deviance, 0)
        return merged.with_parts({"deviance": tuple(gained)})

    def _with_weights_times(self, number: DoubleFloat) -> Self:
        held = super()._with_weights_times(number)
        return held.with_parts({"deviance": tuple(self.total.double * number)})


class DevianceTotal(LossTotal):
    """The deviances of the targets from the predictions, and from the mean of all targets.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics.deviance_total import DevianceTotal
        >>> seen = DevianceTotal("tweedie", 0.0)
        >>> seen = seen.update(jnp.array([1.0, 5.0]), jnp.array([2.0, 4.0]))
        >>> print(seen.total.value, seen.targets.total.to_float())
        2.0 2.0
    """

    targets: DevianceMoments = state()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.targets = DevianceMoments(order=1, power=self.parameter)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        domain = LOSSES[self.loss].domain

        def usable(p: jax.Array, t: jax.Array) -> jax.Array | None:
            return domain(p, t, self.parameter) if domain else None

        seen = super().update(preds, target, weights=weights)
        _, t, w, _ = pairs(preds, target, weights, self.shape, usable)
        y, w = float_or_double(numeric(target, "target")), jnp.broadcast_to(w, t.shape)
        return seen.replace(targets=self.targets.combine(self.targets.of(y, w)))
