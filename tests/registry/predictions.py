"""Predictions and targets: what classification takes."""

from functools import partial
from typing import Any

import numpy as np

from tests.registry.case import Arrays, Inputs


def binary(
    rng: np.random.Generator, size: int, *, prevalence: float = 0.4, scores: Any = None
) -> Arrays:
    target = (rng.random(size) < prevalence).astype(np.int32)
    if scores is None:
        preds = np.clip(rng.normal(0.4 + 0.2 * target, 0.25), 0, 1)
    else:
        preds = rng.choice(scores, size)
    return {"preds": preds.astype(np.float32), "target": target}


BINARY = Inputs(
    "binary",
    draw=binary,
    valid=lambda preds, target: np.isfinite(preds) & np.isin(target, (0, 1)),
    spoil={"preds": (np.nan, np.inf), "target": (-1, 2, -100, 2**31 - 1)},
    hard={
        "no positives": partial(binary, prevalence=0.0),
        "no negatives": partial(binary, prevalence=1.0),
        "ties, at thresholds": partial(binary, scores=np.float32([0.3, 0.5, np.nextafter(0.5, 1)])),
        "saturated": partial(binary, scores=(0.0, 1.0)),
        "logits": partial(binary, scores=(-40.0, -1.0, 0.7, 1e30)),
        "subnormal": partial(binary, scores=(1e-40, 0.0, -1e-40)),
    },
)

CLASSES = 5


def target_labels(rng: np.random.Generator, size: int, labels: Any) -> np.ndarray:
    return rng.choice(np.asarray(labels, np.int32), size)


def multiclass(
    rng: np.random.Generator, size: int, *, labels: Any = range(CLASSES), scores: Any = None
) -> Arrays:
    target = target_labels(rng, size, labels)
    if scores is None:
        preds = rng.normal(size=(size, CLASSES))
        preds[np.arange(size), target] += 1
    else:
        preds = rng.choice(scores, (size, CLASSES))
    return {"preds": preds.astype(np.float32), "target": target}


def are_logits(preds: np.ndarray) -> np.ndarray:
    """Which rows have no NaN, no +inf, and not only -inf."""
    return np.all(preds < np.inf, -1) & np.any(preds > -np.inf, -1)


def some_ruled_out(rng: np.random.Generator, size: int) -> Arrays:
    """Classes with a score of -inf, also targets; never all of a row."""
    drawn = multiclass(rng, size)
    out = rng.random((size, CLASSES)) < 0.5
    out[np.arange(size), rng.integers(0, CLASSES, size)] = False
    return drawn | {"preds": np.where(out, np.float32(-np.inf), drawn["preds"])}


MULTICLASS = Inputs(
    "multiclass",
    draw=multiclass,
    valid=lambda preds, target: are_logits(preds) & (target >= 0) & (target < CLASSES),
    spoil={"preds": (np.nan, np.inf), "target": (-1, CLASSES, -100, 2**31 - 1)},
    hard={
        "one class": partial(multiclass, labels=(2,)),
        "absent classes": partial(multiclass, labels=(0, 3)),
        "ties": partial(multiclass, scores=(0.0, 0.5, 1.0)),
        "all tied": partial(multiclass, scores=(0.25,)),
        "subnormal": partial(multiclass, scores=(0.0, 1e-30, -1e-30)),
        "ruled out": some_ruled_out,
    },
)


def labels(
    rng: np.random.Generator, size: int, *, labels: Any = range(CLASSES), right: float = 0.6
) -> Arrays:
    target = target_labels(rng, size, labels)
    other = target_labels(rng, size, range(CLASSES))
    return {"preds": np.where(rng.random(size) < right, target, other), "target": target}


LABELS = Inputs(
    "labels",
    draw=labels,
    valid=lambda preds, target: (
        (preds >= 0) & (preds < CLASSES) & (target >= 0) & (target < CLASSES)
    ),
    spoil={"preds": (-1, CLASSES, 2**30), "target": (-1, CLASSES, -100, 2**31 - 1)},
    hard={
        "one class": partial(labels, labels=(CLASSES - 1,)),
        "all right": partial(labels, right=1.0),
        "none right": lambda rng, size: {
            "preds": np.zeros(size, np.int32),
            "target": np.ones(size, np.int32),
        },
    },
)


def multilabel(
    rng: np.random.Generator, size: int, *, prevalence: Any = (0.1, 0.5, 0.8), scores: Any = None
) -> Arrays:
    target = (rng.random((size, 3)) < prevalence).astype(np.int32)
    if scores is None:
        preds = np.clip(rng.normal(0.4 + 0.2 * target, 0.25), 0, 1)
    else:
        preds = rng.choice(scores, (size, 3))
    return {"preds": preds.astype(np.float32), "target": target}


MULTILABEL = Inputs(
    "multilabel",
    draw=multilabel,
    valid=BINARY.valid,
    spoil=BINARY.spoil,
    hard={
        "a label never": partial(multilabel, prevalence=(0.0, 0.5, 1.0)),
        "ties, at the threshold": partial(multilabel, scores=(0.5, 0.25, 0.75)),
    },
)
