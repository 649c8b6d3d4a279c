"""One example of each wrapper: a metric that it makes, and what the `update` of that takes.

Each is named after the public name in `datarax.wrappers`, so that a test finds a wrapper that has
no example. The metrics inside are small: a program of a wrapper takes long to compile.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

import datarax
from datarax import metrics
from tests.helpers import make_mesh
from tests.registry.entry import Array, Batch, Entry
from tests.registry.steps import tree, trees

CLASSES, OUTPUTS, SLICES, REPLICAS = 3, 2, 3, 4
NAMES = ("cat", "dog", "bird")


def accuracy() -> datarax.Metric:
    return metrics.Accuracy(num_classes=CLASSES)


def values(rng: np.random.Generator, size: int) -> Batch:
    return {"values": rng.normal(3, 1, size).astype(np.float32)}


def labels(rng: np.random.Generator, size: int) -> Batch:
    preds, target = rng.integers(0, CLASSES, (2, size)).astype(np.int32)
    return {"preds": preds, "target": target}


def indexed(rng: np.random.Generator, size: int) -> Batch:
    """Values, with the global id of each row."""
    return {**values(rng, size), "index": rng.integers(0, 2**31 - 1, size).astype(np.int32)}


def two_models(rng: np.random.Generator, size: int) -> Batch:
    a, b = labels(rng, size), indexed(rng, size)
    other = rng.integers(0, CLASSES, size).astype(np.int32)
    return {"preds_a": a["preds"], "preds_b": other, "target": a["target"], "index": b["index"]}


def columns(rng: np.random.Generator, size: int) -> Batch:
    preds, target = rng.normal(size=(2, size, OUTPUTS)).astype(np.float32)
    return {"preds": preds, "target": target}


def with_slices(rng: np.random.Generator, size: int) -> Batch:
    return {**values(rng, size), "slices": rng.integers(0, SLICES, size).astype(np.int32)}


def with_clusters(rng: np.random.Generator, size: int) -> Batch:
    """Values of clusters, some of which have an id that is hashed."""
    return {**values(rng, size), "cluster": rng.integers(0, 12, size).astype(np.int32)}


def two_values(rng: np.random.Generator, size: int) -> Batch:
    """The values of two models."""
    return {f"values_{model}": values(rng, size)["values"] for model in "ab"}


def two_values_with_clusters(rng: np.random.Generator, size: int) -> Batch:
    return {**two_values(rng, size), "cluster": rng.integers(0, 12, size).astype(np.int32)}


def two_scores(rng: np.random.Generator, size: int) -> Batch:
    """The scores of two models, with the global id of each row."""
    a, b = (rng.dirichlet(np.ones(CLASSES), size).astype(np.float32) for _ in range(2))
    return {"preds_a": a, "preds_b": b, "target": labels(rng, size)["target"]} | {
        "index": indexed(rng, size)["index"]
    }


def outputs(rng: np.random.Generator, size: int) -> Batch:
    """What a step gives a collection."""
    return {**labels(rng, size), "loss": rng.normal(3, 1, size).astype(np.float32)}


def of_one_kind(rng: np.random.Generator, size: int) -> Batch:
    """Outputs of two shapes, for members whose states are stacked."""
    flat, wide = (rng.normal(3, 1, shape).astype(np.float32) for shape in ((2, size), (size, 2)))
    return {"a": flat[0], "b": wide, "loss": flat[1]}


def of_model(rng: np.random.Generator, size: int) -> Batch:
    scores = rng.normal(size=(size, CLASSES)).astype(np.float32)
    return {"scores": scores, "label": rng.integers(0, CLASSES, size).astype(np.int32)}


def predicted(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Accuracy`, of the outputs of `of_model`."""
    weights = {"weights": given["weights"]} if "weights" in given else {}
    return {"preds": given["scores"].argmax(-1), "target": given["label"], **weights}


def complement(value: Any) -> Any:
    return 1 - value


def tasks(rng: np.random.Generator, size: int) -> Batch:
    return {"animal": labels(rng, size), "age": values(rng, size)}


def weighted_tasks(batch: Batch, weights: Array) -> Batch:
    return {task: {**given, "weights": weights} for task, given in batch.items()}


def step_of_a_run(rng: np.random.Generator, size: int) -> Batch:
    elapsed = np.float32(rng.uniform(1, 100))
    return {**trees(rng, size), "loss": np.float32(rng.normal(3, 1)), "elapsed": elapsed}


WRAPPED = [
    Entry("Best", lambda: datarax.Best(accuracy()), labels),
    Entry("Bootstrap", lambda: datarax.Bootstrap(metrics.Mean(), REPLICAS), indexed),
    Entry(
        "Classwise",
        lambda: datarax.Classwise(metrics.Recall(num_classes=CLASSES, average=None), NAMES),
        labels,
    ),
    Entry(
        "Collection",
        lambda: datarax.Collection(
            {
                "accuracy": accuracy(),
                "f1": metrics.F1(num_classes=CLASSES),
                "loss": metrics.Mean().from_outputs(values="loss"),
            }
        ),
        outputs,
    ),
    Entry(
        "Collection of one kind",
        lambda: datarax.Collection(
            {name: metrics.Mean().from_outputs(values=name) for name in ("a", "b", "loss")}
        ),
        of_one_kind,
    ),
    Entry("Compare", lambda: datarax.Compare(accuracy(), replicas=REPLICAS), two_models),
    Entry(
        "Compare by formula",
        lambda: datarax.Compare(metrics.Mean(), method="formula"),
        two_values,
    ),
    Entry(
        "Compare of clusters",
        lambda: datarax.Compare(metrics.Mean(), method="formula", clusters=8),
        two_values_with_clusters,
    ),
    Entry(
        "Compare of areas",
        lambda: datarax.Compare(metrics.AUROC(num_classes=CLASSES, bits=10), method="formula"),
        two_scores,
    ),
    Entry("Decayed", lambda: datarax.Decayed(metrics.Mean(), half_life=2), values),
    Entry("Interval", lambda: datarax.Interval(metrics.Mean()), values),
    Entry(
        "Interval of clusters", lambda: datarax.Interval(metrics.Mean(), clusters=8), with_clusters
    ),
    Entry(
        "MultiOutput", lambda: datarax.MultiOutput(metrics.MeanAbsoluteError(), OUTPUTS), columns
    ),
    Entry(
        "MultiTask",
        lambda: datarax.MultiTask({"animal": accuracy(), "age": metrics.Mean()}),
        tasks,
        weigh=weighted_tasks,
    ),
    Entry("Sliced", lambda: datarax.Sliced(metrics.Mean(), SLICES), with_slices),
    Entry("Transformed", lambda: datarax.Transformed(accuracy(), predicted, complement), of_model),
    Entry("Window", lambda: datarax.Window(metrics.Mean(), 2), values),
    Entry(
        "health",
        lambda: datarax.health(tree(np.random.default_rng(0)), tokens=64),
        step_of_a_run,
        weigh=None,
        rows=False,
    ),
    Entry(
        "per_device",
        lambda: datarax.per_device(accuracy(), make_mesh("auto", {"data": 8}), "data"),
        labels,
    ),
]
