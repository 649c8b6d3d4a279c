"""The results of an evaluation as tables in the terminal."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from datarax._numbers import known_decimals, number, outward, trimmed
from datarax.cli.one_line import printable

MOST_CLASSES = 20
MOST_SLICES = 20
MOST_LETTERS = 40

Summary = Mapping[str, Any]


def show(console: Console, summary: Summary) -> None:
    """Prints the summary of an evaluation: its metrics, classes, slices, and what was left out."""
    source = summary["source"]
    parts = source["parts"]
    console.print()
    scores = summary["config"].get("scores")
    facts = [summary["task"], *([scores] if scores else []), _count(source["rows"], "row")]
    console.print(_heading(summary["title"], facts))
    if not source["complete"]:
        done = f" only {parts['done']} of {parts['total']} parts are done"
        console.print(Text(done, style="yellow"))
    tables = [metrics_table(summary)]
    if summary["by_class"]:
        tables.append(_classes_table(summary["by_class"]))
    tables += [_slices_table(slicing, console.width) for slicing in summary["slices"]]
    for table in tables:
        console.print()
        console.print(table)
    console.print()
    _show_notes(console, summary)


def _show_notes(console: Console, summary: Summary) -> None:
    for line in notes(summary):
        # Rich wraps within the indent of a padded grid.
        row = Table.grid(padding=(0, 1))
        row.add_row(Text(" !", style="bold yellow"), Text(line))
        console.print(row)


def show_comparison(console: Console, summary: Summary) -> None:
    """Prints the comparison of two models."""
    console.print()
    rows = _count(summary["source"]["rows"], "row")
    console.print(_heading(summary["title"], [summary["task"], rows]))
    for model in ("a", "b"):
        console.print(Text(f" {model}: {printable(summary['source'][model], 200)}", style="dim"))
    console.print()
    console.print(comparison_table(summary))
    console.print()
    _show_notes(console, summary)


def metrics_table(summary: Summary) -> Table:
    """Each metric with its value; with its interval and its bounds if any metric has them."""
    rows = summary["metrics"]
    intervals = any(row["lower"] is not None for row in rows)
    bounds = any(row["bounds"] for row in rows)
    table = _table("metric")
    table.add_column("value", justify="right", no_wrap=True, style="bold")
    if intervals:
        table.add_column(_interval_name(summary), justify="center", no_wrap=True)
    if bounds:
        table.add_column("certain bounds", justify="center", no_wrap=True, style="dim")
    for row in rows:
        least, most = row["bounds"] or (None, None)
        exact = known_decimals(least, most, digits=1)
        # Without an interval, the bounds say how many digits are known.
        decimals = known_decimals(row["lower"], row["upper"])
        decimals = exact if decimals is None else decimals
        cells: list[Text | str] = [plain(row["name"]), number(row["value"], decimals)]
        if intervals:
            cells.append(_between(row["lower"], row["upper"], decimals))
        if bounds:
            cells.append(_between(*outward(least, most, exact), exact))
        table.add_row(*cells)
    return table


def comparison_table(summary: Summary) -> Table:
    """The values of two models, and their differences."""
    table = _table("metric")
    table.add_column("a", justify="right", no_wrap=True)
    table.add_column("b", justify="right", no_wrap=True)
    table.add_column("b - a", justify="right", no_wrap=True, style="bold")
    table.add_column(_interval_name(summary), justify="center", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in summary["metrics"]:
        decimals = known_decimals(row["lower"], row["upper"])
        table.add_row(
            plain(row["name"]),
            number(row["a"], decimals),
            number(row["b"], decimals),
            number(row["difference"], decimals, sign=True),
            _between(row["lower"], row["upper"], decimals, sign=True),
            _verdict(row),
        )
    return table


def _interval_name(summary: Summary) -> str:
    return f"{trimmed(number(100 * summary['confidence'], digits=6))}% interval"


def _verdict(row: Mapping[str, Any]) -> Text:
    if row["lower"] is None:
        return Text("no interval", style="dim")
    if not row["excludes_zero"]:
        return Text("0 is within", style="dim")
    if row["better"] is None:
        return Text("differs")
    better = (row["difference"] > 0) == (row["better"] == "higher")
    return Text("b is better", style="green") if better else Text("a is better", style="red")


def _classes_table(by_class: Mapping[str, Any]) -> Table:
    columns = by_class["columns"]
    table = _table("class")
    for column in columns:
        table.add_column(plain(column["name"]), justify="right", no_wrap=True)
    for place, name in enumerate(by_class["classes"][:MOST_CLASSES]):
        cells = (
            (_total if column["name"] == "support" else number)(column["values"][place])
            for column in columns
        )
        table.add_row(plain(name), *cells)
    _more(table, len(by_class["classes"]) - MOST_CLASSES)
    return table


def _slices_table(slicing: Mapping[str, Any], width: int) -> Table:
    """The first metrics of each slice, as many as fit."""
    rows = slicing["rows"]
    names = list(dict.fromkeys(name for row in rows for name in row["values"]))
    longest = max([len(slicing["by"]), *(len(row["name"]) for row in rows[:MOST_SLICES])])
    # The column of rows and all margins take 16 characters; a value takes 7, with its interval 16.
    left = width - min(longest, MOST_LETTERS) - 16
    least = 16 if any(x["lower"] is not None for row in rows for x in row["values"].values()) else 7
    ends = accumulate(max(len(name), least) + 3 for name in names)
    names = [name for name, end in zip(names, ends, strict=True) if end <= left or name == names[0]]
    table = _table(plain(slicing["by"]))
    table.add_column("rows", justify="right", no_wrap=True)
    for name in names:
        table.add_column(plain(name), justify="right", no_wrap=True)
    for row in rows[:MOST_SLICES]:
        cells = (_with_margin(row["values"].get(name)) for name in names)
        table.add_row(plain(row["name"]), _total(row["examples"]), *cells)
    _more(table, len(rows) - MOST_SLICES)
    return table


def _with_margin(value: Mapping[str, Any] | None) -> Text:
    """A value in a slice, and half the width of its interval."""
    if value is None:
        return Text("")
    decimals = known_decimals(value["lower"], value["upper"])
    text = Text(number(value["value"], decimals))
    if value["lower"] is not None and value["upper"] is not None:
        half = (value["upper"] - value["lower"]) / 2
        text.append(f" ±{number(half, decimals)}", style="dim")
    return text


def notes(summary: Summary) -> Iterable[str]:
    """What was left out, and what else is to be known, one line each."""
    for each in summary["excluded"]:
        where = printable(str(each["where"]), 200)
        reason = printable(str(each["reason"]), 200)
        rows = f"{_count(each['rows'], 'row')}: {reason}"
        # The reason names the column already.
        yield (
            f"{rows} ({each['effect']})"
            if where in reason
            else f"{rows}, in {where} ({each['effect']})"
        )
    yield from (printable(note, 400) for note in summary.get("notes", ()))


def plain(name: Any) -> Text:
    """A name from a file: no markup, no control characters."""
    return Text(printable(str(name), 200))


def _total(x: float | None) -> str:
    """A count, or a sum of weights."""
    return "" if x is None else number(int(x) if x == int(x) else x)


def _between(
    low: float | None, high: float | None, decimals: int | None, *, sign: bool = False
) -> str:
    if low is None or high is None:
        return ""
    return f"{number(low, decimals, sign=sign)} to {number(high, decimals, sign=sign)}"


def _heading(title: str, facts: Sequence[str]) -> Text:
    text = Text(" ")
    text.append(printable(title, 120), style="bold")
    text.append("   " + " · ".join(facts), style="dim")
    return text


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _table(first: str | Text) -> Table:
    """A table whose first column has names."""
    table = Table(box=box.SIMPLE_HEAD, header_style="cyan", pad_edge=True, show_edge=False)
    table.add_column(first, no_wrap=True, max_width=MOST_LETTERS, overflow="ellipsis")
    return table


def _more(table: Table, number_of_rows: int) -> None:
    if number_of_rows > 0:
        table.add_row(Text(f"and {number_of_rows:,} more", style="dim"))
