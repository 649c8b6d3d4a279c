"""`ParquetWriter`: a table with one row for each step."""

from pathlib import Path
from typing import TYPE_CHECKING

from datarax._optional import optional
from datarax.io.new_files import new_beside
from datarax.io.writer import Items, OnError, Step, Writer
from datarax.metric.values import jsonable

if TYPE_CHECKING:
    import pyarrow

_FEWEST = 100  # rows that are written at once


class ParquetWriter(Writer):
    """Writes a Parquet file with a row for each step and a column for each name.

    The file is always complete: a new one takes the place of the old one. It is written at `flush`
    and `close`, and in between as often as it has grown by a tenth, or by 100 rows. So a process
    that is killed loses the rows since then. A file that exists is continued. Arrays are lists, the
    points of a curve are a struct; a name that is new has no value in earlier rows.

    Args:
        path: the file; folders above it are made.
        on_error: see `Writer`.

    Raises:
        MissingExtraError: pyarrow is not installed.

    Example:
        >>> import tempfile
        >>> import pyarrow.parquet
        >>> from datarax.io import ParquetWriter
        >>> path = f"{tempfile.mkdtemp()}/history.parquet"
        >>> with ParquetWriter(path) as writer:
        ...     writer.write(1, {"loss": 0.5})
        ...     writer.write(2, {"loss": 0.25, "accuracy": 1.0})
        >>> print(pyarrow.parquet.read_table(path).to_pydict())
        {'step': [1, 2], 'loss': [0.5, 0.25], 'accuracy': [None, 1.0]}
    """

    def __init__(self, path: str | Path, *, on_error: OnError = "warn"):
        super().__init__(on_error=on_error)
        self.path: Path = Path(path)
        self._arrow = optional("pyarrow", "parquet", "ParquetWriter")
        self._parquet = optional("pyarrow.parquet", "parquet", "ParquetWriter")
        self._rows: list[Items] = []
        self._table: pyarrow.Table | None = None

    def open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self._table = self._parquet.read_table(self.path)

    def put(self, step: Step, items: Items) -> None:
        self._rows.append({"step": jsonable(step)} | {n: jsonable(x) for n, x in items.items()})
        old = 0 if self._table is None else len(self._table)
        if len(self._rows) >= max(_FEWEST, old // 10):
            self.sync()

    def sync(self) -> None:
        if not self._rows:
            return
        # A table takes its columns from the first row, so all names are in each.
        names = list(dict.fromkeys(name for row in self._rows for name in row))
        columns = {name: self._column([row.get(name) for row in self._rows]) for name in names}
        tables = [self._arrow.table(columns)]
        if self._table is not None:
            tables.insert(0, self._table)
        # An integer column that gets floats becomes one of floats.
        table = self._arrow.concat_tables(tables, promote_options="permissive")
        new, file = new_beside(self.path)
        try:
            with file:
                self._parquet.write_table(table, file)
            new.replace(self.path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        self._table, self._rows = table, []

    def _column(self, values: list[object]) -> "pyarrow.Array":
        try:
            return self._arrow.array(values, from_pandas=False)
        except (self._arrow.ArrowInvalid, self._arrow.ArrowTypeError, OverflowError):
            # Integers beyond 64 bits, or values of different kinds under one name.
            if all(x is None or isinstance(x, int | float) for x in values):
                numbers = [float(x) if isinstance(x, int | float) else None for x in values]
                return self._arrow.array(numbers)
            return self._arrow.array([None if x is None else str(x) for x in values])
