"""Norms and power means beyond what the registry checks: range, zeros, long streams, errors."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import datarax
from datarax.metrics import GeometricMean, HarmonicMean, Norm, RootMeanSquare
from tests.helpers import update, x64

SIZE = 300
METRICS = {
    "root mean square": (RootMeanSquare(), lambda x: math.sqrt(np.mean(np.abs(x) ** 2))),
    "norm 1": (Norm(ord=1), lambda x: np.linalg.norm(x, 1)),
    "norm 2": (Norm(), np.linalg.norm),
    "norm inf": (Norm(ord=math.inf), lambda x: np.linalg.norm(x, np.inf)),
    "geometric mean": (GeometricMean(), stats.gmean),
    "harmonic mean": (HarmonicMean(), stats.hmean),
}
each_metric = pytest.mark.parametrize(("metric", "reference"), METRICS.values(), ids=METRICS)


@each_metric
def test_over_the_whole_range_of_floats(metric, reference, rng):
    for values in (
        rng.lognormal(size=SIZE),
        rng.lognormal(size=SIZE) * 1e34,
        rng.lognormal(size=SIZE) * 1e-34,
        10.0 ** rng.uniform(-35, 35, SIZE),
        # Near the sizes from which on values are scaled.
        2.0 ** rng.uniform(38, 42, SIZE),
        2.0 ** rng.uniform(-42, -38, SIZE),
        2.0 ** rng.choice([-40.0, 40.0], SIZE),
    ):
        values = values.astype(np.float32)
        got = float(update(metric, values).compute())
        assert got == pytest.approx(reference(values.astype(np.float64)), rel=5e-7)


@each_metric
def test_over_the_whole_range_of_float64(metric, reference, rng):
    with x64():
        values = 10.0 ** rng.uniform(-150, 150, SIZE)
        fresh = type(metric)(ord=metric.ord) if isinstance(metric, Norm) else type(metric)()
        got = fresh.update(jnp.asarray(values)).compute()
        assert got.dtype == jnp.float64
        assert float(got) == pytest.approx(reference(values), rel=1e-13)


def test_equal_values_are_their_own_mean(rng):
    # A mean of float32 logarithms would be off by 4e-6 of the value at 1e30.
    for value in (1e30, 1e6, 1.0001, 3e-30):
        values = np.full(SIZE, value, np.float32)
        for metric in (RootMeanSquare(), GeometricMean(), HarmonicMean()):
            got = float(update(metric, values).compute())
            assert got == pytest.approx(float(np.float32(value)), rel=2.0**-22)


def test_long_streams_do_not_stall():
    # 3 * 2**34 values: float32 sums would stop growing long before.
    for metric, want in [(Norm(ord=1), 3 * 2**36), (Norm(), 2**18 * math.sqrt(12))]:
        seen = metric.update(jnp.full((3,), 4.0))
        for _ in range(34):
            seen = seen.merge(seen)
        more = seen.update(jnp.array([0.0]))
        assert float(more.compute()) == pytest.approx(want, rel=1e-7)


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_zeros_and_negative_values():
    for metric in (GeometricMean(on_invalid="exclude"), HarmonicMean(on_invalid="exclude")):
        assert metric.update(jnp.array([0.0, 5.0])).compute() == 0
        assert metric.update(jnp.array([-0.0, 5.0]), weights=jnp.array([0.0, 1.0])).compute() == 5
        seen = metric.update(jnp.array([-3.0, 5.0]))
        assert seen.compute() == 5
        assert int(seen.invalid_count()) == 1
    for metric in (RootMeanSquare(), Norm(), Norm(ord=1), Norm(ord=math.inf)):
        assert metric.update(jnp.array([0.0, -0.0])).compute() == 0
        assert float(metric.update(jnp.array([-3.0])).compute()) == 3


def test_integers_and_empty():
    assert float(Norm().update(jnp.array([[3, -4]])).compute()) == 5
    assert np.isnan(Norm().update(jnp.zeros((0, 3))).compute())


@pytest.mark.parametrize("ord", [0, 3, -1, "fro", None])
def test_the_order_of_a_norm_is_checked(ord):
    with pytest.raises(datarax.MetricInputError, match="expected one of 1, 2, inf"):
        Norm(ord=ord)
