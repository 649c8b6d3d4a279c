"""Ctrl-C ends the demo with all its processes, at whatever stage of their start it comes."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.command import members
from tests.cli.interrupting import STAGES
from tests.test_layers import ROOT

MAIN = "import sys, tests.cli.interrupting as each; sys.exit(each.main(*sys.argv[1:]))"


def run(stage, folder):
    """The exit code and stderr; fails if a process of the group is left."""
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, stage, folder],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            _, error = program.communicate(timeout=60)
            deadline = time.monotonic() + 30
            while members(program.pid):
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    return program.returncode, error


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_at_every_stage(tmp_path, stage):
    assert run(stage, tmp_path) == (130, "interrupted\n")


def test_it_is_ignored_where_the_program_ignores_it(tmp_path):
    assert run("ignored", tmp_path) == (0, "")
