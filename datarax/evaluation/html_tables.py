"""Tables of the report: the metrics, the values of classes, and slices with their intervals."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_high
from typing import Any, NamedTuple

from datarax.evaluation.html_text import Content, Html, named, tag, visible
from datarax.evaluation.number_text import (
    NO_DATA,
    count,
    interval,
    known_decimals,
    number,
    outward,
    trimmed,
)

SEARCHED = 20  # tables with more rows than this have a search field
BETTER = {"higher": "↑ higher", "lower": "↓ lower", None: "neither"}
Values = Mapping[str, Any]


def finite(values: Iterable[float | None]) -> list[float]:
    return [v for v in values if v is not None and math.isfinite(v)]


class Axis(NamedTuple):
    """The range over which marks are drawn."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None], *, whole: bool) -> "Axis | None":
        """A range with round ends that holds `values`, and, if `whole`, zero and all fractions."""
        known = finite(values)
        if not known:
            return None
        low, high = min(known), max(known)
        if whole and low >= 0 and high <= 1:
            return cls(0.0, 1.0)
        low, high = (min(low, 0.0), max(high, 0.0)) if whole else (low, high)
        span = (high - low) or abs(high) or 1.0
        if math.isinf(span):
            return None
        power = 10.0 ** math.floor(math.log10(span / 4))
        step = next(power * n for n in (1, 2, 5, 10) if power * n >= span / 4)
        low, high = math.floor(low / step) * step, math.ceil(high / step) * step
        return cls(low, high if high > low else low + step)

    def at(self, value: float) -> str:
        """Where a value lies, in percent of the width."""
        return f"{100 * min(max((value - self.low) / (self.high - self.low), 0), 1):.2f}%"

    def ends(self) -> tuple[str, str]:
        decimals = max(0, 2 - math.floor(math.log10(self.high - self.low)))
        low, high = (trimmed(number(end, decimals)) for end in self)
        return low, high


def marks(
    axis: Axis | None,
    value: Values,
    *,
    bounds: Sequence[float | None] | None = None,
    reference: float | None = None,
) -> Html | None:
    """A dot with its interval on a track: the picture of a cell whose text says the same.

    The dot is filled if the interval does not hold the `reference`.
    """
    dot = finite([value.get("value")])
    if axis is None or not dot:
        return None

    def line(kind: str, start: float, end: float) -> Html:
        return tag("line", class_=kind, x1=axis.at(start), x2=axis.at(end), y1="50%", y2="50%")

    ends = finite([value.get("lower"), value.get("upper")])
    certain = finite(bounds or ())
    drawn: list[Content] = [line("track", *axis)]
    if reference is not None:
        at = axis.at(reference)
        drawn.append(tag("line", class_="overall", x1=at, x2=at, y1="0", y2="100%"))
    if len(certain) == 2:
        drawn.append(line("certain", *certain))
    if len(ends) == 2:
        drawn.append(line("interval", *ends))
    apart = reference is not None and len(ends) == 2 and not ends[0] <= reference <= ends[1]
    kind = "dot hollow" if reference is not None and len(ends) == 2 and not apart else "dot"
    drawn.append(tag("circle", class_=kind, cx=axis.at(dot[0]), cy="50%", r=3.5))
    return tag("svg", drawn, class_="marks", aria_hidden="true", focusable="false")


def cell(text: str, value: float | None = None, kind: str = "n", **attributes: object) -> Html:
    """A cell with a number, by whose `value` the table is sorted."""
    if text == NO_DATA:
        return tag("td", tag("abbr", NO_DATA, title="no data"), class_=f"{kind} none")
    key = str(value).replace("inf", "Infinity")  # as JavaScript reads it
    return tag("td", text, class_=kind, data_v=key, **attributes)


def range_cell(lower: float | None, upper: float | None, decimals: int | None) -> Html:
    """A cell with an interval, sorted by its width; empty if there is none."""
    if lower is None or upper is None:
        return tag("td")
    return cell(interval(lower, upper, decimals), upper - lower, "n range")


def head(text: Content, sort: str | None = None, **attributes: object) -> Html:
    """A column's header; `sort` is what the column is sorted by, "number" or "text"."""
    kind = "n" if sort == "number" else None
    return tag("th", text, scope="col", data_sort=sort, **({"class_": kind} | attributes))


def table(
    caption: Content,
    header: Sequence[Content],
    rows: Sequence[Content],
    *,
    label: str,
    what: str,
    seen: bool = False,
) -> Html:
    """A table that scrolls within its own region; with a search field if it is long.

    Its caption is seen where it says more than the heading above it.
    """
    search = None
    if len(rows) > SEARCHED:
        field = tag(
            "input", type="search", aria_label=f"Search {what}", placeholder=f"Search {what}"
        )
        shown = tag("output", f"{count(len(rows))} {what}")
        search = tag("div", field, shown, class_="search", hidden=True)
    body = tag(
        "table",
        tag("caption", tag("span", caption), class_=None if seen else "unseen"),
        tag("thead", tag("tr", header)),
        tag("tbody", rows),
    )
    region = tag("div", body, class_="scroll", role="region", aria_label=label, tabindex="0")
    return tag("div", search, region, class_="table")


def metric_row(metric: Values, *, intervals: bool, bounds: bool) -> Html:
    """A metric, with cells for an interval and for bounds if the table has them."""
    value, lower, upper = (metric.get(key) for key in ("value", "lower", "upper"))
    least, most = metric.get("bounds") or (None, None)
    exact = known_decimals(least, most, digits=1)
    decimals = known_decimals(lower, upper)
    decimals = exact if decimals is None else decimals
    cells = [
        named(metric["name"], "th", scope="row"),
        cell(number(value, decimals), value, "n value", title=value),
    ]
    if intervals:
        cells.append(range_cell(lower, upper, decimals))
        axis = Axis.of([value, lower, upper, least, most], whole=True)
        drawn = marks(axis, metric, bounds=(least, most))
        low, high = axis.ends() if axis else ("", "")
        ends = (tag("span", low), drawn, tag("span", high)) if drawn else None
        cells.append(tag("td", tag("div", ends, class_="axis"), class_="picture"))
    if bounds:
        cells.append(range_cell(*outward(least, most, exact), exact))
    cells.append(tag("td", BETTER[metric.get("better")], class_="better"))
    cells.append(tag("td", visible(metric.get("description") or ""), class_="about"))
    return tag("tr", cells)


def metrics_table(metrics: Sequence[Values], confidence: float) -> Html:
    """One row a metric: its value, how certain it is, and what it is."""
    intervals = any(finite([m.get("lower")]) for m in metrics)
    bounds = any(m.get("bounds") for m in metrics)
    header = [head("Metric", "text"), head("Value", "number")]
    if intervals:
        header.append(head(f"{100 * confidence:g}% interval", "number"))
        header.append(head(tag("span", "Picture of the value", class_="unseen"), class_="picture"))
    if bounds:
        header.append(head("Certain bounds", "number"))
    header += [head("Better", "text"), head("What it is")]
    rows = [metric_row(metric, intervals=intervals, bounds=bounds) for metric in metrics]
    return table("Metrics over all rows", header, rows, label="Metrics", what="metrics")


def classes_table(by_class: Values) -> Html:
    """One row a class, one column a metric; fractions have a bar."""
    columns = by_class["columns"]
    header = [head("Class", "text")]
    styles = []
    for column in columns:
        known = finite(column["values"])
        fraction = bool(known) and min(known) >= 0 and max(known) <= 1
        whole = all(float(v).is_integer() for v in known) and not fraction
        styles.append((fraction, 0 if whole else 4 if fraction else None))
        header.append(head(visible(column["name"]), "number"))
    rows = []
    for i, name in enumerate(by_class["classes"]):
        cells = [named(name, "th", scope="row")]
        for column, (fraction, decimals) in zip(columns, styles, strict=True):
            value = column["values"][i]
            bar = f"--v:{value:.3f}" if fraction and finite([value]) else None
            kind = "n bar" if bar else "n"
            cells.append(cell(number(value, decimals), value, kind, style=bar))
        rows.append(tag("tr", cells))
    caption = "Values of each class"
    return table(caption, header, rows, label=caption, what="classes")


class SlicedMetric(NamedTuple):
    """A metric of slices, and how it is shown in all of them: comparable from row to row."""

    name: str
    decimals: int | None
    reference: float | None
    axis: Axis | None

    @classmethod
    def of(cls, name: str, rows: Sequence[Values], overall: float | None) -> "SlicedMetric":
        values = [row["values"].get(name) or {} for row in rows]
        known = [known_decimals(v.get("lower"), v.get("upper")) for v in values]
        decimals = [n for n in known if n is not None]
        reference = next(iter(finite([overall])), None)
        ends = [v.get(key) for v in values for key in ("value", "lower", "upper")]
        axis = Axis.of([*ends, reference], whole=False)
        return cls(name, median_high(decimals) if decimals else None, reference, axis)

    @property
    def intervals(self) -> bool:
        return self.decimals is not None

    def headers(self, confidence: float) -> list[Html]:
        level = f"{100 * confidence:g}% interval"
        ends = [tag("span", end) for end in self.axis.ends()] if self.axis else None
        unseen = tag("span", f"Picture of {visible(self.name)}", class_="unseen")
        return [
            head(tag("bdi", visible(self.name)), "number"),
            *([head(level, "number")] if self.intervals else []),
            head([unseen, tag("span", ends, class_="axis")], class_="picture"),
        ]

    def cells(self, row: Values) -> list[Html]:
        found = row["values"].get(self.name) or {}
        value, lower, upper = (found.get(key) for key in ("value", "lower", "upper"))
        return [
            cell(number(value, self.decimals), value, "n value", title=value),
            *([range_cell(lower, upper, self.decimals)] if self.intervals else []),
            tag("td", marks(self.axis, found, reference=self.reference), class_="picture"),
        ]


def slices_table(slices: Values, metrics: Sequence[Values], confidence: float) -> Html:
    """One row a slice; for each metric its value and interval, drawn beside the overall value."""
    overall = {m["name"]: m.get("value") for m in metrics}
    rows, by = slices["rows"], visible(slices["by"])
    names = dict.fromkeys(name for row in rows for name in row["values"])
    columns = [SlicedMetric.of(name, rows, overall.get(name)) for name in names]
    header = [head(tag("bdi", by), "text"), head("Examples", "number")]
    header += [each for column in columns for each in column.headers(confidence)]
    body = [
        tag(
            "tr",
            named(row["name"], "th", scope="row"),
            cell(count(row["examples"]), row["examples"]),
            [column.cells(row) for column in columns],
        )
        for row in rows
    ]
    overalls = ", ".join(
        f"{visible(column.name)} {number(column.reference, column.decimals)}"
        for column in columns
        if column.reference is not None
    )
    dashed = f" Dashed line: the value over all rows, {overalls}." if overalls else None
    caption = [tag("strong", "By ", tag("bdi", by)), dashed]
    label = f"Slices by {by}"
    return table(caption, header, body, label=label, what="slices", seen=True)
