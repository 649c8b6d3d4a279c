"""The collectives of an update and of a sync over 8 devices, and the bytes that a device sends.

For JAX they are counted in the compiled programs. For torchmetrics, the profiler of two processes
counts the calls of a sync, and the bytes are those of the states, sent to seven others.
"""
# pyright: reportMissingImports=false

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import datarax
from benchmarks.peers import by_hand
from benchmarks.peers import contestants as of
from benchmarks.peers.compiled import TASKS
from benchmarks.peers.tables import runs, table
from benchmarks.peers.task import SMALL, Batch, Task

DEVICES = 8
MESH = jax.make_mesh((DEVICES,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
KINDS = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "s32": 4, "u32": 4, "f32": 4}


def main() -> None:
    runs()  # the counts do not vary
    for number, task in enumerate(TASKS):
        found = {"datarax, `per_device`": of_datarax(task), "by hand, a `psum` each": of_hand(task)}
        found["torchmetrics"] = (0, 0), of_torchmetrics(number)
        if task.metrics == SMALL:
            found |= of_jax_peers(task)
        print(f"\n**{task.title}**")
        table(
            ["", "collectives per update", "bytes", "collectives per sync", "bytes"],
            [[name, *(f"{x:,}" for part in parts for x in part)] for name, parts in found.items()],
        )


Sent = tuple[int, int]
"""Collectives, and the bytes that a device sends in them."""


def sent(step: Callable[..., Any], *args: Any) -> Sent:
    """What a compiled program sends, on a ring of devices."""
    text = jax.jit(step).lower(*args).compile().as_text() or ""
    count, size = 0, 0
    for kinds, name in re.findall(rf"= (.*?) ({KINDS})(?:-start)?\(", text):
        count += 1
        result = sum(
            WIDTHS[dtype] * int(np.prod([int(n) for n in shape.split(",") if n]))
            for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", kinds)
        )
        # An all-reduce is a reduce-scatter and an all-gather, each of which sends all but a share.
        size += result * (DEVICES - 1) // DEVICES * (2 if name == "all-reduce" else 1)
    return count, size


def sharded(task: Task) -> Batch:
    return jax.device_put(task.batches[0], NamedSharding(MESH, P("data")))


def of_datarax(task: Task) -> tuple[Sent, Sent]:
    each = datarax.per_device(of.datarax_collection(task), MESH, "data")
    update = sent(lambda metric, batch: metric.update(**batch), each, sharded(task))
    return update, sent(lambda metric: metric.sync(), each)


def of_hand(task: Task) -> tuple[Sent, Sent]:
    copies = jax.tree.map(lambda x: jnp.stack([x] * DEVICES), by_hand.empty(task))
    copies = jax.device_put(copies, NamedSharding(MESH, P("data")))

    def update(copies: Any, batch: Batch) -> Any:
        state = by_hand.update(jax.tree.map(lambda x: x[0], copies), batch)
        return jax.tree.map(lambda x: x[None], state)

    def sync(copies: Any) -> Any:
        return jax.tree.map(lambda x: lax.psum(x[0], "data"), copies)

    by_device = jax.shard_map(update, mesh=MESH, in_specs=P("data"), out_specs=P("data"))
    synced = jax.shard_map(sync, mesh=MESH, in_specs=P("data"), out_specs=P())
    return sent(by_device, copies, sharded(task)), sent(synced, copies)


def of_jax_peers(task: Task) -> dict[str, tuple[Sent, Sent]]:
    """Peers whose documentation merges over the devices in each update, so that no sync is left."""
    collection = of.clu_collection(task)

    def clu(batch: Batch) -> Any:
        return collection.gather_from_model_output("data", **of.with_peers_names(batch))

    def metrax(batch: Batch) -> Any:
        gathered = lax.all_gather(of.metrax_of(task, batch), "data")
        return {name: each.reduce() for name, each in gathered.items()}

    # What they gather is equal on all devices, which `shard_map` cannot check.
    steps = {
        name: jax.shard_map(step, mesh=MESH, in_specs=P("data"), out_specs=P(), check_vma=False)
        for name, step in {"metrax": metrax, "clu": clu}.items()
    }
    structure, state = nnx.split(of.nnx_metrics(task))

    def flax(state: Any, batch: Batch) -> Any:
        metrics = nnx.merge(structure, state)
        metrics.update(**of.with_peers_names(batch))
        return nnx.state(metrics)

    batch = sharded(task)
    state = jax.device_put(state, NamedSharding(MESH, P()))
    found = {name: (sent(step, batch), (0, 0)) for name, step in steps.items()}
    return found | {"flax nnx.metrics, global arrays": (sent(flax, state, batch), (0, 0))}


def of_torchmetrics(number: int) -> Sent:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(torch_process, (number, folder), nprocs=2)
        count, size = Path(folder, "sent").read_text().split()
    return int(count), int(size) * (DEVICES - 1)


def torch_process(rank: int, number: int, folder: str) -> None:
    torch.distributed.init_process_group(
        "gloo", rank=rank, world_size=2, init_method=f"file://{folder}/meeting"
    )
    task = TASKS[number]
    peer = of.torchmetrics(task, of.THRESHOLDS)
    state = peer.update(peer.empty(), peer.convert(task.batches[0]))
    size = sum(
        x.nbytes
        for metric in state.values()
        for part in metric.metric_state.values()
        for x in (part if isinstance(part, list) else [part])
    )
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu]) as profile:
        for metric in state.values():
            metric.sync()
    if rank == 0:
        count = sum(event.name.startswith("c10d::") for event in profile.events())
        Path(folder, "sent").write_text(f"{count} {size}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
