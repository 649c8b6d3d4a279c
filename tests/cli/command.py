"""The installed command `datarax`, run as a user would."""

import os
import subprocess
import sysconfig
from pathlib import Path

SCRIPT = Path(sysconfig.get_path("scripts"), "datarax")


def datarax(*args: str | Path, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs it in `cwd`; JAX's settings in the tests' own environment do not reach it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "COLUMNS"))}
    return subprocess.run(
        [SCRIPT, *args],
        cwd=cwd,
        env=env | environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def members(group: int) -> list[int]:
    """The processes of a group that have not ended."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=", "-o", "pgid=", "-o", "stat="],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [int(pid) for pid, pgid, state in rows if int(pgid) == group and state[0] != "Z"]
