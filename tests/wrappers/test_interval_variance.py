"""`Interval` of `Variance` and `Std`: against the derivatives of the value, and coverage."""

from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats

import datarax
from datarax import Interval, Sliced
from datarax.metrics import Std, Variance
from tests.helpers import long, make_mesh

Z = scipy.stats.norm.ppf(0.975)
EMPTY = {
    "std": Interval(Std()),
    "unbiased std": Interval(Std(ddof=1)),
    "variance": Interval(Variance()),
    "unbiased variance": Interval(Variance(ddof=1)),
}
by_metric = pytest.mark.parametrize("name", EMPTY)


def values_of(name, x, w):
    """The value, and its standard error from the derivative by the weight of each row."""
    metric: Any = EMPTY[name].metric

    def value(weights):
        squares = weights @ (x - np.average(x, weights=weights)) ** 2
        # The weight of one row counts as a repetition, so `ddof` is no weight that changes.
        variance = squares / weights.sum() * w.sum() / (w.sum() - metric.ddof)
        return variance**0.5 if isinstance(metric, Std) else variance

    step, each = 1e-4, np.eye(len(x))
    slopes = [(value(w + step * one) - value(w - step * one)) / (2 * step) for one in each]
    n = w.sum() ** 2 / (w**2).sum()
    return value(w), np.sqrt(n / (n - 1) * np.sum((w * slopes) ** 2))


@jax.jit
def computed(metric, x, w):
    return metric.update(x, weights=w).compute()


@pytest.mark.parametrize(("mean", "spread"), [(0, 1), (1e4, 0.3), (-1e-15, 1e-15), (0, 1e15)])
def test_the_standard_error_is_that_of_the_derivatives(mean, spread, rng):
    x = (mean + spread * rng.gamma(2, size=150)).astype(np.float32)
    for w in (np.ones(150, np.float32), rng.exponential(size=150).astype(np.float32)):
        for name, empty in EMPTY.items():
            value, error = values_of(name, x.astype(np.float64), w.astype(np.float64))
            factor = np.exp(Z * error / value)
            want = {"value": value, "std_error": error}
            want |= {"lower": value / factor, "upper": value * factor}
            found = [empty.update(x, weights=w).results()]
            # The others are functions of the same numbers.
            found += [computed(empty, x, w)] if name == "unbiased std" else []
            for each in found:
                for key, number in want.items():
                    np.testing.assert_allclose(each[key], number, 1e-5, err_msg=f"{name} {key}")
    assert EMPTY["std"].method == "delta"


def test_one_result_by_batch_program_slice_and_on_devices(rng):
    x = rng.normal(100, size=37 * 8).astype(np.float32)
    ids = rng.integers(0, 2, len(x)).astype(np.int32)
    empty = EMPTY["std"]
    want, parts = empty.update(x).results(), empty
    for each in np.split(x, 37):
        parts = parts.merge(empty.update(each))
    apart = datarax.per_device(empty, make_mesh("auto", {"d": 8}), "d").update(x)
    # Weights have no unit.
    alike = empty.update(x, weights=np.full(len(x), 100_000))
    for found in (parts, apart, alike):
        assert found.results() == pytest.approx(want, rel=1e-5)
    of_slice = empty.update(x[ids == 1]).results()
    sliced = Sliced(empty, 2).update(x, slices=ids).results()["1"]
    masked = empty.update(np.where(ids, x, np.nan), weights=ids == 1).results()
    for found in (sliced, masked):
        assert found == pytest.approx(of_slice, rel=1e-5)


@by_metric
def test_data_that_do_not_vary(name):
    empty = EMPTY[name]
    assert all(np.isnan(x) for x in empty.results().values())
    assert np.isnan(empty.update(np.float32([3])).results()["std_error"])
    # All of one value; or half of each of two, which are equally far from their mean.
    for x in (np.full(9, 0.3), np.tile([0.1, 0.2], 20), np.tile([1000.1, 1000.2], 20)):
        for values in (x, x.astype(np.float32)):
            with pytest.warns(datarax.PrecisionWarning, match="do not vary"):
                found = empty.update(values).results()
            assert found["value"] == pytest.approx(empty.metric.update(values).results())
            assert all(np.isnan(found[key]) for key in ("std_error", "lower", "upper"))


def test_rows_hold_one_value_each(rng):
    with pytest.raises(datarax.MetricInputError, match="rows of one example each"):
        EMPTY["std"].update(rng.normal(size=(4, 3)))
    # Squares of integer weights, and of a mask, are weights of rows.
    x, w = np.arange(6.0), np.array([0, 1, 2, 3, 4, 5], np.int8)
    found = EMPTY["std"].update(x, weights=w * 20).results()
    assert found == pytest.approx(EMPTY["std"].update(x, weights=w * 20.0).results())


@long
def test_intervals_cover(rng):
    sets, rows = 600, 300
    x = rng.normal(size=(sets, rows)).astype(np.float32)
    empty = EMPTY["std"]
    found = jax.jit(jax.vmap(lambda x: empty.update(x).compute()))(x)
    share = np.mean((found["lower"] <= 1) & (found["upper"] >= 1))
    # Five standard errors of a share of 0.95, and one percent for the few rows.
    assert abs(share - 0.95) < 5 * np.sqrt(0.95 * 0.05 / sets) + 0.01
