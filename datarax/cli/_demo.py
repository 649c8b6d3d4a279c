"""`datarax demo`: train, report, and check every number that was reported."""

import json
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh
from rich.console import Console

from datarax.cli import _digits, _report
from datarax.cli._check import TOLERANCE, Predictions, differences, reference
from datarax.distributed import collect_from_devices


class Reported(NamedTuple):
    """Numbers that were shown, and the predictions from which to check them."""

    where: str
    numbers: dict[str, float]
    predictions: Predictions


def run(num_devices: int, epochs: int, history: Path, picture: Path) -> int:
    """Runs the demo, writing `history` and `picture`; 1 if a number fails its check, else 0.

    Raises:
        RuntimeError: JAX was already running, on fewer CPU devices than are asked for.
    """
    mesh = _mesh(num_devices)
    console = Console(markup=False, highlight=False)
    train, test = _digits.load()
    size = _digits.batch_size(num_devices)
    console.print(
        f"{len(train.labels)} training and {len(test.labels)} test digits in batches of {size}, "
        f"on {num_devices} simulated device{'s' * (num_devices > 1)}"
    )

    model, optimizer = _digits.make_model(mesh)
    evaluate = _digits.make_evaluate(model, mesh)
    total = epochs * sum(_digits.num_batches(data, size) for data in (train, test))
    records, reported = [], []
    with _report.progress(console, total) as advance, history.open("w") as lines:
        for epoch in range(1, epochs + 1):
            shuffled = _digits.shuffled(train, epoch)
            now = [
                Reported(where, *_digits.run_steps(step, data, size, mesh, advance))
                for where, step, data in (
                    ("train", partial(_digits.train_step, model, optimizer), shuffled),
                    ("test", lambda batch: evaluate(nnx.state(model), batch), test),
                )
            ]
            reported += now
            records.append(_record(epoch, now))
            print(json.dumps(records[-1]), file=lines, flush=True)
            rows = [(f"{epoch:>5} {where}", numbers) for where, numbers, _ in now]
            console.print(_report.numbers_table(rows, header=epoch == 1))

    final = _evaluate_pmap(model, mesh, test, size)
    reported += final
    rows = [(f"device {i}", device.numbers) for i, device in enumerate(final[:-1])]
    rows.append((final[-1].where, final[-1].numbers))
    console.print(_report.numbers_table(rows, title="\nThe test set again, through pmap"))

    _report.plot(picture, records)
    console.print(f"\nWrote {history} and {picture}", soft_wrap=True)
    return 0 if check(console, reported) else 1


def check(console: Console, reported: list[Reported]) -> bool:
    """Whether every number agrees with its reference; prints the differences."""
    worst = worst_differences(reported)
    console.print(_report.check_table(worst))
    failed = [name for name, difference in worst.items() if difference > TOLERANCE]
    if failed:
        console.print(f"\nFAILED, off by more than {TOLERANCE:g}: {', '.join(failed)}")
    else:
        console.print(f"\nAll numbers agree to within {TOLERANCE:g}")
    return not failed


def worst_differences(reported: list[Reported]) -> dict[str, float]:
    """The largest difference from its reference of each number, over all times it was reported."""
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
            f"JAX is already running, with {len(devices)} of the {num_devices} CPU devices asked "
            f"for; run the demo in a process of its own"
        )
    return Mesh(np.array(devices[:num_devices]), (_digits.AXIS,), axis_types=(AxisType.Auto,))


def _record(epoch: int, reported: list[Reported]) -> dict[str, float]:
    names = {f"{where}/{name}": x for where, numbers, _ in reported for name, x in numbers.items()}
    return {"epoch": epoch} | names


def _evaluate_pmap(
    model: _digits.Classifier, mesh: Mesh, test: _digits.Batch, size: int
) -> list[Reported]:
    """The test set once more: what each device found alone, then all together."""
    evaluate = _digits.make_evaluate_pmap(model, mesh)
    rows = _digits.num_batches(test, size) * size
    (padded,) = _digits.batches(test, rows)
    split = jax.tree.map(lambda x: x.reshape(mesh.size, rows // mesh.size, *x.shape[1:]), padded)
    out = jax.block_until_ready(evaluate(nnx.state(model), split))
    together, alone, logits = collect_from_devices(out)

    def at(found: dict[str, list[jax.Array]], device: int) -> dict[str, float]:
        return {name: values[device].item() for name, values in found.items()}

    reported = [
        Reported("device", at(alone, i), Predictions(np.asarray(x), split.labels[i], split.mask[i]))
        for i, x in enumerate(logits)
    ]
    everything = Predictions(np.concatenate(logits), padded.labels, padded.mask)
    return [*reported, Reported("all devices", at(together, 0), everything)]
