"""`datarax demo`: train a model, report its metrics, and check every reported number."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from datarax import AsyncMetricCollector, plot
from datarax.cli import digits
from datarax.cli.digits import AXIS, BATCH_SIZE, Batch, Classifier, Evaluation, Examples
from datarax.cli.verification import REFERENCES, TOLERANCE, Predictions, differences, reference

TIMEOUT = 60  # the longest wait for another process, in seconds
CURVES = [f"{split}/{name}" for name in ("loss", "accuracy") for split in ("train", "test")]
BAR = TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()

# Slices by the ink, the mean intensity of the pixels. About a third of the digits is between the
# two edges.
INK, INK_EDGES = np.array(["light", "medium", "heavy"]), (0.287, 0.321)

Numbers = dict[str, float]


class Reported(NamedTuple):
    """Reported numbers, and the predictions to check them with."""

    where: str
    numbers: Numbers
    predictions: Predictions


class Log:
    """The reported numbers: it prints them, writes them to `history`, and keeps them to check."""

    def __init__(self, console: Console, history: Path | None):
        self.console, self._history = console, history
        self.reported: list[Reported] = []
        self._records: dict[int, Numbers] = {}

    def add(self, epoch: int, new: Reported) -> None:
        """Prints a row. Writes a line when the numbers of training and test of an epoch are in."""
        row = [(f"{epoch:>5} {new.where}", new.numbers)]
        self.console.print(numbers_table(row, header=not self.reported))
        self.reported.append(new)
        record = self._records.setdefault(epoch, {"epoch": epoch})
        record |= {f"{new.where}/{name}": x for name, x in new.numbers.items()}
        if len(record) == 1 + 2 * len(new.numbers) and self._history:
            with self._history.open("a") as lines:
                print(json.dumps(record), file=lines)


def run(num_devices: int, epochs: int, folder: Path) -> int:
    """Runs the demo, and returns 1 if a number is wrong, else 0.

    It appends to `history.jsonl` in the folder, and writes all other files but the report. On
    several processes, all call it. The first process prints, writes and checks.

    Raises:
        RuntimeError: JAX was already running, with fewer than `num_devices` CPU devices.
    """
    devices = jax.devices("cpu")[:num_devices]
    if len(devices) < num_devices:
        raise RuntimeError(
            f"JAX is already running with {len(devices)} CPU devices, and the demo needs "
            f"{num_devices}; run the demo in a process of its own"
        )
    mesh = Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
    first = jax.process_index() == 0
    console = Console(markup=False, highlight=False, quiet=not first)
    train, test = digits.load()
    simulated = f"simulated device{'s' * (num_devices > 1)}"
    console.print(
        f"{len(train.labels)} training and {len(test.labels)} test digits in batches of "
        f"{BATCH_SIZE}, on {num_devices} {'processes' if jax.process_count() > 1 else simulated}"
    )
    history, picture = folder / "history.jsonl", folder / "learning_curve.png"
    log = Log(console, history if first else None)
    model, evaluate_pmap = train_model(mesh, train, test, epochs, log)
    final = through_pmap(evaluate_pmap, model, mesh, test)
    if not first:
        return 0
    rows = [(f"device {i}", device.numbers) for i, device in enumerate(final[:-1])]
    rows.append((final[-1].where, final[-1].numbers))
    console.print("\nThe test set again, through pmap", numbers_table(rows), sep="\n")
    plot.history(history, names=CURVES, x="epoch").savefig(picture, dpi=150)
    logits, labels, real = final[-1].predictions
    ink = INK[np.digitize(test.images.mean(axis=1), INK_EDGES)]
    np.savez(folder / "predictions.npz", logits=logits[real], digit=labels[real], ink=ink)
    console.print(f"\nWrote {history} and {picture}", soft_wrap=True)
    return 0 if check(console, worst_differences(log.reported + final)) else 1


def train_model(
    mesh: Mesh, train: Examples, test: Examples, epochs: int, log: Log
) -> tuple[Classifier, Evaluation]:
    """Trains a model, and logs its numbers and what they cost; returns it and its evaluation."""
    model, optimizer = digits.make_model(mesh)
    metrics = digits.make_metrics(mesh)
    step = partial(digits.train_step, model, optimizer, metrics)
    evaluate, evaluate_pmap = digits.make_evaluations(model, mesh)
    trained: dict[int, Predictions] = {}
    scheduled: dict[int, float] = {}
    lags, seconds, start = [], [], perf_counter()

    def read() -> None:
        before = perf_counter()
        found = collector.ready()
        seconds.append(perf_counter() - before)
        for epoch, numbers in found:
            lags.append(bar.tasks[0].completed - scheduled[epoch])
            log.add(epoch, Reported("train", numbers, trained.pop(epoch)))

    def after_step() -> None:
        bar.advance(bar.task_ids[0])
        read()

    def evaluated(batch: Batch) -> digits.Arrays:
        every, _, logits = evaluate(nnx.state(model), batch)
        return every | {"logits": logits}

    with Progress(*BAR, console=log.console) as bar:
        bar.add_task("steps", total=epochs * sum(map(digits.num_batches, (train, test))))
        with AsyncMetricCollector(metrics, timeout=TIMEOUT) as collector:
            for epoch in range(1, epochs + 1):
                data = digits.shuffled(train, epoch)
                _, trained[epoch] = digits.run_steps(step, data, mesh, after_step)
                before = perf_counter()
                collector.schedule_collection(step=epoch)
                seconds.append(perf_counter() - before)
                scheduled[epoch] = bar.tasks[0].completed
                summaries, predictions = digits.run_steps(evaluated, test, mesh, after_step)
                log.add(epoch, Reported("test", digits.total(summaries), predictions))
        read()  # the last windows, which the collector waited for
    log.console.print(
        f"\nTraining metrics arrived at most {max(lags):.0f} steps after they were scheduled. Of "
        f"{perf_counter() - start:.2f} s the loop spent {sum(seconds):.3f} s on scheduling and "
        f"reading {len(lags)} windows, the compilation for that included."
    )
    return model, evaluate_pmap


def through_pmap(
    evaluate: Evaluation, model: Classifier, mesh: Mesh, test: Examples
) -> list[Reported]:
    """Evaluates the test set in one step of `pmap`: for each device alone, and then for all."""
    real, rows = len(test.labels), digits.num_batches(test) * digits.padded(BATCH_SIZE, mesh)
    images, labels, mask = (
        np.pad(x, [(0, rows - real)] + [(0, 0)] * (x.ndim - 1)).reshape(mesh.size, -1, *x.shape[1:])
        for x in (*test, np.ones(real, bool))
    )
    mine = [i for i, d in enumerate(mesh.devices.flat) if d.process_index == jax.process_index()]
    batch = Batch(*(jnp.asarray(x[mine]) for x in (images, labels, mask)))
    out = jax.block_until_ready(evaluate(jax.tree.map(np.asarray, nnx.state(model)), batch))
    # Every device has all results, so this process reads the copy of its own device.
    every, each, logits = jax.tree.map(lambda x: np.asarray(x.addressable_data(0))[0], out)
    reported = [
        Reported("device", _numbers(each, i), Predictions(*rows))
        for i, rows in enumerate(zip(logits, labels, mask, strict=True))
    ]
    together = (x.reshape(rows, *x.shape[2:]) for x in (logits, labels, mask))
    return [*reported, Reported("all devices", _numbers(every, ()), Predictions(*together))]


def _numbers(arrays: digits.Arrays, place: int | tuple[()]) -> Numbers:
    return {name: array[place].item() for name, array in arrays.items()}


def worst_differences(reported: Sequence[Reported]) -> Numbers:
    """For each number, the largest difference from its reference over all reports."""
    worst: Numbers = {}
    for where, numbers, predictions in reported:
        for name, difference in differences(numbers, reference(predictions)).items():
            name = f"{where}/{name}"
            worst[name] = max(worst.get(name, 0.0), difference)
    return worst


def check(console: Console, worst: Numbers) -> bool:
    """Prints the differences, and returns whether every number agrees with its reference."""
    table = Table("number", "compared with", "difference", "", box=None)
    for name, difference in worst.items():
        verdict = "ok" if difference <= TOLERANCE else "WRONG"
        table.add_row(name, REFERENCES[name.rpartition("/")[2]], f"{difference:.1e}", verdict)
    console.print("\nLargest differences", table, sep="\n")
    failed = [name for name, difference in worst.items() if difference > TOLERANCE]
    if failed:
        console.print(f"\nFAILED, wrong by more than {TOLERANCE:g}: {', '.join(failed)}")
    else:
        console.print(f"\nAll numbers agree to within {TOLERANCE:g}")
    return not failed


def numbers_table(rows: Sequence[tuple[str, Numbers]], header: bool = True) -> Table:
    """A table with one row of numbers for each label.

    The widths of its columns are fixed, so that consecutive tables are aligned.
    """
    table = Table(show_header=header, box=None)
    table.add_column(width=14)
    for name in REFERENCES:
        table.add_column(name.replace("_", " "), justify="right", width=max(8, len(name)))
    for label, numbers in rows:
        values = [numbers[name] for name in REFERENCES]
        table.add_row(label, *(str(x) if isinstance(x, int) else f"{x:.4f}" for x in values))
    return table
