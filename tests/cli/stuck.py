"""A metric whose update does not end, and the real command that is interrupted while it runs.

`tests/cli/test_stopping.py` and `tests/engines/test_interrupts.py` run it. The metric is a user's
own, so the command and the workers of any engine import it.
"""

import ctypes
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np

from datarax.cli import main
from datarax.metrics import MeanAbsoluteError
from tests.test_layers import ROOT

STUCK = "DATARAX_TEST_STUCK"
MARK = "DATARAX_TEST_MARK"
SECONDS = 30  # generous: a second or two on an idle machine
FILES = 6


class Stuck(MeanAbsoluteError):
    """The mean absolute error; of a target of 1,000, it is computed outside Python for minutes."""

    def update(self, preds, target, **others):
        folder = os.environ.get(STUCK)
        if folder is not None and np.any(np.asarray(target) == 1000):
            Path(folder, f"stuck-{os.getpid()}").touch()
            ctypes.CDLL(None).sleep(600)
        return super().update(preds, target, **others)


def write_parts(folder: Path, rng: np.random.Generator) -> float:
    """Writes files of which one part does not end, and returns the error of all rows."""
    preds, target = rng.integers(-9, 10, (2, FILES, 20))
    target[3, 7] = 1000
    for i in range(FILES):
        np.savez(folder / f"part-{i}.npz", p=preds[i], t=target[i])
    return float(np.abs(preds - target).mean())


def marked(mark: str) -> list[int]:
    """The processes, of any group, whose environment has the mark."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def interrupted(folder: Path, stage: str, *argv: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a command that is interrupted at a stage.

    "start" is when it has started a process, "update" when an update does not end. The signal goes
    to all processes of the group, as a terminal sends it.
    """
    mark = uuid.uuid4().hex
    environment = os.environ | {STUCK: str(folder), MARK: mark, "PYTHONPATH": str(ROOT)}
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program += "from datarax.cli import program; program()"
    with subprocess.Popen(
        [sys.executable, "-c", program, *argv],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as command:
        try:
            begin = time.monotonic()
            while True:
                at_update = list(folder.glob("stuck-*"))
                if at_update if stage == "update" else len(marked(mark)) > 1:
                    break
                assert command.poll() is None, command.communicate()
                assert time.monotonic() < begin + 200
                time.sleep(0.02)
            os.killpg(command.pid, signal.SIGINT)
            shown, errors = command.communicate(timeout=SECONDS)
            ended = time.monotonic()
            while left := marked(mark):
                assert time.monotonic() < ended + SECONDS, left
                time.sleep(0.02)
        finally:
            for process in marked(mark):
                os.kill(process, signal.SIGKILL)
    return command.returncode, shown, errors


def check_an_interrupt(folder: Path, rng: np.random.Generator, engine: str, stage: str) -> str:
    """Interrupts an evaluation, continues it, and returns what else the first wrote on stderr."""
    parts, out = folder / "parts", folder / "out"
    parts.mkdir()
    error = write_parts(parts, rng)
    argv = ["evaluate", str(parts), "--task", "regression", "--preds", "p", "--target", "t"]
    argv += ["--metrics", "mae,stuck=tests.cli.stuck.Stuck", "--output", str(out), "--no-progress"]
    workers = ("--engine", engine, "--workers", "2")
    code, shown, errors = interrupted(folder, stage, *argv, *workers)
    assert (code, shown) == (130, ""), errors
    assert {path.name for path in out.iterdir()} == {"partial.npz"}
    lines = errors.splitlines()
    (said,) = (line for line in lines if line.startswith("interrupted: "))
    left = re.fullmatch(
        rf"interrupted: (\d) of {FILES} parts are left; --resume continues"
        rf"(, and datarax merge {re.escape(shlex.quote(str(out)))} --output DIR shows the others)?",
        said,
    )
    assert left, said
    assert 0 < int(left[1]) <= FILES
    assert (left[2] is None) == (int(left[1]) == FILES)

    assert main([*argv, "--resume"]) == 0
    summary = json.loads((out / "metrics.json").read_text())
    assert summary["source"] == {**summary["source"], "complete": True, "rows": 20 * FILES}
    found = {row["name"]: np.float32(row["value"]) for row in summary["metrics"]}
    assert found == {"mae": np.float32(error), "stuck": np.float32(error)}
    # The command waits a moment only for its threads. On a busy machine that may be too short, and
    # then Python says which semaphores it deletes.
    return "\n".join(x for x in lines if x != said and "resource_tracker" not in x)
