"""`datarax.health`: a collection for a training run, in a real step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import datarax
from datarax import MetricInputError
from tests.helpers import make_mesh


def test_in_a_training_step(rng):
    params = {
        "dense": {"kernel": jnp.asarray(rng.normal(size=(4, 3)), jnp.float32)},
        "b": jnp.zeros(3),
    }
    optimizer = optax.sgd(0.1, momentum=0.9)
    batch = jnp.asarray(rng.normal(size=(8, 4)), jnp.float32)

    def loss_of(params):
        return jnp.mean((batch @ params["dense"]["kernel"] + params["b"][None] - 1) ** 2)

    @jax.jit
    def step(params, state, metrics, number):
        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(grads, state, params)
        metrics = metrics.update(
            loss=loss, params=params, grads=grads, updates=updates, step=number, elapsed=number + 1
        )
        return optax.apply_updates(params, updates), state, metrics, (loss, grads, updates)

    metrics, state, losses = datarax.health(params, tokens=100), optimizer.init(params), []
    before, grads, updates = params, {}, {}
    for number in range(5):
        before = params
        params, state, metrics, (loss, grads, updates) = step(params, state, metrics, number)
        losses.append(float(loss))
    results = metrics.results()
    np.testing.assert_allclose(results["loss"], np.mean(losses), rtol=1e-6)
    for name, tree in (("param", before), ("grad", grads), ("update", updates)):
        norm = float(optax.tree.norm(tree))
        np.testing.assert_allclose(results[f"tree/{name}_norm"], norm, rtol=1e-6)
    dense = float(optax.tree.norm(updates["dense"]) / optax.tree.norm(before["dense"]))
    np.testing.assert_allclose(results["tree/dense/update_ratio"], dense, rtol=1e-6)
    assert (results["tokens/total"], results["tokens/per_second"]) == (500, 100.0)
    assert results["spikes/count"] == 0
    assert results["tree/first_nonfinite"] is None


def test_what_is_left_out(rng):
    params = {"w": np.ones(3, np.float32)}
    metrics = datarax.health(params, groups=None).update(loss=1.0, step=0, params=params)
    results = metrics.results()
    assert {name.partition("/")[0] for name in results} == {"loss", "spikes", "tree"}
    assert not any(name.startswith("tree/w") for name in results)
    with pytest.raises(MetricInputError, match="'elapsed'"):
        datarax.health(params, tokens=8).update(loss=1.0, step=0, params=params)
    with pytest.raises(MetricInputError, match="'step'"):
        datarax.health(params).update(loss=1.0, params=params)
    for tokens in (0, -1, 1.5, 2**31):
        with pytest.raises(MetricInputError, match="tokens"):
            datarax.health(params, tokens=tokens)


def test_with_copies_on_devices_and_a_collector(rng):
    params = {"w": jnp.asarray(rng.normal(size=(16, 3)), jnp.float32), "b": jnp.zeros(5)}
    metrics = datarax.per_device(
        datarax.health(params, tokens=10), make_mesh("auto", {"data": 8}), "data"
    )
    with datarax.AsyncMetricCollector(metrics) as collector:
        for step in range(4):
            metrics = metrics.update(
                loss=float(step), params=params, grads=params, step=step, elapsed=step + 1.0
            )
        metrics = collector.schedule_collection(metrics, step=3)
        results = collector.collect_results()
    assert (results["loss"], results["tokens/total"], results["tokens/per_second"]) == (1.5, 40, 10)
    np.testing.assert_allclose(results["tree/grad_norm"], float(optax.tree.norm(params)), rtol=1e-6)
    assert results["tree/b/grad_zeros"] == 1.0
