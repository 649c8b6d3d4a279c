"""Where the bytes of a file are: at a path of this machine, or at a URI that `pyarrow.fs` knows."""

import errno
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import quote, unquote

from datarax._errors import MetricInputError
from datarax._optional import optional

if TYPE_CHECKING:
    import pyarrow

CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
"""How compressed files of text are read, by the end of their names."""
TAIL = 2**16
"""The number of bytes hashed at the end of a file: Parquet, Arrow, NPZ have footers there."""
# Two letters at least: "C:" is a drive.
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://([^/?#]*)([^?]*)(?:\?(.*))?", re.DOTALL)
_SECRET = re.compile(r"secret|token|password|sig|key", re.IGNORECASE)
_SCHEMES = "s3://, gs://, abfs://, hdfs:// and file://"


def is_uri(path: str) -> bool:
    """True if a source is a URI, rather than a path of this machine."""
    return _URI.fullmatch(path) is not None


def local_path(source: str | Path) -> str | Path:
    """The path that a URI `file://` stands for; any other source as it is."""
    if isinstance(source, Path) or not source.lower().startswith("file://"):
        return source
    host, slash, path = source[len("file://") :].partition("/")
    if host not in ("", "localhost"):
        raise MetricInputError(
            f"{source}: names the machine {host!r}; expected a file of this one: file:///{path}"
        )
    return unquote(slash + path)


def name_of(path: str) -> str:
    """The last part of a path or a URI."""
    if not is_uri(path):
        return Path(path).name
    return Location.of(path).path.rsplit("/", 1)[-1]


def folders_of(path: str) -> list[str]:
    """The names of the folders in a path, as it is written."""
    if not is_uri(path):
        return list(Path(path).parts[:-1])
    return Location.of(path).path.split("/")[:-1]


def codec_of(path: str) -> str | None:
    """How a file is compressed, by the end of its name."""
    return CODECS.get(Path(name_of(path)).suffix.lower())


class Location(NamedTuple):
    """The parts of a URI."""

    scheme: str
    authority: str
    """The bucket, the container or the host."""
    path: str
    """Without percent-encoding; empty, or from the first slash on."""
    query: str
    """The options of the file system, such as `endpoint_override=`."""

    @classmethod
    def of(cls, uri: str) -> Self:
        """Takes a URI apart.

        Raises:
            MetricInputError: it holds a secret, which the results would show.
        """
        found = _URI.fullmatch(uri)
        assert found is not None
        scheme, authority, path, query = found.groups(default="")
        options = (option.partition("=")[0] for option in query.split("&"))
        # Paths stand in messages, in reports and in saved states.
        if ":" in authority.rpartition("@")[0] or any(map(_SECRET.search, options)):
            raise MetricInputError(
                f"{scheme}://...: the URI holds a secret, which reports would show; give it in the "
                f"environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        return cls(scheme.lower(), authority, unquote(path), query)

    def uri(self, path: str) -> str:
        """The URI of another path of the same file system."""
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{self.authority}{quote(path, safe='/=,:+@!$&()*;~ ')}{query}"

    def system(self) -> tuple[Any, str]:
        """The file system, and what paths in it begin with."""
        return _system(self.scheme, self.authority, self.query)


@lru_cache(maxsize=64)
def _system(scheme: str, authority: str, query: str) -> tuple[Any, str]:
    # Cached, because S3 is asked for the region of a bucket.
    fs, start = _fs(), f"{scheme}://{authority}/"
    try:
        found, root = fs.FileSystem.from_uri(f"{start}?{query}" if query else start)
    except _pyarrow().ArrowInvalid as error:
        if "Unrecognized filesystem" not in str(error):
            raise
        raise MetricInputError(
            f"{start}...: {scheme}:// is not read; expected {_SCHEMES}, or the path of a file"
        ) from None
    return found, root.rstrip("/")


@contextmanager
def opened(path: str) -> Iterator["pyarrow.NativeFile"]:
    """A file, at a path or a URI, open for reading at any place."""
    if not is_uri(path):
        # It is not mapped into memory: if the file were cut, the next access would end the process.
        with _pyarrow().OSFile(path) as file:
            yield file
        return
    place = Location.of(path)
    system, root = place.system()
    with system.open_input_file(root + place.path) as file:
        yield file


@contextmanager
def path_or_file(path: str) -> Iterator[Any]:
    """A path of this machine as it is; a URI as an open file."""
    if not is_uri(path):
        yield path
        return
    with opened(path) as file:
        yield file


@contextmanager
def uncompressed(path: str) -> Iterator["pyarrow.NativeFile"]:
    """A file, open for reading from its start; the end of its name says how it is compressed."""
    codec = codec_of(path)
    with opened(path) as file:
        if codec is None:
            yield file
        else:
            with _pyarrow().CompressedInputStream(file, codec) as stream:
                yield stream


def facts_of(uri: str) -> tuple[int, int, str]:
    """The size of a file at a URI, the time of its last change, and a hash that changes with it.

    Raises:
        OSError: there is none, or it cannot be read.
    """
    place = Location.of(uri)
    system, root = place.system()
    info = system.get_file_info(root + place.path)
    if info.type == _fs().FileType.NotFound:
        raise FileNotFoundError(errno.ENOENT, "there is no such file", uri)
    with system.open_input_file(root + place.path) as file:
        size = file.size()
        # The tag of an object changes with its bytes. Without one, the last bytes stand for all.
        said = (file.metadata() or {}).get(b"ETag")
        if not said:
            file.seek(max(size - TAIL, 0))
            said = file.read(TAIL)
    return size, info.mtime_ns or 0, hashlib.blake2b(said, digest_size=16).hexdigest()


def found_at(uri: str) -> tuple[list[str], bool]:
    """The files that a URI stands for, in any order, and whether it is a folder.

    It may hold `*`, `**` and `[...]`; names that start with "." or "_" in a folder are no data.
    """
    place, types = Location.of(uri), _fs().FileType
    system, root = place.system()
    kind = system.get_file_info(root + place.path.rstrip("/")).type if place.path else None
    if kind == types.File:
        return [place.uri(place.path.rstrip("/"))], False
    is_glob = any(sign in place.path for sign in "*[")
    if kind == types.NotFound and not is_glob:
        return [], False
    steps = place.path.split("/")
    fixed = next((i for i, step in enumerate(steps) if any(x in step for x in "*[")), len(steps))
    start, pattern = "/".join(steps[:fixed]).rstrip("/"), steps[fixed:] if is_glob else ["**"]
    if pattern[-1] == "**":
        pattern = [*pattern, "*"]
    selector = _fs().FileSelector(root + start, allow_not_found=True, recursive=len(pattern) > 1)
    found = []
    for info in system.get_file_info(selector):
        inner = info.path[len(root) :].removeprefix(start).lstrip("/").split("/")
        hidden = "." if is_glob else "._"
        if info.type == types.File and _matches(inner, pattern, hidden):
            found.append(place.uri("/".join([start, *inner])))
    return found, not is_glob


def _matches(names: Sequence[str], pattern: Sequence[str], hidden: str) -> bool:
    """True if the names of folders and a file match the steps of a glob."""
    if not names or not pattern:
        return not names and not pattern
    shown = names[0][:1] not in hidden or names[0][:1] == pattern[0][:1]
    if pattern[0] == "**":
        below = names[0][:1] not in hidden and _matches(names[1:], pattern, hidden)
        return below or _matches(names, pattern[1:], hidden)
    return shown and fnmatchcase(names[0], pattern[0]) and _matches(names[1:], pattern[1:], hidden)


def read_pieces(path: str, size: int) -> Iterator[bytes]:
    """The bytes of a file that may be compressed, in pieces of one size but for the last.

    Raises:
        ValueError: it is not compressed as its name says, or it is cut.
    """
    with uncompressed(path) as file:
        while True:
            try:
                piece = b"".join(_filled(file, size))
            except OSError as error:
                if codec_of(path) is None:
                    raise
                raise ValueError(
                    f"it is damaged, or not compressed as its name says ({codec_of(path)}): {error}"
                ) from None
            if piece:
                yield piece
            if len(piece) < size:
                return


def _filled(file: "pyarrow.NativeFile", size: int) -> Iterable[bytes]:
    """Reads of one file until there are so many bytes: a read may give fewer."""
    while size:
        piece = file.read(size)
        if not piece:
            return
        size -= len(piece)
        yield piece


def _pyarrow() -> ModuleType:
    return optional("pyarrow", "parquet", "reading this file")


def _fs() -> ModuleType:
    return optional("pyarrow.fs", "parquet", "reading a URI")
