"""A metric that finds every example that was lost or counted twice."""

import jax.numpy as jnp
import numpy as np

import datarax


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
