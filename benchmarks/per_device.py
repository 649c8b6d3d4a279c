"""The cost of metrics in a training step on 8 simulated devices.

Compared are no metrics, metrics on global arrays, which need a collective, and `per_device`. The
benchmark waits for each step, because simulated devices may deadlock if several steps with a
collective are in flight. The variants take turns; the median of the steps is reported.
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
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import datarax
from datarax.metrics import Accuracy, Max, Mean, Std, Sum

ROWS, FEATURES, CLASSES, STEPS = 1024, 256, 10, 60
KINDS = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"


def collection(size: int) -> datarax.Collection:
    """A collection of `size` metrics, each with a statistic of its own."""
    loss = {"loss": Mean(), "worst": Max(), "std": Std(), "total": Sum(on_invalid="propagate")}
    metrics = {name: metric.from_outputs(values="loss") for name, metric in loss.items()}
    metrics |= {
        f"top {k} but {label}": Accuracy(num_classes=CLASSES, top_k=k, ignore_index=label)
        for k in (1, 2)
        for label in range(8)
    }
    return datarax.Collection(dict(list(metrics.items())[:size]))


def forward(params: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
    logits = jnp.tanh(x @ params)
    loss = -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], -1)[:, 0]
    return loss.mean(), {"loss": loss, "preds": logits, "target": y}


def train(params: jax.Array, metrics: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
    grads, outputs = jax.grad(forward, has_aux=True)(params, x, y)
    return params - 0.1 * grads, metrics if metrics is None else metrics.update(**outputs)


def evaluate(params: jax.Array, metrics: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
    _, outputs = forward(params, x, y)
    return params, metrics if metrics is None else metrics.update(**outputs)


def collectives(compiled: Any) -> int:
    return len(re.findall(rf" (?:{KINDS})(?:-start)?\(", compiled.as_text() or ""))


def milliseconds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The median time of each call and its results, over rounds in which all take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(STEPS):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            seconds[name].append(time.perf_counter() - start)
    return {name: 1e3 * float(np.median(each)) for name, each in seconds.items()}


def main() -> None:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rng = np.random.default_rng(0)
    rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    x = jax.device_put(rng.normal(size=(ROWS, FEATURES)).astype(np.float32), rows)
    y = jax.device_put(rng.integers(0, CLASSES, ROWS).astype(np.int32), rows)
    params = jax.device_put(np.zeros((FEATURES, CLASSES), np.float32), whole)

    kinds: dict[str, Any] = {"no metrics": None}
    for size in (1, 20):
        plain = collection(size)
        kinds[f"Collection of {size}, global"] = jax.device_put(plain, whole)
        kinds[f"per_device, Collection of {size}"] = datarax.per_device(plain, mesh, "data")

    print(f"jax {jax.__version__}, {jax.device_count()} simulated devices, {os.cpu_count()} cores")
    print(f"{ROWS} rows, {FEATURES} features, {CLASSES} classes; median of {STEPS} steps\n")
    print(f"{'step':34}{'collectives':>12}{'milliseconds':>14}{'over none':>11}")
    for label, step in {"train": train, "evaluate": evaluate}.items():
        calls, counts = {}, {}
        for name, metrics in kinds.items():
            args = params, metrics, x, y
            compiled = jax.jit(step).lower(*args).compile()
            calls[name] = lambda compiled=compiled, args=args: compiled(*args)
            counts[name] = collectives(compiled)
        times = milliseconds(calls)
        for name, spent in times.items():
            over = spent - times["no metrics"]
            print(f"{f'{label}, {name}':34}{counts[name]:>12}{spent:>14.2f}{over:>+11.2f}")

    print(f"\n{'sync':34}{'collectives':>12}{'milliseconds':>14}")
    syncs, counts = {}, {}
    for size in (1, 20):
        metrics = kinds[f"per_device, Collection of {size}"]
        compiled = jax.jit(lambda metrics: metrics.sync()).lower(metrics).compile()
        name = f"Collection of {size}"
        syncs[name] = lambda compiled=compiled, metrics=metrics: compiled(metrics)
        counts[name] = collectives(compiled)
    for name, spent in milliseconds(syncs).items():
        print(f"{name:34}{counts[name]:>12}{spent:>14.2f}")


if __name__ == "__main__":
    main()
