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
    """Makes the `progress` of `fold`: None without a terminal on standard error, or Rich."""
    try:
        if not wanted or not sys.stderr.isatty():
            # Ends as without Rich.
            raise MissingExtraError
        bars = optional("rich.progress", "console", "the progress bar")
        console = optional("rich.console", "console", "the progress bar").Console(stderr=True)
    except MissingExtraError:
        yield None
        return
    parts = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TextColumn("{task.fields[rows]}"),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
    )
    start = time.perf_counter()
    with bars.Progress(*parts, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=None, rows="")

        def show(now: Any) -> None:
            rate = now.rows / (time.perf_counter() - start)
            done, rows = len(now.done), f"{now.rows:,} rows, {rate:,.0f} a second"
            # The parts of a stream are not known before its end.
            parts = f"{done:,} of {now.total:,} parts" if now.total else f"{done:,} parts"
            bar.update(task, total=now.total or None, completed=done, description=parts, rows=rows)

        yield show
