"""The report of an evaluation: one page that needs nothing else, neither network nor server."""

import base64
import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from importlib import resources
from typing import Any

from datarax._optional import optional
from datarax.evaluation.html_tables import (
    Values,
    class_columns,
    count,
    decimals_of_differences,
    decimals_of_metrics,
    difference_row,
    gate_rows,
    method_sentences,
    method_words,
    metric_row,
    sliced_differences,
    sliced_metrics,
    worst_rows,
)
from datarax.evaluation.pictures import Picture

# What a reader does not see: controls, bidi overrides, lone surrogates, separators of lines.
# The two joiners stay: scripts and emoji need them.
INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
JOINERS = "\u200c\u200d"


def visible(text: object) -> str:
    """`text` on one line, with what cannot be seen, or reorders the rest, as "⟨U+202E⟩"."""
    text = str(text)
    # Spaces alone would look like an empty cell.
    if not text.strip():
        return f'"{text}"' if text.isprintable() else repr(text)
    if text.isprintable():
        return text
    return "".join(
        f"⟨U+{ord(c):04X}⟩" if unicodedata.category(c) in INVISIBLE and c not in JOINERS else c
        for c in text
    )


def asset(name: str) -> str:
    """The text of a file that is installed beside this module."""
    return resources.files("datarax.evaluation").joinpath(name).read_text("utf-8")


def minute(moment: str) -> str:
    """A time in ISO 8601, to the minute."""
    try:
        at = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    return f"{at:%Y-%m-%d %H:%M} {at.tzname() or ''}".strip()


def listed(names: str | Sequence[str] | None) -> str:
    """Names of columns; the first and the last of many."""
    shown = [visible(name) for name in ([names] if isinstance(names, str) else names or ())]
    if len(shown) > 8:
        return f"{', '.join(shown[:3])}, …, {shown[-1]} ({count(len(shown))} columns)"
    return ", ".join(shown) or "none"


def policy(script: str) -> str:
    """Allows the page to run this one script. Nothing can be loaded, so styles may be inline.

    Pictures of pixels are part of the page, as `data:`. Pictures are styled by attributes, for
    which there are no hashes.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def render(summary: Values, pictures: Sequence[Picture] = ()) -> str:
    """The report as one HTML page: it loads nothing, and is useful without scripts.

    Args:
        summary: what `metrics.json` holds.
        pictures: figures of the same metrics.

    Returns:
        The page. It depends on the arguments alone.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    metrics = summary["metrics"]
    every = [row for by in summary["slices"] for row in by["rows"]]
    level = 1 - summary["confidence"]
    return _page(
        "report.html",
        {"positive_class": None, "notes": ()} | dict(summary),
        gate=gate_rows(summary.get("gate", ())),
        worst=worst_rows(summary.get("largest_losses")),
        clustered=summary["config"].get("clustered"),
        metrics=list(map(metric_row, metrics, decimals_of_metrics(metrics))),
        slices=[
            {**by, "metrics": sliced_metrics(by["rows"], metrics, level, every)}
            for by in summary["slices"]
        ],
        tests=sum(
            of.get("p_value") is not None
            for by in summary["slices"]
            for row in by["rows"]
            for of in row["values"].values()
        ),
        pictures=pictures,
    )


def render_comparison(summary: Values) -> str:
    """The page of a comparison, from what its `metrics.json` holds; see `render`."""
    metrics, slices = summary["metrics"], summary["slices"]
    every = [row for by in slices for row in by["rows"]]
    rows = [*metrics, *(row for of in every for row in of["metrics"])]
    return _page(
        "comparison.html",
        summary,
        gate=gate_rows(summary.get("gate", ())),
        metrics=list(map(difference_row, metrics, decimals_of_differences(metrics))),
        slices=[{**by, "metrics": sliced_differences(by["rows"], metrics, every)} for by in slices],
        tests=sum(row["p_value"] is not None for row in rows),
    )


def _page(template: str, summary: Values, **context: Any) -> str:
    """A template with the summary.

    The template escapes each text and shows its hidden characters, unless it is `Markup`. Only the
    assets and the pictures, which this package makes, are.
    """
    jinja2 = optional("jinja2", "evaluate", "the report")
    markup: Any = optional("markupsafe", "evaluate", "the report").Markup

    def shown(value: Any) -> Any:
        if isinstance(value, markup):
            return value
        return "" if value in (None, "") else visible(value)

    def breakable(name: str) -> Any:
        """A name that may be broken after "_" and "/", as long as it is not one word."""
        return markup("<wbr>").join(re.split(r"(?<=[_/])(?=[^_/])", visible(name)))

    def inline(svg: str, prefix: str, title: str) -> Any:
        """A picture within the page: ids of its own, a label, and a size that the style decides."""
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
        # Ids are of the whole page: pictures would take the clip paths of each other.
        svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
        opened, _, rest = svg.partition(">")
        opened = re.sub(r'\s(width|height|role|aria-\w+)="[^"]*"', "", opened)
        label = markup(' role="img" aria-label="{}">').format(visible(title))
        return markup(opened) + label + markup(rest)

    environment = jinja2.Environment(
        autoescape=True,
        # Called with each value before it is escaped.
        finalize=shown,
        loader=jinja2.FunctionLoader(asset),
        lstrip_blocks=True,
        trim_blocks=True,
        # A misspelt name in the template raises, instead of an empty cell.
        undefined=jinja2.StrictUndefined,
    )
    helpers = (breakable, class_columns, count, inline, listed, minute, visible)
    helpers += (method_sentences, method_words)
    environment.globals.update({helper.__name__: helper for helper in helpers})
    script = asset("report.js")
    config = json.dumps(summary["config"], indent=2, ensure_ascii=False, default=str)
    return environment.get_template(template).render(
        dict(summary) | context,
        config=config.split("\n"),
        policy=policy(script),
        script=markup(script),
        style=markup(asset("report.css")),
    )
