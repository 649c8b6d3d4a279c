"""Updates outside `jit`, against a step that is compiled by hand: time per update, and first call.

A batch has 256 examples of 10 classes. Each time is the minimum over rounds, in which the variants
take turns. The last lines are 500 updates of which every tenth batch is shorter, by a random number
of rows.
"""

import os
import time
from collections.abc import Callable
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

from datarax import Collection, Metric
from datarax.metrics import AUROC, F1, Accuracy, ConfusionMatrix, Mean, MeanSquaredError

ROUNDS, CALLS, ROWS, CLASSES = 7, 100, 256, 10

Batch = dict[str, jax.Array]


def batch_of(rng: np.random.Generator, rows: int) -> Batch:
    return {
        "values": jax.numpy.asarray(rng.random(rows, np.float32)),
        "preds": jax.numpy.asarray(rng.random((rows, CLASSES), np.float32)),
        "target": jax.numpy.asarray(rng.integers(0, CLASSES, rows, np.int32)),
    }


def metrics() -> dict[str, tuple[Metric, Callable[[Batch], dict[str, Any]]]]:
    """Each metric, and what of a batch it takes."""

    def scores(b: Batch) -> dict[str, Any]:
        return {"preds": b["preds"], "target": b["target"]}

    def values(b: Batch) -> dict[str, Any]:
        return {"values": b["values"]}

    six = Collection(
        {
            "loss": Mean().from_outputs(values="values"),
            "accuracy": Accuracy(num_classes=CLASSES),
            "top 5": Accuracy(num_classes=CLASSES, top_k=5),
            "f1": F1(num_classes=CLASSES),
            "cells": ConfusionMatrix(num_classes=CLASSES),
            "auroc": AUROC(num_classes=CLASSES, from_logits=True),
        }
    )
    return {
        "Mean": (Mean(), values),
        "Accuracy": (Accuracy(num_classes=CLASSES), scores),
        "ConfusionMatrix": (ConfusionMatrix(num_classes=CLASSES), scores),
        "MeanSquaredError": (
            MeanSquaredError(),
            lambda b: {"preds": b["values"], "target": b["values"]},
        ),
        "six with AUROC": (six, dict),
    }


def run(update: Callable[..., Metric], metric: Metric, batches: list[dict[str, Any]]) -> float:
    """The seconds for one update."""
    start = time.perf_counter()
    for batch in batches:
        metric = update(metric, **batch)
    jax.block_until_ready(metric)
    return (time.perf_counter() - start) / len(batches)


def eager(metric: Metric, **batch: Any) -> Metric:
    return metric.update(**batch)


def main() -> None:
    rng = np.random.default_rng(0)
    print(f"{'ms an update':20}{'first, s':>10}{'eager':>10}{'jit':>10}")
    for name, (metric, takes) in metrics().items():
        jitted = jax.jit(eager)
        batches = [takes(batch_of(rng, ROWS))] * CALLS
        first = run(eager, metric, batches[:1])
        used = eager(metric, **batches[0])
        run(eager, used, batches[:2])
        run(jitted, used, batches[:2])
        times = [(run(eager, used, batches), run(jitted, used, batches)) for _ in range(ROUNDS)]
        ours, by_hand = (1e3 * min(column) for column in zip(*times, strict=True))
        print(f"{name:20}{first:10.2f}{ours:10.3f}{by_hand:10.3f}")
    # The step that is compiled by hand pads its batches by hand: to one size, before the loop.
    metric, sizes = Accuracy(num_classes=CLASSES), np.full(500, ROWS)
    sizes[9::10] = rng.integers(1, ROWS, 50)
    ragged = [batch_of(rng, int(size)) for size in sizes]
    given = [{"preds": b["preds"], "target": b["target"]} for b in ragged]
    padded = [
        {
            "preds": np.pad(b["preds"], ((0, ROWS - n), (0, 0))),
            "target": np.pad(b["target"], (0, ROWS - n)),
            "weights": np.arange(ROWS) < n,
        }
        for b, n in zip(given, sizes, strict=True)
    ]
    jitted = jax.jit(eager)
    for label, update, batches in (("eager", eager, given), ("jit", jitted, padded)):
        first = run(update, metric, batches)
        again = min(run(update, metric, batches) for _ in range(ROUNDS))
        print(f"500 ragged, {label}: {500 * first:.2f} s with compilation, {500 * again:.3f} s")


if __name__ == "__main__":
    main()
