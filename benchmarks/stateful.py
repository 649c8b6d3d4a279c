"""The cost of dispatching a step with metrics: `StatefulMetric`, `jax.jit` and `nnx.MultiMetric`.

Times are processor time of the thread that dispatches, which does not grow on a busy machine. Each
is the minimum over many rounds, in which the variants take turns. A batch has only 8 examples, so
that almost all the time is dispatch.

The limits are what JAX and Flax need themselves: `jax.jit` for as many plain arrays as the metrics
hold, and `nnx.jit` for one Variable that holds one array.
"""

import inspect
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import flax
import jax
import numpy as np
from flax import nnx

import datarax
from datarax.metrics import Accuracy, Max, Mean, Min, Std, Sum
from datarax.training import StatefulMetric

ROUNDS, CALLS = 40, 50
# Newer versions of Flax have a mode for states in which no Variable is shared.
HAS_TREE_MODE = "graph" in inspect.signature(nnx.jit).parameters

Call = Callable[[], Any]
Batch = dict[str, jax.Array]


def ten() -> dict[str, datarax.Metric]:
    """Ten metrics of the outputs of one step; two of them share a statistic."""
    return {
        "loss": Mean().from_outputs(values="loss"),
        "worst": Max().from_outputs(values="loss"),
        "std": Std().from_outputs(values="loss"),
        "norm": Mean().from_outputs(values="norm"),
        "least": Min().from_outputs(values="norm"),
        "tokens": Sum().from_outputs(values="tokens"),
        "accuracy": Accuracy(num_classes=5),
        "balanced": Accuracy(num_classes=5, average="macro"),
        "top 2": Accuracy(num_classes=5, top_k=2),
        "top 3": Accuracy(num_classes=5, top_k=3),
    }


def one() -> dict[str, datarax.Metric]:
    return {"loss": ten()["loss"]}


def twenty() -> dict[str, datarax.Metric]:
    """The ten metrics, and ten more metrics, each with a statistic of its own."""
    more = ((k, label) for k in (1, 2) for label in range(5))
    return ten() | {
        f"top {k} but {label}": Accuracy(num_classes=5, top_k=k, ignore_index=label)
        for k, label in more
    }


def outputs() -> Batch:
    rng = np.random.default_rng(0)
    return jax.device_put(
        {
            "loss": rng.random(8, np.float32),
            "norm": rng.random(8, np.float32),
            "tokens": rng.integers(0, 100, 8).astype(np.int32),
            "preds": rng.random((8, 5), np.float32),
            "target": rng.integers(0, 5, 8).astype(np.int32),
        }
    )


def update(metrics: Any, batch: Batch) -> None:
    metrics.update(**batch)


step = nnx.jit(update)
jax_step = jax.jit(lambda metrics, batch: metrics.update(**batch))


def as_value(metrics: dict[str, datarax.Metric], batch: Batch) -> Call:
    held: list[Any] = [datarax.Collection(metrics)]

    def call() -> None:
        held[0] = jax_step(held[0], batch)

    return call


def in_place(metrics: Any, batch: Batch, run: Callable[..., Any] = step) -> Call:
    return lambda: run(metrics, batch)


class OneArray(nnx.Metric):
    """What `nnx.jit` needs for an object with one Variable."""

    def __init__(self) -> None:
        self.state = nnx.Variable(jax.numpy.float32(0))

    def update(self, **batch: jax.Array) -> None:
        self.state.set_value(self.state.get_value() + 1)


def as_arrays(metrics: dict[str, datarax.Metric], batch: Batch) -> Call:
    """A step that adds one to as many arrays as the metrics hold."""
    held = [jax.device_put(jax.tree.leaves(datarax.Collection(metrics)))]
    plus_one = jax.jit(lambda arrays, batch: [x + jax.numpy.ones((), x.dtype) for x in arrays])

    def call() -> None:
        held[0] = plus_one(held[0], batch)

    return call


def microseconds(calls: dict[str, Call]) -> dict[str, float]:
    """The minimum time of each call, over rounds in which all take turns."""
    for call in calls.values():
        for _ in range(3):
            call()
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.thread_time()
            for _ in range(CALLS):
                call()
            rounds[name].append((time.thread_time() - start) / CALLS)
    return {name: 1e6 * min(seconds) for name, seconds in rounds.items()}


def shell(metrics: dict[str, datarax.Metric]) -> StatefulMetric:
    return StatefulMetric(datarax.Collection(metrics))


def cases(batch: Batch) -> dict[str, Call]:
    many = {name: StatefulMetric(metric) for name, metric in ten().items()}
    welford = {f"m{i}": nnx.metrics.Welford("loss" if i % 2 else "norm") for i in range(10)}
    cached = shell(ten())
    found = {
        "nnx.jit of the outputs, no metrics": in_place(None, batch, nnx.jit(lambda m, b: None)),
        "nnx.jit, one Variable of one array": in_place(OneArray(), batch),
        "jax.jit, plain arrays of 10 metrics": as_arrays(ten(), batch),
        "jax.jit, plain arrays of 20 metrics": as_arrays(twenty(), batch),
        "jax.jit, Collection of 10": as_value(ten(), batch),
        "nnx.jit, StatefulMetric(Collection of 10)": in_place(shell(ten()), batch),
        "  with nnx.cached_partial": partial(nnx.cached_partial(step, cached), batch),
    }
    if HAS_TREE_MODE:
        tree = nnx.jit(update, graph=False)
        found["  with nnx.jit(graph=False)"] = in_place(shell(ten()), batch, tree)
    return found | {
        "nnx.jit, MultiMetric of 10 StatefulMetric": in_place(nnx.MultiMetric(**many), batch),
        "nnx.jit, MultiMetric of 10 flax Welford": in_place(nnx.MultiMetric(**welford), batch),
        "jax.jit, Collection of 1": as_value(one(), batch),
        "nnx.jit, StatefulMetric(Collection of 1)": in_place(shell(one()), batch),
        "jax.jit, Collection of 20": as_value(twenty(), batch),
        "nnx.jit, StatefulMetric(Collection of 20)": in_place(shell(twenty()), batch),
    }


def main() -> None:
    times = microseconds(cases(outputs()))
    base = times["jax.jit, Collection of 10"]
    print(f"jax {jax.__version__}, flax {flax.__version__}, {os.cpu_count()} cores")
    print("dispatching one update; the goal is 1.5 times jax.jit over the same state\n")
    print(f"{'':44}{'microseconds':>12}{'of jax.jit':>12}")
    for name, spent in times.items():
        print(f"{name:44}{spent:12.0f}{spent / base:12.2f}")
    own = times["nnx.jit, one Variable of one array"]
    print(f"\nStatefulMetric without the {own:.0f} of nnx.jit for one Variable, of jax.jit:")
    for n in (1, 10, 20):
        rest = times[f"nnx.jit, StatefulMetric(Collection of {n})"] - own
        print(f"{n:4} metrics: {rest / times[f'jax.jit, Collection of {n}']:.2f}")


if __name__ == "__main__":
    main()
