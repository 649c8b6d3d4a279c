"""`GradientNoiseScale` on a problem whose noise is known; its formula is in the registry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import datarax
from datarax import InvalidValuesWarning, MetricInputError
from datarax.metrics import GradientNoiseScale
from tests.helpers import make_mesh, over_shards


def test_both_estimates_are_unbiased(rng):
    # Gradients of examples are drawn around the true gradient with a known covariance.
    size, steps, small, big = 6, 4000, 4, 16
    true = rng.normal(size=size)
    deviations = rng.uniform(0.5, 2, size)
    examples = true + deviations * rng.normal(size=(steps, big, size))
    of_parts = examples.reshape(steps, big // small, small, size).mean(2)  # of four devices
    of_all = examples.mean(1)
    metric = GradientNoiseScale()
    values = (of_parts**2).sum(-1), (of_all**2).sum(-1)
    got = metric.update(*values, small_batch=small, big_batch=big).results()
    # Of each estimate, five standard errors, from the spread over steps.
    trace, square = (deviations**2).sum(), (true**2).sum()
    noise = (values[0].mean(1) - values[1]) / (1 / small - 1 / big)
    squares = (big * values[1] - small * values[0].mean(1)) / (big - small)
    assert abs(got["trace"] - trace) < 5 * noise.std() / steps**0.5
    assert abs(got["square_norm"] - square) < 5 * squares.std() / steps**0.5
    np.testing.assert_allclose(got["noise_scale"], got["trace"] / got["square_norm"], rtol=1e-6)
    np.testing.assert_allclose(got["trace"], noise.mean(), rtol=1e-5)
    np.testing.assert_allclose(got["square_norm"], squares.mean(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_in_data_parallel_training(kind, rng):
    mesh = make_mesh(kind, {"data": 8})
    batch = jax.device_put(
        rng.normal(1, 1, (32, 5)).astype(np.float32), jax.NamedSharding(mesh, P("data"))
    )

    def step(metric, shard):
        grads = jnp.mean(shard, 0)
        mean = jax.lax.pmean(grads, "data")
        small, big = jnp.sum(grads**2), jnp.sum(mean**2)
        return metric.update(small, big, small_batch=4, big_batch=32).sync("data")

    program = over_shards(step, mesh, (P(), P("data")), P())
    metric = GradientNoiseScale()
    for _ in range(2):
        metric = jax.block_until_ready(program(metric, batch))
    rows = np.asarray(batch, np.float64).reshape(8, 4, 5).mean(1)
    small, big = (rows**2).sum(-1).mean(), (rows.mean(0) ** 2).sum()
    got = metric.results()
    np.testing.assert_allclose(got["trace"], (small - big) / (1 / 4 - 1 / 32), rtol=1e-5)
    np.testing.assert_allclose(got["square_norm"], (32 * big - 4 * small) / 28, rtol=1e-4)
    copies = datarax.per_device(GradientNoiseScale(), mesh, "data")
    copies = copies.update((rows**2).sum(-1), big, small_batch=4, big_batch=32)
    np.testing.assert_allclose(copies.results()["trace"], got["trace"], rtol=1e-5)


def test_no_positive_gradient_gives_no_scale():
    got = GradientNoiseScale().update(8.0, 1.0, small_batch=1, big_batch=2).results()
    assert got["square_norm"] == -6.0
    assert np.isnan(got["noise_scale"])


def test_sizes_out_of_order_are_refused(rng):
    for small, big in ((4, 4), (8, 4), (0, 4), (-1, 4)):
        with pytest.raises(MetricInputError, match="small_batch < big_batch"):
            GradientNoiseScale().update(1.0, 1.0, small_batch=small, big_batch=big)
    update = jax.jit(lambda b, n: GradientNoiseScale().update(1.0, 1.0, small_batch=b, big_batch=n))
    with pytest.warns(InvalidValuesWarning, match="1 out of range"):
        assert np.isnan(update(8, 4).results()["trace"])
    with pytest.raises(MetricInputError, match="broadcast"):
        GradientNoiseScale().update(jnp.ones(3), jnp.ones(2), small_batch=1, big_batch=2)
