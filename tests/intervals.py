"""The table of docs/which-interval.md: `python -m tests.intervals --write`."""

import sys
from collections.abc import Iterable

from datarax import Interval, Metric
from datarax._errors import DataraxError
from tests.registry import CASES
from tests.test_layers import ROOT

PAGE = ROOT / "docs/which-interval.md"
START, END = "<!-- table: begin -->\n", "<!-- table: end -->"
EXTREME = "none: no sample goes beyond the extreme of the data"
NAMES = {"delta": "delta method", "wilson": "Wilson", "delong": "DeLong", "woodruff": "Woodruff"}


def method_of(metric: Metric, clusters: int | None = None) -> str | None:
    """The method of the interval by a formula; None if there is none."""
    try:
        return NAMES[Interval(metric, clusters=clusters).method]
    except DataraxError:
        return None


def otherwise(metrics: Iterable[Metric]) -> str:
    """Where there is no formula: replicas, or nothing."""
    found = {EXTREME if metric.is_extreme else "`Bootstrap`" for metric in metrics}
    return ", ".join(sorted(found)) or "—"


def table() -> str:
    """The table: a row for each class of metrics, over all of its configurations in the tests."""
    by_class: dict[type[Metric], list[Metric]] = {}
    for case in CASES:
        by_class.setdefault(case.cls, []).append(case.make())
    lines = [
        "| metric | by a formula | of clusters | without a formula |",
        "| --- | --- | --- | --- |",
    ]
    for cls in sorted(by_class, key=lambda cls: cls.__name__):
        made = by_class[cls]
        formulas = [method_of(x) for x in made]
        found = sorted({x for x in formulas if x})
        clustered = any(method_of(x, 8) for x in made)
        rest = [x for x, formula in zip(made, formulas, strict=True) if formula is None]
        link = f"[`{cls.__name__}`][datarax.metrics.{cls.__name__}]"
        cells = [link, ", ".join(found) or "—", "yes" if clustered else "—", otherwise(rest)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes the table into its page."""
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(before + START + table() + END + rest.partition(END)[2])


if __name__ == "__main__":
    if "--write" in sys.argv:
        main()
    else:
        print(table())
