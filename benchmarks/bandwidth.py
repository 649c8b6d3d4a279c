"""The share of a GPU's memory bandwidth that updates reach: `make bench-gpu`.

python benchmarks/bandwidth.py [--cpu]

An update has to read its batch once. The time that this takes is that of a copy of the batch, which
reads and writes it, halved. The share is this time divided by that of the update, with donated
states. Without a GPU it says so; `--cpu` measures the CPU instead.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from datarax import Metric
from datarax.metrics import AUROC, Accuracy, CalibrationError, ConfusionMatrix, Perplexity

SHAPES = (4096, 1000), (1024, 128_256)
DTYPES = jnp.float32, jnp.bfloat16
SECONDS = 0.5  # of each measurement
MOST_CLASSES = 10_000  # of a metric that holds a table of classes
GOAL = 0.7


def metrics_of(classes: int) -> dict[str, Metric]:
    """The metrics that are measured; those with a table for few classes only."""
    found: dict[str, Metric] = {
        "accuracy": Accuracy(num_classes=classes),
        "perplexity": Perplexity(),
        "calibration": CalibrationError(num_classes=classes, from_logits=True),
    }
    if classes <= MOST_CLASSES:
        found["confusion matrix"] = ConfusionMatrix(num_classes=classes)
        found["AUROC"] = AUROC(num_classes=classes, bits=10, from_logits=True)
    return found


def seconds_of(call: Callable[[Any], Any], state: Any) -> float:
    """The seconds of one of many calls in a row, each with what the one before returned."""
    state, times = jax.block_until_ready(call(call(state))), 1
    while True:
        start = time.perf_counter()
        for _ in range(times):
            state = call(state)
        jax.block_until_ready(state)
        spent = time.perf_counter() - start
        if spent > SECONDS / 4:
            return spent / times
        times *= 2


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="measure the CPU")
    options = parser.parse_args()
    device = jax.devices()[0]
    if device.platform != "gpu" and not options.cpu:
        print(f"there is no GPU here, only {device.device_kind!r}: nothing was measured")
        return
    print(f"{device.device_kind}; goal: {GOAL:.0%}")
    print(f"{'logits':30}{'metric':20}{'milliseconds':>14}{'GB/s':>10}{'share':>8}")
    rng = np.random.default_rng(0)
    for rows, classes in SHAPES:
        target = jax.device_put(rng.integers(0, classes, rows, np.int32), device)
        for dtype in DTYPES:
            preds = jax.random.normal(jax.random.key(0), (rows, classes), dtype)
            name = f"{rows} x {classes} {preds.dtype.name}"
            copy = jax.jit(lambda x: x + jnp.ones((), x.dtype), donate_argnums=0)
            once = seconds_of(copy, preds + 0) / 2
            speed = preds.nbytes / once / 1e9
            print(f"{name:30}{'reading once':20}{once * 1e3:14.3f}{speed:10.1f}")
            for label, metric in metrics_of(classes).items():
                empty = jax.device_put(jax.tree.map(jnp.array, metric), device)
                update = jax.jit(lambda m, preds, target: m.update(preds, target), donate_argnums=0)
                spent = seconds_of(partial(update, preds=preds, target=target), empty)
                speed, share = preds.nbytes / spent / 1e9, once / spent
                print(f"{'':30}{label:20}{spent * 1e3:14.3f}{speed:10.1f}{share:8.0%}", flush=True)


if __name__ == "__main__":
    main()
