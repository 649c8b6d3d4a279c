"""Ctrl-C ends `datarax evaluate` whatever it does, keeps what was computed, and leaves nothing."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from datarax.cli import main
from tests.cli.command import members
from tests.cli.evaluations import command, refusal, values
from tests.cli.stuck import check_an_interrupt
from tests.helpers import long
from tests.test_layers import ROOT

FILES = 20


@pytest.fixture
def rows(rng, tmp_path):
    rows = rng.integers(-9, 10, (FILES, 2, 20))  # integers: their sums are exact in any order
    for i, (preds, target) in enumerate(rows):
        np.savez(tmp_path / f"part-{i}.npz", p=preds, t=target)
    return rows


def stopped(how, *argv):
    """The exit code, stdout and stderr of a command that is stopped; no process of it is left."""
    flags = re.sub(r"--xla_force_host\S*", "", os.environ["XLA_FLAGS"])
    with subprocess.Popen(
        [sys.executable, "-m", "tests.cli.stopping", *argv],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags, "STOP_BY": how},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            shown, errors = program.communicate(timeout=240)
            deadline = time.monotonic() + 30
            while members(program.pid):  # no worker is left
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    return program.returncode, shown, errors


@pytest.mark.parametrize(
    "how",
    [
        "slow file",
        pytest.param("compile", marks=long),
        pytest.param("again and again", marks=long),
        "SIGKILL",
    ],
)
def test_a_stopped_run_keeps_its_progress_and_is_resumed(rows, tmp_path, capsys, how):
    out = tmp_path / "out"
    earlier = {"metrics.json", "report.html", "state.npz"} if how == "compile" else set()
    out.mkdir()
    for name in earlier:
        (out / name).write_bytes(b"earlier")
    task = ("--task", "regression", "--preds", "p", "--target", "t", "--metrics", "mae")
    argv = ["evaluate", str(tmp_path), *task, "--output", str(out), "--no-progress"]
    code, shown, errors = stopped(how, *argv, *(["--overwrite"] if earlier else []))
    said = None
    if how == "SIGKILL":
        assert code == -signal.SIGKILL
    elif how == "again and again":
        assert code in (130, -signal.SIGINT), errors
    else:
        assert code == 130, errors
        merging = f", and datarax merge {out} --output DIR shows the others"
        said = re.fullmatch(
            rf"interrupted: (\d+) of {FILES} parts are left; --resume continues"
            rf"{'' if earlier else re.escape(merging)}\n",
            errors,
        )
        assert said, errors
        assert shown == ""
        assert {path.name for path in out.iterdir()} == earlier | {"partial.npz"}
        assert all((out / name).read_bytes() == b"earlier" for name in earlier)
    merge = ("merge", out, "--output", tmp_path / "some")
    if earlier:
        assert "was stopped, and state.npz is of an earlier one" in refusal(capsys, *merge)
    else:  # also after a kill, whose lock has no process any more
        assert command(*merge) == 0
        source = json.loads((tmp_path / "some" / "metrics.json").read_text())["source"]
        assert not source["complete"]
        done = source["parts"]["done"]
        assert 0 < done < FILES
        assert source["rows"] == 20 * done
        if said is not None:
            assert done == FILES - int(said[1])
        capsys.readouterr()
        partial = (out / "partial.npz").read_bytes()
        assert "holds an evaluation that was stopped" in refusal(
            capsys, "merge", tmp_path / "some", "--output", out
        )
        assert (out / "partial.npz").read_bytes() == partial

    assert main([*argv, "--resume"]) == 0
    pictures = {"pairs.svg", "errors.svg", "error_quantiles.svg"}
    written = {path.name for path in out.iterdir()}
    assert written == {"metrics.json", "report.html", "state.npz"} | pictures
    summary = json.loads((out / "metrics.json").read_text())
    assert summary["source"]["complete"]
    assert summary["source"]["rows"] == 20 * FILES
    expected = np.float32(np.abs(rows[:, 0] - rows[:, 1]).mean())
    assert np.float32(values(summary)["mae"]) == expected

    capsys.readouterr()
    assert "confidence is 0.9 in one and" in refusal(
        capsys, *argv[:-1], "--resume", "--confidence", 0.9
    )
    np.savez(tmp_path / "part-0.npz", p=np.zeros(3, int), t=np.zeros(3, int))
    assert "part-0.npz' has changed since" in refusal(capsys, *argv[:-1], "--resume")


@pytest.mark.parametrize("stage", ["start", "update"])
def test_processes_end_with_the_command(rng, tmp_path, stage):
    assert check_an_interrupt(tmp_path, rng, "processes", stage) == ""


@pytest.mark.parametrize(
    "name", ["evaluate", *(pytest.param(x, marks=long) for x in ("merge", "compare"))]
)
def test_a_command_that_computes_its_results_is_stopped(rng, tmp_path, name):
    """The folder can be written to afterwards, though the process ends while a thread is busy."""
    path, job, out = tmp_path / "a.npz", tmp_path / "job", tmp_path / "out"
    np.savez(path, p=rng.normal(size=20), t=rng.normal(size=20))
    task = ("--task", "regression", "--preds", "p", "--target", "t", "--metrics", "mae")
    said = "interrupted\n"
    if name == "evaluate":
        argv = [path, *task, "--no-progress"]
        said = (
            f"interrupted: 0 of 1 parts are left; --resume continues, and datarax merge {out} "
            f"--output DIR shows the others\n"
        )
    elif name == "compare":
        argv = [path, path, *task, "--no-progress"]
        said = "interrupted: 0 of 1 parts are left; --resume continues\n"
    else:
        argv = [job]
        assert command("evaluate", path, *task, "--output", job) == 0
    argv = [str(each) for each in (name, *argv, "--output", out)]
    assert stopped("results", *argv) == (130, "", said)
    left = {each.name for each in out.iterdir()} if out.exists() else set()
    assert left == (set() if name == "merge" else {"partial.npz"})


def test_a_stopped_comparison_keeps_its_progress_and_is_resumed(rows, rng, tmp_path, capsys):
    other, out = tmp_path / "other", tmp_path / "out"
    other.mkdir()
    better = np.where(rng.integers(0, 2, rows[:, 0].shape) == 1, rows[:, 0], rows[:, 1])
    for i, (preds, target) in enumerate(zip(better, rows[:, 1], strict=True)):
        np.savez(other / f"part-{i}.npz", p=preds, t=target)
    files = str(tmp_path / "part-*.npz"), str(other)
    task = ("--task", "regression", "--preds", "p", "--target", "t", "--metrics", "mae")
    argv = [*task, "--output", str(out), "--bootstrap", "20", "--no-progress"]
    code, shown, errors = stopped("slow file", "compare", *files, *argv)
    assert (code, shown) == (130, "")
    said = re.fullmatch(r"interrupted: (\d+) of 20 parts are left; --resume continues\n", errors)
    assert said, errors
    assert 0 < int(said[1]) < FILES
    assert {path.name for path in out.iterdir()} == {"partial.npz"}
    assert "holds a comparison of two models" in refusal(
        capsys, "merge", out, "--output", tmp_path / "all"
    )
    swapped = refusal(capsys, "compare", *reversed(files), *argv[:-1], "--resume")
    assert "they had another order" in swapped
    assert main(["compare", *files, *argv, "--resume"]) == 0
    assert {path.name for path in out.iterdir()} == {"metrics.json", "comparison.html"}
    resumed = json.loads((out / "metrics.json").read_text())
    assert (
        main(["compare", *files, *argv, "--engine", "processes", "--workers", "1", "--overwrite"])
        == 0
    )
    whole = json.loads((out / "metrics.json").read_text())
    assert resumed["metrics"] == whole["metrics"]
    assert resumed["source"] == whole["source"]
    (row,) = whole["metrics"]
    for model, preds in (("a", rows[:, 0]), ("b", better)):
        assert row[model] == pytest.approx(np.abs(preds - rows[:, 1]).mean(), rel=1e-6)
    assert row["lower"] < row["difference"] < row["upper"]
