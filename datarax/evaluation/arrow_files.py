"""Parquet and Arrow IPC, and the values of the arrays of pyarrow, which reads text too."""

from abc import abstractmethod
from collections.abc import Container, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from datarax._errors import MetricInputError
from datarax._optional import optional
from datarax.evaluation.locations import is_uri, opened, path_or_file
from datarax.evaluation.tables import (
    PART_ROWS,
    ROW_BYTES,
    Column,
    ColumnType,
    Part,
    Ragged,
    Rows,
    TableFile,
    Types,
    key_of,
)
from datarax.evaluation.text_columns import is_time, without_times
from datarax.evaluation.text_format import (
    is_number,
)

if TYPE_CHECKING:
    import pyarrow

RecordBatches: TypeAlias = "Generator[pyarrow.RecordBatch, None, None]"


class PyarrowFile(TableFile):
    """A file that pyarrow reads."""

    def whole(self) -> Part:
        """The file as one part."""
        rows = self.file.size // ROW_BYTES + 1
        return Part(self.file, 0, 1, key_of(self.path), rows, start=0)

    def arrow(self, module: str = "") -> ModuleType:
        """A module of pyarrow."""
        return optional(f"pyarrow{module}", "parquet", f"reading {self.path}")

    @abstractmethod
    def record_batches(self, part: Part, types: Types, rows: int) -> RecordBatches:
        """The record batches of a part, with the columns of `types` and perhaps others."""

    def read(self, part: Part, types: Types, rows: int) -> Generator[dict[str, Column], None, None]:
        with closing(self.record_batches(part, types, rows)) as batches:
            for batch in batches:
                for start in range(0, batch.num_rows, rows):
                    piece = batch.slice(start, rows)
                    yield {name: column_at(piece, name) for name in types}


class ParquetFile(PyarrowFile):
    """Parquet: a part is a row group, or a run of small ones."""

    def layout(self) -> tuple[list[tuple[str, ColumnType]], list[Part]]:
        with path_or_file(self.path) as source, self.arrow(".parquet").ParquetFile(source) as file:
            metadata, schema = file.metadata, file.schema_arrow
        rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        if sum(rows) != metadata.num_rows:
            raise ValueError(
                f"its row groups have {sum(rows):,} rows, and its footer says {metadata.num_rows:,}"
            )
        cuts, held = [0], 0
        # Small row groups are joined, because each part costs a task. A row group is never cut.
        for i, number in enumerate(rows):
            if held and held + number > PART_ROWS:
                cuts.append(i)
                held = 0
            held += number
        cuts.append(len(rows))
        key, start, parts = key_of(self.path), 0, []
        for first, stop in pairwise(cuts):
            number = sum(rows[first:stop])
            if number:
                # Ids count the rows of the file, so they do not depend on how it is cut.
                now = (key + start) % 2**32
                parts.append(Part(self.file, first, stop, now, number, counted=True, start=start))
            start += number
        return columns_of(schema), parts

    def record_batches(self, part: Part, types: Types, rows: int) -> RecordBatches:
        parquet = self.arrow(".parquet")
        options = {
            # A row group may be larger than memory: its pages are read as they are needed.
            "pre_buffer": False,
            "buffer_size": 2**23 if is_uri(self.path) else 2**20,
            "page_checksum_verification": True,
        }
        with path_or_file(self.path) as source, parquet.ParquetFile(source, **options) as file:
            columns = list(roots_of(types, file.schema_arrow.names))
            yield from file.iter_batches(
                rows, row_groups=list(range(part.first, part.stop)), columns=columns
            )


class ArrowFile(PyarrowFile):
    """Arrow IPC, as a file or a stream: a part of a file is a run of record batches."""

    def layout(self) -> tuple[list[tuple[str, ColumnType]], list[Part]]:
        with self._opened(None) as (_, reader):
            schema, number = reader.schema, getattr(reader, "num_record_batches", None)
        # A stream has no index: it can only be read from its start.
        if number is None:
            return columns_of(schema), [self.whole()]
        wanted = max(1, self.file.size // (PART_ROWS * ROW_BYTES))
        each = max(1, -(-number // wanted))
        # The footer does not say how many rows a batch has. So ids start anew in each part.
        rows = self.file.size // ROW_BYTES // wanted
        parts = [
            Part(
                self.file,
                first,
                min(first + each, number),
                key_of(self.path, first),
                rows,
                start=None if first else 0,
            )
            for first in range(0, number, each)
        ]
        return columns_of(schema), parts

    def record_batches(self, part: Part, types: Types, rows: int) -> RecordBatches:
        with self._opened(types) as (source, reader):
            if hasattr(reader, "num_record_batches"):
                batches = (reader.get_batch(i) for i in range(part.first, part.stop))
            else:
                batches = _streamed(source, reader)
            for batch in batches:
                # The file says where its strings and lists begin. A wrong place outside of the
                # buffers would end the process when it is used.
                batch.validate(full=True)
                yield batch

    @contextmanager
    def _opened(
        self, types: Types | None
    ) -> Iterator[tuple["pyarrow.NativeFile", "pyarrow.RecordBatchReader"]]:
        pa = self.arrow()
        ipc = self.arrow(".ipc")
        options = None
        if types is not None:
            with self._opened(None) as (_, whole):
                names = whole.schema.names
            # IPC takes columns by number.
            roots = roots_of(types, names)
            needed = [place for place, name in enumerate(names) if name in roots]
            options = ipc.IpcReadOptions(included_fields=needed)
        with opened(self.path) as source:
            try:
                reader = ipc.open_file(source, options=options)
            except pa.ArrowInvalid:
                source.seek(0)
                reader = ipc.open_stream(source, options=options)
            yield source, reader


def _streamed(source: "pyarrow.NativeFile", reader: "pyarrow.RecordBatchReader") -> RecordBatches:
    """The record batches of a stream, which must end with its mark, at the end of the file.

    A stream that was cut between two batches is read by pyarrow without an error.
    """
    while True:
        place = source.tell()
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            break
        yield batch
    if source.tell() == place:
        raise ValueError("the stream has no end mark: its writer was stopped, or the file was cut")
    if source.tell() != source.size():
        raise ValueError("bytes follow the end mark of the stream; expected one stream in the file")


def columns_of(schema: "pyarrow.Schema") -> list[tuple[str, ColumnType]]:
    """The columns, and after them their fields: "answers.text" of a column of objects."""
    found = [(field.name, column_type(field.type)) for field in schema]
    fields = [each for field in schema for each in _fields(field.name, field.type)]
    return [*found, *((name, x) for name, x in fields if name not in schema.names)]


def _fields(name: str, given: "pyarrow.DataType") -> Iterator[tuple[str, ColumnType]]:
    """The fields of a column of objects, or of lists of objects, within each other."""
    lists, inner = _pyarrow().list_, given.value_type if _is_list(given) else given
    if not _pyarrow().types.is_struct(inner):
        return
    for field in inner:
        below = field.type if inner is given else lists(field.type)
        yield f"{name}.{field.name}", column_type(below)
        yield from _fields(f"{name}.{field.name}", below)


def roots_of(names: Iterable[str], columns: Container[str]) -> dict[str, list[str]]:
    """The columns that hold some columns or fields of them, and the names of these."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(_path(name, columns)[0], []).append(name)
    return found


def _path(name: str, columns: Container[str]) -> tuple[str, list[str]]:
    """The column of a name such as "answers.text", and the fields within it."""
    root, fields = name, list[str]()
    while root not in columns and "." in root:
        root, _, last = root.rpartition(".")
        fields.insert(0, last)
    return (root, fields) if root in columns else (name, [])


def column_at(table: "pyarrow.RecordBatch", name: str) -> "pyarrow.Array":
    """A column, or a field of one of objects: "answers.text"."""
    root, fields = _path(name, table.schema.names)
    column = table.column(root)
    while fields:
        # A field may have a dot in its name.
        inner = column.type.value_type if _is_list(column.type) else column.type
        names = [field.name for field in inner]
        field, fields = _path(".".join(fields), names)
        column = _field(column, field)
    return in_usual_layout(column)


def _field(column: "pyarrow.Array", name: str) -> "pyarrow.Array":
    """A field of each object, or of all objects of each list; null where there is no object."""
    compute = optional("pyarrow.compute", "parquet", "reading this file")
    if not _is_list(column.type):
        return compute.struct_field(column, name)
    pa = _pyarrow()
    ends = np.cumsum(_lengths(column))
    absent = np.append(_array(column.is_null()), False)
    starts = pa.array(np.append(0, ends).astype(np.int32), mask=absent)
    return pa.ListArray.from_arrays(starts, compute.struct_field(column.flatten(), name))


def column_type(given: "pyarrow.DataType") -> ColumnType:
    """The type of a column of Arrow."""
    pa = _pyarrow()
    types, inner, lists, ragged = pa.types, given, 0, False
    while True:
        if isinstance(inner, pa.BaseExtensionType):
            inner = inner.storage_type
        elif types.is_dictionary(inner):
            inner = inner.value_type
        elif _is_list(inner):
            # Only the outermost lists may differ in length: those are padded.
            ragged |= not lists and not types.is_fixed_size_list(inner)
            inner, lists = inner.value_type, lists + 1
        else:
            break
    return ColumnType(_kind(types, inner), lists, ragged, str(given))


def _kind(types: ModuleType, inner: "pyarrow.DataType") -> str:
    if types.is_floating(inner) or types.is_decimal(inner):
        return "float"
    if types.is_integer(inner):
        return "integer"
    if types.is_boolean(inner):
        return "boolean"
    if types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner):
        return "text"
    if is_time(inner):
        return "time"
    return "null" if types.is_null(inner) else "other"


def in_usual_layout(array: "pyarrow.Array") -> "pyarrow.Array":
    """The array, with strings one after the other instead of views of them, as Polars has them.

    Arrow has no functions that select or decode views.
    """
    wanted = _usual(array.type)
    return array if wanted is array.type else array.cast(wanted)


def _usual(given: "pyarrow.DataType") -> "pyarrow.DataType":
    """A type without views of strings; the type itself if it has none."""
    pa = _pyarrow()
    types = pa.types
    if types.is_string_view(given):
        return pa.large_string()
    if types.is_dictionary(given):
        inner = _usual(given.value_type)
        made = partial(pa.dictionary, given.index_type, ordered=given.ordered)
    elif _is_list(given):
        inner = _usual(given.value_type)
        fixed = types.is_fixed_size_list(given)
        make = pa.large_list if types.is_large_list(given) else pa.list_
        made = partial(make, **({"list_size": given.list_size} if fixed else {}))
    else:
        return given
    return given if inner is given.value_type else made(inner)


def as_schema(types: Types) -> "pyarrow.Schema":
    """The types as those of Arrow that a reader of text is to convert to."""
    pa = _pyarrow()
    return pa.schema([(name, as_type(column)) for name, column in types.items()])


def as_type(column: ColumnType) -> "pyarrow.DataType":
    """The type of Arrow to which a reader of text is to convert a column."""
    pa = _pyarrow()
    kinds = {"float": pa.float64(), "integer": pa.int64(), "boolean": pa.bool_()}
    # Text, and a column without any value.
    inner = kinds.get(column.kind, pa.string())
    for _ in range(column.lists):
        inner = pa.list_(inner)
    return inner


def null_rows(column: Column) -> np.ndarray | None:
    """Marks the rows that have no value, or a list with none; None if all have values."""
    if isinstance(column, np.ndarray):
        if column.dtype.kind not in "mM":
            return None
        return np.logical_or.reduce(np.isnat(column).reshape(len(column), -1), axis=1)
    absent = None
    if column.null_count:
        absent = _array(column.is_null())
    if not _is_list(column.type):
        return absent
    # `flatten` leaves out the items of null lists, whose length is taken as 0 below.
    within = null_rows(column.flatten())
    if within is None:
        return absent
    lengths = _lengths(column)
    rows = np.repeat(np.arange(len(column)), lengths)
    # One absent item makes the row absent.
    found = np.bincount(rows, within, len(column)) > 0
    return found if absent is None else absent | found


def nan_rows(column: Column) -> np.ndarray | None:
    """Marks the rows that are NaN; None if none is, or they are no numbers."""
    if not isinstance(column, np.ndarray):
        if str(column.type) not in ("float", "double", "halffloat"):
            return None
        column = column.to_numpy(zero_copy_only=False)
    if column.dtype.kind != "f" or column.ndim != 1:
        return None
    found = np.isnan(column)
    return found if found.any() else None


def without_values(column: Column, missing: Sequence[str]) -> Column:
    """The column, with no value in place of some strings, and of the numbers that they spell."""
    if isinstance(column, np.ndarray) and column.ndim > 1:
        return column
    pa = _pyarrow()
    array = pa.array(column) if isinstance(column, np.ndarray) else column
    kind, lists, *_ = column_type(array.type)
    numbers = np.array([float(x) for x in missing if is_number(x)])
    if lists or kind not in ("text", "float", "integer") or (kind != "text" and not numbers.size):
        return column
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if kind == "text":
        found = np.array([x in missing for x in array.to_pylist()], bool)
    else:
        x = _array(array.cast(pa.float64()) if pa.types.is_decimal(array.type) else array)
        found = np.isin(x, numbers) | (np.isnan(numbers).any() & (x != x))
    if not found.any():
        return column
    compute = optional("pyarrow.compute", "parquet", "reading this file")
    return compute.if_else(pa.array(found), None, array)


def values(column: Column) -> Rows:
    """The values of a column without nulls: an array, a list of strings, or `Ragged`.

    Lists become the axes after the first; strings in lists become lists of strings.
    """
    column = without_times(column)
    if isinstance(column, np.ndarray):
        return column.tolist() if column.dtype.kind in "UO" else column
    pa = _pyarrow()
    if isinstance(column.type, pa.BaseExtensionType):
        return values(column.storage)
    types = pa.types
    if types.is_dictionary(column.type):
        return values(column.dictionary_decode())
    if _kind(types, column.type) == "text":
        return column.to_pylist()
    if _is_list(column.type):
        items = values(column.flatten())
        # Strings, which stay in lists of Python.
        if isinstance(items, list):
            return column.to_pylist()
        if types.is_fixed_size_list(column.type):
            return items.reshape(len(column), column.type.list_size, *items.shape[1:])
        return Ragged(_even(items), _lengths(column))
    # NumPy would make Python objects of them.
    if types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return _array(column)


def _even(items: np.ndarray | Ragged) -> np.ndarray:
    """Inner lists, which must have one length, as an axis."""
    if not isinstance(items, Ragged):
        return items
    width = int(items.lengths.max(initial=0))
    if (items.lengths != width).any():
        raise MetricInputError("a column holds lists of lists that have different lengths")
    return items.items.reshape(len(items.lengths), width, *items.items.shape[1:])


def _is_list(given: "pyarrow.DataType") -> bool:
    types = _pyarrow().types
    return types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given)


def _lengths(column: "pyarrow.Array") -> np.ndarray:
    lengths = optional("pyarrow.compute", "parquet", "reading this file").list_value_length(column)
    return np.nan_to_num(_array(lengths)).astype(np.int64)


def _array(column: "pyarrow.Array") -> np.ndarray:
    return column.to_numpy(zero_copy_only=False)


def _pyarrow() -> ModuleType:
    return optional("pyarrow", "parquet", "reading this file")
