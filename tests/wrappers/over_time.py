"""Metrics with oracles in NumPy, which take a weight for each update: for windows and decay."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import datarax
from datarax import metrics

CLASSES = 3


class Subject(NamedTuple):
    """A metric, how to draw a batch for it, and its value from the definition, in float64."""

    metric: datarax.Metric
    draw: Callable[[np.random.Generator, int], dict[str, np.ndarray]]
    oracle: Callable[..., Any]


def _mean(w, values):
    return (w * values).sum() / w.sum()


def _std(w, values):
    return np.sqrt((w * (values - _mean(w, values)) ** 2).sum() / w.sum())


def _accuracy(w, preds, target):
    return _mean(w, preds == target)


def _f1(w, preds, target):
    scores = []
    for c in range(CLASSES):
        hit = (w * ((preds == c) & (target == c))).sum()
        scores.append(2 * hit / ((w * (preds == c)).sum() + (w * (target == c)).sum()))
    return np.mean(scores)


def _auroc(w, preds, target):
    p, n = target == 1, target == 0
    above = preds[p][:, None] > preds[n][None, :]
    pairs = w[p][:, None] * w[n][None, :]
    return (pairs * (above + 0.5 * (preds[p][:, None] == preds[n][None, :]))).sum() / pairs.sum()


def _values(rng, size):
    return {"values": (100 + rng.normal(size=size)).astype(np.float32)}


def _labels(rng, size):
    preds = rng.integers(0, CLASSES, size)
    target = np.where(rng.random(size) < 0.5, preds, rng.integers(0, CLASSES, size))
    return {"preds": preds.astype(np.int32), "target": target.astype(np.int32)}


def _scores(rng, size):
    target = rng.integers(0, 2, size)
    # Each score has a bin of its own, so that the value has no bounds but itself.
    return {
        "preds": (np.round(16 * (rng.normal(size=size) + target)) / 16).astype(np.float32),
        "target": target.astype(np.int32),
    }


SUBJECTS = {
    "mean": Subject(metrics.Mean(), _values, _mean),
    "std": Subject(metrics.Std(), _values, _std),
    "accuracy": Subject(metrics.Accuracy(num_classes=CLASSES), _labels, _accuracy),
    "f1": Subject(metrics.F1(num_classes=CLASSES, average="macro"), _labels, _f1),
    "auroc": Subject(metrics.AUROC(), _scores, _auroc),
}


def value_of(subject: Subject, batches: list[Any], weights: Any) -> Any:
    """The oracle's value, of batches whose rows have the weight of their batch."""
    sizes = [len(next(iter(batch.values()))) for batch in batches]
    joined = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    return subject.oracle(np.repeat(np.asarray(weights, np.float64), sizes), **joined)
