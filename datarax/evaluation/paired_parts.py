"""The files of two models on the same examples, read together: `datarax compare` folds pairs."""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from datarax._errors import MetricInputError
from datarax.evaluation.columns import INDEX, Feed
from datarax.evaluation.encoding import known, listed, shortened
from datarax.evaluation.table_batches import TableBatch, batches, taken
from datarax.evaluation.tables import Outputs, Part, Rows, Types

MODELS = ("a", "b")
PREDICTED = ("preds", "boxes", "scores", "labels", "retrieved")
"""The outputs that each model has for itself; the others must be equal in both."""


class Pair(NamedTuple):
    """One unit of work: some consecutive rows, which both models have."""

    sides: tuple[tuple[Part, ...], tuple[Part, ...]]
    """The parts of each model with these rows."""
    start: int
    """The place of the first row among all rows."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of its files, as they were given."""
        return tuple(dict.fromkeys(part.path for side in self.sides for part in side))

    @property
    def path(self) -> str:
        """The same as one text."""
        return " and ".join(self.paths)

    @property
    def rows(self) -> int:
        """About how many rows it has."""
        return max(sum(part.rows for part in side) for side in self.sides)


def pairs_of(a: Sequence[Part], b: Sequence[Part]) -> list[Pair]:
    """Pairs that end where a part of each model ends; one for all if rows are not counted."""
    # A pair can only end where both models have a part that ends after as many rows. That is known
    # before the files are read only if all formats count their rows.
    counted = all(part.counted for part in (*a, *b))
    ends = [list(accumulate(part.rows for part in side)) if counted else [] for side in (a, b)]
    shared = sorted(set(ends[0]) & set(ends[1]))
    pairs, places, start = [], (0, 0), 0
    for end in shared:
        stops = (ends[0].index(end) + 1, ends[1].index(end) + 1)
        pairs.append(Pair((tuple(a[places[0] : stops[0]]), tuple(b[places[1] : stops[1]])), start))
        places, start = stops, end
    rest = tuple(a[places[0] :]), tuple(b[places[1] :])
    return [*pairs, Pair(rest, start)] if any(rest) else pairs


def paired_batches(
    pair: Pair,
    feeds: Sequence[tuple[Feed, ...]],
    types: Sequence[Types],
    rows: int,
) -> Generator[TableBatch, None, None]:
    """The rows that have values in the files of both models.

    Their ids are their places. Rows that are left out are counted by "a:column" or "b:column".

    Raises:
        MetricInputError: the models differ in what they share, or one has more rows.
    """
    read: Counter[str] = Counter()
    excluded: Counter[str] = Counter()

    def side(place: int) -> Generator[Outputs, None, None]:
        model = MODELS[place]
        for part in pair.sides[place]:
            start = pair.start + read[model]
            with closing(batches(part, feeds[place], types[place], rows, INDEX)) as found:
                for batch in found:
                    read[model] += batch.rows + sum(batch.excluded.values())
                    excluded.update({f"{model}:{name}": n for name, n in batch.excluded.items()})
                    if batch.rows:
                        # The ids of a file count its rows from its key. Counted from the start of
                        # the pair, the rows of both models have the same ids.
                        ids = batch.outputs[INDEX].astype(np.int64)
                        yield batch.outputs | {INDEX: (ids - part.key) % 2**32 + start}

    def named(place: int) -> str:
        return (pair.sides[place] or pair.sides[1 - place])[0].path

    with closing(side(0)) as a, closing(side(1)) as b:
        streams = a, b
        held = [next(stream, None) for stream in streams]
        while held[0] and held[1]:
            ids = [x[INDEX] for x in held if x]
            # Up to `end` both models are read. A row that one of them lacks there had no value, and
            # is left out of both; rows after `end` wait for the next batch of the other model.
            end = min(x[-1] for x in ids)
            stops = [int(np.searchsorted(x, end, "right")) for x in ids]
            below = (x[:stop] for x, stop in zip(ids, stops, strict=True))
            _, left, right = np.intersect1d(*below, assume_unique=True, return_indices=True)
            if left.size:
                yield together(
                    taken(held[0], left), taken(held[1], right), feeds[0], named, pair.start
                )
            for place, stop in enumerate(stops):
                more = stop < len(ids[place])
                rest = taken(held[place] or {}, slice(stop, None)) if more else None
                held[place] = rest or next(streams[place], None)
        for stream in streams:  # counts the rows that are left
            for _ in stream:
                pass
    if read["a"] != read["b"]:
        a, b = (pair.start + read[model] for model in MODELS)
        raise MetricInputError(
            f"{named(0)} has {a:,} rows and {named(1)} has {b:,}: row {min(a, b) + 1:,} is in one "
            f"of them only; --key joins rows by an id"
        )
    yield TableBatch({}, 0, dict(excluded))


def together(
    a: Outputs, b: Outputs, feeds: Sequence[Feed], named: Callable[[int], str], start: int
) -> TableBatch:
    """The outputs of both models.

    Raises:
        MetricInputError: a target, a key, or another column of both differs; names the first row.
    """
    for feed in feeds:
        name = feed.output
        # A file of predictions that are joined by a key need not have the rest again.
        if name in PREDICTED or name not in b:
            continue
        differs = next((i for i, (x, y) in enumerate(_values(a[name], b[name])) if x != y), None)
        if differs is not None:
            found = (listed(each[name])[differs] for each in (a, b))
            # The lists of an image are an array, whose own text has several lines.
            x, y = (
                shortened(repr(each.tolist() if isinstance(each, np.ndarray) else each), 60)
                for each in found
            )
            hint = "" if "key" in a else "; --key joins rows by an id"
            raise MetricInputError(
                f"the files differ in the column {feed.columns[0]!r}: in row "
                f"{a[INDEX][differs] + 1:,}, {named(0)} has {x} and {named(1)} has {y}{hint}"
            )
    outputs = {name: x for name, x in a.items() if name not in (*PREDICTED, "key")}
    for model, each in zip(MODELS, (a, b), strict=True):
        outputs |= {f"{name}_{model}": x for name, x in each.items() if name in PREDICTED}
    # Rows are counted from the first of the pair, as those of a part are.
    ids = a[INDEX]
    return TableBatch(outputs | {INDEX: ids.astype(np.uint32)}, len(ids), {}, ids - start)


def _values(x: Rows, y: Rows) -> Iterator[tuple[object, object]]:
    """Pairs of values that may differ. NaN is equal to NaN."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.shape == y.shape:
        # At once for arrays, because the files of two models mostly agree.
        same = (x == y) | ((x != x) & (y != y))
        if same.all():
            return
    yield from zip(map(_plain, listed(x)), map(_plain, listed(y)), strict=True)


def _plain(x: Rows) -> Rows:
    """A value, or lists of them, as Python has them: with None for NaN."""
    return list(map(_plain, listed(x))) if isinstance(x, list | tuple | np.ndarray) else known(x)
