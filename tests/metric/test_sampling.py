"""`Sampling`: the standard errors of metrics of one's own, and which metrics have none."""

import jax
import numpy as np
import pytest
import scipy.stats

import datarax
from datarax import Interval, MetricAccumulator, metrics
from datarax._xp import xp
from datarax.metric.sampling import Sampling
from datarax.statistics import WeightedTotal


class LogSampling(Sampling):
    """The standard error of the logarithm of a mean."""

    def ratio(self):
        statistic = self.metric.statistic
        return statistic.total.double, statistic.weight.double

    def slope(self):
        return 1 / self.metric.statistic.mean


class LogMean(datarax.Metric):
    """The logarithm of a mean."""

    statistic = WeightedTotal()

    def compute(self):
        return xp.log(self.statistic.mean)

    def sampling(self):
        return LogSampling(self)


class Powers(datarax.Metric):
    """The sums of the powers of values up to the fourth."""

    sums = MetricAccumulator(np.zeros(5))

    def update(self, values):
        values = xp.asarray(values)
        return self.replace(sums=self.sums.update(xp.stack([values**i for i in range(5)], -1)))


class SpreadSampling(Sampling):
    """The standard error of a variance: that of the mean of squares of distances."""

    constant = "nothing varies"

    def squares(self):
        return Powers()

    def variance(self, squares):
        n, *powers = squares.sums.value
        a, b, c, d = (x / n for x in powers)
        fourth = d - 4 * a * c + 6 * a * a * b - 3 * a**4
        return (fourth - (b - a * a) ** 2) / n

    def ends(self, value, margin):
        lower, upper = super().ends(value, margin)
        return xp.maximum(lower, 0), upper


class Spread(datarax.Metric):
    """The variance of values, divided by n."""

    powers = Powers()

    def update(self, values):
        return self.replace(powers=self.powers.update(values))

    def compute(self):
        n, first, second, *_ = self.powers.sums.value
        return second / n - (first / n) ** 2

    def sampling(self):
        return SpreadSampling(self)


def test_of_a_function_of_a_ratio(rng):
    x = rng.uniform(1, 3, 60)
    interval = Interval(LogMean())
    found = interval.update(x).results()
    error = scipy.stats.sem(x) / x.mean()
    np.testing.assert_allclose(found["std_error"], error, rtol=1e-6)
    np.testing.assert_allclose(found["upper"], np.log(x.mean()) + 1.959964 * error, rtol=1e-6)
    clustered = Interval(LogMean(), clusters=60).update(x, cluster=np.arange(60)).results()
    np.testing.assert_allclose(clustered["std_error"], error, rtol=1e-6)


def test_of_a_value_that_is_no_ratio(rng):
    x = rng.normal(size=80).astype(np.float32)
    interval = Interval(Spread()).update(x)
    assert interval.method == "delta"
    assert interval.state_dict()["state"].keys() == {"metric", "squares"}
    apart = (x - x.mean(dtype=np.float64)) ** 2
    for found in (interval, jax.jit(Interval(Spread()).update)(x)):
        np.testing.assert_allclose(
            found.results()["std_error"], apart.std() / np.sqrt(80), rtol=1e-4
        )
    ids = np.arange(80) % 2
    sliced = datarax.Sliced(Interval(Spread()), 2).update(x, slices=ids).results()
    alone = Interval(Spread()).update(x[ids == 1]).results()
    np.testing.assert_allclose(sliced["1"]["std_error"], alone["std_error"], rtol=1e-5)
    with pytest.warns(datarax.PrecisionWarning, match="nothing varies"):
        assert np.isnan(Interval(Spread()).update(np.float32([2, 2, 2])).results()["std_error"])


@pytest.mark.parametrize("metric", [metrics.Max(), metrics.AUROC(max_fpr=0.5)])
def test_a_metric_without_a_formula(metric):
    sampling = metric.sampling()
    assert sampling.ratio() is sampling.squares() is sampling.paired_sample() is None
    with pytest.raises(datarax.MetricInputError, match="there is no formula"):
        Interval(metric)
    for call in (lambda: sampling.variance(None), lambda: sampling.paired_variance(metric, None)):
        with pytest.raises(TypeError, match=r"Sampling does not define (paired_)?variance\(\)"):
            call()
