"""Tunix: `WeightedMetric(unreduced_sum, denominator)` of each micro-batch and each step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import datarax
from datarax.metrics import ApproxKL, ClipFraction, GroupSpread, Ratio

STEPS, MICRO, PROMPTS, ANSWERS, LENGTH = 3, 2, 2, 4, 12
ROWS = PROMPTS * ANSWERS
rng = np.random.default_rng(0)
shape = STEPS, MICRO, ROWS, LENGTH
old = -rng.gamma(2, 1, shape).astype(np.float32)
batches = {
    "old": old,
    "new": old + rng.normal(0, 0.2, shape).astype(np.float32),
    "reference": old + rng.normal(0, 0.1, shape).astype(np.float32),
    "rewards": rng.integers(0, 2, shape[:-1]).astype(np.float32),
    "mask": np.arange(LENGTH) < rng.integers(1, LENGTH + 1, (*shape[:-1], 1)),
    "prompt": np.tile(np.repeat(np.arange(PROMPTS), ANSWERS), (STEPS, MICRO, 1)),
}


class WeightedMetric(NamedTuple):
    """A sum over tokens that is not yet divided, and the number of tokens."""

    unreduced_sum: jax.Array
    denominator: jax.Array


def outputs_of(batch):
    """The ratios and the losses of the tokens of a micro-batch, as of GRPO."""
    rewards = batch["rewards"].reshape(PROMPTS, ANSWERS)
    spread = rewards.std(1, ddof=1, keepdims=True) + 1e-4
    advantage = ((rewards - rewards.mean(1, keepdims=True)) / spread).reshape(ROWS, 1)
    ratio = jnp.exp(batch["new"] - batch["old"])
    loss = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
    return ratio, loss


@jax.jit
def before(batch):
    """A step: a `WeightedMetric` for the loss, and means of micro-batches for the rest."""

    def micro_batch(_, one):
        ratio, loss = outputs_of(one)
        mask, d = one["mask"], one["reference"] - one["new"]
        clipped = (ratio < 0.8) | (ratio > 1.2)
        aux = {
            "kl": jnp.sum(jnp.exp(d) - 1 - d, where=mask) / mask.sum(),
            "clipped": jnp.sum(clipped, where=mask) / mask.sum(),
        }
        return None, (WeightedMetric(jnp.sum(loss, where=mask), mask.sum()), aux)

    total, aux = jax.lax.scan(micro_batch, None, batch)[1]
    loss = total.unreduced_sum.sum() / total.denominator.sum()
    return {"loss": loss} | jax.tree.map(jnp.mean, aux)


@jax.jit(donate_argnames="metrics")
def after(metrics, batch):
    """A step: the metrics are the carry of the scan, and take tokens with their mask."""

    def micro_batch(metrics, one):
        ratio, loss = outputs_of(one)
        mask = one["mask"]
        total = WeightedMetric(jnp.sum(loss, where=mask), mask.sum())
        log_probs = {"log_probs": one["new"], "reference_log_probs": one["reference"]}
        return metrics.update(
            tokens=log_probs | {"ratio": ratio, "weights": mask},
            loss={"numerator": total.unreduced_sum, "denominator": total.denominator},
            rewards={"values": one["rewards"], "group": one["prompt"]},
        ), None

    return jax.lax.scan(micro_batch, metrics, batch)[0]


metrics = datarax.MultiTask(
    {
        "tokens": datarax.Collection({"kl": ApproxKL(), "clipped": ClipFraction()}),
        "loss": Ratio(),
        "rewards": GroupSpread(),
    }
)
logged = []
for number in range(STEPS):
    batch = jax.tree.map(lambda x, i=number: x[i], batches)
    logged.append(before(batch))
    metrics = after(metrics, batch)
for name in logged[0]:
    print(f"before {name} {np.mean([float(step[name]) for step in logged]):.6f}")
for name, value in metrics.results().items():
    print(f"after {name} {value:.6f}")
