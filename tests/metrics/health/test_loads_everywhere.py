"""Loads, activations and times on meshes, in collections, collectors and checkpoints."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import datarax
from datarax.io import restore, save
from datarax.metrics import (
    ActivationStats,
    ExpertLoad,
    Mean,
    ModelFLOPs,
    StepTime,
    Throughput,
)
from tests import helpers
from tests.helpers import collectives, collectives_in, make_mesh, place

LAYERS = ("embed", "mlp")
# Sums are in another order on several devices; quantiles and counts are not touched by that.
NEAR = {"rtol": 2e-6, "atol": 1e-6}


def everything():
    return datarax.Collection(
        {
            "load": ExpertLoad(5, num_layers=2),
            "activations": ActivationStats(layers=LAYERS, saturation=1.0),
            "time": StepTime(),
            "speed": Throughput(),
            "flops": ModelFLOPs(flops_per_step=1e12, peak_flops_per_second=1e13).from_outputs(
                steps="one"
            ),
            "loss": Mean().from_outputs(values="seconds"),
        }
    )


def outputs(rng, rows=16):
    seconds = rng.uniform(0.1, 2, rows).astype(np.float32)
    return {
        "experts": rng.integers(0, 5, (rows, 2)).astype(np.int32),
        "dropped": rng.random((rows, 2)) < 0.2,
        "layer": rng.integers(0, 2, rows).astype(np.int32),
        "router_logits": rng.normal(0, 1, (rows, 5)).astype(np.float32),
        "activations": {
            "embed": rng.normal(0, 1, (rows, 3, 4)).astype(jnp.bfloat16),
            "mlp": rng.normal(0, 1, (rows, 6)).clip(0).astype(np.float32),
        },
        "seconds": seconds,
        "waiting": seconds / 4,
        "tokens": rng.integers(0, 4096, rows).astype(np.int32),
        "examples": np.ones(rows, np.int32),
        "one": np.ones(rows, np.int32),
        "elapsed": rng.uniform(1, 9, rows).astype(np.float32),
    }


def assert_near(got, want):
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, err_msg=name, **NEAR)


@jax.jit
def update(metrics, outputs):
    return metrics.update(**outputs)


def test_per_device_without_collectives_and_a_sync_with_few(rng):
    mesh = make_mesh("auto", {"data": 4, "model": 2})
    batches = [outputs(rng), outputs(rng)]
    plain = everything()
    spread = datarax.per_device(everything(), mesh, ("data", "model"))
    on_mesh = [place(batch, mesh, P(("data", "model"))) for batch in batches]
    program = update.lower(spread, on_mesh[0]).compile()
    assert not collectives_in(program.as_text())
    for batch, placed in zip(batches, on_mesh, strict=True):
        plain = helpers.update(plain, **batch)
        spread = jax.block_until_ready(program(spread, placed))
    # The grids of the histograms are agreed on before their counts travel.
    assert collectives(jax.jit(lambda m: m.sync()), spread).total() <= 4
    assert_near(spread.compute(), plain.compute())


def test_global_arrays_that_are_sharded(rng):
    mesh, batch = make_mesh("explicit", {"data": 8}), outputs(rng)
    got = jax.block_until_ready(update(everything(), place(batch, mesh, P("data"))))
    got = jax.tree.map(np.asarray, got)
    assert_near(got.compute(), helpers.update(everything(), **batch).compute())


def test_rows_that_devices_do_not_divide_and_one_time_for_all(rng):
    mesh = make_mesh("auto", {"data": 8})
    batch = outputs(rng, 11) | {"elapsed": 2.5, "layer": 1}
    spread = datarax.per_device(everything(), mesh, "data").update(**batch)
    assert_near(spread.compute(), helpers.update(everything(), **batch).compute())


def test_scalars_per_device():
    mesh = make_mesh("auto", {"data": 8})
    for metric, given in (
        (Throughput(), {"tokens": 64, "elapsed": 2.0}),
        (ModelFLOPs(flops_per_step=8.0, peak_flops_per_second=16.0), {"elapsed": 2.0}),
        (ModelFLOPs(flops_per_step=8.0, peak_flops_per_second=16.0), {"steps": 3, "elapsed": 2.0}),
        (StepTime(), {"seconds": 0.5, "waiting": 0.25}),
        (ExpertLoad(3), {"experts": 2}),
    ):
        got = datarax.per_device(metric, mesh, "data").update(**given).compute()
        assert_near(got, metric.update(**given).compute())
    # A number of all devices has no place in the batch of one: an error, not eight times as many.
    with pytest.raises(datarax.MetricInputError, match="Give one value for each row"):
        datarax.per_device(ExpertLoad(3), mesh, "data").update(jnp.zeros(8, jnp.int32), dropped=3)


def test_collected_without_waiting(rng):
    with datarax.AsyncMetricCollector(everything()) as collector:
        metrics, windows = everything(), []
        for step in range(2):
            batch = outputs(rng)
            metrics = update(metrics, batch)
            windows.append(update(everything(), batch).results())
            metrics = collector.schedule_collection(metrics, step=step)
        for want in windows:
            got = collector.collect_results()
            assert_near(got, want)


def test_checkpoints(tmp_path, rng):
    first, second = outputs(rng), outputs(rng)
    seen = update(everything(), first)
    save(tmp_path / "a", seen)
    back = update(restore(tmp_path / "a", like=everything()), second)
    want = update(seen, second).compute()
    for name, value in back.compute().items():
        np.testing.assert_array_equal(value, want[name], name)
    spread = datarax.per_device(everything(), make_mesh("auto", {"data": 8}), "data")
    assert_near(restore(tmp_path / "a", like=spread).compute(), seen.compute())


def test_equal_loads_and_rates_share_a_statistic(rng):
    ids = rng.integers(0, 4, 9).astype(np.int32)
    both = datarax.Collection({"a": ExpertLoad(4), "b": ExpertLoad(4, on_invalid="exclude")})
    got = both.update(experts=ids)
    assert len(jax.tree.leaves(got)) == len(jax.tree.leaves(ExpertLoad(4)))
    np.testing.assert_array_equal(got["a"].compute()["share"], got["b"].compute()["share"])
