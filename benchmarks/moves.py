"""The time to move a collection of ten metrics from 8 simulated devices to 4, and back.

The metrics have statistics of their own: means, extremes, moments, counts of classes. Printed are
the medians of the time and of the processor time of the calling thread, which other programs on the
machine lengthen less, and the longest time; a first move is not counted.
"""

import os
import statistics
import time
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

import datarax
from datarax.metrics import F1, Accuracy, ConfusionMatrix, LogLoss, Max, Mean, Min, Std, Sum

CLASSES, ROWS, MOVES = 10, 64, 20


def ten() -> datarax.Collection:
    of_loss = {"mean": Mean(), "max": Max(), "min": Min(), "std": Std(), "sum": Sum()}
    of_scores = {
        "accuracy": Accuracy(num_classes=CLASSES),
        "top 3": Accuracy(num_classes=CLASSES, top_k=3),
        "f1": F1(num_classes=CLASSES),
        "confusion": ConfusionMatrix(num_classes=CLASSES),
        "log loss": LogLoss(num_classes=CLASSES, from_logits=True),
    }
    return datarax.Collection(
        {name: metric.from_outputs(values="loss") for name, metric in of_loss.items()} | of_scores
    )


def main() -> None:
    rng = np.random.default_rng(0)
    batch: dict[str, Any] = {
        "loss": rng.random(ROWS, np.float32),
        "preds": rng.normal(size=(ROWS, CLASSES)).astype(np.float32),
        "target": rng.integers(0, CLASSES, ROWS).astype(np.int32),
    }
    meshes = {n: jax.make_mesh((n,), ("data",), devices=jax.devices()[:n]) for n in (8, 4)}
    start = datarax.per_device(ten(), meshes[8], "data").update(**batch)
    results = start.results()
    times: dict[int, list[tuple[float, float]]] = {4: [], 8: []}
    metric = start
    for _ in range(MOVES + 1):
        for devices, seconds in times.items():
            before, thread = time.perf_counter(), time.thread_time()
            metric = datarax.per_device(metric, meshes[devices], "data")
            jax.block_until_ready(metric)
            seconds.append((time.perf_counter() - before, time.thread_time() - thread))
    assert str(metric.results()) == str(results), "nothing is lost, nothing counts twice"
    size = sum(x.nbytes for x in jax.tree.leaves(metric)) // 8
    print(f"{len(list(metric))} metrics, {size:,} bytes on each device")
    for devices, seconds in times.items():
        wall, thread = (
            [1000 * each for each in column] for column in zip(*seconds[1:], strict=True)
        )
        print(
            f"to {devices} devices: {statistics.median(wall):.1f} ms, at most {max(wall):.1f} ms; "
            f"{statistics.median(thread):.1f} ms of the processor"
        )


if __name__ == "__main__":
    main()
