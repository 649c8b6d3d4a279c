"""Reads the files before they are evaluated, and plans the evaluation.

The columns, the first rows and the distinct values give the sizes, the classes and the slices.
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from datarax._errors import MetricInputError
from datarax.evaluation.coco_files import CocoTable, table_of
from datarax.evaluation.columns import Encoded, Names, feeds_as_they_are
from datarax.evaluation.encoding import (
    Configuration,
    Slicing,
    Value,
    is_numeric,
    known,
    listed,
    shortened,
)
from datarax.evaluation.files import paths_of, tables_of
from datarax.evaluation.locations import name_of
from datarax.evaluation.name_matching import in_order_of, look_alikes, named_by, unified
from datarax.evaluation.outcome import PARTIAL, STATE, SUMMARY
from datarax.evaluation.table_batches import TableBatch, batches
from datarax.evaluation.tables import Outputs, Part, Rows, Source, Table, Types, parts_of
from datarax.evaluation.tasks import (
    TASKS,
    defaults,
    for_detections,
    of_columns,
    of_scores,
    parsed,
    with_empty_zero,
)
from datarax.evaluation.text_format import TextFormat, how_to_write, no_number, refuse_text
from datarax.evaluation.trec_files import TrecFile, TrecTable
from datarax.wrappers.clusters import CLUSTER

MOST_CLASSES = 10_000
MOST_SLICES = 100
MOST_VALUES = 1_000_000
"""The number of distinct values of a column that are counted."""
_FIRST_ROWS = 1000
_FEW_BOXES = 0.05
"""The fraction of boxes that may be no corners by mistake."""
_ROWS = 65536

Columns = Mapping[str, Sequence[str]]
Scan = Callable[[Sequence[str]], Mapping[str, Counter[Any]]]
"""Reads columns, given by output, and counts their distinct values; NaN is None."""


class Files:
    """The files of an evaluation, with the columns that are read from them.

    Args:
        source: a path, a glob, a folder, or a list of them.
        columns: a function that chooses the columns to read, given the names of all.
        text: how files of text are written, and what stands for no value.
        tables: the files of the source, if they are open already.

    Raises:
        MetricInputError: a file cannot be read, or a column is missing; names it.
    """

    def __init__(
        self,
        source: Source,
        columns: Callable[[Sequence[str]], Encoded],
        text: TextFormat = TextFormat(),  # noqa: B008
        tables: Sequence[Table] = (),
    ):
        self.tables: list[Table] = list(tables)
        if not self.tables:
            given = [source] if isinstance(source, str | Path) else source
            # A folder may hold what an earlier evaluation has written.
            states = (STATE, PARTIAL, SUMMARY)
            paths = [
                path
                for path in paths_of(source, text.layout)
                if name_of(path) not in states or path in given
            ]
            self.tables = tables_of(paths, text)
        self.identities = tuple(table.file for table in self.tables)
        """The files as they were when they were opened."""
        self.available = list(self.tables[0].types)
        """The names of all columns."""
        self.columns = columns(self.available)
        self.feeds, self.types = feeds_as_they_are(self.columns, self.tables)
        self.names = {feed.output: list(feed.columns) for feed in self.feeds}
        """The names of the columns of each output."""
        self.parts = parts_of(self.tables, whole=self.columns.together is not None)
        """The parts that are evaluated one by one."""

    @property
    def coco(self) -> CocoTable | None:
        """The results and the ground truth, if that is what the files are.

        Raises:
            MetricInputError: there are several files of results.
        """
        first = self.tables[0]
        if first.text.layout != "coco" or first.text.beside is None:
            return None
        if len(self.tables) > 1:
            raise MetricInputError(
                f"--format coco takes one file of results, got {len(self.tables)}: each would be "
                f"evaluated on all images of the ground truth. Join their lists in one file"
            )
        return table_of(first.file, first.text.beside)

    @property
    def trec(self) -> TrecTable | None:
        """The run and the judgements, if that is what the files are.

        Raises:
            MetricInputError: there are several runs.
        """
        first = self.tables[0]
        if first.text.layout != "trec":
            return None
        if len(self.tables) > 1:
            raise MetricInputError(
                f"--qrels takes one run, got {len(self.tables)}; datarax compare A B --qrels takes "
                f"two"
            )
        return TrecFile(first.file, first.text).whole()

    def first_rows(self) -> Outputs:
        """Some rows of each output, as they are in the files.

        Raises:
            MetricInputError: there are no rows.
        """
        excluded: Counter[str] = Counter()
        for part in self.parts:
            with closing(batches(part, self.feeds, self.types, _FIRST_ROWS)) as found:
                for batch in found:
                    if batch.rows:
                        return batch.outputs
                    excluded.update(batch.excluded)
        if excluded:
            name, rows = excluded.most_common(1)[0]
            raise MetricInputError(
                f"no rows to evaluate: the column {name!r} has no value in {rows:,} rows"
            )
        raise MetricInputError("no rows to evaluate: the files are empty")

    def value_counts(self, outputs: Sequence[str]) -> dict[str, Counter[Value]]:
        """Counts each value in the columns of some outputs. The files are read once.

        Raises:
            MetricInputError: a column has too many distinct values.
        """
        counts: dict[str, Counter[Value]] = {output: Counter() for output in outputs}
        # All columns in one pass: files may be large, and on a slow disk.
        with closing(self._read(outputs)) as read:
            for _, batch in read:
                for output in outputs:
                    counts[output].update(map(known, _flat(batch.outputs[output])))
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
        # Only the ids are kept: there are many fewer queries than rows.
        seen: set[Value] = set()
        with closing(self._read([query])) as read:
            rows = (
                (part.path, value)
                for part, batch in read
                for value in batch.outputs[query]
                if value is not None  # such rows are left out
            )
            # A query that goes on in the next file is refused: files are folded apart.
            for (path, value), _ in groupby(rows):
                if value in seen:
                    raise MetricInputError(
                        f"{path}: the rows of the query {value!r} do not follow each other; sort "
                        f"the rows by the column {self.names[query][0]!r}, in one file"
                    )
                seen.add(value)

    def _read(self, outputs: Sequence[str]) -> Generator[tuple[Part, TableBatch], None, None]:
        names: Mapping[str, Names] = {output: self.names[output] for output in outputs}
        # Optional, so that rows without a value are counted too: None may be a slice.
        some = replace(self.columns, names=names, optional=tuple(outputs))
        feeds, types = feeds_as_they_are(some, self.tables)
        for part in self.parts:
            with closing(batches(part, feeds, types, _ROWS)) as found:
                for batch in found:
                    if batch.rows:
                        yield part, batch


def planned(
    request: Configuration,
    metrics: str | None,
    columns: Columns,
    first: Outputs,
    scan: Scan,
    types: Types | None = None,
) -> Configuration:
    """The configuration for files with these columns.

    Args:
        request: what the user asked for: `size` and `names` are those that were given, and slicings
            have the values as texts, or none for the most frequent ones.
        metrics: the text of `--metrics`; None for the defaults of the task.
        columns: the names of the columns of each output.
        first: some rows of each output, as they are in the files.
        scan: counts the values of outputs in all rows; it is called only if that is needed.
        types: the types of the columns, with examples for errors.

    Raises:
        MetricInputError: the columns do not fit the task, or the number of classes is not known.
    """
    plan = _Plan(request, columns, first, scan, types or {})
    task, preds = request.task, request.outputs("preds")
    size, names, named, scores = None, request.names, False, None
    assumed: tuple[str, ...] = ()
    if task not in ("text", "detection"):
        plan.check_lengths((*preds, "target"))
    pairs, order = plan.pairs() if task in ("multilabel", "regression") else ((), ())
    if task in ("binary", "multiclass", "multilabel"):
        plan.check_numbers_as_text(preds)
        scores = plan.scores(first[preds[0]])
        size, names, named = plan.classes(preds, scores, order)
        assumed = plan.assumed_order(preds[0], scores, names if named else None)
    elif task == "detection":
        plan.check_lists()
        request = replace(request, remarks=(*request.remarks, *plan.boxes_without_corners()))
        size, names, named = plan.labels(("target_labels", *request.outputs("labels")))
    elif task == "regression":
        size = plan.width(preds)
    elif task == "score" and np.ndim(first[preds[0]]) == 2:
        size = _width(first[preds[0]])
    elif task == "ranking" and "query" not in columns:
        raise MetricInputError("the task ranking needs --query, the column of the ids of queries")
    numbers = preds if task not in ("text", "detection") and scores != "labels" else []
    numbers = [*numbers, *(["target"] if task in ("regression", "ranking") else []), "weights"]
    for output in numbers:
        if output in first and _holds_strings(first[output]):
            column, text = plan.example(output)
            takes = "numbers" if output == "weights" else TASKS[task].takes
            if text is not None:
                raise MetricInputError(
                    f"{refuse_text(column, text)}; the task {task} takes {takes}"
                )
            raise MetricInputError(
                f"the column {column!r} holds strings; the task {task} takes {takes}"
            )
    if (request.names or request.size) and task in ("regression", "score", "ranking", "text"):
        raise MetricInputError(f"--classes and --num-classes are not for the task {task}")
    given = metrics is not None
    if request.groups:
        specs = of_scores(metrics, columns[preds[0]])
    elif task == "score" and size is not None:
        specs = of_columns(metrics, _each_name(columns[preds[0]], size))
    else:
        specs = parsed(metrics, task, size) if given else defaults(task, size=size, scores=scores)
    if task == "detection":
        specs = [for_detections(x, request.box_format, request.detections) for x in specs]
    if request.empty_is_zero:
        specs = [with_empty_zero(x) for x in specs]
    return replace(
        request,
        specs=tuple(specs),
        size=size,
        names=names,
        named=named,
        scores=scores,
        assumed_order=assumed,
        positive_column=plan.positive_column(preds[0], scores, names if named else None),
        pairs=pairs,
        target_order=order,
        slicings=plan.slicings(),
        weighted="weights" in columns,
        clustered=CLUSTER in columns,
    )


@dataclass(frozen=True)
class _Plan:
    """The request, and the facts about the files. Errors say what does not fit."""

    request: Configuration
    columns: Columns
    first: Outputs
    scan: Scan
    types: Types

    def example(self, output: str) -> tuple[str, str | None]:
        """The first column of an output that holds strings, and one that is no number, if any."""
        columns = self.columns[output]
        texts = {name: each.example for name in columns if (each := self.types.get(name))}
        name = next((name for name, text in texts.items() if text is not None), columns[0])
        return name, texts.get(name) or no_number(_flat(self.first[output]))

    def check_numbers_as_text(self, preds: Sequence[str]) -> None:
        """Raises if predictions look like numbers that are written as text, and labels do not."""
        for output in preds:
            if _holds_strings(_flat(self.first[output])):
                column, text = self.example(output)
                label = next((x for x in _flat(self.first["target"]) if isinstance(x, str)), "")
                if text is not None and how_to_write(text) and not how_to_write(label):
                    raise MetricInputError(refuse_text(column, text))

    def check_lengths(self, outputs: Sequence[str]) -> None:
        """Checks that lists have one length, as several columns have."""
        for output in outputs:
            sizes = {len(row) for row in listed(self.first.get(output, ())) if _is_list(row)}
            if len(sizes) > 1:
                raise MetricInputError(
                    f"{self.named(output)} holds lists of {min(sizes)} to {max(sizes)} values; the "
                    f"task {self.request.task} takes lists of one length"
                )

    def scores(self, preds: Rows) -> str:
        """Tells what the columns of predictions hold by their names and shapes, never by values."""
        request = self.request
        # One column of a multiclass task cannot hold scores of several classes. Numbers of a binary
        # task may be scores or labels, which the metrics take alike; names can only be labels.
        lists = any(map(_is_list, listed(preds)[:100]))
        labels = request.task == "multiclass" and np.ndim(preds) == 1 and not lists
        labels |= request.task == "binary" and _holds_strings(preds)
        if labels and request.scores in ("logits", "probabilities"):
            raise MetricInputError(
                f"--scores {request.scores}, and --preds names one column of labels; the task "
                f"multiclass takes one column of scores for each class, or one of labels"
            )
        if request.scores == "labels" and np.ndim(preds) != 1:
            raise MetricInputError("--scores labels is for one column of predicted labels")
        if request.scores:
            return request.scores
        names = [name for output in request.outputs("preds") for name in self.columns[output]]
        logits = all(name.lower().startswith("logit") for name in names)
        return "labels" if labels else "logits" if logits else "probabilities"

    def classes(
        self, outputs: Sequence[str], scores: str, order: Sequence[int] = ()
    ) -> tuple[int | None, tuple[str, ...] | None, bool]:
        """The number of classes or labels, their names, and whether columns hold the names."""
        request, target = self.request, self.first["target"]
        preds, columns = self.first[outputs[0]], self.columns[outputs[0]]
        names, width = request.names, _width(preds)
        if request.task == "binary":
            if np.ndim(preds) != 1:
                raise MetricInputError(
                    f"the task binary takes one column of scores, of the second class; --preds "
                    f"names {width}: {_brief(columns)}"
                )
            if request.size not in (None, 2) or (names and len(names) != 2):
                raise MetricInputError("the task binary has two classes; use --task multiclass")
            # Labels that are numbers are 0 and 1 by definition, so no values have to be counted.
            if not _holds_strings(target):
                if scores == "labels":
                    self.check_same_kind((*outputs, "target"))
                return None, names, False
            found = names or self.found("target")
            if len(found) != 2:
                raise MetricInputError(
                    f"{self.named('target')} has {_distinct(found)}, {_brief(found)}; "
                    f"the task binary takes two{_same_but_for_case(found)}{_not_two_classes(found)}"
                )
            column = self.positive_column(outputs[0], scores, found)
            if column is not None and named_by(column, found) == found[0]:
                found = found[::-1]
            return None, found, True
        if request.task == "multilabel":
            other = _width(target)
            if np.ndim(preds) != 2 or width != other:
                raise MetricInputError(
                    f"--preds names {width} columns and --target {other}; the task multilabel "
                    f"takes one of both for each label"
                )
            if names and len(names) != width:
                raise MetricInputError(
                    f"--classes has {len(names)} names; there are {width} labels"
                )
            # With a column for each label, the names of the columns are those of the labels.
            own = tuple(self.columns["target"])
            own = tuple(own[place] for place in order) or own
            return width, names or (own if len(own) == width else None), False
        if scores == "labels":
            return self.labels(("target", *outputs))
        given = request.size or (len(names) if names else width)
        if given != width:
            raise MetricInputError(
                f"--preds names {width} columns of scores, and there are {given} classes; expected "
                f"one column for each class"
            )
        if not _holds_strings(target):
            return width, names, False
        if names is None:
            found = self.found("target")
            # The names of the columns also say the order of the classes. The sorted values of the
            # target need not be in that order, so they are taken only where their number is right.
            names = in_order_of(columns, found) or found
            if len(names) != width:
                raise MetricInputError(
                    f"{self.named('target')} has {_distinct(found)} and --preds names "
                    f"{width} columns; give the names of the classes in the order of the columns: "
                    f"--classes {_brief(found)}{_same_but_for_case(found)}"
                )
        for other in outputs[1:]:  # a glob may match other columns in the other file
            if in_order_of(self.columns[other], names) not in (None, names):
                raise MetricInputError(
                    f"--preds names {_brief(columns)} in one file and "
                    f"{_brief(self.columns[other])} in the other, which are scores of other "
                    f"classes; name the columns in one order"
                )
        return width, names, True

    def assumed_order(
        self, preds: str, scores: str, names: tuple[str, ...] | None
    ) -> tuple[str, ...]:
        """The columns of scores of named classes whose order neither they nor the user say."""
        if self.request.task != "multiclass" or scores == "labels" or names is None:
            return ()
        columns = tuple(self.columns[preds])
        if self.request.names or in_order_of(columns, names) is not None:
            return ()
        return columns

    def positive_column(
        self, preds: str, scores: str | None, names: tuple[str, ...] | None
    ) -> str | None:
        """The column of scores of a binary task, if its name says which class they are of."""
        if self.request.task != "binary" or self.request.names or scores == "labels" or not names:
            return None
        (column,) = self.columns[preds]
        return None if named_by(column, names) is None else column

    def pairs(self) -> tuple[tuple[tuple[str, str], ...], tuple[int, ...]]:
        """The pairs of columns of predictions and targets, and the order of the targets.

        Both are empty if the columns are in one order by their names.
        """
        preds, target = self.columns[self.request.outputs("preds")[0]], self.columns["target"]
        if len(preds) != len(target) or len(target) < 2:
            return (), ()
        ordered = in_order_of(preds, target)
        if ordered == tuple(target):
            return (), ()
        places = () if ordered is None else tuple(map(list(target).index, ordered))
        return tuple(zip(preds, ordered or target, strict=True)), places

    def check_lists(self) -> None:
        """Refuses columns of detections that have a row for each detection.

        Raises:
            MetricInputError: a column has no lists.
        """
        for output in self.columns:
            lists = output.startswith(("boxes", "scores", "labels", "target"))
            value = next((x for x in listed(self.first[output]) if lists and not _is_list(x)), None)
            if value is not None:
                raise MetricInputError(
                    f"{self.named(output)} holds {shortened(repr(value), 40)}, which is no list; "
                    f"the task detection takes a row for each image, with lists of boxes "
                    f"[x0, y0, x1, y1], of scores and of labels. If a row is one detection, make "
                    f"one list of the rows of each image: for example with pandas, "
                    f"table.groupby('image_id').agg(list). For the JSON files of COCO, results and "
                    f"ground truth, there is --format coco"
                )

    def boxes_without_corners(self) -> list[str]:
        """Says which columns have many boxes that are no corners, if the format is not said."""
        said = []
        outputs = ["target_boxes", *self.request.outputs("boxes")]
        for output in outputs if self.request.box_format is None else ():
            rows = [row for row in listed(self.first.get(output, ())) if row is not None]
            boxes = np.concatenate([np.ravel(box) for row in rows for box in row] or [[]])
            boxes = boxes.reshape(-1, 4) if boxes.size % 4 == 0 else np.zeros((0, 4))
            wrong = (boxes[:, 2:] < boxes[:, :2]).any(1).sum()
            if wrong > len(boxes) * _FEW_BOXES:
                said.append(
                    f"{self.named(output)}: {wrong:,} of the first {len(boxes):,} boxes have "
                    f"x2 < x1 or y2 < y1. If they are x, y, width, height, give --box-format xywh, "
                    f"or cxcywh where x and y are the centre"
                )
        return said

    def labels(self, outputs: Sequence[str]) -> tuple[int, tuple[str, ...] | None, bool]:
        """The same as `classes`, if only columns of labels show which classes there are."""
        request, named = self.request, self.check_same_kind(outputs)
        if request.names:
            return len(request.names), request.names, named
        if request.size and not named:
            return request.size, None, False
        values = self.values(outputs)
        if named:
            names = tuple(sorted(map(str, values)))
            size = len(names)
            if size == 1:
                raise MetricInputError(
                    f"all labels are {names[0]!r}; a task of classes takes two or more: name the "
                    f"others, too, with --classes {names[0]},OTHER"
                )
            if request.size not in (None, size):
                raise MetricInputError(
                    f"the labels have {size} distinct values; --num-classes is {request.size}"
                )
        else:
            # Infinities have no integer. The metrics count them as out of range.
            whole = [int(value) for value in values if abs(value) < 2**62]
            # A label that no row has still counts as a class if a greater one occurs; two are the
            # least that a metric of classes takes.
            names, size = None, max(max(whole, default=1) + 1, 2)
        if size > MOST_CLASSES:
            raise MetricInputError(
                f"the labels have {size:,} classes; expected at most {MOST_CLASSES:,}: name the "
                f"right column, or give --num-classes"
            )
        return size, names, named

    def check_same_kind(self, outputs: Sequence[str]) -> bool:
        """Returns whether columns of labels hold names; raises if others hold numbers."""
        flat = {output: _flat(self.first[output]) for output in outputs}
        named = [output for output in outputs if _holds_strings(flat[output])]
        others = [output for output in outputs if flat[output] and output not in named]
        if named and others:
            raise MetricInputError(
                f"{self.named(named[0])} holds names and {self.named(others[0])} numbers: "
                f"{self.example(named[0])[1]!r} is no number; expected the same of predicted "
                f"labels and of targets"
            )
        return bool(named)

    def found(self, output: str) -> tuple[str, ...]:
        """The distinct values of a column of names, sorted."""
        found = tuple(sorted(map(str, self.values([output]))))
        if len(found) > MOST_CLASSES:
            raise MetricInputError(
                f"{self.named(output)} has {len(found):,} distinct values; expected at most "
                f"{MOST_CLASSES:,} classes"
            )
        return found

    def values(self, outputs: Sequence[str]) -> set[Any]:
        """The distinct values of some columns, without what is no value."""
        counts = self.scan(outputs)
        return {value for output in outputs for value in counts[output] if value is not None}

    def width(self, outputs: Sequence[str]) -> int | None:
        """Counts the values in a row of a regression; None if each row is a single number."""
        target = self.first["target"]
        for preds in (self.first[output] for output in outputs):
            if np.shape(preds)[1:] != np.shape(target)[1:]:
                raise MetricInputError(
                    f"--preds names {_width(preds)} columns and --target {_width(target)}; "
                    f"expected as many of both"
                )
        return _width(target) if np.ndim(target) == 2 else None

    def slicings(self) -> tuple[Slicing, ...]:
        """The slicings with their values: those that were given, or the most frequent ones."""
        given = {f"slice_{place}": each for place, each in enumerate(self.request.slicings)}
        # One pass over the files counts the values of all these columns.
        counted = [output for output, each in given.items() if not each.values]
        counts = self.scan(counted) if counted else {}
        return tuple(
            _slicing(each, counts.get(output), self.first[output]) for output, each in given.items()
        )

    def named(self, output: str) -> str:
        return f"the column {self.columns[output][0]!r}"


def _slicing(given: Slicing, counts: Counter[Value] | None, first: Rows) -> Slicing:
    if counts is None:
        kind = next((type(x) for x in listed(first) if x is not None), str)
        return replace(given, values=tuple(_as_value(str(x), kind, given.by) for x in given.values))
    if not counts:
        raise MetricInputError(f"the column {given.by!r} has no rows to slice by")
    # Equal counts are ordered by the value, so that the order of the rows does not matter.
    ranked = sorted(counts, key=lambda value: (-counts[value], str(value)))
    return Slicing(given.by, tuple(ranked[:MOST_SLICES]), len(ranked) > MOST_SLICES)


def _as_value(text: str, kind: type, column: str) -> Value:
    """A value of `--slice-by column=a,b` as the column has it."""
    if text == "(no value)":
        return None
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text) if kind in (int, float) else text
    except (KeyError, ValueError):
        raise MetricInputError(
            f"--slice-by {column}: {text!r}; the column holds values of type {kind.__name__}"
        ) from None


def _each_name(columns: Sequence[str], width: int) -> list[str]:
    """A name for each column of numbers; of those in one column of lists, with their place."""
    if len(columns) == width:
        return list(columns)
    return [f"{columns[0]}/{place}" for place in range(width)]


def _width(x: Rows) -> int:
    return np.shape(x)[1] if np.ndim(x) > 1 else 1


def _flat(values: Rows) -> list[Any]:
    return [x for each in listed(values) for x in (each if _is_list(each) else [each])]


def _is_list(x: object) -> bool:
    return isinstance(x, list | tuple | np.ndarray)


def _holds_strings(values: Rows) -> bool:
    return not is_numeric(values) and any(isinstance(x, str) for x in listed(values))


def _same_but_for_case(names: Sequence[str]) -> str:
    """The end of an error about too many classes."""
    alike = look_alikes(names)
    return f"; {alike_but_for_case(alike[0])}" if alike else ""


def alike_but_for_case(names: Sequence[str]) -> str:
    """Says that these names differ in case, white space or Unicode form alone."""
    if len({*map(unified, names[:3])}) < len(names[:3]):  # they may look the same
        return f"{' and '.join(map(ascii, names[:3]))} differ in Unicode form alone"
    return f"{' and '.join(map(repr, names[:3]))} differ in case or white space alone"


def _distinct(found: Sequence[str]) -> str:
    return f"{len(found):,} distinct value{'s' if len(found) != 1 else ''}"


def _not_two_classes(found: Sequence[str]) -> str:
    """What to write where the rows have one of both classes, or more than two."""
    if len(found) != 1:
        return "; --task multiclass takes more"
    return f": --classes OTHER,{found[0]} names both, the negative class first"


def _brief(names: Sequence[str]) -> str:
    shown = ",".join(map(str, names[:6]))
    return shown if len(names) <= 6 else f"{shown},..."
