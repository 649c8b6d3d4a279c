"""How often intervals miss at any look: `python benchmarks/anytime.py`.

Streams of zeros and ones are looked at after each batch. A stream is missed if any of its intervals
leaves out the true mean. `Interval` is valid at one look; its normal interval is computed here.
"""

from statistics import NormalDist
from typing import Any

import jax
import numpy as np
from jax import lax

from datarax.metrics import AnytimeInterval

STREAMS, LOOKS, BATCH, CONFIDENCE = 1000, 1000, 100, 0.95


@jax.jit
def at_each_look(batches: jax.Array) -> dict[str, jax.Array]:
    """The results after each batch of streams (STREAMS, LOOKS, BATCH)."""

    def look(metric: AnytimeInterval, batch: jax.Array) -> tuple[AnytimeInterval, Any]:
        metric = metric.update(batch)
        return metric, metric.compute()

    metric = AnytimeInterval(0, 1, confidence=CONFIDENCE)
    return jax.vmap(lambda stream: lax.scan(look, metric, stream)[1])(batches)


def main() -> None:
    rng = np.random.default_rng(0)
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    n = BATCH * np.arange(1, LOOKS + 1)
    print(f"{STREAMS} streams, {LOOKS} looks, confidence {CONFIDENCE}; missed at any look:")
    print(f"{'mean':>6}{'AnytimeInterval':>18}{'normal':>10}{'last width':>12}{'normal':>10}")
    for p in (0.5, 0.9, 0.01):
        batches = (rng.random((STREAMS, LOOKS, BATCH), np.float32) < p).astype(np.float32)
        found = jax.tree.map(np.asarray, at_each_look(batches))
        missed = ((p < found["lower"]) | (p > found["upper"])).any(1).mean()
        half = z * np.sqrt(found["value"] * (1 - found["value"]) / n)
        normal = (np.abs(found["value"] - p) > half).any(1).mean()
        width = (found["upper"] - found["lower"])[:, -1].mean()
        print(f"{p:6}{missed:18.3f}{normal:10.3f}{width:12.5f}{2 * half[:, -1].mean():10.5f}")


if __name__ == "__main__":
    main()
