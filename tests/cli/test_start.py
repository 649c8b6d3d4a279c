"""Ctrl-C ends the command with 130 and one word, from the first line of the package on."""

import subprocess
import sys

import pytest

from tests.cli.command import SCRIPT, datarax
from tests.test_layers import ROOT

CUSTOM = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have made it ignored
class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == os.environ.get("INTERRUPT_AT"):
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
"""
STAGES = (
    *("typing", "datarax._errors", "datarax.cli", "argparse", "datarax._optional"),
    *("datarax.cli.interrupts", "datarax.cli.evaluation_arguments", "datarax.cli.one_line"),
    *("rich", "jax", "datarax.cli.evaluation_commands", "datarax.evaluation.arrow_files"),
)


@pytest.fixture
def interrupting(tmp_path):
    """The environment of a command whose interpreter interrupts itself when it imports a module."""
    (tmp_path / "sitecustomize.py").write_text(CUSTOM)
    return {"PYTHONPATH": f"{tmp_path}:{ROOT}"}


@pytest.mark.parametrize("stage", STAGES)
def test_the_script(tmp_path, interrupting, stage):
    arguments = ("evaluate", "a.csv", "--task", "binary", "--preds", "p", "--target", "t")
    done = datarax(*arguments, cwd=tmp_path, **interrupting, INTERRUPT_AT=stage)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("stage", ["datarax._errors", "datarax.cli", "argparse", "jax"])
def test_the_module(tmp_path, interrupting, stage):
    done = subprocess.run(
        [sys.executable, "-m", "datarax.cli", "info"],
        cwd=tmp_path,
        env=interrupting | {"INTERRUPT_AT": stage},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("name", ["train.py", "datarax"])
def test_other_programs_keep_their_handler(tmp_path, interrupting, name):
    """Also a process that one of the command has spawned, whose arguments look like those."""
    code = """
import signal, sys
import datarax.cli
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    (tmp_path / "train.py").write_text(code)
    spawned = ["-c", f"import sys; sys.argv = ['{SCRIPT}', 'info']{code}"]
    done = subprocess.run(
        [sys.executable, *([name] if name == "train.py" else spawned)],
        cwd=tmp_path,
        env=interrupting,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
