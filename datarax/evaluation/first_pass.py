"""Reads columns, the first rows and distinct values, before the files are evaluated."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from datarax._errors import MetricInputError
from datarax.evaluation.columns import Encoded, feeds_as_they_are
from datarax.evaluation.encoding import known, listed
from datarax.evaluation.files import Source, paths_of, tables_of
from datarax.evaluation.identity import FileIdentity
from datarax.evaluation.outcome import PARTIAL, STATE
from datarax.evaluation.planning import MOST_VALUES
from datarax.evaluation.table_batches import TableBatch, batches
from datarax.evaluation.tables import Part, Table, parts_of

_FIRST_ROWS = 1000
_ROWS = 65536


class Files:
    """The files of an evaluation, with the columns that are read of them.

    Args:
        source: a path, a glob, a folder, or a list of them.
        columns: a function that chooses the columns to read, given the names of all.

    Raises:
        MetricInputError: a file cannot be read, or a column is missing; names it.
    """

    def __init__(self, source: Source, columns: Callable[[Sequence[str]], Encoded]):
        given = [source] if isinstance(source, str | Path) else source
        # A folder may hold what an earlier evaluation has written.
        states = (STATE, PARTIAL)
        paths = [
            path for path in paths_of(source) if Path(path).name not in states or path in given
        ]
        self.tables: list[Table] = tables_of(paths)
        self.available = list(self.tables[0].types)
        self.columns = columns(self.available)
        self.feeds, self.types = feeds_as_they_are(self.columns, self.tables)

    @property
    def identities(self) -> tuple[FileIdentity, ...]:
        """The files as they were when they were opened."""
        return tuple(table.file for table in self.tables)

    @property
    def parts(self) -> list[Part]:
        """The parts that are evaluated one by one."""
        return parts_of(self.tables, whole=self.columns.together is not None)

    @property
    def names(self) -> dict[str, list[str]]:
        """The names of the columns of each output."""
        return {feed.output: list(feed.columns) for feed in self.feeds}

    def first_rows(self) -> dict[str, Any]:
        """Some rows of each output, as they are in the files.

        Raises:
            MetricInputError: there are no rows.
        """
        excluded: Counter[str] = Counter()
        for part in self.parts:
            for batch in batches(part, self.feeds, self.types, _FIRST_ROWS):
                if batch.rows:
                    return batch.outputs
                excluded.update(batch.excluded)
        if excluded:
            name, rows = excluded.most_common(1)[0]
            raise MetricInputError(
                f"no rows to evaluate: the column {name!r} has no value in {rows:,} rows"
            )
        raise MetricInputError("no rows to evaluate: the files are empty")

    def value_counts(self, outputs: Sequence[str]) -> dict[str, Counter[Any]]:
        """How often each value is in the columns of some outputs. The files are read once.

        Raises:
            MetricInputError: a column has too many distinct values.
        """
        counts: dict[str, Counter[Any]] = {output: Counter() for output in outputs}
        for _, batch in self._read(outputs):
            for output in outputs:
                counts[output].update(_counted(batch.outputs[output]))
                if len(counts[output]) > MOST_VALUES:
                    raise MetricInputError(
                        f"the column {self.names[output][0]!r} has more than {MOST_VALUES:,} "
                        f"distinct values: is it the right one?"
                    )
        return counts

    def check_queries(self, query: str) -> None:
        """Reads the ids of the queries once.

        Raises:
            MetricInputError: the rows of a query do not follow each other, or are in two files.
        """
        seen: set[Any] = set()
        path, last = "", None
        for part, batch in self._read([query]):
            # A query that goes on in the next file is refused: files are folded apart.
            if part.path != path:
                path, last = part.path, None
            for value in listed(batch.outputs[query]):
                if value == last:
                    continue
                if value in seen:
                    raise MetricInputError(
                        f"{path}: the rows of the query {value!r} do not follow each other; sort "
                        f"the rows by the column {self.names[query][0]!r}, in one file"
                    )
                seen.add(value)
                last = value

    def _read(self, outputs: Sequence[str]) -> Iterator[tuple[Part, TableBatch]]:
        names: Mapping[str, Any] = {output: self.names[output] for output in outputs}
        # Optional, so that rows without a value are counted too: None may be a slice.
        some = replace(self.columns, names=names, optional=tuple(outputs))
        feeds, types = feeds_as_they_are(some, self.tables)
        for part in self.parts:
            for batch in batches(part, feeds, types, _ROWS):
                if batch.rows:
                    yield part, batch


def _counted(values: Any) -> Counter[Any]:
    if isinstance(values, np.ndarray):
        distinct, numbers = np.unique(values, return_counts=True)
        # `unique` gives one NaN, which becomes None as in the slices.
        values = dict(zip(map(known, distinct.tolist()), numbers.tolist(), strict=True))
        return Counter(values)
    flat: list[Any] = []
    for value in listed(values):
        flat += value if isinstance(value, list | tuple | np.ndarray) else [known(value)]
    return Counter(flat)
