"""A part of a file as batches: a dict of arrays, or lists of strings, by the name of the output."""

from collections.abc import Container, Generator, Mapping, Sequence
from contextlib import closing, nullcontext
from typing import NamedTuple

import numpy as np

from datarax._errors import MetricInputError
from datarax.evaluation.arrow_files import nan_rows, null_rows, values, without_values
from datarax.evaluation.columns import Feed
from datarax.evaluation.files import open_table
from datarax.evaluation.identity import unchanged
from datarax.evaluation.tables import (
    Column,
    Outputs,
    Part,
    Ragged,
    Rows,
    TableFile,
    Types,
    reading,
    row_name,
)
from datarax.evaluation.text_columns import marks_of, references_of, texts_of, without_times
from datarax.wrappers.clusters import CLUSTER

READ_ROWS = 2**16
_PLACE = "the place of a row in its part"
NOT_A_CLASS = -1
"""The label of a value that is no class: metrics count it as out of range."""


class TableBatch(NamedTuple):
    """Some rows of a part."""

    outputs: Outputs
    """By output, an array or a list of strings, with one entry a row."""
    rows: int
    excluded: dict[str, int]
    """By column, how many rows were left out because it has no value there."""
    places: np.ndarray | None = None
    """The place of each row in its part, if that is known."""


def batches(
    part: Part,
    feeds: tuple[Feed, ...],
    types: Types,
    rows: int | None,
    index: str | None = None,
) -> Generator[TableBatch, None, None]:
    """The batches of a part: `rows` rows each, but for the last.

    A row that has no value in one of the columns is left out, and counted under the first of them.

    Args:
        part: the part.
        feeds: what feeds each output.
        types: the types of the columns.
        rows: the size of a batch; `None` for one batch of all rows.
        index: the output that gets an id of each row, if any.

    Raises:
        MetricInputError: the file is damaged, its values do not fit, or it is not as it was when
            the part was planned; names it.
    """
    held: list[Outputs] = []
    absent = tuple(name for name, found in types.items() if found.kind == "absent")
    types = {name: found for name, found in types.items() if found.kind != "absent"}
    count, place = 0, 0
    excluded: dict[str, int] = {}
    reader = part.held or open_table(part.file, part.text)
    if isinstance(reader, TableFile):
        reader.absent = absent
    with (
        unchanged(part.file) if part.held is None else nullcontext(),
        reading(part.path),
        closing(reader.read(part, types, rows or READ_ROWS)) as tables,
    ):
        for table in tables:
            if part.text.missing_values:
                table = {
                    name: without_values(column, part.text.missing_values)
                    for name, column in table.items()
                }
            # By the place in the file, before rows are left out: the same for any batch size.
            first = place
            place += len(next(iter(table.values())))
            try:
                outputs, places = complete_rows(feeds, table, excluded)
            except MetricInputError as error:
                row = (
                    ""
                    if error.row is None
                    else f"{row_name(first + error.row, part.start, part.first)}: "
                )
                raise MetricInputError(f"{part.path}: {row}{error}") from None
            places, size = first + places, len(places)
            if not size:
                continue
            if index:
                outputs[index] = (part.key + places).astype(np.uint32)
            held.append(outputs | {_PLACE: places})
            count += size
            # Readers give pieces of any size. All batches but the last have one shape.
            while rows and count >= rows:
                whole = joined(held)
                yield _batch(taken(whole, slice(rows)), rows, excluded)
                excluded = {}
                count -= rows
                held = [taken(whole, slice(rows, None))] if count else []
    if count or excluded:
        yield _batch(joined(held) if held else {}, count, excluded)


def _batch(outputs: Outputs, rows: int, excluded: dict[str, int]) -> TableBatch:
    places = outputs.pop(_PLACE, None)
    return TableBatch(outputs, rows, excluded, places)


def complete_rows(
    feeds: tuple[Feed, ...], table: Mapping[str, Column], excluded: dict[str, int]
) -> tuple[Outputs, np.ndarray]:
    """The outputs of the rows that have a value in all columns that need one, and their places.

    The others are counted in `excluded`, by the first of these columns.

    Raises:
        MetricInputError: values do not fit; its `row` is the place of the row in the table.
    """
    # The columns of optional outputs do not leave rows out: a missing value is one of their slices.
    needed = {name for feed in feeds if feed.kind != "optional" for name in feed.columns}
    clusters = {name for feed in feeds if feed.output == CLUSTER for name in feed.columns}
    places = np.arange(len(next(iter(table.values()))))
    within = {name: table[name] for name in table if name in needed}
    keep = _complete(within, clusters, excluded)
    if keep is not None:
        table = {
            name: x[keep] if isinstance(x, np.ndarray) else x.filter(keep)
            for name, x in table.items()
        }
        places = places[keep]
    if not len(places):
        return {}, places
    try:
        return _outputs(feeds, table), places
    except MetricInputError as error:
        if error.row is not None:
            error.row = int(places[error.row])
        raise


def whole_queries(
    read: Generator[TableBatch, None, None], together: str
) -> Generator[TableBatch, None, None]:
    """The same rows in batches that never split the rows of one query, which follow each other.

    The documents of a query are ranked together.
    """
    held: Outputs = {}
    with closing(read) as found:
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


def _outputs(feeds: tuple[Feed, ...], table: Mapping[str, Column]) -> Outputs:
    """All outputs, and the masks of those with lists of different lengths."""
    outputs, masks = {}, {}
    for feed in feeds:
        made = output_of(feed, table)
        outputs[feed.output] = made.pop(feed.output)
        for mask, real in made.items():
            other, first = masks.setdefault(mask, (feed, real))
            if not np.array_equal(first, real):
                raise MetricInputError(
                    f"the columns {other.columns[0]!r} and {feed.columns[0]!r} have a row with "
                    f"lists of different lengths; expected the same in both"
                )
    # A mask that has a column of its own stays as it is.
    return {mask: real for mask, (_, real) in masks.items()} | outputs


def output_of(feed: Feed, table: Mapping[str, Column]) -> Outputs:
    """The output that some columns give, and its mask if its lists have different lengths."""
    if feed.marks:
        shown = [marks_of(table[name]) for name in feed.columns]
        return {feed.output: _as_they_are(shown)}
    if feed.kind == "optional":
        # As Python objects, with None where there is no value.
        given = [without_times(table[name]) for name in feed.columns]
        lists = [x.tolist() if isinstance(x, np.ndarray) else x.to_pylist() for x in given]
        return {feed.output: _as_they_are(lists)}
    if feed.texts == "one":
        (name,) = feed.columns
        return {feed.output: texts_of(table[name], name)}
    if feed.texts:
        return {feed.output: references_of([table[name] for name in feed.columns])}
    columns = [values(table[name]) for name in feed.columns]
    if feed.kind == "as it is":
        return {feed.output: _as_they_are(columns)}
    if feed.kind == "text" and feed.classes is None:
        # References in tuples, which are those of one row, whatever the number of rows.
        texts = [[tuple(x) if isinstance(x, list) else x for x in column] for column in columns]
        return {feed.output: texts[0] if len(texts) == 1 else list(zip(*texts, strict=True))}
    if feed.classes is not None:
        columns = [numbered(column, feed.classes) for column in columns]
    if any(isinstance(column, Ragged) for column in columns):
        return _padded_lists(feed, columns)
    arrays = [_as_numbers(column, feed) for column in columns]
    return {feed.output: _stacked(arrays)}


def _as_they_are(columns: list[Rows]) -> Rows:
    """Columns as one array, or as a list of strings, of arrays or of lists, one entry a row."""
    columns = [
        np.split(column.items, np.cumsum(column.lengths)[:-1])
        if isinstance(column, Ragged)
        else column
        for column in columns
    ]
    if len(columns) == 1 or all(isinstance(column, np.ndarray) for column in columns):
        return _stacked(columns)
    return list(map(list, zip(*columns, strict=True)))


def _stacked(columns: list[Rows]) -> Rows:
    """One column as it is, several arrays as the last axis of one."""
    if len(columns) == 1:
        return columns[0]
    shapes = {column.shape for column in columns}
    if len(shapes) > 1:
        raise MetricInputError(f"the columns have rows of different shapes: {sorted(shapes)}")
    return np.stack(columns, -1)


def _complete(
    table: Mapping[str, Column], clusters: Container[str], excluded: dict[str, int]
) -> np.ndarray | None:
    """The rows that have a value in all columns; None if all have. Counts the others.

    In columns of clusters, NaN is no value: as pandas writes that there is none.
    """
    keep: np.ndarray | None = None
    for name, column in table.items():
        absent, nan = null_rows(column), nan_rows(column) if name in clusters else None
        if nan is not None:
            absent = nan if absent is None else absent | nan
        if absent is None:
            continue
        keep = np.ones(len(absent), bool) if keep is None else keep
        # A row that lacks several values is counted once, so that the counts add up to the rows.
        number = int((absent & keep).sum())
        if number:
            excluded[name] = excluded.get(name, 0) + number
        keep &= ~absent
    return keep


def _as_numbers(column: np.ndarray, feed: Feed) -> np.ndarray:
    """A column in a dtype of its kind: numbers of 64 bits stay as they are."""
    if feed.kind == "float":
        return as_floats(column)
    # A column of integers may have fractions far below the first rows of a file of text.
    if feed.kind == "integer" and column.dtype.kind == "f":
        return column
    if feed.kind == "integer":
        return _as_labels(column) if feed.labels else column
    return column.astype(np.bool_, copy=False)


def as_floats(x: np.ndarray) -> np.ndarray:
    """Numbers as floats; floats stay as they are, as metrics know how far each dtype is rounded."""
    return x if x.dtype.kind == "f" and x.dtype.itemsize <= 8 else x.astype(np.float64)


def _as_labels(column: np.ndarray) -> np.ndarray:
    """Labels of 32 bits. One beyond them is out of range, and so stays out of range."""
    if column.dtype == np.int32:
        return column
    limits = np.iinfo(np.int32)
    return np.clip(column, limits.min, limits.max).astype(np.int32)


def numbered(column: Rows, classes: Sequence[str]) -> np.ndarray:
    """The number of each string among the classes; `NOT_A_CLASS` if it is none of them."""
    number = {name: i for i, name in enumerate(classes)}
    return np.array([number.get(each, NOT_A_CLASS) for each in column], np.int32)


def power_of_two(size: int) -> int:
    """The least power of two that is not below `size`: few shapes, so few programs are compiled."""
    return 1 << max(size - 1, 0).bit_length()


def padded(items: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Lists of items, which lie end to end, as the rows of an array: where `real` is true."""
    out = np.zeros((*real.shape, *items.shape[1:]), items.dtype)
    # A mask selects row by row, which is the order in which the items lie.
    out[real] = items
    return out


def _padded_lists(feed: Feed, columns: list[Rows]) -> Outputs:
    """Lists of different lengths, padded to a power of two, and the mask of what is real."""
    name = feed.columns[0]
    if len(columns) > 1:
        raise MetricInputError(
            f"the columns for the output {feed.output!r} hold lists of different lengths; expected "
            f"one such column"
        )
    (lists,) = columns
    width = int(lists.lengths.max(initial=0))
    if feed.mask is None:
        if (lists.lengths != width).any():
            raise MetricInputError(
                f"the column {name!r} holds lists of {int(lists.lengths.min())} to {width} values, "
                f"and no metric takes a mask of them; expected lists of one length"
            )
    else:
        width = power_of_two(width)
    real = np.arange(width) < lists.lengths[:, None]
    items = _as_numbers(lists.items, feed)
    if feed.width and not items.size:  # no list has an item that shows its length
        items = items.reshape(0, feed.width)
    output = {feed.output: padded(items, real)}
    return output if feed.mask is None else {feed.mask: real} | output


def taken(outputs: Outputs, rows: slice | np.ndarray) -> Outputs:
    """Some rows of all outputs."""
    return {
        name: [x[place] for place in rows]
        if isinstance(x, list) and isinstance(rows, np.ndarray)
        else x[rows]
        for name, x in outputs.items()
    }


def joined(pieces: Sequence[Outputs]) -> Outputs:
    """The rows of several batches, one after the other."""
    if len(pieces) == 1:
        return pieces[0]
    return {name: _together(name, [piece[name] for piece in pieces]) for name in pieces[0]}


def _together(name: str, pieces: list[Rows]) -> Rows:
    """The rows of several arrays or lists.

    Raises:
        MetricInputError: some are floats, and an integer of the others has no float.
    """
    if isinstance(pieces[0], list):
        return [each for piece in pieces for each in piece]
    if pieces[0].ndim > 1:  # of lists that were padded to different lengths
        shape = np.max([piece.shape[1:] for piece in pieces], 0)
        pieces = [
            np.pad(
                x, [(0, 0), *((0, most - n) for most, n in zip(shape, x.shape[1:], strict=True))]
            )
            if x.shape[1:] != tuple(shape)
            else x
            for x in pieces
        ]
    whole = np.concatenate(pieces)
    if whole.dtype.kind == "f":
        for x in pieces:
            # As floats they are beyond the 53 bits of float64, or equal.
            if x.dtype.kind in "iu" and (np.abs(x.astype(np.float64)) >= 2.0**53).any():
                raise MetricInputError(
                    f"{name}: some rows hold fractions, and some integers of {2**53:,} or more, "
                    f"which floats would round; expected one of the two in the column"
                )
    return whole
