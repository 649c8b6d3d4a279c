"""`Interval`: the standard error and the interval of a mean, a ratio, a count or an area."""

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Literal, Self, get_args

import jax

from datarax._checks import checked_confidence, choice
from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax._update_context import in_update
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.algebra.fold import in_one_pass
from datarax.algebra.rows import Target
from datarax.metric.arguments import taken_from
from datarax.metric.base import Metric
from datarax.metric.reading import Reading
from datarax.metric.rows import empty_place, rows_of, updated_at
from datarax.metric.sampling import Sampling, Spread
from datarax.metric.unusable import Undefined
from datarax.numerics.double_float import DoubleFloat, stack
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.scaling import nan_where
from datarax.statistics.cross_moments import TwoMoments
from datarax.statistics.row_sample import INDEX
from datarax.wrappers.clusters import (
    CLUSTER,
    ClusterSums,
    check_argument_is_free,
    checked_ids,
    given_ids,
)
from datarax.wrappers.ratios import (
    OUT_OF_RANGE,
    corrected,
    hold_float64,
    is_hidden,
    not_negative,
    scaled_ratio,
    sum_of_squares,
    terms_of_rows,
)
from datarax.wrappers.wrapper import WithArgument, checked_metric, prefixed

Method = Literal["auto", "delta", "wilson", "delong", "woodruff"]


class Interval(WithArgument):
    """The value of a metric, with its standard error and interval, by a formula.

    It is for means, ratios and proportions, for functions of the counts of classes, such as the
    Matthews correlation or a macro F1, for areas, R2 and correlations. It costs little more than
    the metric, and needs no replicas: five numbers for each value of a ratio. For other metrics,
    see `Bootstrap`.

    `update` takes what that of the metric takes. `compute` gives a dict with `value`, `lower`,
    `upper` and `std_error`, each of the shape of the metric's value. NaN without data; the
    standard error of a mean is NaN for one row.

    The rows are the independent observations: a row is an index of the first axis of the arguments.
    So the values of one row (the tokens of a document) may depend on each other. With a_i and b_i
    the parts of row i in the numerator and the denominator, and r their ratio over all rows, the
    standard error is that of the delta method, `sqrt(sum (a_i - r b_i)**2) / sum b_i`. Except for
    proportions it is multiplied by `sqrt(n / (n - 1))`, of n rows, so that it is the usual standard
    error of a mean. A row of weight 2 is one observation, not two.

    With `clusters`, rows that belong together (the questions on one text, the samples of one
    question) are one observation. `update` then also takes `cluster`, the integer id of each row,
    or one for all rows. With the sums of a - r b by cluster, the standard error is
    `sqrt(G / (G - 1) * sum over clusters (sum of a - r b)**2) / sum b`, for G clusters: that of a
    regression on a constant with robust errors by cluster. It is NaN for one cluster. Ids from 0 to
    `clusters - 1` have cells of their own, and the result is exact. Any other integer, also of 64
    bits, is hashed to a cell and a sign, so there may be more ids than cells. The square of the
    standard error is then right in expectation, up to the factor G / (G - 1) in which G is the
    number of cells with data. The standard error of one data set deviates by about
    `1 / sqrt(2 * clusters)`: by 0.8 to 1.3 % for 4096 cells and 100 to 100,000 clusters.

    The interval is `value ± z * std_error`, cut off at the `value_range` of the metric. For
    proportions (accuracy, precision, recall, specificity and the like), and for ratios whose class
    has a finite `value_range`, it is the interval of Wilson, which stays within the range and
    covers also near its ends, where the standard error is too small. Weighted rows of a proportion
    count as `(sum b)**2 / sum b**2` observations. Those of other ratios, and clusters, count as the
    number N of independent ones with this standard error: with the value p as a share of the range,
    the standard error e, and m rows or clusters of equal weight, `N = (p (1 - p) + q) /
    (e**2 + q / m)` with `q = 1 / (4 m)`. So N is m where the standard error is 0. A ratio without
    bounds has no interval then: NaN, with a warning.

    A root or an exponential of such a ratio (`RootMeanSquaredError`, `Perplexity`) has its standard
    error times the slope of the function.

    For other functions of counts by class (macro and weighted averages, `MatthewsCorrCoef`,
    `CohenKappa`, `GeometricMeanScore`), the standard error is that of the delta method. With g the
    derivative of the value by the weight of a row, which depends on its target and its prediction
    alone, it is `sqrt(n / (n - 1) * sum (w g)**2)`. A table has the squared weights by target and
    prediction, up to 64 classes; of several labels by the kinds of each two of them, up to 22
    labels. Inside `jit` the derivatives are differences of floats: of more
    than a million rows, read such an interval outside it.

    For `R2Score`, `ExplainedVariance`, `PearsonCorrCoef` and `ConcordanceCorrCoef` it is the delta
    method, too: the influence of a row is a polynomial of its prediction and its target, so the sum
    of squares follows from moments up to the fourth. Correlations are transformed as by Fisher, so
    the interval stays within -1 and 1. Weighted rows count as `(sum w)**2 / sum w**2`. It is NaN
    where the standard deviations of both variables differ by a factor of more than 2**18. For
    `SpearmanCorrCoef` and `KendallTau` the influence of each example follows from the ranks of the
    examples that are kept; these intervals are transformed in the same way.

    For `Variance` and `Std` it is the delta method, from the fourth moment, and the interval is
    symmetric on the scale of the logarithm: `value * exp(± z * std_error / value)`. Weighted rows
    count as `(sum w)**2 / sum w**2`. Of heavy tails it covers too seldom: 0.87 instead of 0.95 for
    100 rows of an exponential distribution, 0.92 for 400.

    For `AUROC` and `Gini` it is that of DeLong, from the bins. For `AveragePrecision` it is the
    delta method, with the influence of each row from the bins. Weighted rows of a class count as
    `(sum w)**2 / sum w**2` there, which is exact where weights do not depend on the scores. Of an
    average over classes, the areas depend on each other. How much, a random sample of rows with all
    their scores shows, in 64 KiB: while the rows fit, all of them (some 1,000 of ten classes).
    Beyond that, the standard error of a macro AUROC of ten classes deviates by 0.1 to 0.4 %, of 40
    by 0.3 to 2 %. `update` then takes `index`, too, the global id of each row: with it, the sample
    does not depend on the mesh or the batches.

    For `Median`, `Quantile` and `MedianAbsoluteError` the ends are quantiles themselves, at
    `q ± z * sqrt(q (1 - q) / n)`, which is the interval of the binomial distribution for the rank;
    they are moved outward to the certain bounds of the bins. The standard error is that of
    Woodruff, `(upper - lower) / (2 z)`. An end is infinite where so few rows have no such rank.
    Weighted rows count as `(sum w)**2 / sum w**2`.

    Where the data do not vary (all positives score above all negatives, or all predictions are
    right), the standard error of these is NaN, with a warning. They take rows of one example.

    Args:
        metric: a metric without data that is a ratio of two sums, or a root or an exponential of
            one: `Mean`, `Ratio`, losses such as `LogLoss`, `MeanSquaredError`, `MeanAbsoluteError`
            and `Perplexity`, and ratios of counts such as `Accuracy`, `Precision`, `F1` and
            `JaccardIndex` of a binary task, with `average="micro"` or with `average=None`. Or
            another function of the counts of classes or labels. Or `AUROC`, `Gini` or
            `AveragePrecision`, of averages up to some 60 classes or 30 labels. Or `Median`,
            `Quantile` or `MedianAbsoluteError`. Or `R2Score`, `ExplainedVariance`,
            `PearsonCorrCoef` or `ConcordanceCorrCoef` of one output, or with
            `multioutput="raw_values"`. Or `SpearmanCorrCoef`, without `bits`, or `KendallTau`. Or
            `Variance` or `Std`.
        confidence: the probability with which the interval covers the true value.
        method: "wilson" for a proportion and other bounded ratios, "delong" for an area under the
            ROC curve, "woodruff" for a quantile, "delta" for the others and for any ratio; "auto"
            is the first that applies.
        clusters: for ratios: how many cells the table of clusters has; each takes 16 bytes for
            each value. None if rows are independent.

    Raises:
        MetricInputError: the metric is no such ratio, or has data; `method` does not apply to it;
            `clusters` is less than 2; or, by `update`, `cluster` is left out or has another shape.
        MetricTypeError: `metric` is not a metric.

    References:
        E. B. Wilson (1927), Probable inference, the law of succession, and statistical inference,
        https://doi.org/10.1080/01621459.1927.10502953.
        W. G. Cochran (1977), Sampling techniques, chapter 6, on ratio estimators.
        E. Miller (2024), Adding error bars to evals, https://arxiv.org/abs/2411.00640, on clusters.
        E. R. DeLong et al. (1988), Comparing the areas under two or more correlated receiver
        operating characteristic curves, https://doi.org/10.2307/2531595.
        R. S. Woodruff (1952), Confidence intervals for medians and other position measures,
        https://doi.org/10.1080/01621459.1952.10483443.
        E. L. Korn and B. I. Graubard (1998), Confidence intervals for proportions with small
        expected number of positive counts estimated from survey data, Survey Methodology 24.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import Interval
        >>> from datarax.metrics import Mean
        >>> loss = Interval(Mean()).update(jnp.array([1.0, 2.0, 3.0, 4.0]))
        >>> print({name: round(x, 3) for name, x in loss.results().items()})
        {'lower': 1.235, 'std_error': 0.645, 'upper': 3.765, 'value': 2.5}

        Two samples of each of four questions:

        >>> question = jnp.arange(8) // 2
        >>> right = jnp.array([1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0])
        >>> score = Interval(Mean(), clusters=4).update(right, cluster=question)
        >>> print({name: round(x, 3) for name, x in score.results().items()})
        {'lower': 0.156, 'std_error': 0.239, 'upper': 1.094, 'value': 0.625}
    """

    weights_repeat = False
    hidden_names = frozenset({"moments", "sums", "squares"})

    confidence: float
    method: Method
    clusters: int | None
    # One of the three, by what the value is and whether rows belong together.
    moments: PyTree = state(optional=True)
    """Without clusters: the moments of the parts of each row in the numerator and in the
    denominator."""
    sums: PyTree = state(optional=True)
    """With clusters: the sums of these parts, by cluster."""
    squares: PyTree = state(optional=True)
    """Of a metric that is no ratio: what its `Sampling` needs for the variance."""

    def __init__(
        self,
        metric: Metric,
        confidence: float = 0.95,
        *,
        method: Method = "auto",
        clusters: int | None = None,
    ):
        self.metric = checked_metric(metric, "Interval")
        self.confidence = checked_confidence(confidence, "Interval")
        choice(method, get_args(Method), "method")
        sampling = metric.sampling()
        # Only whether there is one, and its shape: nothing is computed.
        ratio = jax.eval_shape(lambda: sampling.ratio())
        squares = None if ratio is not None else sampling.squares()
        if ratio is None and (squares is None or clusters is not None):
            raise MetricInputError(
                f"Interval: there is no formula for {metric!r}"
                f"{'' if clusters is None else ' with clusters'}. Expected a mean, or a ratio of "
                f'counts that is binary, or has average="micro" or None; or, without clusters, a '
                f"function of the counts of up to 64 classes or 22 labels, a quantile, a variance, "
                f"AUROC, Gini or AveragePrecision, of averages up to some 60 classes or 30 labels, "
                f"R2, an explained variance or a correlation of one output; for other metrics "
                f"there is Bootstrap, and the members of a collection are wrapped one by one"
            )
        is_bounded = metric.is_proportion or all(map(math.isfinite, metric.value_range))
        if method == "wilson" and not (is_bounded and ratio is not None):
            raise MetricInputError(
                f'Interval: method="wilson" is for proportions, and for ratios whose class says '
                f"both ends of its value_range; {type(metric).__name__} is neither; expected "
                f'"delta"'
            )
        usual = "wilson" if is_bounded else "delta"
        usual = sampling.method if ratio is None else usual
        if method not in ("auto", usual) and not {method, usual} <= {"delta", "wilson"}:
            raise MetricInputError(
                f"Interval: method={method!r}, and the interval of {type(metric).__name__} is that "
                f"of method={usual!r}"
            )
        self.method = usual if method == "auto" else method
        self.clusters = clusters
        if ratio is None:
            self.squares = squares
            return
        if clusters is None:
            # Moments, not sums of squares: these cancel where the values are far from zero.
            self.moments = TwoMoments(ratio[0].shape, crossed=True)
            return
        check_argument_is_free(metric, "Interval")
        self.sums = ClusterSums(clusters, ratio[0].shape)

    @property
    def own(self) -> str | None:
        if self.clusters is not None:
            return CLUSTER
        # The variance comes from a sample of the rows if the squares take their ids.
        routes = () if self.squares is None else self.squares.routes()
        return INDEX if any(route.argument == INDEX for route in routes) else None

    @property
    def needs_own(self) -> bool:  # type: ignore[override]
        """True if the argument is required: `cluster` is, and `index` is not."""
        return self.clusters is not None

    def calls(self, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> PyTree:
        if self.clusters is None:
            return super().calls(args, kwargs)
        ids = given_ids(kwargs.get(CLUSTER), f"Interval({type(self.metric).__name__})")
        return super().calls(args, {**kwargs, CLUSTER: ids})

    def _apply(self, calls: PyTree) -> Self:
        if self.sums is not None:
            ids, terms, calls = self._of_clusters(calls, self.metric.emptied())
            metric, sums = self.metric.apply(calls), self.sums.plus(ids, terms)
            return self.with_parts({"metric": metric, "sums": sums})
        metric = self.metric.apply(taken_from(calls, INDEX)[1])
        if self.squares is not None:
            with in_update(checks="none"):  # the metric checks the values
                squares = self.squares.apply(calls)
            return self.with_parts({"metric": metric, "squares": squares})
        with in_update(checks="none"):  # the values have just been checked
            a, b = terms_of_rows(self.metric.emptied(), calls, rows_of(calls))
        # A row of weight zero, or that cannot be used, adds 0 to both sums, and is no observation.
        counts = (a.to_float() != 0) | (b.to_float() != 0)
        # Values of float64 far from zero would lose the digits in which they differ.
        many = hold_float64(calls)
        (moments,) = in_one_pass(self.moments.plus_two(a, b, counts, many_digits=many))
        return self.with_parts({"metric": metric, "moments": moments})

    def apply_at(self, calls: PyTree, target: Target) -> Self:
        if self.squares is not None:
            with in_update(checks="none"):
                squares = self.squares.apply_at(calls, target)
            metric = self.metric.apply_at(taken_from(calls, INDEX)[1], target)
            return self.with_parts({"metric": metric, "squares": squares})
        if self.sums is None:
            return updated_at(self, calls, target)
        # `cluster` is no argument of the metric, so it is taken out of its calls.
        ids, terms, calls = self._of_clusters(calls, empty_place(self.metric))
        metric, sums = self.metric.apply_at(calls, target), self.sums.plus_at(ids, terms, target)
        return self.with_parts({"metric": metric, "sums": sums})

    def _of_clusters(self, calls: PyTree, empty: Metric) -> tuple[jax.Array, DoubleFloat, PyTree]:
        """The ids of rows, their terms (2, *shape, rows), and the calls without the ids."""
        given, calls = taken_from(calls, CLUSTER)
        rows = rows_of(calls)
        with in_update(checks="none"):  # the metric checks the values
            terms = stack(terms_of_rows(empty, calls, rows))
        return checked_ids(given, rows), terms.map(lambda x: xp.moveaxis(x, 1, -1)), calls

    def reading(self) -> Reading:
        whole, sampling = self.metric.reading(), self.metric.sampling()
        # Half of what is outside the interval is above it, so z is the quantile at (1 + c) / 2.
        z = NormalDist().inv_cdf((1 + self.confidence) / 2)
        value = xp.asarray(whole.value)
        if self.squares is None:
            found = self._of_ratio(sampling, value, z)
        else:
            found = sampling.spread(value, self.squares, z)
        # Where the value is NaN by its policy, so is what follows from it.
        none = xp.isnan(value)
        ends = {"lower": found.lower, "upper": found.upper, "std_error": found.error}
        return replace(
            whole,
            value={"value": whole.value} | {name: nan_where(none, x) for name, x in ends.items()},
            bounds=prefixed([("value", whole.bounds)]),
            undefined={"": (*found.unknown, *whole.undefined.get("", ()))},
        )

    def _of_ratio(self, sampling: Sampling, value: jax.Array, z: float) -> Spread:
        """The interval of `z` standard errors of a ratio of sums, or a function of one."""
        a, b = scaled_ratio(self.metric)
        ratio = a / b
        if self.sums is None:
            error, n, size = self._of_moments(ratio, b)
        else:
            error, n = self._of_sums(ratio, b)
            size = n
        if self.method == "wilson":
            error = error * sampling.slope()
            return Spread(*self._wilson_ends(value, error, n, size, z), error)
        r = ratio.to_float()
        # Equal rows leave a rounding error, and say nothing of others.
        equal = (n >= 2) & (error <= xp.abs(r) * 2.0**-44)
        out = (n >= 2) & xp.isnan(error) & ~xp.isnan(r)
        error = nan_where(equal, error) * sampling.slope()
        reasons = Undefined(equal, sampling.constant), Undefined(out, OUT_OF_RANGE)
        return Spread(*sampling.ends(value, z * error), error, reasons)

    def _wilson_ends(
        self, value: jax.Array, error: jax.Array, n: jax.Array, size: jax.Array, z: float
    ) -> tuple[jax.Array, jax.Array]:
        """The interval of Wilson, of a value within the bounds of its class."""
        least, greatest = self.metric.value_range
        if not (math.isfinite(least) and math.isfinite(greatest)):
            least, greatest = 0.0, 1.0
        width = greatest - least
        p = xp.clip((value - least) / width, 0, 1)
        if not (self.metric.is_proportion and self.sums is None):
            # As many independent observations of 0 and 1 have this standard error. Few rows that
            # happen to be alike say little: to both variances a quarter of one row is added.
            count = xp.maximum(n, 2)
            # `error` has the factor n / (n - 1), which the interval of Wilson does not have.
            uncorrected = (error / width) ** 2 * ((count - 1) / count)
            more = 0.25 / size
            size = (p * (1 - p) + more) / (xp.where(n < 2, 0, uncorrected) + more / size)
        lower, upper = _wilson(p, size, z)
        return least + width * lower, least + width * upper

    def _of_moments(
        self, r: ScaledDouble, b: ScaledDouble
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Of a ratio r and its denominator b: the standard error, the number of rows, and how many
        of equal weight they count as."""
        # sum (a - r b)**2 = sum a**2 + r**2 sum b**2 - 2 r sum a b, here of centred moments: at the
        # ratio of the sums, the mean of a - r b is 0. All are in units of a power of two.
        count, means, (squares,) = self.moments.scaled()
        n, mean = count[0].to_float(), means[1]
        left = squares[0] + r * r * squares[1] - r * self.moments.co_moment * 2
        left = ScaledDouble(not_negative(left.double), left.exponent)
        error = (left / (b * b)).root()
        if self.metric.is_proportion:
            error = nan_where(n < 1, error)
        else:
            error = corrected(error, n)
            # With weights, values far from zero make large terms, whose rounding may hide the rest.
            if self.method == "delta":
                error = xp.where(is_hidden(r * r * squares[1], left), 0, error)
        # Kish's effective sample size (sum b)**2 / sum b**2, from the centred moment of b.
        size = (b * b / (squares[1] + count[0] * (mean * mean))).to_float()
        return error, n, size

    def _of_sums(self, r: ScaledDouble, b: ScaledDouble) -> tuple[jax.Array, jax.Array]:
        """The same, where the clusters are the observations."""
        factor = r.to_double()
        left = sum_of_squares(self.sums.residuals(-factor))
        seen = xp.sum(self.sums.occupied, 0, dtype=xp.int32).astype(factor.dtype)
        return corrected((left / (b * b)).root(), seen), nan_where(seen < 2, seen)


def _wilson(p: jax.Array, n: jax.Array, z: float) -> tuple[jax.Array, jax.Array]:
    """The interval of Wilson for a proportion `p` of `n` observations."""
    # The p0 at which |p - p0| = z sqrt(p0 (1 - p0) / n), the roots of a quadratic.
    spread = z * z / n
    center = (p + spread / 2) / (1 + spread)
    half = xp.sqrt(p * (1 - p) * spread + spread * spread / 4) / (1 + spread)
    return xp.maximum(center - half, 0), xp.minimum(center + half, 1)
