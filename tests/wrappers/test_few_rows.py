"""Intervals of few rows: none has the width zero, and they cover rates near the bounds."""

import math
import warnings

import numpy as np
import pytest
from scipy.stats import binom, binomtest

import datarax
from datarax import Bootstrap, Compare, Interval, Sliced, metrics
from tests.helpers import optimized
from tests.registry import CASES


def ratio_cases():
    """The cases whose metric is a ratio of sums over rows."""
    found = []
    for case in CASES:
        if case.inputs.rows:
            try:
                Interval(case.make(), clusters=16)
            except datarax.DataraxError:
                continue
            found.append(case)
    return found


@pytest.mark.parametrize("case", ratio_cases(), ids=lambda case: case.id)
def test_no_interval_has_the_width_zero(case, rng):
    drawn = case.inputs.draw(rng, 8)
    takes = {route.argument for route in case.make().routes()}
    alike = {name: [*x[:1]] * 8 for name, x in drawn.items() if name in takes}
    if not case.host:
        alike = {name: np.array(x) for name, x in alike.items()}
    for interval in (Interval(case.make()), Interval(case.make(), clusters=16)):
        given = {} if interval.clusters is None else {"cluster": np.arange(8)}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = interval.update(**alike, **given).results()
        value, lower, upper = (np.asarray(found[x]) for x in ("value", "lower", "upper"))
        wide = lower < upper
        assert (wide | np.isnan(lower)).all(), found
        # A class of which there are no rows has the value 0, and no interval.
        known = ~np.isnan(value) & ((value != 0) | ~np.isnan(found["std_error"]))
        if not wide[known].all():
            assert any(each.category is datarax.PrecisionWarning for each in caught)
        least, greatest = type(case.make()).value_range
        if interval.method == "wilson" and math.isfinite(greatest - least):
            assert (lower[wide] >= least).all()
            assert (upper[wide] <= greatest).all()
            assert wide[known].all()


TEXTS = ["yes"] * 10
ONES = np.ones(10, np.int32)
RANKED = np.tile([0.9, 0.1], (10, 1)), np.tile([1, 0], (10, 1))
ALL_RIGHT = {
    "accuracy": (metrics.Accuracy(), (ONES, ONES)),
    "exact match": (metrics.TextExactMatch(), (TEXTS, TEXTS)),
    "token F1": (metrics.TokenF1(), (TEXTS, TEXTS)),
    "F1": (metrics.F1(), (ONES, ONES)),
    "Jaccard": (metrics.JaccardIndex(), (ONES, ONES)),
    "hit rate": (metrics.HitRate(k=1), RANKED),
    "recall at k": (metrics.RecallAtK(k=1), RANKED),
    "pass at k": (metrics.PassAtK(k=1), (ONES, ONES)),
}


@pytest.mark.parametrize("name", ALL_RIGHT)
def test_ten_right_of_ten_have_the_interval_of_wilson(name):
    metric, given = ALL_RIGHT[name]
    want = binomtest(10, 10).proportion_ci(method="wilson")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = Interval(metric).update(*given).results()
        # Ten clusters of one row, and ten equal rows of each of ten clusters.
        apart = Interval(metric, clusters=10).update(*given, cluster=np.arange(10))
        ids = np.zeros(10, np.int32)
        sliced = Sliced(Interval(metric), 2).update(*given, slices=ids).results()["0"]
    for found in (rows, apart.results(), sliced):
        np.testing.assert_allclose([found["lower"], found["upper"]], want, rtol=1e-6)
    if isinstance(given[0], np.ndarray):
        run = optimized(lambda *given: Interval(metric).update(*given).compute())
        np.testing.assert_allclose(run(*given)["lower"], want.low, rtol=1e-5)
    with pytest.warns(datarax.PrecisionWarning, match="resampling gives no interval"):
        drawn = Bootstrap(metric, 10).update(*given).results()
    assert np.isnan([drawn["lower"], drawn["upper"]]).all()


def test_weighted_rows_count_as_fewer():
    w = np.float32([1, 1, 1, 5])
    texts = ["yes"] * 4
    found = Interval(metrics.TextExactMatch()).update(texts, texts, weights=w).results()
    z, size = 1.959964, w.sum() ** 2 / (w**2).sum()
    assert found["lower"] == pytest.approx(size / (size + z * z), rel=1e-5)


@pytest.mark.parametrize("rate", [0.5, 0.9, 0.97, 1.0])
def test_coverage_of_a_rate(rate):
    for rows in (10, 20, 50):
        for make, share in ((metrics.TextExactMatch, rate), (metrics.F1, rate / (2 - rate))):
            covered = []
            for right in range(rows + 1):
                hits = np.arange(rows) < right
                given = hits.astype(np.int32), np.ones(rows, np.int32)
                if make is metrics.TextExactMatch:
                    given = ["yes" if x else "no" for x in hits], ["yes"] * rows
                found = Interval(make()).update(*given).results()
                covered.append(found["lower"] <= rate <= found["upper"])
            # Exact: 92.98 % for Wilson's interval of 0.9 and ten rows.
            assert binom.pmf(np.arange(rows + 1), rows, share) @ covered >= 0.929, (rows, make)


def test_a_user_says_the_bounds_of_a_class():
    class Stars(metrics.Mean):
        value_range = (1.0, 5.0)

    five = np.full(10, 5, np.float32)
    found = Interval(Stars()).update(five).results()
    low = binomtest(10, 10).proportion_ci(method="wilson").low
    np.testing.assert_allclose([found["lower"], found["upper"]], [1 + 4 * low, 5], rtol=1e-6)
    with pytest.warns(datarax.PrecisionWarning, match="the rows do not vary"):
        unknown = Interval(metrics.Mean()).update(five).results()
    assert unknown["value"] == 5
    assert np.isnan([unknown["lower"], unknown["std_error"]]).all()


@pytest.mark.parametrize("error", [0, 1])
def test_a_root_of_equal_errors_has_no_interval_and_a_warning(error):
    x = np.arange(8.0)
    with pytest.warns(datarax.PrecisionWarning, match="the rows do not vary"):
        found = Interval(metrics.RootMeanSquaredError()).update(x, x + error).results()
    assert found["value"] == error
    assert np.isnan([found["lower"], found["upper"]]).all()


def test_models_that_resample_alike_have_no_interval():
    given = {"preds_a": ONES, "preds_b": ONES, "target": ONES}
    with pytest.warns(datarax.PrecisionWarning, match="resampling gives no interval"):
        found = Compare(metrics.Accuracy(), replicas=10).update(**given).results()
    assert found["difference"] == 0
    assert np.isnan([found["lower"], found["upper"]]).all()
