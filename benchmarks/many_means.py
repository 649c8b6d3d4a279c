"""What twenty means in a collection cost within `jit`, beside a dict of sums and counts by hand.

The operations are those of the traced program, the arrays those of the state. The time to dispatch
is that of a call until it returns, the least of many, in turns; the number of a step is scalar.

`python benchmarks/many_means.py` prints the table of docs/maintainers/operations.md.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")
sys.path.append(str(Path(__file__).parent.parent))

import jax
import jax.numpy as jnp

from datarax import Collection
from datarax.metrics import Mean
from tests.operations import traced

NUMBER = 20
CALLS = 1000

Arrays = dict[str, jax.Array]
Step = Callable[[Any, Arrays], Any]


def by_hand(totals: dict[str, tuple[jax.Array, jax.Array]], batch: Arrays) -> Any:
    """A sum and a count for each name."""
    return {
        name: (total + jnp.sum(batch[name]), count + batch[name].size)
        for name, (total, count) in totals.items()
    }


def update(metrics: Collection, batch: Arrays) -> Collection:
    return metrics.update(**batch)


def means(number: int) -> Collection:
    return Collection({f"m{i}": Mean().from_outputs(values=f"m{i}") for i in range(number)})


def zeros(number: int) -> Any:
    return {f"m{i}": (jnp.float32(0), jnp.int32(0)) for i in range(number)}


def dispatch(contestants: list[tuple[Any, Any]], batch: Arrays) -> list[float]:
    """Microseconds of a call of each compiled step, the least of many."""
    states = [state for _, state in contestants]
    least = [float("inf")] * len(contestants)
    for _ in range(CALLS):
        for i, (step, _) in enumerate(contestants):
            start = time.perf_counter()
            states[i] = step(states[i], batch)
            least[i] = min(least[i], time.perf_counter() - start)
            jax.block_until_ready(states[i])
    return [1e6 * x for x in least]


def main() -> None:
    batches = {
        "a number each": {f"m{i}": jnp.float32(i) for i in range(NUMBER)},
        "1,000 values each": {f"m{i}": jnp.full(1000, float(i)) for i in range(NUMBER)},
        "20 shapes": {f"m{i}": jnp.full(1000 + i, float(i)) for i in range(NUMBER)},
        "half of 10 shapes": {
            f"m{i}": jnp.full(1000 + i, float(i)) if i % 2 else jnp.float32(i)
            for i in range(NUMBER)
        },
    }
    print("| inputs | | operations | arrays | seconds to compile | microseconds to dispatch |")
    print("| --- | --- | --- | --- | --- | --- |")
    for inputs, batch in batches.items():
        contestants = []
        for function, state in ((by_hand, zeros(NUMBER)), (update, means(NUMBER))):
            state = jax.device_put(state)
            count = len(traced(function, (state, batch)))
            step = jax.jit(function)
            start = time.perf_counter()
            compiled = step.lower(state, batch).compile()
            seconds = time.perf_counter() - start
            del compiled
            step(state, batch)
            contestants.append((step, state, count, seconds))
        times = dispatch([each[:2] for each in contestants], batch)
        for name, (_, state, count, seconds), micro in zip(
            ("by hand", "`Collection`"), contestants, times, strict=True
        ):
            arrays = len(jax.tree.leaves(state))
            print(f"| {inputs} | {name} | {count} | {arrays} | {seconds:.2f} | {micro:.0f} |")


if __name__ == "__main__":
    main()
