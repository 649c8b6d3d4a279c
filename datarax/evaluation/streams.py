"""Tables and streams of other libraries as parts: what speaks the Arrow protocol, and iterators.

A stream is read once, on the thread that folds: its rows are held only until they are folded.
"""

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from datarax._errors import MetricInputError
from datarax._optional import optional
from datarax.evaluation.arrow_files import column_at, columns_of, roots_of
from datarax.evaluation.identity import FileIdentity
from datarax.evaluation.tables import (
    PART_ROWS,
    Column,
    ColumnType,
    HeldRows,
    Part,
    Source,
    Table,
    Types,
    key_of,
    reading,
)
from datarax.evaluation.text_format import TextFormat

if TYPE_CHECKING:
    import pyarrow

Batches = Iterator["pyarrow.RecordBatch"]
PART_BYTES = 2**26
"""A part of a stream holds about this many bytes at most."""
_EXPECTED = (
    "expected the path of a file, a table or a stream of Arrow (Polars, pandas, DuckDB, pyarrow), "
    "or an iterator of record batches"
)


class ArrowStreamable(Protocol):
    """A table or a stream of any library that speaks the Arrow protocol."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """A capsule with a stream of record batches."""
        ...


AnySource = Source | ArrowStreamable | Iterable[Any]
"""The paths of files, a table, a stream, or an iterator of those."""


class Stream(NamedTuple):
    """A table or a stream, before its rows are read."""

    table: Table
    """Its name and its columns; it has no parts yet."""
    chunks: "Iterator[_Chunk]"
    """Its pieces: one, or those of an iterator."""

    def parts(self, types: Types, *, whole: bool) -> Iterator[Part]:
        """Reads the columns of `types`, and cuts the rows into parts.

        With `whole`, all rows are one part.

        Raises:
            MetricInputError: it cannot be read, or a later chunk has another type of a column.
        """
        rows, start = PART_ROWS, 0
        held: list[pyarrow.RecordBatch] = []
        # Not of the name: what a bootstrap draws is the same for one table of each package.
        count, key = 0, key_of("")

        def part(number: int) -> Part:
            return Part(
                self.table.file,
                0,
                1,
                # Ids count all rows, so they do not depend on the chunks.
                (key + start) % 2**32,
                number,
                counted=True,
                start=start,
                text=self.table.text,
                held=_Held(tuple(held)),
            )

        for batch in self._batches(types):
            if not start and not count:
                rows = _rows_of_part(batch)
            while not whole and count + batch.num_rows >= rows:
                held.append(batch.slice(0, rows - count))
                yield part(rows)
                batch = batch.slice(rows - count)
                start, count, held = start + rows, 0, []
            if batch.num_rows:
                held.append(batch)
                count += batch.num_rows
        if count:
            yield part(count)

    def _batches(self, types: Types) -> Batches:
        name = self.table.path
        for place, chunk in enumerate(self.chunks):
            if place:
                _check_types(chunk.types, types, f"{name}: item {place + 1:,}")
            with reading(name):
                batches = chunk.batches([x for x, found in types.items() if found.kind != "absent"])
            while True:
                with reading(name):
                    batch = next(batches, None)
                if batch is None:
                    break
                yield batch


class _Chunk(NamedTuple):
    """Rows of one table or stream, of which no batch is read yet."""

    types: Types
    batches: Callable[[Sequence[str]], Batches]
    """Reads some columns."""


class _Held(HeldRows):
    """Record batches in memory."""

    def __init__(self, batches: Sequence["pyarrow.RecordBatch"]):
        self.batches = batches

    def read(self, part: Part, types: Types, rows: int) -> Generator[dict[str, Column], None, None]:
        for batch in self.batches:
            for start in range(0, batch.num_rows, rows):
                piece = batch.slice(start, rows)
                yield {name: column_at(piece, name) for name in types}

    def __reduce__(self) -> tuple[Any, ...]:
        # A slice of an array would be pickled with all rows. Each batch has its own dictionaries.
        return _unpickled, ([_packed(batch) for batch in self.batches],)


def _packed(batch: "pyarrow.RecordBatch") -> bytes:
    pa = _pyarrow()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _unpickled(batches: Sequence[bytes]) -> _Held:
    ipc = optional("pyarrow.ipc", "parquet", "reading a table")
    return _Held([batch for each in batches for batch in ipc.open_stream(each)])


def stream_of(source: Any, text: TextFormat = TextFormat()) -> Stream | Source:  # noqa: B008
    """A table, a stream or an iterator of them; the paths of files as they are, or as a list.

    Raises:
        MetricInputError: it is neither, holds no table, or cannot be read.
    """
    if isinstance(source, str | Path):
        return source
    name = _name(source)
    chunk = _chunk_of(source, name)
    if chunk is not None:
        return _stream(name, chunk, (), text)
    if hasattr(source, "collect") or isinstance(source, Mapping) or not _is_iterable(source):
        lazy = "; it is lazy: give what its collect() returns" * hasattr(source, "collect")
        raise MetricInputError(f"evaluate: source is a {name}; {_EXPECTED}{lazy}")
    items = iter(source)
    # Errors of an iterator are the caller's own, and are raised as they are.
    first = next(items, None)
    if isinstance(first, str | Path) or (first is None and isinstance(source, Sequence)):
        return [] if first is None else [first, *items]
    if first is None:
        raise MetricInputError(
            f"{name}: it gives no record batch, so its columns are not known; for no rows, give "
            f"one batch without rows"
        )
    chunks = (_item(item, name, place) for place, item in enumerate(chain([first], items), 1))
    return _stream(name, next(chunks), chunks, text)


def _stream(name: str, first: _Chunk, others: "Iterable[_Chunk]", text: TextFormat) -> Stream:
    file = FileIdentity(name, name, 0, 0, 0, "")
    return Stream(Table(file, first.types, (), text, is_file=False), chain([first], others))


def _item(item: object, name: str, place: int) -> _Chunk:
    chunk = _chunk_of(item, f"{name}: item {place:,}")
    if chunk is None:
        raise MetricInputError(
            f"{name}: item {place:,} is a {_name(item)}; expected a record batch or a table, such "
            f"as pyarrow.record_batch({{...}}), or the path of a file"
        )
    return chunk


def _is_iterable(source: object) -> bool:
    return hasattr(source, "__iter__") or hasattr(source, "__getitem__")


def _name(source: object) -> str:
    """Names a source for messages, as "polars.DataFrame"."""
    of = type(source)
    package = of.__module__.split(".")[0].lstrip("_")
    return of.__qualname__ if package == "builtins" else f"{package}.{of.__qualname__}"


def _chunk_of(source: Any, name: str) -> _Chunk | None:
    """One table or stream; None if it is neither."""
    pandas = sys.modules.get("pandas")
    with reading(name):
        if pandas is not None and isinstance(source, pandas.DataFrame):
            return _of_pandas(source)
        pa = _pyarrow()
        if isinstance(source, pa.RecordBatchReader):
            return _of_reader(source)
        if isinstance(source, pa.Table):
            return _of_reader(source.to_reader())
        if hasattr(source, "__arrow_c_stream__"):
            return _of_reader(pa.RecordBatchReader.from_stream(source))
        if hasattr(source, "__arrow_c_array__"):
            return _of_reader(pa.table(pa.record_batch(source)).to_reader())
        if hasattr(source, "scanner") and hasattr(source, "schema"):
            return _of_dataset(source)
        if hasattr(source, "to_reader"):
            return _of_reader(source.to_reader())
    return None


def _of_reader(reader: "pyarrow.RecordBatchReader") -> _Chunk:
    def batches(names: Sequence[str]) -> Batches:
        for batch in reader:
            # A reader that a generator of Python feeds does not check what it passes on.
            if not batch.schema.equals(reader.schema):
                raise ValueError(
                    f"a batch has the columns {_shown(batch.schema)}; its schema says "
                    f"{_shown(reader.schema)}"
                )
            yield batch.select(list(roots_of(names, batch.schema.names)))

    return _Chunk(_types_of(reader.schema), batches)


def _of_dataset(dataset: Any) -> _Chunk:
    """A dataset of pyarrow: its files are read one by one, the needed columns only."""
    files, system = getattr(dataset, "files", None), getattr(dataset, "filesystem", None)

    def batches(names: Sequence[str]) -> Batches:
        # Read-ahead is memory. The batches of one file are read in their order.
        columns = list(roots_of(names, dataset.schema.names))
        options = {"batch_readahead": 4, "fragment_readahead": 1, "use_threads": True}
        scanner = dataset.scanner(columns=columns, batch_size=2**16, **options)
        with _unchanged(files, system):
            yield from scanner.to_reader()

    return _Chunk(_types_of(dataset.schema), batches)


@contextmanager
def _unchanged(files: Sequence[str] | None, system: Any) -> Iterator[None]:
    """Checks that files of a dataset do not change within the block; names one that does."""

    def facts() -> dict[str, tuple[int, int]]:
        found = system.get_file_info(list(files)) if files and system is not None else []
        return {each.path: (each.size, each.mtime_ns) for each in found}

    def check() -> None:
        now = facts()
        for path, each in before.items():
            if now[path] != each:
                raise MetricInputError(f"{path}: the file has changed while it was read")

    before = facts()
    try:
        yield
    except GeneratorExit:
        raise
    except Exception:
        check()  # the change is the cause
        raise
    check()


def _of_pandas(frame: Any) -> _Chunk:
    """A frame of pandas: the needed columns are converted some rows at a time.

    Missing values become null, NaN among them, as pandas writes them to Parquet.
    """
    pa = _pyarrow()
    # By place, as several columns may have one name. The levels of an index with names come last.
    labels = [*frame.columns, *(name for name in frame.index.names if name is not None)]
    levels = [i for i, name in enumerate(frame.index.names) if name is not None]
    places: dict[str, tuple[int, Any]] = {}
    types: Types = {}

    def column(place: int, rows: slice) -> Any:
        if place < frame.shape[1]:
            return frame.iloc[rows, place]
        return frame.index[rows].get_level_values(levels[place - frame.shape[1]])

    for place, label in enumerate(labels):
        name = label if isinstance(label, str) else str(label)
        # Only columns of objects say by their values what they hold.
        empty = column(place, slice(0))
        try:
            given = column(place, slice(None)) if empty.dtype == object else empty
            inner = pa.Array.from_pandas(given).type
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            several = ", of values of several types" if empty.dtype == object else ""
            found = {name: ColumnType("other", 0, False, f"{empty.dtype}{several}")}
        else:
            found = _types_of(pa.schema([(name, inner)]))
            places.setdefault(name, (place, None if pa.types.is_dictionary(inner) else inner))
        types |= {
            x: each._replace(kind="doubled") if x in types else each for x, each in found.items()
        }

    def batches(names: Sequence[str]) -> Batches:
        chosen = list(roots_of(names, places))
        for start in range(0, len(frame), PART_ROWS):
            rows = slice(start, start + PART_ROWS)
            arrays = [
                pa.Array.from_pandas(column(place, rows), type=inner)
                for place, inner in (places[name] for name in chosen)
            ]
            # Columns of Arrow in pandas have chunks.
            chunked = [pa.chunked_array([x]) if isinstance(x, pa.Array) else x for x in arrays]
            yield from pa.table(chunked, names=chosen).to_batches()

    return _Chunk(types, batches)


def _types_of(schema: "pyarrow.Schema") -> Types:
    types: Types = {}
    for name, found in columns_of(schema):
        types[name] = found._replace(kind="doubled") if name in types else found
    return types


def _check_types(found: Types, wanted: Types, where: str) -> None:
    """Raises if a later chunk lacks a column, or has another type of it."""
    for name, first in wanted.items():
        now = found.get(name)
        if first.kind == "absent":
            if now is not None:
                raise MetricInputError(
                    f"{where} has a column {name!r}, which the metrics take, and the items before "
                    f"it have none; expected the same columns in all"
                )
            continue
        if now is None:
            raise MetricInputError(
                f"{where} has no column {name!r}, which the items before it have; expected the "
                f"same columns in all"
            )
        same = (now.kind, now.lists) == (first.kind, first.lists)
        numbers = {now.kind, first.kind} == {"integer", "float"} and now.lists == first.lists
        is_text = first.kind == "verbatim" and now.kind not in ("other", "doubled", "mixed")
        if not (same or numbers or is_text or now.kind == "null"):
            raise MetricInputError(
                f"{where} has the type {now.name} of the column {name!r}, and the items before it "
                f"{first.name}; expected the same in all"
            )


def _rows_of_part(batch: "pyarrow.RecordBatch") -> int:
    """The rows of each part: a power of two, fewer if rows are large."""
    try:
        size = batch.nbytes
    except _pyarrow().ArrowTypeError:  # pyarrow 20 has none of text as views, as Polars has it
        size = batch.get_total_buffer_size()
    width = max(size // max(batch.num_rows, 1), 1)
    most = 1 << max((PART_BYTES // width).bit_length() - 1, 4)
    return min(PART_ROWS, most)


def _shown(schema: "pyarrow.Schema") -> str:
    return ", ".join(f"{field.name!r} ({field.type})" for field in schema)[:120]


def _pyarrow() -> ModuleType:
    return optional("pyarrow", "parquet", "reading a table")
