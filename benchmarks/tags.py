"""What an evaluation of six tags that overlap costs within `jit`, beside sums kept by hand.

The evaluation has the loss by tokens and the bits per byte, for each tag (macro is their mean) and
overall (micro), of a batch that is sharded over 8 simulated devices. By hand, each of the four
sums is a `MetricAccumulator` of the tags and overall; what cannot be used is not looked for.

The operations are those of the traced program, then those of the compiled one. The seconds are
those to trace, lower and compile, the least of three. docs/maintainers/operations.md has the
numbers;
`python benchmarks/tags.py --lines` also lists the lines of the source that the operations are of.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.append(str(Path(__file__).parent.parent))

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import source_info_util

from datarax import Collection, MetricAccumulator, Sliced
from datarax.metrics import Mean, Ratio
from tests.operations import _equations, optimized

TAGS, ROWS, TIMES = 6, 64, 3

Arrays = dict[str, jax.Array]
Sums = dict[str, MetricAccumulator]


def tagged() -> Sliced:
    """The evaluation in one declaration."""
    members = {
        "loss": Mean().from_outputs(values="loss", weights="tokens"),
        "bits per byte": Ratio().from_outputs(numerator="bits", denominator="bytes"),
    }
    return Sliced(Collection(members), TAGS, by="tags")


def update(metric: Sliced, batch: Arrays) -> Sliced:
    return metric.update(**batch)


def by_hand(sums: Sums, batch: Arrays) -> Sums:
    """The sums of each tag and overall."""
    tags = jnp.concatenate([batch["tags"], jnp.ones((ROWS, 1), bool)], 1)
    terms = {
        "loss": batch["loss"] * batch["tokens"],
        "tokens": batch["tokens"],
        "bits": batch["bits"],
        "bytes": batch["bytes"],
    }
    return {name: sums[name].update(x[:, None] * tags) for name, x in terms.items()}


def batch_of(rng: np.random.Generator) -> dict[str, np.ndarray]:
    loss, tokens = rng.random(ROWS, np.float32), rng.integers(1, 99, ROWS).astype(np.int32)
    return {
        "loss": loss,
        "tokens": tokens,
        "bits": loss * tokens,
        "bytes": tokens * 4,
        "tags": rng.random((ROWS, TAGS)) < 0.3,
    }


def measure(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[int, int, float]:
    """The operations as traced and as compiled, and the seconds to compile."""
    seconds = []
    for _ in range(TIMES):
        jax.clear_caches()
        start = time.perf_counter()
        jax.jit(lambda *args: function(*args)).lower(*args).compile()
        seconds.append(time.perf_counter() - start)
    equations = list(_equations(jax.make_jaxpr(function)(*args).jaxpr))
    return len(equations), len(optimized(jax.jit(function), args)), min(seconds)


def lines(function: Callable[..., Any], args: tuple[Any, ...]) -> Counter[str]:
    """How many operations of the traced program each line of the source has."""
    equations = _equations(jax.make_jaxpr(function)(*args).jaxpr)
    return Counter(source_info_util.summarize(each.source_info) for each in equations)


def main() -> None:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.NamedSharding(mesh, jax.P("data"))
    batch = jax.device_put(batch_of(np.random.default_rng(0)), rows)
    zeros = np.zeros(TAGS + 1, np.float32), np.zeros(TAGS + 1, np.int32)
    sums = {
        name: MetricAccumulator(zeros[name in ("tokens", "bytes")])
        for name in ("loss", "tokens", "bits", "bytes")
    }
    contestants: dict[str, tuple[Callable[..., Any], Any]] = {
        "by hand": (by_hand, sums),
        "`Sliced`": (update, tagged()),
    }
    print("| six tags | operations | compiled | seconds to compile |")
    print("| --- | --- | --- | --- |")
    for name, (function, state) in contestants.items():
        state = jax.device_put(state, jax.NamedSharding(mesh, jax.P()))
        traced, compiled, seconds = measure(function, (state, batch))
        print(f"| {name} | {traced} | {compiled} | {seconds:.2f} |")
        if "--lines" in sys.argv:
            for line, number in lines(function, (state, batch)).most_common():
                print(f"{number:6} {line}")


if __name__ == "__main__":
    main()
