"""The names and options of metrics, as `--metrics` has them."""

import ast
import difflib
from collections.abc import Iterator, Sequence
from typing import Any

from datarax._errors import MetricInputError, UnknownMetricError
from datarax.evaluation.tasks import (
    CLASSES,
    TASKS,
    Spec,
    fields_of,
    hashable,
    needs_scores,
    of_task,
    snake_case,
)
from datarax.metrics.base import Metric

_SHORT = {
    "ece": "CalibrationError",
    "mae": "MeanAbsoluteError",
    "map": "RetrievalMAP",
    "mape": "MeanAbsolutePercentageError",
    "mcc": "MatthewsCorrCoef",
    "mse": "MeanSquaredError",
    "r2": "R2Score",
    "rmse": "RootMeanSquaredError",
}
# What the task or another argument of the command sets, so an option may not.
_SET = {
    "num_classes": "--num-classes or --classes",
    "num_labels": "the columns of --preds",
    "num_outputs": "the columns of --preds",
    "from_logits": "--scores",
    "on_invalid": "--on-invalid",
}


def parsed(text: str, task: str) -> list[Spec]:
    """The metrics in the text of `--metrics`: "accuracy,fbeta:beta=2,top5=accuracy:top_k=5".

    A name is that of a class in snake case, with or without underscores. After colons come options,
    which are fields of the class: Python literals or plain words. A name and "=" before it change
    how the metric is listed.

    Raises:
        UnknownMetricError: no metric has this name, or it is of another task.
        MetricInputError: an option that the metric does not have, or that is no literal; a name
            that is given twice.
    """
    specs = [_spec(each.strip(), task) for each in _split(text, ",")]
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise MetricInputError(f"--metrics has {name!r} twice; write another_name={name}")
    return specs


def defaults(task: str, *, size: int | None, scores: str | None) -> list[Spec]:
    """The metrics of a task without `--metrics`, as far as predictions of this kind have them."""
    specs = [_spec(each, task) for each in TASKS[task].defaults]
    several = TASKS[task].size == "num_outputs" and size is not None
    return [
        spec
        for spec in specs
        if not (scores == "labels" and needs_scores(spec))
        and (dict(spec.options).get("top_k", 0) < (size or 0) or "top_k" not in dict(spec.options))
        and (not several or "num_outputs" in fields_of(CLASSES[spec.metric]))
    ]


def nearest(name: str, names: Sequence[str]) -> str:
    """The end of a message about an unknown name: names that are similar, or nothing."""
    near = difflib.get_close_matches(name, names, 2, 0.7)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _spec(text: str, task: str) -> Spec:
    first, *options = _split(text, ":")
    listed, equals, name = first.rpartition("=")
    cls = _class(name.strip(), task)
    given = tuple(sorted(_option(each, cls) for each in options))
    shown = snake_case(cls.__name__)
    shown += f"({', '.join(f'{key}={value}' for key, value in given)})" if given else ""
    return Spec(listed.strip() if equals and listed.strip() else shown, cls.__name__, given)


def _class(name: str, task: str) -> type[Metric]:
    letters = {snake_case(each).replace("_", ""): each for each in CLASSES}
    # A short name is of one task at most: "map" is the mean average precision of rankings.
    found = letters.get(name.lower().replace("_", "")) or _SHORT.get(name.lower())
    if found is None:
        names = [
            *dict.fromkeys(snake_case(each) for row in TASKS for each in of_task(row)),
            *_SHORT,
        ]
        said = f"there is no metric {name!r}{nearest(name.lower(), names)}"
        raise UnknownMetricError(said if name else "--metrics has an empty name")
    cls = CLASSES[found]
    if found not in of_task(task):
        theirs = [other for other in TASKS if found in of_task(other)]
        hint = (
            f"it is computed with --task {' or '.join(theirs)}"
            if theirs
            else "its arguments cannot be read from columns; use datarax.evaluate in Python"
        )
        raise UnknownMetricError(f"the metric {name!r} is not of the task {task!r}: {hint}")
    return cls


def _option(text: str, cls: type[Metric]) -> tuple[str, Any]:
    """The name and the value of an option of a class: "beta=2" or "average=macro"."""
    name, equals, literal = (part.strip() for part in text.partition("="))
    known = [field for field in fields_of(cls) if field not in _SET]
    if name in _SET:
        raise MetricInputError(f"--metrics: {name} is set by {_SET[name]}")
    if not equals or name not in known:
        raise MetricInputError(
            f"--metrics: {snake_case(cls.__name__)} has no option {text!r}{nearest(name, known)}; "
            f"expected name=value, of {', '.join(known) or 'no options'}"
        )
    try:
        value = ast.literal_eval(literal)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        if not literal.isidentifier():
            raise MetricInputError(
                f"--metrics: {name}={literal!r}; expected a number, a word or a tuple"
            ) from None
        value = literal
    return name, hashable(value)


def _split(text: str, separator: str) -> Iterator[str]:
    """The parts of a text between separators that are not in brackets."""
    depth, part = 0, ""
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == separator and depth == 0:
            yield part
            part = ""
        else:
            part += letter
    yield part
