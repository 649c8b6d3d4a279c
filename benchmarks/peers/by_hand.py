"""The program that one would write by hand for a task, and the limit of any program.

It accumulates the same numbers as the metrics and nothing else: its 32-bit counts overflow, its
float totals lose small values, it has no weights, and it does not check values.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.peers.task import BINS, Batch, Task

State = dict[str, jax.Array]


def empty(task: Task) -> State:
    cells = 2 * task.classes << key_bits(task.classes)
    sizes = {
        "loss": ((2,), jnp.float32),
        "accuracy": ((2,), jnp.int32),
        "confusion": ((task.classes, task.classes), jnp.int32),
        "calibration": ((3, BINS), jnp.float32),
        "auroc": ((2, task.classes, cells // 2 // task.classes), jnp.int32),
    }
    return {name: jnp.zeros(*sizes[name]) for name in task.metrics}


def update(state: State, batch: Batch) -> State:
    loss = batch["loss"]
    new: State = {"loss": state["loss"] + jnp.stack([loss.sum(), jnp.float32(loss.size)])}
    if state.keys() == new.keys():
        return new
    preds, target = batch["preds"], batch["target"]
    chosen = jnp.argmax(preds, -1)
    if "accuracy" in state:
        hits = jnp.sum(chosen == target, dtype=jnp.int32)
        new["accuracy"] = state["accuracy"] + jnp.stack([hits, jnp.int32(target.size)])
    if "confusion" in state:
        new["confusion"] = state["confusion"].at[target, chosen].add(1)
    if "calibration" in state:
        confidence = 1 / jnp.sum(jnp.exp(preds - jnp.max(preds, -1, keepdims=True)), -1)
        place = jnp.minimum((confidence * BINS).astype(jnp.int32), BINS - 1)
        columns = jnp.stack([jnp.ones_like(confidence), confidence, chosen == target])
        new["calibration"] = state["calibration"].at[:, place].add(columns)
    if "auroc" in state:
        classes = jnp.arange(preds.shape[-1])[None, :]
        positive = (target[:, None] == classes).astype(jnp.int32)
        key = ordered_key(jax.nn.softmax(preds), key_bits(preds.shape[-1]))
        new["auroc"] = state["auroc"].at[positive, classes, key].add(1)
    return new


@jax.jit
def read(state: State) -> dict[str, jax.Array]:
    values = {name: state[name] for name in state if name == "confusion"}
    for name in state.keys() & {"loss", "accuracy"}:
        values[name] = state[name][0] / state[name][1]
    if "calibration" in state:
        count, confidence, correct = state["calibration"]
        values["calibration"] = jnp.sum(jnp.abs(correct - confidence)) / jnp.sum(count)
    if "auroc" in state:
        values["auroc"] = jnp.mean(area(state["auroc"]))
    return values


def key_bits(classes: int) -> int:
    """The leading bits of a float32 that choose a bin, so that a million bins serve all classes."""
    return 16 - 2 * round(math.log10(classes))


def ordered_key(x: jax.Array, bits: int) -> jax.Array:
    """The leading bits of floats, as integers in the order of the floats."""
    raw = jax.lax.bitcast_convert_type(x, jnp.int32)
    ordered = jnp.where(raw < 0, ~raw, raw | jnp.int32(-(2**31)))
    return jax.lax.shift_right_logical(ordered, jnp.int32(32 - bits))


def area(histogram: jax.Array) -> jax.Array:
    """The AUROC from counts (2, ..., bins) of negatives and positives; ties count half."""
    negatives, positives = histogram.astype(jnp.float32)
    below = jnp.cumsum(negatives, -1) - negatives / 2
    pairs = jnp.sum(positives, -1) * jnp.sum(negatives, -1)
    return jnp.sum(positives * below, -1) / pairs


@jax.jit
def limit(batch: Batch) -> Any:
    """Reads every input once."""
    return jax.tree.map(jnp.sum, batch)
