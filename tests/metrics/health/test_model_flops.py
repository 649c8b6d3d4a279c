"""ModelFLOPs, and what XLA counts in programs whose operations are known."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import datarax
from datarax.metrics import ModelFLOPs
from tests.helpers import collectives_in, make_mesh

N = 64


def compiled(function: Any, *shapes: Any, mesh: Any = None, specs: Any = None) -> Any:
    specs = specs or [P()] * len(shapes)
    args = [
        jax.ShapeDtypeStruct(
            shape, jnp.float32, sharding=NamedSharding(mesh, spec) if mesh else None
        )
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    return jax.jit(function).lower(*args).compile()


def test_a_product_of_matrices():
    program = compiled(jnp.matmul, (N, 3 * N), (3 * N, 5))
    assert ModelFLOPs.flops_of(program) == 2 * N * 3 * N * 5


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("axes", [{"data": 8}, {"data": 4, "model": 2}])
def test_a_product_that_is_sharded_over_a_mesh(kind, axes):
    mesh = make_mesh(kind, axes)
    columns = P(None, "model") if "model" in axes else P()
    program = compiled(jnp.matmul, (8 * N, N), (N, N), mesh=mesh, specs=[P("data", None), columns])
    assert not collectives_in(program.as_text())
    # The analysis is of the program of one device, which makes an eighth of the product.
    assert program.cost_analysis()["flops"] == 2 * 8 * N**3 / 8
    assert ModelFLOPs.flops_of(program) == 2 * 8 * N**3


def test_what_all_devices_compute_alike_counts_for_each():
    mesh = make_mesh("auto", {"data": 8})
    program = compiled(jnp.matmul, (N, N), (N, N), mesh=mesh)
    assert ModelFLOPs.flops_of(program) == 8 * 2 * N**3


def test_of_a_loop_one_round_is_counted_and_a_warning_says_so():
    def layers(x, w, unroll):
        return lax.scan(lambda x, _: (x @ w, None), x, None, length=10, unroll=unroll)[0]

    looped = compiled(lambda x, w: layers(x, w, 1), (N, N), (N, N))
    with pytest.warns(datarax.PrecisionWarning, match="unroll=True"):
        found = ModelFLOPs.flops_of(looped)
    assert 2 * N**3 <= found < 2 * 2 * N**3
    unrolled = compiled(lambda x, w: layers(x, w, True), (N, N), (N, N))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ModelFLOPs.flops_of(unrolled) == 10 * 2 * N**3


def test_a_program_without_operations_is_refused():
    for function in (lambda x: x, lambda x: x.T):
        with pytest.raises(datarax.MetricInputError, match="give flops_per_step="):
            ModelFLOPs.flops_of(compiled(function, (N, N)))


def test_a_training_step_makes_three_times_the_operations_of_the_forward_pass():
    def loss(w, x):
        return jnp.sum((x @ w) ** 2)

    forward = ModelFLOPs.flops_of(compiled(loss, (N, N), (N, N)))
    step = ModelFLOPs.flops_of(compiled(jax.grad(loss, (0, 1)), (N, N), (N, N)))
    assert 2.9 < step / forward < 3.1


def test_utilization_of_a_mesh():
    # A step of 6e12 operations, 0.5 s each, on 8 devices of 3e12 a second.
    metric = ModelFLOPs(flops_per_step=6e12, peak_flops_per_second=3e12, devices=8)
    for step in range(1, 5):
        metric = metric.update(elapsed=step * 0.5)
    got = metric.results()
    assert got == {"flops_per_second": np.float32(12e12), "utilization": 0.5}
    assert metric.update(4, elapsed=4.0).results()["utilization"] == 0.5


def test_a_number_of_steps_for_each_time_and_one_for_all():
    metric = ModelFLOPs(flops_per_step=10.0, peak_flops_per_second=100.0)
    times = jnp.array([1.0, 2.0])
    assert metric.update(elapsed=times).compute()["flops_per_second"] == 10
    assert metric.update(3, elapsed=times).compute()["flops_per_second"] == 30
    assert metric.update(jnp.array([1, 5]), elapsed=times).compute()["flops_per_second"] == 30


def test_large_numbers_of_operations_do_not_overflow():
    metric = ModelFLOPs(flops_per_step=1e36, peak_flops_per_second=1e37, devices=1000)
    got = metric.update(2**20, elapsed=2.0**20).results()
    np.testing.assert_allclose(got["flops_per_second"], 1e36, rtol=1e-6)
    np.testing.assert_allclose(got["utilization"], 1e-4, rtol=1e-6)


@pytest.mark.parametrize("elapsed", [0.0, None])
def test_no_time_gives_nan(elapsed):
    metric = ModelFLOPs(flops_per_step=1.0, peak_flops_per_second=1.0)
    if elapsed is not None:
        metric = metric.update(elapsed=elapsed)
    assert np.isnan([*metric.compute().values()]).all()


@pytest.mark.parametrize(
    "config",
    [
        {"flops_per_step": 0},
        {"flops_per_step": float("nan")},
        {"flops_per_step": float("inf")},
        {"peak_flops_per_second": -1.0},
        {"peak_flops_per_second": "H100"},
        {"devices": 0},
        {"devices": 1.5},
    ],
)
def test_configurations_that_are_refused(config):
    given = {"flops_per_step": 1.0, "peak_flops_per_second": 1.0} | config
    with pytest.raises(datarax.MetricInputError, match=next(iter(config))):
        ModelFLOPs(**given)
