"""What is read of the files before they are evaluated: the columns, some rows, distinct values."""

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datarax._errors import MetricInputError
from datarax.evaluation.columns import Chosen, Wanted
from datarax.evaluation.encoding import known, listed
from datarax.evaluation.files import Part
from datarax.evaluation.planning import MOST_VALUES
from datarax.evaluation.table_batches import batches

_FIRST_ROWS = 1000
_ROWS = 65536


def wanted(texts: Sequence[str], available: Sequence[str]) -> Wanted:
    """The columns in the texts of `--preds`: names, names with commas between them, and globs."""
    names = [
        part.strip()
        for text in texts
        for part in ([text] if text in available else text.split(","))
        if part.strip()
    ]
    return names[0] if len(names) == 1 else names


def salts_of(parts: Sequence[Part]) -> tuple[int, ...]:
    """A number for each part, which does not depend on the other files or on where the file is."""
    salts = []
    for part in parts:
        path = Path(part.path)
        salts.append(zlib.crc32(f"{path.name} {path.stat().st_size} {part.first}".encode()))
    return tuple(salts)


def first_rows(
    parts: Sequence[Part], columns: Mapping[str, Chosen], optional: Sequence[str]
) -> dict[str, Any]:
    """Some rows of each output, as they are in the files.

    Raises:
        MetricInputError: there are no rows.
    """
    excluded: Counter[str] = Counter()
    for part in parts:
        for batch in batches(part, columns, _FIRST_ROWS, optional=optional):
            if batch.rows:
                return batch.outputs
            excluded += batch.excluded
    if excluded:
        name, rows = excluded.most_common(1)[0]
        raise MetricInputError(f"no rows to evaluate: the column {name!r} has no value in {rows:,}")
    raise MetricInputError("no rows to evaluate: the files are empty")


def value_counts(
    parts: Sequence[Part], columns: Mapping[str, Chosen], outputs: Sequence[str]
) -> dict[str, Counter[Any]]:
    """How often each value is in the columns of some outputs. The files are read once.

    Raises:
        MetricInputError: a column has too many distinct values.
    """
    counts: dict[str, Counter[Any]] = {output: Counter() for output in outputs}
    for part in parts:
        chosen = {output: columns[output] for output in outputs}
        for batch in batches(part, chosen, _ROWS, optional=outputs):
            for output in outputs:
                counts[output].update(_counted(batch.outputs[output]) if batch.rows else {})
                if len(counts[output]) > MOST_VALUES:
                    raise MetricInputError(
                        f"the column {columns[output].names[0]!r} has more than {MOST_VALUES:,} "
                        f"distinct values: is it the right one?"
                    )
    return counts


def _counted(values: Any) -> dict[Any, int]:
    if isinstance(values, np.ndarray):
        distinct, numbers = np.unique(values, return_counts=True)
        pairs = zip(map(known, distinct.tolist()), numbers.tolist(), strict=True)
        return dict(pairs)
    flat: list[Any] = []
    for value in listed(values):
        flat += value if isinstance(value, list) else [known(value)]
    return Counter(flat)
