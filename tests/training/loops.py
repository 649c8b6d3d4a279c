"""What the tests of training loops share: a metric that misses nothing, layouts, slow work."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import datarax
from datarax.training import StatefulMetric
from tests.helpers import make_mesh

LAYOUTS = ("plain", "collection", "per_device", "stateful")


class Seen(datarax.Metric):
    """How often each example was seen."""

    def __init__(self, examples: int):
        self.examples = examples
        self.times = datarax.MetricAccumulator(np.zeros(examples, np.int32))

    def update(self, ids, *, weights=None):
        hits = ids[:, None] == jnp.arange(self.examples, dtype=ids.dtype)[None, :]
        if weights is not None:
            hits = hits & weights.astype(bool)[:, None]
        return self.replace(times=self.times.update(hits))

    def compute(self):
        return self.times.value


@jax.jit
def busy(seconds_or_so) -> jax.Array:
    """A computation that takes about so long, on any device and without the host."""
    x = jnp.full((16, 16), 0.01)
    rounds = (seconds_or_so * 300_000).astype(jnp.int32)
    return jax.lax.fori_loop(0, rounds, lambda i, a: jnp.tanh(a @ a + 0.1), x)[0, :8] * 0.0


def in_flight(values: Any) -> bool:
    return not values.is_ready()


def made(layout, metric):
    """A metric in one of the layouts."""
    if layout == "collection":
        return datarax.Collection({"it": metric})
    if layout == "per_device":
        return datarax.per_device(metric, make_mesh("auto", {"data": 8}), "data")
    return StatefulMetric(metric) if layout == "stateful" else metric


def value_of(results):
    return results["it"] if isinstance(results, dict) else results


def scheduled(collector, metric, step):
    """Schedules a window in either style; the metric to go on with."""
    if isinstance(metric, StatefulMetric):
        assert collector.schedule_collection(step=step) is None
        return metric
    return collector.schedule_collection(metric, step=step)
