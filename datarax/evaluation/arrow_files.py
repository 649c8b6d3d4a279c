"""Files that pyarrow reads (Parquet, Arrow IPC, CSV, JSON lines), and the values of its arrays."""

import re
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from datarax._errors import MetricInputError
from datarax._optional import optional
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

if TYPE_CHECKING:
    import pyarrow

RecordBatches: TypeAlias = "Generator[pyarrow.RecordBatch, None, None]"
# NaN is not among them: it is a number, which the metrics count as invalid.
_NULLS = ["", "NA", "N/A", "#N/A", "null", "NULL", "None"]
_TEXT_BLOCK = 2**23
_QUOTED = re.compile(rb'(?<![^,\r\n])"[^"]*(?:""[^"]*)*("?)')
"""A quoted value of CSV, from the start of a field to its closing quote or the end of the text."""
_DEEPEST = 100
"""The most lists and objects of JSON within each other. pyarrow reads them by recursion, so
some thousands would end the process."""


class PyarrowFile(TableFile):
    """A file that pyarrow reads."""

    def whole(self) -> Part:
        """The file as one part."""
        rows = self.file.size // ROW_BYTES + 1
        return Part(self.file, 0, 1, key_of(self.path), rows, start=0)

    def arrow(self, module: str = "") -> ModuleType:
        """A module of pyarrow."""
        return optional(f"pyarrow{module}", "parquet", f"reading {self.path}")

    def layout(self) -> tuple[Iterable[tuple[str, ColumnType]], list[Part]]:
        schema, parts = self.schema_and_parts()
        return ((field.name, column_type(field.type)) for field in schema), parts

    @abstractmethod
    def schema_and_parts(self) -> tuple["pyarrow.Schema", list[Part]]:
        """The schema of Arrow, and the parts."""

    @abstractmethod
    def record_batches(self, part: Part, types: Types, rows: int) -> RecordBatches:
        """The record batches of a part, with the columns of `types` and perhaps others."""

    def read(self, part: Part, types: Types, rows: int) -> Generator[dict[str, Column], None, None]:
        with closing(self.record_batches(part, types, rows)) as batches:
            for batch in batches:
                for start in range(0, batch.num_rows, rows):
                    piece = batch.slice(start, rows)
                    yield {name: piece.column(name) for name in types}


class ParquetFile(PyarrowFile):
    """Parquet: a part is a row group, or a run of small ones."""

    def schema_and_parts(self) -> tuple["pyarrow.Schema", list[Part]]:
        with self.arrow(".parquet").ParquetFile(self.path) as file:
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
        return schema, parts

    def record_batches(self, part: Part, types: Types, rows: int) -> RecordBatches:
        parquet = self.arrow(".parquet")
        options = {
            # A row group may be larger than memory: its pages are read as they are needed.
            "pre_buffer": False,
            "buffer_size": 2**20,
            "page_checksum_verification": True,
        }
        with parquet.ParquetFile(self.path, **options) as file:
            yield from file.iter_batches(
                rows, row_groups=list(range(part.first, part.stop)), columns=list(types)
            )


class ArrowFile(PyarrowFile):
    """Arrow IPC, as a file or a stream: a part of a file is a run of record batches."""

    def schema_and_parts(self) -> tuple["pyarrow.Schema", list[Part]]:
        with self._opened(None) as (_, reader):
            schema, number = reader.schema, getattr(reader, "num_record_batches", None)
        # A stream has no index: it can only be read from its start.
        if number is None:
            return schema, [self.whole()]
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
        return schema, parts

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
            needed = [place for place, name in enumerate(names) if name in types]
            options = ipc.IpcReadOptions(included_fields=needed)
        # It is not mapped into memory: if the file were cut, the next access would end the process.
        with pa.OSFile(self.path) as source:
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


class TextFile(PyarrowFile):
    """A file of text: one part, which is read and parsed block by block, of whole rows each.

    Types are found from its first block. Arrow gets each block as memory of its own, after it was
    checked. From a file object of Python, its threads would read ahead, and they would end the
    process if the interpreter ended meanwhile.
    """

    def schema_and_parts(self) -> tuple["pyarrow.Schema", list[Part]]:
        with closing(self.blocks()) as blocks:
            parse = self.parser(None)
            return parse(next(blocks, self._owned(b""))).schema, [self.whole()]

    def record_batches(self, part: Part, types: Types, rows: int) -> RecordBatches:
        parse = self.parser(types)
        with closing(self.blocks()) as blocks:
            for block in blocks:
                yield from parse(block).to_batches()

    def blocks(self) -> Generator["pyarrow.Buffer", None, None]:
        """The text in blocks of whole rows, each checked.

        Raises:
            ValueError: a row is refused, or is longer than a block.
        """
        with self.arrow().OSFile(self.path) as file:
            left, is_last = b"", False
            while not is_last:
                block = file.read(_TEXT_BLOCK)
                text, is_last = left + block, len(block) < _TEXT_BLOCK
                end = self.whole_rows(text, is_last=is_last)
                if left and not end:
                    raise ValueError(self.endless(text))
                if text[:end].strip():
                    yield self._owned(text[:end])
                left = text[end:]

    def _owned(self, text: bytes) -> "pyarrow.Buffer":
        """A copy that no object of Python holds, so that Arrow's threads may drop it."""
        sink = self.arrow().BufferOutputStream()
        sink.write(text)
        sink.write(b"\n")  # the last row of a file may have none, which pyarrow takes in some ways
        return sink.getvalue()

    @abstractmethod
    def parser(self, types: Types | None) -> Callable[["pyarrow.Buffer"], "pyarrow.Table"]:
        """The parser of the blocks in their order, for these columns, or all with types found."""

    @staticmethod
    @abstractmethod
    def whole_rows(text: bytes, *, is_last: bool) -> int:
        """The number of bytes of the whole rows that the text begins with, after a check of them.

        Raises:
            ValueError: they are refused.
        """

    @staticmethod
    def endless(text: bytes) -> str:
        """Describes a row that does not end in the block after the one in which it starts."""
        return f"a row is longer than {_TEXT_BLOCK:,} bytes: {_start_of(text)!r}"


class CsvFile(TextFile):
    """CSV with a line of names, and with quotes that are closed.

    A quote that is not would take the rows below it into its value.
    """

    def parser(self, types: Types | None) -> Callable[["pyarrow.Buffer"], "pyarrow.Table"]:
        csv = self.arrow(".csv")
        names: list[str] | None = None
        convert = csv.ConvertOptions(
            null_values=_NULLS,
            include_columns=None if types is None else list(types),
            # The types on which all files agree: integers in this one may be floats in another.
            column_types=None if types is None else as_schema(types),
        )

        def parse(block: "pyarrow.Buffer") -> "pyarrow.Table":
            nonlocal names
            options = {"block_size": block.size, "column_names": names}
            table = csv.read_csv(block, csv.ReadOptions(**options), convert_options=convert)
            if names is None:  # the first block has them; its rows, if any, are skipped
                skipped = (2**31 - 1) * bool(table.num_rows)
                named = csv.ReadOptions(**options, skip_rows_after_names=skipped)
                names = csv.read_csv(block, named).column_names
            return table

        return parse

    @staticmethod
    def whole_rows(text: bytes, *, is_last: bool) -> int:
        end = len(text) if is_last else _last_break(text, len(text))
        rows = text[:end]
        # Almost always, each row has an even number of quotes. That is faster to see.
        if b'"' not in rows or b'"' not in rows.translate(None, _NO_QUOTES).replace(b'""', b""):
            return end
        for value in _QUOTED.finditer(rows):
            # pyarrow appends what follows the closing quote. After a line break, that was likely
            # the opening quote of another row.
            breaks, after = (
                b"\n" in value[0] or b"\r" in value[0],
                rows[value.end() : value.end() + 1],
            )
            if breaks and value[1] and after not in (b"", b",", b"\n", b"\r"):
                raise ValueError(_open_quote(rows[_last_break(rows, value.start()) :]))
            if not value[1]:
                start = _last_break(rows, value.start())
                if is_last:
                    raise ValueError(_open_quote(rows[start:]))
                return start  # its value may go on in the next block
        return end

    @staticmethod
    def endless(text: bytes) -> str:
        is_open = any(not value[1] for value in _QUOTED.finditer(text))
        return _open_quote(text) if is_open else TextFile.endless(text)


class JsonLinesFile(TextFile):
    """JSON lines that do not nest deep."""

    def parser(self, types: Types | None) -> Callable[["pyarrow.Buffer"], "pyarrow.Table"]:
        json = self.arrow(".json")
        known = {} if types is None else {"explicit_schema": as_schema(types)}
        others = "infer" if types is None else "ignore"
        options = json.ParseOptions(unexpected_field_behavior=others, **known)

        def parse(block: "pyarrow.Buffer") -> "pyarrow.Table":
            return json.read_json(
                block, json.ReadOptions(block_size=block.size), parse_options=options
            )

        return parse

    @staticmethod
    def whole_rows(text: bytes, *, is_last: bool) -> int:
        end = len(text) if is_last else _last_break(text, len(text))
        text = text[:end]
        if b"\\" in text:
            # An escaped quote ends no string. First the pairs, as a backslash may be escaped too.
            text = text.replace(rb"\\", b"").replace(rb"\"", b"")
        text = text.translate(None, _NO_BRACKETS).replace(b'""', b"")
        # The strings with brackets within.
        text = re.sub(rb'"[^"]*"', b"", text)
        for _ in range(_DEEPEST + 1):
            shorter = text.replace(b"{}", b"").replace(b"[]", b"")
            if len(shorter) == len(text):
                break
            text = shorter
        # Pairs are left if they nest deeper.
        if len(text) > _DEEPEST:
            raise ValueError(f"lists or objects are nested more than {_DEEPEST} deep")
        return end


def _last_break(text: bytes, stop: int) -> int:
    """The place after the last line break before `stop`; 0 if there is none."""
    return max(text.rfind(mark, 0, stop) for mark in (b"\n", b"\r")) + 1


def _start_of(text: bytes) -> str:
    """The start of the first row, for an error."""
    return text.splitlines()[0][:60].decode("utf-8", "replace")


def _open_quote(text: bytes) -> str:
    return f"a quote is not closed in the row {_start_of(text)!r}"


_NO_QUOTES = bytes(set(range(256)) - set(b'"\r\n'))
_NO_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))


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
    return "null" if types.is_null(inner) else "other"


def as_schema(types: Types) -> "pyarrow.Schema":
    """The types as those of Arrow that a reader of text is to convert to."""
    pa = _pyarrow()
    kinds = {"float": pa.float64(), "integer": pa.int64(), "boolean": pa.bool_()}
    fields = []
    for name, column in types.items():
        # Text, and a column without any value.
        inner = kinds.get(column.kind, pa.string())
        for _ in range(column.lists):
            inner = pa.list_(inner)
        fields.append((name, inner))
    return pa.schema(fields)


def null_rows(column: Column) -> np.ndarray | None:
    """Marks the rows that have no value, or a list with none; None if all have values."""
    if isinstance(column, np.ndarray):
        return None
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


def values(column: Column) -> Rows:
    """The values of a column without nulls: an array, a list of strings, or `Ragged`.

    Lists become the axes after the first; strings in lists become lists of strings.
    """
    if isinstance(column, np.ndarray):
        return column.tolist() if column.dtype.kind == "U" else column
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
