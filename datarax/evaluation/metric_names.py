"""The names and options of metrics, as `--metrics` has them."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from datarax._errors import MetricInputError, UnknownMetricError
from datarax.evaluation.tasks import (
    CLASSES,
    TASKS,
    Spec,
    built,
    class_of,
    fields_of,
    hashable,
    nearest,
    needs_scores,
    of_task,
    snake_case,
)
from datarax.metrics.reading import flat_items

_WITH_OPTIONS = re.compile(r"([^()]*)\((.+)\)")
_WORD = re.compile(r"\w[\w-]*")
# What the task or another argument of the command sets, so an option may not.
_SET = {
    "num_classes": "--num-classes or --classes",
    "num_labels": "the columns of --preds",
    "num_outputs": "the columns of --preds",
    "from_logits": "--scores",
    "on_invalid": "--on-invalid",
}


def parsed(text: str, task: str, size: int | None = None) -> list[Spec]:
    """The metrics in the text of `--metrics`: "accuracy,fbeta:beta=2,top5=accuracy:top_k=5".

    A name is that of a class in snake case, with or without underscores, its short name, or one of
    the defaults of the task; of a user's class, "module.Class". After colons, or in brackets, come
    options, which are fields of the class: Python literals or plain words. A name and "=" before it
    change how the metric is listed. "rouge/rouge1", one number of several, gives the whole metric.

    So every name that is printed can be given again.

    Raises:
        UnknownMetricError: no metric has this name, or it is of another task.
        MetricInputError: an option that the metric does not have, or that is no literal; a name
            that is given twice.
    """
    specs: list[Spec] = []
    numbers: dict[str, list[str]] = {}
    for each in _split(text, ","):
        spec, number = _spec(each.strip(), task, _known(task))
        if number and spec.name not in numbers:
            numbers[spec.name] = _numbers(spec, task, size)
        if number and number not in numbers[spec.name]:
            raise UnknownMetricError(
                f"the metric {spec.name!r} has no number {number!r}"
                f"{nearest(number, numbers[spec.name])}"
            )
        # "rouge/rouge1,rouge/rouge2" names one metric twice, which is computed once.
        if number and spec in specs:
            continue
        if spec.name in [other.name for other in specs]:
            raise MetricInputError(
                f"--metrics has {spec.name!r} twice; write another_name={spec.name}"
            )
        specs.append(spec)
    return specs


def defaults(task: str, *, size: int | None, scores: str | None) -> list[Spec]:
    """The metrics of a task without `--metrics`, as far as predictions of this kind have them."""
    several = TASKS[task].size == "num_outputs" and size is not None
    return [
        spec
        for spec in _defaults(task)
        if not (scores == "labels" and needs_scores(spec))
        and (dict(spec.options).get("top_k", 0) < (size or 0) or "top_k" not in dict(spec.options))
        and (not several or "num_outputs" in fields_of(class_of(spec.metric)))
    ]


def imported(module: str) -> None:
    """Imports the module of a user's metrics.

    Raises:
        UnknownMetricError: Python does not find it.
    """
    try:
        import_module(module)
    except (ImportError, TypeError, ValueError) as error:  # the others of "", "." and ".a"
        raise UnknownMetricError(
            f"cannot import {module!r}: {error}; expected a module that Python finds, for example "
            f"with PYTHONPATH=. in the environment"
        ) from error


@cache
def _of_classes(task: str) -> Mapping[str, Spec]:
    """The classes of a task by the letters of their names and short names."""
    specs = [Spec(snake_case(name), name) for name in of_task(task)]
    # Not inherited: a class is not what its base class is called.
    short = ((vars(CLASSES[name]).get("short_name"), name) for name in of_task(task))
    specs += [Spec(listed, name) for listed, name in short if listed]
    return {_letters(spec.name): spec for spec in specs}


@cache
def _defaults(task: str) -> tuple[Spec, ...]:
    return tuple(_spec(each, task, _of_classes(task))[0] for each in TASKS[task].defaults)


@cache
def _known(task: str) -> Mapping[str, Spec]:
    """What each name stands for: a default may have a name that only its task has."""
    return {**_of_classes(task), **{_letters(spec.name): spec for spec in _defaults(task)}}


def _letters(name: str) -> str:
    return name.lower().replace("_", "")


def _spec(text: str, task: str, known: Mapping[str, Spec]) -> tuple[Spec, str]:
    """A metric, and which of its numbers the text names: "" for all."""
    first, *options = _split(text, ":")
    *listed, given = (part.strip() for part in _split(first, "="))
    given, *number = _split(given, "/")
    # Options in brackets are how results are listed, so that a listed name can be given again.
    inside = _WITH_OPTIONS.fullmatch(given)
    name = inside[1].strip() if inside else given
    if inside:
        options = [*_split(inside[2], ","), *options]
    named = _users(name, task) if "." in name else known.get(_letters(name))
    if named is None:
        raise UnknownMetricError(_unknown(name, task))
    own, added = dict(named.options), dict[str, Any]()
    for each in options:
        option, value = _option(each, named)
        if option in own or option in added:
            raise MetricInputError(f"--metrics: {name} has {option}= already; leave out {each!r}")
        added[option] = value
    shown = ", ".join(f"{option}={_shown(value)}" for option, value in sorted(added.items()))
    spec = named._replace(
        name="=".join(listed) or (f"{named.name}({shown})" if shown else named.name),
        options=tuple(sorted({**own, **added}.items())),
    )
    return spec, "/".join(number)


def _users(name: str, task: str) -> Spec:
    """A class that the user names with its module, which is imported."""
    imported(name.rpartition(".")[0])
    cls = class_of(name)
    if task not in cls.tasks:
        raise UnknownMetricError(
            f"the metric {name!r} is not of the task {task!r}: its class has tasks = {cls.tasks!r}"
        )
    own = vars(cls).get("short_name") or snake_case(cls.__name__)
    return Spec(own, cls.__name__ if CLASSES.get(cls.__name__) is cls else name)


def _unknown(name: str, task: str) -> str:
    """Why a task has no metric of this name."""
    if not name:
        return "--metrics has an empty name"
    theirs = [other for other in TASKS if _letters(name) in _known(other)]
    if theirs:
        hint = f"it is computed with --task {' or '.join(theirs)}"
    elif _letters(name) in {_letters(snake_case(each)) for each in CLASSES}:
        hint = "its arguments cannot be read from columns; use datarax.evaluate in Python"
    else:
        # Of its own task first: of names that are as near, the first is suggested.
        names = [spec.name for each in (task, *TASKS) for spec in _known(each).values()]
        return f"there is no metric {name!r}{nearest(name.lower(), [*dict.fromkeys(names)])}"
    return f"the metric {name!r} is not of the task {task!r}: {hint}"


def _numbers(spec: Spec, task: str, size: int | None) -> list[str]:
    """The names of the numbers that a metric gives, if it gives several."""
    if size is None and TASKS[task].size:
        # The names of the numbers do not depend on how many classes there are.
        size = 2
    results = built(spec, task, size, None, "propagate").results()
    return [name.removeprefix("/") for name, _ in flat_items({"": results})]


def _option(text: str, spec: Spec) -> tuple[str, Any]:
    """The name and the value of an option of a metric: "beta=2" or "average=macro"."""
    name, equals, literal = (part.strip() for part in text.partition("="))
    known = [field for field in fields_of(class_of(spec.metric)) if field not in _SET]
    if name in _SET:
        raise MetricInputError(f"--metrics: {name} is set by {_SET[name]}")
    if not equals or name not in known:
        raise MetricInputError(
            f"--metrics: {spec.name} has no option {text!r}{nearest(name, known)}; "
            f"expected name=value, of {', '.join(known) or 'no options'}"
        )
    value = _value(literal)
    if value is None and literal != "None":
        raise MetricInputError(
            f"--metrics: {name}={literal!r}; expected a number, a word or a tuple"
        )
    return name, value


def _value(literal: str) -> Any:
    """A Python literal or a plain word; None for what is neither."""
    try:
        return hashable(ast.literal_eval(literal))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return literal if _WORD.fullmatch(literal) else None


def _shown(value: object) -> str:
    """The value of an option as `_value` takes it: in quotes only if they are needed."""
    return str(value) if _value(str(value)) == value else repr(value)


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
