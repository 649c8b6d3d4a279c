"""CalibrationTest: its level and power, forecasts that are sure, logits, weights, and misuse."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import kstest, norm

import datarax
from datarax.metrics import BrierScore, CalibrationTest


def test_it_is_the_excess_of_the_brier_score_in_standard_deviations(rng):
    preds = rng.random(1000)
    target = (rng.random(1000) < preds**2).astype(np.int32)
    got = CalibrationTest().update(preds, target).results()
    excess = BrierScore().update(preds, target).results() - np.mean(preds * (1 - preds))
    z = excess * 1000 / np.sqrt(np.sum((1 - 2 * preds) ** 2 * preds * (1 - preds)))
    assert got["statistic"] == pytest.approx(z, rel=1e-6, abs=1e-6)
    assert got["p_value"] == pytest.approx(2 * norm.sf(abs(z)), rel=1e-4)


def test_p_values_of_calibrated_forecasts_are_uniform(rng):
    found = []
    for _ in range(400):
        preds = rng.beta(0.6, 0.9, 500)
        target = rng.random(500) < preds
        found.append(CalibrationTest().update(preds, target).results()["p_value"])
    # Fails once in 10**6 runs, if the p-values of 500 examples were exactly uniform.
    assert kstest(found, "uniform").pvalue > 1e-6


@pytest.mark.parametrize(("slope", "sign"), [(2.0, 1), (0.5, -1)])
def test_the_sign_says_in_which_way_forecasts_are_wrong(slope, sign, rng):
    logits = rng.normal(0, 1.5, 5000)
    target = rng.random(5000) < expit(logits)
    got = CalibrationTest().update(expit(slope * logits), target).results()
    assert got["statistic"] * sign > 5
    assert got["p_value"] < 1e-6


def test_logits_and_probabilities_give_the_same(rng):
    logits = rng.normal(0, 2, 500).astype(np.float32)
    target = rng.integers(0, 2, 500)
    a = CalibrationTest(from_logits=True).update(logits, target).results()
    b = CalibrationTest().update(expit(logits.astype(float)), target).results()
    assert a == pytest.approx(b, rel=1e-6)
    # A logit of -200 is a probability that no float32 holds; if it is wrong, the statistic shows.
    sure = CalibrationTest(from_logits=True).update([-200.0, 0.5], [1, 1]).results()
    assert sure["statistic"] > 1


def test_forecasts_without_variance():
    metric = CalibrationTest()
    wrong = metric.update([0.0, 1.0, 0.5], [1, 1, 0]).results()
    assert wrong == {"statistic": math.inf, "p_value": 0.0}
    for preds, target in (([0.0, 1.0], [0, 1]), ([0.5], [1]), ([], [])):
        got = metric.update(np.array(preds, float), np.array(target, int)).results()
        assert all(math.isnan(x) for x in got.values())


def test_weights(rng):
    preds, target = rng.random(50), rng.integers(0, 2, 50)
    plain = CalibrationTest().update(preds, target).results()
    for scale in (1e-30, 0.1, 1e30):
        got = CalibrationTest().update(preds, target, weights=np.full(50, scale)).results()
        assert got == pytest.approx(plain, rel=1e-6)
    # A row of weight 2 is one observation, with less certainty than two.
    two = np.concatenate([preds, preds]), np.concatenate([target, target])
    twice = CalibrationTest().update(*two).results()
    assert twice["statistic"] == pytest.approx(math.sqrt(2) * plain["statistic"], rel=1e-6)
    some = rng.random(50) < 0.5
    masked = CalibrationTest().update(preds, target, weights=some).results()
    assert masked == pytest.approx(CalibrationTest().update(preds[some], target[some]).results())


def test_what_is_refused():
    with pytest.raises(datarax.MetricInputError, match=r"preds of shape \(1,\) and target"):
        CalibrationTest().update([0.5], [1, 0])
    seen = CalibrationTest().update(jnp.array([0.3, 1.5]), jnp.array([0, 1]))
    with pytest.warns(datarax.InvalidValuesWarning):
        assert math.isnan(seen.results()["p_value"])
    assert CalibrationTest(ignore_index=-1).update([0.3, 0.5], [0, -1]).results()["p_value"] > 0
