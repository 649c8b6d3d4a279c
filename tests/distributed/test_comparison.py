"""Real processes compare their arrays: what differs is named by its path and the processes."""

from typing import Any

import jax
import numpy as np
import pytest

import datarax
from datarax import metrics
from datarax.distributed import check_same, global_batch
from tests import processes
from tests.helpers import make_mesh

COUNT = 3
TIMEOUT = 30.0


def compare() -> dict[str, Any]:
    rank = jax.process_index()
    mesh = make_mesh("auto", {"data": COUNT})
    rows, _ = global_batch(np.full(1, rank, np.float32), mesh, "data")
    odd = rank == 1
    # On the devices of all processes, and not the same.
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    replicated = jax.make_array_from_callback(
        (2,), whole, lambda index: np.full(2, rank, np.float32)
    )
    same = {
        "NaN": np.array([np.nan, np.inf], np.float32),
        "key": jax.random.key(7),
        "text": "abc",
        "numbers": (1, 2.5, True, None),
        "nothing": np.zeros((0, 3)),
        "half": np.ones(3).astype(jax.numpy.bfloat16),
        "order of memory": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "replicated": jax.device_put(np.arange(3), whole),
        "metric": metrics.Mean().update([1.0, 2.0]),
    }
    check_same(same, timeout=TIMEOUT)
    w = np.arange(4, dtype=np.float32)
    calls = {
        "value": lambda: check_same({"a": 1, "w": [w, w + odd * np.float32(1e-7)]}),
        "NaN": lambda: check_same(np.uint32(0x7FC00000 + odd).view(np.float32)),
        "zero": lambda: check_same(-0.0 if odd else 0.0),
        "dtype": lambda: check_same({"w": w.astype(np.float16) if odd else w}),
        "shape": lambda: check_same({"w": w[None] if odd else w}),
        "structure": lambda: check_same({"a": w} if odd else {"a": w, "b": w, "c": w}),
        "three": lambda: check_same({"w": w + rank}),
        "key": lambda: check_same(jax.random.key(rank // 2)),
        "replicated": lambda: check_same([replicated]),
        "metric": lambda: check_same(metrics.Mean().update(float(rank))),
        "shards": lambda: check_same({"rows": rows}),
        "object": lambda: check_same({"rows": mesh}),
        "of one": lambda: check_same({"rows": mesh if odd else w}),
    }
    # A NumPy array in a jitted step: each process passes its own, and only a part of each counts.
    own = np.full(COUNT, 1 + rank, np.float32)
    apart = datarax.per_device(metrics.Sum(), mesh, "data")
    counted = jax.block_until_ready(
        jax.jit(lambda metric, x: metric.update(x))(apart, own)
    ).results()
    calls["lost"] = lambda: check_same(own)
    said: dict[str, Any] = {"counted": counted}
    for name, call in calls.items():
        with pytest.raises(datarax.DataraxError) as error:
            call()
        said[name] = str(error.value)
    check_same(same, timeout=TIMEOUT)
    return said


def test_arrays_that_differ_are_named_by_path_and_process():
    for rank, said in enumerate(processes.run(compare, COUNT)):
        assert said["counted"] == 1 + 2 + 3, "one row of three on each process, without a word"
        plain = "the processes hold different arrays"
        assert said["value"].startswith(f"check_same: {plain}: x['w'][1] is float32[4] with the ")
        assert "on processes 0, 2 and float32[4] with the digest " in said["value"]
        assert said["value"].endswith("on process 1")
        for name in ("NaN", "zero", "key", "replicated", "lost"):
            assert plain in said[name]
        assert "float32[4] with" in said["dtype"]
        assert "float16[4] with" in said["dtype"]
        assert "float32[1, 4] with" in said["shape"]
        assert "x['b'] is float32[4] with" in said["structure"]
        assert said["structure"].endswith("and not there on process 1; 1 more differ")
        assert [f"on process {i}" in said["three"] for i in range(COUNT)] == [True] * COUNT
        assert "on process 2" in said["key"]
        assert "x.statistic" in said["metric"]
        assert "x['rows'] is sharded over processes" in said["shards"]
        assert "x['rows'] is Mesh; expected an array, a number or a string" in said["object"]
        if rank != 1:
            assert "process 1 failed: check_same: x['rows'] is Mesh" in said["of one"]


def test_on_a_single_process_there_is_nothing_to_compare():
    check_same({"anything": object()})
    with pytest.raises(datarax.MetricTypeError, match="Call it outside"):
        jax.jit(check_same)(np.ones(2))
    with pytest.raises(datarax.MetricInputError, match="timeout=-1"):
        check_same(1.0, timeout=-1)
