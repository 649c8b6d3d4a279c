"""AXLearn: summaries with weights, `WeightedSummary` and minima, in the carry of a scan."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

import datarax
from datarax.metrics import Mean, Min

BATCHES, ROWS = 20_000, 1_000  # an evaluation of 20 million examples
seen = jax.random.uniform(jax.random.key(0), (BATCHES,), minval=0.09, maxval=0.11)
rows = jnp.where(jnp.arange(BATCHES) % 2, ROWS, ROWS - 1)  # every other batch is padded


class WeightedSummary(NamedTuple):
    """A mean and its weight, which are added up by the pair."""

    value: jax.Array
    weight: jax.Array

    def accumulate(self, other):
        weight = self.weight + other.weight
        value = (self.value * self.weight + other.value * other.weight) / jnp.maximum(weight, 1)
        return WeightedSummary(value, weight)


@jax.jit
def before(loss, rows):
    """An evaluation whose carry is a summary for each number."""

    def step(carry, batch):
        mean, least = carry
        value, weight = batch
        summary = WeightedSummary(value, weight.astype(jnp.float32))
        return (mean.accumulate(summary), jnp.minimum(least, value)), None

    empty = WeightedSummary(jnp.float32(0), jnp.float32(0)), jnp.float32(jnp.inf)
    return jax.lax.scan(step, empty, (loss, rows))[0]


@jax.jit
def after(metrics, loss, rows):
    """The same, whose carry is a collection: a mean of weight `rows`, and the least mean."""

    def step(metrics, batch):
        value, weight = batch
        return metrics.update(loss=value, rows=weight), None

    return jax.lax.scan(step, metrics, (loss, rows))[0]


mean, least = before(seen, rows)
print(f"before loss {float(mean.value):.9f}")
print(f"before least {float(least):.9f}")
metrics = datarax.Collection(
    {
        "loss": Mean().from_outputs(values="loss", weights="rows"),
        "least": Min().from_outputs(values="loss"),
    }
)
metrics = after(metrics, seen, rows)
for name, value in metrics.results().items():
    print(f"after {name} {value:.9f}")
