"""Reading the values on the host, after twenty batches of 1024 x 100 logits."""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.metrics import accuracy_score, confusion_matrix

from benchmarks.peers.compiled import TASKS
from benchmarks.peers.contestants import contestants
from benchmarks.peers.tables import Call, interleaved, runs, spread, table
from benchmarks.peers.task import BINS, Task, errors, one_vs_rest, softmax


def main() -> None:
    for task in TASKS:
        report(task, runs())


def report(task: Task, runs: int) -> None:
    reads, wrong = {}, {}
    for name, each in contestants(task).items():
        update, state = each.compile(each.update), each.empty()
        for batch in task.batches:
            state = update(state, each.convert(batch))
        reads[name] = lambda each=each, state=state: each.read(state)
        wrong[name] = errors(task, reads[name]())
    name = "scikit-learn, from the stored batches"
    reads[name] = lambda: scikit_learn(task)
    wrong[name] = errors(task, reads[name]())
    times = interleaved({name: often(read) for name, read in reads.items()}, runs)
    print(f"\n**{task.title}**")
    table(
        ["", "milliseconds per reading", "greatest error"],
        [[name, spread(x, 1e3), str(wrong[name])] for name, x in times.items()],
    )


def often(read: Callable[[], Any]) -> Call:
    def call(times: int) -> None:
        for _ in range(times):
            read()

    return call


def scikit_learn(task: Task) -> dict[str, Any]:
    """The values from the stored batches. Of them, NumPy computes the calibration error."""
    preds, target, loss = (task.stored[name] for name in ("preds", "target", "loss"))
    chosen, found = preds.argmax(-1), {"loss": np.average(loss.astype(np.float64))}
    if "accuracy" in task.metrics:
        found["accuracy"] = accuracy_score(target, chosen)
    if "confusion" in task.metrics:
        found["confusion"] = confusion_matrix(target, chosen, labels=np.arange(task.classes))
    if "calibration" in task.metrics:
        confidence = softmax(preds).max(-1)
        place = np.ceil(confidence * BINS).astype(int) - 1
        gaps = np.bincount(place, (chosen == target) - confidence, BINS)
        found["calibration"] = np.abs(gaps).sum() / len(target)
    if "auroc" in task.metrics:
        found["auroc"] = one_vs_rest(softmax(preds), target)
    return found


if __name__ == "__main__":
    main()
