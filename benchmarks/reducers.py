"""The cost of the reducers on 8 simulated devices, compared with `lax.psum` for each metric.

The benchmark waits for each step, because simulated devices may deadlock if several steps with a
collective are in flight.
"""

import os
import re
import time
from collections.abc import Callable
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from datarax.distributed import reduce_mean, reduce_mean_collective

Metrics = dict[str, jax.Array]
ROWS, STEPS = 1024, 200


def naive_collective(mine: Metrics, rows: jax.Array) -> Metrics:
    return {name: lax.psum(x * rows, "data") / lax.psum(rows, "data") for name, x in mine.items()}


def packed_collective(mine: Metrics, rows: jax.Array) -> Metrics:
    return reduce_mean_collective(mine, "data", weights=rows)


def naive_global(metrics: Metrics, weights: jax.Array) -> Metrics:
    return {name: jnp.sum(x * weights) / jnp.sum(weights) for name, x in metrics.items()}


def masked_global(metrics: Metrics, weights: jax.Array) -> Metrics:
    return reduce_mean(metrics, weights=weights)


def measured(step: Callable[..., Any], *args: Any) -> tuple[int, float]:
    """The number of all-reduces in the compiled program, and the median microseconds per step."""
    compiled = jax.jit(step).lower(*args).compile()
    all_reduces = len(re.findall(r" all-reduce(?:-start)?\(", compiled.as_text() or ""))
    jax.block_until_ready(compiled(*args))
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        seconds.append(time.perf_counter() - start)
    return all_reduces, 1e6 * float(np.median(seconds))


def main() -> None:
    mesh = jax.make_mesh((8,), ("data",))
    rng = np.random.default_rng(0)
    rows = NamedSharding(mesh, P("data"))
    weights = jax.device_put(np.ones(ROWS, np.float32), rows)
    sizes = jax.device_put(np.ones(8, np.float32), rows)
    print(f"jax {jax.__version__}, {jax.device_count()} simulated devices, {os.cpu_count()} cores")
    print(f"weighted means of n metrics, {ROWS} rows each; median of {STEPS} steps\n")
    print(f"{'':34}{'n':>4}{'all-reduces':>13}{'microseconds':>14}")
    for n in (1, 20, 100):
        metrics = {f"m{i}": rng.normal(size=ROWS).astype(np.float32) for i in range(n)}
        local = {name: x[:8] for name, x in metrics.items()}
        metrics, local = jax.device_put((metrics, local), rows)
        cases = [
            ("jit, two sums per metric", naive_global, metrics, weights),
            ("jit, reduce_mean", masked_global, metrics, weights),
            ("shard_map, two psums per metric", over(mesh, naive_collective), local, sizes),
            ("shard_map, reduce_mean_collective", over(mesh, packed_collective), local, sizes),
        ]
        for label, step, *args in cases:
            all_reduces, microseconds = measured(step, *args)
            print(f"{label:34}{n:>4}{all_reduces:>13}{microseconds:>14.0f}")


def over(mesh: jax.sharding.Mesh, step: Callable[..., Any]) -> Callable[..., Any]:
    return jax.shard_map(step, mesh=mesh, in_specs=P("data"), out_specs=P())


if __name__ == "__main__":
    main()
