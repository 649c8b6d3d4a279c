"""`ConsoleWriter`: a table in the terminal that grows with the run."""

from typing import TYPE_CHECKING

import numpy as np

from datarax._numbers import number
from datarax._optional import optional
from datarax.io.writer import Items, OnError, Step, Writer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_WIDEST = 8
"""The most columns of one table. What is more gets a table of its own."""


class ConsoleWriter(Writer):
    """Prints a line of numbers for each step, and shows how far the run has come.

    The columns are those of the first results; other names start a new table. Vectors and matrices
    are described by their shapes.

    Args:
        total: how many steps there are; with it, a progress bar is shown on a terminal.
        console: a `rich.console.Console`; the default prints to stdout.
        on_error: see `Writer`.

    Raises:
        MissingExtraError: Rich is not installed.

    Example:
        >>> from datarax.io import ConsoleWriter
        >>> with ConsoleWriter() as writer:
        ...     writer.write(100, {"loss": 0.512345, "accuracy": 0.75})
        ...     writer.write(200, {"loss": 0.25, "accuracy": float("nan")})
            step      loss  accuracy
             100    0.5123    0.7500
             200    0.2500       NaN
    """

    def __init__(
        self,
        total: int | None = None,
        *,
        console: "Console | None" = None,
        on_error: OnError = "warn",
    ):
        super().__init__(on_error=on_error)
        rich = optional("rich.console", "console", "ConsoleWriter")
        self._console: Console = console or rich.Console(highlight=False)
        self._total = total
        self._columns: tuple[str, ...] = ()
        self._bar: Progress | None = None

    def open(self) -> None:
        if self._total is not None and self._console.is_terminal:
            from rich.progress import Progress

            self._bar = Progress(console=self._console, transient=True)
            self._task = self._bar.add_task("steps", total=self._total)
            self._bar.start()

    def put(self, step: Step, items: Items) -> None:
        cells = {"step": str(step)} | {name: _shown(value) for name, value in items.items()}
        columns = tuple(cells)  # the first one is the step
        for start in range(0, len(columns), _WIDEST):
            self._line(columns[start : start + _WIDEST], cells, len(columns) > _WIDEST)
        if self._bar is not None:
            self._bar.update(self._task, completed=float(step))

    def _line(self, columns: tuple[str, ...], cells: dict[str, str], several: bool) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=0, show_header=several or columns != self._columns)
        for name in columns:  # of the same widths in each line, so that they stand in columns
            width = max(8, len(name)) + (2 if name != columns[0] else 0)
            table.add_column(Text(name), justify="right", width=width)
        table.add_row(*(Text(cells[name]) for name in columns))
        self._console.print(table)
        self._columns = columns

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _shown(value: object) -> str:
    if isinstance(value, bool | int | str) or value is None:
        return "" if value is None else str(value)
    if isinstance(value, float):
        return number(value).replace(",", "")  # so that other programs can read it
    # All arrays of a named tuple, such as the points of a curve, have one shape.
    array = np.asarray(value[0] if isinstance(value, tuple) else value)
    return " x ".join(map(str, array.shape))
