"""Special functions, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.special import entropy, relative_deviance, stirling_ratio
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
