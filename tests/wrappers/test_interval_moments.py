"""`Interval` of R2, explained variance and correlations: the influence of each row, squared."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import sklearn.metrics as sk

import datarax
from datarax import Compare, Interval, Sliced, metrics
from tests.helpers import long, make_mesh

Z = scipy.stats.norm.ppf(0.975)


def moments(p, t, w):
    """The means, the variances and the covariance of weighted rows."""
    mean_p, mean_t = np.average(p, weights=w), np.average(t, weights=w)
    p, t = p - mean_p, t - mean_t
    return mean_p, mean_t, *(np.average(x, weights=w) for x in (p * p, t * t, p * t))


def pearson(p, t, w):
    _, _, var_p, var_t, co = moments(p, t, w)
    return co / np.sqrt(var_p * var_t)


def concordance(p, t, w):
    mean_p, mean_t, var_p, var_t, co = moments(p, t, w)
    return 2 * co / (var_p + var_t + (mean_p - mean_t) ** 2)


SCORES = {
    metrics.R2Score: lambda p, t, w: sk.r2_score(t, p, sample_weight=w),
    metrics.ExplainedVariance: lambda p, t, w: sk.explained_variance_score(t, p, sample_weight=w),
    metrics.PearsonCorrCoef: pearson,
    metrics.ConcordanceCorrCoef: concordance,
}
by_metric = pytest.mark.parametrize("cls", SCORES, ids=lambda cls: cls.__name__)


def error_of(score, p, t, w):
    """The standard error from the derivative of a score by the weight of each row."""
    p, t, w = (x.astype(np.float64) for x in (p, t, w))
    step, slopes = 1e-4, []
    for i in range(len(p)):
        change = step * (np.arange(len(p)) == i)
        slopes.append((score(p, t, w + change) - score(p, t, w - change)) / (2 * step))
    n = w.sum() ** 2 / (w**2).sum()
    return np.sqrt(n / (n - 1) * np.sum((w * slopes) ** 2))


def drawn(rng, rows, mean=0.0, spread=1.0):
    """Targets, and predictions that are biased and have skewed errors of unequal variance."""
    t = rng.normal(size=rows)
    p = t + 0.3 * rng.exponential(size=rows) * (1 + np.abs(t)) - 0.1
    return [(mean + spread * x).astype(np.float32) for x in (p, t)]


def assert_near(got, want, rtol=1e-6):
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=rtol, err_msg=name)


@jax.jit
def computed(metric, p, t, w):
    return metric.update(p, t, weights=w).compute()


@by_metric
@pytest.mark.parametrize(("mean", "spread"), [(0, 1), (1e4, 0.3), (-1e-30, 1e-30), (0, 1e30)])
def test_the_standard_error_is_that_of_the_derivatives(cls, mean, spread, rng):
    p, t = drawn(rng, 150, mean, spread)
    for w in (np.ones(150, np.float32), rng.exponential(size=150).astype(np.float32)):
        # A power of two that keeps the squares of the reference in range.
        unit = 2.0 ** -np.round(np.log2(spread))
        want = error_of(SCORES[cls], p.astype(np.float64) * unit, t.astype(np.float64) * unit, w)
        empty = Interval(cls())
        host = empty.update(p, t, weights=w).results()
        np.testing.assert_allclose(host["std_error"], want, rtol=1e-4)
        traced = computed(empty, p, t, w)
        np.testing.assert_allclose(traced["std_error"], want, rtol=1e-4)
        assert host["lower"] < host["value"] < host["upper"] <= 1


@by_metric
def test_the_ends(cls, rng):
    p, t = drawn(rng, 60)
    found = Interval(cls()).update(p, t).results()
    value, error = found["value"], found["std_error"]
    want = [value - Z * error, min(value + Z * error, 1)]
    if cls in (metrics.PearsonCorrCoef, metrics.ConcordanceCorrCoef):
        half = Z * error / (1 - value**2)  # Fisher's transform
        want = [np.tanh(np.arctanh(value) + sign * half) for sign in (-1, 1)]
    np.testing.assert_allclose([found["lower"], found["upper"]], want, rtol=1e-9)
    assert Interval(cls()).method == "delta"


@by_metric
def test_one_result_by_batch_program_slice_and_on_devices(cls, rng):
    p, t = drawn(rng, 37 * 8, 100.0)
    empty = Interval(cls())
    want = empty.update(p, t).results()
    parts = empty
    for each in zip(np.split(p, 37), np.split(t, 37), strict=True):
        parts = parts.merge(empty.update(*each))
    assert_near(parts.results(), want, 1e-5)
    apart = datarax.per_device(empty, make_mesh("auto", {"d": 8}), "d").update(p, t)
    assert_near(apart.results(), want, 1e-5)
    ids = rng.integers(0, 2, len(p)).astype(np.int32)
    sliced = Sliced(empty, 2).update(p, t, slices=ids).results()
    assert_near(sliced["1"], empty.update(p[ids == 1], t[ids == 1]).results(), 1e-5)
    # A masked row is none, and weights have no unit.
    masked = empty.update(np.where(ids, p, np.nan), t, weights=ids == 1).results()
    assert_near(masked, sliced["1"], 1e-5)
    for w in (np.full(len(p), 7.0), np.full(len(p), 100_000)):
        assert_near(empty.update(p, t, weights=w).results(), want, 1e-5)


@by_metric
def test_outputs_have_their_own_intervals(cls, rng):
    p, t = np.stack([drawn(rng, 80), drawn(rng, 80)], -1)
    found = Interval(cls(num_outputs=2, multioutput="raw_values")).update(p, t).results()
    for i in range(2):
        want = Interval(cls()).update(p[:, i], t[:, i]).results()
        assert_near({name: x[i] for name, x in found.items()}, want, 1e-5)
    with pytest.raises(datarax.MetricInputError, match="no formula"):
        Interval(cls(num_outputs=2))
    with pytest.raises(datarax.MetricInputError, match="rows of one example each"):
        Interval(cls()).update(p, t)


@by_metric
def test_data_that_do_not_vary(cls, rng):
    empty, x = Interval(cls()), rng.normal(size=40).astype(np.float32)
    assert all(np.isnan(x) for x in empty.results().values())
    one = empty.update(x[:1], x[:1] + 1).results()
    assert np.isnan(one["std_error"])
    with pytest.warns(datarax.PrecisionWarning, match="do not vary"):
        perfect = empty.update(x, x).results()
    assert perfect["value"] == 1
    assert all(np.isnan(perfect[name]) for name in ("std_error", "lower", "upper"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", datarax.PrecisionWarning)
        far = empty.update(x * np.float32(1e9), x * np.float32(1e-9)).results()
    assert np.isnan(far["std_error"])  # not a number that rounding has made


def test_half_precision_and_the_adjusted_score(rng):
    p, t = drawn(rng, 64)
    half = [jnp.asarray(x, jnp.bfloat16) for x in (p, t)]
    wide = [np.asarray(x, np.float32) for x in half]
    empty = Interval(metrics.PearsonCorrCoef())
    assert_near(empty.update(*half).results(), empty.update(*wide).results(), 1e-5)
    with pytest.raises(datarax.MetricInputError, match="no formula"):
        Interval(metrics.R2Score(adjusted=2))


@long
@by_metric
def test_intervals_cover(cls, rng):
    sets, rows = 600, 300
    t = rng.normal(size=(sets, rows))
    p = (0.8 * t + 0.6 * rng.normal(size=(sets, rows)) + 0.5).astype(np.float32)
    truth = {
        metrics.R2Score: 1 - (0.04 + 0.36 + 0.25),
        metrics.ExplainedVariance: 1 - (0.04 + 0.36),
        metrics.PearsonCorrCoef: 0.8,
        metrics.ConcordanceCorrCoef: 1.6 / (1 + 1 + 0.25),
    }[cls]
    empty = Interval(cls())
    found = jax.jit(jax.vmap(lambda p, t: empty.update(p, t).compute()))(p, t.astype(np.float32))
    share = np.mean((found["lower"] <= truth) & (truth <= found["upper"]))
    # Five standard errors of a share of 0.95, and one percent for the few rows.
    assert abs(share - 0.95) < 5 * np.sqrt(0.95 * 0.05 / sets) + 0.01


@pytest.mark.parametrize("offset", [2.0**n for n in range(10, 45, 5)])
def test_what_weights_hide_of_values_far_from_zero_is_not_told(rng, offset):
    """Far from zero a weighted row is large, and the rounding of its square hides the rest."""
    first = np.round(rng.normal(size=200) * 2**10) / 2**10
    second, w = first + np.round(rng.normal(size=200) * 2**9) / 2**10, rng.choice([0.5, 1, 2], 200)
    interval, compare = Interval(metrics.Mean()), Compare(metrics.Mean(), method="formula")
    near = interval.update(first, weights=w).results()["std_error"]
    apart = compare.update(first, second, weights=w).results()
    first, second = first + offset, second + offset
    for weights in (w, None):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            far = interval.update(first, weights=weights).results()["std_error"]
            found = compare.update(first, second, weights=weights).results()
        if weights is None:
            assert not said
            assert far == pytest.approx(np.std(first, ddof=1) / 200**0.5, rel=1e-6)
            continue
        assert np.isnan(far) == np.isnan(found["p_value"]) == bool(said) == (offset > 2**22)
        if not said:
            assert far == pytest.approx(near, rel=0.02)
            assert found["p_value"] == pytest.approx(apart["p_value"], abs=0.02)
    same = compare.update(first, first, weights=w)
    with pytest.warns(datarax.PrecisionWarning, match="do not differ"):
        assert same.results()["p_value"] == 1
