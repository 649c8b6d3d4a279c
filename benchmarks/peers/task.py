"""What the contestants compute, on which batches, and the reference in float64."""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import confusion_matrix, roc_auc_score

BINS = 15

Batch = dict[str, Any]


class Task:
    """Metrics by name, over batches of logits (rows, classes), labels, and losses.

    `loss` is the mean of the losses; `accuracy` that of the class with the highest logit;
    `confusion` the matrix of counts; `calibration` the expected calibration error of the softmax in
    15 bins; `auroc` the mean over classes of the one-vs-rest AUROC of the softmax.
    """

    def __init__(self, title: str, *metrics: str, rows: int = 1024, classes: int = 100):
        self.title, self.metrics, self.rows, self.classes = title, metrics, rows, classes

    @cached_property
    def batches(self) -> list[Batch]:
        """Twenty batches, as NumPy arrays."""
        rng = np.random.default_rng(0)
        return [self._batch(rng) for _ in range(20)]

    def _batch(self, rng: np.random.Generator) -> Batch:
        target = rng.integers(0, self.classes, self.rows).astype(np.int32)
        preds = rng.normal(size=(self.rows, self.classes)).astype(np.float32)
        preds[np.arange(self.rows), target] += 2
        loss = -np.log(softmax(preds)[np.arange(self.rows), target])
        return {"preds": preds, "target": target, "loss": loss.astype(np.float32)}

    @cached_property
    def stored(self) -> Batch:
        """All batches as one."""
        return {name: np.concatenate([b[name] for b in self.batches]) for name in self.batches[0]}

    @cached_property
    def reference(self) -> dict[str, Any]:
        """The values over all batches, in float64."""
        preds, target, loss = self.stored["preds"], self.stored["target"], self.stored["loss"]
        p, chosen = softmax(preds), preds.argmax(-1)
        confidence = p.max(-1)
        place = np.ceil(confidence * BINS).astype(int) - 1
        gaps = np.bincount(place, weights=(chosen == target) - confidence, minlength=BINS)
        found = {
            "loss": loss.mean(dtype=np.float64),
            "accuracy": np.mean(chosen == target),
            "confusion": confusion_matrix(target, chosen, labels=np.arange(self.classes)),
            "calibration": np.abs(gaps).sum() / len(target),
        }
        if "auroc" in self.metrics:
            found["auroc"] = one_vs_rest(p, target)
        return found


class Errors(NamedTuple):
    """The differences from the reference by metric, and the name of the greatest."""

    by_metric: dict[str, float]

    def __str__(self) -> str:
        name = max(self.by_metric, key=lambda each: self.by_metric[each])
        error = self.by_metric[name]
        return f"{error:.0e} ({name})" if error else "0"


def errors(task: Task, values: dict[str, Any]) -> Errors:
    """How far values are from the reference; of a matrix, its furthest cell."""
    want = task.reference
    return Errors(
        {
            name: float(np.max(np.abs(np.asarray(values[name], np.float64) - want[name])))
            for name in task.metrics
        }
    )


def one_vs_rest(scores: np.ndarray, target: np.ndarray) -> float:
    columns = range(scores.shape[1])
    return float(np.mean([roc_auc_score(target == c, scores[:, c]) for c in columns]))


def softmax(x: np.ndarray) -> np.ndarray:
    """In float64."""
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


SMALL = ("loss", "accuracy")
TABLES = ("loss", "confusion", "calibration")
