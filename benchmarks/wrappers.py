"""What slices and bootstrap replicas add to an update: `python benchmarks/wrappers.py`.

Each step is compiled and its state donated; the least time of several rounds is printed.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import datarax
from datarax import metrics

ROWS, CLASSES = 1024, 10
ROUNDS, STEPS = 9, 20


def microseconds(metric: datarax.Metric, batch: dict[str, Any]) -> float:
    """The time of an update, compiled and with its state donated."""
    step: Callable[..., Any] = jax.jit(lambda m, b: m.update(**b), donate_argnums=0)
    state = jax.block_until_ready(step(jax.tree.map(jnp.array, metric), batch))
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(STEPS):
            state = step(state, batch)
        jax.block_until_ready(state)
        best = min(best, (time.perf_counter() - start) / STEPS)
    return best * 1e6


def ten_metrics() -> datarax.Collection:
    """Ten metrics whose statistics are sums."""
    return datarax.Collection(
        {
            "accuracy": metrics.Accuracy(num_classes=CLASSES),
            "top 5": metrics.Accuracy(num_classes=CLASSES, top_k=5),
            "f1": metrics.F1(num_classes=CLASSES),
            "precision": metrics.Precision(num_classes=CLASSES),
            "recall": metrics.Recall(num_classes=CLASSES, average=None),
            "log loss": metrics.LogLoss(num_classes=CLASSES, from_logits=True),
            "brier": metrics.BrierScore(num_classes=CLASSES, from_logits=True),
            "calibration": metrics.CalibrationError(num_classes=CLASSES, from_logits=True),
            "confusion": metrics.ConfusionMatrix(num_classes=CLASSES),
            "loss": metrics.Mean().from_outputs(values="loss"),
        }
    )


def main() -> None:
    rng = np.random.default_rng(0)
    batch: dict[str, Any] = {
        "preds": jnp.asarray(rng.normal(size=(ROWS, CLASSES)), jnp.float32),
        "target": jnp.asarray(rng.integers(0, CLASSES, ROWS), jnp.int32),
        "loss": jnp.asarray(rng.normal(size=ROWS), jnp.float32),
    }
    print(f"ten metrics of {ROWS} rows and {CLASSES} classes, microseconds an update")
    plain = microseconds(ten_metrics(), batch)
    print(f"{'not sliced':>16} {plain:8.0f}")
    for slices in (1, 10, 100, 1000):
        ids = jnp.asarray(rng.integers(0, slices, ROWS), jnp.int32)
        sliced = microseconds(datarax.Sliced(ten_metrics(), slices), batch | {"slices": ids})
        print(f"{slices:>9} slices {sliced:8.0f}   {sliced / plain:.1f} times")

    print("one metric: alone, with an interval by formula, and with 200 replicas")
    one = {
        "accuracy": metrics.Accuracy(num_classes=CLASSES),
        "f1, micro": metrics.F1(num_classes=CLASSES, average="micro"),
        "confusion matrix": metrics.ConfusionMatrix(num_classes=CLASSES),
        "log loss": metrics.LogLoss(num_classes=CLASSES, from_logits=True),
    }
    given = {name: batch[name] for name in ("preds", "target")}
    index = jnp.arange(ROWS, dtype=jnp.int32)
    for name, metric in one.items():
        alone = microseconds(metric, given)
        drawn = microseconds(datarax.Bootstrap(metric), given | {"index": index})
        line = f"{name:>16} {alone:8.0f} {drawn:8.0f}   {drawn / alone:.1f} times"
        if metric.as_ratio() is not None:
            formula = microseconds(datarax.Interval(metric), given)
            line += f"; interval {formula:.0f}, {formula / alone:.1f} times"
        print(line)


if __name__ == "__main__":
    main()
