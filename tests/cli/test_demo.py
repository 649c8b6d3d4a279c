"""`datarax demo`, run as a user would: what it prints, what it writes, how it ends."""

import json
import math
import re
from typing import NamedTuple

import numpy as np
import pytest
from matplotlib.image import imread

from tests.cli.command import datarax

EPOCHS, DEVICES = 2, 4
NAMES = ["examples", "loss", "accuracy", "worst_loss", "least_confidence"]
HALF_A_DIGIT = 0.5e-4 + 1e-9  # of the four decimals that tables show


class Run(NamedTuple):
    lines: list[str]
    history: list[dict[str, float]]
    picture: np.ndarray


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Run:
    cwd = tmp_path_factory.mktemp("demo")
    done = datarax(
        *("demo", "--epochs", str(EPOCHS), "--devices", str(DEVICES), "--output", "a/b"), cwd=cwd
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert {path.name for path in cwd.rglob("*.*")} == {"history.jsonl", "learning_curve.png"}
    history = (cwd / "a/b/history.jsonl").read_text().splitlines()
    picture = imread(cwd / "a/b/learning_curve.png")
    return Run(done.stdout.splitlines(), [json.loads(line) for line in history], picture)


def table(run: Run, label: str) -> list[tuple[str, dict[str, float]]]:
    """The rows of numbers whose label matches, as printed."""
    number = r"\s+([\d.]+|nan)"
    found = [re.match(rf"\s*({label}){number * 5}\s*$", line) for line in run.lines]
    return [
        (row[1], dict(zip(NAMES, map(float, row.groups()[1:]), strict=True)))
        for row in found
        if row
    ]


def assert_shown(shown: dict[str, float], written: dict[str, float], prefix: str) -> None:
    for name in NAMES:
        assert shown[name] == pytest.approx(written[f"{prefix}/{name}"], abs=HALF_A_DIGIT)


def test_history_is_what_was_printed(demo):
    assert [record["epoch"] for record in demo.history] == [1, 2]
    rows = table(demo, r"\d+ (?:train|test)")
    assert [label for label, _ in rows] == ["1 train", "1 test", "2 train", "2 test"]
    for label, numbers in rows:
        epoch, split = label.split()
        assert_shown(numbers, demo.history[int(epoch) - 1], split)
    names = {f"{split}/{name}" for split in ("train", "test") for name in NAMES}
    assert all(record.keys() == names | {"epoch"} for record in demo.history)


def test_every_example_counts_once(demo):
    # 1437 = 11 * 128 + 29, and 360 = 2 * 128 + 104: both end in a partial batch.
    for record in demo.history:
        assert (record["train/examples"], record["test/examples"]) == (1437, 360)


def test_it_learns(demo):
    first, last = demo.history
    assert last["train/loss"] < first["train/loss"] < math.log(10)
    assert last["test/accuracy"] > 0.8


def test_pmap_finds_what_the_evaluation_found(demo):
    devices = table(demo, r"device \d+")
    assert [label for label, _ in devices] == [f"device {i}" for i in range(DEVICES)]
    ((_, together),) = table(demo, "all devices")
    assert_shown(together, demo.history[-1], "test")
    alone = {name: np.array([numbers[name] for _, numbers in devices]) for name in NAMES}
    assert len(set(alone["examples"])) > 1  # shards of unequal weight: a mean of means is wrong
    assert alone["examples"].sum() == together["examples"]
    for name in ("loss", "accuracy"):
        mean = np.average(alone[name], weights=alone["examples"])
        assert mean == pytest.approx(together[name], abs=2 * HALF_A_DIGIT)
    assert alone["worst_loss"].max() == together["worst_loss"]
    assert alone["least_confidence"].min() == together["least_confidence"]


def test_every_number_is_checked(demo):
    checks = [line.split() for line in demo.lines if line.rstrip().endswith(" ok")]
    compared = {" ".join(words[:-4]): float(words[-2]) for words in checks}
    places = ("train", "test", "device", "all devices")
    assert compared.keys() == {f"{place}/{name}" for place in places for name in NAMES}
    assert max(compared.values()) <= 1e-5
    assert "All numbers agree to within 1e-05" in demo.lines
    assert (
        f"steps ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ {15 * EPOCHS}/{15 * EPOCHS}"
        in "\n".join(demo.lines)
    )


def test_it_names_its_files(demo):
    assert "Wrote a/b/history.jsonl and a/b/learning_curve.png" in demo.lines


def test_picture_shows_curves(demo):
    assert demo.picture.ndim == 3
    colours = np.unique(demo.picture[..., :3].reshape(-1, 3), axis=0)
    assert len(colours) > 20


@pytest.mark.parametrize("devices", [1, 5])
def test_other_numbers_of_devices(demo, tmp_path, devices):
    done = datarax("demo", "--epochs", "1", "--devices", str(devices), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (tmp_path / "datarax-demo" / "history.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert (record["train/examples"], record["test/examples"]) == (1437, 360)
    if devices == 1:  # with batches of the same size as on four, it is the same training
        assert record == pytest.approx(demo.history[0], rel=1e-4)
