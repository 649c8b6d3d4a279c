"""The demo's check of its own numbers: it knows the truth, and notices what differs from it."""

import math

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from datarax.cli import demo
from tests.cli.quality import random_predictions


def f1_of(chosen: np.ndarray, target: np.ndarray) -> float:
    return 2 * np.sum(chosen & target) / (np.sum(chosen) + np.sum(target))


def area_of(scores: np.ndarray, target: np.ndarray) -> float:
    pairs = scores[target][:, None] - scores[~target]
    return float(np.mean((np.sign(pairs) + 1) / 2))


def test_reference_against_scipy(rng):
    logits, labels = random_predictions(rng)
    losses = -log_softmax(logits.astype(np.float64), axis=1)[np.arange(len(labels)), labels]
    chosen, probs = logits.argmax(axis=1), softmax(logits.astype(np.float64), axis=1)
    expected = {
        "examples": len(labels),
        "loss": losses.mean(),
        "accuracy": (chosen == labels).mean(),
        "worst_loss": losses.max(),
        "least_confidence": probs.max(axis=1).min(),
        # From the definitions: counts of each class, and pairs of a positive and a negative.
        "macro_f1": np.mean([f1_of(chosen == c, labels == c) for c in {*chosen, *labels}]),
        "auroc": np.mean([area_of(probs[:, c], labels == c) for c in {*labels}]),
    }
    assert demo.reference(logits, labels) == pytest.approx(expected, rel=1e-12)


def right(rng: np.random.Generator, where: str) -> demo.Reported:
    predictions = random_predictions(rng)
    return demo.Reported(where, demo.reference(*predictions), *predictions)


def test_right_numbers_pass(rng, capsys):
    assert demo.check([right(rng, "train"), right(rng, "test"), right(rng, "train")])
    shown = capsys.readouterr().out
    assert "All numbers agree" in shown
    assert "WRONG" not in shown


@pytest.mark.parametrize("name", demo.REFERENCES)
@pytest.mark.parametrize("error", [2e-5, -2e-5, math.nan, math.inf])
def test_one_wrong_number_fails(rng, capsys, name, error):
    # Wrong in one epoch only, and right in a later one.
    reported = [right(rng, "train"), right(rng, "test"), right(rng, "train")]
    reported[0].numbers[name] += error
    assert not demo.check(reported)
    shown = capsys.readouterr().out
    assert f"FAILED, wrong by more than 1e-05: train/{name}\n" in shown
    (wrong,) = (line for line in shown.splitlines() if "WRONG" in line)
    assert wrong.split()[0] == f"train/{name}"


def test_a_small_difference_passes(rng, capsys):
    one = right(rng, "train")
    one.numbers["loss"] += 5e-6
    assert demo.check([one])
    assert "5.0e-06" in capsys.readouterr().out


def test_a_number_without_reference_is_an_error(rng):
    one = right(rng, "train")
    one.numbers["extra"] = 1.0
    with pytest.raises(ValueError, match="extra"):
        demo.check([one])
