"""The identity of a file, so that a change of it while it is read is noticed."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from datarax._errors import MetricInputError
from datarax.evaluation.locations import TAIL, facts_of, is_uri


class FileIdentity(NamedTuple):
    """A file as it was at one time."""

    path: str
    """As it was given; row ids depend on it."""
    resolved: str
    """The absolute path without links, or the URI: equal for all spellings of a path."""
    size: int
    """In bytes."""
    modified: int
    """The time of its last change, in nanoseconds."""
    inode: int
    """Its number in the file system; 0 if that has none."""
    digest: str
    """A hash of its last bytes, or of the tag of an object in a store."""

    @property
    def contents(self) -> tuple[int, str]:
        """Equal for copies of the file."""
        return self.size, self.digest

    @property
    def version(self) -> tuple[int, int, str]:
        """Equal on all machines until the file changes. Some network file systems number a file
        anew on each machine, so the inode is not part of it.
        """
        return self.size, self.modified, self.digest


def identity_of(path: str | Path) -> FileIdentity:
    """The identity of the file at a path or a URI.

    Raises:
        OSError: it cannot be read.
    """
    if isinstance(path, str) and is_uri(path):
        size, modified, digest = facts_of(path)
        return FileIdentity(path, path, size, modified, 0, digest)
    if not stat.S_ISREG(Path(path).stat().st_mode):  # to open a pipe would wait for its writer
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    with Path(path).open("rb") as file:
        # Of the file that is open: the path may lead to another one by now.
        found = os.fstat(file.fileno())
        file.seek(max(found.st_size - TAIL, 0))
        digest = hashlib.blake2b(file.read(TAIL), digest_size=16).hexdigest()
    size, modified, inode = found.st_size, found.st_mtime_ns, found.st_ino
    return FileIdentity(str(path), str(Path(path).resolve()), size, modified, inode, digest)


@contextmanager
def unchanged(planned: FileIdentity) -> Iterator[None]:
    """Checks before and after the block, which reads the file, that it is the planned one.

    A file may also change and then fail to be read. The change is the error then, as it is the
    cause.

    Raises:
        MetricInputError: the file has changed; names it.
    """
    # From here on the inode counts too: one machine reads, and a copy may look the same.
    before = _checked(planned)
    try:
        yield
    except Exception:
        _checked(before, inode=True)
        raise
    _checked(before, inode=True)


def different(before: Sequence[FileIdentity], now: Sequence[FileIdentity]) -> str | None:
    """Describes how two lists of files differ, for a message; None if they do not."""
    # By the paths as they were given, on which the ids of rows depend.
    old, new = ({file.path: file for file in each} for each in (before, now))
    for path in sorted(old.keys() ^ new.keys()):
        return f"{path!r} was {'not ' if path in new else ''}among its files"
    for path, file in new.items():
        if file.version != old[path].version:
            return f"{path!r} has changed since"
    if [file.path for file in before] != [file.path for file in now]:
        return "they had another order"
    return None


def _checked(expected: FileIdentity, *, inode: bool = False) -> FileIdentity:
    """The file as it is now, which must be as expected."""
    try:
        now = identity_of(expected.path)
    except FileNotFoundError:
        raise MetricInputError(f"{expected.path}: the file was removed while it was read") from None
    except OSError as error:
        said = error.strerror or str(error)
        raise MetricInputError(f"{expected.path}: cannot be read: {said}") from None
    if now.version != expected.version or (inode and now.inode != expected.inode):
        raise MetricInputError(
            f"{expected.path}: the file has changed while it was read; evaluate it again when "
            f"nothing writes to it"
        )
    return now
