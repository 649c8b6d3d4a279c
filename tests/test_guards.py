"""The life of a metric under each guard and debugging flag that JAX has.

Transfers of the library are explicit (`jax.device_put`, `jax.device_get`), so a loop may run inside
`jax.transfer_guard("disallow")`. A flag that JAX adds is missing in `FLAGS`, and a test says so.
"""

import logging
import re
import warnings
from typing import Any

import jax
import numpy as np
import pytest

import datarax
import datarax.io
from datarax.distributed import global_batch
from datarax.metrics import AUROC, Accuracy, Mean, RootMeanSquaredError, Sum
from tests.environments import mesh_of

FLAGS: dict[str, dict[str, Any]] = {
    "transfers": {
        "jax_transfer_guard": "disallow",
        "jax_transfer_guard_host_to_device": "disallow",
        "jax_transfer_guard_device_to_device": "disallow",
        "jax_transfer_guard_device_to_host": "disallow",
    },
    "leaks": {"jax_check_tracer_leaks": True},
    "checks": {
        "jax_check_static_indices": True,
        "jax_debug_key_reuse": True,
        "jax_enable_checks": True,
        "jax_mutable_array_checks": False,
    },
    "NaN and infinity": {"jax_debug_nans": True, "jax_debug_infs": True},
    "types": {
        "jax_explicit_x64_dtypes": "error",
        "jax_legacy_prng_key": "error",
        "jax_numpy_dtype_promotion": "strict",
        "jax_numpy_rank_promotion": "raise",
    },
    "logs": {
        "jax_explain_cache_misses": True,
        "jax_log_checkpoint_residuals": True,
        "jax_log_compiles": True,
        "jax_traceback_filtering": "off",
    },
    "programs": {
        "jax_default_matmul_precision": "highest",
        "jax_threefry_partitionable": False,
        "jax_use_shardy_partitioner": True,
    },
    "without jit": {"jax_disable_jit": True},
    "without tracing": {"jax_no_tracing": True},
}
"""The flags that may be set while a program runs, with the value that forbids or shows most. Those
of one name are set at once."""

GUARDS = "guard|check|debug|leak|error|promotion|disable_jit|no_tracing|nans|infs|log_compiles"
OF_JAX = (
    # Of compilers, clients, files and kernels; or of how a derivative of `custom_vjp` is checked.
    "pallas|mosaic|cache|pgle|leaked_clients|distributed_debug|in_dumps|tracer_error|runtime_errors|bwd"
    "|proxy|checkpoint_residuals|log_modules|garbage_collection|thread_guard|vmap_shmap"
    "|jax2tf|cache_misses|check_vma|error_checking_behavior"
)


def test_each_guard_of_jax_is_listed():
    flags = {name for name in jax.config.values if re.search(GUARDS, name)}
    listed = {name for each in FLAGS.values() for name in each}
    assert {name for name in flags if not re.search(OF_JAX, name)} <= listed


def members() -> datarax.Collection:
    return datarax.Collection(
        {
            "mean": Mean().from_outputs(values="scores"),
            "sum": Sum().from_outputs(values="scores"),
            "rmse": RootMeanSquaredError().from_outputs(preds="scores", target="labels"),
            "accuracy": Accuracy().from_outputs(preds="scores", target="labels"),
            "auroc": AUROC().from_outputs(preds="scores", target="labels"),
        }
    )


@jax.jit
def step(metric: datarax.Metric, batch: Any) -> datarax.Metric:
    return metric.update(**batch)


def life(folder: Any, per_device: bool, alone: bool = False) -> dict[str, Any]:
    """What is read of a metric at each point of its life, or of one metric on one device."""
    mesh, metric = mesh_of("auto", 1 if alone else 8), members()
    if alone:
        metric = datarax.Collection({"mean": metric["mean"]})
    rows = {
        "scores": np.arange(16, dtype=np.float32) / 16,
        "labels": (np.arange(16) % 3 == 0).astype(np.int32),
    }
    batch, _ = global_batch(rows, mesh, "data")
    make = (
        datarax.per_device
        if per_device
        else lambda metric, mesh, _: datarax.replicate(metric, mesh)
    )
    found = {"host": metric.update(**rows).merge(metric).results()}
    made = make(metric, mesh, "data")
    found["empty"] = made.results()
    first = jax.block_until_ready(step(made, batch))
    found["step"], found["compute"] = first.results(), jax.device_get(first.compute())
    if per_device:
        found["sync"] = first.sync().results()
    found["merge"] = first.merge(first.reset()).results()
    with datarax.AsyncMetricCollector(first) as collector:
        collector.schedule_collection(first, step=1)
        found["collector"] = collector.collect_results()
    path = folder / f"{per_device}-{len(list(folder.iterdir()))}"
    datarax.io.save(path, first)
    found["restored"] = datarax.io.restore(path, like=first).results()
    found["next"] = jax.block_until_ready(step(first.reset(), batch)).results()
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What is read without a guard; the programs are compiled then."""
    return {x: life(tmp_path_factory.mktemp("life"), x) for x in (False, True)}


@pytest.mark.parametrize("per_device", [False, True])
@pytest.mark.parametrize("name", FLAGS)
def test_the_life_of_a_metric_under_each_flag(name, per_device, expected, tmp_path, caplog):
    without_jit = name == "without jit"
    if without_jit and per_device:
        return  # JAX runs each operation of `shard_map` by itself: that takes minutes
    caplog.set_level(logging.ERROR)  # some flags log all that is compiled
    flags = {flag: x for flag, x in FLAGS[name].items() if flag in jax.config.values}
    before = {flag: jax.config.values[flag] for flag in flags}
    try:
        for flag, x in flags.items():
            jax.config.update(flag, x)
        with warnings.catch_warnings():
            if "jax_log_compiles" in flags:
                warnings.simplefilter("ignore")
            # Each operation is a program then, and simulated devices may wait for each other.
            got = life(tmp_path, per_device, alone=without_jit)
    finally:
        for flag, x in before.items():
            jax.config.update(flag, x)
    want = expected[per_device]
    assert got.keys() == want.keys()
    for when, values in want.items():
        assert got[when].keys() == ({"mean"} if without_jit else values.keys())
        for member, x in got[when].items():
            np.testing.assert_allclose(x, values[member], 1e-6, err_msg=f"{when} {member}")
