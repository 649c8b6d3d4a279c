"""Batches that hold whole queries: the documents of a query are ranked together."""

from collections.abc import Generator, Iterable, Sequence
from typing import Any

import numpy as np

from datarax.evaluation.table_batches import TableBatch
from datarax.evaluation.tables import Part, Table

Outputs = dict[str, Any]


def parts_of(tables: Sequence[Table], together: str | None = None) -> list[Part]:
    """The parts of files; with `together` one for each file, as a query may be in several."""
    parts = []
    for table in tables:
        if together is None or not table.parts:
            parts += table.parts
            continue
        rows = sum(part.rows for part in table.parts)
        parts.append(table.parts[0]._replace(stop=table.parts[-1].stop, rows=rows))
    return parts


def whole_queries(found: Iterable[TableBatch], together: str) -> Generator[TableBatch, None, None]:
    """The same rows in batches that never split the rows of one query."""
    held: Outputs = {}
    for batch in found:
        rows = joined([held, batch.outputs]) if held and batch.rows else batch.outputs or held
        ids = np.asarray(rows.get(together, ()))
        # The last query may go on in the next batch: its rows are held back.
        others = np.flatnonzero(ids != ids[-1]) if len(ids) else ids
        start = int(others[-1]) + 1 if others.size else 0
        held = taken(rows, slice(start, None))
        yield TableBatch(taken(rows, slice(0, start)), start, batch.excluded)
    if held:
        yield TableBatch(held, len(held[together]), {})


def taken(outputs: Outputs, rows: slice | np.ndarray[Any, Any]) -> Outputs:
    """Some rows of all outputs."""
    return {
        name: [x[place] for place in rows]
        if isinstance(x, list) and isinstance(rows, np.ndarray)
        else x[rows]
        for name, x in outputs.items()
    }


def joined(several: Sequence[Outputs]) -> Outputs:
    """The rows of several batches, one after the other."""
    return {name: _together([each[name] for each in several]) for name in several[0]}


def _together(pieces: list[Any]) -> Any:
    if isinstance(pieces[0], list):
        return [value for piece in pieces for value in piece]
    return np.concatenate(pieces)
