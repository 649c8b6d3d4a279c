"""The results of an evaluation as tables in the terminal."""

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from datarax._numbers import known_decimals, number, outward
from datarax.cli.one_line import encodable, printable
from datarax.evaluation.html_tables import (
    VERDICTS,
    decimals_of_differences,
    decimals_of_metrics,
)

# A terminal shows this many rows of a table, and letters of a name; the report shows all.
MOST_CLASSES = 20
MOST_SLICES = 20
MOST_LETTERS = 40

Summary = Mapping[str, Any]


def show(console: Console, summary: Summary) -> None:
    """Prints the summary of an evaluation, or of a comparison, and what was left out."""
    summary = _encodable(summary, console.encoding)
    source, scores = summary["source"], summary["config"].get("scores")
    compared = "a" in source
    facts = [summary["task"], *([scores] if scores and not compared else [])]
    facts.append(_count(source["rows"], "row"))
    title = (printable(summary["title"], 120), "bold")
    console.print()
    console.print(Text.assemble(" ", title, ("   " + " · ".join(facts), "dim")))
    if positive := summary.get("positive_class"):
        console.print(Text(f" positive class: {printable(positive, 120)}", style="dim"))
    tables: list[Table | Text]
    if compared:
        for model in ("a", "b"):
            console.print(Text(f" {model}: {printable(source[model], 200)}", style="dim"))
        tables = [comparison_table(summary)]
        for slicing in summary["slices"]:
            tables += _slices_table(_differences(slicing), console.width, sign=True)
        if summary["slices"]:
            said = " slices: b - a, and the model that is better where that is clear"
            tables.append(Text(said, style="dim"))
    else:
        if not source["complete"]:
            done, total = source["parts"]["done"], source["parts"]["total"]
            console.print(Text(f" only {done} of {total} parts are done", style="yellow"))
        tables = [metrics_table(summary)]
        if summary["by_class"]:
            tables.append(_classes_table(summary["by_class"]))
        for slicing in summary["slices"]:
            tables += _slices_table(slicing, console.width)
    for table in tables:
        if isinstance(table, Table):
            console.print()
        console.print(table)
    console.print()
    if summary.get("gate"):
        console.print(_gate_table(summary))
        console.print()
    for line in notes(summary):
        # Rich wraps within the indent of a padded grid.
        row = Table.grid(padding=(0, 1))
        row.add_row(Text(" !", style="bold yellow"), Text(line))
        console.print(row)


def _gate_table(summary: Summary) -> Table:
    """Each condition with its result; of those that fail, the places in which they do."""
    table = Table.grid(padding=(0, 2))
    for each in summary["gate"]:
        fails = [check for check in each["checks"] if check["failed"]]
        verdict = Text(" FAILED" if each["failed"] else " passed")
        verdict.stylize("bold red" if each["failed"] else "green")
        said = f"{len(each['checks'])} checks" if len(each["checks"]) > 1 else ""
        if len(each["checks"]) == 1 or not each["checks"]:
            said = _checked(*each["checks"]) if each["checks"] else "nothing to check"
        elif fails:
            said = f"in {len(fails)} of {said}"
        table.add_row(verdict, plain(each["condition"]), Text(said, style="dim"))
        if len(each["checks"]) > 1:
            for check in fails[:MOST_SLICES]:
                where = printable(check["slice"], MOST_LETTERS)
                table.add_row("", Text(f"  {where}"), Text(_checked(check), style="dim"))
            if len(fails) > MOST_SLICES:
                table.add_row("", Text(f"  and {len(fails) - MOST_SLICES:,} more"), "")
    return table


def _checked(check: Mapping[str, Any]) -> str:
    """What a condition was compared with, its interval, and why it fails or not."""
    is_change = check["difference"] is not None
    decimals = known_decimals(check["lower"], check["upper"])
    text = number(check["compared"], decimals, sign=is_change)
    between = _between(check["lower"], check["upper"], decimals, sign=is_change)
    why = f": {check['why']}" if check["why"] else ""
    return f"{text}{between and f' ({between})'}{why}"


def _encodable(value: Any, encoding: str) -> Any:
    """The same, with strings that a terminal of this encoding can show."""
    if isinstance(value, Mapping):
        return {_encodable(key, encoding): _encodable(x, encoding) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(x, encoding) for x in value]
    return encodable(value, encoding) if isinstance(value, str) else value


def metrics_table(summary: Summary) -> Table:
    """Each metric with its value; with its interval and its bounds if any metric has them."""
    rows = summary["metrics"]
    intervals = any(row["lower"] is not None for row in rows)
    bounds = any(row["bounds"] for row in rows)
    table = _table("metric")
    _add(table, "value", style="bold")
    if intervals:
        _add(table, _interval_name(summary), "center")
    if bounds:
        _add(table, "certain bounds", "center", style="dim")
    for row, decimals in zip(rows, decimals_of_metrics(rows), strict=True):
        least, most = row["bounds"] or (None, None)
        exact = known_decimals(least, most, digits=1)
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
    table.collapse_padding = True  # six columns of numbers fit a terminal of 80
    _add(table, "a")
    _add(table, "b")
    _add(table, "b - a", style="bold")
    _add(table, _interval_name(summary), "center")
    _add(table, "", "left")
    rows = summary["metrics"]
    for row, decimals in zip(rows, decimals_of_differences(rows), strict=True):
        cells = [number(row[model], decimals) for model in ("a", "b")]
        cells.append(number(row["difference"], decimals, sign=True))
        cells.append(_between(row["lower"], row["upper"], decimals, sign=True))
        table.add_row(plain(row["name"]), *cells, _verdict(row))
    return table


def _interval_name(summary: Summary) -> str:
    return f"{100 * summary['confidence']:g}% interval"


def _verdict(row: Mapping[str, Any]) -> Text:
    if row["lower"] is None:
        return Text("no interval", style="dim")
    style = {"a": "red", "b": "green", None: "dim"}
    return Text(VERDICTS[row["winner"]], style=style.get(row["winner"], ""))


def _classes_table(by_class: Mapping[str, Any]) -> Table:
    columns = by_class["columns"]
    table = _table("class")
    for column in columns:
        _add(table, plain(column["name"]))
    texts = [_total if column["name"] == "support" else number for column in columns]
    # All columns have one value for each class, in the order of the classes.
    for place, name in enumerate(by_class["classes"][:MOST_CLASSES]):
        cells = (text(x["values"][place]) for text, x in zip(texts, columns, strict=True))
        table.add_row(plain(name), *cells)
    _more(table, len(by_class["classes"]) - MOST_CLASSES)
    return table


def _differences(slicing: Mapping[str, Any]) -> Mapping[str, Any]:
    """A slicing of a comparison, with differences in place of values."""
    rows = [
        {**row, "values": {x["name"]: {**x, "value": x["difference"]} for x in row["metrics"]}}
        for row in slicing["rows"]
    ]
    return {**slicing, "rows": rows}


def _slices_table(
    slicing: Mapping[str, Any], width: int, *, sign: bool = False
) -> list[Table | Text]:
    """The first metrics of each slice, as many as fit, and which do not."""
    rows = slicing["rows"]
    names = list(dict.fromkeys(name for row in rows for name in row["values"]))
    # Rich would cut every column a little; a table with fewer columns can be read.
    longest = max([len(slicing["by"]), *(len(row["name"]) for row in rows[:MOST_SLICES])])
    # The column of rows and all margins take 16 characters; a value takes 7, with its interval 16.
    left = width - min(longest, MOST_LETTERS) - 16
    widest = 19 if sign else 16
    least = (
        widest if any(x["lower"] is not None for row in rows for x in row["values"].values()) else 7
    )
    ends = accumulate(max(len(name), least) + 3 for name in names)
    first = names[:1]
    fitting = [name for name, end in zip(names, ends, strict=True) if end <= left] or first
    hidden = names[len(fitting) :]
    table = _table(plain(slicing["by"]))
    for name in ("rows", *fitting):
        _add(table, plain(name))
    for row in rows[:MOST_SLICES]:
        cells = (_with_margin(row["values"].get(name), sign=sign) for name in fitting)
        table.add_row(plain(row["name"]), _total(row["examples"]), *cells)
    _more(table, len(rows) - MOST_SLICES)
    if not hidden:
        return [table]
    shown = printable(", ".join(map(str, hidden)), 200)
    left_out = f" without {shown}: the terminal has {width} columns; --output writes all"
    return [table, Text(left_out, style="dim")]


def _with_margin(value: Mapping[str, Any] | None, *, sign: bool = False) -> Text:
    """A value in a slice, half the width of its interval, and the winner of a comparison."""
    if value is None:
        return Text("")
    decimals = known_decimals(value["lower"], value["upper"])
    text = Text(number(value["value"], decimals, sign=sign))
    if value["lower"] is not None and value["upper"] is not None:
        half = (value["upper"] - value["lower"]) / 2
        text.append(f" ±{number(half, decimals)}", style="dim")
    if sign:
        winner = value["winner"]
        text.append(f" {'≠' if winner == 'differs' else winner or ' '}", style="bold")
    return text


def notes(summary: Summary) -> Iterable[str]:
    """Lines that say what was left out, and what else is to be known."""
    for each in summary["excluded"]:
        where, reason = (printable(str(each[part]), 200) for part in ("where", "reason"))
        # The reason may name the column already.
        place = "" if where in reason else f", in {where}"
        yield f"{_count(each['rows'], 'row')}: {reason}{place} ({each['effect']})"
    # Warnings of the metrics, and what has no interval.
    yield from (printable(note, 400) for note in summary.get("notes", ()))
    reasons: dict[str, list[str]] = {}
    for row in summary["metrics"] if "a" in summary["source"] else ():
        if row["why"] and row["lower"] is None:
            reasons.setdefault(row["why"], []).append(row["name"])
    yield from (printable(f"{', '.join(names)}: {why}") for why, names in reasons.items())


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


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _table(first: str | Text) -> Table:
    """A table whose first column has names."""
    table = Table(box=box.SIMPLE_HEAD, header_style="cyan", pad_edge=True, show_edge=False)
    table.add_column(first, no_wrap=True, max_width=MOST_LETTERS, overflow="ellipsis")
    return table


def _add(
    table: Table, name: str | Text, justify: JustifyMethod = "right", *, style: str | None = None
) -> None:
    """Adds a column of numbers."""
    table.add_column(name, justify=justify, no_wrap=True, style=style)


def _more(table: Table, number_of_rows: int) -> None:
    if number_of_rows > 0:
        table.add_row(Text(f"and {number_of_rows:,} more", style="dim"))
