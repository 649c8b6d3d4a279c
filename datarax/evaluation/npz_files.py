"""NPZ files, read with NumPy alone; arrays of objects are refused, so nothing is unpickled."""

import math
import zipfile
from collections.abc import Generator
from contextlib import ExitStack
from io import BytesIO
from typing import IO

import numpy as np

from datarax._errors import MetricInputError
from datarax.evaluation.locations import path_or_file
from datarax.evaluation.tables import Column, ColumnType, Part, TableFile, Types, key_of

_KINDS = {"f": "float", "i": "integer", "u": "integer", "b": "boolean", "U": "text"}
_KINDS |= dict.fromkeys("mM", "time")


class NpzFile(TableFile):
    """An NPZ file: one part, whose columns are its arrays, with one row for each first index."""

    def layout(self) -> tuple[list[tuple[str, ColumnType]], list[Part]]:
        columns, rows = [], set[int]()
        with path_or_file(self.path) as source, zipfile.ZipFile(source) as archive:
            for member in archive.infolist():
                with archive.open(member) as file:
                    shape, _, dtype = _header(file)
                # An array without rows, or with rows of no bytes, is no column.
                kind = _KINDS.get(dtype.kind, "other") if _row_bytes(shape, dtype) else "other"
                found = ColumnType(kind, max(len(shape) - 1, 0), False, f"{dtype}{list(shape)}")
                columns.append((member.filename.removesuffix(".npy"), found))
                rows.add(shape[0] if shape else 0)
        key, most = key_of(self.path), max(rows, default=0)
        return columns, [Part(self.file, 0, 1, key, most, counted=len(rows) == 1, start=0)]

    def read(self, part: Part, types: Types, rows: int) -> Generator[dict[str, Column], None, None]:
        with (
            path_or_file(self.path) as source,
            zipfile.ZipFile(source) as archive,
            ExitStack() as members,
        ):
            opened = {name: archive.open(f"{name}.npy") for name in types}
            columns = {
                name: _RowReader(members.enter_context(file)) for name, file in opened.items()
            }
            numbers = {name: column.shape[0] for name, column in columns.items()}
            if len(set(numbers.values())) > 1:
                shown = ", ".join(f"{name!r} {number}" for name, number in numbers.items())
                raise MetricInputError(f"{self.path}: the arrays have different lengths: {shown}")
            left = next(iter(numbers.values()))
            while left:
                size = min(rows, left)
                yield {name: column.next(size) for name, column in columns.items()}
                left -= size
            for name, column in columns.items():
                if not column.is_at_end():
                    raise ValueError(
                        f"the array {name!r} goes on after the last row that its header says"
                    )


class _RowReader:
    """An array of an archive, which is read some rows at a time."""

    def __init__(self, file: IO[bytes]):
        self.shape, by_column, self.dtype = _header(file)
        if by_column and len(self.shape) > 1:  # its rows do not lie one after the other
            flat = np.frombuffer(file.read(), self.dtype)
            file = BytesIO(flat.reshape(self.shape, order="F").tobytes())
        self.file = file

    def next(self, rows: int) -> np.ndarray:
        shape, size = (rows, *self.shape[1:]), rows * _row_bytes(self.shape, self.dtype)
        # Members are read as streams, because compressed ones cannot be mapped into memory.
        data = self.file.read(size)
        if len(data) < size:
            raise ValueError("the archive ends in the middle of an array")
        return np.frombuffer(data, self.dtype).reshape(shape)

    def is_at_end(self) -> bool:
        """True if all bytes were read."""
        return not self.file.read(1)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """The shape of an array, whether it is laid out by column, and its dtype."""
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"an array has version {version} of the format; expected 1.0 or 2.0")
    shape, by_column, dtype = read(file)
    # A damaged header may hold any integers.
    if any(size < 0 for size in shape):
        raise ValueError(f"an array has the shape {shape}")
    return shape, by_column, dtype


def _row_bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Counts the bytes of a row of an array; 0 if it has no rows."""
    return math.prod(shape[1:]) * dtype.itemsize if shape else 0
