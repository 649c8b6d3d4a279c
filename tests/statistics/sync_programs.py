"""What a device sends and holds in the program of a sync: `python sync_programs.py DEVICES ...`.

The program is compiled for that many simulated devices, and not run. Prints a JSON object for each
number of devices: for each metric, the bytes of its state, the bytes that a device sends, and the
bytes of temporary memory.
"""

import json
import math
import os
import re
import sys

SIZES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "s32": 4, "u32": 4, "f32": 4}
# What a device sends for each byte of a result: the usual algorithms send an all-reduce twice.
SENT = {"all-reduce": 2, "all-to-all": 1, "all-gather": 1, "collective-permute": 1}


def sent_bytes(text: str) -> int:
    """The bytes that a device sends in a program, from its text."""
    total = 0
    kinds = "|".join([*SENT, "reduce-scatter", "collective-broadcast"])
    for shapes, kind in re.findall(rf" = (\([^()]*\)|\S+) ({kinds})(?:-start)?\(", text):
        for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", shapes):
            elements = math.prod(int(n) for n in dims.split(",") if n)
            total += SENT[kind] * SIZES[dtype] * elements
    return total


def main(meshes: list[int]) -> None:
    # The options say how fast the code is that nobody runs, and not what it sends or holds.
    os.environ["XLA_FLAGS"] = (
        f"--xla_force_host_platform_device_count={max(meshes)}"
        " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    )
    os.environ["JAX_PLATFORMS"] = "cpu"
    for devices in meshes:
        print(json.dumps(measured_on(devices)))


def measured_on(devices: int) -> dict[str, dict[str, int]]:
    """The numbers of a mesh of the first devices."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from datarax import Collection, metrics

    mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
    rows = NamedSharding(mesh, P("data"))
    measured = {}

    def sync(copies):
        return jax.tree.map(lambda x: x[0], copies).sync("data")

    mapped = jax.jit(jax.shard_map(sync, mesh=mesh, in_specs=P("data"), out_specs=P()))
    counts = {"confusion": metrics.ConfusionMatrix(num_classes=100), "std": metrics.Std()}
    rank = metrics.SpearmanCorrCoef(exact=True, capacity=2048)
    scores = {"area": metrics.AUROC(bits=14), "rank": rank}
    for name, members in {"counts and moments": counts, "histogram and buffer": scores}.items():
        metric = Collection(members)
        size = sum(np.asarray(x).nbytes for x in jax.tree.leaves(metric))
        copies = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((devices, *x.shape), x.dtype, sharding=rows),
            jax.tree.map(np.asarray, metric),
        )
        program = mapped.lower(copies).compile()
        measured[name] = {
            "state": size,
            "sent": sent_bytes(program.as_text()),
            "temporary": program.memory_analysis().temp_size_in_bytes,
        }
    return measured


if __name__ == "__main__":
    main([int(devices) for devices in sys.argv[1:]])
