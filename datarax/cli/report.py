"""The output of the demo: a progress bar, tables and a picture."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from datarax.cli.verification import (
    CONFIDENCE,
    INTERVAL_REFERENCE,
    QUALITY_REFERENCES,
    REFERENCES,
    TOLERANCE,
)

Numbers = Mapping[str, float]


@contextlib.contextmanager
def progress(console: Console, total: int) -> Iterator[Callable[[], None]]:
    """Shows a progress bar of `total` steps; yields a function that advances it by one step."""
    columns = (TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("steps", total=total)
        yield lambda: bar.advance(task)


def numbers_table(
    rows: Sequence[tuple[str, Numbers]], *, title: str | None = None, header: bool = True
) -> Table:
    """A table with one row of numbers for each label.

    The widths of its columns are fixed, so that consecutive tables are aligned.
    """
    table = Table(title=title, title_justify="left", show_header=header, box=None)
    table.add_column(width=14)
    for name in REFERENCES:
        table.add_column(name.replace("_", " "), justify="right", width=max(8, len(name)))
    for label, numbers in rows:
        table.add_row(label, *(_short(numbers[name]) for name in REFERENCES))
    return table


def quality_table(results: Mapping[str, Any], bounds: tuple[float, float]) -> Table:
    """A table of the quality of the predictions, with one line for each metric."""
    table = Table(title="\nQuality on the test set", title_justify="left", box=None)
    table.show_header = False
    table.add_column(width=19)
    table.add_column()
    for name in QUALITY_REFERENCES:
        value = results[name]
        values = value if isinstance(value, list) else [value]
        shown = " ".join(f"{x:.4f}" for x in values)
        if name == "auroc":
            shown += f"  bounds: {bounds[0]:.6f} to {bounds[1]:.6f}"
        if f"interval/lower/{name}" in results:
            shown += f"  {CONFIDENCE:.0%} interval: {_interval(results, 'interval', name)}"
        table.add_row(f" {name.replace('_', ' ')}", shown)
    return table


def slices_table(results: Mapping[str, Any], slices: Mapping[str, Sequence[str]]) -> Table:
    """A table of the accuracy of the slices of the test set, with one line for each slice."""
    table = Table(title="\nSlices of the test set", title_justify="left", box=None)
    for heading in ("slice", "examples", "accuracy", f"{CONFIDENCE:.0%} interval"):
        table.add_column(heading, justify="left" if heading == "slice" else "right")
    for by, names in slices.items():
        for name in names:
            examples, accuracy = (results[f"{by}/{part}/{name}"] for part in ("examples", "value"))
            interval = _interval(results, by, name)
            table.add_row(f"{by} {name}", str(examples), f"{accuracy:.4f}", interval)
    return table


def check_table(worst: Numbers) -> Table:
    """A table of the largest difference of each number from its reference."""
    table = Table(title="\nLargest differences", title_justify="left", box=None)
    for heading in ("number", "compared with", "difference", ""):
        table.add_column(heading, justify="right" if heading == "difference" else "left")
    references = REFERENCES | QUALITY_REFERENCES | {"interval": INTERVAL_REFERENCE}
    for name, difference in worst.items():
        reference = references[name.rpartition("/")[2]]
        verdict = "ok" if difference <= TOLERANCE else "WRONG"
        table.add_row(name, reference, f"{difference:.1e}", verdict)
    return table


def plot(path: Path, records: Sequence[Numbers]) -> None:
    """Writes a PNG file with curves of loss and accuracy by epoch, for training and test."""
    epochs = [record["epoch"] for record in records]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for split in ("train", "test"):
            values = [record[f"{split}/{name}"] for record in records]
            axes.plot(epochs, values, marker="o", markersize=3, label=split)
        axes.set(xlabel="epoch", title=f"mean {name}" if name == "loss" else name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=150)


def _interval(results: Mapping[str, Any], where: str, name: str) -> str:
    return " to ".join(f"{results[f'{where}/{end}/{name}']:.4f}" for end in ("lower", "upper"))


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4f}"
