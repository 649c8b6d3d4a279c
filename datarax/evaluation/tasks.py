"""Tasks: which metrics the command computes, and from which columns."""

import difflib
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from datarax import metrics as catalogue
from datarax._errors import MetricInputError, UnknownMetricError
from datarax.metrics.base import Metric


class Spec(NamedTuple):
    """One metric to compute: a class with some of its options."""

    name: str
    """As it is listed; unique in one evaluation."""
    metric: str
    """The name of the class in `datarax.metrics`; of a user's class, "module.Name"."""
    options: tuple[tuple[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """A dict that JSON can hold; `of_json` reads it."""
        return {"name": self.name, "metric": self.metric, "options": dict(self.options)}

    @classmethod
    def of_json(cls, saved: Mapping[str, Any]) -> "Spec":
        """The spec that `as_json` gave.

        Raises:
            UnknownMetricError: there is no class of this name.
        """
        class_of(saved["metric"])
        options = ((key, hashable(value)) for key, value in saved["options"].items())
        return cls(saved["name"], saved["metric"], tuple(options))


@dataclass(frozen=True)
class Task:
    """A kind of predictions."""

    takes: str
    """What the columns of predictions and targets hold, for messages."""
    defaults: tuple[str, ...]
    """The metrics without `--metrics`, as it takes them."""
    size: str | None = None
    """The field of metrics that says how many classes, labels or outputs there are."""
    figures: tuple[str, ...] = ()
    """Metrics that are only drawn."""
    by_class: tuple[str, ...] = ()
    """Metrics that have a value for each class."""


_BY_CLASS = ("precision", "recall", "f1")
TASKS: Mapping[str, Task] = {
    "binary": Task(
        "one column of scores, or of 0 and 1, and one of labels",
        (
            "accuracy",
            "balanced_accuracy=accuracy:average=macro",
            "f1",
            "precision",
            "recall",
            "matthews_corr_coef",
            "log_loss",
            "brier_score",
            "auroc",
            "average_precision",
            "calibration_error",
        ),
        None,
        ("confusion_matrix", "roc", "precision_recall_curve", "reliability_diagram"),
    ),
    "multiclass": Task(
        "one column of scores for each class, or one of predicted labels, and one of labels",
        (
            "accuracy",
            "top_5_accuracy=accuracy:top_k=5",
            "balanced_accuracy=accuracy:average=macro",
            "macro_f1=f1",
            "matthews_corr_coef",
            "log_loss",
            "brier_score",
            "auroc",
            "calibration_error",
        ),
        "num_classes",
        ("confusion_matrix", "reliability_diagram"),
        _BY_CLASS,
    ),
    "multilabel": Task(
        "one column of scores and one of 0 and 1 for each label",
        (
            "exact_match",
            "accuracy",
            "macro_f1=f1",
            "micro_f1=f1:average=micro",
            "precision",
            "recall",
            "log_loss",
            "brier_score",
            "auroc",
            "average_precision",
            "calibration_error",
        ),
        "num_labels",
        ("reliability_diagram",),
        _BY_CLASS,
    ),
    "regression": Task(
        "columns of numbers",
        (
            "mae",
            "rmse",
            "median_absolute_error",
            "max_error",
            "bias=mean",
            "r2",
            "pearson_corr_coef",
        ),
        "num_outputs",
    ),
    "ranking": Task(
        "a row for each document: its score, its relevance, and the id of its query",
        (
            "ndcg_at_10=ndcg:k=10",
            "mrr",
            "map",
            "precision_at_10=precision_at_k:k=10",
            "recall_at_10=recall_at_k:k=10",
            "hit_rate_at_10=hit_rate:k=10",
        ),
    ),
    "text": Task(
        "one column of strings, and one of references",
        ("bleu", "chrf", "rouge", "exact_match=text_exact_match", "token_f1", "wer", "cer"),
    ),
    "detection": Task(
        "columns of lists: boxes, scores and labels; boxes and labels of the ground truth",
        ("mean_average_precision",),
        "num_classes",
    ),
}

CLASSES: Mapping[str, type[Metric]] = {
    name: each
    for name, each in vars(catalogue).items()
    if isinstance(each, type) and issubclass(each, Metric) and name == each.__name__
}


def snake_case(name: str) -> str:
    """The name of a class as the command has it: "MatthewsCorrCoef" is "matthews_corr_coef"."""
    name = name.replace("IoU", "Iou")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


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


def called(name: str) -> str:
    """The name of a class as `--metrics` takes it."""
    return snake_case(name) if name in CLASSES else name


def built(spec: Spec, task: str, size: int | None, scores: str | None, on_invalid: str) -> Metric:
    """The metric of a spec, without data.

    Args:
        spec: what to make.
        task: a name of `TASKS`.
        size: how many classes, labels or outputs there are; None where the task has no such number.
        scores: "logits", "probabilities", "labels", or None where the task has no scores.
        on_invalid: as of each metric.

    Raises:
        MetricInputError: an option is missing or has a value that the metric refuses.
    """
    cls = class_of(spec.metric)
    fields = fields_of(cls)
    given: dict[str, Any] = dict(spec.options) | {"on_invalid": on_invalid}
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
        raise MetricInputError(
            f"the metric {spec.name!r} needs {', '.join(missing)}: write "
            f"{called(spec.metric)}{options}"
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
    if task == "regression" and "values" in metric.update_signature().parameters:
        return metric.from_outputs(values="error")
    return metric


def described(spec: Spec) -> str:
    """One sentence on the metric."""
    options = dict(spec.options)
    if spec.metric == "Mean":
        return "The mean of the prediction minus the target."
    if spec.metric == "Accuracy" and options.get("average") == "macro":
        return "The mean over the classes of the fraction of their examples that are predicted."
    if spec.metric == "Accuracy" and "top_k" in options:
        return f"The fraction of examples whose class is among the {options['top_k']} best scores."
    text = (inspect.getdoc(class_of(spec.metric)) or "").split("\n\n")[0].replace("\n", " ")
    return text.replace("`", "").replace(" (multilabel: of labels)", "")


def better(spec: Spec) -> str | None:
    """Whether a "higher" or a "lower" value is better; None if neither is."""
    return {True: "higher", False: "lower", None: None}[class_of(spec.metric).higher_is_better]


def fields_of(cls: type[Metric]) -> dict[str, bool]:
    """The configuration of a class, and whether each field must be given."""
    parameters = inspect.signature(cls).parameters.values()
    return {each.name: each.default is inspect.Parameter.empty for each in parameters}


def of_task(task: str) -> list[str]:
    """The names of the classes of the catalogue that a task can compute."""
    return [name for name, cls in CLASSES.items() if task in cls.tasks]


def needs_scores(spec: Spec) -> bool:
    """Whether a metric of classes takes no predicted labels."""
    return class_of(spec.metric).needs_scores or dict(spec.options).get("top_k", 1) > 1


def nearest(name: str, names: Sequence[str]) -> str:
    """The end of a message about an unknown name: names that are similar, or nothing."""
    near = difflib.get_close_matches(name, names, 2, 0.7)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def hashable(value: Any) -> Any:
    """A list as a tuple, because options are configuration."""
    return tuple(map(hashable, value)) if isinstance(value, list) else value
