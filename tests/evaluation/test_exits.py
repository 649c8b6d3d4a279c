"""After an error in a file, a program ends with its status: nothing that is open ends it first."""

import subprocess
import sys

import numpy as np
import pytest

from tests.cli.command import datarax
from tests.evaluation.written import FORMATS, write
from tests.test_layers import ROOT

ROWS = 300_000  # some blocks of text


@pytest.fixture
def columns(rng):
    return {"x": rng.random(ROWS), "label": rng.integers(0, 2, ROWS), "s": ["text"] * ROWS}


def test_a_program_that_keeps_its_errors(tmp_path, columns):
    """Also if the text is damaged at its start, in the middle, or at the end."""
    for form in FORMATS:
        write(tmp_path / f"whole.{form}", {name: np.asarray(x) for name, x in columns.items()})
    for form, wrong in (("csv", b'"0.5,1,a\n'), ("jsonl", b'{"x": "text", "label": {}}\n')):
        lines = (tmp_path / f"whole.{form}").read_bytes().splitlines(keepends=True)
        for place in (10, ROWS // 2, ROWS - 10):
            path = tmp_path / f"damaged-{place}.{form}"
            path.write_bytes(b"".join([*lines[:place], wrong, *lines[place:]]))
    done = subprocess.run(
        [sys.executable, "-m", "tests.evaluation.exits", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_the_command(tmp_path, columns):
    write(tmp_path / "a.csv", {name: np.asarray(x) for name, x in columns.items()})
    arguments = ("--task", "binary", "--preds", "s", "--target", "label", "--no-progress")
    for command in (("evaluate", "a.csv"), ("compare", "a.csv", "a.csv")):
        done = datarax(*command, *arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


def test_the_command_ends_while_a_thread_is_busy():
    """As one that reads a slow file: the interpreter would wait, or abort when it is done."""
    code = """
import sys, threading, time
from datarax.cli import interrupts
threading.Thread(target=time.sleep, args=(600,), name="datarax-read-ahead").start()
interrupts.end(2)
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False)
    assert ended.returncode == 2
