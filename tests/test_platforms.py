"""Programs of other platforms: `lowering_for`, and what the programs of each platform hold."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import datarax
from datarax._platform import lowered_for
from datarax.metrics import Mean
from datarax.numerics.double_float import has_float64
from tests.helpers import make_mesh, place


@jax.jit
def mean(x):
    """An inner `jit`, of a metric whose program holds float64 where devices have it."""
    return Mean().update(x).compute()


def with_its_gradient(x):
    return jax.value_and_grad(mean)(x)


def with_its_state(x):
    """The rule that JAX differentiates the update by is part of the program."""
    return jax.jacfwd(lambda x: jax.tree.leaves(Mean().update(x)))(x)


def in_shard_map(x):
    mesh = make_mesh("auto", {"data": 8})
    return jax.shard_map(lambda x: mean(x)[None], mesh=mesh, in_specs=P(), out_specs=P("data"))(x)


SURROUNDINGS = {
    "inner jit": mean,
    "scan": lambda x: lax.scan(lambda c, row: (c, mean(row)), 0, x.reshape(2, -1))[1],
    "vmap": lambda x: jax.vmap(mean)(x.reshape(2, -1)),
    "cond": lambda x: lax.cond(x[0] > 0, mean, jnp.sum, x),
    "gradient": with_its_gradient,
    "state's derivative": with_its_state,
    "checkpoint": jax.grad(jax.checkpoint(mean)),
    "shard_map": in_shard_map,
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_each_platform_has_its_program_whichever_is_traced_first(name):
    x = jnp.arange(8, dtype=jnp.float32)
    for order in (("cpu", "tpu", "cpu"), ("tpu", "gpu", "tpu")):
        jax.clear_caches()
        function = jax.jit(SURROUNDINGS[name])
        for platform in order:
            with datarax.lowering_for(platform):
                assert ("f64" in function.lower(x).as_text()) == (platform != "tpu"), platform
    assert "f64" in function.lower(x).as_text()


@pytest.mark.parametrize("name", SURROUNDINGS)
@pytest.mark.filterwarnings("error::datarax.PlatformWarning")
def test_a_program_with_float64_that_is_lowered_for_tpus_warns(name):
    x = jnp.arange(8, dtype=jnp.float32)

    def lowered(*platforms):
        return jax.jit(SURROUNDINGS[name]).trace(x).lower(lowering_platforms=platforms)

    with pytest.raises(datarax.PlatformWarning, match="lowering_for"):
        lowered("cpu", "tpu")
    assert "f64" in lowered("cpu", "cuda").as_text()
    with datarax.lowering_for("tpu"):
        assert "f64" not in lowered("cpu", "tpu").as_text()


def test_a_function_called_here_is_exported_for_another_platform_and_back(rng):
    x = rng.normal(size=100).astype(np.float32)
    here = mean(x)
    with datarax.lowering_for("tpu"):
        exported = jax.export.export(mean, platforms=("cpu", "tpu"))(x)
        inside = mean(x)
    assert "f64" not in exported.mlir_module()
    assert "f64" in jax.export.export(mean)(x).mlir_module()
    for value in (exported.call(x), inside, mean(x)):
        np.testing.assert_array_almost_equal_nulp(value, here, 1)


@pytest.mark.parametrize("per_device", [False, True])
def test_updates_outside_jit_have_a_program_for_each_platform(per_device, programs):
    mesh = make_mesh("auto", {"data": 8})
    x = place(np.arange(8, dtype=np.float32), mesh, P("data"))
    metric = Mean(on_invalid="propagate")
    metric = datarax.per_device(metric, mesh, "data") if per_device else metric
    counts = []
    for platform in ("cpu", "tpu", "cpu", "tpu"):
        before = len(programs)
        with datarax.lowering_for(platform):
            jax.block_until_ready(metric.update(x))
        counts.append(len(programs) - before)
    assert counts[1] >= 1
    assert counts[2:] == [0, 0]


def test_blocks_nest_and_each_thread_has_its_own():
    found = []
    with datarax.lowering_for("tpu"):
        thread = threading.Thread(target=lambda: found.append(lowered_for()))
        thread.start()
        thread.join()
        found.append(lowered_for())
        with datarax.lowering_for("rocm"):
            found.append(lowered_for())
        found.append(lowered_for())
        with pytest.raises(ZeroDivisionError), datarax.lowering_for("cuda"):
            _ = 1 / 0
        found.append(lowered_for())
    assert [*found, lowered_for()] == ["cpu", "tpu", "gpu", "tpu", "tpu", "cpu"]


def test_the_block_may_be_inside_a_function_or_around_one():
    @jax.jit
    @datarax.lowering_for("tpu")
    def update(x):
        return Mean().update(x)

    assert "f64" not in update.lower(np.float32([1, 2])).as_text()
    assert has_float64()


def test_another_platform_is_refused():
    with pytest.raises(datarax.MetricInputError, match="'cuda', 'rocm', 'tpu'"):
        datarax.lowering_for("TPU v4")


def test_on_a_host_of_tpus_a_program_of_cpus_can_be_lowered(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert not has_float64()
    with datarax.lowering_for("cpu"):
        assert has_float64()


def mesh_of_tpus(axis_type):
    """A mesh without devices, as a program is lowered for on a host that has no TPU."""
    new = jax.__version_info__ >= (0, 10)
    device = jax.sharding.AbstractDevice("TPU v5 lite", 1, **({"platform": "tpu"} if new else {}))
    return jax.sharding.AbstractMesh((8,), ("data",), (axis_type,), abstract_device=device)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_a_mesh_of_tpus_says_the_platform(axis_type):
    x, mesh = jax.ShapeDtypeStruct((8,), jnp.float32), mesh_of_tpus(axis_type)

    def mapped(x):
        return jax.shard_map(mean, mesh=mesh, in_specs=P(), out_specs=P())(x)

    def text(function):
        return str(jax.make_jaxpr(function)(x))

    assert "f64" in text(mean)
    assert "f64" not in text(mapped)
    with jax.sharding.use_abstract_mesh(mesh):
        assert "f64" not in text(mean)
        assert "f64" not in text(mapped)
        with datarax.lowering_for("cpu"):
            assert "f64" in text(mean)
