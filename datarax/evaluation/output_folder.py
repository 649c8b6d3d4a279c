"""The folder that a command writes to: one command at a time, and complete files."""

import errno
import json
import os
import secrets
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from datarax._errors import CheckpointError
from datarax.io.new_files import new_beside

LOCK = ".lock"
"""The file that is in a folder while a command writes to it."""


@contextmanager
def held(folder: Path | None) -> Iterator[None]:
    """Makes a folder, and keeps other commands from it until the block ends.

    The lock of a process of this machine that has ended is taken over.

    Raises:
        CheckpointError: another process writes to the folder.
        OSError: it cannot be made.
    """
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    lock, pid = folder / LOCK, os.getpid()
    owner = json.dumps({"host": socket.gethostname(), "pid": pid, "started": _started(pid)})
    while not _created(lock, owner):
        theirs = _owner(lock)
        if theirs is None:
            continue
        _check_ended(theirs, lock)
        aside = lock.with_name(f"{LOCK}.{secrets.token_hex(8)}")
        with suppress(FileNotFoundError):
            lock.rename(aside)  # of several processes, one can
            found = aside.read_text()
            aside.unlink()
            if found != theirs:  # another process took it over before
                _created(lock, found)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def check_not_held(folder: Path) -> None:
    """Checks that no command writes to a folder that is to be read.

    Raises:
        CheckpointError: another process writes to it.
    """
    lock = folder / LOCK
    theirs = _owner(lock)
    if theirs is not None:
        _check_ended(theirs, lock)


def _owner(lock: Path) -> str | None:
    """Reads what a lock says of its process; None if there is no lock."""
    try:
        # A link may lead to nothing, and to read a pipe would wait for its writer.
        if not stat.S_ISREG(lock.lstat().st_mode):
            raise CheckpointError(f"{str(lock)!r} is no lock of datarax: delete it")
        return lock.read_text(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None


def check_no_folders(folder: Path, names: Iterable[str]) -> None:
    """Checks that no folder is where a file is to be written.

    Raises:
        OSError: one is; names it.
    """
    for name in names:
        if (folder / name).is_dir():
            what = "is a folder, and a file is to be written there: move it away"
            raise OSError(errno.EISDIR, what, str(folder / name))


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files to a folder. All are written beside their places before the first is moved.

    Raises:
        OSError: says which files were not written; those that were there stay.
    """
    beside: dict[str, Path] = {}
    left = list(files)
    # The files belong together: a new state must not stand beside an old summary.
    check_no_folders(folder, files)
    try:
        for name, content in files.items():
            beside[name], file = new_beside(folder / name)
            with file:
                file.write(content)
                file.flush()
                # Else a crash after the move could leave an empty file in the place of the old one.
                os.fsync(file.fileno())
        while left:
            beside[left[0]].replace(folder / left[0])
            del left[0]
    except OSError as error:
        what = f"{error.strerror or error}; not written: {', '.join(left)}"
        raise OSError(error.errno, what, str(folder)) from error
    finally:
        for name in left:
            if name in beside:
                with suppress(OSError):
                    beside[name].unlink()


def _created(lock: Path, owner: str) -> bool:
    """Makes the lock, unless there is one."""
    try:
        file = lock.open("x")
    except FileExistsError:
        return False
    with suppress(OSError), file:  # a full disk: an empty lock is one, too
        file.write(owner)
    return True


def _check_ended(owner: str, lock: Path) -> None:
    """Checks that the process that made a lock is known to have ended."""
    name = "another process"
    # A lock may be empty, or damaged: then its process may still run.
    with suppress(ArithmeticError, KeyError, RecursionError, TypeError, ValueError):
        known = json.loads(owner)
        if type(known["pid"]) is not int or known["pid"] <= 0:  # it would be of many processes
            raise ValueError(known["pid"])
        name = f"process {known['pid']} on {known['host']}"
        # Only on its own machine can a process be looked up.
        if known["host"] == socket.gethostname() and _started(known["pid"]) != known["started"]:
            return
    raise CheckpointError(
        f"{str(lock.parent)!r} is being written by {name}: wait until it ends, or use another "
        f"folder. If it has ended, delete {str(lock)!r}"
    )


def _started(pid: int) -> str | None:
    """When a process started, as the system counts it; None if there is no such process.

    With it, another process that has the same number later is not taken for it. It is "" where the
    system does not say.
    """
    found = Path("/proc", str(pid), "stat")
    with suppress(OSError):
        # The name of the program, in parentheses, may hold spaces and parentheses itself.
        state, *fields = found.read_text().rpartition(")")[2].split()
        # Field 22 of the file is the start in clock ticks since boot. Z and X have ended.
        return None if state in "ZX" else fields[18]
    if os.name != "posix":
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""
