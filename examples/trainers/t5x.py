"""T5X: a dict of `clu.metrics`, merged over micro-batches and steps, with times set at reading."""

from dataclasses import replace
from typing import Any

import clu.metrics
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

import datarax
from datarax.metrics import LastValue, Max, Ratio, Sum

STEPS, WINDOW, MICRO, ROWS, LENGTH, VOCAB = 6, 3, 4, 8, 16, 32
SECONDS = 0.25  # of a window, by the clock of the host
rng = np.random.default_rng(0)
weights = rng.normal(size=(STEPS, VOCAB, VOCAB)).astype(np.float32)  # after each step
rates = (0.01 / np.arange(1, STEPS + 1)).astype(np.float32)
tokens = rng.integers(1, VOCAB, (STEPS, MICRO, ROWS, LENGTH), np.int32)
lengths = rng.integers(1, LENGTH, (STEPS, MICRO, ROWS, 1))
tokens = np.where(np.arange(LENGTH) <= lengths, tokens, 0)  # 0 is padding


@struct.dataclass
class PerStep(clu.metrics.Metric):
    """A total for each step; merging counts micro-batches, so the steps are set at reading."""

    total: jax.Array
    steps: int | jax.Array = 1

    def merge(self, other):
        return PerStep(self.total + other.total, self.steps + other.steps)

    def compute(self):
        return self.total / self.steps


@struct.dataclass
class PerSecond(clu.metrics.Metric):
    """A total for each second; the seconds are set at reading, as no clock runs within `jit`."""

    total: jax.Array
    seconds: Any = None

    def merge(self, other):
        return PerSecond(self.total + other.total)

    def compute(self):
        return self.total / self.seconds


def predict(weights, ids):
    """The loss of each token, whether it is predicted, and which tokens count."""
    logits, targets = weights[ids[:, :-1]], ids[:, 1:]
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)[..., 0]
    return losses, logits, targets, targets != 0


def merge(a, b):
    """Two dicts of metrics, by name."""
    return {name: metric.merge(b[name]) for name, metric in a.items()}


def micro_batch(weights, ids):
    """The metrics of a micro-batch."""
    losses, logits, targets, real = predict(weights, ids)
    loss = jnp.sum(losses, where=real)
    return {
        "accuracy": clu.metrics.Accuracy.from_model_output(
            logits=logits, labels=targets, mask=real
        ),
        "loss": PerStep(loss),
        "loss_per_token": clu.metrics.Average.from_model_output(losses, mask=real),
        "timing/tokens_per_second": PerSecond(real.sum()),
    }


@jax.jit
def before(window, weights, rate, batch):
    """A step, whose metrics are merged over its micro-batches, then into those of the window."""
    shapes = jax.eval_shape(micro_batch, weights, batch[0])
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    step = jax.lax.scan(lambda x, ids: (merge(x, micro_batch(weights, ids)), None), zeros, batch)[0]
    step["learning_rate/current"] = clu.metrics.LastValue.from_model_output(rate)
    step["weight_max"] = PerStep(jnp.abs(weights).max())
    return merge(window, step) if window else step


@jax.jit(donate_argnames="metrics")
def after(metrics, weights, rate, batch):
    """A step, whose numbers go into the metrics with their axis of micro-batches."""

    def micro_batch(_, ids):
        losses, logits, targets, real = predict(weights, ids)
        right = (logits.argmax(-1) == targets) & real
        return None, (jnp.sum(losses, where=real), right.sum(), real.sum())

    loss, right, count = jax.lax.scan(micro_batch, None, batch)[1]
    scalars = {
        "accuracy": right,
        "loss": loss,
        "loss_per_token": loss,
        "timing/tokens_per_second": count,
        "learning_rate/current": rate,
        "weight_max": jnp.abs(weights).max(),
    }
    return metrics.update(**scalars)


def summarise(window, seconds, steps):
    """The numbers of a window, of which some get its seconds and its steps."""
    for name, metric in window.items():
        if isinstance(metric, PerStep):
            metric = replace(metric, steps=steps)
        if isinstance(metric, PerSecond):
            metric = replace(metric, seconds=seconds)
        yield name, metric.compute()


RULES = {
    "timing/*_per_second": Sum(per="elapsed"),
    "loss": Sum(per="steps"),
    "learning_rate/current": LastValue(),
    "weight_max": Max(),
    "*": Ratio().from_outputs(denominator="timing/tokens_per_second"),  # of the tokens
}

window, metrics = None, None
for number, (weight, rate, batch) in enumerate(zip(weights, rates, tokens, strict=True), 1):
    window = before(window if number % WINDOW != 1 else None, weight, rate, batch)
    if metrics is None:
        metrics = datarax.Collection.from_rules(RULES, window)
    metrics = after(metrics, weight, rate, batch)
    if number % WINDOW == 0:
        for name, value in summarise(window, SECONDS, WINDOW):
            print(f"before {number} {name} {value:.6f}")
        for name, value in metrics.results(elapsed=SECONDS, steps=WINDOW).items():
            print(f"after {number} {name} {value:.6f}")
        metrics = metrics.reset()
