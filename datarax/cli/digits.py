"""The demo's task: the digits, a small classifier, and its three data-parallel steps.

What a step puts out is measured in three ways: by metrics that each device keeps for itself, in a
jitted train step on global arrays; by the reducers inside a `shard_map` evaluation; and by the
reducers inside a `pmap`ed one.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from datarax import Collection, Metric, MetricAccumulator, per_device
from datarax.cli.verification import Predictions
from datarax.distributed import (
    all_gather,
    global_batch,
    reduce_custom,
    reduce_custom_collective,
    reduce_mean,
)
from datarax.metrics import AUROC, F1, Accuracy, CalibrationError, Max, Mean, Min, Recall
from datarax.training import StatefulMetric

SEED = 0
AXIS = "data"
BATCH_SIZE = 128
NUM_CLASSES = 10

# How each metric of a summary is reduced; the mean where nothing is said.
REDUCTIONS = {"examples": "sum", "worst_loss": "max", "least_confidence": "min"}


class Examples(NamedTuple):
    """On the host, along the leading axis."""

    images: Any
    labels: Any


class Batch(NamedTuple):
    """On the devices, along the leading axis; `mask` is false for the rows that only pad it."""

    images: Any
    labels: Any
    mask: Any


# Data.


def load() -> tuple[Examples, Examples]:
    """The 1,437 training and 360 test digits: float32 images in [0, 1] of shape (N, 64)."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(
        (images / 16).astype(np.float32),
        labels.astype(np.int32),
        test_size=0.2,
        stratify=labels,
        random_state=SEED,
    )
    train_images, test_images, train_labels, test_labels = parts
    return Examples(train_images, train_labels), Examples(test_images, test_labels)


def shuffled(data: Examples, epoch: int) -> Examples:
    """In an order that depends on the epoch alone, so that all processes have the same."""
    order = np.random.default_rng((SEED, epoch)).permutation(len(data.labels))
    return Examples(*(x[order] for x in data))


def num_batches(data: Examples) -> int:
    return -(-len(data.labels) // BATCH_SIZE)


def batches(data: Examples) -> Iterator[Examples]:
    """`BATCH_SIZE` examples at a time, in order; the last batch has those that are left."""
    for start in range(0, len(data.labels), BATCH_SIZE):
        yield Examples(*(x[start : start + BATCH_SIZE] for x in data))


def place(batch: Examples, mesh: Mesh) -> Batch:
    """A batch as global arrays, of which each process holds its share of the rows.

    There are as many rows for any batch; what is short of them is padding, at the end. The last
    batch of a pass can leave a process without any example.
    """
    share = padded(BATCH_SIZE, mesh) // jax.process_count()
    start = share * jax.process_index()
    own = Examples(*(x[start : start + share] for x in batch))
    (images, labels), mask = global_batch(own, mesh, AXIS, rows=share)
    return Batch(images, labels, mask)


def padded(rows: int, mesh: Mesh) -> int:
    """The least multiple of the devices that is not below `rows`."""
    return -(-rows // mesh.size) * mesh.size


# Model.


class Classifier(nnx.Module):
    """64 pixels to `NUM_CLASSES` logits, through one hidden layer."""

    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(64, 128, rngs=rngs)
        self.logits = nnx.Linear(128, NUM_CLASSES, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        return self.logits(nnx.relu(self.hidden(images)))


def make_model(mesh: Mesh) -> tuple[Classifier, nnx.Optimizer]:
    """A model and its optimizer, replicated over the mesh."""
    model = Classifier(nnx.Rngs(SEED))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    graphdef, state = nnx.split((model, optimizer))
    return nnx.merge(graphdef, jax.device_put(on_host(state), NamedSharding(mesh, P())))


# Metrics.


class Count(Metric):
    """How many examples there were: a metric of one's own."""

    seen = MetricAccumulator(0)

    def update(self, real: jax.Array) -> "Count":
        return self.replace(seen=self.seen.update(real))

    def compute(self) -> Any:
        return self.seen.value


def make_metrics(mesh: Mesh) -> StatefulMetric:
    """What is measured in training. Each device keeps its own state until a window is collected."""
    metrics = {
        "examples": Count(),
        "loss": Mean().from_outputs(values="losses"),
        "accuracy": Accuracy(num_classes=NUM_CLASSES),
        "worst_loss": Max().from_outputs(values="losses"),
        "least_confidence": Min().from_outputs(values="confidence"),
    }
    return StatefulMetric(per_device(Collection(metrics), mesh, AXIS))


def make_quality(mesh: Mesh) -> Metric:
    """How good the predictions of a data set are; three states serve the five metrics."""
    metrics = {
        "accuracy": Accuracy(num_classes=NUM_CLASSES),
        "macro_f1": F1(num_classes=NUM_CLASSES, average="macro"),
        "recall": Recall(num_classes=NUM_CLASSES, average=None),
        "auroc": AUROC(num_classes=NUM_CLASSES),
        "calibration_error": CalibrationError(num_classes=NUM_CLASSES, from_logits=True),
    }
    return per_device(Collection(metrics), mesh, AXIS)


def summary(logits: jax.Array, batch: Batch) -> dict[str, jax.Array]:
    """The same numbers for the real rows among those given, through the reducers."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
    examples = {
        "examples": batch.mask,
        "loss": losses,
        "accuracy": jnp.argmax(logits, axis=-1) == batch.labels,
        "worst_loss": losses,
        "least_confidence": jnp.max(nnx.softmax(logits), axis=-1),
    }
    return reduce_custom(examples, REDUCTIONS, weights=batch.mask)


def total(summaries: dict[str, jax.Array]) -> dict[str, float]:
    """One summary of several, stacked along a leading axis: each counts by its examples."""
    metrics = reduce_custom(summaries, REDUCTIONS, weights=by_examples(summaries))
    return {name: value.item() for name, value in metrics.items()}


def by_examples(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The weights that make summaries of unequal parts add up."""
    return {name: metrics["examples"] for name in metrics if name != "examples"}


# Steps. Each returns a dict of arrays, the logits among them.


@nnx.jit
def train_step(
    model: Classifier, optimizer: nnx.Optimizer, metrics: StatefulMetric, batch: Batch
) -> dict[str, jax.Array]:
    """One step on global arrays: the gradients need collectives, the metrics do not."""

    def objective(model: Classifier) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        logits = model(batch.images)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
        return reduce_mean({"loss": losses}, weights=batch.mask)["loss"], (logits, losses)

    grads, (logits, losses) = nnx.grad(objective, has_aux=True)(model)
    optimizer.update(model, grads)
    metrics.update(
        real=batch.mask,
        losses=losses,
        confidence=jnp.max(nnx.softmax(logits), axis=-1),
        preds=logits,
        target=batch.labels,
        weights=batch.mask,
    )
    return {"logits": logits}


def make_evaluate(model: Classifier, mesh: Mesh) -> Callable[[nnx.State, Batch], Any]:
    """An evaluation of global arrays in which each device sees its own rows, by `shard_map`."""
    graphdef = nnx.graphdef(model)

    def on_shard(state: nnx.State, batch: Batch) -> dict[str, jax.Array]:
        every, _, logits = _evaluate_rows(nnx.merge(graphdef, state), batch)
        return every | all_gather({"logits": logits}, AXIS, tiled=True)

    return jax.jit(jax.shard_map(on_shard, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=P()))


def quality(model: Classifier, data: Examples, mesh: Mesh) -> tuple[dict[str, Any], Any]:
    """The results of `make_quality` over a data set, and the bounds of the AUROC."""

    @nnx.jit
    def step(model: Classifier, metrics: Metric, batch: Batch) -> Metric:
        return metrics.update(preds=model(batch.images), target=batch.labels, weights=batch.mask)

    metrics: Any = make_quality(mesh)
    for batch in batches(data):
        metrics = jax.block_until_ready(step(model, metrics, place(batch, mesh)))
    seen = jax.block_until_ready(metrics.sync())
    return seen.results(), tuple(float(bound) for bound in seen["auroc"].bounds())


def make_evaluate_pmap(model: Classifier, mesh: Mesh) -> Callable[[nnx.State, Batch], Any]:
    """The same by `pmap`: arrays with a leading device axis, in and out.

    Returns the summary of all devices' rows, that of each device's alone, and the logits of each;
    every device has them all.
    """
    graphdef = nnx.graphdef(model)

    def on_device(state: nnx.State, batch: Batch):
        every, mine, logits = _evaluate_rows(nnx.merge(graphdef, state), batch)
        return every, *all_gather((mine, logits), AXIS)

    devices = list(mesh.devices.flat)
    return jax.pmap(on_device, axis_name=AXIS, in_axes=(None, 0), devices=devices)


def _evaluate_rows(model: Classifier, batch: Batch):
    logits = model(batch.images)
    mine = summary(logits, batch)
    every = reduce_custom_collective(mine, REDUCTIONS, AXIS, weights=by_examples(mine))
    return every, mine, logits


def run_steps(
    step: Callable[[Batch], dict[str, jax.Array]],
    data: Examples,
    mesh: Mesh,
    after_step: Callable[[], None],
) -> tuple[dict[str, jax.Array], Predictions]:
    """Takes a step for each batch; what they returned, stacked, and what was predicted."""
    outputs = []
    for batch in batches(data):
        # On CPU, steps that hold a collective deadlock when they pile up: wait for each.
        outputs.append(jax.block_until_ready(step(place(batch, mesh))))
        after_step()
    results = jax.block_until_ready(_stacked(outputs, mesh))
    logits = np.asarray(results.pop("logits"))
    predicted = [x[: len(batch.labels)] for x, batch in zip(logits, batches(data), strict=True)]
    mask = np.ones(len(data.labels), bool)
    return results, Predictions(np.concatenate(predicted), data.labels, mask)


@partial(jax.jit, static_argnums=1)
def _stacked(outputs: list[dict[str, jax.Array]], mesh: Mesh) -> dict[str, jax.Array]:
    # On every process in full, because the check needs all logits.
    everywhere = NamedSharding(mesh, P())
    return jax.tree.map(
        lambda *x: jax.lax.with_sharding_constraint(jnp.stack(x), everywhere), *outputs
    )


def on_host(tree: Any) -> Any:
    """Replicated arrays, as NumPy."""
    return jax.tree.map(np.asarray, tree)
