"""A command that is stopped by a signal while it reads a certain file, or computes the results.

`tests/cli/test_stopping.py` runs this module, and so do the processes that it starts. The signal
comes from the place where the file is read: so always after some parts, and before the end.
"""

import ctypes
import os
import signal
import sys
import time

from datarax.cli import evaluation_commands
from datarax.evaluation import files
from datarax.evaluation.npz_files import NpzFile
from datarax.evaluation.partial_state import Folding

PART = "part-9.npz"
HOW = os.environ["STOP_BY"]
state_of = Folding.state_of


def stop() -> None:
    """Sends the signals to the command, which is this process or its parent."""
    command = int(os.environ.setdefault("STOP_PROCESS", str(os.getpid())))
    if HOW == "SIGKILL":
        os.kill(command, signal.SIGKILL)
    os.kill(command, signal.SIGINT)
    while HOW == "again and again":
        time.sleep(0.01)
        os.kill(command, signal.SIGINT)


class Slow(NpzFile):
    """A file on a disk that does not answer any more."""

    def read(self, part, types, rows):
        if self.path.endswith(PART):
            stop()
            time.sleep(600)
        yield from super().read(part, types, rows)


def compiles(folding, part, *args):
    """Folds a part; that of one file in a program that is compiled for minutes, outside Python."""
    if part.path.endswith(PART):
        stop()
        left = 600
        while left:  # a signal that comes to this thread ends the sleep
            left = ctypes.CDLL(None).sleep(left)
    return state_of(folding, part, *args)


def computes(*_):
    """Computes the results in a program that is compiled for minutes."""
    stop()
    time.sleep(600)


if HOW == "results":
    evaluation_commands.summary_of = evaluation_commands.comparison_of = computes
elif HOW == "compile":
    setattr(Folding, "state_of", compiles)  # noqa: B010
else:
    files.FORMATS[".npz"] = Slow

if __name__ == "__main__":
    from datarax.cli import program

    # A shell that runs its tests in the background makes them ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["STOP_PROCESS"] = str(os.getpid())
    sys.argv[0] = "datarax"
    program()
