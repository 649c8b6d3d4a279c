"""Every command that a page names: it is there, and what it runs runs."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from tests.helpers import LONG
from tests.test_examples import PAGES, ROOT, relative

COMMAND = re.compile(r"`(?:\w+=\S+ )*(?:python|make) [^`\n]+`|^(?:python|make) .+$", re.MULTILINE)
TARGETS = {
    line.split(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if ":" in line
}
# Those that take seconds run each time, the others in the long runs.
QUICK = {"lines.py", "tags.py"}
# They take a device, another environment, or many minutes by what they are.
APART = {"bandwidth.py", "by_hand.py", "tpu.py", "host.py", "trainers.py", "engines.py"}
BENCHMARKS = sorted(
    file.name
    for file in (ROOT / "benchmarks").glob("*.py")
    if file.name not in APART and (LONG or file.name in QUICK)
)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=relative)
def test_commands_of_pages_are_there(page):
    for command in COMMAND.findall(page.read_text()):
        words = [word for word in command.strip("`").split() if "=" not in word]
        if words[0] == "make":
            assert set(words[1:2]) <= TARGETS, command
        elif words[1:2] == ["-m"]:
            assert importlib.util.find_spec(words[2].strip("`.,")), command
        elif words[1:2] and words[1].endswith(".py") and "/" in words[1]:
            assert (ROOT / words[1]).is_file(), command


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks_run(name):
    command = [sys.executable, f"benchmarks/{name}"]
    run = subprocess.run(
        command, cwd=ROOT, env=dict(os.environ, XLA_FLAGS=""), capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout
