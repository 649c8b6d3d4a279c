"""The task of the demo: the digits, a small classifier, and three data-parallel steps.

The outputs of a step are measured in three ways: by `per_device` metrics in a jitted train step on
global arrays, by the reducers in an evaluation under `shard_map`, and by the reducers in an
evaluation under `pmap`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from datarax import Collection, per_device
from datarax.cli.verification import Predictions
from datarax.distributed import (
    all_gather,
    global_batch,
    reduce_custom,
    reduce_custom_collective,
    reduce_mean,
)
from datarax.metrics import Accuracy, Max, Mean, Min, Sum
from datarax.training import StatefulMetric

SEED = 0
AXIS = "data"
BATCH_SIZE = 128
NUM_CLASSES = 10

Arrays = dict[str, jax.Array]
Evaluation = Callable[[nnx.State, "Batch"], tuple[Arrays, Arrays, jax.Array]]

# How each metric of a summary is reduced. The default is the mean.
REDUCTIONS = {"examples": "sum", "worst_loss": "max", "least_confidence": "min"}


class Examples(NamedTuple):
    """Examples on the host, along the leading axis."""

    images: np.ndarray
    labels: np.ndarray


class Batch(NamedTuple):
    """Examples on the devices, along the leading axis; `mask` is false for padding rows."""

    images: jax.Array
    labels: jax.Array
    mask: jax.Array


# Data.


def load() -> tuple[Examples, Examples]:
    """The 1,437 training and 360 test digits: float32 images in [0, 1] of shape (N, 64)."""
    images, labels = load_digits(return_X_y=True)
    data = (images / 16).astype(np.float32), labels.astype(np.int32)
    parts = train_test_split(*data, test_size=0.2, stratify=labels, random_state=SEED)
    train_images, test_images, train_labels, test_labels = map(np.asarray, parts)
    return Examples(train_images, train_labels), Examples(test_images, test_labels)


def shuffled(data: Examples, epoch: int) -> Examples:
    """The examples in an order that depends only on the epoch, so it is equal on all processes."""
    order = np.random.default_rng((SEED, epoch)).permutation(len(data.labels))
    return Examples(*(x[order] for x in data))


def num_batches(data: Examples) -> int:
    """The number of batches in a pass over the data, the last partial one included."""
    return -(-len(data.labels) // BATCH_SIZE)


def batches(data: Examples) -> Iterator[Examples]:
    """Batches of `BATCH_SIZE` examples, in order; the last batch may be smaller."""
    for start in range(0, len(data.labels), BATCH_SIZE):
        yield Examples(*(x[start : start + BATCH_SIZE] for x in data))


def place(batch: Examples, mesh: Mesh) -> Batch:
    """A batch as global arrays that are sharded over all processes.

    Every batch has the same number of rows; a smaller one is padded at its end. In the last batch
    of a pass, a process may have no example.
    """
    share = padded(BATCH_SIZE, mesh) // jax.process_count()
    start = share * jax.process_index()
    own = Examples(*(x[start : start + share] for x in batch))
    (images, labels), mask = global_batch(own, mesh, AXIS, rows=share)
    return Batch(images, labels, mask)


def padded(rows: int, mesh: Mesh) -> int:
    """`rows` rounded up to a multiple of the number of devices."""
    return -(-rows // mesh.size) * mesh.size


# Model.


class Classifier(nnx.Module):
    """A network with one hidden layer, from 64 pixels to `NUM_CLASSES` logits."""

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
    state = jax.device_put(jax.tree.map(np.asarray, state), NamedSharding(mesh, P()))
    return nnx.merge(graphdef, state)


# Metrics.


def make_metrics(mesh: Mesh) -> StatefulMetric:
    """The metrics of training, with one copy of their state on each device."""
    metrics = {
        "examples": Sum().from_outputs(values="present"),
        "loss": Mean().from_outputs(values="losses"),
        "accuracy": Accuracy(num_classes=NUM_CLASSES),
        "worst_loss": Max().from_outputs(values="losses"),
        "least_confidence": Min().from_outputs(values="confidence"),
    }
    return StatefulMetric(per_device(Collection(metrics), mesh, AXIS))


def summary(logits: jax.Array, batch: Batch) -> Arrays:
    """The metrics of `make_metrics` for the real rows of a batch, computed by the reducers."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
    examples = {
        "examples": batch.mask,
        "loss": losses,
        "accuracy": jnp.argmax(logits, axis=-1) == batch.labels,
        "worst_loss": losses,
        "least_confidence": jnp.max(nnx.softmax(logits), axis=-1),
    }
    return reduce_custom(examples, REDUCTIONS, weights=batch.mask)


def total(summaries: Arrays) -> dict[str, float]:
    """Summaries that are stacked along a leading axis as one, weighted by their examples."""
    metrics = reduce_custom(summaries, REDUCTIONS, weights=by_examples(summaries))
    return {name: value.item() for name, value in metrics.items()}


def by_examples(metrics: Arrays) -> Arrays:
    """The weights with which summaries of parts of unequal size combine exactly."""
    return {name: metrics["examples"] for name in metrics if name != "examples"}


# Steps.


@nnx.jit
def train_step(
    model: Classifier, optimizer: nnx.Optimizer, metrics: StatefulMetric, batch: Batch
) -> Arrays:
    """A train step on global arrays. The gradients need collectives, the metrics do not.

    It returns the logits, for the check of the numbers.
    """

    def objective(model: Classifier) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        logits = model(batch.images)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
        return reduce_mean({"loss": losses}, weights=batch.mask)["loss"], (logits, losses)

    grads, (logits, losses) = nnx.grad(objective, has_aux=True)(model)
    optimizer.update(model, grads)
    metrics.update(
        present=batch.mask,
        losses=losses,
        confidence=jnp.max(nnx.softmax(logits), axis=-1),
        preds=logits,
        target=batch.labels,
        weights=batch.mask,
    )
    return {"logits": logits}


def make_evaluations(model: Classifier, mesh: Mesh) -> tuple[Evaluation, Evaluation]:
    """The evaluation of a batch by the reducers, in `shard_map` and in `pmap`.

    It returns the summary of the rows of all devices; and, of each device along a leading axis, the
    summary and the logits. All devices have all of them. Arguments and results of `pmap` have one
    more leading axis, of the devices.
    """
    graphdef = nnx.graphdef(model)

    def on_device(state: nnx.State, batch: Batch) -> tuple[Arrays, Arrays, jax.Array]:
        logits = nnx.merge(graphdef, state)(batch.images)
        mine = summary(logits, batch)
        every = reduce_custom_collective(mine, REDUCTIONS, AXIS, weights=by_examples(mine))
        return every, *all_gather((mine, logits), AXIS)

    sharded = jax.shard_map(on_device, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=P())
    devices = list(mesh.devices.flat)
    mapped = jax.pmap(on_device, axis_name=AXIS, in_axes=(None, 0), devices=devices)
    return jax.jit(sharded), mapped


def run_steps(
    step: Callable[[Batch], Arrays], data: Examples, mesh: Mesh, after_step: Callable[[], None]
) -> tuple[Arrays, Predictions]:
    """Runs a step for each batch; returns the stacked results, and the predictions.

    The step returns the logits of its rows, and what else it finds.
    """
    outputs = []
    for batch in batches(data):
        # On CPU, several steps with a collective in flight may deadlock, so wait for each.
        outputs.append(jax.block_until_ready(step(place(batch, mesh))))
        after_step()
    # Replicated, so that every process has all logits for the check.
    results = jax.block_until_ready(_stacked(outputs, NamedSharding(mesh, P())))
    logits = np.asarray(results.pop("logits")).reshape(len(outputs), -1, NUM_CLASSES)
    real = [x[: len(batch.labels)] for x, batch in zip(logits, batches(data), strict=True)]
    mask = np.ones(len(data.labels), bool)
    return results, Predictions(np.concatenate(real), data.labels, mask)


@partial(jax.jit, static_argnums=1)
def _stacked(outputs: list[Arrays], places: NamedSharding) -> Arrays:
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *outputs)
    return jax.lax.with_sharding_constraint(stacked, places)
