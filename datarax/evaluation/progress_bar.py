"""A bar of the progress of an evaluation, on a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from datarax._errors import MissingExtraError
from datarax._optional import optional


@contextmanager
def progress_bar(wanted: bool) -> Iterator[Callable[[Any], None] | None]:
    """What to pass to `fold(progress=)`: None without a terminal on standard error, or Rich."""
    try:
        if not wanted or not sys.stderr.isatty():
            raise MissingExtraError
        bars = optional("rich.progress", "console", "the progress bar")
        console = optional("rich.console", "console", "the progress bar").Console(stderr=True)
    except MissingExtraError:
        yield None
        return
    parts = (
        bars.TextColumn("{task.completed:,.0f} of {task.total:,.0f} parts"),
        bars.BarColumn(),
        bars.TextColumn("{task.fields[rows]}"),
        bars.TimeElapsedColumn(),
    )
    start = time.perf_counter()
    with bars.Progress(*parts, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, visible=True, rows="reading")

        def show(now: Any) -> None:
            rate = now.rows / (time.perf_counter() - start)
            text = f"{now.rows:,} rows, {rate:,.0f} a second"
            bar.update(task, total=now.total, completed=len(now.done), rows=text)

        yield show
