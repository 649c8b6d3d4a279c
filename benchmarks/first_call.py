"""What the first call costs: the compilation of the first update, sync and results.

Each line is a process of its own, because a program that is compiled once stays compiled. The
metrics have one copy for each of 8 simulated devices, or are plain, on one device. The times are
in seconds; `results again` is in milliseconds.
"""

import os
import subprocess
import sys
import time

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

import datarax
from datarax import metrics as m
from datarax.wrappers.per_device import PerDevice

ROWS, CLASSES = 256, 10


def six() -> dict[str, datarax.Metric]:
    """Loss, and what a classifier is usually judged by."""
    return {
        "loss": m.Mean().from_outputs(values="loss"),
        "accuracy": m.Accuracy(num_classes=CLASSES),
        "top 5": m.Accuracy(num_classes=CLASSES, top_k=5),
        "f1": m.F1(num_classes=CLASSES),
        "cells": m.ConfusionMatrix(num_classes=CLASSES),
        "auroc": m.AUROC(num_classes=CLASSES),
    }


def twenty() -> dict[str, datarax.Metric]:
    """The six, more metrics of the same predictions, and metrics of the loss."""
    loss = {
        "std": m.Std(),
        "worst": m.Max(),
        "least": m.Min(),
        "median": m.Median(),
        "total": m.Sum(),
    }
    return (
        six()
        | {name: metric.from_outputs(values="loss") for name, metric in loss.items()}
        | {
            "precision": m.Precision(num_classes=CLASSES),
            "recall": m.Recall(num_classes=CLASSES),
            "specificity": m.Specificity(num_classes=CLASSES),
            "mcc": m.MatthewsCorrCoef(num_classes=CLASSES),
            "kappa": m.CohenKappa(num_classes=CLASSES),
            "jaccard": m.JaccardIndex(num_classes=CLASSES),
            "ece": m.CalibrationError(num_classes=CLASSES),
            "nll": m.LogLoss(num_classes=CLASSES),
            "ap": m.AveragePrecision(num_classes=CLASSES),
        }
    )


COLLECTIONS = {"six": six, "twenty": twenty}


def measure(name: str, devices: int) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(ROWS, CLASSES)).astype(np.float32)
    scores = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    target = rng.integers(0, CLASSES, ROWS).astype(np.int32)
    batch = {"loss": scores[:, 0], "preds": scores, "target": target}
    metric: datarax.Metric = datarax.Collection(COLLECTIONS[name]())
    times = [time.perf_counter()]

    def lap(result: object) -> None:
        jax.block_until_ready(result)
        times.append(time.perf_counter())

    if devices > 1:
        metric = datarax.per_device(metric, jax.make_mesh((devices,), ("data",)), "data")
    lap(metric)
    metric = metric.update(**batch)
    lap(metric)
    # A program; readings merge on the host instead.
    lap(metric.sync() if isinstance(metric, PerDevice) else metric)
    lap(metric.results())
    lap(metric.results())
    make, update, sync, first, again = np.diff(times)
    total = make + update + sync + first
    print(
        f"{name:10}{devices:10}{make:10.2f}{update:10.2f}{sync:10.2f}{first:10.2f}{total:10.2f}"
        f"{1000 * again:16.1f}",
        flush=True,
    )


def main() -> None:
    if len(sys.argv) == 3:
        return measure(sys.argv[1], int(sys.argv[2]))
    heads = ("made", "update", "sync", "results", "sum")
    head = "".join(f"{head:>10}" for head in heads)
    print(f"{'metrics':10}{'devices':>10}{head}{'again, ms':>16}", flush=True)
    for name in COLLECTIONS:
        for devices in (1, 8):
            subprocess.run([sys.executable, __file__, name, str(devices)], check=True)


if __name__ == "__main__":
    main()
