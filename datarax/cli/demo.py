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
    "macro_f1": "scikit-learn f1_score",
    "auroc": "scikit-learn roc_auc_score",
}
HEADERS = {"least_confidence": "min prob"}
"""Where the header of a column is not the name."""
PART = 16  # rows: the share of one of eight devices of a batch

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
        say(*compare_with_usual(*by_nearest_mean(train, test)), "")
        simulated = f"simulated device{'s' * (num_devices > 1)}"
        kind = "processes" if jax.process_count() > 1 else simulated
        say(
            f"{len(train.labels)} training and {len(test.labels)} test digits in batches of "
            f"{digits.BATCH_SIZE}, on {num_devices} {kind}",
            line("", {name: HEADERS.get(name, name.replace("_", " ")) for name in REFERENCES}),
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
    right = check([*reported, Reported("pmap", numbers, logits, test.labels)])
    usual = of_parts(logits, test.labels)
    say("\nWhat was won: for the trained model, the mean over parts of the test set gives")
    for name, value in usual.items():
        wrong, exact = number(value, decimals=4), number(numbers[name], decimals=4)
        say(f"  {name} {wrong} instead of {exact}")
    return 0 if right else 1


def by_nearest_mean(train: digits.Digits, test: digits.Digits) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels of a classifier that needs no training: the negative squared distances."""
    classes = range(digits.NUM_CLASSES)
    means = np.stack([train.images[train.labels == c].mean(axis=0) for c in classes])
    return -((test.images[:, None] - means) ** 2).sum(axis=-1), test.labels


def of_parts(logits: np.ndarray, labels: np.ndarray) -> Numbers:
    """What usual code reports: the mean of the metrics of parts of `PART` rows."""
    starts = range(0, len(labels), PART)
    parts = [reference(logits[i : i + PART], labels[i : i + PART]) for i in starts]
    return {x: float(np.mean([each[x] for each in parts])) for x in ("macro_f1", "auroc")}


def compare_with_usual(logits: np.ndarray, labels: np.ndarray) -> list[str]:
    """The lines that show a wrong number of usual code, and the right one."""
    metrics, usual = digits.make_quality(), of_parts(logits, labels)
    for i in range(0, len(labels), PART):
        metrics = metrics.update(preds=logits[i : i + PART], target=labels[i : i + PART])
    expected, found = reference(logits, labels), metrics.results()
    rows = {
        "the mean over parts, as usual code": usual,
        "datarax, over the same parts": found,
        "scikit-learn, over all rows": {name: expected[name] for name in usual},
    }
    return [
        f"{len(labels)} digits by the nearest mean image, in parts of {PART} rows",
        f"{'':36}" + "".join(f"{name.replace('_', ' '):>10}" for name in usual),
        *(
            f"{label:36}" + "".join(f"{number(cells[x], decimals=4):>10}" for x in usual)
            for label, cells in rows.items()
        ),
    ]


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
    # A class without positives or without negatives has no area, and is in no mean.
    pairs = [(labels == c, probs[:, c]) for c in classes if 0 < np.sum(labels == c) < len(labels)]
    chosen = logits.argmax(axis=1)
    return {
        "examples": len(labels),
        "loss": float(sklearn_metrics.log_loss(labels, probs, labels=classes)),
        "accuracy": float(sklearn_metrics.accuracy_score(labels, chosen)),
        "worst_loss": float(np.max(-log_probs[np.arange(len(labels)), labels])),
        "least_confidence": float(np.min(probs.max(axis=1))),
        "macro_f1": float(sklearn_metrics.f1_score(labels, chosen, average="macro")),
        "auroc": float(np.mean([sklearn_metrics.roc_auc_score(*x) for x in pairs])),
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
    widths = {name: max(6, len(HEADERS.get(name, name))) + 2 for name in REFERENCES}
    return f"{label:12}" + "".join(f"{texts[name]:>{widths[name]}}" for name in widths)


def say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)
