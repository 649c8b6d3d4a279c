"""The files of a source, in their order, and the reader of each format."""

import glob
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import dropwhile, takewhile
from pathlib import Path

from datarax._errors import MetricInputError
from datarax.evaluation.arrow_files import ArrowFile, ParquetFile
from datarax.evaluation.coco_files import CocoFile
from datarax.evaluation.folder_columns import FileInFolders, folder_values, with_folder_types
from datarax.evaluation.identity import FileIdentity, identity_of
from datarax.evaluation.locations import CODECS, found_at, is_uri, local_path, name_of
from datarax.evaluation.log_tables import LOGS, LogFile, log_tables
from datarax.evaluation.npz_files import NpzFile
from datarax.evaluation.tables import ColumnType, Source, Table, TableFile, reading
from datarax.evaluation.text_files import CsvFile, JsonFile, JsonLinesFile, TextFile, TsvFile
from datarax.evaluation.text_format import TextFormat
from datarax.evaluation.trec_files import TrecFile

FORMATS: dict[str, type[TableFile]] = {
    ".parquet": ParquetFile,
    ".pq": ParquetFile,
    ".csv": CsvFile,
    ".tsv": TsvFile,
    ".jsonl": JsonLinesFile,
    ".ndjson": JsonLinesFile,
    ".json": JsonFile,
    ".arrow": ArrowFile,
    ".arrows": ArrowFile,
    ".feather": ArrowFile,
    ".ipc": ArrowFile,
    ".npz": NpzFile,
}
"""The reader of each format, by the end of the file name."""
LAYOUTS: dict[str, type[TableFile]] = {"coco": CocoFile, "trec": TrecFile}
"""The reader of each layout of files that are no tables, whatever their names end in."""
_KNOWN = f"{', '.join(FORMATS)} (of text also with {', '.join(CODECS)})"
_PACKED = (*CODECS, ".xz", ".lz4", ".zip", ".br")
"""The ends of names of compressed files."""
_UNREAD = (
    *(".tab", ".psv", ".xls", ".xlsx", ".ods", ".orc", ".avro", ".npy", ".pkl", ".pickle"),
    *(".h5", ".hdf5", ".tfrecord", ".msgpack", ".sqlite", ".dta", ".sav", ".rds"),
)
"""The ends of names of files that likely hold data, in formats that are not read."""


_UTF8 = TextFormat()


def tables_of(source: Source, text: TextFormat = _UTF8) -> list[Table]:
    """The files of a source, with their columns and parts; only their metadata is read.

    Raises:
        MetricInputError: there is no file, or one has an unknown format or is damaged; names it.
    """
    if text.logs is not None:
        return log_tables([paths_of(source, harness=text.logs.harness)], text)[0]
    tables = []
    for path in paths_of(source, text.layout):
        with reading(path):
            tables.append(open_table(identity_of(path), text).described())
    return with_folder_types(tables)


def open_table(file: FileIdentity, text: TextFormat = _UTF8) -> TableFile:
    """The reader of a file, by its layout, or by the end of its name and those of its folders.

    Or that of a log.
    """
    if text.logs is not None:
        return LogFile(file, text)
    if text.layout:
        return LAYOUTS[text.layout](file, text)
    found = format_of(file.path)
    assert found is not None
    table, values = found(file, text), folder_values(file.path)
    return FileInFolders(table, values) if values else table


def format_of(path: str) -> type[TableFile] | None:
    """The reader of the format that the end of a name says; None if it is not known."""
    name = Path(name_of(path).lower())
    if name.suffix not in CODECS:
        return FORMATS.get(name.suffix)
    # The other formats are compressed within.
    found = FORMATS.get(Path(name.stem).suffix)
    return found if found is not None and issubclass(found, TextFile) else None


def type_in(table: Table, name: str, *, whole: bool = False) -> ColumnType | None:
    """The type of a column of a file; None if there is no such column.

    In a file of text, a column may have its first value, or its name, far below the first rows.
    With `whole`, such a file is read to its end, because numbers may be followed by other text.
    """
    found = table.types.get(name)
    if not table.is_file or (found is not None and found.is_folder):
        return found
    to_end = whole and found is not None and found.kind in ("integer", "float", "boolean")
    if to_end or found is None or found.kind == "null":
        return _found_below(table.file, table.text, name, whole) or found
    return found


@lru_cache(maxsize=256)
def _found_below(file: FileIdentity, text: TextFormat, name: str, whole: bool) -> ColumnType | None:
    # Cached, because it reads the file as far as the first value, or to its end.
    with reading(file.path):
        return open_table(file, text).type_of(name, whole=whole)


def paths_of(source: Source, layout: str = "", harness: str = "") -> list[str]:
    """The paths of a source: those of a list in its order, of a glob or a folder by name.

    Numbers in names are compared as numbers. A file that is found twice is read once. With a
    layout or a harness, the names of files may end in anything; of a folder, the logs of the
    harness are read.

    Raises:
        MetricInputError: there is no file, or one has an unknown format; names it.
    """
    sources = [source] if isinstance(source, str | Path) else list(source)
    if not sources:
        raise MetricInputError("evaluate: source is an empty list; expected the path of a file")
    found = [_found(each, layout, harness) for each in sources]
    files = [[(_which(path), path) for path in each] for each in found]
    paths = {file: path for each in files for file, path in reversed(each)}
    # The first of several paths of one file gives the place.
    ordered = dict.fromkeys(file for each in files for file, _ in each)
    return [paths[file] for file in ordered]


def _which(path: str) -> object:
    """Identifies a file: equal for all of its paths, also for hard links."""
    if is_uri(path):
        return path
    try:
        found = Path(path).stat()
    except OSError:  # it is an error when the file is opened, which names it
        return path
    # Some file systems have no numbers.
    which = (found.st_dev, found.st_ino) if found.st_ino else os.path.realpath(path)
    # Links in two folders are two files if the folders give them other columns.
    return which, tuple(folder_values(path))


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts names with their numbers by value: "logit_2" before "logit_10"."""
    return [
        # Tuples of one shape can be compared; a number comes before text.
        (0, int(each), "") if each.isdecimal() else (1, 0, each)
        for each in re.split(r"(\d+)", name)
        if each
    ]


def _found(source: str | Path, layout: str, harness: str) -> list[str]:
    if not isinstance(source, str | Path):
        raise MetricInputError(
            f"evaluate: source holds {type(source).__name__}; expected the path of a file, a "
            f"folder or a glob"
        )
    if not str(source):
        raise MetricInputError("evaluate: source is ''; expected the path of a file or a folder")
    with reading(str(source)):  # also of a name that is too long
        return _expanded(source, layout, harness)


def _expanded(source: str | Path, layout: str, harness: str) -> list[str]:
    source = local_path(source)
    if isinstance(source, str) and is_uri(source):
        found, is_folder = found_at(source)
        found.sort(key=natural)
    else:
        path = Path(source)
        is_folder = path.is_dir()
        if is_folder:
            found = [each.as_posix() for each in _below(path, set())]
            found.sort(key=natural)
        # Before globs: the name of a file may have the signs of one.
        elif path.exists():
            found = [path.as_posix()]
        else:
            found = [each.as_posix() for each in _globbed(path) if not each.is_dir()]
            found.sort(key=natural)
    if is_folder and harness:
        is_log, _, shown = LOGS[harness]
        found = [each for each in found if is_log(name_of(each))]
        if not found:
            raise MetricInputError(f"{source}: the folder has no log of {harness}: {shown}")
    elif is_folder:
        found = _readable(found, str(source))
        if not found:
            raise MetricInputError(f"{source}: the folder has no file of {_KNOWN}")
    elif not found:
        hint = ""
        if isinstance(source, Path) and re.match(r"[a-z][a-z0-9]+:/", source.as_posix()):
            hint = "; give a URI as a str, since a Path has one slash of its two"
        raise MetricInputError(f"{source}: there is no such file{hint}")
    for each in found:
        if not layout and not harness and format_of(each) is None:
            hint = "; logs of Inspect need --format inspect" if each.endswith(".eval") else ""
            hint = "; a run of TREC needs --qrels FILE" if each.endswith(".txt") else hint
            raise MetricInputError(
                f"{each}: its format is not known; expected one of {_KNOWN}{hint}"
            )
    return found


def _readable(found: Sequence[str], folder: str) -> list[str]:
    """The files of a folder that can be read.

    Files of `.json` mostly hold settings beside the data, so they are data only if no other file
    is.

    Raises:
        MetricInputError: one holds data in a format that is not read; names it.
    """
    for path in found:
        name = Path(name_of(path).lower())
        inner = Path(name.stem).suffix if name.suffix in _PACKED else name.suffix
        # Data that is not read must not be left out silently.
        if format_of(path) is not None or inner not in (*FORMATS, *_UNREAD):
            continue
        if inner == ".json":
            continue
        fault = f"a file that ends in {name.suffix} is not read; write it in one of {_KNOWN}"
        if name.suffix in _PACKED:
            fault = f"a file that ends in {inner}{name.suffix} is not read; decompress it"
        wanted = inner if inner in FORMATS else ".csv"
        raise MetricInputError(
            f"{path}: {fault}, or name the files to read by a glob: '{folder}/**/*{wanted}'"
        )
    formats = {path: format_of(path) for path in found}
    data = [path for path, each in formats.items() if each not in (None, JsonFile)]
    return data or [path for path, each in formats.items() if each is not None]


def _globbed(pattern: Path) -> Iterator[Path]:
    """The paths that a glob stands for; `**` stands for a folder and all below it, each once."""
    # `glob` takes `**` for all ways to a folder: two links that lead upwards make too many of them.
    before = list(takewhile(lambda part: part != "**", pattern.parts))
    starts = glob.iglob(str(Path(*before)))  # noqa: PTH207, takes any path
    if len(before) == len(pattern.parts):
        yield from map(Path, starts)
        return
    after = list(dropwhile(lambda part: part == "**", pattern.parts[len(before) :])) or ["*"]
    for start in starts:
        for folder in _folders(Path(start)):
            yield from _globbed(Path(glob.escape(str(folder)), *after))


def _folders(start: Path) -> Iterator[Path]:
    """A folder and all below it, also those that links lead to; each once, by the shortest way."""
    waiting, seen = deque([start]), set[str]()
    while waiting:
        folder = waiting.popleft()
        real = os.path.realpath(folder)
        if real in seen or not folder.is_dir():
            continue
        seen.add(real)
        yield folder
        with suppress(OSError):  # `glob` passes over what cannot be read
            inside = sorted(each for each in folder.iterdir() if each.name[0] != ".")
            waiting.extend(sorted(inside, key=Path.is_symlink))


def _below(folder: Path, seen: set[str]) -> Iterator[Path]:
    """All files below a folder, also in folders that links lead to; each folder once."""
    # A link may lead back to a folder above.
    seen.add(os.path.realpath(folder))
    with reading(str(folder)):
        inside = list(folder.iterdir())
    for path in inside:
        if path.name[0] in "._":
            continue
        if not path.is_dir():
            yield path
        elif os.path.realpath(path) not in seen:
            yield from _below(path, seen)
