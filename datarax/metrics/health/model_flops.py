"""How many floating-point operations a second a step makes, and of how many it could."""

from typing import Any, Self

import jax

from datarax._checks import numeric, positive_int, real, warn
from datarax._errors import MetricInputError, PrecisionWarning
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.metrics.base import Metric
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.weighted_total import ElapsedTotal


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
    """What one device can do in a second."""
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
        shardings = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
        return flops * max((len(each.device_set) for each in shardings), default=1)


def _above_zero(value: Any, name: str) -> float:
    """A configuration value as a finite Python float above zero."""
    number = real(value, name)
    if not 0 < number < float("inf"):
        raise MetricInputError(f"{name}={value!r}; expected a finite number above 0")
    return number
