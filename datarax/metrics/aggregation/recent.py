"""What a stream is at now: its last value, a mean in which older values fade, a rate."""

from typing import Any, Self

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import as_float, numeric
from datarax.metrics.base import Metric, check_policy
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import on_leading_axes, rows_weight
from datarax.statistics.steps import DecayedTotal, LastStep
from datarax.statistics.weighted_total import WeightedTotal


class LastValue(Metric):
    """The value of the greatest step; of several values of that step, on any device, the greatest.

    `update(values, step, *, weights=None)`: `values` of any shape; `step`, integers of 32 bits, and
    `weights` broadcast against their leading axes. Devices and processes have no common order in
    time, so what is last is what its step says, in whatever order batches are merged. Where the
    weight is zero, and where a value is NaN or infinite, it does not count: the last that does is
    taken. No data gives NaN.

    Args:
        on_invalid: as for `Mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import LastValue
        >>> metric = LastValue().update(jnp.array([0.25, 0.125]), step=8).update(0.5, step=7)
        >>> print(metric.compute())
        0.25
    """

    def __init__(self, *, on_invalid: str = "exclude"):
        self.on_invalid = check_policy(on_invalid)
        self.statistic = LastStep()

    def compute(self) -> jax.Array:
        last = jnp.asarray(self.statistic.newest.value)
        return jnp.where(jnp.isfinite(last), last, jnp.asarray(jnp.nan, last.dtype))


class ExponentialMovingAverage(Metric):
    """A mean in which a value counts `decay` times as much for each step since.

    `sum(w * decay**(last - step) * x) / sum(w * decay**(last - step))`, where `last` is the
    greatest step there was. `update(values, step, *, weights=None)` as for `LastValue`. With one
    value a step it is the bias-corrected average of Adam (D. P. Kingma and J. Ba, 2015,
    https://arxiv.org/abs/1412.6980), from the first step on. As age is by step, in whatever
    order batches are merged, and over whatever devices, the result is one. No data gives NaN.

    Args:
        decay: above 0, at most 1 (the plain mean); half of what is `log(0.5) / log(decay)` steps
            old is left.
        on_invalid: as for `Mean`.

    Raises:
        MetricInputError: a `decay` other than these.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ExponentialMovingAverage
        >>> metric = ExponentialMovingAverage(decay=0.5).update(4.0, step=0).update(1.0, step=1)
        >>> print(metric.compute())
        2.0
    """

    def __init__(self, *, decay: float = 0.99, on_invalid: str = "exclude"):
        self.on_invalid = check_policy(on_invalid)
        self.statistic = DecayedTotal(decay)

    def compute(self) -> jax.Array:
        return self.statistic.mean


class Rate(Metric):
    """A count per second of wall time: `sum(w * x)` over the greatest elapsed time.

    `update(values, elapsed, *, weights=None)`: `values`, what is counted (examples, tokens), of any
    shape; `elapsed`, the seconds from the start of the run or window to the end of this step, by
    the host's clock, broadcasts against their leading axes. Counts of devices and processes that
    work at the same time add up, and their times do not: the greatest is taken. A program on the
    devices cannot read a clock, so the host hands the time in:

        start = time.perf_counter()
        for batch in batches:
            step(batch)
            metric = metric.update(tokens, elapsed=time.perf_counter() - start)

    A step that is dispatched is not done: where the host runs ahead of the devices the rate is that
    of dispatch, until it waits for them. After `reset()`, start the clock anew. Not finite or
    negative times are excluded and counted with their values. No data, or no time, gives NaN.

    Args:
        on_invalid: as for `Mean`.

    Example:
        >>> from datarax.metrics import Rate
        >>> print(Rate().update(300, elapsed=0.5).update(300, elapsed=1.5).compute())
        400.0
    """

    invalid = MetricAccumulator(0)

    def __init__(self, *, on_invalid: str = "exclude"):
        self.on_invalid = check_policy(on_invalid)
        self.counted = WeightedTotal()
        self.elapsed = MetricAccumulator(0.0, "max")

    def update(self, values: Any, elapsed: Any, *, weights: Any = None) -> Self:
        """A new metric with the batch folded in; no communication."""
        x = numeric(values, "values")
        seconds = as_float(numeric(elapsed, "elapsed"))
        seconds = jnp.broadcast_to(on_leading_axes(seconds, x.shape, "elapsed"), x.shape)
        valid = jnp.isfinite(x) & jnp.isfinite(seconds) & (seconds >= 0)
        w, invalid = rows_weight(valid, weights)
        return self.replace(
            counted=self.counted.update(x, weights=w),
            elapsed=self.elapsed.update(seconds, where=w.astype(jnp.bool_)),
            invalid=self.invalid.update(invalid),
        )

    def compute(self) -> jax.Array:
        seconds = self.elapsed.value
        return nx.pair_divide(self.counted.total.parts, (seconds, jnp.zeros_like(seconds)))
