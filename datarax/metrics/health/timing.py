"""The time of steps, the time they wait for data, and the work of each second."""

import math
from collections.abc import Sequence
from typing import Any, Self

import jax

from datarax._checks import as_float, numeric, positive_int, real, warn
from datarax._errors import MetricInputError, PrecisionWarning
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import when_known, xp
from datarax.algebra.fields import state
from datarax.metric.arguments import Argument
from datarax.metric.base import Metric
from datarax.metrics.health.value_profile import OCTAVES, checked_quantiles, percentiles
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.batches import broadcast_leading, rows_weight
from datarax.statistics.invalid_counts import InvalidCounts, not_finite, out_of_range
from datarax.statistics.scaled_total import ScaledTotal, quotient, stack_totals
from datarax.statistics.value_histogram import ValueHistogram
from datarax.statistics.weighted_total import ElapsedTotal


class StepTime(Metric):
    """Quantiles of the durations of steps, and the share of the time that waits for data.

    A dict: "p50", "p90", "p99" (the `quantiles`), "max" and "mean", in seconds; and "waiting", the
    seconds spent waiting divided by the seconds of the steps whose `waiting` is given; NaN without
    any. "max" is exact, and quantiles are within 0.4 % with 12 bits, or within 2**-22 of the
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
    """Of the seconds; of the weights; of the seconds of steps whose `waiting` is given; and of
    those that they waited."""
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
        given = numeric(seconds, "seconds")
        x = as_float(given)
        unusable = not_finite(x) | out_of_range(x < 0, x)
        part = None
        if waiting is not None:
            part = broadcast_leading(as_float(numeric(waiting, "waiting")), x.shape, "waiting")
            unusable |= not_finite(part) | out_of_range((part < 0) | (part > x), part)
        w, invalid = rows_weight(unusable, weights)
        w = xp.broadcast_to(w, x.shape)
        # Steps whose `waiting` is not given are in neither sum of the share that waits.
        none = ScaledTotal()
        total = none.of(x, w)
        waited = [none, none] if part is None else [total, none.of(part, w)]
        return self.replace(
            histogram=self.histogram.update(given, weights=w),
            sums=self.sums.combine(stack_totals([total, none.of(w), *waited])),
            invalid=self.invalid.update(invalid),
        )

    def compute(self) -> PyTree:
        # The quantile of 1 is exact. It stays among the quantiles only where it was asked for.
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

    A loop that does not know the time in each step passes it when it reads:
    `results(elapsed=seconds)`, which counts instead of the times of updates. Without either,
    `compute` and `results` raise an error; within `jit` the result is NaN.

    Example:
        >>> from datarax.metrics import Throughput
        >>> speed = Throughput().update(4096, 8, elapsed=0.5).update(4096, 8, elapsed=1.0)
        >>> print(speed.results())
        {'examples_per_second': 16.0, 'tokens_per_second': 8192.0}
        >>> print(Throughput().update(4096).update(4096).results(elapsed=2.0)["tokens_per_second"])
        4096.0
    """

    higher_is_better = True
    tokens = ElapsedTotal()
    examples = ElapsedTotal()
    broadcast_arguments = ("elapsed",)
    reads = ("elapsed",)

    def update(
        self,
        tokens: ArrayLike | None = None,
        examples: ArrayLike | None = None,
        *,
        elapsed: ArrayLike | None = None,
        weights: Weights = None,
    ) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            tokens: how many tokens, of any shape; their sum counts.
            examples: how many examples, of any shape.
            elapsed: seconds by the host's clock from the start to the end of this step; broadcasts
                against the leading axes of the counts. A time that is negative or not finite is
                invalid. `None` if `results` gets it.
            weights: broadcast against the leading axes of the counts.

        Raises:
            MetricInputError: neither tokens nor examples; or times or weights that do not
                broadcast, shows both shapes.
        """
        if tokens is None and examples is None:
            raise MetricInputError("Throughput.update: give tokens=, examples=, or both")
        given = {"tokens": tokens, "examples": examples}
        # A count that is not given keeps its own elapsed time, so its rate does not fall.
        return self.replace(
            **{
                name: getattr(self, name).update(x, elapsed, weights=weights)
                for name, x in given.items()
                if x is not None
            }
        )

    def readers(self) -> list[Argument]:
        # Updates may have given the time, which only the formula knows.
        return [Argument(type(self), "elapsed", required=False)]

    def compute(self) -> dict[str, DoubleFloat]:
        counts = {"tokens": self.tokens, "examples": self.examples}
        seconds = self.given_number("elapsed")
        is_given = not math.isnan(seconds)
        if not is_given and when_known(_lack_time, counts):
            raise MetricInputError(
                "Throughput reads 'elapsed', which no update was given; write "
                "results(elapsed=...), or schedule_collection(..., elapsed=...)"
            )
        return {
            f"{name}_per_second": x.rate_over(xp.asarray(seconds)) if is_given else x.rate
            for name, x in counts.items()
        }


def _lack_time(counts: dict[str, Any]) -> bool:
    return any(x.lacks_time for x in counts.values())


class ModelFLOPs(Metric):
    """Floating-point operations each second, and the utilization: their part of the peak.

    `flops_per_step * steps / elapsed`, and that over `devices * peak_flops_per_second`; a dict of
    "flops_per_second" and "utilization". The peak is what the maker of the device states for the
    dtype of the matrix products. No data, or no time, gives NaN. A. Chowdhery et al. (2022), PaLM,
    https://arxiv.org/abs/2204.02311, appendix B.

    `flops_per_step` is that of all devices. If a formula of the model gives it, such as 6 for each
    parameter and token, the result is the model FLOPs utilization (MFU). `flops_of(compiled)` gives
    what XLA counts in a program, which includes what is computed twice to save memory: then it is
    the hardware FLOPs utilization (HFU).

    The host passes the time, as to `Rate`. What devices and processes count adds up: where all
    processes run one step together, one of them counts it.

    Raises:
        MetricInputError: operations or a peak that are not above 0 and finite, or a number of
            devices that is not a positive integer.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ModelFLOPs
        >>> x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        >>> flops = ModelFLOPs.flops_of(jax.jit(jnp.matmul).lower(x, x).compile())
        >>> print(flops == 2 * 64**3)
        True
        >>> speed = ModelFLOPs(flops_per_step=flops, peak_flops_per_second=1e9)
        >>> for name, value in speed.update(1000, elapsed=2.0).results().items():
        ...     print(name, value)
        flops_per_second 262144000.0
        utilization 0.26214400000000004
    """

    higher_is_better = True
    flops_per_step: float
    """Floating-point operations of a step on all devices; a multiplication and an addition are
    two."""
    peak_flops_per_second: float
    """The work that one device can do in a second."""
    devices: int = 1
    """The number of devices that share a step."""

    statistic = ElapsedTotal()
    broadcast_arguments = ("elapsed",)

    def __post_init__(self) -> None:
        self.flops_per_step = _above_zero(self.flops_per_step, "flops_per_step")
        self.peak_flops_per_second = _above_zero(
            self.peak_flops_per_second, "peak_flops_per_second"
        )
        positive_int(self.devices, "devices")

    def update(self, steps: ArrayLike = 1, *, elapsed: ArrayLike, weights: Weights = None) -> Self:
        """A new metric with some steps folded in; no communication.

        Args:
            steps: how many steps were made since the last update: a number, or one for each of
                `elapsed`.
            elapsed: seconds by the host's clock from the start of the run to the end of the last of
                these steps, of any shape. A time that is negative or not finite is invalid.
            weights: broadcast against the leading axes of `steps`.

        Raises:
            MetricInputError: times or weights that do not broadcast; shows both shapes.
        """
        count, seconds = numeric(steps, "steps"), numeric(elapsed, "elapsed")
        # A single number of steps counts for each of the times.
        if not count.ndim:
            count = xp.broadcast_to(count, seconds.shape)
        return self.replace(statistic=self.statistic.update(count, seconds, weights=weights))

    def compute(self) -> dict[str, DoubleFloat]:
        steps = self.statistic.rate
        # The quotient of two Python numbers: a product of large ones could overflow.
        share = self.flops_per_step / self.peak_flops_per_second / self.devices
        return {"flops_per_second": steps * self.flops_per_step, "utilization": steps * share}

    @staticmethod
    def flops_of(compiled: Any) -> float:
        """The floating-point operations of a compiled program, on all its devices.

        XLA's analysis is of the program of one device: the result is that number times the number
        of devices. What all devices compute alike counts for each of them. Two things are not
        counted: kernels that XLA does not know, such as those of Pallas; and all rounds of a loop
        but the first. A program with a loop gives a `PrecisionWarning`: for a step with
        `lax.scan`, compile one with `unroll=True`, or compute the number from the model.

        Args:
            compiled: what `jax.jit(step).lower(...).compile()` returns.

        Raises:
            MetricInputError: the platform has no analysis, or counts no operations.
        """
        analysis = compiled.cost_analysis() or {}
        flops = float(analysis.get("flops", 0))
        if not flops > 0:
            raise MetricInputError(
                "flops_of: XLA counts no floating-point operations in this program; give "
                "flops_per_step= from the model"
            )
        if " while(" in compiled.as_text():
            warn(
                "flops_of: the program has a loop, and XLA counts the operations of one round. For "
                "lax.scan, compile the step with unroll=True, or compute them from the model",
                PrecisionWarning,
            )
        # The shardings of the arguments and results tell how many devices run the program.
        shardings = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
        return flops * max((len(each.device_set) for each in shardings), default=1)


def _above_zero(value: Any, name: str) -> float:
    """A configuration value as a finite Python float above zero."""
    number = real(value, name)
    if not 0 < number < float("inf"):
        raise MetricInputError(f"{name}={value!r}; expected a finite number above 0")
    return number
