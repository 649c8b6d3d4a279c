"""`D2Tweedie` and `D2Pinball`: offsets, bounds, constant targets, configuration."""

from decimal import Decimal, localcontext

import jax
import numpy as np
import pytest
import sklearn.metrics

from datarax import Collection, MetricInputError
from datarax.metrics import D2Pinball, D2Tweedie, R2Score, TweedieDeviance
from datarax.testing import assert_within_ulps
from tests.helpers import update

SIZE = 600


def in_batches(metric, preds, target, w):
    for i in range(0, SIZE, 200):
        rows = slice(i, i + 200)
        metric = update(metric, preds[rows], target[rows], weights=w[rows])
    return metric


def positive(rng, offset):
    target = (offset + rng.gamma(2, 1, SIZE)).astype(np.float32)
    preds = (target * np.exp(rng.normal(0, 0.3 / (1 + offset), SIZE))).astype(np.float32)
    return preds, target, rng.random(SIZE).astype(np.float32)


@pytest.mark.parametrize("power", [0, 1, 3.5])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_the_deviance_from_the_mean_at_an_offset(rng, power, offset):
    preds, target, w = positive(rng, offset)
    got = in_batches(D2Tweedie(power), preds, target, w).compute()
    want = sklearn.metrics.d2_tweedie_score(
        target.astype(float), preds.astype(float), power=power, sample_weight=w
    )
    assert float(got) == pytest.approx(want, abs=1e-5 * (1 - want))


def mean_deviance(target, preds, power):
    """The definition in 60 digits, which is enough where its terms nearly cancel."""
    with localcontext(prec=60):
        k, total = Decimal(float(power)), Decimal(0)
        for t, p in zip(map(Decimal, target.tolist()), map(Decimal, preds.tolist()), strict=True):
            if k == 1:
                total += t * (t / p).ln() - t + p
            elif k == 2:
                total += (p / t).ln() + t / p - 1
            else:
                of_target = t ** (2 - k) / ((1 - k) * (2 - k))
                total += of_target - t * p ** (1 - k) / (1 - k) + p ** (2 - k) / (2 - k)
        return 2 * total / len(target)


def test_powers_near_those_of_a_limit(rng):
    near = [0, *(10.0**-k for k in (2, 4, 6, 7, 8, 10, 12, 15))]
    powers = [-3, *(-x for x in near), *(1 + x for x in near), 1.5 - 1e-7, 1.5]
    powers += [*(2 - x for x in near), *(2 + x for x in near), 3.5]
    target, preds = rng.gamma(2, 1, (2, 24)).astype(np.float32) + np.float32(0.1)
    preds[:4] = target[:4] * np.float32(1.001)
    target[4:6], preds[6:8] = target[4:6] * 1e5, preds[6:8] * 1e-5
    means = np.full(len(target), target.astype(np.float64).mean())
    metric = Collection(
        {f"deviance {k!r}": TweedieDeviance(k) for k in powers}
        | {f"d2 {k!r}": D2Tweedie(k) for k in powers if k == 0 or k >= 1}
    )
    host = metric.update(preds=preds, target=target).results()
    device = jax.jit(lambda m, p, t: m.update(preds=p, target=t))(metric, preds, target).results()
    for power in powers:
        left = mean_deviance(target, preds, power)
        want = {f"deviance {power!r}": float(left)}
        if f"d2 {power!r}" in host:
            want[f"d2 {power!r}"] = float(1 - left / mean_deviance(target, means, power))
        for name, value in want.items():
            assert host[name] == pytest.approx(value, rel=1e-12), name
            assert device[name] == pytest.approx(value, rel=4e-6, abs=4e-6), name


def test_power_0_is_r2(rng):
    preds, target, w = positive(rng, 0.0)
    got, want = (
        in_batches(m, preds - 3, target - 3, w).compute() for m in (D2Tweedie(0), R2Score())
    )
    assert_within_ulps(got, want, 8, atol=1e-6)


@pytest.mark.parametrize("power", [-1, 0.5, float("nan")])
def test_powers_that_it_does_not_take(power):
    with pytest.raises(MetricInputError, match="expected 0, or a number of at least 1"):
        D2Tweedie(power)


def test_targets_of_zeros_alone():
    preds, target = np.float32([1, 2, 3]), np.zeros(3, np.float32)
    assert float(update(D2Tweedie(1), preds, target).compute()) == 0


@pytest.mark.parametrize("q", [0.1, 0.5])
def test_bounds_hold_the_value_of_scikit_learn(rng, q):
    # With many targets in few bins, the bounds are apart; the estimate is between them.
    offset = rng.choice((0.0, 1e3))
    target = (offset + rng.normal(0, 1, SIZE)).astype(np.float32)
    preds = (target + rng.normal(0, 0.5, SIZE)).astype(np.float32)
    w = rng.random(SIZE).astype(np.float32)
    metric = in_batches(D2Pinball(q, bits=10), preds, target, w)
    want = sklearn.metrics.d2_pinball_score(
        target.astype(float), preds.astype(float), alpha=q, sample_weight=w
    )
    lower, upper = map(float, metric.bounds())
    assert lower - 1e-6 <= want <= upper + 1e-6
    assert lower <= float(metric.compute()) <= upper
    assert upper - lower < 0.2
    assert lower < upper


@pytest.mark.parametrize("metric", [D2Tweedie(1), D2Pinball(0.5, bits=10)])
def test_constant_targets_and_a_single_one(metric):
    target = np.full(3, 2.5, np.float32)
    assert float(update(metric, target, target).compute()) == 1
    assert float(update(metric, target + 1, target).compute()) == 0
    assert np.isnan(float(update(metric, target[:1], target[:1]).compute()))
