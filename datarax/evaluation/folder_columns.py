"""Columns from the names of folders: `country=de/part-0.csv` has a column `country`, as in Hive."""

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from urllib.parse import unquote

import numpy as np

from datarax._errors import MetricInputError
from datarax._optional import optional
from datarax.evaluation.locations import folders_of
from datarax.evaluation.tables import Column, ColumnType, Part, Table, TableFile, Types
from datarax.evaluation.text_format import is_number

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
# A number that is printed as it is written: months may be 01, which is then a text.
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
_FLOAT = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?(e[-+]?\d+)?", re.IGNORECASE)
_READABLE = ("float", "integer", "boolean", "text", "time")


def folder_values(path: str) -> list[tuple[str, str | None]]:
    """The columns that the folders of a path give, with the value that all rows of the file have.

    The path counts as it was given, not the folders above it.
    """
    pairs = (folder.partition("=") for folder in folders_of(path) if "=" in folder)
    return [
        (unquote(name), unquote(value) if value not in ("", _NO_VALUE) else None)
        for name, _, value in pairs
        if name
    ]


def with_folder_types(tables: Sequence[Table]) -> list[Table]:
    """The tables, with types of the columns of folders: numbers if all values are, else text."""
    texts: dict[str, list[str]] = {}
    for table in tables:
        for name, text in folder_values(table.path):
            if table.types[name].is_folder and text is not None:
                texts.setdefault(name, []).append(text)
    kinds = {name: _kind(found) for name, found in texts.items()}
    return [
        table._replace(
            types={
                name: each._replace(kind=kinds[name])
                if each.is_folder and each.kind != "doubled" and name in kinds
                else each
                for name, each in table.types.items()
            }
        )
        for table in tables
    ]


def _kind(texts: Iterable[str]) -> str:
    found = set(texts)
    if all(map(_INTEGER.fullmatch, found)):
        return "integer"
    return "float" if all(map(_FLOAT.fullmatch, found)) else "text"


class FileInFolders(TableFile):
    """A file of any format, with the columns that its folders give.

    A column that the file has too is read from it, and must agree with the name of the folder.
    """

    def __init__(self, file: TableFile, values: Sequence[tuple[str, str | None]]):
        super().__init__(file.file, file.text)
        self.inner, self.values = file, dict(values)
        self._pairs = values

    def layout(self) -> tuple[list[tuple[str, ColumnType]], Sequence[Part]]:
        columns, parts = self.inner.layout()
        columns = list(columns)
        own = {name for name, _ in columns}
        more = [
            (name, ColumnType("null" if text is None else "text", 0, False, "text", is_folder=True))
            for name, text in self._pairs
            if name not in own
        ]
        return [*columns, *more], parts

    def type_of(self, name: str, *, whole: bool = False) -> ColumnType | None:
        if name in self.values and name not in _own_types(self.inner):
            return self.described().types[name]
        return self.inner.type_of(name, whole=whole)

    def read(self, part: Part, types: Types, rows: int) -> Generator[dict[str, Column], None, None]:
        self.inner.absent = self.absent
        if not self.values.keys() & types:
            yield from self.inner.read(part, types, rows)
            return
        own = _own_types(self.inner)
        stored = {name: x for name, x in types.items() if name in own or name not in self.values}
        with closing(self.inner.read(part, stored or _counted(own), rows)) as tables:
            for table in tables:
                size = len(next(iter(table.values())))
                for name in stored.keys() & self.values.keys():
                    self._check(name, table[name])
                yield {
                    name: table[name]
                    if name in stored
                    else _constant(self.values[name], found.kind, size)
                    for name, found in types.items()
                }

    def _check(self, name: str, column: Column) -> None:
        """Raises if a column of the file has other values than the name of its folder."""
        text = self.values[name]
        array = np.unique(column) if isinstance(column, np.ndarray) else column.unique()
        values = array.tolist() if isinstance(array, np.ndarray) else array.to_pylist()
        for value in values:
            if not _agrees(value, text):
                raise MetricInputError(
                    f"{self.path}: the column {name!r} of the file holds {value!r}, and its folder "
                    f"says {name}={text}; rename the column or the folder"
                )


def _agrees(value: object, text: str | None) -> bool:
    if value is None or text is None:
        return value is None and text is None
    if isinstance(value, bool):
        return str(value).lower() == text.lower()
    if isinstance(value, int | float) and is_number(text):
        return float(value) == float(text)
    # Dates and times are written in folders in many ways.
    return str(value) == text or not isinstance(value, str | int | float)


def _constant(text: str | None, kind: str, size: int) -> Column:
    if text is None:
        return optional("pyarrow", "parquet", "reading a folder without a value").nulls(size)
    if kind in ("integer", "float"):
        return np.full(size, int(text) if kind == "integer" else float(text))
    return np.full(size, text)


def _counted(own: Mapping[str, ColumnType]) -> Types:
    """One column of a file, if only its rows are counted."""
    plain = (name for name, found in own.items() if found.kind in _READABLE and not found.lists)
    name = next(plain, None) or next(iter(own))
    return {name: own[name]}


@lru_cache(maxsize=256)
def _own_types_of(file: type[TableFile], *of: object) -> Types:
    return file(*of).described().types  # pyright: ignore[reportArgumentType]


def _own_types(file: TableFile) -> Types:
    # Cached, because a file of text is read to find them, and each part of a file asks.
    return _own_types_of(type(file), file.file, file.text)
