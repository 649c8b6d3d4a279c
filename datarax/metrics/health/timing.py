"""How long steps take, how long they wait for data, and what is done each second."""

from collections.abc import Sequence
from typing import Self

from datarax._checks import as_float, numeric
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.metrics.base import Metric
from datarax.metrics.health.value_profile import OCTAVES, checked_quantiles, percentiles
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.batches import on_leading_axes, rows_weight
from datarax.statistics.invalid_counts import InvalidCounts, not_finite, out_of_range
from datarax.statistics.scaled_total import ScaledTotal, quotient, stacked
from datarax.statistics.value_histogram import ValueHistogram
from datarax.statistics.weighted_total import ElapsedTotal


class StepTime(Metric):
    """Quantiles of the durations of steps, and the share of the time that waits for data.

    A dict: "p50", "p90", "p99" (the `quantiles`), "max" and "mean", in seconds; and "waiting", the
    seconds spent waiting divided by the seconds of the steps that say how long they waited: NaN if
    none does. "max" is exact, and quantiles are within 0.4 % with 12 bits, or within 2**-22 of the
    longest step, whichever is more. No data gives NaN.

    A program on a device cannot read the clock of the host, and inside `jit` a clock is read once,
    when the program is traced. So the host measures, and passes the durations:

        for step in range(steps):
            start = time.perf_counter()
            batch = next(batches)
            waiting = time.perf_counter() - start
            state = jax.block_until_ready(train_step(state, batch))
            metric = metric.update(time.perf_counter() - start, waiting)

    JAX dispatches a step and returns before it is done. Without `block_until_ready`, which keeps
    the host from preparing the next step, the durations are those of dispatch; over many steps
    their mean is still that of the steps.

    Raises:
        MetricInputError: quantiles that are not numbers from 0 to 1, or bits that are not from 10
            to 22.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import StepTime
        >>> seconds, waiting = jnp.array([0.5, 0.5, 2.0]), jnp.array([0.125, 0.125, 1.25])
        >>> print(StepTime(quantiles=(0.5,)).update(seconds, waiting).results())
        {'max': 2.0, 'mean': 1.0, 'p50': 0.5, 'waiting': 0.5}
    """

    higher_is_better = False
    quantiles: Sequence[float] = (0.5, 0.9, 0.99)
    """Numbers from 0 to 1: 0.5 gives "p50"."""
    bits: int = 12
    """The resolution of the quantiles, from 10 to 22. The state takes 20 bytes for each of
    `2**bits` bins."""

    histogram: ValueHistogram = state()
    sums = ScaledTotal((4,))
    """Of the seconds, of the weights, of the seconds of steps that say how long they waited, and
    of those they waited."""
    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        self.quantiles = checked_quantiles(self.quantiles)
        self.histogram = ValueHistogram.from_fields(self, octaves=OCTAVES)

    def update(
        self, seconds: ArrayLike, waiting: ArrayLike | None = None, *, weights: Weights = None
    ) -> Self:
        """A new metric with the durations of some steps folded in; no communication.

        Args:
            seconds: how long each step took, of any shape. A duration that is negative or not
                finite is invalid.
            waiting: how many of these seconds the step waited for data; broadcasts against the
                leading axes of `seconds`. Less than 0 or more than `seconds` is invalid. `None` if
                that is not known.
            weights: broadcast against the leading axes of `seconds`, and count as repetitions.

        Raises:
            MetricInputError: arrays that do not broadcast; shows both shapes.
        """
        x = as_float(numeric(seconds, "seconds"))
        unusable = not_finite(x) | out_of_range(x < 0, x)
        part = None
        if waiting is not None:
            part = as_float(numeric(waiting, "waiting"))
            part = xp.broadcast_to(on_leading_axes(part, x.shape, "waiting"), x.shape)
            unusable |= not_finite(part) | out_of_range((part < 0) | (part > x), part)
        w, invalid = rows_weight(unusable, weights)
        w = xp.broadcast_to(w, x.shape)
        one = ScaledTotal()
        total, none = one.of(x, w), ScaledTotal()
        waited = [none, none] if part is None else [total, one.of(part, w)]
        return self.replace(
            histogram=self.histogram.update(x, weights=w),
            sums=self.sums.combine(stacked([total, one.of(w), *waited])),
            invalid=self.invalid.update(invalid),
        )

    def compute(self) -> PyTree:
        values = percentiles(self.histogram, (*self.quantiles, 1.0))
        longest = values["p100"] if 1.0 in self.quantiles else values.pop("p100")
        return values | {
            "max": longest,
            "mean": quotient(self.sums[0], self.sums[1]),
            "waiting": quotient(self.sums[3], self.sums[2]),
        }


class Throughput(Metric):
    """Tokens and examples each second of wall time: counts divided by the greatest elapsed time.

    A dict of "tokens_per_second" and "examples_per_second"; NaN for one that is never given, and
    where no time has elapsed. Counts are exact to 2**48. As `Rate`, of two counts: what devices and
    processes count at the same time adds up, and their times do not. The clock starts with the
    metric: after `reset()`, start it again; after a restart from a checkpoint, add the seconds of
    the run before.

    A program on a device cannot read the clock of the host, so the host passes the time. JAX
    dispatches a step and returns before it is done: while the host runs ahead of the devices, the
    rate is that of dispatch.

    Example:
        >>> from datarax.metrics import Throughput
        >>> speed = Throughput().update(4096, 8, elapsed=0.5).update(4096, 8, elapsed=1.0)
        >>> print(speed.results())
        {'examples_per_second': 16.0, 'tokens_per_second': 8192.0}
    """

    higher_is_better = True
    tokens = ElapsedTotal()
    examples = ElapsedTotal()
    broadcast_arguments = ("elapsed",)

    def update(
        self,
        tokens: ArrayLike | None = None,
        examples: ArrayLike | None = None,
        *,
        elapsed: ArrayLike,
        weights: Weights = None,
    ) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            tokens: how many tokens, of any shape; their sum counts.
            examples: how many examples, of any shape.
            elapsed: seconds by the host's clock from the start to the end of this step; broadcasts
                against the leading axes of the counts. A time that is negative or not finite is
                invalid.
            weights: broadcast against the leading axes of the counts.

        Raises:
            MetricInputError: neither tokens nor examples; or times or weights that do not
                broadcast, shows both shapes.
        """
        if tokens is None and examples is None:
            raise MetricInputError("Throughput.update: give tokens=, examples=, or both")
        given = {"tokens": tokens, "examples": examples}
        return self.replace(
            **{
                name: getattr(self, name).update(x, elapsed, weights=weights)
                for name, x in given.items()
                if x is not None
            }
        )

    def compute(self) -> dict[str, DoubleFloat]:
        return {
            "tokens_per_second": self.tokens.rate,
            "examples_per_second": self.examples.rate,
        }
