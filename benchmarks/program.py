"""What one compiled update of a collection holds: arrays, operations, and seconds to make it.

Equations are those of the traced program. Operations are those of the program that XLA compiles for
a CPU, without parameters, constants and what only renames values; then comes how many of them are
within loops, which run only when the range of the scores grows. The last lines have each of the
twenty metrics alone, so that a collection's sharing shows.
"""

import os
import sys
import time
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.append(str(Path(__file__).parent.parent))

import jax
import numpy as np

import datarax
from benchmarks.first_call import CLASSES, ROWS, six, twenty
from tests.operations import optimized, traced

OF_LOSS = ("loss", "std", "worst", "least", "median", "total")


def fourteen() -> dict[str, datarax.Metric]:
    """Those of the twenty that take predictions."""
    return {name: metric for name, metric in twenty().items() if name not in OF_LOSS}


def measure(name: str, metrics: dict[str, datarax.Metric]) -> None:
    metric = datarax.Collection(metrics)
    scores = np.ones((ROWS, CLASSES), np.float32) / CLASSES
    batch = {"loss": scores[:, 0], "preds": scores, "target": np.zeros(ROWS, np.int32)}
    update = jax.jit(lambda metric, batch: metric.update(**batch))
    start = time.perf_counter()
    lowered = update.lower(metric, batch)
    middle = time.perf_counter()
    lowered.compile()
    end = time.perf_counter()
    arrays = len(jax.tree.leaves(metric))
    equations, operations = (len(of(update, (metric, batch))) for of in (traced, optimized))
    print(
        f"{name:16}{arrays:8}{equations:12}{operations:12}{middle - start:14.2f}"
        f"{end - middle:14.2f}",
        flush=True,
    )


def main() -> None:
    heads = f"{'arrays':>8}{'equations':>12}{'operations':>12}{'s to trace':>14}"
    print(f"{'metrics':16}{heads}{'s to compile':>14}")
    for make in (six, fourteen, twenty):
        measure(make.__name__, make())
    for name, metric in twenty().items():
        measure(name, {name: metric})


if __name__ == "__main__":
    main()
