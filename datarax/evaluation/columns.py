"""The columns of the files that feed each output of a metric."""

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import datarax.metrics
from datarax._errors import MetricInputError
from datarax.algebra.state import walk
from datarax.evaluation.files import natural, type_in
from datarax.evaluation.tables import ABSENT, MIXED_MARKS, ColumnType, Outputs, Table, Types
from datarax.evaluation.tasks import nearest
from datarax.evaluation.text_format import how_to_write, is_number, other_delimiter, refuse_text
from datarax.metric.arguments import Route
from datarax.metric.base import Metric
from datarax.metrics.language.text_metric import CountedText
from datarax.wrappers.sliced import Sliced

INDEX = "index"
# The arguments whose lists are padded with the mask `target_valid`; of others, with `valid`.
_OF_TARGETS = ("target_boxes", "target_labels", "crowd", "area")
_BOXES = ("boxes", "target_boxes")

Names = str | Sequence[str] | None


@dataclass(frozen=True)
class Columns:
    """The columns that feed each output, and the meaning of the strings of a column.

    Args:
        names: by output, a column, a list of columns or a glob over their names, such as
            `"logit_*"`. Several columns become the last axis, those of a glob in the order of their
            names, with numbers by value. `None` leaves an optional output out. An output that is
            not named takes the column of its own name.
        classes: by output, the names of the classes in the order of their labels, from 0, for a
            column of strings. A string that is not among them becomes the label -1, which metrics
            count as invalid.

    Example:
        >>> from datarax.evaluation import Columns
        >>> columns = Columns({"preds": "logit_*"}, classes={"target": ["cat", "dog"]})
        >>> print(columns.names, columns.classes)
        {'preds': 'logit_*'} {'target': ['cat', 'dog']}
    """

    names: Mapping[str, Names] = field(default_factory=dict)
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Encoded(Columns):
    """Columns passed to a function that builds the metric's inputs.

    Args:
        names: as in `Columns`; the outputs that are named are read, and no others.
        classes: not used.
        encode: a function that gets the columns of a batch by their names here, as they are in the
            files, and returns the outputs: arrays, or lists of strings. It can be pickled.
        optional: the outputs whose columns may lack values. The function gets lists, with None
            where there is no value.
        together: a column whose equal values follow each other. They come in one batch.
        texts: the outputs that are texts, whatever their columns hold: "preds" of one text in a
            row, and others of one reference or several.
        marks: the outputs whose values are only told apart, so they may be dates and times.
    """

    encode: Callable[[Outputs], Outputs] = dict
    optional: tuple[str, ...] = ()
    together: str | None = None
    texts: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()


class Feed(NamedTuple):
    """The columns of one output, and how they are converted."""

    output: str
    columns: tuple[str, ...]
    kind: str
    """ "float", "integer", "boolean" or "text"; "as it is", or "optional" for Python values."""
    ragged: bool
    """True if its lists may have different lengths."""
    width: int | None = None
    """The number of values of an item of its lists, if that is known: 4 for boxes."""
    mask: str | None = None
    """The output that says which values of ragged lists are real, if the metric takes one."""
    labels: bool = False
    """True if only metrics of classes take it. Then a label beyond 32 bits counts as out of range,
    instead of raising an error."""
    scored: bool = False
    """True if a metric of classes takes integers as labels, and floats as scores."""
    classes: tuple[str, ...] | None = None
    """The names of the classes of a column of strings."""
    marks: bool = False
    """True if numbers are read as text, because other rows have text."""
    texts: str = ""
    """ "one" if a row has one text, "several" if it may have several references; "" if its strings
    and lists are passed on as they are."""


def feeds_of(
    metric: Metric, columns: Columns | Mapping[str, Names] | None, tables: Sequence[Table]
) -> tuple[tuple[Feed, ...], Types]:
    """Returns what feeds each output, and the types of the columns that are needed.

    Raises:
        MetricInputError: a column is missing, a file has another type of it than the first file,
            `columns` has an output that no metric takes, or strings feed a metric of numbers.
    """
    given = columns if isinstance(columns, Columns) else Columns(dict(columns or {}))
    if isinstance(given, Encoded):
        return feeds_as_they_are(given, tables)
    routes = metric.routes()
    by_output: dict[str, list[Route]] = {}
    for route in routes:
        if route.output is not None:
            by_output.setdefault(route.output, []).append(route)
    # A function that gets all outputs may take any of them.
    if not any(route.takes_all for route in routes):
        for name in (*given.names, *given.classes):
            if name not in by_output:
                raise MetricInputError(
                    f"columns: no metric takes the output {name!r}{alternatives(name, by_output)}"
                )
    first = tables[0]
    chosen: dict[str, tuple[str, ...]] = {}
    for output in dict.fromkeys((*by_output, *given.names)):
        # If an optional argument is routed, it is wanted.
        required = any(each.required or each.routed for each in by_output.get(output, ()))
        if output in given.names:
            names = given.names[output]
            if names is not None:
                chosen[output] = _matched(output, names, tables)
            continue
        # A column that happens to be called "index" is no id of examples.
        if output != INDEX and any(output in table.types for table in tables):
            chosen[output] = (output,)
        elif required:
            raise _missing(output, output, first)
    if not chosen:
        raise MetricInputError(
            f"{first.path}: none of its columns feeds the metric, which takes "
            f"{', '.join(map(repr, by_output))}; say which with columns="
        )
    texts = {output: _texts_of(by_output.get(output, ())) for output in chosen}
    types = _types_of(
        chosen, tables, [output for output in chosen if texts[output]], list(given.classes)
    )
    feeds = tuple(
        _feed(output, names, types, by_output, given, first.path)._replace(texts=texts[output])
        for output, names in chosen.items()
    )
    return feeds, types


def absent_columns(
    metric: Metric, columns: Columns | Mapping[str, Names] | None, feeds: Sequence[Feed]
) -> Types:
    """The optional outputs that no column feeds, and that nobody named.

    Objects of JSON far below the first rows may have them, which must not be left out silently.
    """
    if isinstance(columns, Encoded):
        return {}
    named = columns.names if isinstance(columns, Columns) else columns or {}
    outputs = {route.output for route in metric.routes() if route.output is not None}
    absent = outputs - {feed.output for feed in feeds} - named.keys() - {INDEX}
    return dict.fromkeys(sorted(absent), ABSENT)


def feeds_as_they_are(columns: Encoded, tables: Sequence[Table]) -> tuple[tuple[Feed, ...], Types]:
    """The columns that are named, without any change, and their types.

    Raises:
        MetricInputError: a column is missing, or a file has another type of it.
    """
    chosen = {
        output: _matched(output, names, tables)
        for output, names in columns.names.items()
        if names is not None
    }
    types = _types_of(chosen, tables, columns.texts, columns.marks)
    return tuple(
        Feed(
            output,
            names,
            "text"
            if output in columns.texts
            else "optional"
            if output in columns.optional
            else "as it is",
            any(types[name].ragged for name in names),
            marks=any(types[name].kind == "mark" for name in names),
            texts="" if output not in columns.texts else "one" if output == "preds" else "several",
        )
        for output, names in chosen.items()
    ), types


def may_be_read(
    metric: Metric, columns: Columns | Mapping[str, Names] | None, also: str | None = None
) -> Callable[[str], bool]:
    """True for each column that may feed the metric, before it is known which columns exist.

    So it is for the column `also`, and for one whose field `COLUMN.FIELD` may feed it.
    """
    names = columns.names if isinstance(columns, Columns) else dict(columns or {})
    routes = metric.routes()
    if any(route.takes_all for route in routes):
        return lambda name: True
    outputs = dict.fromkeys((*(route.output for route in routes), *names))
    chosen = [names.get(output, output) for output in outputs if output is not None]
    lists = [[x] if isinstance(x, str) else x for x in chosen if x is not None]
    wanted = {also, *(name for each in lists for name in each)} - {None}

    def may(name: str) -> bool:
        globs = (each for each in wanted if each is not None)
        return any(
            name == each or fnmatch.fnmatchcase(name, each) or each.startswith(f"{name}.")
            for each in globs
        )

    return may


def grouping_columns(metric: Metric, feeds: Iterable[Feed]) -> list[str]:
    """The columns whose equal values must be in one update, such as the ids of queries."""
    groups = {getattr(each, "together_by", None) for each in walk(metric)} - {None}
    outputs = {route.output for route in metric.routes() if route.argument in groups}
    return [name for feed in feeds if feed.output in outputs for name in feed.columns]


def takes_index(metric: Metric, feeds: Iterable[Feed], wanted: bool = False) -> bool:
    """True if rows need ids that no column has, because the metric or the caller wants them.

    The id of a row is its place in its file. So what a bootstrap draws does not depend on the size
    of the batches, nor on who reads them.
    """
    wanted |= any(route.argument == route.output == INDEX for route in metric.routes())
    return wanted and all(feed.output != INDEX for feed in feeds)


def alternatives(name: str, names: Iterable[str]) -> str:
    """The end of an error about a name that is not among `names`: similar ones, or all."""
    shown = sorted(names, key=natural)
    if len(shown) == 1 and (hint := other_delimiter(shown[0])):
        return f"; there is {shown[0]!r}{hint}"
    similar = nearest(name, shown, 3, 0.5)
    if similar:
        return similar
    if not shown:
        return "; there is none"
    more = f", and {len(shown) - 12} more" if len(shown) > 12 else ""
    if all(map(is_number, shown)):
        more += "; the first line of a CSV holds the names of the columns"
    return f"; there are: {', '.join(map(repr, shown[:12]))}{more}"


def _missing(column: str, output: str, table: Table) -> MetricInputError:
    purpose = "the slices" if re.fullmatch(r"slice_\d+", output) else f"the output {output!r}"
    return MetricInputError(
        f"{table.path}: there is no column {column!r} for {purpose}"
        f"{alternatives(column, table.types)}"
    )


def _matched(output: str, names: str | Sequence[str], tables: Sequence[Table]) -> tuple[str, ...]:
    """The columns that a name, a glob or a list of both stands for: the same in all files."""
    table, *others = tables
    found: list[str] = []
    for name in [names] if isinstance(names, str) else list(names):
        if not isinstance(name, str):
            raise MetricInputError(
                f"columns: {output!r} is {names!r}; expected a name, a glob, or a list of names"
            )
        # The name of a column may itself have the signs of a glob: then that column is meant.
        matched = [name] if name in table.types else []
        if not matched and any(sign in name for sign in "*?["):
            # A column that the name of a folder gives is none of those that a glob stands for.
            own = [each for each, found in table.types.items() if not found.is_folder]
            matched = [each for each in own if fnmatch.fnmatchcase(each, name)]
            if "." not in name:  # no keys within objects
                matched = [each for each in matched if each.rpartition(".")[0] not in table.types]
            matched.sort(key=natural)
            for other in others:
                # A column that only a later file has would be left out silently.
                theirs = {each for each, found in other.types.items() if not found.is_folder}
                more = fnmatch.filter(theirs - table.types.keys(), name)
                if more:
                    raise MetricInputError(
                        f"{other.path}: the column {min(more, key=natural)!r} is one of {name!r}, "
                        f"and {table.path} has no such column; expected the same in all files"
                    )
        if not matched and type_in(table, name) is not None:  # far below the first rows
            matched = [name]
        if not matched:
            raise _missing(name, output, table)
        found += matched
    if not found:
        raise MetricInputError(f"columns: {output!r} is an empty list; expected names of columns")
    # Two globs may match the same column.
    return tuple(dict.fromkeys(found))


def _types_of(
    chosen: Mapping[str, Sequence[str]],
    tables: Sequence[Table],
    texts: Sequence[str] = (),
    marks: Sequence[str] = (),
) -> Types:
    """The types of the columns that feed some outputs; see `Encoded` for `texts` and `marks`."""
    outputs: dict[str, str] = {}
    for output, names in chosen.items():
        for name in names:
            outputs.setdefault(name, output)
    return {
        name: _type_of(name, output, tables, output in texts, output in marks)
        for name, output in outputs.items()
    }


def _type_of(
    name: str, output: str, tables: Sequence[Table], is_text: bool, is_mark: bool
) -> ColumnType:
    """The type of a column in all files: integers in some and floats in others are floats."""
    agreed: ColumnType | None = None
    where = tables[0].path
    for table in tables:
        found = type_in(table, name, whole=is_mark)
        if found is None:
            raise _missing(name, output, table)
        if is_mark and found.kind == "mixed":
            found = MIXED_MARKS
        if found.kind == "doubled":
            raise MetricInputError(
                f"{table.path}: several columns have the name {name!r}, of the output {output!r}; "
                f"expected one: give the others names of their own"
            )
        if found.kind == "time" and (is_text or (is_mark and not found.lists)):
            found = found._replace(kind="text")  # as which it is read
        if found.kind in ("other", "time") or (found.kind == "mixed" and not is_text):
            within = [f"{each!r}" for each in table.types if each.startswith(f"{name}.")]
            hint = f"; or name what is within: {', '.join(within[:6])}" if within else ""
            raise MetricInputError(
                f"{table.path}: the column {name!r} for the output {output!r} has the type "
                f"{found.name:.300}; expected numbers, booleans, strings, or lists of "
                f"them{hint}"
            )
        if is_text:
            # Strings in one file may be lists or numbers in another.
            agreed = agreed or found._replace(kind="verbatim")
            continue
        # Readers of text find types from the first rows of a file. So one file may have integers
        # where another has floats, or no value.
        # A column without any value takes the type that it has in the other files.
        if agreed is None or agreed.kind == "null":
            agreed, where = found, table.path
        elif found.kind != "null" and found[:2] != agreed[:2]:
            kinds = {found.kind, agreed.kind}
            if is_mark and not found.lists and not agreed.lists and kinds != {"integer", "float"}:
                agreed = MIXED_MARKS
                continue
            if found.lists != agreed.lists or kinds != {"integer", "float"}:
                raise MetricInputError(
                    f"{table.path}: the column {name!r} has the type {found.name}, and in {where} "
                    f"{agreed.name}; expected the same in all files"
                )
            agreed = agreed._replace(kind="float")
        agreed = agreed._replace(ragged=agreed.ragged or found.ragged)
    assert agreed is not None
    return agreed


def _feed(
    output: str,
    names: tuple[str, ...],
    types: Types,
    by_output: dict[str, list[Route]],
    given: Columns,
    path: str,
) -> Feed:
    # A column without any value may be of any type: all its rows are left out, or all its lists
    # are empty. Metrics take integers for numbers, too.
    known = {types[name].kind for name in names} - {"null"}
    kinds = known or {"integer"}
    kinds = {"text"} if "verbatim" in kinds else kinds
    routes = by_output.get(output, [])
    if "text" in kinds and len(kinds) > 1:
        raise MetricInputError(
            f"{path}: of the columns {', '.join(map(repr, names))} for the output {output!r}, some "
            f"hold strings and some numbers"
        )
    classes = given.classes.get(output)
    if classes is not None and known and "text" not in kinds:
        raise MetricInputError(
            f"{path}: the column {names[0]!r} holds no strings, so the output {output!r} needs no "
            f"classes="
        )
    if "text" in kinds and classes is None:
        for route in routes:
            if _takes_numbers(route):
                column, text = next(
                    (name, x) for name in names if (x := types[name].example) or name == names[-1]
                )
                if text is not None and how_to_write(text):
                    raise MetricInputError(f"{path}: {refuse_text(column, text)}")
                raise MetricInputError(
                    f"{path}: the column {names[0]!r} for the output {output!r} holds strings, and "
                    f"{route.label} takes numbers; give the names of the classes in their order: "
                    f"Columns(..., classes={{{output!r}: [...]}})"
                )
    # Several columns become one array. Its kind is the first of these that a column has.
    order = ("text", "float", "integer", "boolean")
    # An image has other numbers of predicted and of true boxes, so each has a mask of its own.
    wanted = {"target_valid" if route.argument in _OF_TARGETS else "valid" for route in routes}
    masks = (name for name, all_ in by_output.items() if {r.argument for r in all_} & wanted)
    return Feed(
        output,
        names,
        next(kind for kind in order if kind in kinds) if classes is None else "integer",
        any(types[name].ragged for name in names),
        width=4 if any(route.argument in _BOXES for route in routes) else None,
        mask=next(masks, None),
        labels=bool(routes) and all(_is_of_classes(route) for route in routes),
        scored=any(_is_of_classes(route) and route.argument == "preds" for route in routes),
        classes=None if classes is None else tuple(classes),
    )


_CATALOGUE = frozenset(x for x in vars(datarax.metrics).values() if isinstance(x, type))


def _is_in_catalogue(route: Route) -> bool:
    """True if the metric is one of the catalogue, or a subclass."""
    return not _CATALOGUE.isdisjoint(route.metric.__mro__)


def _takes_numbers(route: Route) -> bool:
    """True if it is known that the metric takes numbers."""
    if issubclass(route.metric, Sliced):
        return True
    return _is_in_catalogue(route) and not issubclass(route.metric, CountedText)


def _texts_of(routes: Sequence[Route]) -> str:
    """Whether only metrics of texts take an output, and one in a row or several: see `Feed`."""
    if not routes or not all(
        _is_in_catalogue(route) and issubclass(route.metric, CountedText) for route in routes
    ):
        return ""
    several = all(
        route.argument == "target" and getattr(route.metric, "several", True) for route in routes
    )
    if all(route.argument in ("preds", "target") for route in routes):
        return "several" if several else "one"
    return ""


def _is_of_classes(route: Route) -> bool:
    """True if the integers that a metric takes are labels."""
    if issubclass(route.metric, Sliced):
        return True
    return _is_in_catalogue(route) and "num_classes" in route.metric.fields
