"""From the columns of files to a configuration: the sizes, the classes and the slices."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from datarax._errors import MetricInputError
from datarax.evaluation.assembly import Configuration
from datarax.evaluation.encoding import Slicing, Value, known, listed
from datarax.evaluation.tables import Outputs, Rows
from datarax.evaluation.tasks import TASKS, defaults, parsed

MOST_CLASSES = 10_000
MOST_SLICES = 100
MOST_VALUES = 1_000_000
"""How many distinct values of a column are counted."""

Columns = Mapping[str, Sequence[str]]
Scan = Callable[[Sequence[str]], Mapping[str, Counter[Any]]]
"""Reads columns, given by output, and counts their distinct values."""


def planned(
    request: Configuration,
    metrics: str | None,
    columns: Columns,
    first: Outputs,
    scan: Scan,
) -> Configuration:
    """The configuration for files with these columns.

    Args:
        request: what the user asked for: `size` and `names` are those that were given, and slicings
            have the values as texts, or none for the most frequent ones.
        metrics: the text of `--metrics`; None for the defaults of the task.
        columns: the names of the columns of each output.
        first: some rows of each output, as they are in the files.
        scan: counts the values of outputs in all rows; it is called only if that is needed.

    Raises:
        MetricInputError: the columns do not fit the task, or the number of classes is not known.
    """
    task, slicings, preds = (
        request.task,
        request.slicings,
        first.get("preds_a" if request.compared else "preds", ()),
    )
    wide = [f"slice_{place}" for place, each in enumerate(slicings) if not each.values]
    # One pass over the files counts the values of all these columns.
    counted = dict(scan(wide)) if wide else {}
    size, names, named, scores = None, request.names, False, None
    if task in ("binary", "multiclass", "multilabel"):
        scores = _scores(request, columns, preds)
        size, names, named = _classes(request, columns, first, scores, scan)
    elif task == "detection":
        size, names, named = _labels(
            request, columns, ("target_labels", *_predicted("labels", request)), first, scan
        )
    elif task == "regression":
        size = _width(preds) if np.ndim(preds) == 2 else None
        _same_width(first, request)
    elif task == "ranking" and "query" not in columns:
        raise MetricInputError("the task ranking needs --query, the column of the ids of queries")
    elif task == "text":
        for output in (*_predicted("preds", request), "target"):
            if isinstance(first[output], np.ndarray) and first[output].dtype.kind not in "OUS":
                raise MetricInputError(
                    f"{_named(columns, output)} holds numbers; the task text takes strings"
                )
    if task != "text" and task != "detection":
        for output in ("preds_a", "preds_b", "preds"):
            if output in first and scores != "labels" and _holds_strings(first[output]):
                raise MetricInputError(
                    f"{_named(columns, output)} holds strings; the task {task} takes "
                    f"{TASKS[task].takes}"
                )
    if (request.names or request.size) and task in ("regression", "ranking", "text"):
        raise MetricInputError(f"--classes and --num-classes are not for the task {task}")
    specs = (
        defaults(task, size=size, scores=scores) if metrics is None else parsed(metrics, task, size)
    )
    return replace(
        request,
        specs=tuple(specs),
        size=size,
        names=names,
        named=named,
        scores=scores,
        slicings=tuple(
            _slicing(each, counted.get(f"slice_{place}"), first[f"slice_{place}"])
            for place, each in enumerate(slicings)
        ),
        weighted="weights" in columns,
    )


def _predicted(name: str, request: Configuration) -> tuple[str, ...]:
    return (f"{name}_a", f"{name}_b") if request.compared else (name,)


def _scores(request: Configuration, columns: Columns, preds: Rows) -> str:
    """What the columns of predictions hold. It follows from names and shapes, never from values."""
    # One column of a multiclass task cannot hold scores of several classes. Numbers of a binary
    # task may be scores or labels, which the metrics take alike; names can only be labels.
    labels = request.task == "multiclass" and np.ndim(preds) == 1 and not _holds_lists(preds)
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
    names = [name for output in columns if output.startswith("preds") for name in columns[output]]
    logits = all(name.lower().startswith("logit") for name in names)
    return "labels" if labels else "logits" if logits else "probabilities"


def _classes(
    request: Configuration, columns: Columns, first: Outputs, scores: str, scan: Scan
) -> tuple[int | None, tuple[str, ...] | None, bool]:
    """The number of classes or labels, their names, and whether columns hold the names."""
    task, outputs = request.task, _predicted("preds", request)
    preds, target, names = first[outputs[0]], first["target"], request.names
    if task == "binary":
        if np.ndim(preds) != 1:
            raise MetricInputError(
                f"the task binary takes one column of scores, of the second class; --preds names "
                f"{_width(preds)}: {_brief(columns[outputs[0]])}"
            )
        if request.size not in (None, 2) or (names and len(names) != 2):
            raise MetricInputError("the task binary has two classes; use --task multiclass")
        # Labels that are numbers are 0 and 1 by definition, so no values have to be counted.
        if not _holds_strings(target):
            _same_kind(columns, (*outputs, "target"), first, scores)
            return None, names, False
        found = names or _found(columns, "target", scan)
        if len(found) != 2:
            raise MetricInputError(
                f"{_named(columns, 'target')} has {len(found)} distinct values, "
                f"{_brief(found)}; the task binary takes two"
            )
        return None, tuple(found), True
    if task == "multilabel":
        wide, other = _width(preds), _width(target)
        if np.ndim(preds) != 2 or wide != other:
            raise MetricInputError(
                f"--preds names {wide} columns and --target {other}; the task multilabel takes "
                f"one of both for each label"
            )
        if names and len(names) != wide:
            raise MetricInputError(f"--classes has {len(names)} names; there are {wide} labels")
        # With a column for each label, the names of the columns are those of the labels.
        own = tuple(columns["target"]) if len(columns["target"]) == wide else None
        return wide, names or own, False
    if scores == "labels":
        return _labels(request, columns, ("target", *outputs), first, scan)
    wide = _width(preds)
    given = request.size or (len(names) if names else wide)
    if given != wide:
        raise MetricInputError(
            f"--preds names {wide} columns of scores, and there are {given} classes; expected one "
            f"column for each class"
        )
    if not _holds_strings(target):
        return wide, names, False
    if names is None:
        found = _found(columns, "target", scan)
        # The names of the columns also say the order of the classes. The sorted values of the
        # target need not be in that order, so they are taken only where their number is right.
        endings = _endings(columns[outputs[0]])
        names = endings if set(found) <= set(endings) else found
        if len(names) != wide:
            raise MetricInputError(
                f"{_named(columns, 'target')} has {len(found)} distinct values and --preds names "
                f"{wide} columns; give the names of the classes in the order of the columns: "
                f"--classes {_brief(found)}"
            )
    return wide, names, True


def _same_kind(columns: Columns, outputs: Sequence[str], first: Outputs, scores: str) -> None:
    """Raises if some columns of labels hold names and others numbers."""
    named = [output for output in outputs if _holds_strings(_flat(first[output]))]
    others = [output for output in outputs if output not in named and _flat(first[output])]
    if scores == "labels" and named and others:
        raise MetricInputError(
            f"{_named(columns, named[0])} holds names and {_named(columns, others[0])} numbers; "
            f"expected the same of predicted labels and of targets"
        )


def _labels(
    request: Configuration,
    columns: Columns,
    outputs: Sequence[str],
    first: Outputs,
    scan: Scan,
) -> tuple[int, tuple[str, ...] | None, bool]:
    """The same where all that is known of the classes is in columns of labels."""
    named = any(_holds_strings(_flat(first[output])) for output in outputs)
    _same_kind(columns, outputs, first, "labels")
    if request.names:
        return len(request.names), request.names, named
    if request.size and not named:
        return request.size, None, False
    counts = scan(outputs)
    values = {value for output in outputs for value in counts[output] if value is not None}
    if named:
        names = tuple(sorted(map(str, values)))
        if request.size not in (None, len(names)):
            raise MetricInputError(
                f"the labels have {len(names)} distinct values; --num-classes is {request.size}"
            )
        size = len(names)
    else:
        # NaN and infinities have no integer. The metrics count them as out of range.
        whole = [int(value) for value in values if value == value and abs(value) < 2**62]
        # A label that no row has still counts as a class if a greater one occurs; two are the least
        # that a metric of classes takes.
        names, size = None, max(max(whole, default=1) + 1, 2)
    if size > MOST_CLASSES:
        raise MetricInputError(
            f"the labels have {size:,} classes; expected at most {MOST_CLASSES:,}: name the right "
            f"column, or give --num-classes"
        )
    return size, names, named


def _found(columns: Columns, output: str, scan: Scan) -> tuple[str, ...]:
    """The distinct values of a column of names, sorted."""
    found = tuple(sorted(str(value) for value in scan([output])[output] if value is not None))
    if len(found) > MOST_CLASSES:
        raise MetricInputError(
            f"{_named(columns, output)} has {len(found):,} distinct values; expected at most "
            f"{MOST_CLASSES:,} classes"
        )
    return found


def _slicing(given: Slicing, counts: Counter[Value] | None, first: Rows) -> Slicing:
    if counts is None:
        kind = next((type(x) for x in listed(first) if x is not None), str)
        return replace(given, values=tuple(_as_value(str(x), kind, given.by) for x in given.values))
    # NaN and a missing value are one slice, so their counts are added.
    merged: Counter[Value] = Counter()
    for value, number in counts.items():
        merged[known(value)] += number
    if not merged:
        raise MetricInputError(f"the column {given.by!r} has no rows to slice by")
    # Equal counts are ordered by the value, so that the order of the rows does not matter.
    ranked = sorted(merged, key=lambda value: (-merged[value], str(value)))
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


def _endings(names: Sequence[str]) -> tuple[str, ...]:
    """What differs in the names of columns: "prob_cat", "prob_dog" gives "cat", "dog"."""
    first, last = min(names), max(names)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    # A name that goes on after the common part starts at a whole word: "cat" and "car".
    start = first.rfind("_", 0, same) + 1
    return tuple(name[start:] for name in names)


def _same_width(first: Outputs, request: Configuration) -> None:
    target = first["target"]
    for output in _predicted("preds", request):
        if np.shape(first[output])[1:] != np.shape(target)[1:]:
            raise MetricInputError(
                f"--preds names {_width(first[output])} columns and --target {_width(target)}; "
                f"expected as many of both"
            )


def _width(x: Rows) -> int:
    return np.shape(x)[1] if np.ndim(x) > 1 else 1


def _flat(values: Rows) -> list[Any]:
    return [x for each in listed(values) for x in (each if _is_list(each) else [each])]


def _is_list(x: object) -> bool:
    return isinstance(x, list | tuple | np.ndarray)


def _holds_lists(values: Rows) -> bool:
    return any(_is_list(x) for x in listed(values)[:100])


def _holds_strings(values: Rows) -> bool:
    if isinstance(values, np.ndarray) and values.dtype.kind not in "OUS":
        return False
    return any(isinstance(x, str) for x in listed(values))


def _named(columns: Columns, output: str) -> str:
    names = columns.get(output) or columns.get(f"{output}_a") or [output]
    return f"the column {names[0]!r}"


def _brief(names: Sequence[str]) -> str:
    shown = ",".join(map(str, names[:6]))
    return shown if len(names) <= 6 else f"{shown},..."
