"""The base of the readers of all formats: columns, their types, parts, and errors of files."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from datarax._errors import DataraxError, MetricInputError
from datarax.evaluation.identity import FileIdentity
from datarax.evaluation.text_format import TextFormat

if TYPE_CHECKING:
    import pyarrow

Source = str | Path | Iterable[str | Path]
"""The paths of files."""
Column: TypeAlias = "np.ndarray | pyarrow.Array"
"""A column as a reader gives it."""
Rows = Any
"""One value for each row: an array whose first axis is of rows, or a list."""
Outputs = dict[str, Rows]
"""Some rows, by the names of outputs."""
PART_ROWS = 2**20
"""Parts have about this many rows, if the format lets a file be cut."""
ROW_BYTES = 8
"""The least bytes of a row, to estimate the rows in formats that do not count them."""


class Ragged(NamedTuple):
    """Lists of different lengths, end to end."""

    items: np.ndarray
    lengths: np.ndarray


class ColumnType(NamedTuple):
    """The type of the values in a column."""

    kind: str
    """ "float", "integer", "boolean", "text", "verbatim" (text of whatever the values are), "mark"
    (the same of single values), "time" (dates, times and durations), "mixed" (several types),
    "null" (no value at all), "absent" (no column, as far as was read), "doubled" (several columns
    have the name), or "other"."""
    lists: int
    """The number of lists around the values."""
    ragged: bool
    """True if the lists may have different lengths."""
    name: str
    """As the format calls it, for errors."""
    example: str | None = None
    """Of a column of text, if a reader of text has found the type: a value that is no number."""
    is_folder: bool = False
    """True if the names of folders give it, and no column of the file."""


MIXED_MARKS = ColumnType("mark", 0, False, "values of several types")
"""A column of numbers and text whose values are only told apart. They are read as text."""
ABSENT = ColumnType("absent", 0, False, "absent")
"""An optional column that the first rows do not have, and that was not asked for."""
Types = dict[str, ColumnType]
"""The contents of columns, by name."""


class HeldRows(ABC):
    """Rows of a table or a stream, in memory; pickled, they hold no other rows."""

    @abstractmethod
    def read(
        self, part: "Part", types: Types, rows: int
    ) -> Generator[dict[str, Column], None, None]:
        """The columns of `types` in a part, which it is of, of up to `rows` rows at a time."""


class Part(NamedTuple):
    """One unit of work: some consecutive rows of a file."""

    file: FileIdentity
    """The file, as it was when its parts were planned."""
    first: int
    """Its first group of rows (row group, record batch)."""
    stop: int
    """The group after the last."""
    key: int
    """The id of its first row; the others have the next ones, modulo 2**32."""
    rows: int
    """About how many rows it has."""
    counted: bool = False
    """True if `rows` is exact: the format counts rows, and all columns have the same number."""
    start: int | None = None
    """The number of rows of the file before it; None if the format does not say."""
    text: TextFormat = TextFormat()
    """How the file is written, if it is one of text."""
    held: "HeldRows | None" = None
    """The rows themselves, of a table or a stream that is no file."""

    @property
    def path(self) -> str:
        """The path of the file, as it was given."""
        return self.file.path

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the files that it is read from."""
        return (self.path,)


def row_name(place: int, start: int | None, first: int = 0) -> str:
    """Names a row of a part by its number in the file, from 1.

    `place` is its place in the part, `start` and `first` are those of the part.
    """
    if start is None:  # what is before the part is not counted
        return f"row {place + 1:,} from record batch {first + 1:,} on"
    return f"row {start + place + 1:,}"


class Table(NamedTuple):
    """One file: its columns, and the parts in which it is read."""

    file: FileIdentity
    types: Types
    parts: tuple[Part, ...]
    text: TextFormat = TextFormat()
    """How the file is written, if it is one of text."""
    is_file: bool = True
    """False of a table or a stream, whose parts are known only when it is read."""

    @property
    def path(self) -> str:
        """The path of the file, as it was given."""
        return self.file.path


def parts_of(tables: Sequence[Table], *, whole: bool) -> list[Part]:
    """The parts of files. With `whole`, each file is one part, so no rows of it are separated.

    The parts of one file follow each other.
    """
    if not whole:
        return [part for table in tables for part in table.parts]
    # The id of the first row of the first part is that of the file.
    return [
        table.parts[0]._replace(
            stop=table.parts[-1].stop, rows=sum(part.rows for part in table.parts)
        )
        for table in tables
        if table.parts
    ]


class TableFile(ABC):
    """A file of columns, which is read in parts."""

    absent: tuple[str, ...] = ()
    """Columns that the first rows do not have. If a row has one, that is an error of the file."""

    def __init__(self, file: FileIdentity, text: TextFormat = TextFormat()):  # noqa: B008
        self.file, self.path, self.text = file, file.path, text

    def described(self) -> Table:
        """Its columns and parts. Errors are those of the format: call it within `reading`.

        Raises:
            MetricInputError: it is empty; names it.
        """
        if not self.file.size:
            raise MetricInputError(f"{self.path}: the file is empty")
        columns, parts = self.layout()
        types: Types = {}
        for name, found in columns:
            # CSV and Parquet allow two columns of one name: an error only if it is asked for.
            types[name] = found._replace(kind="doubled") if name in types else found
        parts = tuple(part._replace(text=self.text) for part in parts)
        return Table(self.file, types, parts, self.text)

    def type_of(self, name: str, *, whole: bool = False) -> ColumnType | None:
        """The type of a column by its first value, wherever it is; None if there is no column.

        With `whole`, by all its values: of numbers and other text, it is "mark". Only readers of
        text, which find types in the first rows, have more to say than `described`. Errors are
        those of the format: call it within `reading`.
        """
        return self.described().types.get(name)

    @abstractmethod
    def layout(self) -> tuple[Iterable[tuple[str, ColumnType]], Sequence[Part]]:
        """The names and types of its columns, and its parts."""

    @abstractmethod
    def read(self, part: Part, types: Types, rows: int) -> Generator[dict[str, Column], None, None]:
        """The columns of `types`, as arrays of Arrow or NumPy, of up to `rows` rows at a time.

        Errors are those of the format: call it within `reading`. Closing the generator closes the
        file.
        """


def key_of(path: str, number: int = 0) -> int:
    """An id of the first row of a file; it depends on the path as it was given."""
    # Not `hash`, which differs between processes: the ids decide what a bootstrap draws.
    digest = hashlib.blake2b(f"{path}\0{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turns any error that a damaged file raises into one line that names the file."""
    try:
        yield
    except DataraxError:
        raise
    except MemoryError:
        raise MemoryError(f"{path}: there is no memory to read it, or it is damaged") from None
    except FileNotFoundError:
        raise MetricInputError(f"{path}: there is no such file") from None
    # A damaged file may raise anything, with a message of many lines.
    except Exception as error:
        # That of the system repeats the path.
        said = (isinstance(error, OSError) and error.strerror) or first_line(error)[:300]
        raise MetricInputError(f"{path}: cannot be read: {said}") from None


def first_line(error: Exception) -> str:
    """The first line of the message of an error; the name of its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
