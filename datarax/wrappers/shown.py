"""A collection as a table: what `print` and a notebook show where there is data."""

import html
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from datarax._errors import DataraxError
from datarax._numbers import number
from datarax._typing import PyTree
from datarax._xp import is_traced
from datarax.metric.base import Metric
from datarax.metric.values import flat_items, path_of

HEADS = ("name", "value", "weight", "invalid")


class Line(NamedTuple):
    """One value of a table, as text."""

    name: str
    value: str
    weight: str
    """What a mean divides by: the number of rows or elements, or the sum of their weights."""
    invalid: str
    """How many values or examples could not be used."""


def is_readable(metric: Metric) -> bool:
    """True if values can be shown: arrays that are here, not traced, and not donated."""
    leaves = jax.tree.leaves(metric)
    return not is_traced(leaves) and not any(
        isinstance(x, jax.Array) and (x.is_deleted() or not x.is_fully_addressable) for x in leaves
    )


def lines(members: Sequence[tuple[str, Metric]]) -> list[Line]:
    """The values of metrics that hold data. No warning is given: each has its place in results."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [line for name, metric in members for line in _lines_of(name, metric)]


def _lines_of(name: str, metric: Metric) -> Iterator[Line]:
    try:
        results = metric.results()
        ratio, invalid = metric.as_ratio(), int(np.sum(metric.invalid_count()))
    except DataraxError as error:  # by its policy, or as a number is missing
        yield Line(name, type(error).__name__, "", "")
        return
    weight = "" if ratio is None or np.ndim(ratio[1].high) else _said(float(ratio[1].high))
    counted = str(invalid) if invalid else ""
    for path, value in flat_items(results) if isinstance(results, dict) else [("", results)]:
        if path.split("/")[-1] != "invalid":
            yield Line(path_of(name, path), _said(value), weight, counted)


def _said(value: PyTree) -> str:
    if isinstance(value, bool | int):
        return str(value) if isinstance(value, bool) else number(value)
    if isinstance(value, float):
        return number(int(value) if value.is_integer() else value)
    return " ".join(np.array2string(np.asarray(value), precision=4, threshold=6).split())


def as_text(table: Sequence[Line]) -> str:
    """A table of aligned columns, without those that are empty."""
    columns = [column for column in zip(HEADS, *table, strict=True) if any(column[1:])]
    aligned = []
    for i, column in enumerate(columns):
        width = max(map(len, column))
        aligned.append([x.rjust(width) if i else x.ljust(width) for x in column])
    return "\n".join("  ".join(row).rstrip() for row in zip(*aligned, strict=True))


def as_html(table: Sequence[Line]) -> str:
    """The same as an element of HTML."""
    columns = [column for column in zip(HEADS, *table, strict=True) if any(column[1:])]
    heads, *rows = zip(*columns, strict=True)

    def row(cells: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)

    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in rows)
    return f"<table><thead><tr>{row(heads, 'th')}</tr></thead><tbody>{body}</tbody></table>"
