"""What it saves to donate the state of an AUROC: an update of a state that is kept copies it first.

The update is one compiled program with a batch of 1,024 rows; its time is the least of many, the
two ways in turns.

`python benchmarks/donation.py` prints the table of docs/maintainers/operations.md.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")
sys.path.append(str(Path(__file__).parent.parent))

import jax
import numpy as np

from datarax.metrics import AUROC

ROWS = 1024
CALLS = 300
CLASSES = (None, 10, 100, 1000)


def batch(classes: int | None) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    scores = rng.random((ROWS, classes) if classes else ROWS)
    if classes:
        scores /= scores.sum(-1, keepdims=True)
    target = rng.integers(0, classes or 2, ROWS)
    return jax.device_put({"preds": scores.astype(np.float32), "target": target.astype(np.int32)})


def update(metric: AUROC, given: dict[str, jax.Array]) -> AUROC:
    return metric.update(**given)


def least_times(steps: list[Any], states: list[Any], given: dict[str, jax.Array]) -> list[float]:
    """Milliseconds of each way, the least of many."""
    least = [float("inf")] * len(steps)
    for _ in range(CALLS):
        for i, step in enumerate(steps):
            start = time.perf_counter()
            states[i] = jax.block_until_ready(step(states[i], given))
            least[i] = min(least[i], time.perf_counter() - start)
    return [1000 * each for each in least]


def main() -> None:
    print("| classes | MB of the state | ms, donated | ms, kept |")
    print("| --- | ---: | ---: | ---: |")
    for classes in CLASSES:
        metric, given = AUROC(num_classes=classes), batch(classes)
        size = sum(x.nbytes for x in jax.tree.leaves(metric)) / 1e6
        steps = [jax.jit(update, donate_argnums=0), jax.jit(update)]
        states = [jax.device_put(jax.tree.map(np.array, metric)) for _ in steps]
        donated, kept = least_times(steps, states, given)
        print(f"| {classes or 'binary'} | {size:.1f} | {donated:.2f} | {kept:.2f} |")


if __name__ == "__main__":
    main()
