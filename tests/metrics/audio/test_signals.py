"""Metrics of signals: references at real sizes, limits, and what is invalid."""

import jax
import jax.numpy as jnp
import numpy as np
import pystoi
import pytest
import scipy.optimize
import scipy.signal

import datarax
from datarax.metrics import (
    SASDR,
    SDR,
    SISDR,
    SISNR,
    SNR,
    STOI,
    ComplexSISNR,
    PermutationInvariant,
)
from datarax.testing import assert_within_ulps
from tests.helpers import update, update_all, value_of
from tests.registry.audio import mir_eval_sdr, si_sdr, speech

DECIBELS = 2e-5  # several roundings of a float32 of some 50 dB


def noisy(rng, shape, noise=0.3):
    target = speech(int(rng.integers(2**31)), *shape)
    preds = scipy.signal.lfilter([0.7, 0.2, -0.1], [1], target) + noise * rng.normal(size=shape)
    return preds.astype(np.float32), target.astype(np.float32)


@pytest.fixture(params=["float64", "float32"])
def devices(request):
    """With float64, or as on a device without it."""
    with datarax.lowering_for("cpu" if request.param == "float64" else "tpu"):
        yield request.param


def test_sdr_with_the_default_filter_is_that_of_mir_eval(devices, rng):
    preds, target = noisy(rng, (2, 3000))
    preds[1] = preds[1] / 1000 + target[1]  # little distortion
    got = jax.jit(lambda p, t: SDR().pairwise(p, t)[0])(preds, target)
    want = [mir_eval_sdr(*map(np.float64, pair)) for pair in zip(preds, target, strict=True)]
    assert want[1] > want[0] + 20
    np.testing.assert_allclose(got, want, atol=DECIBELS if devices == "float64" else 2e-3)


@pytest.mark.parametrize("extended", [False, True])
def test_stoi_at_another_rate_is_that_of_pystoi(extended, devices, rng):
    preds, target = noisy(rng, (2, 12_000), noise=1.0)
    preds[1] += rng.normal(size=12_000) * 3
    metric = STOI(sample_rate=16_000, extended=extended)
    got = jax.jit(lambda p, t: metric.pairwise(p, t)[0])(preds, target)
    want = [
        pystoi.stoi(t, p, 16_000, extended)
        for p, t in zip(np.float64(preds), np.float64(target), strict=True)
    ]
    assert want[1] < want[0] < 0.95
    np.testing.assert_allclose(got, want, atol=2e-7 if devices == "float64" else 1e-6)


def test_signals_that_are_too_short_or_silent_for_stoi():
    metric, speech_of = STOI(sample_rate=10_000), lambda n: speech(0, 1, n).astype(np.float32)
    assert_within_ulps(value_of(metric, speech_of(4000), speech_of(4000)), 1e-5, 1)
    burst = speech_of(4480) * (np.arange(4480) < 2000)  # long enough, but for what is silent
    assert_within_ulps(value_of(metric, burst, burst), 1e-5, 1)
    assert value_of(metric, speech_of(4480), np.zeros((1, 4480), np.float32)) == 0


def test_limits_of_the_ratios(rng):
    target = rng.integers(-99, 100, (1, 64)).astype(np.float32)
    metrics = [SNR(), SISDR(), SISNR(), SDR(filter_length=2)]

    def values(preds):
        return [float(m.compute()) for m in update_all(metrics, preds, target)]

    assert values(target)[:3] == [np.inf] * 3
    assert 290 < values(target)[3] < 330
    assert values(-3 * target)[1:3] == [np.inf] * 2
    assert min(values(-3 * target)[1:]) > 200
    silent = values(0 * target)
    assert abs(silent[0]) < 1e-12
    assert silent[1:] == [-np.inf] * 3
    both = np.concatenate([target, target + 1]), np.concatenate([target, target])
    assert value_of(SNR(), *both) == np.inf


def test_a_ratio_does_not_depend_on_the_unit(rng):
    preds, target = noisy(rng, (1, 64))
    metrics = [SNR(), SISDR(), SISNR(), SDR(filter_length=2)]
    want = [m.compute() for m in update_all(metrics, preds, target)]
    for unit in (2.0**-90, 2.0**60):
        x, y = preds * np.float32(unit), target * np.float32(unit)
        for metric, value in zip(update_all(metrics, x, y), want, strict=True):
            assert_within_ulps(metric.compute(), value, 1)
        got = value_of(SISDR(), np.float32(-7) * preds, y)
        assert_within_ulps(got, want[1], 1, atol=DECIBELS)


def test_what_is_invalid(rng):
    preds, target = noisy(rng, (6, 64))
    target[0], preds[1, 5], target[2, 7], target[3] = 0, np.nan, np.inf, 4
    weights = np.float32([1, 1, 1, 1, 1, 0])
    preds[5] = np.nan
    each = SNR(on_invalid="exclude"), SISNR(on_invalid="exclude")
    for metric, count in zip(update_all(each, preds, target, weights=weights), (3, 4), strict=True):
        with pytest.warns(datarax.InvalidValuesWarning, match=f"{count} "):
            assert np.isfinite(metric.compute())
    with pytest.warns(datarax.InvalidValuesWarning, match="1 "):
        assert np.isnan(SNR().update(preds[:1], target[:1]).compute())


def test_recorded_samples_are_integers(rng):
    preds, target = (np.round(x * 1000).astype(np.int16) for x in noisy(rng, (3, 64)))
    want = np.mean([si_sdr(*map(np.float64, x)) for x in zip(preds, target, strict=True)])
    assert_within_ulps(value_of(SISDR(), preds, target), want, 2)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_eight_sources_are_matched(mode, rng):
    target = rng.normal(size=(4, 8, 30)).astype(np.float32)
    preds = target[:, rng.permutation(8)] + 2 * rng.normal(size=target.shape).astype(np.float32)
    want = []
    for x, y in zip(np.float64(preds), np.float64(target), strict=True):
        table = np.array([[si_sdr(p, t) for t in y] for p in x])
        found = scipy.optimize.linear_sum_assignment(table, maximize=mode == "max")
        want.append(table[found].mean())
    metric = PermutationInvariant(SISDR(), mode=mode)
    got = update(metric, preds, target)
    assert_within_ulps(got.compute(), np.mean(want), 4, atol=DECIBELS)
    if mode == "max":  # of the same shape, as each shape is compiled
        assert update(metric, target[:, ::-1], target).compute() == np.inf
        target[1, 3], preds[2, 0, 0] = 0, np.nan
        assert update(metric, preds, target).invalid_count() == 2


def test_complex_spectra(rng):
    x, y = (rng.normal(size=(3, 4, 5, 2)).astype(np.float32) for _ in range(2))
    got = value_of(ComplexSISNR(), x[..., 0] + 1j * x[..., 1], y[..., 0] + 1j * y[..., 1])
    assert_within_ulps(got, value_of(ComplexSISNR(), x, y), 1)
    with pytest.raises(
        datarax.MetricInputError, match=r"preds of shape \(3, 4\) and dtype float32"
    ):
        ComplexSISNR().update(jnp.zeros((3, 4)), jnp.zeros((3, 4)))


def test_sources_are_aggregated(rng):
    # The program of the metric's paper, and of torchmetrics, but for its epsilon.
    preds, target = noisy(rng, (12, 64))
    preds, target = preds.reshape(4, 3, 64), target.reshape(4, 3, 64)
    target[0, 1] = 0  # a source that is silent has no ratio alone
    p, t = np.float64(preds), np.float64(target)
    for scale_invariant in (True, False):
        factor = (p * t).sum((1, 2)) / (t**2).sum((1, 2)) if scale_invariant else np.ones(4)
        s = factor[:, None, None] * t
        want = 10 * np.log10((s**2).sum((1, 2)) / ((p - s) ** 2).sum((1, 2)))
        got = value_of(SASDR(scale_invariant=scale_invariant), preds, target)
        assert_within_ulps(got, want.mean(), 4)
    # One source is a signal.
    one = value_of(SASDR(), preds[1:, :1], target[1:, :1])
    assert_within_ulps(one, value_of(SISDR(), preds[1:, 0], target[1:, 0]), 1)
    assert value_of(SASDR(), 2 * target, target) == np.inf
    target[2], preds[3, 0, 5] = 0, np.nan
    assert update(SASDR(), preds, target).invalid_count() == 2
    with pytest.raises(datarax.MetricInputError, match=r"shape \(64,\); expected sources"):
        SASDR().update(preds[0, 0], target[0, 0])
    with pytest.raises(datarax.MetricTypeError, match="metric=SASDR; expected a metric of pairs"):
        PermutationInvariant(SASDR())


def test_arguments_are_checked():
    with pytest.raises(datarax.MetricInputError, match="filter_length=0"):
        SDR(filter_length=0)
    with pytest.raises(datarax.MetricInputError, match=r"sample_rate=0\.5"):
        STOI(sample_rate=0.5)
    with pytest.raises(datarax.MetricInputError, match=r"\(2, 3\) and target of shape \(2, 4\)"):
        SNR().update(jnp.zeros((2, 3)), jnp.zeros((2, 4)))
    with pytest.raises(datarax.MetricInputError, match=r"shape \(\); expected signals"):
        SNR().update(jnp.zeros(()), jnp.zeros(()))
    with pytest.raises(datarax.MetricTypeError, match="metric=Mean; expected a metric of pairs"):
        PermutationInvariant(datarax.metrics.Mean())
    with pytest.raises(datarax.MetricInputError, match="give on_invalid= to PermutationInvariant"):
        PermutationInvariant(SNR(on_invalid="raise"))
    with pytest.raises(datarax.MetricInputError, match=r"shape \(3,\); expected sources"):
        PermutationInvariant(SNR()).update(jnp.zeros(3), jnp.zeros(3))
