"""What a step pays to dispatch its metrics: `StatefulMetric` beside `jax.jit` and `nnx.MultiMetric`.

The batch is of 8 examples, so that a call is all dispatch. The contestants take turns, so that a
busy machine slows them alike; each is given by the median of its rounds.
"""

import os
import time
from collections.abc import Callable
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from flax import nnx

import datarax
from datarax.metrics import Accuracy, Max, Mean, Min, Std, Sum
from datarax.training import StatefulMetric

ROUNDS, CALLS = 60, 50
GOAL = 1.5

Call = Callable[[], Any]


def ten() -> dict[str, datarax.Metric]:
    """Ten metrics, of seven statistics, over the outputs of one step."""
    return {
        "loss": Mean().from_outputs(values="loss"),
        "worst": Max().from_outputs(values="loss"),
        "best": Min().from_outputs(values="loss"),
        "spread": Std().from_outputs(values="loss"),
        "norm": Mean().from_outputs(values="norm"),
        "largest": Max().from_outputs(values="norm"),
        "tokens": Sum().from_outputs(values="tokens"),
        "accuracy": Accuracy(num_classes=5),
        "balanced": Accuracy(num_classes=5, average="macro"),
        "top 2": Accuracy(num_classes=5, top_k=2),
    }


def twenty() -> dict[str, datarax.Metric]:
    """The ten, and ten more, each over a statistic of its own."""
    return ten() | {
        f"top {k} less {label}": Accuracy(num_classes=5, top_k=k, ignore_index=label)
        for k in (1, 2)
        for label in range(5)
    }


def outputs() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    host = {
        "loss": rng.random(8, np.float32),
        "norm": rng.random(8, np.float32),
        "tokens": rng.integers(0, 100, 8).astype(np.int32),
        "preds": rng.random((8, 5), np.float32),
        "target": rng.integers(0, 5, 8).astype(np.int32),
    }
    return jax.device_put(host)


@nnx.jit
def nnx_step(metrics: Any, batch: dict[str, jax.Array]) -> None:
    metrics.update(**batch)


@jax.jit
def jax_step(metrics: Any, batch: dict[str, jax.Array]) -> Any:
    return metrics.update(**batch)


def in_place(metrics: Any, batch: dict[str, jax.Array]) -> Call:
    return lambda: nnx_step(metrics, batch)


def as_value(metrics: datarax.Metric, batch: dict[str, jax.Array]) -> Call:
    held = [metrics]

    def call() -> None:
        held[0] = jax_step(held[0], batch)

    return call


def microseconds(calls: dict[str, Call]) -> dict[str, float]:
    """The median time of each call, over rounds in which all take turns."""
    for call in calls.values():
        for _ in range(3):
            call()
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            rounds[name].append((time.perf_counter() - start) / CALLS)
    return {name: 1e6 * float(np.median(seconds)) for name, seconds in rounds.items()}


def main() -> None:
    batch = outputs()
    plain, shell = datarax.Collection(ten()), "StatefulMetric(Collection of 10)"
    average = {name: nnx.metrics.Average(name) for name in ("loss", "norm")}
    times = microseconds(
        {
            "jax.jit over the same state": as_value(plain, batch),
            shell: in_place(StatefulMetric(plain), batch),
            "nnx.MultiMetric of 10 StatefulMetric": in_place(
                nnx.MultiMetric(**{name: StatefulMetric(m) for name, m in ten().items()}), batch
            ),
            "nnx.MultiMetric of 10 flax.nnx.metrics": in_place(
                nnx.MultiMetric(
                    **average,
                    **{f"loss {i}": nnx.metrics.Welford("loss") for i in range(4)},
                    **{f"norm {i}": nnx.metrics.Welford("norm") for i in range(4)},
                ),
                batch,
            ),
            "jax.jit of Collection of 1": as_value(
                datarax.Collection({"loss": ten()["loss"]}), batch
            ),
            "StatefulMetric(Collection of 1)": in_place(
                StatefulMetric(datarax.Collection({"loss": ten()["loss"]})), batch
            ),
            "jax.jit of Collection of 20": as_value(datarax.Collection(twenty()), batch),
            "StatefulMetric(Collection of 20)": in_place(
                StatefulMetric(datarax.Collection(twenty())), batch
            ),
        }
    )
    base = times["jax.jit over the same state"]
    print(f"{'one update, dispatched':<42} {'us':>6} {'of jax.jit':>10}")
    for name, time_ in times.items():
        print(f"{name:<42} {time_:6.0f} {time_ / base:10.2f}")
    print(f"\n{shell}: {times[shell] / base:.2f} times jax.jit over the same state; goal {GOAL}.")
    small, large = (times[f"StatefulMetric(Collection of {n})"] for n in (1, 20))
    bare = [times[f"jax.jit of Collection of {n}"] for n in (1, 20)]
    print(
        f"20 metrics against 1: {large - small:+.0f} us in the shell, {bare[1] - bare[0]:+.0f} us "
        f"in jax.jit itself."
    )


if __name__ == "__main__":
    main()
