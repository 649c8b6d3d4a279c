"""Divergences and ranked probability scores: what the cases of the registry do not cover."""

import math
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

import datarax
from datarax.metrics import (
    BrierScore,
    ContinuousRankedProbabilityScore,
    JensenShannonDivergence,
    KLDivergence,
    RankedProbabilityScore,
)
from datarax.testing import assert_within_ulps
from tests.helpers import softmax, update, value_of, x64
from tests.registry.forecasts import crps_of, entropy_terms, rps_of

N, C = 48, 5


def test_kl_divergence_equals_that_of_a_textbook():
    # S. Kullback (1959), Information theory and statistics, example 2.1 of chapter 1.
    p, q = np.float32([[0.36, 0.48, 0.16]]), np.full((1, 3), 1 / 3, np.float32)
    assert round(float(value_of(KLDivergence(), q, p)), 6) == 0.0853
    assert round(float(value_of(KLDivergence(), p, q)), 6) == 0.097455
    assert value_of(KLDivergence(reverse=True), p, q) == value_of(KLDivergence(), q, p)
    in_bits = value_of(KLDivergence(base=2), q, p)
    assert_within_ulps(in_bits, np.float64(value_of(KLDivergence(), q, p)) / math.log(2), 4)


@pytest.mark.parametrize("apart", [1e-1, 1e-2, 1e-3, 1e-5])
def test_small_divergences_keep_full_precision(apart, rng):
    p = softmax(rng.normal(size=(N, C)))
    q = p * (1 + apart * rng.normal(size=p.shape))
    p, q = np.float32(p), np.float32(q / q.sum(-1, keepdims=True))
    preds, target = q.astype(np.longdouble), p.astype(np.longdouble)
    middle = (preds + target) / 2
    # Rows of float32 do not sum to one exactly, so that the divergences are of both signs here, and
    # their mean may cancel: each is right to a few ulps.
    rows = np.float64(entropy_terms(target, preds))
    atol = 2.0**-21 * np.abs(rows).mean()
    assert_within_ulps(value_of(KLDivergence(), q, p), rows.mean(), 16, atol=atol)
    want = (entropy_terms(target, middle) + entropy_terms(preds, middle)).mean() / 2
    assert_within_ulps(value_of(JensenShannonDivergence(), q, p), np.float64(want), 16)
    assert_within_ulps(value_of(JensenShannonDivergence(), p, q), np.float64(want), 16)


@pytest.mark.parametrize("cls", [KLDivergence, JensenShannonDivergence])
def test_any_leading_axes_are_examples(cls, rng):
    p, q = (softmax(rng.normal(size=(4, 3, C))).astype(np.float32) for _ in range(2))
    flat = value_of(cls(), p.reshape(-1, C), q.reshape(-1, C))
    np.testing.assert_allclose(value_of(cls(), p, q), flat, 1e-6)


def test_equal_distributions_have_divergence_zero(rng):
    p = np.float32(softmax(rng.normal(0, 9, (N, C))))
    assert value_of(KLDivergence(), p, p) == value_of(JensenShannonDivergence(), p, p) == 0


def test_kl_divergence_is_infinite_if_preds_is_zero_where_the_target_is_not():
    p, q = jnp.array([[0.0, 1.0], [0.5, 0.5]]), jnp.array([[0.5, 0.5], [0.5, 0.5]])
    seen = update(KLDivergence(), p, q)
    assert (seen.compute(), seen.invalid_count()) == (np.inf, 0)
    assert value_of(KLDivergence(), p, q, weights=jnp.array([0.0, 1.0])) == 0
    assert value_of(seen.reset(), q, p) == np.float32(math.log(2) / 2)
    seen = update(seen, q, q).merge(seen)
    assert seen.compute() == np.inf


def test_jensen_shannon_divergence_with_zeros_is_finite():
    p, q = jnp.array([[0.0, 0.5, 0.5]]), jnp.array([[0.5, 0.5, 0.0]])
    assert_within_ulps(value_of(JensenShannonDivergence(base=2), p, q), 0.5, 2)


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
@pytest.mark.parametrize("cls", [KLDivergence, JensenShannonDivergence])
def test_rows_that_are_not_distributions_are_excluded_and_counted(cls):
    p = jnp.array([[0.5, 0.5], [0.5, 0.25], [0.5, 0.5], [1.5, -0.5]])
    q = jnp.array([[0.25, 0.75], [0.5, 0.5], [0.5, jnp.nan], [0.5, 0.5]])
    seen = update(cls(on_invalid="exclude"), p, q)
    assert seen.invalid_count() == 3
    assert seen.compute() == value_of(cls(), p[:1], q[:1])


def test_rps_of_two_classes_is_the_brier_score(rng):
    p, target = np.float32(softmax(rng.normal(size=(N, 2)))), rng.integers(0, 2, N)
    rps = value_of(RankedProbabilityScore(num_classes=2), p, target)
    assert_within_ulps(rps, value_of(BrierScore(num_classes=2), p, target), 8)


def test_rps_by_hand_and_normalized():
    p, target = jnp.array([[0.125, 0.25, 0.5, 0.125]]), jnp.array([1])
    want = 0.125**2 + 0.625**2 + 0.125**2
    assert value_of(RankedProbabilityScore(num_classes=4), p, target) == want
    normalized = RankedProbabilityScore(num_classes=4, normalize=True)
    assert_within_ulps(value_of(normalized, p, target), want / 3, 1)


def test_rps_from_logits(rng):
    x, target = rng.normal(0, 4, (N, C)).astype(np.float32), rng.integers(0, C, N)
    want = rps_of(np.ones(N), softmax(x.astype(np.float64)), target)
    got = value_of(RankedProbabilityScore(num_classes=C, from_logits=True), x, target)
    assert_within_ulps(got, want, 64)


def test_crps_of_one_member_is_the_absolute_error(rng):
    x, y = rng.normal(size=(N, 1)).astype(np.float32), rng.normal(size=N).astype(np.float32)
    want = np.abs(x[:, 0].astype(np.float64) - y).mean()
    assert_within_ulps(value_of(ContinuousRankedProbabilityScore(), x, y), want, 4)


def test_crps_is_the_integral(rng):
    x, y = np.sort(rng.normal(size=4)).astype(np.float32), np.float32(rng.normal())
    grid = np.sort(np.append(x, y)).astype(np.float64)
    middle = (grid[1:] + grid[:-1]) / 2
    distance = (x[None, :] <= middle[:, None]).mean(-1) - (middle >= y)
    want = (distance**2 * np.diff(grid)).sum()
    assert_within_ulps(
        value_of(ContinuousRankedProbabilityScore(), x[None], y[None]), want, 8, atol=2.0**-22
    )


def test_fair_crps_excludes_pairs_of_a_member_with_itself(rng):
    x, y = rng.normal(size=(N, 3)).astype(np.float32), rng.normal(size=N).astype(np.float32)
    metric = ContinuousRankedProbabilityScore(fair=True)
    pairs = np.abs(x[:, :, None].astype(np.float64) - x[:, None]).sum((1, 2)) / (3 * 2)
    want = (np.abs(x.astype(np.float64) - y[:, None]).mean(-1) - pairs / 2).mean()
    assert_within_ulps(value_of(metric, x, y), want, 16, atol=2.0**-22)
    # The members are on both sides of the target: half of their distance minus half of it.
    assert value_of(metric, jnp.array([[1.0, 3.0]]), jnp.array([2.0])) == 0


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_crps_of_a_normal_forecast(offset, rng):
    mean, y = (rng.normal(offset, 2, N).astype(np.float32) for _ in range(2))
    std = rng.choice(np.float32([0.0, 1e-30, 0.01, 0.5, 3.0]), N)
    d, s = y.astype(np.float64) - mean, np.where(std > 0, std, 1).astype(np.float64)
    z = d / s
    normal = scipy.stats.norm
    score = s * (z * (2 * normal.cdf(z) - 1) + 2 * normal.pdf(z) - 1 / np.sqrt(np.pi))
    want = np.where(std > 0, score, np.abs(d)).mean()
    metric = ContinuousRankedProbabilityScore(forecast="normal")
    assert_within_ulps(value_of(metric, np.stack([mean, std], -1), y), want, 16)


def test_crps_of_a_normal_forecast_is_the_integral():
    def of(x: float) -> float:
        return float((scipy.stats.norm.cdf(x, 1, 2) - (x >= 2.5)) ** 2)

    want = sum(scipy.integrate.quad(of, *ends)[0] for ends in ((-30, 2.5), (2.5, 30)))
    metric = ContinuousRankedProbabilityScore(forecast="normal")
    assert_within_ulps(value_of(metric, jnp.array([[1.0, 2.0]]), jnp.array([2.5])), want, 8)


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_a_negative_standard_deviation_is_excluded_and_counted():
    metric = ContinuousRankedProbabilityScore(forecast="normal", on_invalid="exclude")
    seen = update(metric, jnp.array([[1.0, -1.0], [1.0, 0.0]]), jnp.array([2.0, 3.0]))
    assert (seen.compute(), seen.invalid_count()) == (2, 1)


def test_with_x64(rng):
    p, q = (softmax(rng.normal(0, 3, (N, C))) for _ in range(2))
    x, y = rng.normal(1e6, 1, (N, C)), rng.normal(1e6, 1, N)
    with x64():
        kl = value_of(KLDivergence(), p, q)
        js = value_of(JensenShannonDivergence(), p, q)
        crps = value_of(ContinuousRankedProbabilityScore(), x, y)
    assert kl.dtype == js.dtype == crps.dtype == np.float64
    assert_within_ulps(kl, scipy.special.rel_entr(q, p).sum(-1).mean(), 64)
    m = (p + q) / 2
    assert_within_ulps(js, (entropy_terms(p, m) + entropy_terms(q, m)).mean() / 2, 64)
    assert_within_ulps(crps, crps_of(np.ones(N), x, y), 64)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(KLDivergence, base=1), "base=1; expected a number above 1"),
        (partial(JensenShannonDivergence, base=-2.0), "base=-2.0; expected a number above 1"),
        (partial(KLDivergence, reverse="yes"), "reverse='yes'; expected one of False, True"),
        (partial(RankedProbabilityScore, num_classes=1), "num_classes=1; expected an integer"),
        (partial(RankedProbabilityScore, num_classes=None), "num_classes=None; expected how many"),
        (partial(RankedProbabilityScore, num_classes=3, normalize=2), "normalize=2"),
        (partial(ContinuousRankedProbabilityScore, forecast="gauss"), "forecast='gauss'"),
        (
            partial(ContinuousRankedProbabilityScore, forecast="normal", fair=True),
            'fair=True is for forecast="ensemble"',
        ),
    ],
)
def test_configuration_is_checked(make, message):
    with pytest.raises(datarax.MetricInputError, match=message):
        make()


@pytest.mark.parametrize(
    ("metric", "preds", "target", "message"),
    [
        (KLDivergence(), (8, 3), (8, 4), r"preds of shape \(8, 3\) and target of shape \(8, 4\)"),
        (KLDivergence(), (), (), r"preds of shape \(\); expected elements"),
        (JensenShannonDivergence(), (8, 0), (8, 0), r"\(8, 0\); expected elements"),
        (RankedProbabilityScore(num_classes=3), (8, 4), (8,), r"expected preds of shape \(8, 3\)"),
        (
            ContinuousRankedProbabilityScore(),
            (8,),
            (8,),
            r"preds of shape \(8,\) and target of shape \(8,\); expected preds of shape \(8, M\)",
        ),
        (
            ContinuousRankedProbabilityScore(forecast="normal"),
            (8, 3),
            (8,),
            r"expected preds of shape \(8, 2\) for forecast=\"normal\"",
        ),
        (ContinuousRankedProbabilityScore(), (8, 0), (8,), "at least 1 member"),
        (ContinuousRankedProbabilityScore(fair=True), (8, 1), (8,), "at least 2 members"),
    ],
)
def test_shapes_are_checked(metric, preds, target, message):
    with pytest.raises(datarax.MetricInputError, match=message):
        metric.update(jnp.zeros(preds), jnp.zeros(target, jnp.int32))
