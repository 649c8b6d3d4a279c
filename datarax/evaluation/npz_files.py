"""NPZ files, read with NumPy alone; arrays of objects are refused, so nothing is unpickled."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from datarax._errors import MetricInputError
from datarax.evaluation.tables import ColumnType, Part, Table, TableFile, key_of, reading

_KINDS = {"f": "float", "i": "integer", "u": "integer", "b": "boolean", "U": "text"}


class NpzFile(TableFile):
    """An NPZ file: one part, whose columns are its arrays, with one row for each first index."""

    def described(self) -> Table:
        if not Path(self.path).stat().st_size:
            raise MetricInputError(f"{self.path}: the file is empty")
        with reading(self.path), zipfile.ZipFile(self.path) as archive:
            arrays = {}
            for member in archive.namelist():
                with archive.open(member) as file:
                    arrays[member.removesuffix(".npy")] = _header(file)
        types = {}
        for name, (shape, _, dtype) in arrays.items():
            kind = _KINDS.get(dtype.kind, "other") if shape else "other"
            types[name] = ColumnType(kind, max(len(shape) - 1, 0), False, f"{dtype}{list(shape)}")
        rows = max((shape[0] for shape, _, _ in arrays.values() if shape), default=0)
        part = Part(self.path, 0, 1, key_of(self.path), rows)
        return Table(self.path, types, (part,))

    def read(self, part: Part, types: dict[str, ColumnType], rows: int) -> Iterator[dict[str, Any]]:
        with reading(self.path), zipfile.ZipFile(self.path) as archive:
            columns = {name: _Rows(archive, f"{name}.npy") for name in types}
            numbers = {name: column.shape[0] for name, column in columns.items()}
            if len(set(numbers.values())) > 1:
                shown = ", ".join(f"{name!r} {number}" for name, number in numbers.items())
                raise MetricInputError(f"{self.path}: the arrays have different lengths: {shown}")
            left = next(iter(numbers.values()))
            while left:
                size = min(rows, left)
                yield {name: column.next(size) for name, column in columns.items()}
                left -= size


class _Rows:
    """An array of an archive, which is read some rows at a time."""

    def __init__(self, archive: zipfile.ZipFile, member: str):
        self.file = archive.open(member)
        self.shape, by_column, self.dtype = _header(self.file)
        self.whole = None
        if by_column and len(self.shape) > 1:  # its rows do not lie one after the other
            flat = np.frombuffer(self.file.read(), self.dtype)
            self.whole = flat.reshape(self.shape, order="F")
            self.place = 0

    def next(self, rows: int) -> np.ndarray[Any, Any]:
        if self.whole is not None:
            self.place += rows
            return np.ascontiguousarray(self.whole[self.place - rows : self.place])
        shape = (rows, *self.shape[1:])
        size = int(np.prod(shape)) * self.dtype.itemsize
        data = self.file.read(size)
        if len(data) < size:
            raise ValueError("the archive ends in the middle of an array")
        return np.frombuffer(data, self.dtype).reshape(shape)


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape of an array, whether it is laid out by column, and its dtype."""
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"an array has version {version} of the format; expected 1.0 or 2.0")
    return read(file)
