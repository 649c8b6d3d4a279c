"""The demo's check of its own numbers: it knows the truth, and notices what differs from it."""

import io
import itertools
import math
from functools import partial

import numpy as np
import pytest
from rich.console import Console
from scipy.special import log_softmax, softmax
from sklearn.metrics import accuracy_score, f1_score

from datarax.cli import demo
from datarax.cli.verification import (
    REPLICAS,
    Predictions,
    differences,
    interval_differences,
    quality_differences,
    quality_reference,
    reference,
)

NAMES = ["examples", "loss", "accuracy", "worst_loss", "least_confidence"]


def random_predictions(rng: np.random.Generator, rows: int = 50) -> Predictions:
    logits = rng.normal(0, 4, (rows, 10)).astype(np.float32)
    mask = rng.random(rows) < 0.7
    mask[:2] = True, False
    return Predictions(logits, rng.integers(0, 10, rows), mask)


def test_reference_against_scipy(rng):
    predictions = random_predictions(rng)
    logits = predictions.logits[predictions.mask].astype(np.float64)
    labels = predictions.labels[predictions.mask]
    losses = -log_softmax(logits, axis=1)[np.arange(len(labels)), labels]
    expected = {
        "examples": len(labels),
        "loss": losses.mean(),
        "accuracy": (logits.argmax(axis=1) == labels).mean(),
        "worst_loss": losses.max(),
        "least_confidence": softmax(logits, axis=1).max(axis=1).min(),
    }
    assert reference(predictions) == pytest.approx(expected, rel=1e-12)


def test_reference_does_not_look_at_padding(rng):
    predictions = random_predictions(rng)
    expected = reference(predictions)
    predictions.logits[~predictions.mask] = np.nan
    predictions.labels[~predictions.mask] = 99
    assert reference(predictions) == expected


def test_reference_of_nothing(rng):
    predictions = random_predictions(rng)
    empty = reference(predictions._replace(mask=np.zeros(50, bool)))
    assert empty.pop("examples") == 0
    assert len(empty) == 4
    assert all(math.isnan(value) for value in empty.values())


def test_differences():
    reported = {"equal": 2, "below": 1.0, "both": math.nan, "one": math.nan, "inf": math.inf}
    expected = {"equal": 2.0, "below": 1.5, "both": math.nan, "one": 1.0, "inf": math.inf}
    found = differences(reported, expected)
    assert found == {"equal": 0.0, "below": 0.5, "both": 0.0, "one": math.inf, "inf": 0.0}


@pytest.mark.parametrize("reported", [{}, {"loss": 1.0, "extra": 1.0}])
def test_a_number_without_reference_is_an_error(reported):
    with pytest.raises(ValueError, match="can check"):
        differences(reported, {"loss": 1.0})


def test_quality_against_its_definition(rng):
    predictions = random_predictions(rng, 200)
    logits, labels = predictions.logits.astype(np.float64), predictions.labels
    found = quality_reference(predictions)
    chosen, confidence = logits.argmax(axis=1), softmax(logits, axis=1).max(axis=1)
    right = chosen == labels
    assert found["accuracy"] == pytest.approx(right.mean())
    assert found["recall"] == pytest.approx([right[labels == c].mean() for c in range(10)])
    edges = np.linspace(0, 1, 16)
    gaps = [
        abs((right[inside] - confidence[inside]).sum())
        for low, high in itertools.pairwise(edges)
        if (inside := (confidence > low) & (confidence <= high)).any()
    ]
    assert found["calibration_error"] == pytest.approx(sum(gaps) / 200)
    above = [(logits[labels == c, c][:, None] > logits[labels != c, c]).mean() for c in range(10)]
    assert found["auroc"] == pytest.approx(np.mean(above))


def test_quality_that_is_wrong_is_noticed(rng):
    right = quality_reference(random_predictions(rng, 200))
    bounds = right["auroc"] - 1e-3, right["auroc"] + 1e-3
    assert max(quality_differences(right, bounds, right).values()) == 0
    for name, value in right.items():
        wrong = right | {name: np.add(value, np.eye(10)[3] * 0.1 if name == "recall" else 0.1)}
        assert quality_differences(wrong, bounds, right)[name] >= 0.099
    outside = quality_differences(right, (bounds[0], right["auroc"] + 0), right | {"auroc": 0.999})
    assert outside["auroc"] == pytest.approx(0.999 - right["auroc"])
    with pytest.raises(ValueError, match="can check"):
        quality_differences({"accuracy": 1.0}, bounds, right)


def poisson_intervals(rng: np.random.Generator, predictions: Predictions, ids: np.ndarray):
    """What a right program reports: of the accuracy, the macro F1 and the slices "a" and "b"."""
    labels, chosen = predictions.labels, predictions.logits.argmax(axis=1)
    counts = rng.poisson(1, (REPLICAS, len(labels)))
    replicas = {
        f"interval/{name}": [f(labels, chosen, sample_weight=w) for w in counts]
        for name, f in (
            ("accuracy", accuracy_score),
            ("macro_f1", partial(f1_score, average="macro")),
        )
    }
    reported: dict[str, float] = {}
    for i, name in enumerate("ab"):
        inside = ids == i
        right = (labels == chosen)[inside]
        replicas[f"part/{name}"] = [np.average(right, weights=w[inside]) for w in counts]
        reported |= {f"part/examples/{name}": len(right), f"part/value/{name}": right.mean()}
    for key, values in replicas.items():
        where, name = key.split("/")
        ends = np.quantile(values, [0.025, 0.975])
        reported |= dict(zip([f"{where}/lower/{name}", f"{where}/upper/{name}"], ends, strict=True))
    return reported


def test_intervals_against_plain_bootstraps(rng):
    rows = 300
    logits = rng.normal(0, 1, (rows, 3)) + 2 * np.eye(3)[np.arange(rows) % 3]
    predictions = Predictions(logits, np.arange(rows) % 3, np.ones(rows, bool))
    ids = rng.integers(0, 2, rows)
    reported = poisson_intervals(rng, predictions, ids)

    def found(**wrong: float) -> dict[str, float]:
        return interval_differences(reported | wrong, predictions, {"part": ("ab", ids)})

    names = {"quality/accuracy/interval", "quality/macro_f1/interval"}
    names |= {"part/examples", "part/accuracy", "part/interval"}
    assert found().keys() == names
    assert max(found().values()) == 0
    for name, value in reported.items():
        for wrong in (value + 0.03, value - 0.03, math.nan):
            differing = {each for each, x in found(**{name: wrong}).items() if x > 1e-5}
            where, part, last = name.split("/")
            part = {"value": "accuracy", "examples": "examples"}.get(part, "interval")
            assert differing == {
                f"quality/{last}/interval" if where == "interval" else f"part/{part}"
            }
    none = interval_differences(reported, predictions, {})
    assert none.keys() == {name for name in names if name.startswith("quality")}


def checked(reported: list[demo.Reported]) -> tuple[bool, str]:
    shown = io.StringIO()
    console = Console(file=shown, width=80, markup=False, highlight=False)
    return demo.check(console, demo.worst_differences(reported)), shown.getvalue()


def right(rng: np.random.Generator, where: str) -> demo.Reported:
    predictions = random_predictions(rng)
    return demo.Reported(where, reference(predictions), predictions)


def test_right_numbers_pass(rng):
    passed, shown = checked([right(rng, "train"), right(rng, "test"), right(rng, "train")])
    assert passed
    assert "All numbers agree" in shown
    assert "WRONG" not in shown


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("error", [2e-5, -2e-5, math.nan, math.inf])
def test_one_wrong_number_fails(rng, name, error):
    # Wrong in one epoch only, and right in a later one.
    reported = [right(rng, "train"), right(rng, "test"), right(rng, "train")]
    reported[0].numbers[name] += error
    passed, shown = checked(reported)
    assert not passed
    assert f"FAILED, wrong by more than 1e-05: train/{name}\n" in shown
    (wrong,) = (line for line in shown.splitlines() if "WRONG" in line)
    assert wrong.split()[0] == f"train/{name}"


def test_a_small_difference_passes(rng):
    one = right(rng, "train")
    one.numbers["loss"] += 5e-6
    passed, shown = checked([one])
    assert passed
    assert "5.0e-06" in shown
