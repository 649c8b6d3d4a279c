"""`Sampling`: how far the value of a metric varies over data sets of its size, by a formula."""

from typing import Any, ClassVar, Literal, NamedTuple

import jax

from datarax._typing import PyTree
from datarax._xp import xp
from datarax.metric.unusable import Undefined
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaling import nan_where

Ratio = tuple[DoubleFloat, DoubleFloat]
"""A numerator and a denominator, each a sum over rows."""


class Spread(NamedTuple):
    """The interval of a value, and its standard error."""

    lower: jax.Array
    upper: jax.Array
    error: jax.Array
    unknown: tuple[Undefined, ...] = ()
    """Where there is no standard error, and why."""


class Sampling:
    """What is added up beside a metric for the standard error of its value, and what follows.

    `Interval` and `Compare` use it. Of a value that is a ratio of two sums over rows, or a function
    of one, they add up what single rows add to both. Of any other value, a subclass says in
    `squares` what is added up, and in `variance` how far the value varies then. As it is, it is
    that of `Metric.as_ratio`; of a metric without a ratio there is no formula.

    Args:
        metric: what the value is of, with its data.
    """

    method: ClassVar[Literal["delta", "delong", "woodruff"]] = "delta"
    """The name of the formula, where the value is no ratio."""
    constant: ClassVar[str] = (
        "the rows do not vary (all predictions are right, for example), or with weights too "
        "little beside values far from zero (then subtract a number near all of them before the "
        "update), so there is no standard error"
    )
    """Why the variance is 0, as the warning says."""

    def __init__(self, metric: Any):
        self.metric = metric

    def ratio(self) -> Ratio | None:
        """The ratio that the value is a function of, in the shape of the value; or None."""
        return self.metric.as_ratio()

    def slope(self) -> jax.Array | float:
        """The derivative of the value by the ratio."""
        return 1.0

    def squares(self) -> PyTree:
        """A metric without data, for `variance`; its `update` takes the arguments of the metric.

        None if the value is a ratio, or if there is no formula.
        """
        return None

    def variance(self, squares: PyTree) -> jax.Array:
        """The variance of the value over data sets of this size.

        Args:
            squares: what `squares` gave, updated with the data of the metric.

        Returns:
            An array of the shape of the value: 0 where the data do not vary, so that it is not
            known, and NaN where there are too few examples.
        """
        raise TypeError(f"{type(self).__name__} does not define variance()")

    def ends(self, value: jax.Array, margin: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The ends of an interval about a value, within the `value_range`."""
        # What an interval covers beyond the values that the metric can have, it covers for nothing.
        least, greatest = self.metric.value_range
        return xp.maximum(value - margin, least), xp.minimum(value + margin, greatest)

    def spread(self, value: jax.Array, squares: PyTree, z: float) -> Spread:
        """The interval of `z` standard errors of a value that is no ratio."""
        variance = self.variance(squares)
        is_constant = variance == 0
        # A variance of 0 is no certainty: rows that do not vary say nothing of those to come.
        error = nan_where(is_constant, xp.sqrt(variance))
        return Spread(*self.ends(value, z * error), error, (Undefined(is_constant, self.constant),))

    def paired_sample(self) -> PyTree:
        """A metric without data, for `paired_variance`; None if there is no formula.

        Its `update` takes the arguments of the metric, `preds_b` of the second model, and `index`.
        """
        return None

    def paired_variance(self, other: PyTree, sampled: PyTree) -> tuple[jax.Array, jax.Array]:
        """The variance of the difference of two models that is no difference of two ratios.

        Args:
            other: the metric of the second model, with its data.
            sampled: what `paired_sample` gave, updated with the data of both.

        Returns:
            The variance of the value of `other` less that of the metric, and the number of rows
            that the difference is a mean over, at least.
        """
        raise TypeError(f"{type(self).__name__} does not define paired_variance()")
