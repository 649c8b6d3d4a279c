"""The task of the demo: the digits, a small classifier, and three data-parallel steps.

The outputs of a step are measured in three ways: by `per_device` metrics in a jitted train step on
global arrays, by the reducers in an evaluation under `shard_map`, and by the reducers in an
evaluation under `pmap`.
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

from datarax import Bootstrap, Collection, Metric, MetricAccumulator, Sliced, per_device
from datarax._typing import PyTree
from datarax.cli.verification import REPLICAS, Predictions
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

# Slices of the data, by the digit and by the ink, the mean intensity of the pixels. About a third
# of the digits is between the two edges.
SLICES = {"digit": tuple("0123456789"), "ink": ("light", "medium", "heavy")}
INK_EDGES = (0.287, 0.321)

# How each metric of a summary is reduced. The default is the mean.
REDUCTIONS = {"examples": "sum", "worst_loss": "max", "least_confidence": "min"}


class Examples(NamedTuple):
    """Examples on the host, along the leading axis."""

    images: Any
    labels: Any


class Batch(NamedTuple):
    """Examples on the devices, along the leading axis; `mask` is false for padding rows."""

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
    """The examples in an order that depends only on the epoch, so it is equal on all processes."""
    order = np.random.default_rng((SEED, epoch)).permutation(len(data.labels))
    return Examples(*(x[order] for x in data))


def slice_ids(data: Examples) -> dict[str, np.ndarray]:
    """The slice of each example, from 0, for each slicing of `SLICES`."""
    return {"digit": data.labels, "ink": np.digitize(data.images.mean(axis=1), INK_EDGES)}


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
    return nnx.merge(graphdef, jax.device_put(on_host(state), NamedSharding(mesh, P())))


# Metrics.


class Count(Metric):
    """The number of examples, as an example of a metric that a user defines."""

    seen = MetricAccumulator(0)

    def update(self, present: jax.Array) -> "Count":
        return self.replace(seen=self.seen.update(present))

    def compute(self) -> PyTree:
        return self.seen.value


def make_metrics(mesh: Mesh) -> StatefulMetric:
    """The metrics of training, with one copy of their state on each device."""
    metrics = {
        "examples": Count(),
        "loss": Mean().from_outputs(values="losses"),
        "accuracy": Accuracy(num_classes=NUM_CLASSES),
        "worst_loss": Max().from_outputs(values="losses"),
        "least_confidence": Min().from_outputs(values="confidence"),
    }
    return StatefulMetric(per_device(Collection(metrics), mesh, AXIS))


def make_quality(mesh: Mesh, slices: bool) -> Metric:
    """Metrics of the quality of predictions: five, which share three statistics, and intervals."""
    accuracy = Accuracy(num_classes=NUM_CLASSES)
    headline = {"accuracy": accuracy, "macro_f1": F1(num_classes=NUM_CLASSES, average="macro")}
    metrics = headline | {
        "recall": Recall(num_classes=NUM_CLASSES, average=None),
        "auroc": AUROC(num_classes=NUM_CLASSES, from_logits=True),
        "calibration_error": CalibrationError(num_classes=NUM_CLASSES, from_logits=True),
        "interval": Bootstrap(Collection(headline), REPLICAS),
    }
    for by, sliced in _sliced(accuracy).items() if slices else ():
        metrics[by] = Bootstrap(sliced, REPLICAS)
    for by, sliced in _sliced(Count()).items() if slices else ():
        metrics[f"{by}/examples"] = sliced
    return per_device(Collection(metrics), mesh, AXIS)


def _sliced(metric: Metric) -> dict[str, Metric]:
    by_digit = Sliced(metric, NUM_CLASSES, by="digit").from_outputs(digit="target")
    return {"digit": by_digit, "ink": Sliced(metric, 3, names=SLICES["ink"], by="ink")}


def summary(logits: jax.Array, batch: Batch) -> dict[str, jax.Array]:
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


def total(summaries: dict[str, jax.Array]) -> dict[str, float]:
    """Summaries that are stacked along a leading axis as one, weighted by their examples."""
    metrics = reduce_custom(summaries, REDUCTIONS, weights=by_examples(summaries))
    return {name: value.item() for name, value in metrics.items()}


def by_examples(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The weights with which summaries of parts of unequal size combine exactly."""
    return {name: metrics["examples"] for name in metrics if name != "examples"}


# Steps. Each returns a dict of arrays that includes the logits.


@nnx.jit
def train_step(
    model: Classifier, optimizer: nnx.Optimizer, metrics: StatefulMetric, batch: Batch
) -> dict[str, jax.Array]:
    """A train step on global arrays. The gradients need collectives, the metrics do not."""

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


def make_evaluate(model: Classifier, mesh: Mesh) -> Callable[[nnx.State, Batch], Any]:
    """An evaluation step on global arrays; `shard_map` gives each device its own rows."""
    graphdef = nnx.graphdef(model)

    def on_shard(state: nnx.State, batch: Batch) -> dict[str, jax.Array]:
        every, _, logits = _evaluate_rows(nnx.merge(graphdef, state), batch)
        return every | all_gather({"logits": logits}, AXIS, tiled=True)

    return jax.jit(jax.shard_map(on_shard, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=P()))


def quality(
    model: Classifier, data: Examples, mesh: Mesh, slices: bool
) -> tuple[dict[str, Any], Any]:
    """The results of the metrics of `make_quality` on a data set, and the bounds of the AUROC."""

    @nnx.jit
    def step(model: Classifier, metrics: Metric, batch: Batch, first: int) -> Metric:
        return metrics.update(
            preds=model(batch.images),
            target=batch.labels,
            weights=batch.mask,
            present=batch.mask,
            # Where each example is in the data set: then the intervals are the same on any mesh.
            index=first + jnp.arange(len(batch.labels)),
            ink=jnp.digitize(jnp.mean(batch.images, axis=1), jnp.array(INK_EDGES)),
        )

    metrics: Any = make_quality(mesh, slices)
    for i, batch in enumerate(batches(data)):
        placed = place(batch, mesh)
        metrics = jax.block_until_ready(step(model, metrics, placed, i * BATCH_SIZE))
    seen = jax.block_until_ready(metrics.sync())
    return seen.results(), tuple(float(bound) for bound in seen["auroc"].bounds())


def make_evaluate_pmap(model: Classifier, mesh: Mesh) -> Callable[[nnx.State, Batch], Any]:
    """An evaluation step by `pmap`: its arguments and results have a leading device axis.

    It returns the summary of the rows of all devices, the summary of the rows of each device, and
    the logits of each device. Every device has all of them.
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
    """Runs a step for each batch; returns the stacked results, and the predictions."""
    outputs = []
    for batch in batches(data):
        # On CPU, several steps with a collective in flight may deadlock, so wait for each.
        outputs.append(jax.block_until_ready(step(place(batch, mesh))))
        after_step()
    results = jax.block_until_ready(_stacked(outputs, mesh))
    logits = np.asarray(results.pop("logits"))
    predicted = [x[: len(batch.labels)] for x, batch in zip(logits, batches(data), strict=True)]
    mask = np.ones(len(data.labels), bool)
    return results, Predictions(np.concatenate(predicted), data.labels, mask)


@partial(jax.jit, static_argnums=1)
def _stacked(outputs: list[dict[str, jax.Array]], mesh: Mesh) -> dict[str, jax.Array]:
    # Replicated, so that every process has all logits for the check.
    everywhere = NamedSharding(mesh, P())
    return jax.tree.map(
        lambda *x: jax.lax.with_sharding_constraint(jnp.stack(x), everywhere), *outputs
    )


def on_host(tree: PyTree) -> PyTree:
    """A pytree of replicated arrays as NumPy arrays."""
    return jax.tree.map(np.asarray, tree)
