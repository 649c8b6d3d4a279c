"""Compiled updates, of 1024 x 100 logits."""

import jax

from benchmarks.peers import by_hand
from benchmarks.peers.contestants import BINNED, contestants, repeated
from benchmarks.peers.tables import goal, interleaved, runs, spread, table
from benchmarks.peers.task import SMALL, TABLES, Task, errors

TASKS = [
    Task("Mean loss and accuracy", *SMALL),
    Task("Mean loss, confusion matrix and calibration bins", *TABLES),
    Task("The same with one-vs-rest AUROC", *TABLES, "auroc"),
]


def main() -> None:
    for task in TASKS:
        report(task, runs())


def report(task: Task, runs: int) -> None:
    calls, wrong = {}, {}
    for name, each in contestants(task).items():
        update = each.compile(each.update)
        values = each.all_of(task, update=update)
        wrong[name] = str(errors(task, values))
        calls[name] = repeated(each.empty(), update, [each.convert(b) for b in task.batches])
    batches = [jax.tree.map(jax.numpy.asarray, b) for b in task.batches]
    calls["reading the inputs once"] = repeated(
        None, lambda _, batch: by_hand.limit(batch), batches
    )
    times = interleaved(calls, runs)
    base = times["by hand"]
    print(f"\n**{task.title}**")
    table(
        ["", "milliseconds per update", "of by hand", "greatest error"],
        [
            [name, spread(x, 1e3), spread(x / base), wrong.get(name, "")]
            for name, x in times.items()
        ],
    )
    goal("at most 1.15 of the program by hand", times["datarax"] / base, most=1.15)
    if task.metrics == TABLES:
        ratio = times["torchmetrics"] / times["datarax"]
        goal("at least 2 times as fast as torchmetrics", ratio, least=2)
    if "auroc" in task.metrics:
        ratio = times[BINNED] / times["datarax"]
        goal("at least 30 times as fast as torchmetrics, which bins the scores", ratio, least=30)


if __name__ == "__main__":
    main()
