"""EasyDeL: the fields of a loss's metrics, averaged over micro-batches of unequal weight."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import datarax
from datarax.metrics import Max, Mean, Sum

STEPS, MICRO, ROWS, LENGTH, VOCAB = 3, 4, 4, 16, 32
rng = np.random.default_rng(0)
logits = rng.normal(size=(STEPS, MICRO, ROWS, LENGTH, VOCAB)).astype(np.float32)
labels = rng.integers(0, VOCAB, (STEPS, MICRO, ROWS, LENGTH))
lengths = rng.integers(MICRO, LENGTH + 1, (STEPS, MICRO, ROWS, 1))
lengths //= 1 + np.arange(MICRO)[:, None, None]  # later micro-batches have fewer tokens
labels = np.where(np.arange(LENGTH) < lengths, labels, -100)


class LossMetrics(NamedTuple):
    """What the loss of a micro-batch returns."""

    loss: jax.Array
    z_loss: jax.Array
    weight_sum: jax.Array
    accuracy: jax.Array
    max_logit: jax.Array


def loss_of(logits, labels):
    """The means over the tokens of a micro-batch, and their number."""
    valid = labels >= 0
    weight = jnp.maximum(valid.sum(), 1)
    log_z = jax.nn.logsumexp(logits, -1)
    chosen = jnp.take_along_axis(logits, jnp.maximum(labels, 0)[..., None], -1)[..., 0]
    right = logits.argmax(-1) == labels
    of_tokens = log_z - chosen, 1e-4 * log_z**2, right
    loss, z_loss, accuracy = (jnp.sum(x, where=valid) / weight for x in of_tokens)
    return LossMetrics(loss, z_loss, valid.sum(), accuracy, logits.max())


def scanned(logits, labels):
    """The metrics of all micro-batches of a step, with an axis of micro-batches."""
    return jax.lax.scan(lambda _, batch: (None, loss_of(*batch)), None, (logits, labels))[1]


@jax.jit
def before(logits, labels):
    """A step: the mean of each field over the micro-batches."""
    return jax.tree.map(lambda x: jnp.mean(x, 0), scanned(logits, labels))


@jax.jit(donate_argnames="metrics")
def after(metrics, logits, labels):
    """A step: each mean counts with its weight, the weights are added, and a maximum stays one."""
    return metrics.update(**scanned(logits, labels)._asdict())


weighted = Mean().from_outputs(weights="weight_sum")
rules = {"weight_sum": Sum(), "max_*": Max(), "*": weighted}
logged = [before(*batch) for batch in zip(logits, labels, strict=True)]
metrics = datarax.Collection.from_rules(rules, logged[0]._asdict())
for batch in zip(logits, labels, strict=True):
    metrics = after(metrics, *batch)
for name in LossMetrics._fields:
    print(f"before {name} {np.mean([float(getattr(step, name)) for step in logged]):.6f}")
for name, value in metrics.results().items():
    print(f"after {name} {value:.6f}")
