"""Metrics of real predictions and targets, and how the values of several outputs are combined."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, Self

import jax
import numpy as np

from datarax._checks import choice, positive_int, real, refuse_ignored
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.numerics.scaled_double import ScaledDouble


class RegressionMetric(Metric):
    """A metric of real predictions and targets."""

    tasks = ("regression",)
    statistic: Any = state()

    @shareable
    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: predictions of any real dtype, (...); with `num_outputs`, (..., num_outputs).
            target: of exactly the shape of `preds`.
            weights: broadcast against the leading axes; count as repetitions, zero excludes.

        Raises:
            MetricInputError: the shapes differ, even if they would broadcast; shows both.
            MetricTypeError: the values are not real numbers.
        """
        return self.replace(statistic=self.statistic.update(preds, target, weights=weights))


class PerOutput(RegressionMetric):
    """A metric with one value per output. A subclass defines `by_output`."""

    num_outputs: int | None = None
    """The number of outputs of an example, the last axis. Each output has its own value. If `None`,
    every element is an example of one output."""
    multioutput: Literal["uniform_average", "raw_values"] | Sequence[float] = "uniform_average"
    """The average of the values of `num_outputs`: "uniform_average" is their mean, "raw_values"
    gives one value per output, and numbers are the weight of each output in the mean."""
    averages: ClassVar[tuple[str, ...]] = ("uniform_average", "raw_values")
    """The names that `multioutput` may have."""

    def __post_init__(self) -> None:
        if self.num_outputs is None:
            if isinstance(self.multioutput, str):
                choice(self.multioutput, self.averages, "multioutput")
            refuse_ignored(self, "multioutput", "without num_outputs=, the number of outputs")
            return
        positive_int(self.num_outputs, "num_outputs")
        self.multioutput = checked_outputs(self.multioutput, self.averages, self.num_outputs)

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape of one example: `()` or `(num_outputs,)`."""
        return () if self.num_outputs is None else (self.num_outputs,)

    def by_output(self) -> jax.Array:
        """The value of each output, of shape `example_shape`."""
        raise TypeError(f"{type(self).__name__} does not define by_output()")

    @property
    def is_by_output(self) -> bool:
        """True if the value is that of each output, and not a mean over several outputs."""
        return self.num_outputs is None or self.multioutput == "raw_values"

    def output_weights(self, values: jax.Array) -> jax.Array:
        """Returns the weight of each output in the average of their values."""
        if isinstance(self.multioutput, tuple):
            return xp.asarray(np.asarray(self.multioutput), values.dtype)
        return xp.ones_like(values)

    def compute(self) -> PyTree:
        values = self.by_output()
        if self.is_by_output:
            return values
        weights = self.output_weights(values)
        return xp.sum(values * weights) / xp.sum(weights)


def checked_outputs(given: str | Sequence[float], names: tuple[str, ...], num_outputs: int) -> Any:
    """A `multioutput`: one of the names, or a finite weight of at least 0 for each output.

    Raises:
        MetricInputError: it is neither, or all weights are 0.
    """
    if isinstance(given, str):
        choice(given, names, "multioutput")
        return given
    expected = f"one of {', '.join(map(repr, names))}, or {num_outputs} weights of outputs"
    if not isinstance(given, Iterable):
        raise MetricInputError(f"multioutput={given!r}; expected {expected}")
    weights = tuple(real(x, "multioutput") for x in given)
    usable = all(0 <= x < math.inf for x in weights) and sum(weights) > 0
    if len(weights) != num_outputs or not usable:
        raise MetricInputError(
            f"multioutput={given!r}; expected {expected}: numbers of at least 0, not all 0"
        )
    return weights


class SquareOrRoot(PerOutput):
    """A mean of squares or its root; a subclass defines `square_by_output`."""

    squared: bool = True
    """False takes the root of the value of each output."""

    def square_by_output(self) -> ScaledDouble:
        """The value of each output, without the root."""
        raise TypeError(f"{type(self).__name__} does not define square_by_output()")

    def by_output(self) -> jax.Array:
        # The square keeps its exponent apart, so the root is right where a float would overflow.
        value = self.square_by_output()
        return value.to_float() if self.squared else value.root()
