"""`MeanAbsoluteScaledError` and `RootMeanSquaredScaledError`: worked examples, series, shapes."""

import numpy as np
import pytest

from datarax import Interval, MetricInputError
from datarax.metrics import MeanAbsoluteScaledError, RootMeanSquaredScaledError

SCALED = {MeanAbsoluteScaledError: 1, RootMeanSquaredScaledError: 2}  # the power of the errors


@pytest.mark.parametrize("cls", SCALED)
def test_a_seasonal_naive_forecast(cls, rng):
    season, series = 7, rng.normal(100, 10, (90, 3))
    target, naive = series[season:], series[:-season]
    preds = target + rng.normal(0, 3, target.shape)
    power = SCALED[cls]
    above, below = ((np.abs(x - target) ** power).mean(0) for x in (preds, naive))
    want = (above / below) ** (1 / power)
    raw = cls(num_outputs=3, multioutput="raw_values").update(preds, target, naive)
    np.testing.assert_allclose(raw.results(), want, 1e-12)
    # As the field has it, the mean over series of the value of each.
    mean = cls(num_outputs=3).update(preds, target, naive)
    np.testing.assert_allclose(mean.results(), want.mean(), 1e-12)
    # Without num_outputs=, all values are one population, in any number of updates.
    one = (
        cls()
        .update(preds[:40], target[:40], naive[:40])
        .update(preds[40:], target[40:], naive[40:])
    )
    np.testing.assert_allclose(one.results(), (above.sum() / below.sum()) ** (1 / power), 1e-12)
    naive_itself = cls().update(naive, target, naive)
    assert naive_itself.results() == 1


@pytest.mark.parametrize("cls", SCALED)
def test_what_has_no_value(cls):
    series = np.float32([1, 2, 4])
    assert np.isnan(cls().results())
    assert np.isnan(cls().update(series, series + 1, series + 1).results())  # the naive is right
    padded = cls().update([1, 2, np.nan], [2, 4, 1], [1, 1, 1], weights=np.bool_([1, 1, 0]))
    left = cls().update([1, 2], [2, 4], [1, 1])
    assert padded.results() == left.results() < 1
    for bad, names in (
        ((series[:2], series, series), "preds.*target"),
        ((series, series, series[:2]), r"target of shape \(3,\) and naive of shape \(2,\)"),
    ):
        with pytest.raises(MetricInputError, match=names):
            cls().update(*bad)


def test_the_interval_is_that_of_a_ratio_of_means(rng):
    target = rng.normal(0, 1, 500)
    preds, naive = (target + rng.normal(0, scale, 500) for scale in (1, 2))
    a, b = np.abs(preds - target), np.abs(naive - target)
    mase = a.mean() / b.mean()
    want = np.sqrt(((a - mase * b) ** 2).mean() / 499) / b.mean()
    got = Interval(MeanAbsoluteScaledError()).update(preds, target, naive).results()
    np.testing.assert_allclose(got["std_error"], want, 2e-3)
    a, b = a**2, b**2
    square = a.mean() / b.mean()
    want = np.sqrt(((a - square * b) ** 2).mean() / 499) / b.mean() / (2 * np.sqrt(square))
    got = Interval(RootMeanSquaredScaledError()).update(preds, target, naive).results()
    np.testing.assert_allclose(got["std_error"], want, 2e-3)
