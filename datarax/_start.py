"""Ctrl-C while the command `datarax` starts and ends: the process ends at once, with no traceback.

`datarax/__init__.py` imports this first, which has that effect in the process of the command. A
program that imports datarax keeps its own handlers.
"""

# Built in: `signal` would first import `enum`, which takes some milliseconds.
import _signal  # pyright: ignore[reportMissingImports]
import os
import sys

INTERRUPTED = 130
"""The exit code after Ctrl-C."""


def _is_command() -> bool:
    """True in the process of `datarax` and of `python -m datarax.cli`; false in its children."""
    # Spawned processes have the arguments of their parent, but were not started with them.
    script, started = getattr(sys, "argv", [])[:1], sys.orig_argv
    if script == ["-m"]:
        return "datarax.cli" in started
    return any(
        each in started and os.path.basename(each) in _SCRIPTS  # noqa: PTH119, pathlib is slow
        for each in script
    )


_SCRIPTS = ("datarax", "datarax.exe", "datarax-script.py")


def _end(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def end_on_interrupt() -> None:
    """From here on, Ctrl-C ends the process, unless it is ignored or handled by somebody else."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _end)


def raise_on_interrupt() -> None:
    """Ends what `end_on_interrupt` began: Ctrl-C raises `KeyboardInterrupt` again."""
    if _signal.getsignal(_signal.SIGINT) is _end:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


if _is_command():
    end_on_interrupt()
