"""`datarax demo`: train a model, report its metrics, and check every reported number."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh
from sklearn import metrics as sklearn_metrics

from datarax import AsyncMetricCollector, plot
from datarax._numbers import number
from datarax.cli import digits, interrupts

TIMEOUT = 60  # the longest wait for another process, in seconds
TOLERANCE = 1e-5
CURVES = [f"{split}/{name}" for name in ("loss", "accuracy") for split in ("train", "test")]
# What is reported, and what `reference` computes it with.
REFERENCES = {
    "examples": "NumPy sum",
    "loss": "scikit-learn log_loss",
    "accuracy": "scikit-learn accuracy_score",
    "worst_loss": "NumPy max",
    "least_confidence": "NumPy min",
}

# Slices by the ink, the mean intensity of the pixels. About a third of the digits is between the
# two edges.
INK, INK_EDGES = np.array(["light", "medium", "heavy"]), (0.287, 0.321)

Numbers = dict[str, float]


class Reported(NamedTuple):
    """Reported numbers, and the logits and labels of the examples to check them with."""

    where: str
    numbers: Numbers
    logits: np.ndarray
    labels: np.ndarray


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
    mesh = Mesh(np.array(devices), (digits.AXIS,), axis_types=(AxisType.Auto,))
    first = jax.process_index() == 0
    train, test = digits.load()
    history, picture = folder / "history.jsonl", folder / "learning_curve.png"
    if first:
        simulated = f"simulated device{'s' * (num_devices > 1)}"
        kind = "processes" if jax.process_count() > 1 else simulated
        say(
            f"{len(train.labels)} training and {len(test.labels)} test digits in batches of "
            f"{digits.BATCH_SIZE}, on {num_devices} {kind}",
            line("", {name: name.replace("_", " ") for name in REFERENCES}),
        )
    model, optimizer = digits.make_model(mesh)
    metrics = digits.make_metrics(mesh)
    evaluate, evaluate_pmap = digits.make_evaluations(model, mesh)
    train_step = partial(digits.train_step, model, optimizer, metrics)
    reported: list[Reported] = []
    waiting: dict[int, tuple[Reported, Reported]] = {}

    def report_collected() -> None:
        """Reports the epochs whose training metrics have arrived."""
        for epoch, numbers in collector.ready():
            trained, tested = waiting.pop(epoch)
            both = trained._replace(numbers=numbers), tested
            reported.extend(both)
            if first:
                say(*(line(f"{epoch:>5} {each.where}", each.numbers) for each in both))
                named = {f"{x.where}/{name}": x.numbers[name] for x in both for name in x.numbers}
                with history.open("a") as lines:
                    print(json.dumps({"epoch": epoch} | named), file=lines)

    with AsyncMetricCollector(metrics, timeout=TIMEOUT) as collector:
        for epoch in range(1, epochs + 1):
            if interrupts.came():  # and was dropped
                raise KeyboardInterrupt
            data = digits.shuffled(train, epoch)
            _, logits = digits.run_steps(train_step, data, mesh)
            # The test set is evaluated while the metrics of training are collected.
            collector.schedule_collection(step=epoch)
            trained = Reported("train", {}, logits, data.labels)
            found, logits = digits.run_steps(partial(evaluate, nnx.state(model)), test, mesh)
            waiting[epoch] = trained, Reported("test", digits.total(found), logits, test.labels)
            report_collected()
    report_collected()  # those that the collector waited for at its end
    # All processes call it, because it is collective.
    numbers, logits = digits.run_pmap(evaluate_pmap, model, test, mesh)
    if not first:
        return 0
    say("\nThe test set again, through pmap", line("all devices", numbers))
    plot.history(history, names=CURVES, x="epoch").savefig(picture, dpi=150)
    ink = INK[np.digitize(test.images.mean(axis=1), INK_EDGES)]
    np.savez(folder / "predictions.npz", logits=logits, digit=test.labels, ink=ink)
    say(f"\nWrote {history} and {picture}")
    return 0 if check([*reported, Reported("pmap", numbers, logits, test.labels)]) else 1


def reference(logits: np.ndarray, labels: np.ndarray) -> Numbers:
    """The reference of every number that the demo reports for some examples, in float64.

    Example:
        >>> import numpy as np
        >>> from datarax.cli.demo import reference
        >>> logits = np.log(np.array([[0.75, 0.25], [0.75, 0.25]]))
        >>> out = reference(logits, np.array([0, 1]))
        >>> print(out["examples"], round(out["loss"], 4), out["accuracy"])
        2 0.837 0.5
    """
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    probs, classes = np.exp(log_probs), np.arange(logits.shape[1])
    return {
        "examples": len(labels),
        "loss": float(sklearn_metrics.log_loss(labels, probs, labels=classes)),
        "accuracy": float(sklearn_metrics.accuracy_score(labels, logits.argmax(axis=1))),
        "worst_loss": float(np.max(-log_probs[np.arange(len(labels)), labels])),
        "least_confidence": float(np.min(probs.max(axis=1))),
    }


def check(reported: Sequence[Reported]) -> bool:
    """Prints how far each number is from its reference at most; returns whether all agree."""
    worst: Numbers = {}
    for where, numbers, logits, labels in reported:
        expected = reference(logits, labels)
        if numbers.keys() != expected.keys():
            raise ValueError(f"reported {sorted(numbers)}, but can check {sorted(expected)}")
        for name in expected:
            place, difference = f"{where}/{name}", abs(numbers[name] - expected[name])
            # Unlike `max`, it keeps NaN, which is wrong.
            worst[place] = float(np.maximum(worst.get(place, 0.0), difference))
    wrong = [place for place, difference in worst.items() if not difference <= TOLERANCE]
    say("\nLargest differences")
    for place, difference in worst.items():
        compared, verdict = REFERENCES[place.partition("/")[2]], "WRONG" if place in wrong else "ok"
        say(f"{place:24}{compared:29}{number(difference, digits=2):>8}  {verdict}")
    failed = f"FAILED, wrong by more than {TOLERANCE}: {', '.join(wrong)}"
    say("", failed if wrong else f"All numbers agree to within {TOLERANCE}")
    return not wrong


def line(label: str, cells: Mapping[str, float | str]) -> str:
    """A line of a table, whose columns are equally wide in all lines; floats have four decimals."""
    texts = {
        name: number(x, decimals=4) if isinstance(x, float) else str(x) for name, x in cells.items()
    }
    return f"{label:14}" + "".join(f"{texts[name]:>{max(8, len(name)) + 2}}" for name in REFERENCES)


def say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)
