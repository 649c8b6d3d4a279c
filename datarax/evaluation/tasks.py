"""Tasks, and their metrics by the names and options that `--metrics` has."""

import ast
import difflib
import inspect
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib import import_module
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from datarax import metrics as catalogue
from datarax._errors import MetricInputError, UnknownMetricError
from datarax.metric.arguments import update_signature
from datarax.metric.base import Metric
from datarax.metric.other_names import calls_elsewhere, snake_case
from datarax.metric.values import flat_items
from datarax.metrics.ranking.query_metric import QueryMetric

_WITH_OPTIONS = re.compile(r"([^()]*)\((.+)\)")
_WORD = re.compile(r"\w[\w-]*")
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""The words of an option that are numbers. A `Spec` keeps the word, as NaN differs from itself."""
# Fields that the task or another argument of the command sets, so no option may set them.
_CONSTANTS = {"true": True, "false": False, "none": None}
SET_ELSEWHERE = {
    "num_classes": "--num-classes or --classes",
    "num_labels": "the columns of --preds",
    "num_outputs": "the columns of --preds",
    "from_logits": "--scores",
    "box_format": "--box-format",
    "on_invalid": "--on-invalid",
}


class Spec(NamedTuple):
    """One metric to compute: a class with some of its options."""

    name: str
    """As it is listed; unique in one evaluation."""
    metric: str
    """The name of the class in `datarax.metrics`; of a user's class, "module.Name"."""
    options: tuple[tuple[str, Any], ...] = ()
    output: str = ""
    """The output whose values it takes, where each column is measured by itself; else ""."""
    weights: str = ""
    """The output with its weights, where columns have values in other rows; else ""."""

    def as_json(self) -> dict[str, Any]:
        """A dict that JSON can hold; `of_json` reads it."""
        saved = {"name": self.name, "metric": self.metric, "options": dict(self.options)}
        given = {"output": self.output, "weights": self.weights}
        return saved | {name: output for name, output in given.items() if output}

    @classmethod
    def of_json(cls, saved: Mapping[str, Any]) -> "Spec":
        """The spec that `as_json` gave.

        Raises:
            UnknownMetricError: there is no class of this name.
        """
        # Raises here, where a saved file is read, instead of where the metric is built.
        class_of(saved["metric"])
        options = ((key, hashable(value)) for key, value in saved["options"].items())
        outputs = (saved.get(name, "") for name in ("output", "weights"))
        return cls(saved["name"], saved["metric"], tuple(options), *outputs)


@dataclass(frozen=True)
class Task:
    """A kind of predictions."""

    takes: str
    """The contents of the columns of predictions and targets, for messages."""
    defaults: str
    """The metrics without `--metrics`, written as in `--metrics`."""
    size: str | None = None
    """The field of metrics that says how many classes, labels or outputs there are."""
    figures: str = ""
    """Metrics that are only drawn, written as in `--metrics`."""
    by_class: tuple[str, ...] = ()
    """Metrics that have a value for each class."""


_BY_CLASS = ("precision", "recall", "f1")
TASKS: Mapping[str, Task] = {
    "binary": Task(
        "one column of scores, or of 0 and 1, and one of labels",
        "accuracy,balanced_accuracy=accuracy:average=macro,f1,precision,recall,matthews_corr_coef,"
        "log_loss,brier_score,auroc,average_precision,calibration_error",
        figures="confusion_matrix,roc,precision_recall_curve,reliability_diagram",
    ),
    "multiclass": Task(
        "one column of scores for each class, or one of predicted labels, and one of labels",
        "accuracy,top_5_accuracy=accuracy:top_k=5,balanced_accuracy=accuracy:average=macro,"
        "macro_f1=f1,matthews_corr_coef,log_loss,brier_score,auroc,calibration_error",
        size="num_classes",
        figures="confusion_matrix,reliability_diagram",
        by_class=_BY_CLASS,
    ),
    "multilabel": Task(
        "one column of scores and one of 0 and 1 for each label",
        "exact_match,accuracy,macro_f1=f1,micro_f1=f1:average=micro,precision,recall,log_loss,"
        "brier_score,auroc,average_precision,calibration_error",
        size="num_labels",
        figures="reliability_diagram",
        by_class=_BY_CLASS,
    ),
    "regression": Task(
        "columns of numbers",
        "mae,rmse,median_absolute_error,max_error,bias,r2,pearson_corr_coef",
        size="num_outputs",
        # 9 bits are 3 MB, and bins of at most 1/34 of the range of values of both signs.
        figures="pairs=spearman_corr_coef:bits=9,errors=median:bits=14,"
        "absolute_errors=median_absolute_error",
    ),
    "score": Task(
        "columns of numbers, each of which is measured by itself",
        "mean,median,std,quantile:q=0.1,quantile:q=0.9,min,max",
        figures="values=median",
    ),
    "ranking": Task(
        "a row for each document: its score, its relevance, and the id of its query",
        "ndcg_at_10=ndcg:k=10,mrr,map,precision_at_10=precision_at_k:k=10,"
        "recall_at_10=recall_at_k:k=10,hit_rate_at_10=hit_rate:k=10",
    ),
    "text": Task(
        "one column of strings, and one of references",
        "bleu,chrf,rouge,exact_match=text_exact_match,token_f1,wer,cer",
    ),
    "detection": Task(
        "columns of lists: boxes, scores and labels; boxes and labels of the ground truth",
        "mean_average_precision=mean_average_precision:per_class=True",
        size="num_classes",
    ),
}

CLASSES: Mapping[str, type[Metric]] = {
    name: each
    for name, each in vars(catalogue).items()
    # An alias has another name than its class, which would be listed twice.
    if isinstance(each, type) and issubclass(each, Metric) and name == each.__name__
}


def class_of(name: str) -> type[Metric]:
    """The class of a spec. Its module is not imported here: names in saved files run no code.

    Raises:
        UnknownMetricError: the catalogue has no such class, or a user's module is not imported.
    """
    if name in CLASSES:
        return CLASSES[name]
    module, _, attribute = name.rpartition(".")
    found = getattr(sys.modules.get(module), attribute, None)
    if isinstance(found, type) and issubclass(found, Metric):
        return found
    if module in sys.modules:
        there = [key for key, x in vars(sys.modules[module]).items() if isinstance(x, type)]
        raise UnknownMetricError(
            f"there is no metric {name!r}: {module!r} has no datarax.Metric {attribute!r}"
            f"{nearest(attribute, there)}"
        )
    hint = f": {module!r} is not imported; datarax merge takes --import {module}" if module else ""
    raise UnknownMetricError(f"there is no metric {name!r}{hint}")


class Listed(NamedTuple):
    """A metric as the catalogue lists it."""

    name: str
    """As `--metrics` takes it."""
    other: str
    """Another name for it: its short name, or the metric that a name of one task stands for."""
    tasks: tuple[str, ...]
    """None for a metric that is only computed in Python."""
    inputs: tuple[str, ...]
    """The arguments of its `update`."""
    options: tuple[str, ...]
    """Its fields, each with its default; one that must be given ends with "=..."."""
    better: str | None
    description: str


def catalogue_of(task: str | None = None, pattern: str = "") -> list[Listed]:
    """The metrics of the catalogue, in the order of their names.

    Args:
        task: only those of a task.
        pattern: only those whose name or other name holds it, in any case and without underscores;
            with `*` or `?`, those whose name it matches; or those that a name of another library
            stands for.
    """
    every = {each.name: each for each in map(_listed, CLASSES)}
    taken = {x for each in every.values() for x in (each.name, each.other)}
    for each in TASKS:
        for spec in _defaults(each):
            # A name with brackets is that of the metric, with its options.
            if spec.name in taken or "(" in spec.name:
                continue
            new = _named_default(spec, each)
            before = every.get(spec.name, new).tasks
            every[spec.name] = new._replace(tasks=tuple(dict.fromkeys((*before, each))))
    found = [each for each in every.values() if task is None or task in each.tasks]
    meant = {snake_case(cls) for cls, _ in calls_elsewhere(pattern)} if pattern else set()
    found = [x for x in found if x.name in meant or _matches(x, _letters(pattern))]
    return sorted(found, key=lambda each: each.name)


def _matches(each: Listed, pattern: str) -> bool:
    names = [_letters(name) for name in (each.name, each.other) if name]
    if "*" in pattern or "?" in pattern:
        return any(fnmatchcase(name, pattern) for name in names)
    return any(pattern in name for name in names)


def _listed(name: str) -> Listed:
    cls = CLASSES[name]
    parameters = inspect.signature(cls).parameters.values()
    options = tuple(
        f"{x.name}=..." if x.default is x.empty else f"{x.name}={_plain_default(x.default)}"
        for x in parameters
        if x.name not in SET_ELSEWHERE and x.kind is not x.VAR_KEYWORD
    )
    inputs = tuple(inspect.signature(cls.update).parameters)[1:]
    spec = Spec(snake_case(name), name)
    said = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ").replace("`", "")
    return Listed(
        *(spec.name, vars(cls).get("short_name") or "", cls.tasks, inputs, options, better(spec)),
        said,
    )


def _named_default(spec: Spec, task: str) -> Listed:
    """A default of a task that has a name of its own, such as "balanced_accuracy"."""
    of = _listed(spec.metric)
    options = "".join(f":{name}={_shown(value)}" for name, value in spec.options)
    return of._replace(
        name=spec.name,
        other=f"{of.name}{options}",
        tasks=(task,),
        options=tuple(x for x in of.options if x.partition("=")[0] not in dict(spec.options)),
        description=described(spec, task),
    )


def _plain_default(value: object) -> str:
    """A default as `--metrics` takes it, if it is a literal; else what it is."""
    return value.__name__ if callable(value) and hasattr(value, "__name__") else str(value)


def built(spec: Spec, task: str, size: int | None, scores: str | None, on_invalid: str) -> Metric:
    """The metric of a spec, without data.

    Args:
        spec: what to make.
        task: a name of `TASKS`.
        size: how many classes, labels or outputs there are; None where the task has no such number.
        scores: "logits", "probabilities", "labels", or None where the task has no scores.
        on_invalid: as in each metric.

    Raises:
        MetricInputError: an option is missing or has a value that the metric refuses.
    """
    cls = class_of(spec.metric)
    fields = fields_of(cls)
    given: dict[str, Any] = {name: with_numbers(x) for name, x in spec.options}
    given["on_invalid"] = on_invalid
    size_field = TASKS[task].size
    if size_field in fields:
        given[size_field] = size
    # Without a threshold, the highest logit is also the highest probability.
    of_classes = size_field == "num_classes" and "threshold" in fields
    if "from_logits" in fields and scores == "logits" and not of_classes:
        given["from_logits"] = True
    missing = [name for name, required in fields.items() if required and name not in given]
    if missing:
        options = "".join(f":{name}=..." for name in missing)
        called = snake_case(spec.metric) if spec.metric in CLASSES else spec.metric
        raise MetricInputError(
            f"the metric {spec.name!r} needs {', '.join(missing)}: write {called}{options}"
        )
    if scores == "labels" and needs_scores(spec):
        raise MetricInputError(
            f"the metric {spec.name!r} needs scores, and --preds names one column of predicted "
            f"labels; name one column of scores for each class"
        )
    try:
        metric = cls(**given)
    except (MetricInputError, TypeError) as error:
        raise MetricInputError(f"the metric {spec.name!r}: {error}") from error
    # Metrics of one argument, such as the mean, take the difference of the two in a regression: see
    # `Configuration.encoding`.
    if task in _MEASURED and "values" in update_signature(metric).parameters:
        weights = {"weights": spec.weights} if spec.weights else {}
        return metric.from_outputs(values=spec.output or _MEASURED[task][0], **weights)
    return metric


def with_numbers(value: Any) -> Any:
    """An option with numbers in place of the words for them."""
    if isinstance(value, tuple):
        return tuple(map(with_numbers, value))
    return _NUMBERS.get(value, value) if isinstance(value, str) else value


_MEASURED = {
    "regression": ("error", "the prediction minus the target"),
    "score": ("preds", "{}"),
}
"""The output that metrics of one argument take in a task, and what it holds."""
_OF_VALUES = {
    "Mean": "mean of",
    "Median": "median of",
    "Quantile": "number that the share q does not exceed, of",
    "Std": "standard deviation of",
    "Variance": "variance of",
    "Max": "greatest of",
    "Min": "least of",
    "Sum": "sum of",
}
"""What metrics of one argument say, by class."""


def for_detections(spec: Spec, box_format: str | None, detections: int | None) -> Spec:
    """The spec with what the command knows of boxes: their format, and how many there are."""
    fields, options = fields_of(class_of(spec.metric)), dict(spec.options)
    if box_format is not None and "box_format" in fields:
        options["box_format"] = box_format
    if detections is not None and {"box_format", "capacity"} <= fields.keys():
        options.setdefault("capacity", 1 << max(detections - 1, 0).bit_length())
    return spec._replace(options=tuple(sorted(options.items())))


def with_empty_zero(spec: Spec) -> Spec:
    """The spec in which a query without relevant documents has 0, unless an option says more."""
    cls, options = class_of(spec.metric), dict(spec.options)
    # Of a metric such as `FallOut`, `empty` is about other queries.
    if issubclass(cls, QueryMetric) and cls.undefined is QueryMetric.undefined:
        options.setdefault("empty", "zero")
    return spec._replace(options=tuple(sorted(options.items())))


def described(spec: Spec, task: str) -> str:
    """One sentence on the metric in a task."""
    options = dict(spec.options)
    # The docstring of a class cannot say what it measures with these options.
    cls = class_of(spec.metric)
    if task in _MEASURED and spec.metric in _OF_VALUES:
        # The mean of a score of a log has the name of the score.
        of_mean = bool(spec.weights) and cls is catalogue.Mean
        column = spec.name if of_mean else spec.name.rpartition("/")[0]
        of = _MEASURED[task][1].format(column or "the scores")
        return f"The {_OF_VALUES[spec.metric]} {of}."
    if cls is catalogue.Accuracy and options.get("average") == "macro":
        return "The mean over the classes of the fraction of their examples that are predicted."
    if cls is catalogue.Accuracy and "top_k" in options:
        return f"The fraction of examples whose class is among the {options['top_k']} best scores."
    if issubclass(cls, catalogue.TextExactMatch):
        left_out = left_out_of_texts(spec)
        return f"The fraction of texts that equal a reference{left_out and ', without '}{left_out}."
    text = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
    return text.replace("`", "").replace(" (multilabel: of labels)", "")


def left_out_of_texts(spec: Spec) -> str:
    """What the metric leaves out before it compares texts, in words; "" if nothing."""
    cls = class_of(spec.metric)
    if not issubclass(cls, catalogue.TextExactMatch):
        return ""
    return cls(**dict(spec.options)).left_out()


def better(spec: Spec) -> str | None:
    """Returns "higher" or "lower" for the better value; None if neither is."""
    return {True: "higher", False: "lower", None: None}[class_of(spec.metric).higher_is_better]


def fields_of(cls: type[Metric]) -> dict[str, bool]:
    """The configuration of a class, and whether each field must be given."""
    parameters = inspect.signature(cls).parameters.values()
    return {each.name: each.default is inspect.Parameter.empty for each in parameters}


def of_task(task: str) -> list[str]:
    """The names of the classes of the catalogue that a task can compute."""
    return [name for name, cls in CLASSES.items() if task in cls.tasks]


def needs_scores(spec: Spec) -> bool:
    """True if a metric of classes needs scores, and so takes no predicted labels."""
    return class_of(spec.metric).needs_scores or dict(spec.options).get("top_k", 1) > 1


def nearest(name: str, names: Sequence[str], most: int = 2, cutoff: float = 0.7) -> str:
    """The end of a message about an unknown name: names that are similar, or nothing.

    `cutoff` is the least similarity, as `difflib.get_close_matches` has it.
    """
    near = difflib.get_close_matches(name, names, most, cutoff)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def hashable(value: Any) -> Any:
    """A list as a tuple, because options are configuration."""
    return tuple(map(hashable, value)) if isinstance(value, list) else value


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
    named = (_spec(each.strip(), task, _known(task)) for each in _split(text, ","))
    for spec, number in ((spec, number) for found, number in named for spec in _one_each(found)):
        if number:
            # Kept, because the numbers of some metrics take seconds to find.
            if spec.name not in numbers:
                numbers[spec.name] = _numbers(spec, task, size)
            if number not in numbers[spec.name]:
                raise UnknownMetricError(
                    f"the metric {spec.name!r} has no number {number!r}"
                    f"{nearest(number, numbers[spec.name])}"
                )
            # "rouge/rouge1,rouge/rouge2" names one metric twice, which is computed once.
            if spec in specs:
                continue
        if spec.name in [other.name for other in specs]:
            raise MetricInputError(
                f"--metrics has {spec.name!r} twice; write another_name={spec.name}"
            )
        specs.append(spec)
    return specs


def _one_each(spec: Spec) -> list[Spec]:
    """A metric of several quantiles as one metric for each, because each has a row of its own."""
    q = dict(spec.options).get("q")
    if class_of(spec.metric) is not catalogue.Quantile or not isinstance(q, tuple):
        return [spec]
    others = dict(spec.options)
    return [
        spec._replace(
            name=f"quantile(q={each})", options=tuple(sorted((others | {"q": each}).items()))
        )
        for each in q
    ]


def defaults(task: str, *, size: int | None, scores: str | None) -> list[Spec]:
    """The metrics of a task without `--metrics`, if they can be computed of such predictions."""
    several = TASKS[task].size == "num_outputs" and size is not None
    return [
        spec
        for spec in _defaults(task)
        if not (scores == "labels" and needs_scores(spec))
        # With at most k classes, each class is among the k best: the value is always 1.
        and (dict(spec.options).get("top_k", 0) < (size or 0) or "top_k" not in dict(spec.options))
        and (not several or "num_outputs" in fields_of(class_of(spec.metric)))
    ]


def of_columns(text: str | None, columns: Sequence[str]) -> list[Spec]:
    """The metrics of several columns, each of which is measured by itself: "judge/mean".

    Args:
        text: as in `parsed`, where "judge/mean" is of one column, and "mean" of all; None for the
            defaults of the task.
        columns: the names of the columns.

    Raises:
        UnknownMetricError: as in `parsed`.
        MetricInputError: as in `parsed`.
    """
    found: list[Spec] = []
    for each in [TASKS["score"].defaults] if text is None else _split(text, ","):
        # A column may have "/" in its name.
        named = [name for name in columns if each.strip().startswith(f"{name}/")]
        column = max(named, key=len, default=None)
        rest = each.strip() if column is None else each.strip()[len(column) + 1 :]
        for spec in parsed(rest, "score"):
            for place, name in enumerate(columns):
                if column in (None, name):
                    own = spec._replace(name=f"{name}/{spec.name}", output=f"preds_{place}")
                    if own.name in [other.name for other in found]:
                        raise MetricInputError(f"--metrics has {own.name!r} twice")
                    found.append(own)
    # By column, as they are read.
    return sorted(found, key=lambda spec: int(spec.output.removeprefix("preds_")))


def of_scores(text: str | None, columns: Sequence[str]) -> list[Spec]:
    """The metrics of the scores of logs: "match" is the mean of the score of this name.

    Args:
        text: as in `of_columns`; None for the means.
        columns: the names of the scores.

    Raises:
        UnknownMetricError: as in `parsed`.
        MetricInputError: as in `parsed`.
    """
    given = "mean" if text is None else text
    if text is not None:
        parts = [each.strip() for each in _split(text, ",")]
        given = ",".join(f"{each}/mean" if each in columns else each for each in parts)
    found = []
    for spec in of_columns(given, columns):
        name = spec.name.removesuffix("/mean") if spec.metric == "Mean" else spec.name
        weights = spec.output.replace("preds", "weights")
        found.append(spec._replace(name=name, weights=weights))
    names = [spec.name for spec in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise MetricInputError(f"--metrics has {twice[0]!r} twice")
    return found


@cache
def figures(task: str) -> tuple[Spec, ...]:
    """The metrics of a task that are only drawn; their names begin with "figure/"."""
    texts = _split(TASKS[task].figures, ",") if TASKS[task].figures else []
    # Also classes of no task, such as the median of values, which takes the errors.
    known = {_letters(name): Spec(snake_case(name), name) for name in CLASSES}
    specs = (_spec(text, task, known)[0] for text in texts)
    return tuple(spec._replace(name=f"figure/{spec.name}") for spec in specs)


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
    known = {_letters(spec.name): spec for spec in specs}
    if task == "regression":
        # "mean" alone would be taken for that of the predictions: see `built`.
        for spec in specs:
            if spec.metric in _OF_VALUES:
                listed = "bias" if spec.metric == "Mean" else f"error_{spec.name}"
                known[_letters(spec.name)] = known[_letters(listed)] = spec._replace(name=listed)
    return known


@cache
def _defaults(task: str) -> tuple[Spec, ...]:
    texts = _split(TASKS[task].defaults, ",")
    return tuple(_spec(text, task, _of_classes(task))[0] for text in texts)


@cache
def _known(task: str) -> Mapping[str, Spec]:
    """Maps each name to what it stands for: a default may have a name that only its task has."""
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
    # A default such as "balanced_accuracy" stands for options, which cannot be given again.
    own, added = dict(named.options), dict[str, Any]()
    for each in options:
        option, value = _option(each, named)
        # The name of a class may stand for it with options of the task: others may be given.
        if option in added or (option in own and named.name != snake_case(named.metric)):
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
    elif meant := _elsewhere(name, task):
        return f"there is no metric {name!r}; did you mean {meant}?"
    elif found := [other for other in TASKS if _elsewhere(name, other)]:
        meant = _elsewhere(name, found[0])
        hint = f"{meant} is computed with --task {' or '.join(found)}"
    else:
        # Of its own task first: of names that are as near, the first is suggested.
        names = [spec.name for each in (task, *TASKS) for spec in _known(each).values()]
        near = nearest(name.lower(), [*dict.fromkeys(names)])
        return f"there is no metric {name!r}{near or f'; datarax metrics --task {task} lists them'}"
    return f"the metric {name!r} is not of the task {task!r}: {hint}"


def _elsewhere(name: str, task: str) -> str:
    """What to write for a name of another library, as in `--metrics`; "" if it is not known."""
    by_class = {cls: spec.name for spec in _of_classes(task).values() for cls in [spec.metric]}
    written = []
    for cls, arguments in calls_elsewhere(name):
        if cls in by_class:
            options = [each.strip().replace('"', "") for each in _split(arguments, ",")]
            # Sizes, and what is only hinted at ("k="), are left to the user.
            given = [x for x in options if x and not x.endswith("=") and "=" in x]
            written.append(":".join([by_class[cls], *given]))
    return " or ".join(map(repr, dict.fromkeys(written)))


def _numbers(spec: Spec, task: str, size: int | None) -> list[str]:
    """The names of the numbers that a metric gives, if it gives several."""
    if size is None and TASKS[task].size:
        # The names of the numbers do not depend on how many classes there are.
        size = 2
    results = built(spec, task, size, None, "propagate").results()
    return [name.removeprefix("/") for name, _ in flat_items({"": results})]


def listed_number(
    text: str, specs: Sequence[Spec], task: str, size: int | None, argument: str
) -> tuple[Spec, str]:
    """The metric, and the name as it is listed, of one number of an evaluation.

    Args:
        text: the name of a number, in any case, with or without underscores.
        specs: what is computed.
        task: a name of `TASKS`.
        size: as in `built`.
        argument: what gives the name, for messages.

    Raises:
        MetricInputError: nothing that is computed has the name, or it stands for several numbers.
    """
    near = [spec.name for spec in specs]
    for spec in specs:
        start, given = _letters(spec.name), _letters(text)
        if given != start and not given.startswith(f"{start}/"):
            continue
        listed = {
            _letters(f"{spec.name}/{x}" if x else spec.name): x for x in _numbers(spec, task, size)
        }
        if given in listed:
            return spec, f"{spec.name}/{listed[given]}" if listed[given] else spec.name
        near = [f"{spec.name}/{x}" if x else spec.name for x in listed.values()]
    hint = nearest(text.lower(), near) or f"; there are: {', '.join(near)}"
    is_metric = _letters(text) in _known(task)
    raise MetricInputError(
        f"{argument}: {text!r} is not computed{'; name it in --metrics' if is_metric else hint}"
    )


def _option(text: str, spec: Spec) -> tuple[str, Any]:
    """The name and the value of an option of a metric: "beta=2" or "average=macro"."""
    name, equals, literal = (part.strip() for part in text.partition("="))
    known = [field for field in fields_of(class_of(spec.metric)) if field not in SET_ELSEWHERE]
    if name in SET_ELSEWHERE:
        raise MetricInputError(f"--metrics: {name} is set by {SET_ELSEWHERE[name]}")
    if not equals or name not in known:
        raise MetricInputError(
            f"--metrics: {spec.name} has no option {text!r}{nearest(name, known)}; "
            f"expected name=value, of {', '.join(known) or 'no options'}"
        )
    types = _types_of(class_of(spec.metric)).get(name, frozenset())
    try:
        value = _value(literal, types)
    except ValueError:
        raise MetricInputError(
            f"--metrics: {name}={literal!r}; expected a number, a word or a tuple"
        ) from None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    may_be_other = types - {bool, type(None)}
    if bool in types and not may_be_other and (is_number or isinstance(value, str | tuple)):
        raise MetricInputError(f"--metrics: {name}={literal}; expected true or false")
    if isinstance(value, bool) and types and not types & {bool, object}:
        raise MetricInputError(f"--metrics: {name}={literal}; expected a number or a word")
    return name, value


@lru_cache
def _types_of(cls: type[Metric]) -> dict[str, frozenset[object]]:
    """The types, and the words, that each field of a class takes; `object` for any.

    There is nothing for a class whose annotations cannot be read.
    """
    try:
        hints = get_type_hints(cls)
    except (NameError, TypeError, AttributeError):  # of a user's class
        return {}
    return {name: frozenset(_types_in(hint)) for name, hint in hints.items()}


def _types_in(hint: Any) -> Iterator[object]:
    """The types in an annotation, with those of elements and the values of `Literal`."""
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    elif get_origin(hint) in (Union, UnionType, tuple, Sequence):
        for each in get_args(hint):
            yield from _types_in(each)
    else:
        yield object if hint is Any else hint


def _value(literal: str, types: Set[object] = frozenset()) -> Any:
    """An option as the field takes it: a Python literal, a plain word, or several in brackets.

    Args:
        literal: the text.
        types: what the field takes, from `_types_of`; empty if it is not known. "true", "false" and
            "none" are words only where they may be.

    Raises:
        ValueError: the text is nothing of these.
    """
    is_known = bool(types - {object})
    if literal in types:
        return literal
    if literal.lower() in _CONSTANTS:
        value = _CONSTANTS[literal.lower()]
        if not is_known or type(value) in types:
            return value
    try:
        value = hashable(ast.literal_eval(literal))
    # The last two come of a text that is nested too deep.
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        if literal in _NUMBERS or _WORD.fullmatch(literal):
            return literal
        parts = [part.strip() for part in literal[1:-1].split(",")]
        is_list = (literal[:1], literal[-1:]) in (("(", ")"), ("[", "]"))
        if not is_list or any(part[:1] in ("(", "[") for part in parts):
            raise ValueError(literal) from None
        return tuple(_value(part, types) for part in (parts if parts[-1] else parts[:-1]))
    # A word that looks like a number.
    is_word = is_known and str in types and not types & {int, float}
    return literal if is_word and isinstance(value, int | float) else value


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
