"""Metrics of the latest values: the last one, a mean in which old values decay, a rate."""

from typing import Any, Self

from datarax._typing import ArrayLike, PyTree, Weights
from datarax.algebra.fields import state
from datarax.metrics.base import Metric, shareable
from datarax.statistics.steps import DecayedTotal, LastStep
from datarax.statistics.weighted_total import ElapsedTotal


class SteppedMetric(Metric):
    """A metric of values, each with the step it belongs to; a subclass makes the `statistic`.

    Devices and processes have no common order in time. The step of a value decides how old it is,
    so the result does not depend on the order in which batches and devices are merged.
    """

    # Any state whose `update` takes values, steps and weights.
    statistic: Any = state()
    broadcast_arguments = ("step",)

    @shareable
    def update(self, values: ArrayLike, step: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            values: of any shape and real dtype.
            step: integers that broadcast against the leading axes of `values`; those that do not
                fit 32 bits are invalid.
            weights: broadcast against the leading axes of `values`. A value of weight zero does
                not count, nor does its step.

        Raises:
            MetricInputError: a step or weights that do not broadcast; shows both shapes.
            MetricTypeError: steps that are not integers.
        """
        return self.replace(statistic=self.statistic.update(values, step, weights=weights))


class LastValue(SteppedMetric):
    """The value of the greatest step.

    Of several values of that step, on any device, the greatest. With `on_invalid="exclude"`,
    the last value that is finite. No data gives NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import LastValue
        >>> metric = LastValue().update(jnp.array([0.25, 0.125]), step=8).update(0.5, step=7)
        >>> print(metric.compute())
        0.25
    """

    statistic = LastStep()

    def compute(self) -> PyTree:
        return self.statistic.value


class ExponentialMovingAverage(SteppedMetric):
    """A mean in which the weight of a value decays by a factor for each step since.

    `sum(w * decay**(last - step) * x) / sum(w * decay**(last - step))`, where `last` is the
    greatest step. With one value for each step it is the bias-corrected average of Adam (D. P.
    Kingma and J. Ba, 2015, https://arxiv.org/abs/1412.6980), from the first step on. No data gives
    NaN.

    Raises:
        MetricInputError: a `decay` that is not a number above 0 and at most 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ExponentialMovingAverage
        >>> metric = ExponentialMovingAverage(decay=0.5).update(4.0, step=0).update(1.0, step=1)
        >>> print(metric.compute())
        2.0
    """

    decay: float = 0.99
    """Above 0 and at most 1, which gives the plain mean. The weight of a value is halved after
    `log(0.5) / log(decay)` steps."""

    statistic: DecayedTotal = state()

    def __post_init__(self) -> None:
        self.statistic = DecayedTotal.from_fields(self)

    def compute(self) -> PyTree:
        return self.statistic.mean


class Rate(Metric):
    """A count per second of wall time: `sum(w * x)` divided by the greatest elapsed time.

    Counts of devices and processes that work at the same time add up. Their times do not: the
    greatest is taken. A program on a device cannot read a clock, so the host passes the time:

        start = time.perf_counter()
        for batch in batches:
            step(batch)
            metric = metric.update(tokens, elapsed=time.perf_counter() - start)

    JAX dispatches a step and returns before it is done. While the host runs ahead of the devices,
    the rate is that of dispatch. After `reset()`, start the clock again. No data, or no time, gives
    NaN.

    Example:
        >>> from datarax.metrics import Rate
        >>> print(Rate().update(300, elapsed=0.5).update(300, elapsed=1.5).compute())
        400.0
    """

    statistic = ElapsedTotal()
    broadcast_arguments = ("elapsed",)

    @shareable
    def update(self, values: ArrayLike, elapsed: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            values: what is counted (examples, tokens), of any shape.
            elapsed: seconds by the host's clock from the start of the run to the end of this step;
                broadcasts against the leading axes of `values`. A time that is negative or not
                finite is invalid.
            weights: broadcast against the leading axes of `values`.

        Raises:
            MetricInputError: times or weights that do not broadcast; shows both shapes.
        """
        return self.replace(statistic=self.statistic.update(values, elapsed, weights=weights))

    def compute(self) -> PyTree:
        return self.statistic.rate
