"""`Moments`: against NumPy and SciPy in float64, around large means, merged and weighted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax import lax

from datarax import MetricInputError, lowering_for
from datarax.statistics import Moments, sums_about_mean
from tests.helpers import assert_same, draw, merge, update


@jax.jit
def one_by_one(x):
    return lax.scan(lambda s, v: (s.update(v), None), Moments(order=4), x)[0]


def batches(x, sizes):
    stat, start = Moments(order=4), 0
    for size in sizes:
        stat, start = update(stat, x[start : start + size]), start + size
    return stat


def check(stat, x, rtol=2e-5):
    """Every moment, against SciPy in float64 on the same float32 values."""
    x = np.asarray(x, np.float64)
    assert_same(stat.count, x.size, np.float32)
    assert abs(stat.mean - x.mean()) <= 2.0**-23 * np.abs(x).mean()
    np.testing.assert_allclose(stat.variance(), x.var(), rtol)
    if x.size > 1:
        np.testing.assert_allclose(stat.variance(ddof=1), x.var(ddof=1), rtol)
    # The standardised moments are of order one: absolute, for those near zero.
    np.testing.assert_allclose(stat.skewness, scipy.stats.skew(x), rtol, rtol)
    np.testing.assert_allclose(stat.kurtosis, scipy.stats.kurtosis(x), rtol, rtol)


@pytest.mark.parametrize("offset", [0, 1e4, -1e4, 1e6])
@pytest.mark.parametrize("kind", ["normal", "skewed", "uniform"])
def test_the_moments_at_any_offset(rng, kind, offset):
    # Other libraries give a standard deviation of 0.0 around a mean of 1e4.
    noise = {
        "normal": rng.standard_normal(6000),
        "skewed": rng.exponential(1, 6000),
        "uniform": rng.random(6000),
    }[kind]
    x = (noise + offset).astype(np.float32)
    for sizes in ([6000], [1, 999, 2000, 3000], [2000] * 3):
        check(batches(x, sizes), x)
    check(one_by_one(x), x)


def test_merges_of_any_shape_agree(rng):
    x = (rng.standard_normal(4000) + 1e4).astype(np.float32)
    parts = [update(Moments(order=4), p) for p in np.split(x, [1, 1000, 1001, 3000])]
    left, right = parts[0], parts[-1]
    for part in parts[1:]:
        left = merge(left, part)
    for part in reversed(parts[:-1]):
        right = merge(part, right)
    for merged in (left, right, merge(left, left.reset()), merge(left.reset(), left)):
        check(merged, x)
    check(merge(left, right), np.concatenate([x, x]))


def test_two_streams_far_apart():
    # The spread lies between the two: 1e6 apart, each of sigma 1e-2.
    a = np.float32([0.0, 0.01, 0.02] * 100)
    b = np.float32([1e6] * 300)
    empty = Moments(order=4)
    check(merge(update(empty, a), update(empty, b)), np.concatenate([a, b]))


def test_a_long_stream_of_scalars_stays_on_course():
    # 1e4 - 1 and 1e4 + 1 in turn. Without the lower part of the mean, the variance is wrong by
    # hundreds of units in the last place after 50,000 updates, and by fewer after a million.
    def step(stat, i):
        return stat.update(jnp.float32(1e4) + (2 * (i % 2) - 1).astype(jnp.float32)), None

    stat = jax.jit(lambda: lax.scan(step, Moments(order=4), jnp.arange(50_000))[0])()
    assert_same(stat.mean, 1e4, np.float32)
    assert_same(stat.variance(), 1, np.float32, ulps=2)
    np.testing.assert_allclose(stat.skewness, 0, atol=1e-6)
    np.testing.assert_allclose(stat.kurtosis, -2, rtol=1e-6)


def test_weights_are_repetitions(rng):
    x = (rng.standard_normal(500) * 3 + 100).astype(np.float32)
    w = rng.integers(0, 5, 500)
    for weights in (w, w.astype(np.float32), w.astype(jnp.bfloat16)):
        stat = update(Moments(order=4), x[:100], weights=weights[:100])
        check(update(stat, x[100:], weights=weights[100:]), np.repeat(x, w))
    check(update(Moments(order=4), x, weights=w > 2), x[w > 2])
    stat = update(Moments(), x, weights=np.float32(0.25))
    assert_same(stat.count, 125, np.float32)
    np.testing.assert_allclose(stat.variance(ddof=5), x.var(dtype=np.float64) * 125 / 120, 1e-5)


def test_rows_have_moments_of_their_own(rng):
    x = (rng.standard_normal((300, 2, 3)) * [[1], [10]] + 1e4).astype(np.float32)
    stat = update(update(Moments((2, 3), order=4), x[:100].reshape(10, 10, 2, 3)), x[100:])
    assert stat.mean.shape == stat.variance().shape == (2, 3)
    wide = x.astype(np.float64)
    assert_same(stat.mean, wide.mean(0), np.float32, ulps=1)
    np.testing.assert_allclose(stat.variance(), wide.var(0), 2e-5)
    np.testing.assert_allclose(stat.kurtosis, scipy.stats.kurtosis(wide, 0), 2e-5, 2e-5)
    with pytest.raises(MetricInputError, match=r"ends in \(2, 3\)"):
        stat.update(jnp.ones((5, 3)))


def test_what_cannot_be_used_is_excluded_by_the_row():
    x = jnp.asarray([[1.0, 2.0], [jnp.nan, 5.0], [3.0, 4.0], [0.0, jnp.inf]])
    stat = Moments((2,)).update(x)
    assert_same(stat.count, np.full(2, 2), np.float32)
    assert_same(stat.mean, np.float32([2, 3]))
    assert int(stat.invalid.value) == 2
    stat = Moments((2,)).update(x, weights=jnp.asarray([1.0, 0.0, -1.0, 0.0]))
    assert_same(stat.mean, np.float32([1, 2]))
    assert int(stat.invalid.value) == 1


def test_no_data_one_value_and_constants():
    empty = Moments(order=4)
    nothing = (
        empty,
        empty.update(jnp.zeros((0,))),
        empty.update(1.0, weights=0.0),
        empty.merge(empty),
    )
    for stat in nothing:
        for value in (stat.mean, stat.variance(), stat.skewness, stat.kurtosis):
            assert np.isnan(value)
        assert_same(stat.merge(Moments(order=4).update(7.0)).mean, 7, np.float32)
    for stat in (
        empty.update(5.0),
        empty.update(jnp.full((3,), 1e20)),
        empty.update(jnp.full((1000,), 1e6)).update(1e6),
    ):
        assert float(stat.variance()) == 0
        assert np.isnan(stat.skewness)  # as scipy.stats.skew
        assert np.isnan(stat.kurtosis)
    assert np.isnan(empty.update(5.0).variance(ddof=1))
    assert_same(empty.update(jnp.asarray([1.0, 2.0])).variance(ddof=1), 0.5, np.float32)


def test_integers_and_half_precision(rng):
    for dtype in ("int8", "int32", "uint8", "bool", "bfloat16", "float16"):
        x = draw(rng, (200,), dtype)
        stat = update(Moments(), x)
        wide = np.asarray(x).astype(np.float64)
        assert abs(stat.mean - wide.mean()) <= 2.0**-23 * np.abs(wide).mean()
        np.testing.assert_allclose(stat.variance(), wide.var(), 1e-5)


def test_the_order():
    for order in (1, 5, 2.5, None):
        with pytest.raises(MetricInputError, match=r"order=.*expected one of 2, 3, 4"):
            Moments(order=order)
    with pytest.raises(MetricInputError, match="hold no skewness"):
        _ = Moments().update(1.0).skewness
    with pytest.raises(MetricInputError, match="hold no kurtosis"):
        _ = Moments(order=3).update(1.0).kurtosis
    assert np.isfinite(Moments(order=3).update(jnp.asarray([1.0, 2.0, 4.0])).skewness)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_masks_of_more_rows_than_an_int32_counts_are_added_up_as_floats(platform, rng, monkeypatch):
    x = rng.normal(3, 1, 50).astype(np.float32)
    want = Moments().update(x)
    monkeypatch.setattr(sums_about_mean, "_MOST_COUNTED", 50)  # as if these were 2**31
    with lowering_for(platform):
        got = jax.jit(lambda m, x: m.update(x).update(x[:7]))(Moments(), x)
    want = want.update(x[:7])
    np.testing.assert_allclose(got.count, 57)
    np.testing.assert_allclose(got.mean, want.mean, 1e-6)
    np.testing.assert_allclose(got.variance(), want.variance(), 1e-6)
