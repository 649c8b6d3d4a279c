"""The error and the cost of AUROC and average precision from a histogram, by kind of scores.

There are 20,000 scores, and 30% of the examples are positive. The error is the difference from
scikit-learn. The width is that of the interval `bounds()`, which always contains the exact value.
"""

import os
import time
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
import sklearn.metrics

from datarax.metrics import AUROC, AveragePrecision

SIZE, ROUNDS = 20_000, 20


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


KINDS = {
    "logits, sigma 3": lambda z: z,
    "probabilities": sigmoid,
    "saturated, sigmoid(z + 8)": lambda z: sigmoid(z + 8),
    "below 1e-3": lambda z: 1e-3 * sigmoid(z),
    "times 1e20": lambda z: z * 1e20,
    "two values only": lambda z: (z > 0).astype(float),
    "offset by -10": lambda z: z - 10,
    "offset by -100": lambda z: z - 100,
}


@jax.jit
def update(metric: Any, preds: Any, target: Any) -> Any:
    return metric.update(preds, target)


def milliseconds(function: Any) -> float:
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        jax.block_until_ready(function())
        seconds.append(time.perf_counter() - start)
    return 1e3 * float(np.median(seconds[1:]))


def main() -> None:
    rng = np.random.default_rng(0)
    target = (rng.random(SIZE) < 0.3).astype(np.int32)
    z = rng.normal(size=SIZE) * 3 + 2 * target
    print(f"{'scores':28}{'AUROC: error, width':>24}{'average precision':>24}")
    for name, kind in KINDS.items():
        preds, row = kind(z).astype(np.float32), f"{name:28}"
        for metric, score in (
            (AUROC(), sklearn.metrics.roc_auc_score),
            (AveragePrecision(), sklearn.metrics.average_precision_score),
        ):
            filled, truth = update(metric, preds, target), score(target, preds)
            lower, upper = map(float, filled.bounds())
            inside = lower * (1 - 1e-6) <= truth <= upper * (1 + 1e-6)
            warning = "" if inside else " OUTSIDE"
            row += f"{float(filled.compute()) - truth:14.0e}{upper - lower:10.0e}{warning}"
        print(row)
    preds = jax.numpy.asarray(z, np.float32)
    labels = jax.numpy.asarray(target)
    filled = update(AUROC(), preds, labels)
    updating = milliseconds(lambda: update(filled, preds, labels))
    print(f"\nan update with {SIZE} scores: {updating:.2f} ms")
    print(f"computing the AUROC: {milliseconds(filled.compute):.2f} ms")
    exact = milliseconds(lambda: sklearn.metrics.roc_auc_score(target, z))
    print(f"scikit-learn, from the stored scores: {exact:.2f} ms")


if __name__ == "__main__":
    main()
