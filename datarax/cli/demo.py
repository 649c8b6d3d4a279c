"""`datarax demo`: train a model, report its metrics, and check every reported number."""

import json
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh
from rich.console import Console

from datarax import AsyncMetricCollector
from datarax.cli import digits, report
from datarax.cli.demo_files import DemoFiles
from datarax.cli.digits import BATCH_SIZE
from datarax.cli.verification import (
    QUALITY_REFERENCES,
    TOLERANCE,
    Predictions,
    differences,
    interval_differences,
    quality_differences,
    quality_reference,
    reference,
)
from datarax.cli.windows import Windows
from datarax.distributed import collect_from_devices

TIMEOUT = 60  # the longest wait for another process, in seconds


class Reported(NamedTuple):
    """Reported numbers, and the predictions to check them with."""

    where: str
    numbers: dict[str, float]
    predictions: Predictions


class Log:
    """The reported numbers: it prints them, writes them to `history`, and keeps them to check."""

    def __init__(self, console: Console, history: Path | None):
        self.console, self._history = console, history
        self.reported: list[Reported] = []
        self.records: dict[int, dict[str, float]] = {}

    def add(self, epoch: int, new: Reported) -> None:
        """Prints a row. Writes a line when the numbers of training and test of an epoch are in."""
        row = [(f"{epoch:>5} {new.where}", new.numbers)]
        self.console.print(report.numbers_table(row, header=not self.reported))
        self.reported.append(new)
        record = self.records.setdefault(epoch, {"epoch": epoch})
        complete = len(record) > 1
        record |= {f"{new.where}/{name}": x for name, x in new.numbers.items()}
        if complete and self._history:
            with self._history.open("a") as lines:
                print(json.dumps(record), file=lines)


def run(num_devices: int, epochs: int, files: DemoFiles, slices: bool) -> int:
    """Runs the demo, and returns 1 if a number is wrong, else 0.

    It writes all `files` but the report.

    On several processes, all call it. The first process prints, writes and checks.

    Raises:
        RuntimeError: JAX was already running, with fewer than `num_devices` CPU devices.
    """
    mesh = _mesh(num_devices)
    first = jax.process_index() == 0
    console = Console(markup=False, highlight=False, quiet=not first)
    train, test = digits.load()
    console.print(
        f"{len(train.labels)} training and {len(test.labels)} test digits in batches of "
        f"{BATCH_SIZE}, on {_where(num_devices)}"
    )
    log = Log(console, files.history if first else None)
    model, cost = _train(mesh, train, test, epochs, log)
    console.print(f"\n{cost}")
    final = _evaluate_pmap(model, mesh, test)
    results, bounds = digits.quality(model, test, mesh, slices)
    if not first:
        return 0
    rows = [(f"device {i}", device.numbers) for i, device in enumerate(final[:-1])]
    rows.append((final[-1].where, final[-1].numbers))
    console.print(report.numbers_table(rows, title="\nThe test set again, through pmap"))

    results = {name: np.asarray(x).tolist() for name, x in results.items()}
    console.print(report.quality_table(results, bounds))
    if slices:
        console.print(report.slices_table(results, digits.SLICES))
    real = final[-1].predictions
    real = Predictions(real.logits[real.mask], real.labels[real.mask], real.mask[real.mask])
    headline = {name: results[name] for name in QUALITY_REFERENCES}
    quality = quality_differences(headline, bounds, quality_reference(real))
    ids = digits.slice_ids(test)
    sliced = {by: (names, ids[by]) for by, names in digits.SLICES.items()} if slices else {}

    report.plot(files.picture, list(log.records.values()))
    np.savez(files.predictions, logits=real.logits, digit=real.labels)
    console.print(f"\nWrote {files.history} and {files.picture}", soft_wrap=True)
    worst = worst_differences(log.reported + final)
    worst |= {f"quality/{name}": difference for name, difference in quality.items()}
    worst |= interval_differences(results, real, sliced)
    return 0 if check(console, worst) else 1


def _train(
    mesh: Mesh, train: digits.Examples, test: digits.Examples, epochs: int, log: Log
) -> tuple[digits.Classifier, str]:
    """Trains a model and logs its numbers; returns it, and a sentence on the cost of metrics."""
    model, optimizer = digits.make_model(mesh)
    metrics = digits.make_metrics(mesh)
    step = partial(digits.train_step, model, optimizer, metrics)
    evaluate = digits.make_evaluate(model, mesh)
    trained: dict[int, Predictions] = {}

    def arrived(epoch: int, numbers: dict[str, float]) -> None:
        log.add(epoch, Reported("train", numbers, trained.pop(epoch)))

    def after_step() -> None:
        windows.after_step()
        advance()

    total = epochs * sum(map(digits.num_batches, (train, test)))
    with report.progress(log.console, total) as advance:
        with AsyncMetricCollector(metrics, timeout=TIMEOUT) as collector:
            windows = Windows(collector, arrived)
            for epoch in range(1, epochs + 1):
                data = digits.shuffled(train, epoch)
                _, trained[epoch] = digits.run_steps(step, data, mesh, after_step)
                windows.schedule(epoch)
                summaries, predictions = digits.run_steps(
                    lambda batch: evaluate(nnx.state(model), batch), test, mesh, after_step
                )
                log.add(epoch, Reported("test", digits.total(summaries), predictions))
        windows.finish()
    return model, windows.cost()


def check(console: Console, worst: dict[str, float]) -> bool:
    """Prints the differences, and returns whether every number agrees with its reference."""
    console.print(report.check_table(worst))
    failed = [name for name, difference in worst.items() if difference > TOLERANCE]
    if failed:
        console.print(f"\nFAILED, wrong by more than {TOLERANCE:g}: {', '.join(failed)}")
    else:
        console.print(f"\nAll numbers agree to within {TOLERANCE:g}")
    return not failed


def worst_differences(reported: list[Reported]) -> dict[str, float]:
    """For each number, the largest difference from its reference over all reports."""
    worst: dict[str, float] = {}
    for where, numbers, predictions in reported:
        for name, difference in differences(numbers, reference(predictions)).items():
            name = f"{where}/{name}"
            worst[name] = max(worst.get(name, 0.0), difference)
    return worst


def _mesh(num_devices: int) -> Mesh:
    devices = jax.devices("cpu")
    if len(devices) < num_devices:
        raise RuntimeError(
            f"JAX is already running with {len(devices)} CPU devices, and the demo needs "
            f"{num_devices}; run the demo in a process of its own"
        )
    return Mesh(np.array(devices[:num_devices]), (digits.AXIS,), axis_types=(AxisType.Auto,))


def _where(num_devices: int) -> str:
    many = "s" * (num_devices > 1)
    if jax.process_count() > 1:
        return f"{num_devices} processes"
    return f"{num_devices} simulated device{many}"


def _evaluate_pmap(model: digits.Classifier, mesh: Mesh, test: digits.Examples) -> list[Reported]:
    """Evaluates the test set again through `pmap`: for each device alone, then for all."""
    real, rows = len(test.labels), digits.num_batches(test) * digits.padded(BATCH_SIZE, mesh)
    images, labels, mask = (
        np.pad(x, [(0, rows - real)] + [(0, 0)] * (x.ndim - 1)).reshape(mesh.size, -1, *x.shape[1:])
        for x in (*test, np.ones(real, bool))
    )
    mine = [i for i, d in enumerate(mesh.devices.flat) if d.process_index == jax.process_index()]
    batch = digits.Batch(images[mine], labels[mine], mask[mine])
    evaluate = digits.make_evaluate_pmap(model, mesh)
    out = jax.block_until_ready(evaluate(digits.on_host(nnx.state(model)), batch))
    # Every device has all results, so this process reads the copy of its own device.
    out = jax.tree.map(lambda x: x.addressable_data(0).reshape(x.shape[1:]), out)
    together, (alone, logits) = out[0], collect_from_devices(out[1:])
    reported = [
        Reported("device", _numbers({name: x[i] for name, x in alone.items()}), predictions)
        for i, predictions in enumerate(map(Predictions, map(np.asarray, logits), labels, mask))
    ]
    everything = Predictions(np.concatenate(logits), labels.reshape(-1), mask.reshape(-1))
    return [*reported, Reported("all devices", _numbers(together), everything)]


def _numbers(metrics: dict[str, jax.Array]) -> dict[str, float]:
    return {name: value.item() for name, value in metrics.items()}
