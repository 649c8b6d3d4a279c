"""The demo's task: the digits, a small classifier, and its three data-parallel steps.

The same per-example metrics are reduced in three places: inside a jitted train step on global
arrays, inside a `shard_map` evaluation, and inside a `pmap`ed one.
"""

from collections.abc import Callable, Iterator
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

from datarax.cli._check import Predictions
from datarax.distributed import (
    all_gather,
    reduce_custom,
    reduce_custom_collective,
    reduce_mean,
)

SEED = 0
AXIS = "data"
BATCH_SIZE = 128
NUM_CLASSES = 10

# How each metric is reduced; the mean where nothing is said.
REDUCTIONS = {"examples": "sum", "worst_loss": "max", "least_confidence": "min"}


class Batch(NamedTuple):
    """Examples along the leading axis; `mask` is false for the rows that only pad the batch."""

    images: Any
    labels: Any
    mask: Any


# Data.


def load() -> tuple[Batch, Batch]:
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
    train = Batch(train_images, train_labels, np.ones(len(train_labels), bool))
    test = Batch(test_images, test_labels, np.ones(len(test_labels), bool))
    return train, test


def shuffled(data: Batch, epoch: int) -> Batch:
    order = np.random.default_rng((SEED, epoch)).permutation(len(data.labels))
    return Batch(*(x[order] for x in data))


def batch_size(num_devices: int) -> int:
    """The least multiple of `num_devices` that is not below `BATCH_SIZE`."""
    return -(-BATCH_SIZE // num_devices) * num_devices


def num_batches(data: Batch, size: int) -> int:
    return -(-len(data.labels) // size)


def batches(data: Batch, size: int) -> Iterator[Batch]:
    """Batches of `size`, in order. The last one is padded with masked rows, not dropped."""
    for start in range(0, len(data.labels), size):
        rows = [x[start : start + size] for x in data]
        padding = size - len(rows[0])
        yield Batch(*(np.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)) for x in rows))


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
    return nnx.merge(graphdef, jax.device_put(state, NamedSharding(mesh, P())))


# Metrics.


def summary(logits: jax.Array, batch: Batch) -> dict[str, jax.Array]:
    """The metrics of the real rows among those given: a scalar each."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
    examples = {
        "examples": batch.mask,
        "loss": losses,
        "accuracy": jnp.argmax(logits, axis=-1) == batch.labels,
        "worst_loss": losses,
        "least_confidence": jnp.max(nnx.softmax(logits), axis=-1),
    }
    return reduce_custom(examples, REDUCTIONS, weights=batch.mask)


def by_examples(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The weights that make summaries of unequal parts add up: each counts its examples."""
    return {name: metrics["examples"] for name in metrics if name != "examples"}


# Steps. Each returns a summary, the same on every device, and the logits that it is about.


@nnx.jit
def train_step(
    model: Classifier, optimizer: nnx.Optimizer, batch: Batch
) -> tuple[dict[str, jax.Array], jax.Array]:
    """One step on global arrays: the compiler finds the collectives."""

    def objective(model: Classifier) -> tuple[jax.Array, jax.Array]:
        logits = model(batch.images)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
        return reduce_mean({"loss": losses}, weights=batch.mask)["loss"], logits

    grads, logits = nnx.grad(objective, has_aux=True)(model)
    optimizer.update(model, grads)
    return summary(logits, batch), logits


def make_evaluate(model: Classifier, mesh: Mesh) -> Callable[[nnx.State, Batch], Any]:
    """An evaluation of global arrays in which each device sees its own rows, by `shard_map`."""
    graphdef = nnx.graphdef(model)

    def on_shard(state: nnx.State, batch: Batch):
        every, _, logits = _evaluate_rows(nnx.merge(graphdef, state), batch)
        return every, all_gather({"logits": logits}, AXIS, tiled=True)["logits"]

    return jax.jit(jax.shard_map(on_shard, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=P()))


def make_evaluate_pmap(model: Classifier, mesh: Mesh) -> Callable[[nnx.State, Batch], Any]:
    """The same by `pmap`: arrays with a leading device axis, in and out.

    Returns the summary of all devices' rows, that of each device's alone, and the logits.
    """
    graphdef = nnx.graphdef(model)

    def on_device(state: nnx.State, batch: Batch):
        return _evaluate_rows(nnx.merge(graphdef, state), batch)

    devices = list(mesh.devices.flat)
    return jax.pmap(on_device, axis_name=AXIS, in_axes=(None, 0), devices=devices)


def _evaluate_rows(model: Classifier, batch: Batch):
    logits = model(batch.images)
    mine = summary(logits, batch)
    every = reduce_custom_collective(mine, REDUCTIONS, AXIS, weights=by_examples(mine))
    return every, mine, logits


def run_steps(
    step: Callable[[Batch], tuple[dict[str, jax.Array], jax.Array]],
    data: Batch,
    size: int,
    mesh: Mesh,
    advance: Callable[[], None],
) -> tuple[dict[str, float], Predictions]:
    """Takes a step for each batch; the numbers of all of them, and what was predicted."""
    rows = NamedSharding(mesh, P(AXIS))
    metrics, predictions = [], []
    for batch in batches(data, size):
        # Simulated devices deadlock when steps that hold a collective pile up: wait for each.
        summarised, logits = jax.block_until_ready(step(jax.device_put(batch, rows)))
        metrics.append(summarised)
        predictions.append(Predictions(np.asarray(logits), batch.labels, batch.mask))
        advance()
    stacked = jax.tree.map(lambda *steps: jnp.stack(steps), *metrics)
    total = reduce_custom(stacked, REDUCTIONS, weights=by_examples(stacked))
    numbers = {name: value.item() for name, value in total.items()}
    return numbers, Predictions(*map(np.concatenate, zip(*predictions, strict=True)))
