"""The bytes that updates read and write on a TPU, by its compiler: no TPU is needed.

It needs libtpu, which `make bench-tpu` installs in a folder of its own: its path is the argument.
The bytes are those of `cost_analysis()`, which counts what is read from and written to memory.
"""

import argparse
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROWS = 1_000_000
CLASSES = 10


def compiled_bytes(function: Callable[..., Any], *shapes: Any, mesh: Any) -> float:
    """What one call accesses, in bytes."""
    import jax

    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    args = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere) for x in shapes]
    with jax.set_mesh(mesh):  # of TPUs: so datarax traces the form of TPUs
        lowered = jax.jit(function).lower(*args)
        assert "f64" not in lowered.as_text()
        cost: Any = lowered.compile().cost_analysis()
        return cost["bytes accessed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("libtpu", type=Path, nargs="?", help="the file libtpu.so")
    library = parser.parse_args().libtpu
    if library is None:
        print("without libtpu nothing can be compiled for a TPU: make bench-tpu installs it")
        return
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_LIBRARY_PATH": str(library),
    }
    import jax
    import numpy as np
    from jax.experimental import topologies

    from datarax import metrics

    warnings.simplefilter("ignore")
    devices = topologies.get_topology_desc("v5e:2x2", platform="tpu").devices
    mesh = jax.sharding.Mesh(np.array(devices[:1]), ("data",))
    x = jax.ShapeDtypeStruct((ROWS,), np.float32)
    labels = jax.ShapeDtypeStruct((ROWS,), np.int32)
    cases = {
        "Mean": (metrics.Mean(), [x]),
        "MeanSquaredError": (metrics.MeanSquaredError(), [x, x]),
        "MeanAbsoluteError": (metrics.MeanAbsoluteError(), [x, x]),
        "Accuracy": (metrics.Accuracy(num_classes=CLASSES, average="micro"), [labels, labels]),
        "Accuracy, macro": (metrics.Accuracy(num_classes=CLASSES, average="macro"), [labels] * 2),
        "CalibrationError": (metrics.CalibrationError(), [x, labels]),
        "Max": (metrics.Max(), [x]),
        "Std": (metrics.Std(), [x]),
        "R2Score": (metrics.R2Score(), [x, x]),
        "PearsonCorrCoef": (metrics.PearsonCorrCoef(), [x, x]),
    }
    print(f"{ROWS:,} values, TPU v5e, as compiled; MB are 10**6 bytes\n")
    print(f"{'':20}{'batch, MB':>10}{'accessed, MB':>14}{'times':>8}")
    for name, (metric, given) in cases.items():
        batch = sum(each.size * each.dtype.itemsize for each in given) / 1e6
        found = compiled_bytes(lambda *args, m=metric: m.update(*args), *given, mesh=mesh) / 1e6
        print(f"{name:20}{batch:10.1f}{found:14.1f}{found / batch:8.2f}", flush=True)


if __name__ == "__main__":
    main()
