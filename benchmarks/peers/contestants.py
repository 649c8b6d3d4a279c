"""The contestants: datarax, the program written by hand, and each peer that has the metrics."""
# The peers are in the environment of `make bench-peers` only.
# pyright: reportMissingImports=false

import os
import timeit
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import datarax
from benchmarks.peers import by_hand
from benchmarks.peers.task import BINS, SMALL, Batch, Task
from datarax import metrics

Update = Callable[[Any, Batch], Any]
Values = dict[str, Any]

THRESHOLDS = 100  # of the AUROC of torchmetrics that bins the scores
BINNED = f"torchmetrics, {THRESHOLDS} thresholds"


def _to_jax(batch: Batch) -> Batch:
    return jax.tree.map(jnp.asarray, batch)


def _donating(update: Update) -> Update:
    return jax.jit(update, donate_argnums=0)


@dataclass(frozen=True)
class Contestant:
    empty: Callable[[], Any]
    update: Update
    """As a user writes it outside `jit`. Returns the state, also if it is updated in place."""
    read: Callable[[Any], Values]
    """The values on the host."""
    compile: Callable[[Update], Update] = _donating
    convert: Callable[[Batch], Batch] = _to_jax
    on_host: bool = False
    """Whether it takes NumPy arrays outside `jit`, and compiles nothing there."""

    @property
    def outside(self) -> "Contestant":
        """The contestant outside `jit`."""
        if not self.on_host:
            return self
        return replace(self, compile=lambda update: update, convert=lambda batch: batch)

    def all_of(self, task: Task, *, update: Update | None = None) -> Values:
        """The values over all batches of a task."""
        state, update = self.empty(), update or self.update
        for batch in task.batches:
            state = update(state, self.convert(batch))
        return self.read(state)


def contestants(task: Task) -> dict[str, Contestant]:
    """All that have the metrics of a task."""
    found = {
        "datarax": _datarax(task),
        "by hand": Contestant(
            lambda: by_hand.empty(task),
            jax.jit(by_hand.update),
            lambda state: jax.device_get(by_hand.read(state)),
        ),
    }
    peers = {"torchmetrics": torchmetrics(task)}
    if "auroc" in task.metrics:
        binned = torchmetrics(task, THRESHOLDS)
        peers = {BINNED: binned, "torchmetrics, scores stored": torchmetrics(task)}
    found |= {name: _on_the_faster_threads(each, task) for name, each in peers.items()}
    if set(task.metrics) <= set(SMALL):
        found |= {"metrax": _metrax(task), "clu": _clu(task), "flax nnx.metrics": _nnx(task)}
    return found


def _datarax(task: Task) -> Contestant:
    collection = datarax_collection(task)
    return Contestant(
        lambda: collection,
        lambda state, batch: state.update(**batch),
        lambda state: state.results(),
        on_host=True,
    )


def datarax_collection(task: Task) -> datarax.Collection:
    classes = task.classes
    found = {
        "loss": metrics.Mean().from_outputs(values="loss"),
        "accuracy": metrics.Accuracy(num_classes=classes),
        "confusion": metrics.ConfusionMatrix(num_classes=classes),
        "calibration": metrics.CalibrationError(
            num_classes=classes, num_bins=BINS, from_logits=True
        ),
        "auroc": metrics.AUROC(num_classes=classes, from_logits=True),
    }
    return datarax.Collection({name: found[name] for name in task.metrics})


def torchmetrics(task: Task, thresholds: int | None = None) -> Contestant:
    import torch
    from torchmetrics import MeanMetric
    from torchmetrics import classification as peer

    def empty() -> dict[str, Any]:
        found = {
            "loss": MeanMetric,
            "accuracy": lambda: peer.MulticlassAccuracy(task.classes, average="micro"),
            "confusion": lambda: peer.MulticlassConfusionMatrix(task.classes),
            "calibration": lambda: peer.MulticlassCalibrationError(task.classes, n_bins=BINS),
            "auroc": lambda: peer.MulticlassAUROC(task.classes, thresholds=thresholds),
        }
        return {name: found[name]() for name in task.metrics}

    def update(state: dict[str, Any], batch: Batch) -> dict[str, Any]:
        for name, metric in state.items():
            if name == "loss":
                metric.update(batch["loss"])
            else:
                metric.update(batch["preds"], batch["target"])
        return state

    def read(state: dict[str, Any]) -> Values:
        for metric in state.values():
            metric._computed = None  # else it returns the value of an earlier reading
        return {name: metric.compute().numpy() for name, metric in state.items()}

    def convert(batch: Batch) -> Batch:
        tensors = {name: torch.from_numpy(x) for name, x in batch.items()}
        if "target" in tensors:
            tensors["target"] = tensors["target"].long()
        return tensors

    return Contestant(
        empty,
        update,
        read,
        compile=lambda update: update,
        convert=convert,
    )


def _on_the_faster_threads(contestant: Contestant, task: Task) -> Contestant:
    """On one thread or on all: several are slower on small batches, or on a busy machine."""
    import torch

    batch, seconds = contestant.convert(task.batches[0]), {}
    for threads in (1, os.cpu_count() or 1):
        torch.set_num_threads(threads)
        step = repeated(contestant.empty(), contestant.update, [batch])
        seconds[threads] = median(timeit.repeat(lambda step=step: step(1), number=1, repeat=5))
    threads = min(seconds, key=lambda each: seconds[each])

    def update(state: dict[str, Any], batch: Batch) -> dict[str, Any]:
        torch.set_num_threads(threads)
        return contestant.update(state, batch)

    return replace(contestant, update=update)


def _clu(task: Task) -> Contestant:
    collection = clu_collection(task)

    def update(state: Any, batch: Batch) -> Any:
        return state.merge(collection.single_from_model_output(**with_peers_names(batch)))

    return Contestant(collection.empty, update, lambda state: jax.device_get(state.compute()))


def clu_collection(task: Task) -> Any:
    from clu import metrics as peer

    found = {"loss": peer.Average.from_output("loss"), "accuracy": peer.Accuracy}
    return peer.Collection.create(**{name: found[name] for name in task.metrics})


def _metrax(task: Task) -> Contestant:
    import metrax

    kinds = {"loss": metrax.Average, "accuracy": metrax.Accuracy}

    def update(state: Any, batch: Batch) -> Any:
        seen = metrax_of(task, batch)
        return {name: each.merge(seen[name]) for name, each in state.items()}

    return Contestant(
        lambda: {name: kinds[name].empty() for name in task.metrics},
        update,
        lambda state: jax.device_get({name: each.compute() for name, each in state.items()}),
    )


def metrax_of(task: Task, batch: Batch) -> dict[str, Any]:
    """The metrics of metrax of one batch."""
    import metrax

    found = {"loss": metrax.Average.from_model_output(batch["loss"])}
    if "accuracy" in task.metrics:
        chosen = jnp.argmax(batch["preds"], -1)
        found["accuracy"] = metrax.Accuracy.from_model_output(chosen, batch["target"])
    return found


def _nnx(task: Task) -> Contestant:
    def update(state: Any, batch: Batch) -> Any:
        state.update(**with_peers_names(batch))
        return state

    def compiled(update: Update) -> Update:
        step = nnx.jit(lambda state, batch: (update(state, batch), None)[1])
        return lambda state, batch: (step(state, batch), state)[1]

    return Contestant(
        lambda: nnx_metrics(task),
        update,
        lambda state: jax.device_get(state.compute()),
        compile=compiled,
    )


def nnx_metrics(task: Task) -> nnx.MultiMetric:
    found = {
        "loss": lambda: nnx.metrics.Average("loss"),
        "accuracy": lambda: nnx.metrics.Accuracy(threshold=None),
    }
    return nnx.MultiMetric(**{name: found[name]() for name in task.metrics})


def with_peers_names(batch: Batch) -> Batch:
    """A batch with the names that clu and flax have for logits and labels."""
    names = {"preds": "logits", "target": "labels"}
    return {names.get(name, name): x for name, x in batch.items()}


def repeated(state: Any, update: Update, batches: list[Batch]) -> Callable[[int], None]:
    """Updates one state with batch after batch, so many times, and waits."""
    held, turn = [state], [0]

    def call(times: int) -> None:
        state = held[0]
        for _ in range(times):
            state = update(state, batches[turn[0] % len(batches)])
            turn[0] += 1
        jax.block_until_ready(jax.tree.leaves(state))
        held[0] = state

    return call
