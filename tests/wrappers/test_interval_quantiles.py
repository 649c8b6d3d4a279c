"""`Interval` of quantiles: the binomial interval of the rank."""

import jax
import numpy as np
import pytest
import scipy.stats

import datarax
from datarax import Interval, Sliced, metrics
from tests.helpers import long, make_mesh

Z = scipy.stats.norm.ppf(0.975)


def ends(x, q):
    """The quantiles at q plus and minus z standard errors of the rank."""
    apart = Z * np.sqrt(q * (1 - q) / len(x))
    return [np.quantile(x, q + sign * apart, method="inverted_cdf") for sign in (-1, 1)]


@pytest.mark.parametrize("q", [0.5, 0.1])
def test_the_ends_are_quantiles(q, rng):
    x = rng.exponential(size=203).astype(np.float32)
    metric = Interval(metrics.Median() if q == 0.5 else metrics.Quantile(q))
    results = metric.update(x).results()
    want = ends(x, q)
    np.testing.assert_allclose([results["lower"], results["upper"]], want, rtol=1e-6)
    np.testing.assert_allclose(results["std_error"], (want[1] - want[0]) / (2 * Z), rtol=1e-6)
    # A row of weight 2 is one observation; a masked one is none. Two values in one bin are known
    # without weights, the least and the greatest of it; with weights, what lies between is not.
    two = metric.update(x, weights=np.full(203, 2.0)).results()
    np.testing.assert_allclose(list(two.values()), list(results.values()), rtol=1e-3)
    mask = rng.random(203) < 0.5
    masked = metric.update(np.where(mask, x, np.nan), weights=mask).results()
    kept = metric.update(x[mask]).results()
    np.testing.assert_allclose(list(masked.values()), list(kept.values()), rtol=1e-6)


def test_one_result_by_batch_program_slice_and_on_devices(rng):
    x = rng.normal(size=320).astype(np.float32)
    empty = Interval(metrics.Quantile((0.25, 0.5)))
    want = empty.update(x).results()
    parts = empty
    for each in np.split(x, 32):
        parts = parts.merge(empty.update(each))
    apart = datarax.per_device(empty, make_mesh("auto", {"d": 8}), "d").update(x)
    traced = jax.jit(lambda m, x: m.update(x))(empty, x)
    for found in (parts, apart, traced):
        for name, value in found.results().items():
            np.testing.assert_allclose(value, want[name], rtol=1e-6)
    ids = rng.integers(0, 2, 320).astype(np.int32)
    sliced = Sliced(empty, 2).update(x, slices=ids).results()["1"]
    for name, value in empty.update(x[ids == 1]).results().items():
        np.testing.assert_allclose(sliced[name], value, rtol=1e-6)


def test_errors_bins_and_no_data(rng):
    preds, target = rng.normal(size=(2, 300)).astype(np.float32)
    results = Interval(metrics.MedianAbsoluteError()).update(preds, target).results()
    want = ends(np.abs(preds - target), 0.5)
    np.testing.assert_allclose([results["lower"], results["upper"]], want, rtol=1e-2)
    # Of wide bins, the ends are their outer bounds.
    wide = rng.exponential(size=500).astype(np.float32)
    coarse = Interval(metrics.Median(bits=10)).update(wide).results()
    assert coarse["lower"] <= ends(wide, 0.5)[0]
    assert coarse["upper"] >= ends(wide, 0.5)[1]
    assert all(np.isnan(x) for x in Interval(metrics.Median()).results().values())
    with pytest.raises(datarax.MetricInputError, match="rows of one example each"):
        Interval(metrics.Median()).update(wide.reshape(-1, 2))


def test_few_rows_and_extreme_weights(rng):
    # Of three rows, no two ranks hold the median with 95 %; of four, the extremes do, nearly.
    few = Interval(metrics.Median()).update(np.float32([1, 2, 4])).results()
    assert (few["lower"], few["upper"]) == (-np.inf, np.inf)
    four = Interval(metrics.Median()).update(np.float32([1, 2, 4, 8])).results()
    assert (four["lower"], four["upper"]) == (1, 8)
    error = Interval(metrics.MedianAbsoluteError()).update(np.float32([1]), np.float32([3]))
    assert (error.results()["lower"], error.results()["upper"]) == (0, np.inf)
    # Squares that leave the range of floats: how many observations there are is not known.
    x = rng.normal(size=50).astype(np.float32)
    for w in (1e30, 1e-30):
        found = Interval(metrics.Median()).update(x, weights=np.full(50, w, np.float32)).results()
        assert np.isnan([found["lower"], found["upper"], found["std_error"]]).all()
        value = Interval(metrics.Median()).update(x).results()["value"]
        assert found["value"] == pytest.approx(value, abs=1e-3)  # both are estimates


@long
def test_it_covers(rng):
    covered = 0
    for _ in range(300):
        x = rng.exponential(size=150).astype(np.float32)
        results = Interval(metrics.Median(bits=12)).update(x).results()
        covered += results["lower"] <= np.log(2) <= results["upper"]
    assert 0.9 <= covered / 300 <= 0.99


def test_two_axes_of_data_sets(rng):
    x = rng.normal(size=(2, 3, 50)).astype(np.float32)
    empty = Interval(metrics.Median())
    found = jax.jit(jax.vmap(jax.vmap(lambda x: empty.update(x).compute())))(x)
    want = empty.update(x[1, 2]).results()
    for name, value in want.items():
        np.testing.assert_allclose(found[name][1, 2], value, rtol=1e-6)
