"""The error, the memory and the cost of AUROC and average precision from a histogram.

There are 20,000 scores, and 30% of the examples are positive. The error is the difference from
scikit-learn; of several classes, that of the mean over the classes. The width is that of the
interval `bounds()`, which always contains the exact value; of several classes, the mean width.
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
AREAS = (
    (AUROC, sklearn.metrics.roc_auc_score),
    (AveragePrecision, sklearn.metrics.average_precision_score),
)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


KINDS = {
    "logits, sigma 3": lambda z: z,
    "logits + 100": lambda z: z + 100,
    "1000 + logits": lambda z: 1000 + z,
    "log-probabilities, -50,000": lambda z: -50_000 + 33 * z,
    "probabilities": sigmoid,
    "saturated, sigmoid(z + 8)": lambda z: sigmoid(z + 8),
    "small, sigmoid(z - 10)": lambda z: sigmoid(z - 10),
    "1 + logits / 10,000": lambda z: 1 + 1e-4 * z,
    "times 1e20": lambda z: z * 1e20,
    "two values": lambda z: (z > 0).astype(float),
    "integers": np.round,
}


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# How many classes, the scores, and whether they are logits.
CLASSES = {
    "10 classes, logits": (10, lambda z: z, True),
    "100 classes, logits": (100, lambda z: z, True),
    "1000 classes, logits": (1000, lambda z: z, True),
    "1000 classes, logits + 20": (1000, lambda z: z + 20, True),
    "1000 classes, softmax": (1000, softmax, False),
}


@jax.jit
def update(metric: Any, preds: Any, target: Any) -> Any:
    return metric.update(preds, target)


def report(name: str, config: dict[str, Any], preds: np.ndarray, target: np.ndarray) -> None:
    """Prints the memory, and for each area the error and the width."""
    row = f"{name:28}"
    bytes_used = sum(np.asarray(x).nbytes for x in jax.tree.leaves(AUROC(**config)))
    for area, score in AREAS:
        metric = area(**config)
        for start in range(0, SIZE, 5000):
            part = slice(start, start + 5000)
            metric = update(metric, preds[part], target[part])
        if config:
            scores = softmax(preds.astype(np.float64)) if config["from_logits"] else preds
            truth = np.array([score(target == c, scores[:, c]) for c in range(preds.shape[1])])
        else:
            truth = np.asarray(score(target, preds))
        value, (lower, upper) = np.asarray(metric.compute()), map(np.asarray, metric.bounds())
        inside = np.all((lower <= truth + 1e-6) & (truth - 1e-6 <= upper))
        row += f"{abs(np.mean(value - truth)):12.0e}{np.mean(upper - lower):8.0e}"
        row += "" if inside else " OUTSIDE"
    print(f"{row}{bytes_used / 2**20:9.1f} MiB")


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
    print(f"{'scores':28}{'AUROC: error, width':>20}{'precision: same':>20}{'memory':>13}")
    for name, kind in KINDS.items():
        report(name, {}, kind(z).astype(np.float32), target)
    for name, (classes, kind, from_logits) in CLASSES.items():
        labels = rng.integers(0, classes, SIZE)
        logits = rng.normal(size=(SIZE, classes))
        logits[np.arange(SIZE), labels] += 2
        config = {"num_classes": classes, "average": None, "from_logits": from_logits}
        report(name, config, kind(logits).astype(np.float32), labels.astype(np.int32))
    preds, labels = jax.numpy.asarray(z, np.float32), jax.numpy.asarray(target)
    filled = update(AUROC(), preds, labels)
    updating = milliseconds(lambda: update(filled, preds, labels))
    print(f"\nan update with {SIZE} scores: {updating:.2f} ms")
    print(f"computing the AUROC: {milliseconds(filled.compute):.2f} ms")
    exact = milliseconds(lambda: sklearn.metrics.roc_auc_score(target, z))
    print(f"scikit-learn, from the stored scores: {exact:.2f} ms")


if __name__ == "__main__":
    main()
