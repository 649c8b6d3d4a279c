"""Batches that hold whole queries: the documents of a query are ranked together."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from datarax._errors import MetricInputError
from datarax.evaluation.columns import Chosen
from datarax.evaluation.encoding import listed
from datarax.evaluation.files import Part
from datarax.evaluation.table_batches import batches

QUERY = "query"
_ROWS = 65536

Outputs = dict[str, Any]


def whole_queries(found: Iterable[Outputs]) -> Iterator[Outputs]:
    """The same rows in batches that end where a query ends; queries follow each other."""
    held: Outputs | None = None
    for outputs in found:
        rows = outputs if held is None else joined([held, outputs])
        ids = np.asarray(rows[QUERY])
        others = np.flatnonzero(ids != ids[-1])
        start = int(others[-1]) + 1 if others.size else 0
        held = taken(rows, slice(start, None))
        if start:
            yield taken(rows, slice(0, start))
    if held is not None:
        yield held


def whole_files(parts: Sequence[Part]) -> list[Part]:
    """One part for each file, because a query may go on in the next part of its file."""
    found: dict[str, Part] = {}
    for part in parts:
        before = found.get(part.path)
        if before is None:
            found[part.path] = part
        else:
            count = None if before.count is None else before.count + (part.count or 0)
            rows = None if before.rows is None else before.rows + (part.rows or 0)
            found[part.path] = before._replace(count=count, rows=rows)
    return [part._replace(place=place) for place, part in enumerate(found.values())]


def check_queries(parts: Sequence[Part], columns: Mapping[str, Chosen]) -> None:
    """Reads the ids of the queries once.

    Raises:
        MetricInputError: the rows of a query do not follow each other, or are in several files.
    """
    seen: set[Any] = set()
    for part in parts:
        last: Any = None
        for batch in batches(part, columns, _ROWS):
            ids = listed(batch.outputs[QUERY]) if batch.rows else []
            for query in ids:
                if query == last:
                    continue
                if query in seen:
                    raise MetricInputError(
                        f"{part.path}: the rows of query {query!r} do not follow each other; sort "
                        f"the rows by the column {columns[QUERY].names[0]!r}, in one file"
                    )
                seen.add(query)
                last = query


def taken(outputs: Outputs, rows: slice | np.ndarray[Any, Any]) -> Outputs:
    """Some rows of all outputs."""
    return {name: _taken(x, rows) for name, x in outputs.items()}


def joined(several: Sequence[Outputs]) -> Outputs:
    """The rows of several batches, one after the other."""
    first = several[0]
    return {name: _joined([each[name] for each in several]) for name in first}


def _taken(x: Any, rows: slice | np.ndarray[Any, Any]) -> Any:
    if isinstance(x, np.ndarray):
        return x[rows]
    return x[rows] if isinstance(rows, slice) else [x[place] for place in rows]


def _joined(several: list[Any]) -> Any:
    if all(isinstance(x, np.ndarray) for x in several):
        return np.concatenate(several)
    return [value for x in several for value in listed(x)]
