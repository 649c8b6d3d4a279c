"""`datarax demo`, run as a user would: what it prints, what it writes, how it ends."""

import contextlib
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import scipy.stats
from matplotlib.image import imread

from datarax.cli import digits, main
from datarax.cli.demo import run
from tests.cli.command import SCRIPT, members
from tests.cli.quality import (
    Predictions,
    interval_differences,
    quality_differences,
    quality_reference,
)
from tests.helpers import long

EPOCHS, DEVICES = 2, 5  # which do not divide a batch
REPLICAS = 50  # of the run in this process; the other has as many as users have
SPLITS = ("train", "test")
NAMES = ["examples", "loss", "accuracy", "worst_loss", "least_confidence", "macro_f1", "auroc"]
SLICES = {"digit": list("0123456789"), "ink": ["light", "medium", "heavy"]}
HALF_A_DIGIT = 0.5e-4 + 1e-9  # of the four decimals that tables show


class Run(NamedTuple):
    lines: list[str]
    history: list[dict[str, float]]
    picture: np.ndarray
    report: dict[str, Any]
    predictions: Predictions


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Run:
    """In this process, which has JAX and its devices already."""
    cwd, shown = tmp_path_factory.mktemp("demo"), io.StringIO()
    argv = ["demo", "--slices", "--epochs", str(EPOCHS), "--output", "a/b"]
    with (
        pytest.MonkeyPatch.context() as patched,
        contextlib.redirect_stdout(shown),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        patched.chdir(cwd)
        patched.setattr(os, "environ", os.environ.copy())
        patched.setattr("datarax.cli.REPLICAS", REPLICAS)
        assert main([*argv, "--devices", str(DEVICES)]) == 0, shown.getvalue()
    return written(cwd / "a/b", shown.getvalue())


@pytest.fixture(scope="module")
def processes(tmp_path_factory) -> Run:
    """Two processes with the default folder; this one, which has JAX already, is their parent."""
    cwd = tmp_path_factory.mktemp("processes")
    flags = re.sub(r"--xla_force_host\S*", "", os.environ["XLA_FLAGS"])
    with (
        pytest.MonkeyPatch.context() as patched,
        output_in(tmp_path_factory.mktemp("output")) as texts,
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        for name in [name for name in os.environ if name.startswith("JAX_")]:
            patched.delenv(name)
        patched.setenv("XLA_FLAGS", flags)  # `make demo` has the options of XLA, too
        patched.chdir(cwd)
        code = main(["demo", "--epochs", str(EPOCHS), "--processes", "2"])
    out, err = texts()
    assert code == 0, out + err
    assert err == ""
    return written(cwd / "datarax-demo", out)


@contextlib.contextmanager
def output_in(folder: Path) -> Iterator[Callable[[], list[str]]]:
    """Sends what this process and its children print to files; gives what reads both of them."""
    streams = {"out": sys.stdout, "err": sys.stderr}
    own = {}
    with contextlib.ExitStack() as files:
        for fd, (name, stream) in enumerate(streams.items(), 1):
            stream.flush()
            own[fd] = os.dup(fd)
            os.dup2(files.enter_context((folder / name).open("w")).fileno(), fd)
        try:
            with (
                open(1, "w", closefd=False) as out,
                open(2, "w", closefd=False) as err,
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
            ):
                yield lambda: [(folder / name).read_text() for name in streams]
        finally:
            for fd, before in own.items():
                os.dup2(before, fd)
                os.close(before)


def written(folder: Path, shown: str) -> Run:
    assert {path.name for path in folder.iterdir()} == {
        "history.jsonl", "learning_curve.png", "predictions.npz", "report"
    }  # fmt: skip
    assert "multiclass" in (folder / "report/report.html").read_text()
    history = (folder / "history.jsonl").read_text().splitlines()
    picture = imread(folder / "learning_curve.png")
    report = json.loads((folder / "report/metrics.json").read_text())
    with np.load(folder / "predictions.npz") as arrays:
        predictions = Predictions(arrays["logits"], arrays["digit"])
    records = [json.loads(line) for line in history]
    return Run(shown.splitlines(), records, picture, report, predictions)


def table(run: Run, label: str) -> list[tuple[str, dict[str, float]]]:
    """The rows of numbers whose label matches, as printed."""
    number = r"\s+([\d.]+|nan)"
    found = [re.match(rf"\s*({label}){number * len(NAMES)}\s*$", line) for line in run.lines]
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
    names = {f"{split}/{name}" for split in SPLITS for name in NAMES}
    assert all(record.keys() == names | {"epoch"} for record in demo.history)


def test_every_example_counts_once(demo):
    # 1437 = 11 * 128 + 29, and 360 = 2 * 128 + 104: both end in a partial batch.
    for record in demo.history:
        assert (record["train/examples"], record["test/examples"]) == (1437, 360)


def test_it_shows_the_wrong_number_of_usual_code_beside_the_right_one(demo):
    usual, found, expected = (line[36:].split() for line in demo.lines[2:5])
    assert found == expected
    assert abs(float(usual[0]) - float(found[0])) > 0.02
    ((_, together),) = table(demo, "all devices")
    won = re.findall(r"^  (\w+) [\d.]+ instead of ([\d.]+)$", "\n".join(demo.lines), re.MULTILINE)
    assert {name: float(value) for name, value in won} == {
        name: together[name] for name in ("macro_f1", "auroc")
    }


def test_it_learns(demo):
    first, last = demo.history
    assert last["train/loss"] < first["train/loss"] < math.log(10)
    assert last["test/accuracy"] > 0.8


def test_pmap_finds_what_the_evaluation_found(demo):
    ((_, together),) = table(demo, "all devices")
    assert_shown(together, demo.history[-1], "test")


def test_every_number_is_checked(demo):
    checks = [line.split() for line in demo.lines if line.rstrip().endswith(" ok")]
    compared = {words[0]: float(words[-2]) for words in checks}
    assert compared.keys() == {f"{place}/{name}" for place in (*SPLITS, "pmap") for name in NAMES}
    assert max(compared.values()) <= 1e-5
    assert "All numbers agree to within 1e-05" in demo.lines


@pytest.mark.parametrize("where", ["demo", "processes"])
def test_the_report_shows_how_good_the_predictions_are(where, request):
    one = request.getfixturevalue(where)
    found = {row["name"]: row for row in one.report["metrics"]}
    ((_, together),) = table(one, "all devices")
    assert found["accuracy"]["value"] == pytest.approx(together["accuracy"], abs=HALF_A_DIGIT)
    expected = quality_reference(one.predictions)
    reported = {name: found[name]["value"] for name in expected if name != "recall"}
    (recall,) = (c["values"] for c in one.report["by_class"]["columns"] if c["name"] == "recall")
    lower, upper = bounds = found["auroc"]["bounds"]
    assert lower <= upper < lower + 0.01
    wrong = quality_differences(reported | {"recall": recall}, bounds, expected)
    assert max(wrong.values()) <= 1e-5
    # What the file has is what the command shows.
    shown = dict(re.findall(r"^ (\w+) +([\d.]+) ", "\n".join(one.lines), re.M))
    for name, row in found.items():
        digits = len(shown[name].partition(".")[2])  # as many as its interval justifies
        assert digits >= 2
        assert shown[name] == f"{row['value']:.{digits}f}", name


def intervals(run: Run) -> dict[str, Any]:
    """By slice: examples, value, lower, upper of the accuracy. Of all: lower, upper of each."""
    out = {}
    for row in run.report["metrics"]:
        if row["lower"] is not None:  # the state of the AUROC is too large for draws
            out |= {f"interval/{end}/{row['name']}": row[end] for end in ("lower", "upper")}
    for by in run.report["slices"]:
        for row in by["rows"]:
            out[f"{by['by']}/examples/{row['name']}"] = row["examples"]
            for part, x in row["values"]["accuracy"].items():
                out[f"{by['by']}/{part}/{row['name']}"] = x
    return out


def test_slices_and_intervals(demo):
    _, test = digits.load()
    assert [by["by"] for by in demo.report["slices"]] == list(SLICES)
    found, labels = intervals(demo), demo.predictions.labels
    right = demo.predictions.logits.argmax(axis=1) == labels
    ink = np.digitize(test.images.mean(axis=1), (0.287, 0.321))

    def check(where: str, name: str, inside: np.ndarray) -> None:
        count, hits = int(inside.sum()), int(right[inside].sum())
        wilson = scipy.stats.binomtest(hits, count).proportion_ci(method="wilson")
        ends = [found[f"{where}/{end}/{name}"] for end in ("lower", "upper")]
        np.testing.assert_allclose(ends, wilson, rtol=1e-6)
        if where != "interval":
            assert found[f"{where}/examples/{name}"] == count
            np.testing.assert_allclose(found[f"{where}/value/{name}"], hits / count, rtol=1e-6)

    check("interval", "accuracy", np.ones(len(labels), bool))
    for by, ids in (("digit", test.labels), ("ink", ink)):
        for place, name in enumerate(SLICES[by]):
            check(by, name, ids == place)
    methods = {row["name"]: row["method"] for row in demo.report["metrics"]}
    assert methods["accuracy"] == "wilson"
    f1 = interval_differences(found, demo.predictions, {}, REPLICAS)["quality/macro_f1/interval"]
    assert f1 <= (1e-5 if methods["macro_f1"] == "bootstrap" else 0.01)


def test_predictions_are_the_same_on_processes(demo, processes):
    np.testing.assert_array_equal(processes.predictions.labels, demo.predictions.labels)
    np.testing.assert_allclose(processes.predictions.logits, demo.predictions.logits, atol=1e-4)
    # The intervals come from this file in one process, with as many metrics.
    of_slices = [name for name in intervals(demo) if not name.startswith("interval")]
    assert set(intervals(demo)) - set(of_slices) == set(intervals(processes))
    # Examples, value, lower, upper, std_error, method, p_value and p_adjusted.
    assert len(of_slices) == 8 * 13


def test_it_names_its_files(demo):
    assert "Wrote a/b/history.jsonl and a/b/learning_curve.png" in demo.lines


def test_picture_shows_curves(demo):
    assert demo.picture.ndim == 3
    colours = np.unique(demo.picture[..., :3].reshape(-1, 3), axis=0)
    assert len(colours) > 20


def test_processes_give_the_same_numbers(demo, processes):
    # To five digits, as the command line says; counts to the last.
    for one, two in zip(demo.history, processes.history, strict=True):
        assert two == pytest.approx(one, rel=1e-5)
    examples = [record[f"{split}/examples"] for record in processes.history for split in SPLITS]
    assert examples == [1437, 360] * EPOCHS
    for label in ("1 train", "1 test", "2 train", "2 test", "all devices"):
        ((_, shown),) = table(demo, label)
        ((_, also),) = table(processes, label)
        assert also == pytest.approx(shown, abs=2 * HALF_A_DIGIT)
    assert processes.lines[6].endswith("on 2 processes")
    for line in ("All numbers agree to within 1e-05", "Wrote datarax-demo/history.jsonl and "):
        assert sum(text.startswith(line) for text in processes.lines) == 1


def test_one_device(demo, tmp_path):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        assert run(1, 1, tmp_path) == 0
    (line,) = (tmp_path / "history.jsonl").read_text().splitlines()
    assert json.loads(line) == pytest.approx(demo.history[0], rel=1e-5)


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# Programs that a shell runs in the background ignore Ctrl-C, and their children inherit that. This
# one handles it again, and becomes another program.
HANDLES_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("how", "stage"),
    [pytest.param(signal.SIGINT, "training", marks=long), (signal.SIGKILL, "starting")],
)
def test_no_process_is_left_behind(tmp_path, how, stage):
    # All other stages of an interrupt are in test_interrupts.py.
    demo = [SCRIPT, "demo", "--processes", "2", "--epochs", "1000", "--output", tmp_path]
    command = [sys.executable, "-c", HANDLES_CTRL_C, *demo]
    history = tmp_path / "history.jsonl"
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as demo:
        try:
            wait_for(lambda: len(members(demo.pid)) >= 4)  # it, the tracker and two children
            if stage == "training":
                wait_for(lambda: history.exists() and history.read_text() != "", 90)
            # As a terminal does on Ctrl-C: to all of them. Nobody else would kill only the first.
            os.killpg(demo.pid, how) if how == signal.SIGINT else demo.send_signal(how)
            _, error = demo.communicate(timeout=30)
            wait_for(lambda: not members(demo.pid))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(demo.pid, signal.SIGKILL)
    if how == signal.SIGINT:
        assert demo.returncode == 130
        assert error == "interrupted\n"
