"""The first result: an update and a reading, with compilation."""

import time

import jax
import numpy as np

from benchmarks.peers.compiled import TASKS
from benchmarks.peers.contestants import contestants
from benchmarks.peers.tables import runs, spread, table
from benchmarks.peers.task import Task


def main() -> None:
    for task in TASKS:
        report(task, runs())


def report(task: Task, runs: int) -> None:
    each = {name: one.outside for name, one in contestants(task).items()}
    batches = {name: one.convert(task.batches[0]) for name, one in each.items()}
    seconds: dict[str, list[float]] = {name: [] for name in each}
    # In the first round also libraries load what they load late, and the compiler starts.
    for turn in range(runs + 1):
        for name, one in each.items():
            jax.clear_caches()
            start = time.perf_counter()
            one.read(one.compile(one.update)(one.empty(), batches[name]))
            if turn:
                seconds[name].append(time.perf_counter() - start)
    print(f"\n**{task.title}**")
    table(
        ["", "seconds to the first result", "of by hand"],
        [
            [name, spread(x), spread(np.array(x) / np.array(seconds["by hand"]))]
            for name, x in seconds.items()
        ],
    )


if __name__ == "__main__":
    main()
