"""A program that is interrupted at a given stage; `tests/cli/test_interrupts.py` starts it.

It runs `datarax demo --processes 2` with a target that sleeps, in a process group of its own, and
sends SIGINT to the group, as a terminal does on Ctrl-C.
"""

import os
import signal
import sys
import time
import weakref
from collections.abc import Callable
from multiprocessing import connection, resource_tracker, util
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from datarax import cli
from datarax.cli import launch


def interrupt(*_: Any) -> None:
    os.killpg(0, signal.SIGINT)


if os.environ.get("STAGE") == "a child imports":  # the variable is set once this is imported
    interrupt()


def sleeps(rank: int, folder: str, stage: str) -> int:
    Path(folder, str(rank)).write_text(str(os.getpid()))
    if stage == "a child runs" and rank == 1:
        interrupt()
    if stage == "ignored":
        interrupt()
        return 0
    time.sleep(600)
    return 0


def dropped(*_: Any) -> None:
    """Interrupts in a callback, which drops every exception."""

    class Target:
        pass

    target = Target()
    keep = weakref.ref(target, interrupt)
    del target, keep


def hooked(owner: Any, name: str, number: int, *, after: bool = False, call: Callable[..., None]):
    """Makes the call of that number of a function interrupt, before or after it is done."""
    original, calls = getattr(owner, name), []

    def function(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == number and not after:
            call()
        result = original(*args, **kwargs)
        if len(calls) == number and after:
            call()
        return result

    setattr(owner, name, function)


STAGES: dict[str, Callable[[], Any]] = {
    "arguments": lambda: hooked(cli, "find_spec", 2, call=interrupt),
    "dropped in the imports": lambda: hooked(cli, "find_spec", 2, call=dropped),
    "before the tracker": lambda: hooked(resource_tracker, "ensure_running", 1, call=interrupt),
    "in the tracker": lambda: hooked(util, "spawnv_passfds", 1, call=interrupt),
    "after the tracker": lambda: hooked(
        resource_tracker, "ensure_running", 1, after=True, call=interrupt
    ),
    "before the first child": lambda: hooked(SpawnProcess, "start", 1, call=interrupt),
    "in the first child": lambda: hooked(util, "spawnv_passfds", 2, call=interrupt),
    "first child made": lambda: hooked(util, "spawnv_passfds", 2, after=True, call=interrupt),
    "dropped between": lambda: hooked(SpawnProcess, "start", 2, call=dropped),
    "between the children": lambda: hooked(SpawnProcess, "start", 2, call=interrupt),
    "in the second child": lambda: hooked(util, "spawnv_passfds", 3, call=interrupt),
    "after the children": lambda: hooked(SpawnProcess, "start", 2, after=True, call=interrupt),
    "before the wait": lambda: hooked(connection, "wait", 1, call=interrupt),
    "dropped before the wait": lambda: hooked(connection, "wait", 1, call=dropped),
    "in a later wait": lambda: hooked(connection, "wait", 4, after=True, call=interrupt),
    "twice": lambda: (
        hooked(connection, "wait", 2, call=interrupt),
        hooked(SpawnProcess, "kill", 1, call=interrupt),
        hooked(SpawnProcess, "join", 2, call=interrupt),
    ),
    "a child imports": lambda: None,
    "a child runs": lambda: None,
}


def main(stage: str, folder: str) -> int:
    if stage == "ignored":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        # A shell that runs its tests in the background makes them ignore it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        STAGES[stage]()
    os.environ["STAGE"] = stage
    demo = sys.modules["tests.cli.interrupting"]
    cli._report_demo = lambda _: 0  # this target writes no predictions
    launch.run_demo = lambda *_: launch.run(demo.sleeps, 2, folder, stage, limit=600)
    return cli.main(["demo", "--processes", "2", "--output", f"{folder}/output"])
