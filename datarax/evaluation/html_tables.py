"""The contents of the report's tables: metrics, classes, and slices with their intervals."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_high
from typing import Any, NamedTuple

from datarax._numbers import aligned, justified, known_decimals, number, outward, trimmed

NO_DATA = "—"
MINUS, TIMES = "\u2212", "\u00d7"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

VERDICTS = {"a": "a is better", "b": "b is better", "differs": "differs", None: "not clear"}
"""What is said of a comparison, by its winner."""

METHODS = {
    "delta": ("delta method", "what single rows add to the value, as if it were linear in them"),
    "wilson": ("Wilson", "the shares for which the measured one is not surprising"),
    "delong": ("DeLong", "how single scores rank among those of the other class"),
    "woodruff": (
        "ranks (Woodruff)",
        "the values whose ranks are as likely as that of the quantile",
    ),
    "bootstrap": ("resampling", "the middle values over draws of the rows, with repetition"),
    "formula": ("formula", "what single rows add to the difference"),
}
"""The methods of intervals in words, each with what the interval is made of."""

Values = Mapping[str, Any]


def method_words(method: str | None) -> str:
    """The name of the method of an interval; "" if there is none."""
    return "" if method is None else METHODS.get(method, (method, ""))[0]


def method_sentences(metrics: Iterable[Values]) -> list[str]:
    """A sentence on each method of the intervals of some metrics."""
    used = dict.fromkeys(metric["method"] for metric in metrics)
    found = [METHODS[method] for method in used if method in METHODS]
    return [f"Interval by {name}: from {said}." for name, said in found]


def typeset(text: str) -> str:
    """A number as a page has it.

    >>> typeset("0.9313"), typeset("3.200e-09")[-4:], typeset("NaN")
    ('0.9313', '10⁻⁹', '—')
    """
    text, e, power = text.replace("NaN", NO_DATA).replace("inf", "∞").partition("e")
    text = text.replace("-", MINUS)
    return f"{text}{TIMES}10{str(int(power)).translate(SUPERSCRIPTS)}" if e else text


def shown(value: float | None, decimals: int | None = None) -> str:
    """A value of a metric, typeset; also of an integer with as many digits as of a float."""
    return typeset(number(None if value is None else float(value), decimals))


def count(value: int | None) -> str:
    """A number of things, with all its digits."""
    return typeset(number(value))


def finite(values: Iterable[float | None]) -> list[float]:
    return [v for v in values if v is not None and math.isfinite(v)]


class Axis(NamedTuple):
    """The range over which marks are drawn: round ends that hold the values, and little more."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Axis | None":
        known = finite(values)
        if not known:
            return None
        least, most = min(known), max(known)
        span = (most - least) or abs(most) or 1.0
        # The difference of two finite values may overflow.
        if math.isinf(span):
            return None
        power = 10.0 ** math.floor(math.log10(span / 8))
        # The least round step that spans the values in at most eight steps.
        step = next(power * n for n in (1, 2, 5, 10) if power * n >= span / 8)
        low, high = math.floor(least / step) * step, math.ceil(most / step) * step
        low, high = min(low, least), max(high, most)  # where a step is less than an ulp
        return cls(low, high if high > low else low + step)

    def at(self, value: float) -> str:
        """Where a value lies, in percent of the width."""
        return f"{100 * min(max((value - self.low) / (self.high - self.low), 0), 1):.2f}%"

    @property
    def ends(self) -> list[str]:
        # Three significant digits of the length, so that the ends differ.
        decimals = max(0, 2 - math.floor(math.log10(self.high - self.low)))
        return [typeset(trimmed(number(end, decimals))) for end in self]


class Range(NamedTuple):
    """A cell with an interval, sorted by its width; empty if there is none."""

    text: str = ""
    width: float | None = None

    @classmethod
    def of(cls, lower: float | None, upper: float | None, decimals: int | None) -> "Range":
        if lower is None or upper is None:
            return cls()
        ends = shown(lower, decimals), shown(upper, decimals)
        return cls(NO_DATA if NO_DATA in ends else " to ".join(ends), upper - lower)


def drawn_reading(
    found: Values,
    decimals: int | None,
    axis: Axis | None,
    *,
    bounds: Iterable[float | None] = (),
    reference: float | None = None,
) -> dict[str, Any]:
    """A value and its interval: as text, and as a dot on a track, above lines from start to end.

    The dot is hollow if the interval holds the `reference`.
    """
    value, lower, upper = (found.get(key) for key in ("value", "lower", "upper"))
    # In the order in which they are drawn, each over those before it.
    drawn = {"overall": [reference, reference], "certain": bounds, "interval": [lower, upper]}
    lines = {kind: known for kind, ends in drawn.items() if len(known := finite(ends)) == 2}
    low, high = lines.get("interval", (math.inf, -math.inf))
    return {
        "value": value,
        "text": shown(value, decimals),
        "interval": Range.of(lower, upper, decimals),
        "axis": axis if finite([value]) else None,
        "lines": [(kind, *ends) for kind, ends in lines.items()],
        "dot": "dot hollow" if reference is not None and low <= reference <= high else "dot",
    }


def worst_rows(found: Values | None) -> dict[str, Any] | None:
    """The rows with the largest losses, with their losses as text; None if there are none."""
    if not found or not found["rows"]:
        return None
    # An infinite loss, which JSON does not have, is None.
    losses = [math.inf if row["loss"] is None else row["loss"] for row in found["rows"]]
    return {**found, "losses": [(shown(x), x) for x in losses]}


def decimals_of_metrics(rows: Sequence[Values]) -> list[int | None]:
    """The decimals of the value and the interval of each metric: see `aligned`."""
    return aligned([
        (
            justified((row["lower"], row["upper"]), row["bounds"] or (None, None)),
            (row["value"], row["lower"], row["upper"]),
        )
        for row in rows
    ])  # fmt: skip


def decimals_of_differences(rows: Sequence[Values]) -> list[int | None]:
    """The decimals of the values, the difference and the interval of each metric."""
    return aligned([
        (known_decimals(row["lower"], row["upper"]), (row["a"], row["b"], row["difference"]))
        for row in rows
    ])  # fmt: skip


def metric_row(metric: Values, decimals: int | None) -> dict[str, Any]:
    """A metric with its reading, on an axis of its own if there is an interval."""
    value, lower, upper = (metric[key] for key in ("value", "lower", "upper"))
    least, most = metric["bounds"] or (None, None)
    exact = known_decimals(least, most, digits=1)
    # A dot alone, on an axis made for it, would say nothing.
    axis = Axis.of([value, lower, upper, least, most]) if finite([lower, upper]) else None
    return {
        **metric,
        "reading": drawn_reading(metric, decimals, axis, bounds=(least, most)),
        "certain": Range.of(*outward(least, most, exact), exact),
    }


def class_columns(columns: Sequence[Values]) -> list[dict[str, Any]]:
    """A metric of each class: its values as text, and the widths of their bars if it is a share."""
    found = []
    for column in columns:
        known = finite(column["values"])
        share = bool(known) and min(known) >= 0 and max(known) <= 1
        whole = all(float(v).is_integer() for v in known) and not share
        decimals = 0 if whole else 4 if share else None
        cells = [
            (shown(v, decimals), v, f"--v:{v:.3f}" if share and finite([v]) else None)
            for v in column["values"]
        ]
        found.append({"name": column["name"], "cells": cells})
    return found


def sliced_metric(
    name: str,
    rows: Sequence[Values],
    overall: float | None,
    level: float = 0.05,
    beside: Sequence[Values] = (),
) -> dict[str, Any]:
    """A metric in all slices: on one axis and with equal decimals, so that rows can be compared.

    The axis also holds the values of the rows `beside`, of other slicings.
    """
    values = [row["values"].get(name) or {} for row in rows]
    known = [known_decimals(v.get("lower"), v.get("upper")) for v in values]
    decimals = [n for n in known if n is not None]
    # One for the column: a slice of few rows would justify fewer than the others.
    usual = median_high(decimals) if decimals else None
    # Over all rows there may be no value, or one that is not finite: then no line shows it.
    reference = next(iter(finite([overall])), None)
    shown_too = [*values, *(row["values"].get(name) or {} for row in beside)]
    ends = [v.get(key) for v in shown_too for key in ("value", "lower", "upper")]
    axis = Axis.of([*ends, reference])
    return {
        "name": name,
        "axis": axis,
        "overall": "" if reference is None else shown(reference, usual),
        "intervals": bool(decimals),
        "readings": [
            _sliced(v, drawn_reading(v, usual, axis, reference=reference), level) for v in values
        ],
    }


def _sliced(of: Values, drawn: dict[str, Any], level: float) -> dict[str, Any]:
    """A reading of a slice, hollow if it is not clear that its rows differ from the others."""
    p = of.get("p_adjusted")
    if p is None:
        return drawn
    text = _probability(p)
    compared = text if text.startswith("<") else f"= {text}"
    return drawn | {"p": compared, "dot": "dot" if p < level else "dot hollow"}


def sliced_metrics(
    rows: Sequence[Values], metrics: Sequence[Values], level: float, beside: Sequence[Values] = ()
) -> list[dict[str, Any]]:
    """The metrics of slices; an adjusted p-value below the level is clear."""
    overall = {m["name"]: m.get("value") for m in metrics}
    names = dict.fromkeys(name for row in rows for name in row["values"])
    return [sliced_metric(name, rows, overall.get(name), level, beside) for name in names]


def difference_row(row: Values, decimals: int | None) -> dict[str, Any]:
    """The difference of two models in a metric, on an axis of its own that holds 0."""
    ends = [row[key] for key in ("lower", "upper", "difference")]
    found = _difference(row, decimals, Axis.of([*ends, 0.0]))
    texts = {key: (shown(row[key], decimals), row[key]) for key in ("a", "b")}
    texts |= {key: (_probability(row[key]), row[key]) for key in ("p_value", "p_adjusted")}
    said = {"verdict": _verdict(row), "why": row.get("why", "")}
    return {**row, "reading": found, "texts": texts, **said}


def sliced_differences(
    rows: Sequence[Values], metrics: Sequence[Values], beside: Sequence[Values] = ()
) -> list[dict[str, Any]]:
    """The differences of two models in each metric, in all slices on one axis.

    The axis also holds those of the rows `beside`, of other slicings.
    """
    overall = {metric["name"]: metric["difference"] for metric in metrics}
    found = []
    for name in dict.fromkeys(each["name"] for row in rows for each in row["metrics"]):
        values = [{x["name"]: x for x in row["metrics"]}.get(name) or {} for row in rows]
        known = [known_decimals(x.get("lower"), x.get("upper")) for x in values]
        decimals = [n for n in known if n is not None]
        usual = median_high(decimals) if decimals else None
        others = (x for row in beside for x in row["metrics"] if x["name"] == name)
        shown_too = [*values, *others]
        ends = [x.get(key) for x in shown_too for key in ("difference", "lower", "upper")]
        axis = Axis.of([*ends, 0.0])
        found.append(
            {
                "name": name,
                "axis": axis,
                "overall": _signed(overall.get(name), usual),
                "intervals": bool(decimals),
                "readings": [_difference(x, usual, axis) for x in values],
                "verdicts": [_verdict(x) for x in values],
            }
        )
    return found


def _difference(row: Values, decimals: int | None, axis: Axis | None) -> dict[str, Any]:
    """A difference with its interval as `drawn_reading`, hollow if it is not clear."""
    value = row.get("difference")
    drawn = drawn_reading({**row, "value": value}, decimals, axis, reference=0.0)
    dot = "dot" if row.get("winner") else "dot hollow"
    return drawn | {"text": _signed(value, decimals), "dot": dot}


def gate_rows(gate: Sequence[Values]) -> list[dict[str, Any]]:
    """The checks of conditions: that of all rows, and those of slices that fail."""
    found = []
    for condition in gate:
        checks = [x for x in condition["checks"] if x["failed"] or x["slice"] == "all rows"]
        number_of_slices = sum(x["slice"] != "all rows" for x in condition["checks"])
        for check in checks or [None]:
            failed = condition["failed"] if check is None else check["failed"]
            row = {"condition": condition["condition"], "result": "failed" if failed else "passed"}
            row |= {"where": f"{number_of_slices} slices", "text": "", "key": None, "why": ""}
            if check is not None:
                decimals = known_decimals(check["lower"], check["upper"])
                text = _signed if check["difference"] is not None else shown
                row |= {"where": check["slice"], "why": check["why"], "key": check["compared"]}
                row["text"] = text(check["compared"], decimals)
            ends = (None, None) if check is None else (check["lower"], check["upper"])
            row["interval"] = Range.of(*ends, known_decimals(*ends))
            found.append(row)
    return found


def _verdict(row: Values) -> str:
    return "" if row.get("lower") is None else VERDICTS[row["winner"]]


def _probability(p: float | None) -> str:
    """A p-value; one that four decimals would make 0 is less than the least of them."""
    if p is None:
        return ""
    if p == 1:
        return "1"
    return shown(p, 4) if p >= 0.0001 else "<0.0001"


def _signed(value: float | None, decimals: int | None) -> str:
    return typeset(number(None if value is None else float(value), decimals, sign=True))
