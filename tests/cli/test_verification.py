"""The demo's check of its own numbers: it knows the truth, and notices what differs from it."""

import io
import math

import numpy as np
import pytest
from rich.console import Console
from scipy.special import log_softmax, softmax

from datarax.cli import demo
from datarax.cli.verification import Predictions, differences, reference

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
