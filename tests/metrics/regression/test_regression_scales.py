"""Regression at any scale of values and of weights, and of normalised weights."""

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from datarax import Collection
from datarax.metrics import (
    D2AbsoluteError,
    D2Pinball,
    D2Tweedie,
    MeanAbsoluteError,
    R2Score,
    RootMeanSquaredError,
    SpearmanCorrCoef,
    Std,
)
from tests.helpers import update

SIZE = 32
SCALES = (1e-30, 1e-20, 1.0, 1e19, 1e30, 1e37)
WEIGHT_SCALES = (1e-30, 1.0, 1e30)


def halves(metric, preds, target, w=None):
    """The value of two halves merged, and that of one after the other."""
    rows = slice(0, SIZE // 2), slice(SIZE // 2, SIZE)
    weights = [{} if w is None else {"weights": np.float32(w[r])} for r in rows]
    parts = [update(metric, preds[r], target[r], **k) for r, k in zip(rows, weights, strict=True)]
    both = update(parts[0], preds[rows[1]], target[rows[1]], **weights[1])
    return [parts[0].merge(parts[1]).compute(), both.compute()]


def positive(rng, scale):
    target = rng.gamma(2, 1, SIZE) + 0.1
    preds = target * np.exp(rng.normal(0, 0.3, SIZE))
    return np.float32(preds * scale), np.float32(target * scale)


@pytest.mark.parametrize("power", [0, 1, 1.5, 2, 3, 5])
def test_d2_tweedie_does_not_depend_on_the_scale(rng, power):
    for scale in SCALES:
        preds, target = positive(rng, scale)
        w = np.float32(rng.uniform(0.5, 1, SIZE) * rng.choice(WEIGHT_SCALES))
        # In float64 the powers overflow, too; a power of two does not change the data.
        unit = 2.0 ** np.floor(np.log2(scale))
        want = sklearn.metrics.d2_tweedie_score(
            target / unit, preds / unit, power=power, sample_weight=np.float64(w)
        )
        for got in halves(D2Tweedie(power), preds, target, w):
            assert float(got) == pytest.approx(want, abs=1e-4 * (1 + abs(1 - want)))


def test_errors_greater_than_any_float():
    # The errors of the first and the third are up to 6e38.
    preds, target = np.array([[3, -3, 1, 2], [2.5, 3, -3, 1]], np.float32) * np.float32(1e38)
    p, t = np.float64(preds), np.float64(target)
    scores = sklearn.metrics
    for metric, want in (
        (R2Score(), scores.r2_score(t, p)),
        (D2Tweedie(0), scores.r2_score(t, p)),
        (D2AbsoluteError(), scores.d2_absolute_error_score(t, p)),
        # Without weights, scikit-learn 1.7 compares with an interpolated quantile.
        (D2Pinball(0.9), scores.d2_pinball_score(t, p, alpha=0.9, sample_weight=np.ones(4))),
        (MeanAbsoluteError(), scores.mean_absolute_error(t, p)),
        (RootMeanSquaredError(), np.inf),
    ):
        got = update(metric, preds, target).compute()
        assert float(got) == pytest.approx(want, rel=1e-5), type(metric).__name__


@pytest.mark.parametrize("metric", [D2AbsoluteError(bits=10), D2Pinball(0.9, bits=10)])
def test_d2_pinball_near_the_greatest_float(rng, metric):
    target = np.float32(rng.uniform(-3.3e38, 3.3e38, SIZE))
    preds = np.float32(target * rng.uniform(0.9, 1, SIZE))
    for w in (np.ones(SIZE), rng.uniform(0.1, 1, SIZE) * 1e30):
        seen = update(metric, preds, target, weights=np.float32(w))
        want = sklearn.metrics.d2_pinball_score(
            np.float64(target), np.float64(preds), alpha=metric.q, sample_weight=np.float32(w)
        )
        value, bounds = seen.value_and_bounds()
        lower, upper = bounds.ends
        assert lower - 1e-6 <= want <= upper + 1e-6
        assert lower <= value <= upper < 1
        assert upper - lower < 0.1


def normalised(rng, size):
    w = rng.uniform(0.1, 1, size)
    return np.float32(w / w.sum() * rng.choice([1, 0.5, 1e-30]))


def test_one_row_is_a_single_example_and_not_a_small_total_weight(rng):
    metrics = Collection(
        {"r2": R2Score(), "tweedie": D2Tweedie(0), "absolute": D2AbsoluteError(bits=10)}
    )
    w = normalised(rng, 4)
    target = np.full(4, 3, np.float32)
    for preds, value in ((target, 1), (target + 1, 0)):
        several = update(metrics, preds=preds, target=target, weights=w)
        one = np.float32(rng.permutation([w[0], 0, 0, 0]))
        single = update(metrics, preds=preds, target=target, weights=one)
        mask = update(metrics, preds=preds, target=target, weights=one > 0)
        # A weight is a repetition.
        repeated = update(metrics, preds=preds, target=target, weights=np.float32([2, 0, 0, 0]))
        assert set(map(float, several.compute().values())) == {value}
        assert set(map(float, single.merge(single).compute().values())) == {value}
        assert set(map(float, repeated.compute().values())) == {value}
        for seen in (single, mask, single.merge(metrics)):
            assert np.isnan(list(seen.compute().values())).all()
    preds, target = positive(rng, 1.0)
    w = normalised(rng, SIZE)
    for got in halves(R2Score(), preds, target, w):
        want = sklearn.metrics.r2_score(target, preds, sample_weight=np.float64(w))
        assert float(got) == pytest.approx(want, abs=1e-5 * (1 + abs(1 - want)))


def test_degrees_of_freedom_near_zero(rng):
    # The floats nearest to thirds: their total is 2 + 6e-8, which a float32 rounds to 2.
    w = np.float32(rng.permutation([1, 1, 1, 1, 2])) / np.float32(3)
    preds, target = rng.normal(size=(2, 5)).astype(np.float32)
    n, left = (
        np.sum(w, dtype=np.float64),
        1 - sklearn.metrics.r2_score(target, preds, sample_weight=w),
    )
    assert 0 < n - 2 < 1e-7
    for rows in ([slice(0, 5)], [slice(0, 2), slice(2, 5)]):
        r2, std = R2Score(adjusted=1), Std(ddof=2)
        for r in rows:
            r2 = r2.update(preds[r], target[r], weights=w[r])
            std = std.update(target[r], weights=w[r])
        got = r2.compute()
        assert float(got) == pytest.approx(1 - left * (n - 1) / (n - 2), rel=1e-5)
        about = target - np.average(target, weights=w)
        assert float(std.compute()) == pytest.approx(
            np.sqrt(np.sum(w * about**2) / (n - 2)), rel=1e-5
        )


def test_rank_correlation_of_a_constant_with_float_weights(rng):
    for scale in WEIGHT_SCALES:
        w = (rng.uniform(0.1, 1, (4, SIZE)) * scale).astype(np.float32)
        constant, x = np.full(SIZE, 3, np.float32), np.float32(rng.normal(size=SIZE))
        for preds, target in ((constant, x), (x, constant), (constant, constant)):
            for weights in w:
                seen = update(SpearmanCorrCoef(bits=6), preds, target, weights=weights)
                value, bounds = seen.value_and_bounds()
                assert np.isnan([value, *bounds.ends]).all()


BASES = {np.int32: 2**30, np.uint32: 2**31 + 2**30}


@pytest.mark.parametrize("dtype", BASES)
def test_integers_that_differ_by_one_and_that_floats_round(rng, dtype):
    # Of uint32, 256 of them round to one float32.
    base = BASES[dtype]
    offsets = rng.integers(0, 40, (2, SIZE)).astype(dtype)
    offsets[:, 0] = 0, 40
    preds, target = offsets + np.asarray(base, dtype)
    p, t = offsets.astype(np.float64)
    ones = np.ones(SIZE)
    for metric, want in (
        (D2AbsoluteError(), sklearn.metrics.d2_absolute_error_score(t, p)),
        (D2Pinball(0.9), sklearn.metrics.d2_pinball_score(t, p, alpha=0.9, sample_weight=ones)),
        # The bins are over the floats around the range: 256 integers or more.
        (SpearmanCorrCoef(bits=9), float(scipy.stats.spearmanr(p, t)[0])),
    ):
        for got in halves(metric, preds, target):
            assert float(got) == pytest.approx(want, abs=1e-5 * (1 + abs(1 - want)))
        _, bounds = update(update(metric, preds, target), preds, target).value_and_bounds()
        np.testing.assert_allclose(bounds.ends, want, rtol=0, atol=1e-5 * (1 + abs(1 - want)))


def test_bins_of_integers_are_joined_and_hold_the_value(rng):
    # The range grows to all of int32, so integers share bins.
    near = rng.integers(2**30, 2**30 + 2000, (2, SIZE)).astype(np.int32)
    far = rng.integers(-(2**31), 2**31 - 1, (2, SIZE), np.int64).astype(np.int32)
    preds, target = np.concatenate([near, far], 1)
    p, t = np.float64(preds), np.float64(target)
    for metric, want in (
        (D2AbsoluteError(bits=10), sklearn.metrics.d2_absolute_error_score(t, p)),
        (SpearmanCorrCoef(bits=6), float(scipy.stats.spearmanr(p, t)[0])),
    ):
        one = update(update(metric, *near), *far)
        for seen in (one, update(metric, *near).merge(update(metric, *far))):
            value, bounds = seen.value_and_bounds()
            lower, upper = bounds.ends
            assert lower - 1e-5 <= want <= upper + 1e-5
            assert lower <= value <= upper
