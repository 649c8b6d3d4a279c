"""The report of an evaluation: one page that needs nothing else, neither network nor server."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import resources
from string import Template
from typing import Any

from datarax.evaluation.html_tables import (
    cell,
    classes_table,
    head,
    metrics_table,
    slices_table,
    table,
)
from datarax.evaluation.html_text import Content, Html, join, named, tag, visible
from datarax.evaluation.number_text import count

Values = Mapping[str, Any]


def asset(name: str) -> str:
    """The text of a file that is installed beside this module."""
    return resources.files("datarax.evaluation").joinpath(name).read_text("utf-8")


def plural(n: int, one: str) -> str:
    return f"{count(n)} {one}{'' if n == 1 else 's'}"


def created(moment: str) -> Html:
    """A time in ISO 8601, to the minute."""
    try:
        at = datetime.fromisoformat(moment)
    except ValueError:
        return tag("span", visible(moment))
    return tag("time", f"{at:%Y-%m-%d %H:%M} {at.tzname() or ''}".strip(), datetime=moment)


def facts(pairs: Sequence[tuple[str, Content]], **attributes: object) -> Html:
    """A list of terms and what they are."""
    terms = [tag("div", tag("dt", term), tag("dd", what)) for term, what in pairs]
    return tag("dl", terms, **attributes)


def header(summary: Values) -> Html:
    source = summary["source"]
    parts = source["parts"]
    state = f"{count(parts['done'])} of {plural(parts['total'], 'part')}"
    complete = source["complete"]
    known = [
        ("Rows", count(source["rows"])),
        ("Files", count(len(source["files"]))),
        ("Parts", f"{count(parts['done'])} of {count(parts['total'])}"),
        ("Status", "✓ Complete" if complete else "! Interrupted"),
        ("Created", created(summary["created"])),
        ("Version", f"datarax {summary['datarax']}"),
    ]
    if summary.get("task"):
        known.insert(0, ("Task", visible(summary["task"])))
    warning = tag(
        "p",
        tag("strong", f"! Interrupted: {state}. "),
        f"All numbers are of the {plural(source['rows'], 'row')} that were read; "
        "the rest may change them.",
        class_="notice",
    )
    return tag(
        "header",
        tag("p", "Evaluation", class_="kind"),
        named(summary["title"], "h1"),
        facts(known, class_="facts"),
        None if complete else warning,
    )


def section(key: str, title: str, *content: Content) -> Html:
    return tag(
        "section",
        tag("h2", title, id=f"{key}-title"),
        content,
        id=key,
        aria_labelledby=f"{key}-title",
    )


def note(*text: Content) -> Html:
    return tag("p", text, class_="note")


def metrics_section(summary: Values) -> Html:
    metrics = summary["metrics"]
    notes = []
    if any(m.get("lower") is not None for m in metrics):
        level = f"{100 * summary['confidence']:g}%"
        notes.append(
            f"A {level} interval is where the value over all data of this kind is likely to be: "
            "the rows of this page are a sample of them."
        )
    if any(m.get("bounds") for m in metrics):
        notes.append(
            "The exact value of these rows lies between the certain bounds; scores are binned."
        )
    if any(m.get("value") is None for m in metrics):
        notes.append(
            "A dash stands for no value: no row defines it, or rows that could not be used made "
            "it NaN, as is said below."
        )
    shown = (
        metrics_table(metrics, summary["confidence"])
        if metrics
        else note("There is no metric with a single value.")
    )
    return section("metrics", "Metrics", shown, [note(text) for text in notes])


def slices_section(summary: Values) -> Html:
    tables = [
        slices_table(slices, summary["metrics"], summary["confidence"])
        for slices in summary["slices"]
    ]
    values = [
        value
        for slices in summary["slices"]
        for row in slices["rows"]
        for value in row["values"].values()
    ]
    reading = None
    if any(value.get("lower") is not None for value in values):
        reading = note(
            "A dot is filled if the interval of the slice does not hold the value over all rows. "
            "By chance alone, that is so for about one slice in "
            f"{round(1 / max(1 - summary['confidence'], 1e-6))}."
        )
    return section("slices", "Slices", tables, reading)


def inline(svg: str, prefix: str, title: str) -> Html:
    """A picture within the page: ids of its own, a label, and a size that the style decides."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    opened, _, rest = svg.partition(">")
    opened = re.sub(r'\s(width|height|role|aria-\w+)="[^"]*"', "", opened)
    return Html(f'{opened} role="img" aria-label="{html.escape(visible(title))}">{rest}')


def pictures_section(pictures: Sequence[Any]) -> Html:
    figures = [
        tag(
            "figure",
            tag("h3", visible(picture.title)),
            tag(
                "div",
                inline(picture.svg, f"p{i}", picture.title),
                class_="drawing",
                tabindex="0",
                role="group",
                aria_label=visible(picture.title),
            ),
            tag("figcaption", visible(picture.caption)),
        )
        for i, picture in enumerate(pictures)
    ]
    return section("pictures", "Pictures", tag("div", figures, class_="grid"))


def excluded_section(summary: Values) -> Html:
    """What was left out of each number, and why."""
    excluded = summary["excluded"]
    if not excluded:
        return section(
            "excluded",
            "What was excluded, and why",
            note("Nothing: every row that was read counts in every number."),
        )
    header = [
        head("Reason", "text"),
        head("Where", "text"),
        head("Rows", "number"),
        head("Effect", "text"),
    ]
    rows = [
        tag(
            "tr",
            named(row["reason"], "th", scope="row"),
            named(row["where"], "td"),
            cell(count(row["rows"]), row["rows"]),
            tag("td", visible(row["effect"])),
        )
        for row in excluded
    ]
    return section(
        "excluded",
        "What was excluded, and why",
        table("Rows that could not be used", header, rows, label="Excluded rows", what="reasons"),
    )


def fold(title: str, *content: Content) -> Html:
    return tag("details", tag("summary", title), tag("div", content))


def listed(names: str | Sequence[str] | None) -> str:
    """Names of columns; the first and the last of many."""
    names = [names] if isinstance(names, str) else list(names or ())
    shown = [visible(name) for name in names]
    if len(shown) > 8:
        return f"{', '.join(shown[:3])}, …, {shown[-1]} ({count(len(shown))} columns)"
    return ", ".join(shown) or "none"


def method_section(summary: Values) -> Html:
    """All that is needed to compute the numbers again."""
    metrics, source = summary["metrics"], summary["source"]
    columns = [(visible(output), listed(names)) for output, names in summary["columns"].items()]
    definitions = [(visible(m["name"]), tag("code", visible(m["metric"]))) for m in metrics]
    configuration = json.dumps(summary["config"], indent=2, ensure_ascii=False, default=str)
    lines = "\n".join(map(visible, configuration.split("\n")))
    files = [named(name, "li") for name in source["files"]]
    return section(
        "method",
        "How it was computed",
        fold("Columns", facts(columns, class_="pairs")),
        fold("Metrics as they are built", facts(definitions, class_="pairs")),
        fold("Configuration", tag("pre", lines, tabindex="0")),
        fold(f"Files ({count(len(files))})", tag("ol", files)),
    )


def merging_section(summary: Values) -> Html:
    """How the numbers of this page become those of more rows."""
    resumed = note(
        "This evaluation was interrupted. The same command with ",
        tag("code", "--resume"),
        " continues it: parts that are done are not read again.",
    )
    return section(
        "more-data",
        "How to add more data",
        None if summary["source"]["complete"] else resumed,
        note(
            "The folder of this page also holds the state from which the numbers were computed. "
            "Two such folders are joined, without reading the files again, by:"
        ),
        tag("pre", "datarax merge FOLDER OTHER_FOLDER --output BOTH", tabindex="0"),
    )


def policy(script: str) -> str:
    """What the page may do: run this one script. Nothing can be loaded, so styles may be inline.

    Pictures of pixels are part of the page, as `data:`. Pictures are styled by attributes, for
    which there are no hashes.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def render(summary: Values, pictures: Sequence[Any] = ()) -> str:
    """The report as one HTML page: it loads nothing, and is useful without scripts.

    Args:
        summary: what `metrics.json` holds.
        pictures: figures of the same metrics.

    Returns:
        The page. It depends on the arguments alone.
    """
    parts = {"Metrics": metrics_section(summary)}
    if summary.get("by_class"):
        shown = classes_table(summary["by_class"])
        parts["Classes"] = section("classes", "Classes", shown)
    if summary.get("slices"):
        parts["Slices"] = slices_section(summary)
    if pictures:
        parts["Pictures"] = pictures_section(pictures)
    parts["Excluded"] = excluded_section(summary)
    parts["Method"] = method_section(summary)
    parts["More data"] = merging_section(summary)
    script = asset("report.js")
    return Template(asset("report.html")).substitute(
        policy=policy(script),
        title=join(f"{visible(summary['title'])}, evaluated by datarax"),
        style=asset("report.css"),
        script=script,
        links=join([tag("a", name, href=f"#{name.lower().replace(' ', '-')}") for name in parts]),
        main=join([header(summary), *parts.values()]),
        footer=join(f"Made by datarax {summary['datarax']}."),
    )
