"""The rows of two models, joined by a key: `datarax compare --key` of files in any order."""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import zip_longest

import numpy as np

from datarax._errors import MetricInputError
from datarax.evaluation.columns import INDEX, Feed
from datarax.evaluation.encoding import Value, known, listed, shortened
from datarax.evaluation.paired_parts import MODELS, Pair, together
from datarax.evaluation.table_batches import TableBatch, batches, joined, taken
from datarax.evaluation.tables import Part, Types

KEY = "key"
"""The output with the key of each row."""
ONLY = "only "
"""What is before the model, in the name of a count of rows that the other model lacks."""
_ROWS = 65536
_SHOWN = 5


def keys_of(parts: Sequence[Part], feeds: Sequence[Feed], types: Types) -> Iterator[Value]:
    """The key of each row of some parts; None where there is none."""
    feed = next(each for each in feeds if each.output == KEY)._replace(kind="optional")
    for part in parts:
        with closing(batches(part, (feed,), types, _ROWS)) as found:
            for batch in found:
                if batch.rows:
                    yield from map(known, listed(batch.outputs[KEY]))


def alone(
    pair: Pair, feeds: Sequence[tuple[Feed, ...]], types: Sequence[Types]
) -> dict[str, list[Value]] | None:
    """By model, the keys that only it has; None if both have the same keys in the same order.

    Then no join is needed.

    Raises:
        MetricInputError: no key of one model is a key of the other; shows some.
    """
    with closing(_zipped(pair, feeds, types)) as rows:
        if all(a == b for a, b in rows):
            return None
    a, b = (
        set(keys_of(side, each, of))
        for side, each, of in zip(pair.sides, feeds, types, strict=True)
    )
    if not (a & b) - {None}:
        column = next(feed.columns[0] for feed in feeds[0] if feed.output == KEY)
        x, y = (shortened(repr(next(iter(keys - {None}), None)), 40) for keys in (a, b))
        raise MetricInputError(
            f"no value of the column {column!r} is in both files: a has {x} and others, b has {y} "
            f"and others"
        )
    return {"a": _sorted((a - b) - {None}), "b": _sorted((b - a) - {None})}


def _sorted(keys: Iterable[Value]) -> list[Value]:
    # A file may have numbers, and the other one text.
    return sorted(keys, key=lambda key: (isinstance(key, str), key))


def notes_of_keys(keys: Mapping[str, Sequence[Value]], column: str) -> Iterator[str]:
    """Names some of the keys that one model has alone."""
    for model, each in keys.items():
        if each:
            shown = ", ".join(shortened(repr(key), 40) for key in each[:_SHOWN])
            more = f" and {len(each) - _SHOWN:,} more" if len(each) > _SHOWN else ""
            yield f"{column!r} in {model} alone: {shown}{more}"


def _zipped(
    pair: Pair, feeds: Sequence[tuple[Feed, ...]], types: Sequence[Types]
) -> Generator[tuple[Value, Value], None, None]:
    a, b = (keys_of(*each) for each in zip(pair.sides, feeds, types, strict=True))
    yield from zip_longest(a, b, fillvalue=None)


def joined_batches(
    pair: Pair, feeds: Sequence[tuple[Feed, ...]], types: Sequence[Types], rows: int
) -> Generator[TableBatch, None, None]:
    """The rows whose keys both models have, in the order of the first one.

    All rows of the second model are held in memory. A row that lacks a value is counted by
    "a:column" or "b:column", one whose key the other model lacks by "only a:column".

    Raises:
        MetricInputError: a model has a key twice; or the two differ in what they share.
    """
    column = next(feed.columns[0] for feed in feeds[0] if feed.output == KEY)
    every = [
        _distinct(keys_of(*each), model, column)
        for model, each in zip(MODELS, zip(pair.sides, feeds, types, strict=True), strict=True)
    ]
    excluded: Counter[str] = Counter()
    excluded.update({f"{ONLY}a:{column}": len(every[0] - every[1])})
    excluded.update({f"{ONLY}b:{column}": len(every[1] - every[0])})

    def side(place: int) -> Generator[TableBatch, None, None]:
        for part in pair.sides[place]:
            with closing(batches(part, feeds[place], types[place], rows, INDEX)) as found:
                for batch in found:
                    model = MODELS[place]
                    excluded.update({f"{model}:{name}": n for name, n in batch.excluded.items()})
                    if batch.rows:
                        yield batch

    pieces = [batch.outputs for batch in side(1)]
    if pieces:
        other = joined(pieces)
        places = {known(key): place for place, key in enumerate(listed(other[KEY]))}
        start = 0
        for batch in side(0):
            mine = batch.outputs
            found = np.array([places.get(known(key), -1) for key in listed(mine[KEY])], np.int64)
            left = np.flatnonzero(found >= 0)
            # Ids that count the rows of all parts: those of a file start anew in each.
            ids = np.arange(start, start + batch.rows)
            start += batch.rows
            if left.size:
                yield together(
                    taken(mine | {INDEX: ids}, left),
                    taken(other, found[left]),
                    feeds[0],
                    _path(pair),
                    0,
                )
    else:
        for _ in side(0):  # counts what is left out
            pass
    yield TableBatch({}, 0, {name: n for name, n in excluded.items() if n})


def _path(pair: Pair) -> Callable[[int], str]:
    def named(place: int) -> str:
        return (pair.sides[place] or pair.sides[1 - place])[0].path

    return named


def _distinct(keys: Iterator[Value], model: str, column: str) -> set[Value]:
    """The keys of a model, which has each once."""
    found: set[Value] = set()
    for key in keys:
        if key is not None and key in found:
            raise MetricInputError(
                f"the file of {model} has {shortened(repr(key), 60)} twice in the column "
                f"{column!r}: --key joins rows, so it takes a column with an id of each row"
            )
        found.add(key)
    return found - {None}
