"""What the collector adds to a training loop, and what `StatefulMetric` adds to a dispatch."""

import time
from collections.abc import Callable

import numpy as np
from sklearn.datasets import load_digits

from benchmarks import collector, stateful
from benchmarks.peers.reading import often
from benchmarks.peers.tables import Call, goal, interleaved, runs, spread, table

LOOPS = {
    "no metrics": collector.Loop.without,
    "metrics, not collected": collector.Loop.uncollected,
    f"metrics, collected every {collector.EVERY} steps": collector.Loop.collected,
    f"metrics, read with `float()` every {collector.EVERY} steps": collector.Loop.blocking,
}
DISPATCHES = {
    "jax.jit, Collection of 10": "`jax.jit`, a `Collection` of 10",
    "nnx.jit, StatefulMetric(Collection of 10)": "`nnx.jit`, `StatefulMetric` of the same",
    "  with nnx.cached_partial": "the same with `nnx.cached_partial`",
    "nnx.jit of the outputs, no metrics": "`nnx.jit` of the outputs, without a metric",
    "nnx.jit, MultiMetric of 10 flax Welford": "`nnx.jit`, `nnx.MultiMetric` of 10 `Welford`",
}


def main() -> None:
    training(3 * runs())
    dispatching(3 * runs())


def training(runs: int) -> None:
    data, target = load_digits(return_X_y=True)
    images, labels = (data / 16).astype(np.float32), np.asarray(target, np.int32)
    calls = {name: turns(collector.Loop(images, labels), step) for name, step in LOOPS.items()}
    times = interleaved(calls, runs, turn=0.2, clock=wall_and_processor)
    times = {name: x / collector.STEPS for name, x in times.items()}
    _, base, collected, _ = times.values()
    print("\n**A training step**")
    table(
        ["", "milliseconds per step", "of the processors", "of metrics, not collected"],
        [
            [name, spread(x[:, 0], 1e3), spread(x[:, 1], 1e3), spread(x[:, 0] / base[:, 0])]
            for name, x in times.items()
        ],
    )
    for clock, ratios in zip(("time", "time of the processors"), (collected / base).T, strict=True):
        goal(f"the collector adds at most 1% to the {clock}", ratios, most=1.01)


def turns(loop: collector.Loop, step: Callable[..., None]) -> Call:
    return often(lambda: loop.turn(step.__get__(loop)))


def wall_and_processor() -> np.ndarray:
    return np.array([time.perf_counter(), time.process_time()])


def dispatching(runs: int) -> None:
    cases = stateful.cases(stateful.outputs())
    calls = {label: often(cases[name]) for name, label in DISPATCHES.items()}
    times = interleaved(calls, runs, clock=time.thread_time)
    base, shell, *_ = times.values()
    print("\n**Dispatching an update of ten metrics**")
    table(
        ["", "microseconds of the thread", "of `jax.jit`"],
        [[name, spread(x, 1e6), spread(x / base)] for name, x in times.items()],
    )
    goal("`StatefulMetric` takes at most 1.5 of `jax.jit`", shell / base, most=1.5)


if __name__ == "__main__":
    main()
