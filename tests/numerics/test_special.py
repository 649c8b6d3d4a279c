"""Special functions, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
import scipy.stats

from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.special import (
    entropy,
    fair_coin_p_value,
    relative_deviance,
    softmax_log_odds,
    stirling_ratio,
    t_p_value,
    t_quantile,
)
from datarax.testing import assert_within_ulps


def test_relative_deviance(rng):
    t = np.concatenate([rng.uniform(-1, 3, 500), 10 ** rng.uniform(-18, 6, 500), [-1, -0.5, 0, 1]])
    t = np.concatenate([t, -(10 ** rng.uniform(-18, 0, 500))]).astype(np.float32)
    x = t.astype(np.float64)
    series = x * x / 2 - x**3 / 6 + x**4 / 12
    want = np.where(np.abs(x) < 1e-4, series, scipy.special.xlog1py(1 + x, x) - x)
    assert_within_ulps(jax.jit(relative_deviance)(t), want, 12)


def test_stirling_ratio(rng):
    m = np.concatenate([rng.uniform(0, 8, 500), 10 ** rng.uniform(-6, 4, 500), np.arange(9)])
    m = m.astype(np.float32)
    x = m.astype(np.float64)
    want = np.exp(scipy.special.gammaln(x + 1) - scipy.special.xlogy(x, x) + x)
    assert_within_ulps(jax.jit(stirling_ratio)(m), want, 12)


def test_entropy(rng):
    # Of two shares, one of which is next to 1 in half of the cases.
    size = 2**24
    part = np.concatenate([rng.integers(1, size, 200), rng.integers(1, 100, 200)])
    counts = np.stack([part, size - part], -1).astype(np.float32)

    @jax.jit
    @jax.vmap
    def got(x):
        return entropy(DoubleFloat.of(x), DoubleFloat.of(jnp.full(1, size, x.dtype)))

    p = counts.astype(np.float64) / size
    rest = p[:, ::-1]
    want = -(p * np.where(p > 0.5, np.log1p(-rest), np.log(p))).sum(-1)
    assert_within_ulps(got(counts), want, 4)


def test_fair_coin_p_value(rng):
    """Beside SciPy, from one throw to 1e10, at up to 12 standard deviations."""
    n = np.concatenate([np.arange(40), np.floor(10 ** rng.uniform(1, 10, 500))])
    k = np.floor(np.maximum(n / 2 - rng.uniform(0, 6, n.size) * np.sqrt(n), 0))
    want = np.where(n == 0, 1, np.minimum(1, 2 * scipy.stats.binom.cdf(k, n, 0.5)))
    with jax.enable_x64(True):
        got = np.asarray(jax.jit(fair_coin_p_value)(n, n - 2 * k))
    # SciPy before 1.17 is wrong by 1e-7 for large n, where logarithms of the gamma function cancel.
    np.testing.assert_array_less(abs(got - want), want * np.where(n < 1000, 1e-8, 3e-7))
    held = (n < 2**24) & (want > 1e-30)  # by a float32, and so is a unit in its last place
    n, k, want = n[held], k[held], want[held]
    got = jax.jit(fair_coin_p_value)(jnp.float32(n), jnp.float32(n - 2 * k))
    units = abs(got - want) / np.spacing(want.astype(np.float32))
    np.testing.assert_array_less(units, 12 * (1 - np.log(want)))


def test_fair_coin_p_value_of_any_numbers(rng):
    more = np.concatenate([rng.uniform(0, 30, 500), rng.uniform(0, 0.1, 100), [0.5, 1.5]])
    less = more * np.where(rng.random(more.size) < 0.2, 0, rng.random(more.size))
    want = np.minimum(1, 2 * scipy.special.betainc(more, less + 1, 0.5))
    with jax.enable_x64(True):
        got = jax.jit(fair_coin_p_value)(more + less, more - less)
    np.testing.assert_allclose(got, want, rtol=1e-8)


def test_softmax_log_odds(rng):
    for classes in (2, 3, 100):
        for scale, offset in ((1, 0), (1, 100), (10, 0), (1e-3, 0)):
            x = (scale * rng.normal(size=(200, classes)) + offset).astype(np.float32)
            wide = x.astype(np.float64)
            others = [
                scipy.special.logsumexp(np.delete(wide, c, 1), axis=1) for c in range(classes)
            ]
            want = wide - np.stack(others, 1)
            error = np.abs(np.asarray(jax.jit(softmax_log_odds)(x)) - want)
            # Roundings of the differences, and a few of the logarithm of a sum up to 100.
            assert (error <= 2.0**-23 * (np.abs(want) + 40)).all()
            if classes == 2:
                np.testing.assert_array_equal(softmax_log_odds(x), x - x[:, ::-1])
    inf = np.inf
    rows = np.float32([[0, -inf, -inf], [1, 2, -inf], [3e38, -3e38, 0], [7, 7, -inf]])
    want = np.float32([[inf, -inf, -inf], [-1, 1, -inf], [3e38, -inf, -3e38], [0, 0, -inf]])
    with np.errstate(all="ignore"):  # as in a metric
        np.testing.assert_array_equal(softmax_log_odds(rows), want)


def test_student_t(rng):
    df = np.concatenate([np.arange(1, 70), rng.integers(70, 10**6, 20)]).astype(np.float64)
    for confidence in (0.5, 0.9, 0.95, 0.999):
        want = scipy.stats.t.ppf((1 + confidence) / 2, df)
        np.testing.assert_allclose(t_quantile(confidence, df), want, rtol=1e-7)
        compiled = jax.jit(lambda df, c=confidence: t_quantile(c, df))(jnp.float32(df))
        np.testing.assert_allclose(compiled, want, rtol=1e-5)
    t = rng.exponential(2, df.size)
    want = 2 * scipy.stats.t.sf(t, df)
    np.testing.assert_allclose(t_p_value(t, df), want, rtol=1e-8)
    found = jax.jit(t_p_value)(jnp.float32(t), jnp.float32(df))
    np.testing.assert_allclose(found, want, rtol=5e-3, atol=1e-9)
    none = np.array([0.0, np.nan])
    assert np.isnan([t_quantile(0.95, none), t_p_value(t[:2], none)]).all()
