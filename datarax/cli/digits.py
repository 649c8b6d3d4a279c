"""The task of the demo: the digits, a small classifier, and three data-parallel steps.

The outputs of a step are measured in three ways: by `per_device` metrics in a jitted train step on
global arrays, and by the reducers and metrics that are synced, in an evaluation under `shard_map`
and in one under `pmap`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from datarax import Collection, per_device
from datarax.distributed import (
    all_gather,
    global_batch,
    reduce_custom,
    reduce_custom_collective,
    reduce_mean,
)
from datarax.metrics import AUROC, F1, Accuracy, Max, Mean, Min, Sum
from datarax.training import StatefulMetric

SEED = 0
AXIS = "data"
BATCH_SIZE = 128
NUM_CLASSES = 10

Arrays = dict[str, jax.Array]
Found = dict[str, Any]
"""Arrays by name, and in "quality" a collection of metrics."""
Evaluation = Callable[[nnx.State, "Batch"], Found]

# How each metric of a summary is reduced. The default is the mean.
REDUCTIONS = {"examples": "sum", "worst_loss": "max", "least_confidence": "min"}


class Digits(NamedTuple):
    """Digits on the host, along the leading axis."""

    images: np.ndarray
    labels: np.ndarray

    def at(self, rows: np.ndarray | slice) -> "Digits":
        """The digits in these rows."""
        return Digits(self.images[rows], self.labels[rows])


class Batch(NamedTuple):
    """Digits on the devices, along the leading axis; `mask` is false for padding rows."""

    images: jax.Array
    labels: jax.Array
    mask: jax.Array


# Data.


def load() -> tuple[Digits, Digits]:
    """The 1,437 training and 360 test digits: float32 images in [0, 1] of shape (N, 64)."""
    images, labels = load_digits(return_X_y=True)
    # The intensities of the pixels are integers from 0 to 16.
    labels = np.asarray(labels, np.int32)
    data, rows = Digits((images / 16).astype(np.float32), labels), len(labels)
    split = train_test_split(np.arange(rows), test_size=0.2, stratify=labels, random_state=SEED)
    train, test = map(np.asarray, split)
    return data.at(train), data.at(test)


def shuffled(data: Digits, epoch: int) -> Digits:
    """The examples in an order that depends only on the epoch, so it is equal on all processes."""
    return data.at(np.random.default_rng((SEED, epoch)).permutation(len(data.labels)))


def batches(data: Digits) -> Iterator[Digits]:
    """Batches of `BATCH_SIZE` examples, in order; the last batch may be smaller."""
    for start in range(0, len(data.labels), BATCH_SIZE):
        yield data.at(slice(start, start + BATCH_SIZE))


def place(batch: Digits, mesh: Mesh, rows: int = BATCH_SIZE) -> Batch:
    """A batch as global arrays that are sharded over all processes.

    Every batch has the same number of `rows`; a smaller one is padded at its end. In the last batch
    of a pass, a process may have no example.
    """
    share = padded(rows, mesh) // jax.process_count()
    start = share * jax.process_index()
    own = batch.at(slice(start, start + share))
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


def make_quality() -> Collection:
    """The metrics that are no means over examples. The AUROC keeps all scores, so it is exact."""
    return Collection(
        {
            "macro_f1": F1(num_classes=NUM_CLASSES, average="macro"),
            "auroc": AUROC(num_classes=NUM_CLASSES, from_logits=True, exact=True, capacity=2048),
        }
    )


def make_metrics(mesh: Mesh) -> StatefulMetric:
    """The metrics of training, with one copy of their state on each device."""
    metrics = {
        "examples": Sum().from_outputs(values="present"),
        "loss": Mean().from_outputs(values="losses"),
        "accuracy": Accuracy(num_classes=NUM_CLASSES),
        "worst_loss": Max().from_outputs(values="losses"),
        "least_confidence": Min().from_outputs(values="confidence"),
        **make_quality(),
    }
    return StatefulMetric(per_device(Collection(metrics), mesh, AXIS))


def outputs(logits: jax.Array, batch: Batch) -> Arrays:
    """The outputs of each row, as `make_metrics` takes them; padding rows have the weight zero."""
    return {
        "preds": logits,
        "target": batch.labels,
        "losses": optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels),
        "confidence": jnp.max(nnx.softmax(logits), axis=-1),
        "present": batch.mask,
        "weights": batch.mask,
    }


def summary(logits: jax.Array, batch: Batch) -> Found:
    """The metrics of `make_metrics` for the real rows of a batch: by the reducers, if they can."""
    found = outputs(logits, batch)
    examples = {
        "examples": batch.mask,
        "loss": found["losses"],
        "accuracy": jnp.argmax(logits, axis=-1) == batch.labels,
        "worst_loss": found["losses"],
        "least_confidence": found["confidence"],
    }
    quality = make_quality().update(preds=logits, target=batch.labels, weights=batch.mask)
    return reduce_custom(examples, REDUCTIONS, weights=batch.mask) | {"quality": quality}


def total(summaries: Sequence[Found]) -> dict[str, float]:
    """The summaries of several batches as one, weighted by their examples."""
    names = summaries[0].keys() - {"quality"}
    stacked = {name: jnp.stack([each[name] for each in summaries]) for name in names}
    reduced = reduce_custom(stacked, REDUCTIONS, weights=by_examples(stacked))
    quality = reduce(Collection.merge, (each["quality"] for each in summaries))
    return {name: value.item() for name, value in reduced.items()} | quality.results()


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

    def objective(model: Classifier) -> tuple[jax.Array, Arrays]:
        found = outputs(model(batch.images), batch)
        return reduce_mean({"loss": found["losses"]}, weights=batch.mask)["loss"], found

    grads, found = nnx.grad(objective, has_aux=True)(model)
    optimizer.update(model, grads)
    metrics.update(**found)
    return {"logits": found["preds"]}


def make_evaluations(model: Classifier, mesh: Mesh) -> tuple[Evaluation, Evaluation]:
    """The evaluation of a batch by the reducers, in `shard_map` and in `pmap`.

    It returns the summary and the logits of the rows of all devices, on each device. Arguments and
    results of `pmap` have one more leading axis, of the devices.
    """
    graphdef = nnx.graphdef(model)

    def on_device(state: nnx.State, batch: Batch) -> Found:
        logits = nnx.merge(graphdef, state)(batch.images)
        mine = summary(logits, batch)
        quality = mine.pop("quality").sync(AXIS)
        every = reduce_custom_collective(mine, REDUCTIONS, AXIS, weights=by_examples(mine))
        rows = all_gather(logits, AXIS).reshape(-1, NUM_CLASSES)
        return every | {"logits": rows, "quality": quality}

    sharded = jax.shard_map(on_device, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=P())
    devices = list(mesh.devices.flat)
    mapped = jax.pmap(on_device, axis_name=AXIS, in_axes=(None, 0), devices=devices)
    return jax.jit(sharded), mapped


def run_steps(
    step: Callable[[Batch], Found], data: Digits, mesh: Mesh
) -> tuple[list[Found], np.ndarray]:
    """Runs a step for each batch; returns what it found, and the logits of all examples."""
    found, logits = [], []
    for batch in batches(data):
        # On CPU, several steps with a collective in flight may deadlock, so wait for each.
        out = jax.block_until_ready(step(place(batch, mesh)))
        # Rows of padding come last. Every process has all logits, for the check.
        logits.append(process_allgather(out.pop("logits"), tiled=True)[: len(batch.labels)])
        if "quality" in out:  # every process has the whole of it, and merges it by itself
            out["quality"] = jax.tree.map(lambda x: x.addressable_data(0), out["quality"])
        found.append(out)
    return found, np.concatenate(logits)


def run_pmap(
    evaluate: Evaluation, model: Classifier, data: Digits, mesh: Mesh
) -> tuple[dict[str, float], np.ndarray]:
    """Evaluates all data in one step of `pmap`; returns the summary, and the logits."""
    batch = place(data, mesh, len(data.labels))
    # `pmap` takes the rows of the devices of this process along a leading axis.
    mine = jax.tree.map(lambda x: np.stack([each.data for each in x.addressable_shards]), batch)
    out = evaluate(jax.tree.map(np.asarray, nnx.state(model)), mine)
    # All devices have the same results.
    out = jax.tree.map(lambda x: np.asarray(x.addressable_data(0))[0], out)
    logits = out.pop("logits")[: len(data.labels)]
    quality = out.pop("quality").results()
    return {name: x.item() for name, x in out.items()} | quality, logits
