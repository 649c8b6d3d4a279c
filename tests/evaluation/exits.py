"""A program that meets many errors in files, keeps all of them, and ends with the status 2.

`tests/evaluation/test_exits.py` runs it. An exception that is kept has the frames in which it was
raised, with what they have opened.
"""

import os
import sys
import threading
from pathlib import Path

from datarax.evaluation import fold
from datarax.evaluation.columns import Encoded
from datarax.evaluation.planning import Files
from datarax.metrics import Accuracy, Mean

KEPT = []


class Refused(Mean):
    """A metric that raises in its update."""

    def update(self, values, **_):
        raise ZeroDivisionError(f"of {len(values)} values")


def keep(call, *args, **kwargs):
    """Keeps the error of a call."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        KEPT.append(error)
    else:
        raise AssertionError(f"no error of {call} with {args}")


def main(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        keep(fold, path, Mean(), {"values": "none"})
        keep(fold, [path, path.with_name("none.csv")], Mean(), {"values": "x"})
        keep(Files, path, lambda _: Encoded({"preds": "none"}))
        keep(fold, path, Accuracy(num_classes=2), {"preds": "x", "target": "s"})
        keep(fold, path, Refused(), {"values": "x"})
        keep(lambda path: Files(path, lambda _: Encoded({"q": "label"})).check_queries("q"), path)
    # After the command has ended, its status depends on the threads that are left.
    threads = {thread.name for thread in threading.enumerate()}
    assert not any(name.startswith("datarax-") for name in threads), threads
    opened = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    assert not [each for each in opened if each.startswith(str(folder))], opened
    sys.exit(2)


main(Path(sys.argv[1]))
