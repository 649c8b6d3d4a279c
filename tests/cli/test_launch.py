"""Processes of this machine: what they return, how they fail, and that none is left behind."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from datarax.cli import launch
from tests.processes import alive


def leaves_its_number(rank: int, folder: Path, codes: tuple[int, ...]) -> int:
    (folder / str(rank)).write_text(str(os.getpid()))
    return codes[rank]


def waits_after(rank: int, folder: Path, what: str) -> int:
    """Process 1 does `what` once all are there; the others wait for ever."""
    (folder / str(rank)).write_text(str(os.getpid()))
    while len(list(folder.iterdir())) < 3:
        time.sleep(0.01)
    if rank == 1:
        if what == "raise":
            raise ValueError("the threshold was 0.5")
        if what == "exit":
            sys.exit(7)
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
    return 0


def pids(folder: Path) -> list[int]:
    return [int(file.read_text()) for file in folder.iterdir()]


def test_all_return(tmp_path, capfd):
    assert launch.run(leaves_its_number, 3, tmp_path, (0, 0, 0), limit=60) == 0
    assert len({*pids(tmp_path), os.getpid()}) == 4
    assert capfd.readouterr() == ("", "")


def test_one_returns_a_code(tmp_path, capfd):
    assert launch.run(leaves_its_number, 2, tmp_path, (0, 3), limit=60) == 1
    assert capfd.readouterr().err == "process 1 of 2 exited with 3\n"


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("raise", "exited with 1"),
        ("exit", "exited with 1"),
        ("kill", "was ended by SIGKILL"),
        ("hang", "stopped: not finished after 5 s"),
    ],
)
def test_a_failure_ends_all(tmp_path, capfd, what, said):
    start = time.monotonic()
    limit = 5 if what == "hang" else 60
    assert launch.run(waits_after, 3, tmp_path, what, limit=limit) == 1
    assert time.monotonic() - start < 50
    assert not any(map(alive, pids(tmp_path)))
    error = capfd.readouterr().err
    assert error.endswith(f"{said}\n")
    assert ("ValueError: the threshold was 0.5" in error) == (what == "raise")
    if what != "hang":
        assert "process 1 of 3 " in error


def test_ports_differ_while_they_are_held():
    with launch._reserved_port() as first, launch._reserved_port() as second:
        assert first != second
