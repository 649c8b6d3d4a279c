"""`Interval`: the standard error and the interval of a mean, a ratio or a proportion."""

from dataclasses import replace
from statistics import NormalDist
from typing import Literal, Self

import jax

from datarax._checks import choice
from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax._update_context import in_update
from datarax._xp import vmap, xp
from datarax.algebra.fields import state
from datarax.algebra.pytrees import map_leaf_states
from datarax.metrics.base import Metric
from datarax.metrics.call import Call
from datarax.metrics.reading import Reading
from datarax.metrics.row_updates import adds_by_row, by_rows, kept_apart, rows_of
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.scaling import exponent_of, nan_where, times_power_of_two
from datarax.statistics.cross_moments import TwoMoments
from datarax.wrappers.wrapper import MultiplyingWrapper, checked_confidence, checked_metric


class Interval(MultiplyingWrapper):
    """The value of a mean, a ratio or a proportion, with its standard error and interval.

    It costs little more than the metric: five numbers for each value, and no replicas. For other
    metrics, see `Bootstrap`.

    `update` takes what that of the metric takes. `compute` gives a dict with `value`, `lower`,
    `upper` and `std_error`, each of the shape of the metric's value. NaN without data; the
    standard error of a mean is NaN for one row.

    The rows are the independent observations: a row is an index of the first axis of the arguments.
    So the values of one row (the tokens of a document) may depend on each other. With a_i and b_i
    the parts of row i in the numerator and the denominator, and r their ratio over all rows, the
    standard error is that of the delta method, `sqrt(sum (a_i - r b_i)**2) / sum b_i`. Except for
    proportions it is multiplied by `sqrt(n / (n - 1))`, of n rows, so that it is the usual standard
    error of a mean. A row of weight 2 is one observation, not two.

    The interval is `value ± z * std_error`, except for proportions (accuracy, precision, recall,
    specificity and the like): there it is the interval of Wilson, which stays within 0 and 1 and
    covers also near 0 and 1, where the standard error is too small. Weighted rows count as
    `(sum b)**2 / sum b**2` observations.

    Args:
        metric: a metric without data that is a ratio of two sums: `Mean`, `Ratio`, losses such as
            `LogLoss`, `MeanSquaredError` and `MeanAbsoluteError`, and ratios of counts such as
            `Accuracy`, `Precision`, `F1` and `JaccardIndex` of a binary task, with
            `average="micro"` or with `average=None`.
        confidence: the probability with which the interval covers the true value.
        method: "wilson" for a proportion, "delta" for any ratio; "auto" is the first that applies.

    Raises:
        MetricInputError: the metric is no such ratio, or has data; or `method` is "wilson" and the
            metric is not a proportion.
        MetricTypeError: `metric` is not a metric.

    References:
        E. B. Wilson (1927), Probable inference, the law of succession, and statistical inference,
        https://doi.org/10.1080/01621459.1927.10502953.
        W. G. Cochran (1977), Sampling techniques, chapter 6, on ratio estimators.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import Interval
        >>> from datarax.metrics import Mean
        >>> loss = Interval(Mean()).update(jnp.array([1.0, 2.0, 3.0, 4.0]))
        >>> print({name: round(x, 3) for name, x in loss.results().items()})
        {'lower': 1.235, 'std_error': 0.645, 'upper': 3.765, 'value': 2.5}
    """

    confidence: float
    method: Literal["auto", "delta", "wilson"]
    moments: TwoMoments = state()
    """The moments of the parts of each row in the numerator and in the denominator."""

    def __init__(
        self,
        metric: Metric,
        confidence: float = 0.95,
        *,
        method: Literal["auto", "delta", "wilson"] = "auto",
    ):
        self.metric = checked_metric(metric, "Interval")
        self.confidence = checked_confidence(confidence, "Interval")
        choice(method, ("auto", "delta", "wilson"), "method")
        ratio = jax.eval_shape(lambda: metric.as_ratio())
        if ratio is None:
            raise MetricInputError(
                f"Interval: {metric!r} is not a ratio of two sums. Expected a mean, or a ratio of "
                f'counts that is binary, or has average="micro" or None; for other metrics there '
                f"is Bootstrap, and the members of a collection are wrapped one by one"
            )
        if method == "wilson" and not metric.is_proportion:
            raise MetricInputError(
                f'Interval: method="wilson" is for proportions, and {type(metric).__name__} is '
                f'none; expected "delta"'
            )
        usual = "wilson" if metric.is_proportion else "delta"
        self.method = usual if method == "auto" else method
        self.moments = TwoMoments(ratio[0].shape, crossed=True)

    def _apply(self, calls: PyTree) -> Self:
        metric = self.metric.apply(calls)
        with in_update(checks="none"):  # the values have just been checked
            a, b = terms_of_rows(self.metric.emptied(), calls, rows_of(calls))
        counts = (a.to_float() != 0) | (b.to_float() != 0)
        moments = self.moments.combine(self.moments.of_two(a, b, counts))
        return self.with_parts({"metric": metric, "moments": moments})

    def reading(self) -> Reading:
        whole = self.metric.reading()
        ratio: PyTree = self.metric.as_ratio()
        a, b = map(_scaled, ratio)
        r = a / b
        # sum (a - r b)**2 = sum a**2 + r**2 sum b**2 - 2 r sum a b, here of centred moments: at the
        # ratio of the sums, the mean of a - r b is 0. All are in units of a power of two.
        count, means, (squares,) = self.moments.scaled()
        n, mean = count[0].to_float(), means[1]
        left = squares[0] + r * r * squares[1] - r * self.moments.co_moment * 2
        left = ScaledDouble(_not_negative(left.double), left.exponent)
        error = (left / (b * b)).root()
        if self.metric.is_proportion:
            error = nan_where(n < 1, error)
        else:
            error = nan_where(n < 2, error * xp.sqrt(n / xp.maximum(n - 1, 1)))
        # Half of what is outside the interval is above it, so z is the quantile at (1 + c) / 2.
        z = NormalDist().inv_cdf((1 + self.confidence) / 2)
        value = xp.asarray(whole.value)
        if self.method == "wilson":
            # Kish's effective sample size (sum b)**2 / sum b**2, from the centred moment of b.
            size = (b * b / (squares[1] + count[0] * (mean * mean))).to_float()
            lower, upper = _wilson(value, size, z)
        else:
            lower, upper = value - z * error, value + z * error
        ends = {"lower": lower, "upper": upper, "std_error": error}
        ends = {name: nan_where(xp.isnan(value), x) for name, x in ends.items()}
        return replace(whole, value={"value": whole.value, **ends}, bounds={})


def _scaled(x: DoubleFloat) -> ScaledDouble:
    """The number in units of its own power of two, so that its square does not overflow."""
    power = exponent_of(x.high)
    return ScaledDouble(x.map(lambda part: times_power_of_two(part, -power)), power)


def _not_negative(x: DoubleFloat) -> DoubleFloat:
    """Zero where rounding has made a sum of squares negative."""
    return x.map(lambda part: xp.where(x.high < 0, xp.zeros((), part.dtype), part))


def _wilson(p: jax.Array, n: jax.Array, z: float) -> tuple[jax.Array, jax.Array]:
    """The interval of Wilson for a proportion `p` of `n` observations."""
    # The p0 at which |p - p0| = z sqrt(p0 (1 - p0) / n), the roots of a quadratic.
    spread = z * z / n
    center = (p + spread / 2) / (1 + spread)
    half = xp.sqrt(p * (1 - p) * spread + spread * spread / 4) / (1 + spread)
    return xp.maximum(center - half, 0), xp.minimum(center + half, 1)


def terms_of_rows(empty: Metric, call: Call, rows: int) -> PyTree:
    """The numerator and the denominator of each row, each with a leading axis of rows."""
    if rows and adds_by_row(empty, call):
        terms = kept_apart(empty, call, rows)
        terms = map_leaf_states(lambda states: [each.as_state() for each in states], terms)
        ratio: PyTree = terms.as_ratio()
        return [x.map(lambda part: xp.moveaxis(part, -1, 0)) for x in ratio]
    return vmap(lambda call: empty.apply(call).as_ratio())(by_rows(call, rows))
