"""Updates outside `jit`, of 256 x 10 logits."""

import numpy as np

from benchmarks.peers.contestants import contestants, repeated
from benchmarks.peers.tables import goal, interleaved, runs, spread, table
from benchmarks.peers.task import SMALL, TABLES, Task, errors

TASKS = [
    Task("Mean loss", "loss", rows=256, classes=10),
    Task("Mean loss and accuracy", *SMALL, rows=256, classes=10),
    Task("Mean loss, confusion matrix and calibration bins", *TABLES, rows=256, classes=10),
    Task("The same with one-vs-rest AUROC", *TABLES, "auroc", rows=256, classes=10),
]


def main() -> None:
    for task in TASKS:
        report(task, runs())


def report(task: Task, runs: int) -> None:
    calls, wrong = {}, {}
    for name, inside in contestants(task).items():
        each = inside.outside
        wrong[name] = errors(task, each.all_of(task))
        batches = [each.convert(b) for b in task.batches]
        calls[name] = repeated(each.empty(), each.update, batches)
    times = interleaved(calls, runs)
    base = times["datarax"]
    print(f"\n**{task.title}**")
    table(
        ["", "microseconds per update", "of datarax", "greatest error"],
        [
            [
                f"{name}, compiled" if name == "by hand" else name,
                spread(x, 1e6),
                spread(x / base),
                str(wrong[name]),
            ]
            for name, x in times.items()
        ],
    )
    peers = [x / base for name, x in times.items() if name not in ("datarax", "by hand")]
    goal("faster than the fastest peer, of datarax", min(peers, key=median), least=1)


def median(x: np.ndarray) -> float:
    return float(np.median(x))


if __name__ == "__main__":
    main()
