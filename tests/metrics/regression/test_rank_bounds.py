"""`SpearmanCorrCoef(bits=)`: the bounds hold the exact value, however the bins were joined."""

from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats

from datarax import MetricInputError
from datarax.metrics import SpearmanCorrCoef
from tests.helpers import merge, update

SIZE, BATCH = 4000, 1000


@jax.jit
def read(metric):
    value, bounds = metric.value_and_bounds()
    return value, bounds.ends


def pairs(rng):
    """Of a correlation and a size by chance; the range of later batches is greater."""
    correlation, scale = rng.uniform(-1, 1), 10.0 ** rng.integers(-6, 6)
    x, noise = rng.normal(size=(2, SIZE))
    y = correlation * x + np.sqrt(1 - correlation**2) * noise
    x, y = rng.choice((x, np.exp(x))), y * scale + rng.choice((0, 100 * scale))
    if rng.random() < 0.3:
        y = np.round(y / scale * 2)
    grown = 1 + np.arange(SIZE) // BATCH
    return (x * grown).astype(np.float32), y.astype(np.float32)


def test_bounds_hold_the_exact_value(rng):
    for _ in range(8):
        x, y = pairs(rng)
        times = rng.integers(0, 3, SIZE)
        metrics = [SpearmanCorrCoef(bits=7)] * 2
        for i in range(0, SIZE, BATCH):
            rows, k = slice(i, i + BATCH), i // BATCH % 2
            w = times[rows].astype(np.float32)
            metrics[k] = update(metrics[k], x[rows], y[rows], weights=w)
        merged = merge(*metrics)
        value, (lower, upper) = jax.device_get(read(merged))
        want: Any = scipy.stats.spearmanr(np.repeat(x, times), np.repeat(y, times))[0]
        assert lower - 1e-6 <= want <= upper + 1e-6
        assert lower <= value <= upper
        assert upper - lower < 0.3


def test_bounds_of_a_buffer():
    x = np.float32([1, 2, 3, 4])
    metric = update(SpearmanCorrCoef(capacity=4), x, x)
    assert [float(bound) for bound in read(metric)[1]] == [1, 1]
    metric = update(metric, x, x)
    assert [float(bound) for bound in read(metric)[1]] == [-1, 1]


@pytest.mark.parametrize("bits", [5, 14, 8.0])
def test_bits_out_of_range(bits):
    with pytest.raises(MetricInputError, match="bits="):
        SpearmanCorrCoef(bits=bits)
