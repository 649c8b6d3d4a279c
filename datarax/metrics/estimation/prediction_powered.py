"""A mean from few true labels and many predicted ones: prediction-powered inference."""

from statistics import NormalDist
from typing import Self

import jax

from datarax._checks import as_float, checked_confidence, float_dtype, integers, numeric, same_shape
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import field
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.numerics.double_float import DoubleFloat, concatenate, float_product, stack, where
from datarax.numerics.limbs import has_many_digits
from datarax.numerics.scaling import nan_where, times_power_of_two
from datarax.statistics.batches import broadcast_leading, rows_weight
from datarax.statistics.cross_moments import TwoMoments
from datarax.statistics.invalid_counts import CountsInvalid, not_finite


class JudgedMoments(CountsInvalid):
    """Moments of judged and true values of rows, some of which are labelled.

    Each row is an observation, and a row of weight w adds `w * target`, `w * judged` and `w`, as
    the parts of a ratio. So the moments hold the sums of squared weights that a standard error
    needs.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.estimation.prediction_powered import JudgedMoments
        >>> judged, target = jnp.array([1.0, 3.0, 5.0]), jnp.array([2.0, jnp.nan, jnp.nan])
        >>> seen = JudgedMoments().update(judged, target, jnp.array([True, False, False]))
        >>> print(seen.pairs.scaled()[0].to_float()[0], seen.invalid.value)
        [1. 1. 1. 2.] 0
    """

    pairs = TwoMoments((4,), crossed=True)
    """Of labelled rows: of (target, judged), (target, weight) and (judged, weight); of the others,
    of (judged, weight). Targets and judged values are multiplied by the weight of the row."""

    def update(
        self,
        judged: ArrayLike,
        target: ArrayLike,
        labelled: ArrayLike,
        *,
        weights: Weights = None,
    ) -> Self:
        """Folds in rows of any shape; a target counts where `labelled` is true."""
        given = numeric(judged, "judged"), numeric(target, "target")
        same_shape(*given, ("judged", "target"))
        f, y = map(as_float, given)
        known = integers(labelled, "labelled", "booleans", booleans=True).astype(xp.bool_)
        known = broadcast_leading(known, f.shape, "labelled")
        y = xp.where(known, y, xp.zeros((), y.dtype))
        w, invalid = rows_weight(not_finite(f) | not_finite(y), weights)
        w = xp.broadcast_to(w, f.shape)
        counts = w.astype(xp.bool_)
        f, y = (xp.where(counts, x, xp.zeros((), x.dtype)) for x in (f, y))
        is_mask, w = w.dtype == xp.bool_, w.astype(float_dtype(f))[..., None]
        weight, first = DoubleFloat.of(w).finite, xp.stack([y, y, f, f], -1)
        first = DoubleFloat.of(first).finite if is_mask else float_product(w, first)
        mine, others = counts & known, counts & ~known
        return self.with_batch(
            invalid,
            pairs=self.pairs.plus_two(
                first,
                concatenate([first[..., 3:], weight, weight, weight], -1),
                xp.stack([mine, mine, mine, others], -1),
                many_digits=any(map(has_many_digits, given)),
            ),
        )


class PredictionPoweredMean(Metric):
    """The mean of a true value of which few are known, with the help of a judge of all rows.

    PPI++: an unbiased estimate of the mean of `target` over all rows, of which only those that are
    `labelled` have one, while a judge (such as a language model) gives each row a value. With y and
    f the means of `target` and `judged` over the labelled rows, and g that of `judged` over the
    others, the value is `y + lambda * (g - f)`. The lambda within 0 and 1 with the least variance
    is estimated: near 0 for a useless judge, and then the value is the mean of the labelled rows.
    However biased the judge is, the estimate is not, if the labelled rows are drawn at random.

    A dict. "value", "std_error", and the normal interval from "lower" to "upper"; "judge_only", the
    mean of `judged` over all rows; "labelled_only", the mean of `target` over the labelled ones;
    and "lambda". The standard error is `sqrt(lambda**2 var(judged) / N + var(target - lambda
    judged) / n)`, of N rows without and n with a label, and variances without Bessel's correction.
    It is NaN for a single labelled row. Without labelled rows, all but "judge_only" are NaN.
    Without other rows, lambda is 0. The state is 26 sums and means. Rows are independent
    observations: a row of weight 2 is one observation, which counts twice in means.

    As `ppi_mean_ci` of `ppi_python`, which takes the labelled rows apart. A. N. Angelopoulos,
    J. C. Duchi and T. Zrnic (2023), PPI++, https://arxiv.org/abs/2311.01453.

    Raises:
        MetricInputError: `confidence` is not between 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PredictionPoweredMean
        >>> judged = jnp.array([0.9, 0.2, 0.6, 0.4, 0.8, 0.7, 0.3, 0.9])
        >>> target = jnp.array([1, 0, 1, 0, 0, 0, 0, 0])
        >>> labelled = jnp.arange(8) < 4
        >>> metric = PredictionPoweredMean().update(judged, target, labelled=labelled)
        >>> for name, value in metric.results().items():
        ...     print(name, round(value, 3))
        judge_only 0.6
        labelled_only 0.5
        lambda 0.865
        lower 0.258
        std_error 0.19
        upper 1.002
        value 0.63
    """

    confidence: float = field(default=0.95, kw_only=False)
    """The probability with which the interval covers the true mean."""
    weights_repeat = False

    statistic = JudgedMoments()

    def __post_init__(self) -> None:
        self.confidence = checked_confidence(self.confidence, "PredictionPoweredMean")

    @shareable
    def update(
        self,
        judged: ArrayLike,
        target: ArrayLike,
        *,
        labelled: ArrayLike,
        weights: Weights = None,
    ) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            judged: the value that the judge gives each row, of any shape and real dtype.
            target: the true value of each row, of the same shape; where `labelled` is false it is
                not read, and may be NaN.
            labelled: a mask of the rows whose true value is known, which broadcasts against the
                leading axes.
            weights: broadcast against the leading axes.

        Raises:
            MetricInputError: the shapes differ, or a mask or weights do not broadcast; shows both.
            MetricTypeError: arguments that are not numbers, or `labelled` is no mask.
        """
        seen = self.statistic.update(judged, target, labelled, weights=weights)
        return self.replace(statistic=seen)

    def compute(self) -> dict[str, PyTree]:
        pairs = self.statistic.pairs
        # All values in one unit, and all weights in another one, so that no square leaves the range
        # of floats. Only the first variable of all pairs, and the second of the first, are values.
        exponent, count_unit = pairs.exponents
        is_value = xp.asarray([[True] * 4, [True, False, False, False]])
        least = xp.int32(-(2**30))
        values, weights = (
            xp.max(xp.where(mask, exponent, least)) for mask in (is_value, ~is_value)
        )
        held = pairs.in_units((xp.where(is_value, values, weights), xp.zeros_like(count_unit)))
        count, means, (squares,) = held.doubles()
        numbers = concatenate([count, means, squares, held.co_double.reshape(1, 4)])
        found = _estimates(numbers).evaluated(_with_root)
        value, error, judge, labelled = (
            times_power_of_two(found[i], values - weights) for i in range(4)
        )
        error = nan_where(count[0, 0].to_float() < 2, error)
        # Half of what is outside the interval is above it.
        z = NormalDist().inv_cdf((1 + self.confidence) / 2)
        return {
            "value": value,
            "lower": value - z * error,
            "upper": value + z * error,
            "std_error": error,
            "judge_only": judge,
            "labelled_only": labelled,
            "lambda": found[4],
        }


def _estimates(rows: DoubleFloat) -> DoubleFloat:
    """Value, squared standard error, both means and lambda, (5,), from moments of the pairs."""
    n, m = rows[0, 0], rows[0, 3]
    # Means over rows of what each adds: w y, w f and w of labelled rows, w f and w of the others.
    ty, tf, tg, tw, tv = rows[2, 0], rows[2, 2], rows[2, 3], rows[3, 2], rows[3, 3]
    yy, ff, gg, ww, vv = rows[4, 0], rows[4, 2], rows[4, 3], rows[5, 2], rows[5, 3]
    yf, yw, fw, gv = (rows[6, i] for i in range(4))
    w, v = n * tw, m * tv
    y, f, g, every = ty / tw, tf / tw, tg / tv, (n * tf + m * tg) / (w + v)
    # sum w**2 (x - r) (z - s) over rows, r and s the ratios: of moments about the means over rows,
    # as the mean of w (x - r) is 0.
    both = yf - y * fw - f * yw + y * f * ww
    of_target = yy - y * yw * 2 + y * y * ww
    of_judged = ff - f * fw * 2 + f * f * ww
    of_others = gg - g * gv * 2 + g * g * vv
    # The variance of judged values over all rows, about their common mean.
    spread = ff + gg - every * (fw + gv) * 2 + every * every * (ww + vv)
    judged, others = tf - every * tw, tg - every * tv
    spread = spread + n * judged * judged + m * others * others
    q, p = ww + w * tw, vv + v * tv  # sums of squared weights
    zero = spread.map(xp.zeros_like)
    # What rounding leaves of equal values is no variance: of what is subtracted, and of the means.
    rounded = (ff + gg + every * every * (ww + vv)) * _ROUNDED
    rounded = rounded + every * every * (q + p) * _ROUNDED**2
    spread = where(spread > rounded, spread, zero)
    power = both / (w * w) / (spread / (q + p) * (q / (w * w) + p / (v * v)))
    power = where(power < 0, zero, where(power > 1, zero + 1, power))
    power = where((spread > 0) & (m > 0), power, zero)
    left = of_target - power * both * 2 + power * power * of_judged
    left = where(left < 0, zero, left)
    variance = power * power * of_others / (v * v) + left / (w * w)
    alone = power == 0  # then the other rows, if there are any, do not count
    variance = where(alone, of_target / (w * w), variance)
    value = where(alone, y, y + power * (g - f))
    power = power.map(lambda part: nan_where(~(n > 0), part))
    return stack([value, where(variance < 0, zero, variance), every, y, power])


def _with_root(found: jax.Array) -> jax.Array:
    """The values, with the square root of the second."""
    value, variance, *rest = found
    return xp.stack([value, xp.sqrt(variance), *rest])


_ROUNDED = 2.0**-44
"""A sum of squares about the mean below this fraction of the sum of squares is taken for 0."""
